package nats_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks/nats"
)

// countingDialer counts the writes to the connections that it makes.
type countingDialer struct{ writes atomic.Int64 }

func (d *countingDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, 10*time.Second)
	return &countingConn{conn, d}, err
}

type countingConn struct {
	net.Conn
	dialer *countingDialer
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.dialer.writes.Add(1)
	return c.Conn.Write(p)
}

// Messages of callers that publish at the same time go out in one write.
func TestPublishersShareWrites(t *testing.T) {
	t.Parallel()
	var dialer countingDialer
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: natstest.Start(t).URL(), Options: []natsgo.Option{natsgo.SetCustomDialer(&dialer)}}}, nil))(t)
	defer func() { _ = sink.Close() }()
	const callers, each = 128, 20
	before := dialer.writes.Load()
	var publishing sync.WaitGroup
	for range callers {
		publishing.Go(func() {
			for range each {
				if err := sink.Publish("topic", message.NewMessage(watermill.NewUUID(), []byte("payload"))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	publishing.Wait()
	writes := dialer.writes.Load() - before
	t.Log(writes, "writes for", callers*each)
	if writes > callers*each/2 {
		t.Errorf("%d writes for %d messages", writes, callers*each)
	}
}
