package endtoend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

// TestOrderInACluster is TestOrder with three servers and a stream with as many replicas, whose
// leader moves. Elections take seconds, so it is part of `make torture PART=order` only.
func TestOrderInACluster(t *testing.T) {
	for _, ingest := range []sinks.Ingest{sinks.IngestPlain, sinks.IngestPipelined} {
		for seed := range *orderSeeds {
			// One after the other: servers that wait for a processor take each other for dead, and elect.
			t.Run(fmt.Sprintf("%s/%d", ingest, seed), func(t *testing.T) {
				testOrder(t, clusterOrderBroker(t), ingest, rand.New(rand.NewPCG(uint64(seed), 18)))
			})
		}
	}
}

// cluster is three servers in the process.
type cluster struct {
	*testing.T
	servers natstest.Cluster
	conn    *natsgo.Conn
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{T: t, servers: natstest.StartCluster(t)}
	conn := testkit.Must(natstest.Connect(c.servers.URL(), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(10*time.Millisecond)))(t)
	t.Cleanup(conn.Close)
	c.conn = conn
	return c
}

// leader returns the server that leads the stream.
func (c *cluster) leader() (leader *natstest.Server) {
	c.Helper()
	js := testkit.Must(natstest.JetStream(c.conn))(c)
	testkit.EventuallyNil(c, func() error {
		ctx, cancel := context.WithTimeout(c.Context(), time.Second)
		defer cancel()
		stream, err := js.Stream(ctx, nats.DefaultStream)
		if err != nil {
			return err
		}
		for _, s := range c.servers {
			if running := s.Server(); running != nil && running.Name() == stream.CachedInfo().Cluster.Leader {
				leader = s
				return nil
			}
		}
		return errors.New("no leader")
	})
	return leader
}

// stepDown has another server lead the stream.
func (c *cluster) stepDown() {
	c.Helper()
	before := c.leader()
	testkit.EventuallyNil(c, func() error {
		_, err := c.conn.Request("$JS.API.STREAM.LEADER.STEPDOWN."+nats.DefaultStream, nil, time.Second)
		return err
	})
	testkit.Eventually(c, "another server leads the stream", func() bool { return c.leader() != before })
}

func clusterOrderBroker(t *testing.T) orderBroker {
	c := startCluster(t)
	return orderBroker{
		open: func(ingest sinks.Ingest) (sink sinks.Sink, err error) {
			config := nats.Config{
				Connection: nats.Connection{URL: c.servers.URL(), Options: []natsgo.Option{natsgo.ReconnectWait(10 * time.Millisecond), natsgo.ReconnectJitter(0, 0)}}, Ingest: ingest, PublishTimeout: 2 * time.Second, MaxMessageSize: orderLimit, Replicas: 3,
			}
			testkit.EventuallyNil(t, func() error {
				sink, err = nats.New(config, nil)
				return err
			})
			return sink, nil
		},
		faults: map[string]func(){
			"leader steps down":  c.stepDown,
			"leader moves twice": func() { c.stepDown(); c.stepDown() },
			"leader restarts":    func() { leader := c.leader(); leader.Stop(); shortly(); leader.Restart() },
			"leader stays away":  func() { leader := c.leader(); leader.Stop(); c.leader(); leader.Restart() },
		},
		read: func(topic string) []placed { return readOrderStream(t, c.conn, topic) },
	}
}
