package kvlease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/subscriber"
	"github.com/agrimill/agrimill/subscriber/leasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ttl is the shortest one.
const ttl = kvlease.MinTTL

// connect connects to a server, or through a proxy to one in a bubble.
func connect(t testing.TB, to natsgo.InProcessConnProvider) *natsgo.Conn {
	t.Helper()
	return dial(t, "", natsgo.InProcessServer(to))
}

func dial(t testing.TB, url string, options ...natsgo.Option) *natsgo.Conn {
	t.Helper()
	conn, _ := natstest.Client(t, url, append(options, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond), natsgo.ReconnectBufSize(-1))...)
	return conn
}

func open(t testing.TB, config kvlease.Config) *kvlease.Lease {
	t.Helper()
	lease := testkit.Must(kvlease.New(context.Background(), config))(t)
	t.Cleanup(func() { _ = lease.Close() })
	return lease
}

func remove(t *testing.T, server *natstest.Server) {
	t.Helper()
	js := testkit.Must(natstest.JetStream(connect(t, server)))(t)
	testkit.NoError(t, js.DeleteKeyValue(t.Context(), kvlease.DefaultBucket))
}

func TestLease(t *testing.T) {
	var server *natstest.Server
	proxies := map[subscriber.Lease]*natstest.Proxy{}
	leasetest.Run(t, leasetest.Suite{
		In: func(t *testing.T, test func(*testing.T)) {
			natstest.Bubble(t, func(t *testing.T, s *natstest.Server) {
				server = s
				test(t)
			})
		},
		New: func(t *testing.T) func() subscriber.Lease {
			return func() subscriber.Lease {
				proxy := natstest.NewLine(t, server)
				lease := open(t, kvlease.Config{Conn: connect(t, proxy), TTL: ttl})
				proxies[lease] = proxy
				return lease
			}
		},
		Cut: func(_ *testing.T, lease subscriber.Lease) func() {
			proxies[lease].Hang() // what was sent arrives when it is over
			return proxies[lease].Resume
		},
		Outage: func(*testing.T, subscriber.Lease) func() {
			server.Stop()
			return func() { server.Restart() }
		},
		Forget: func(t *testing.T, _ subscriber.Lease) { remove(t, server) },
	})
}

// first acquires the lease.
func first(t *testing.T, lease *kvlease.Lease) subscriber.LeaseTerm {
	t.Helper()
	return testkit.Must(lease.Acquire(testkit.Context(t)))(t)
}

// free writes the record of another process that has released the lease, so that nobody waits for
// the TTL. Its epoch is 7.
func free(t *testing.T, server *natstest.Server) {
	t.Helper()
	js := testkit.Must(natstest.JetStream(connect(t, server)))(t)
	kv := testkit.Must(js.KeyValue(t.Context(), kvlease.DefaultBucket))(t)
	testkit.Must(kv.PutString(t.Context(), kvlease.DefaultName, `{"epoch":7,"holder":"another","released":true,"writes":3}`))(t)
}

// A holder whose record or bucket is removed writes the record again while its time lasts, and
// nobody else gets the lease.
func TestRecordIsRemoved(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		conn := connect(t, server)
		a, b := open(t, kvlease.Config{Conn: conn, TTL: time.Minute}), open(t, kvlease.Config{Conn: conn, TTL: time.Minute})
		free(t, server)
		term := first(t, a)
		js := testkit.Must(natstest.JetStream(conn))(t)
		kv := testkit.Must(js.KeyValue(t.Context(), kvlease.DefaultBucket))(t)
		for name, gone := range map[string]func() error{
			"deleted": func() error { return kv.Delete(t.Context(), kvlease.DefaultName) },
			"purged":  func() error { return kv.Purge(t.Context(), kvlease.DefaultName) },
			"bucket":  func() error { return js.DeleteKeyValue(t.Context(), kvlease.DefaultBucket) },
		} {
			if err := gone(); err != nil && !errors.Is(err, jetstream.ErrBucketNotFound) {
				t.Fatalf("%s: %v", name, err)
			}
			if err := term.Renew(t.Context()); err != nil {
				t.Errorf("%s: Renew = %v", name, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if other, err := b.Acquire(ctx); err == nil {
				t.Errorf("%s: another process has the lease, with epoch %d", name, other.Epoch())
			}
			cancel()
		}
		select {
		case <-term.Lost():
			t.Error("the term is lost")
		default:
		}
	})
}

// Who waits sees soon that the lease was released, however long its TTL.
func TestReleaseIsSeen(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		long := kvlease.Config{Conn: connect(t, server), TTL: 100 * testkit.Patience}
		a, b := open(t, long), open(t, long)
		free(t, server)
		term := first(t, a)
		acquired := make(chan subscriber.LeaseTerm)
		ctx := testkit.Context(t)
		go func() { // ends with ctx
			next, err := b.Acquire(ctx)
			if err != nil {
				t.Error(err)
			}
			acquired <- next
		}()
		testkit.NoError(t, term.Release(t.Context()))
		released := time.Now()
		if next := <-acquired; next != nil && next.Epoch() != term.Epoch()+1 {
			t.Errorf("epoch %d after %d", next.Epoch(), term.Epoch())
		}
		if took := time.Since(released); took > 200*time.Millisecond { // in the bubble
			t.Errorf("it took %v", took)
		}
	})
}

// Settings are changed in one process after the other. One with a shorter TTL leaves the holder its
// time, also if the record is gone, and one whose record does not say it the time of whoever waits.
func TestTTLIsChanged(t *testing.T) {
	const long = 3 * time.Second
	for name, test := range map[string]struct {
		holder, waits time.Duration
		gone          bool
		want          time.Duration
	}{
		"shorter":               {long, time.Second, false, long},
		"shorter, and removed":  {long, time.Second, true, long},
		"longer":                {time.Second, long, false, long},
		"longer, and removed":   {time.Second, long, true, long},
		"an old one, not known": {0, time.Second, false, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
				conn := connect(t, server)
				b := open(t, kvlease.Config{Conn: conn, TTL: test.waits})
				js := testkit.Must(natstest.JetStream(conn))(t)
				kv := testkit.Must(js.KeyValue(t.Context(), kvlease.DefaultBucket))(t)
				free(t, server)
				began := time.Now()
				if test.holder > 0 {
					began = first(t, open(t, kvlease.Config{Conn: conn, TTL: test.holder})).Renewed()
				} else if _, err := kv.PutString(t.Context(), kvlease.DefaultName, `{"epoch":8,"holder":"another","writes":1}`); err != nil {
					t.Fatal(err)
				}
				if test.gone {
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					if _, err := b.Acquire(ctx); err == nil { // it sees the record
						t.Error("acquired at once")
					}
					cancel()
					testkit.NoError(t, kv.Delete(t.Context(), kvlease.DefaultName))
				}
				term := first(t, b)
				if took := term.Renewed().Sub(began); took < test.want {
					t.Errorf("acquired after %v, want no less than %v", took, test.want)
				}
				if term.Epoch() != 9 {
					t.Errorf("epoch %d, want 9", term.Epoch())
				}
			})
		})
	}
}

// A renewal that the server has stored, and whose answer did not come, is no other holder.
func TestAnswerIsLost(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		proxy := natstest.NewLine(t, server)
		lease := open(t, kvlease.Config{Conn: connect(t, proxy), TTL: 20 * time.Second, Timeout: time.Second})
		free(t, server)
		term := first(t, lease)
		if term.Epoch() != 8 {
			t.Errorf("epoch %d after 7, want 8", term.Epoch())
		}
		before := term.Renewed()
		proxy.LoseReplies()
		if err := term.Renew(t.Context()); err == nil || errors.Is(err, subscriber.ErrLeaseLost) {
			t.Errorf("Renew without an answer = %v, want another error", err)
		}
		if term.Renewed() != before {
			t.Error("Renewed has changed without an answer")
		}
		proxy.Cut()
		testkit.EventuallyNil(t, func() error { return term.Renew(t.Context()) })
		if err := term.Release(t.Context()); err != nil {
			t.Errorf("Release = %v", err)
		}
	})
}

func TestWithoutABucket(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		conn := connect(t, server)
		config := kvlease.Config{Conn: conn, TTL: time.Second, Provision: kvlease.ProvisionNone}
		if _, err := kvlease.New(t.Context(), config); !errors.Is(err, jetstream.ErrBucketNotFound) {
			t.Errorf("New = %v, want ErrBucketNotFound", err)
		}
		config.Provision = kvlease.ProvisionCreate
		creator := open(t, config)
		if err := creator.Health(t.Context()); err != nil {
			t.Errorf("Health = %v", err)
		}
		config.Provision = kvlease.ProvisionNone
		lease := open(t, config)
		remove(t, server)
		testkit.ErrorIs(t, lease.Health(t.Context()), jetstream.ErrBucketNotFound)
		ctx, cancel := context.WithTimeout(t.Context(), 2*config.TTL)
		defer cancel()
		if _, err := lease.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire without a bucket = %v, want to wait", err)
		}
	})
}

func TestClosed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		lease := open(t, kvlease.Config{Conn: connect(t, server), TTL: time.Minute})
		acquired := make(chan error, 1)
		go func() { // ends with Close
			_, err := lease.Acquire(context.Background())
			acquired <- err
		}()
		if err := lease.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
		if err := lease.Close(); err != nil {
			t.Errorf("second Close = %v", err)
		}
		testkit.ErrorIs(t, <-acquired, kvlease.ErrClosed)
		testkit.ErrorIs(t, lease.Health(t.Context()), kvlease.ErrClosed)
	})
}

func TestConfig(t *testing.T) {
	conn := &natsgo.Conn{}
	for name, config := range map[string]kvlease.Config{
		"conn": {}, "ttl": {Conn: conn, TTL: time.Millisecond}, "long ttl": {Conn: conn, TTL: 8 * 24 * time.Hour}, "replicas": {Conn: conn, Replicas: 6}, "name": {Conn: conn, Name: "a b"},
		"dots": {Conn: conn, Name: "a."}, "timeout": {Conn: conn, Timeout: -1}, "provision": {Conn: conn, Provision: 7},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := kvlease.New(t.Context(), config); !errors.Is(err, kvlease.ErrConfig) {
				t.Errorf("New = %v, want ErrConfig", err)
			}
		})
	}
	if got := (kvlease.Config{TTL: 4 * time.Second}).WithDefaults().Timeout; got != 2*time.Second {
		t.Errorf("Timeout = %v, want half of the TTL", got)
	}
}

// Two subscribers at a real gateway, with a lease in a real server: the holder hangs on the way to
// it, the other one takes over, and everything is confirmed by whoever has the lease.
func TestSubscribers(t *testing.T) {
	t.Parallel()
	const count = 200
	server := natstest.Start(t)
	service := gatewaytest.New(t, gatewaytest.Config{})
	types := []string{"app:test:json"}
	sender := service.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: types})
	service.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: types, Subscribe: types})
	send := func() {
		for i := range count / 2 {
			testkit.Must(service.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: types[0], Payload: fmt.Append(nil, i)}))(t)
		}
	}
	type process struct {
		*subscriber.Subscriber
		proxy *natstest.Proxy
	}
	var handling sync.WaitGroup
	start := func() process {
		proxy := natstest.NewLine(t, server)
		lease := open(t, kvlease.Config{Conn: connect(t, proxy), TTL: ttl})
		sub := testkit.Must(subscriber.New(subscriber.Config{Client: service.Client(), Lease: lease, CloseTimeout: 5 * time.Second}, nil))(t)
		t.Cleanup(func() { _ = sub.Close() })
		messages := testkit.Must(sub.Subscribe(context.Background(), subscriber.AllData))(t)
		handling.Go(func() { // ends with Close
			for msg := range messages {
				msg.Ack()
			}
		})
		return process{sub, proxy}
	}
	holds := func(p process) func() bool {
		return func() bool { return p.Stats().Lease.Role == subscriber.LeaseHolder }
	}
	a := start()
	testkit.Eventually(t, "the first one works", holds(a))
	b := start()
	send()
	ctx := testkit.Context(t)
	testkit.NoError(t, service.WaitConfirmed(ctx, count/2))
	a.proxy.Hang()
	testkit.Eventually(t, "the first one stops", func() bool { return !holds(a)() })
	stopped := a.Stats().Lease
	testkit.Eventually(t, "the second one works", holds(b))
	if began := b.Stats().Lease; began.Epoch <= stopped.Epoch || stopped.Lost != 1 {
		t.Errorf("epoch %d after %d, %d lost", began.Epoch, stopped.Epoch, stopped.Lost)
	}
	send()
	testkit.NoError(t, service.WaitConfirmed(ctx, count))
	a.proxy.Resume()
	if err := b.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	testkit.Eventually(t, "the first one works again", holds(a))
	if err := a.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	handling.Wait()
	if got := a.Stats().Confirmed + b.Stats().Confirmed; got != count {
		t.Errorf("%d confirmed by both, want %d", got, count)
	}
}

// One of two processes works; when it stops, the other one goes on.
func Example() {
	ctx := context.Background()
	conn, err := natsgo.Connect("nats://127.0.0.1:4222")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	lease, err := kvlease.New(ctx, kvlease.Config{Conn: conn, TTL: 5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Close()
	sub, err := subscriber.New(subscriber.Config{
		Client: nil, // gateway.New(gateway.Config{…})
		Lease:  lease,
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sub.Close() // confirms what is acked, and releases the lease
}
