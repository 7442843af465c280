package natstest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/agrimill/agrimill/internal/testkit"
)

// Cluster is servers of one cluster.
type Cluster []*Server

// StartCluster starts three servers, and waits until one of them leads.
func StartCluster(tb testing.TB) Cluster {
	tb.Helper()
	ports := testkit.FreePorts(tb, 3)
	var routes []string
	for _, port := range ports {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	var servers Cluster
	for i, port := range ports {
		servers = append(servers, Start(tb, func(o *server.Options) {
			o.ServerName = fmt.Sprint("s", i)
			o.Cluster = server.ClusterOpts{Name: "farm", Host: "127.0.0.1", Port: port}
			o.Routes = server.RoutesFromStr(strings.Join(routes, ","))
		}))
	}
	testkit.Eventually(tb, "the servers have a leader", func() bool {
		return slices.ContainsFunc(servers, func(s *Server) bool { return s.Server().JetStreamIsLeader() })
	})
	return servers
}

// URL returns the addresses of all servers.
func (c Cluster) URL() string {
	var urls []string
	for _, s := range c {
		urls = append(urls, s.URL())
	}
	return strings.Join(urls, ",")
}
