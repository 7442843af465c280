//go:build faults

package faulttest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/faultproxy"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// The first event is cut at every one of its bytes and beyond, in three styles.
func TestRow01StreamCutMidEvent(t *testing.T) {
	protocols(t, worldConfig{}, func(t *testing.T, w *world) {
		for offset := range int64(700) {
			f := gatewaytest.Fault{CutAfter: offset, Cut: gatewaytest.CutStyle(offset % 3), Times: 1}
			if offset == 0 {
				f.CutAfter = gatewaytest.AfterHeader
			}
			w.gateway.Inject(gatewaytest.OpEvents, f)
		}
		for range 100 { // and somewhere
			w.gateway.Inject(gatewaytest.OpEvents, gatewaytest.Fault{
				CutAfter: 1 + w.rng.Int64N(100_000), Cut: gatewaytest.CutStyle(w.rng.IntN(3)), Times: 1,
			})
		}
		w.send(messages)
		p := w.start(func(p *parts) {
			p.Subscriber.Reconnect = subscriber.Backoff{Initial: time.Millisecond, Max: 2 * time.Millisecond}
		})
		w.settle(expectation{})
		if s := p.sub.Stats(); s.Malformed > 0 || s.Stream.Connects < 700 {
			t.Errorf("%d connects, %d malformed events; want at least 700 and none", s.Stream.Connects, s.Malformed)
		}
	})
}

// The stream falls silent: no bytes, no end, no keep-alive.
func TestRow02StreamHalfOpen(t *testing.T) {
	protocols(t, worldConfig{}, func(t *testing.T, w *world) {
		p := w.start(func(p *parts) { p.Gateway.StreamIdleTimeout = 500 * time.Millisecond })
		w.send(messages / 2)
		w.waitConfirmed()
		for range 2 {
			connects := p.sub.Stats().Stream.Connects
			lift := w.gateway.StallStreams()
			w.send(messages / 4)
			testkit.Eventually(w, "a reconnect", func() bool { return p.sub.Stats().Stream.Connects > connects })
			lift()
			w.waitConfirmed()
		}
		w.judge(expectation{})
	})
}

// All connections die without a word, in the middle of everything: no data, no
// end, no reset. Only the client can find that out.
func TestRow02ConnectionsDie(t *testing.T) {
	protocols(t, worldConfig{gateway: gatewaytest.Config{InlineLimit: 1000}}, func(t *testing.T, w *world) {
		scheme, address, _ := strings.Cut(w.gateway.BaseURL(), "://")
		_, payloads, _ := strings.Cut(w.gateway.PayloadURL(), "://")
		proxy, payloadProxy := faultproxy.New(t), faultproxy.New(t)
		proxy.SetTarget(address)
		payloadProxy.SetTarget(payloads)
		dialer := &net.Dialer{}
		p := w.start(func(p *parts) {
			p.Gateway.BaseURL = scheme + "://" + proxy.Addr()
			p.Gateway.TokenURL = strings.Replace(w.gateway.TokenURL(), address, proxy.Addr(), 1)
			p.Gateway.PingInterval = 300 * time.Millisecond
			p.Gateway.RequestTimeout, p.Gateway.TokenTimeout = 500*time.Millisecond, 500*time.Millisecond
			// The service says where payloads are; this leads there through a proxy.
			p.Gateway.Transports.Payloads = &http.Transport{
				TLSClientConfig: p.Gateway.TLS, ForceAttemptHTTP2: true,
				HTTP2: &http.HTTP2Config{SendPingTimeout: 300 * time.Millisecond, PingTimeout: 300 * time.Millisecond},
				DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
					return dialer.DialContext(ctx, network, payloadProxy.Addr())
				},
			}
		})
		for range 3 {
			w.sendSize(messages/20, 1500)
			w.flow(messages/4, 300*time.Millisecond)
			proxy.Freeze()
			payloadProxy.Freeze()
			w.gateway.ExpireTokens()
			connects := p.sub.Stats().Stream.Connects
			w.sendSize(messages/20, 1500)
			testkit.Eventually(w, "the stream is opened again", func() bool { return p.sub.Stats().Stream.Connects > connects })
		}
		w.settle(expectation{})
	})
}

// The head of a stream comes with its first event: it is waited for, and not
// longer than for an event.
func TestRow02HeadWithTheFirstEvent(t *testing.T) {
	protocols(t, worldConfig{gateway: gatewaytest.Config{StreamHead: gatewaytest.HeadWithFirstEvent}}, func(t *testing.T, w *world) {
		p := w.start(func(p *parts) {
			p.Gateway.StreamConnectTimeout, p.Gateway.StreamIdleTimeout = 300*time.Millisecond, 2*time.Second
		})
		testkit.Eventually(w, "the stream awaits its head", func() bool { return p.sub.Stats().Stream.AwaitingHead })
		w.send(messages / 2)
		w.waitConfirmed()
		// On a slow machine it may have been silent, too.
		if s := p.sub.Stats().Stream; s.Connects != 1 && !errors.Is(s.LastError, gateway.ErrIdle) {
			t.Errorf("%d connects for the first messages: %v", s.Connects, s.LastError)
		}
		lift := w.gateway.StallStreams()
		w.gateway.CutStreams()
		testkit.Eventually(w, "the silent one is given up", func() bool { return errors.Is(p.sub.Stats().Stream.LastError, gateway.ErrIdle) })
		w.send(messages / 2)
		lift()
		w.settle(expectation{})
	})
}

// The sink is slower than the service: events and bytes in flight stay within
// their caps, TCP holds the service back, nothing is dropped.
func TestRow03SlowConsumer(t *testing.T) {
	const maxEvents, maxBytes = 20, 1 << 20
	protocols(t, worldConfig{gateway: gatewaytest.Config{InlineLimit: 1 << 20}}, func(t *testing.T, w *world) {
		p := w.start(func(p *parts) {
			p.Subscriber.MaxInFlight, p.Subscriber.MaxInFlightBytes = maxEvents, maxBytes
			one := make(chan struct{}, 1)
			p.below(func(to sinks.Sink, topic string, messages ...*message.Message) error {
				one <- struct{}{}
				<-time.After(time.Millisecond)
				<-one
				return to.Publish(topic, messages...)
			})
		})
		w.sendSize(messages/2, 20_000)
		w.send(messages / 2)
		n := len(w.gateway.Ledger())
		testkit.Eventually(w, "everything is confirmed", func() bool {
			s := p.sub.Stats()
			if s.InFlight > maxEvents || s.InFlightBytes > maxBytes {
				t.Fatalf("%d events and %d bytes in flight", s.InFlight, s.InFlightBytes)
			}
			return s.Confirmed >= int64(n) // the ledger would have to be copied each time
		})
		w.settle(expectation{})
	})
}

// All unconfirmed messages come again, while their first copies are in flight.
func TestRow11DuplicateDeliveries(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		held := w.gateway.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Delay: 100 * time.Millisecond})
		p := w.start(func(p *parts) {
			p.Subscriber.Order = subscriber.OrderByKey
			p.Kafka.PublishTimeout = testkit.Patience // a slow answer is no reason to write it again
		})
		for i := range 20 {
			// Without a stream no copies come, and the row would show nothing.
			testkit.NoError(t, w.gateway.WaitStreams(t.Context(), 1))
			w.send(messages / 20)
			w.gateway.RedeliverUnconfirmed()
			if i%4 == 3 {
				// A cut throws away what has not been read.
				testkit.Eventually(w, "copies come", func() bool { return p.sub.Stats().Joined > 0 })
				w.gateway.CutStreams()
			}
		}
		held.Lift()
		if v := w.settle(expectation{}); v.duplicates != 0 {
			t.Errorf("%d messages were written more than once by one process", v.duplicates)
		}
		if p.sub.Stats().Joined == 0 {
			t.Error("no copy came: nothing is shown")
		}
	})
}

// The file comes before, between and after its chunks, and comes again.
func TestRow12FilesAndChunks(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]gatewaytest.FileOrder{
		"last": gatewaytest.FileLast, "first": gatewaytest.FileFirst, "between": gatewaytest.FileBetween,
	} {
		t.Run(name, func(t *testing.T) {
			const chunk = 10_000
			protocols(t, worldConfig{gateway: gatewaytest.Config{ChunkSize: chunk, FileOrder: order}}, func(t *testing.T, w *world) {
				p := w.start(func(p *parts) { p.Subscriber.ChunkSize = chunk })
				for i := range 100 {
					w.sendPayload(fileType, w.bytes(35_000))
					w.sendPayload(fileType, w.bytes(500))
					w.send(1)
					switch i % 25 {
					case 5:
						w.gateway.RedeliverUnconfirmed()
					case 15:
						w.gateway.CutStreams()
					}
				}
				w.settle(expectation{})
				for _, e := range w.gateway.Ledger() {
					for _, r := range w.oracle.archive.find(identity{e.EndpointID, e.MessageID}) {
						if e.Chunks > 1 && !r.file() {
							t.Fatalf("chunk %d of %d was stored on its own", e.Chunk, e.Chunks)
						}
					}
				}
				if s := p.sub.Stats(); s.HeldNow != 0 {
					t.Errorf("%d chunks are still held", s.HeldNow)
				}
			})
		})
	}
}
