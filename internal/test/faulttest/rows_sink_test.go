//go:build faults

package faulttest

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

// The sink is down, first refusing connections and then as a black hole. Nothing
// is confirmed meanwhile, nothing is poisoned, and it recovers by itself.
func TestRow16SinkDown(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		p := w.start(undisturbed)
		w.send(messages / 4)
		w.waitConfirmed()
		for name, fault := range map[string][2]func(){
			"stopped": {w.broker.stop, w.broker.restart}, "black hole": {w.broker.hang, w.broker.resume},
		} {
			fault[0]()
			before := w.gateway.Ledger()
			w.send(messages * 3 / 8)
			testkit.Eventually(w, name+": the outage shows", func() bool { return p.health().State == router.StateOutage })
			w.during(time.Second, name+": nothing is confirmed", func() bool { return w.confirmed() == len(before) })
			fault[1]()
			w.waitConfirmed()
		}
		w.judge(expectation{})
		if h := p.health(); h.Poisoned > 0 {
			t.Errorf("%d messages were poisoned by the outage", h.Poisoned)
		}
		if got := p.sub.Stats().Stream.Connects; got != 1 {
			t.Errorf("the event stream was opened %d times, want one that outlived the outage", got)
		}
	})
}

// The sink stores, and its acknowledgments are lost, again and again.
func TestRow17AcknowledgementsLost(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		w.start()
		for range 5 {
			w.send(messages / 10)
			w.broker.loseReplies()
			w.send(messages / 10)
			w.pause(200 * time.Millisecond)
			w.broker.cut()
			w.pause(100 * time.Millisecond)
		}
		w.settle(expectation{})
	})
}

// A message in a hundred can never be handled. It is in the poison queue, whole,
// and holds up none of the others, although they are in order.
func TestRow18PoisonAmongGood(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		p := w.start(func(p *parts) {
			p.Subscriber.Order = subscriber.OrderByKey
			p.Route.Transform = func(msg *message.Message) ([]*message.Message, error) {
				if isBroken(msg) {
					return nil, router.Permanent(io.ErrUnexpectedEOF)
				}
				return []*message.Message{msg}, nil
			}
		})
		for i := range messages {
			if i%100 == 50 {
				w.sendPayload(messageType, append([]byte(brokenPayload), w.bytes(10)...))
			} else {
				w.send(1)
			}
		}
		w.settle(expectation{poisoned: messages / 100})
		if h := p.health(); h.Poisoned != uint64(messages/100) {
			t.Errorf("%d poisoned", h.Poisoned)
		}
	})
}

// Messages that are too large for the sink go by reference.
func TestRow18TooLarge(t *testing.T) {
	both(t, worldConfig{gateway: gatewaytest.Config{ChunkSize: 8 << 20}}, func(t *testing.T, w *world) {
		store := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{URL: "file://" + t.TempDir()}))(t)
		t.Cleanup(func() { _ = store.Close() })
		w.start(func(p *parts) { p.Router.ClaimCheck = store })
		for range 10 {
			w.send(messages / 10)
			w.sendPayload(messageType, fill(w, 1<<20-100+w.rng.IntN(200))) // around the limit
			w.sendPayload(messageType, fill(w, 3<<20))
		}
		w.settle(expectation{})
	})
}

// The stream is full: an outage, until there is room.
func TestRow18StreamFull(t *testing.T) { inWorld(t, worldConfig{}, streamFull) }

func streamFull(t *testing.T, w *world) {
	p := w.start(func(p *parts) { p.NATS.MaxMessages = int64(messages / 2) })
	w.send(messages)
	testkit.Eventually(w, "the outage shows", func() bool { return p.health().State == router.StateOutage })
	w.during(500*time.Millisecond, "no more is confirmed than fits", func() bool { return w.confirmed() <= messages/2 })
	conn := testkit.Must(natsgo.Connect(w.broker.(*natsBroker).Server.URL()))(t)
	defer conn.Close()
	js := testkit.Must(jetstream.New(conn))(t)
	stream := testkit.Must(js.Stream(t.Context(), "AGRIMILL"))(t)
	config := stream.CachedInfo().Config
	config.MaxMsgs = -1
	testkit.Must(js.UpdateStream(t.Context(), config))(t)
	w.settle(expectation{})
}

// A batch is stored in part: all of it is sent again, and is there once.
func TestRow19BatchHalfAccepted(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		const copies = 3
		var halves, calls atomic.Int64 // every fifth batch is stored in part
		w.start(func(p *parts) {
			p.Route.Transform = func(msg *message.Message) ([]*message.Message, error) {
				return []*message.Message{msg, msg.Copy(), msg.Copy()}, nil
			}
			p.below(func(to sinks.Sink, topic string, messages ...*message.Message) error {
				n := calls.Add(1)
				if n%5 != 0 || len(messages) < 2 {
					return to.Publish(topic, messages...)
				}
				if err := to.Publish(topic, messages[:1+int(n/5)%(len(messages)-1)]...); err != nil {
					return err
				}
				halves.Add(1)
				return sinks.NewError("half", topic, sinks.ErrUnavailable, io.ErrUnexpectedEOF)
			})
		})
		w.flow(messages/copies, 500*time.Millisecond)
		v := w.settle(expectation{copies: copies})
		if halves.Load() == 0 {
			t.Error("no batch was stored in part: nothing is shown")
		}
		t.Logf("%d batches stored in part, %d raw duplicates", halves.Load(), v.duplicates)
	})
}

// A broker that loses what it acknowledged: the documented limit. The start-up
// check warns of it, and the oracle sees the loss, which shows that it looks.
func TestRow20SinkLosesAckedData(t *testing.T) { inWorld(t, worldConfig{}, sinkLosesAckedData) }

func sinkLosesAckedData(t *testing.T, w *world) {
	p := w.start(func(p *parts) { p.NATS.Storage = jetstream.MemoryStorage })
	w.send(messages)
	w.settle(expectation{})
	if !strings.Contains(w.logs.String(), "Warning") {
		t.Error("nothing warns of a stream in memory")
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	w.broker.stop()
	w.broker.restart()
	source := testkit.Must(w.broker.source())(t)
	defer source.close()
	fresh := &oracle{gateway: w.gateway, archive: newArchive(source), ctx: t.Context(), acked: map[identity]bool{}}
	fresh.heard.Store(w.oracle.heard.Load())
	lost := 0
	for _, problem := range fresh.judge(expectation{}).problems {
		if strings.Contains(problem, "is confirmed and lost") {
			lost++
		}
	}
	if lost == 0 {
		t.Error("the stream was in memory, and the oracle finds nothing missing")
	}
}

// A confirmation that comes too early is found: the oracle under test.
func TestOracleFindsEarlyConfirmations(t *testing.T) {
	inWorld(t, worldConfig{}, findsEarlyConfirmations)
}

func findsEarlyConfirmations(t *testing.T, w *world) {
	w.start(undisturbed, func(p *parts) {
		p.Gateway.RequestTimeout = testkit.Patience // each is confirmed once, however slow that is
		// A sink that lies about one message in ten.
		var n atomic.Int64
		p.below(func(to sinks.Sink, topic string, messages ...*message.Message) error {
			if n.Add(1)%10 == 0 {
				return nil
			}
			return to.Publish(topic, messages...)
		})
	})
	w.send(100)
	w.waitConfirmed()
	problems := strings.Join(w.oracle.judge(expectation{}).problems, "\n")
	for _, want := range []string{"was confirmed and is not stored", "is confirmed and lost"} {
		if strings.Count(problems, want) != 10 {
			t.Errorf("want 10 times %q in:\n%s", want, problems)
		}
	}
}

// The disk of the dedup store is full, then works half of the time. Nothing that
// it could not remember is confirmed as handled twice.
func TestRow30LocalStoreFails(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		disk := &disk{}
		p := w.start(func(p *parts) {
			p.Store = t.TempDir() + "/dedup"
			p.Dedup = func(s router.DedupStore) router.DedupStore { disk.DedupStore = s; return disk }
		})
		w.send(messages / 4)
		w.waitConfirmed()
		disk.state.Store(diskFull)
		w.send(messages / 2)
		before := w.confirmed()
		testkit.Eventually(w, "the outage shows", func() bool { return p.health().State == router.StateOutage })
		w.during(time.Second, "nothing is confirmed", func() bool { return w.confirmed() <= before })
		disk.state.Store(diskFlaky)
		w.pause(time.Second)
		disk.state.Store(diskFine)
		w.send(messages / 4)
		w.settle(expectation{})
		if h := p.health(); h.Poisoned > 0 {
			t.Errorf("%d messages were poisoned by a full disk", h.Poisoned)
		}
	})
}

const (
	diskFine int32 = iota
	diskFull
	diskFlaky
)

// disk is a dedup store whose disk fails.
type disk struct {
	router.DedupStore
	state, calls atomic.Int32
}

func (d *disk) fail() error {
	switch state := d.state.Load(); {
	case state == diskFull, state == diskFlaky && d.calls.Add(1)%2 == 0:
		return syscall.ENOSPC
	}
	return nil
}

func (d *disk) Reserve(ctx context.Context, claim router.Claim, lease time.Duration) (router.Reservation, error) {
	if err := d.fail(); err != nil {
		return router.Reservation{}, err
	}
	return d.DedupStore.Reserve(ctx, claim, lease)
}

func (d *disk) Commit(ctx context.Context, claim router.Claim, token router.Token, ttl time.Duration) error {
	if err := d.fail(); err != nil {
		return err
	}
	return d.DedupStore.Commit(ctx, claim, token, ttl)
}

// Close closes the store as the Router would.
func (d *disk) Close() error {
	if c, ok := d.DedupStore.(io.Closer); ok {
		return c.Close()
	}
	return errors.New("the store has no Close")
}
