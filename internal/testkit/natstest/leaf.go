package natstest

import (
	"net/url"
	"strconv"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/testkit"
)

// What a client of the leaf node of [StartLeaf] needs.
const (
	LeafDomain      = "hub"
	LeafInboxPrefix = "_INBOX_mill"
	LeafUser        = "mill"
	LeafPassword    = "mill-password"
)

// StartLeaf starts a server whose JetStream has a domain, and one without JetStream that is joined to it
// as a leaf node. The user of the leaf node may subscribe to inboxes of [LeafInboxPrefix] only. The
// functions may first modify the options of the leaf node.
func StartLeaf(tb testing.TB, change ...func(leaf *server.Options)) (hub, leaf *Server) {
	tb.Helper()
	port := testkit.FreePorts(tb, 1)[0]
	hub = Start(tb, func(o *server.Options) {
		o.ServerName, o.JetStreamDomain = "hub", LeafDomain
		o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", port
	})
	leaf = Start(tb, func(o *server.Options) {
		o.ServerName, o.JetStream = "leaf", false
		remote := &url.URL{Scheme: "nats", Host: "127.0.0.1:" + strconv.Itoa(port)}
		o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{remote}}}
		o.Users = []*server.User{{Username: LeafUser, Password: LeafPassword, Permissions: &server.Permissions{
			Subscribe: &server.SubjectPermission{Allow: []string{LeafInboxPrefix + ".>"}},
		}}}
		for _, f := range change {
			f(o)
		}
	})
	testkit.Eventually(tb, "the leaf node knows of its hub's JetStream", func() bool {
		return leaf.Server().GlobalAccount().Interest("$JS."+LeafDomain+".API.INFO") > 0
	})
	return hub, leaf
}

// ConnectLeaf connects as the user of the leaf node of [StartLeaf], until the test ends.
func ConnectLeaf(tb testing.TB, leaf *Server) *natsgo.Conn {
	tb.Helper()
	conn, _ := Client(tb, leaf.URL(), natsgo.UserInfo(LeafUser, LeafPassword), natsgo.CustomInboxPrefix(LeafInboxPrefix))
	return conn
}
