package subscriber_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// awaiting is a subscriber of a service whose heads come with the first event.
func awaiting(f *fixture, change func(*gateway.Config, *subscriber.Config)) *subscriber.Subscriber {
	f.Helper()
	clientConfig, cfg := f.server.ClientConfig(), f.config()
	clientConfig.StreamConnectTimeout = 500 * time.Millisecond
	if change != nil {
		change(&clientConfig, &cfg)
	}
	f.client = f.newClient(clientConfig)
	cfg.Client, cfg.Tenants = f.client, gateway.NewDirectory(f.client)
	return f.subscriber(cfg)
}

// A stream whose head has not come is open: it is shown as such, it is not cut
// when connecting should long be over, and the directory is synchronized.
func TestStreamThatAwaitsItsHead(t *testing.T) {
	synctest.Test(t, testStreamThatAwaitsItsHead)
}

func testStreamThatAwaitsItsHead(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true, StreamHead: gatewaytest.HeadWithFirstEvent})
	var connected atomic.Int64
	sub := awaiting(f, func(_ *gateway.Config, cfg *subscriber.Config) {
		cfg.Hooks.Connected = func() { connected.Add(1) }
	})
	messages := f.subscribe(sub, subscriber.AllData)
	testkit.Eventually(f, "the stream awaits its head", func() bool { return sub.Stats().Stream.AwaitingHead })
	since := sub.Stats().Stream.Since
	testkit.Eventually(f, "a call succeeds", func() bool {
		last := f.client.LastCall()
		return last.Err == nil && !last.At.Before(since)
	})
	<-time.After(time.Second) // twice as long as connecting may take
	if s := sub.Stats().Stream; !s.Connected || !s.AwaitingHead || s.Connects != 1 || s.Since != since || f.server.Streams() != 1 {
		t.Errorf("stream state = %+v", s)
	}
	f.sendN(3)
	f.ackN(messages, 3)
	f.waitConfirmed(3)
	if s := sub.Stats().Stream; !s.Connected || s.AwaitingHead || s.Connects != 1 || !s.Since.After(since) || s.LastError != nil {
		t.Errorf("stream state = %+v after the first event", s)
	}
	if n, tenants := connected.Load(), f.server.Stats(gatewaytest.OpListTenants).Requests; n != 1 || tenants != 1 {
		t.Errorf("the hook was called %d times, and there were %d requests for the tenants, want one each", n, tenants)
	}
}

// A dead one is found all the same.
func TestStreamThatAwaitsItsHeadGoesIdle(t *testing.T) {
	synctest.Test(t, testStreamThatAwaitsItsHeadGoesIdle)
}

func testStreamThatAwaitsItsHeadGoesIdle(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true, StreamHead: gatewaytest.HeadWithFirstEvent})
	sub := awaiting(f, func(cfg *gateway.Config, _ *subscriber.Config) { cfg.StreamIdleTimeout = 1500 * time.Millisecond })
	messages := f.subscribe(sub, subscriber.AllData)
	testkit.Eventually(f, "the watchdog reconnects", func() bool {
		s := sub.Stats().Stream
		return s.Connects >= 2 && s.AwaitingHead && errors.Is(s.LastError, gateway.ErrIdle)
	})
	f.sendN(1)
	f.ackN(messages, 1)
	f.waitConfirmed(1)
}

// A stream that awaits its head is opened anew for what nobody took before.
func TestStreamThatAwaitsItsHeadIsRecalled(t *testing.T) {
	synctest.Test(t, testStreamThatAwaitsItsHeadIsRecalled)
}

func testStreamThatAwaitsItsHeadIsRecalled(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true, StreamHead: gatewaytest.HeadWithFirstEvent, NoReplay: true})
	sub := awaiting(f, nil)
	f.subscribe(sub, typeOther)
	testkit.Eventually(f, "a stream", func() bool { return f.server.Streams() == 1 })
	f.sendN(1)
	testkit.Eventually(f, "nobody takes it", func() bool { return sub.Stats().Untaken == 1 })
	f.server.CutStreams()
	testkit.Eventually(f, "the next stream awaits its head", func() bool { return sub.Stats().Stream.AwaitingHead })
	connects := sub.Stats().Stream.Connects
	messages := f.subscribe(sub, typeJSON)
	testkit.Eventually(f, "a stream of its own", func() bool { return sub.Stats().Stream.Connects > connects && f.server.Streams() == 1 })
	f.sendN(1)
	f.ackN(messages, 1)
	testkit.NoError(t, sub.Close())
}
