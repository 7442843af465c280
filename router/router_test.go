package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

func farmRoute(from message.Subscriber, to sinks.Sink) router.Route {
	return router.Route{Name: "farm", From: from, Topic: "in", To: to}
}

func TestRouteDelivers(t *testing.T) {
	in, to, poison := newGoChannel(), newSink(nil), newSink(nil)
	r := start(t, router.Config{Poison: poison}, farmRoute(in, to))
	sent := farmMessage("1", "endpoint", "context", "payload")
	require.NoError(t, in.Publish("in", sent))
	got := to.wait(t, 1)[0]
	assert.Equal(t, "tenant-1.iso:11783:-10:taskdata:zip", got.topic)
	assert.Equal(t, sent.Payload, got.msg.Payload)
	key, _, _ := router.DefaultKey("farm", sent)
	assert.Equal(t, key.String(), got.msg.Metadata[sinks.KeyDedupID])
	for k, v := range sent.Metadata {
		assert.Equal(t, v, got.msg.Metadata[k])
	}
	require.NoError(t, r.stop())
	assert.Equal(t, 1, to.closeCount())
	assert.Equal(t, 1, poison.closeCount())
	assert.Empty(t, poison.all())
}

// The order of the chain: poison → retry → dedup → recoverer → handler → sink.
func TestChainOrder(t *testing.T) {
	var mu sync.Mutex
	var order []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
	}
	noting := func(name string) message.HandlerMiddleware {
		return func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				note(name)
				out, err := h(msg)
				verdict := "ok"
				var caught *router.PanicError
				var retried *router.RetryError
				switch {
				case errors.As(err, &retried):
					verdict = "given up"
				case errors.As(err, &caught):
					verdict = "caught"
				case err != nil:
					verdict = "failed"
				}
				note("/" + name + " " + verdict)
				return out, err
			}
		}
	}
	store := &notingStore{newStore(t, 0), note}
	var standard []message.HandlerMiddleware
	in := newGoChannel()
	poison := newSink(func(string, *message.Message) error { note("poison"); return nil })
	to := newSink(func(string, *message.Message) error { note("sink"); panic("x") })
	route := farmRoute(in, to)
	route.Middleware = []message.HandlerMiddleware{noting("route")}
	start(t, router.Config{
		Poison:     poison,
		Retry:      router.RetryConfig{MaxAttempts: 2, InitialInterval: time.Millisecond},
		Dedup:      router.DedupConfig{Store: store},
		Middleware: []message.HandlerMiddleware{noting("outside")},
		Chain: func(_ string, c router.Chain) []message.HandlerMiddleware {
			standard = []message.HandlerMiddleware{
				c.Poison, noting("in poison"), c.Retry, noting("in retry"), c.Dedup, noting("in dedup"), c.Recoverer, nil,
			}
			return standard
		},
	}, route)
	require.NoError(t, in.Publish("in", farmMessage("1", "e", "c", "p")))
	poison.wait(t, 1)
	require.NoError(t, in.Close()) // ends the route, so that everything has been noted

	attempt := []string{
		"in retry", "reserve", "in dedup", "route", "/route ok", "sink", "/in dedup caught", "release", "/in retry caught",
	}
	want := append([]string{"outside", "in poison"}, attempt...)
	want = append(want, attempt...)
	want = append(want, "/in poison given up", "poison")
	mu.Lock()
	defer mu.Unlock()
	require.GreaterOrEqual(t, len(order), len(want))
	assert.Equal(t, want, order[:len(want)])
}

type notingStore struct {
	router.DedupStore
	note func(string)
}

func (s *notingStore) Reserve(ctx context.Context, k router.Key, l time.Duration) (router.ReserveResult, router.Token, error) {
	s.note("reserve")
	return s.DedupStore.Reserve(ctx, k, l)
}

func (s *notingStore) Release(ctx context.Context, k router.Key, token router.Token) error {
	s.note("release")
	return s.DedupStore.Release(ctx, k, token)
}

// The default chain, seen from what it does: the poison queue gets the message
// only after the retries, each of which reserved the key anew, and the panic of
// the sink was caught within.
func TestDefaultChainOrder(t *testing.T) {
	var mu sync.Mutex
	var order []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
	}
	in := newGoChannel()
	poison := newSink(func(string, *message.Message) error { note("poison"); return nil })
	to := newSink(func(string, *message.Message) error { note("sink"); panic("x") })
	start(t, router.Config{
		Poison: poison, Retry: router.RetryConfig{MaxAttempts: 2, InitialInterval: time.Millisecond},
		Dedup: router.DedupConfig{Store: &notingStore{newStore(t, 0), note}},
	}, farmRoute(in, to))
	require.NoError(t, in.Publish("in", farmMessage("1", "e", "c", "p")))
	reason := poison.wait(t, 1)[0].msg.Metadata[router.KeyPoisonReason]
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []string{"reserve", "sink", "release", "reserve", "sink", "release", "poison"}, order)
	assert.Equal(t, "panic: x", reason)
}

func TestFailedOnceIsDeliveredNotDropped(t *testing.T) {
	for name, failure := range map[string]error{"outage": down, "handler": router.WithClass(errHandler, router.ClassHandler)} {
		t.Run(name, func(t *testing.T) {
			in, to, poison := newGoChannel(), newSink(failTimes(1, failure)), newSink(nil)
			r := start(t, router.Config{Poison: poison, Retry: fastRetry}, farmRoute(in, to))
			require.NoError(t, in.Publish("in", farmMessage("1", "e", "c", "p")))
			to.wait(t, 1)
			require.NoError(t, r.stop())
			assert.Len(t, to.all(), 1)
			assert.Empty(t, poison.all())
		})
	}
}

func TestChunksAndCopiesForTwoEndpointsAreKept(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	r := start(t, router.Config{Poison: poison}, farmRoute(from, to))
	var sent []*message.Message
	for chunk := range 20 {
		for _, endpoint := range []string{"endpoint 1", "endpoint 2"} {
			id := fmt.Sprintf("%d for %s", chunk, endpoint)
			sent = append(sent, farmMessage(id, endpoint, "one context", fmt.Sprint("chunk ", chunk)))
		}
	}
	for _, msg := range sent {
		from.messages <- msg
	}
	for _, msg := range sent {
		assert.Equal(t, "ack", verdict(t, msg))
	}
	assert.Len(t, to.uuids(), 40)
	assert.Zero(t, r.Health()[0].Duplicates)
}

func TestSendersRepetitionIsDroppedAndAcked(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	r := start(t, router.Config{Poison: poison}, farmRoute(from, to))
	first := farmMessage("1", "e", "c", "p")
	from.messages <- first
	require.Equal(t, "ack", verdict(t, first))
	again := farmMessage("2", "e", "c", "p") // a new message ID, the same payload
	from.messages <- again
	require.Equal(t, "ack", verdict(t, again))
	require.NoError(t, r.stop())
	assert.Len(t, to.all(), 1)
	health := r.Health()[0]
	assert.Equal(t, uint64(1), health.Delivered)
	assert.Equal(t, uint64(1), health.Duplicates)
}

func TestTwoRoutesBothGetTheMessage(t *testing.T) {
	in, to1, to2, poison := newGoChannel(), newSink(nil), newSink(nil), newSink(nil)
	a, b := farmRoute(in, to1), farmRoute(in, to2)
	b.Name = "another"
	start(t, router.Config{Poison: poison}, a, b)
	require.NoError(t, in.Publish("in", farmMessage("1", "e", "c", "p")))
	id1 := to1.wait(t, 1)[0].msg.Metadata[sinks.KeyDedupID]
	id2 := to2.wait(t, 1)[0].msg.Metadata[sinks.KeyDedupID]
	assert.NotEqual(t, id1, id2)
}

func TestOutageOfThousandMessagesPoisonsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		began := time.Now()
		book := newLogBook()
		from, poison := newSource(), newSink(nil)
		to := newSink(func(string, *message.Message) error {
			if time.Since(began) < 10*time.Minute {
				return down
			}
			return nil
		})
		r, err := router.New(router.Config{Poison: poison}, book)
		require.NoError(t, err)
		require.NoError(t, r.Add(farmRoute(from, to)))
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- r.Run(ctx) }()
		<-r.Running()
		assert.Equal(t, router.StateRunning, r.Health()[0].State)

		sent := make([]*message.Message, n)
		for i := range sent {
			sent[i] = farmMessage(fmt.Sprint(i), "e", fmt.Sprint(i), "p")
			from.messages <- sent[i]
		}
		time.Sleep(9 * time.Minute)
		for _, msg := range sent {
			assert.True(t, isOpen(msg))
		}
		health := r.Health()[0]
		assert.Equal(t, router.StateOutage, health.State)
		assert.WithinDuration(t, began, health.Since, time.Minute)
		assert.Equal(t, n, health.InFlight)
		assert.Equal(t, n, health.Waiting)
		assert.Contains(t, health.LastError, "unavailable")
		assert.Zero(t, health.LastSuccess)
		assert.Less(t, to.callCount(), n+100)

		for _, msg := range sent {
			select {
			case <-msg.Acked():
			case <-msg.Nacked():
				t.Fatal("nack")
			}
		}
		synctest.Wait() // a message is acked before its handler has returned
		assert.Less(t, time.Since(began), 11*time.Minute)
		assert.Len(t, to.uuids(), n)
		assert.Empty(t, poison.all())
		health = r.Health()[0]
		assert.Equal(t, router.StateRunning, health.State)
		assert.Equal(t, uint64(n), health.Delivered)
		assert.Zero(t, health.InFlight)
		cancel()
		require.NoError(t, <-result)

		lines := 0
		for _, line := range book.all() {
			if strings.Contains(line, "outage") {
				lines++
			}
		}
		assert.Equal(t, 2, lines, "the beginning and the end")
	})
}

func TestOneUndecodableAmongThousand(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	route := farmRoute(from, to)
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		if !json.Valid(msg.Payload) {
			return nil, router.Permanent(errors.New("not JSON"))
		}
		return []*message.Message{msg}, nil
	}
	// An hour of backoff: whoever waited would not be done in time.
	r := start(t, router.Config{Poison: poison, Retry: router.RetryConfig{InitialInterval: time.Hour}}, route)
	sent := make([]*message.Message, 1000)
	for i := range sent {
		payload := `{"n":1}`
		if i == 500 {
			payload = `{"n":`
		}
		sent[i] = farmMessage(fmt.Sprint(i), "e", fmt.Sprint(i), payload)
		from.messages <- sent[i]
	}
	for _, msg := range sent {
		require.Equal(t, "ack", verdict(t, msg))
	}
	assert.Len(t, to.uuids(), 999)
	require.Len(t, poison.all(), 1)
	poisoned := poison.all()[0].msg
	assert.Equal(t, "500", poisoned.UUID)
	assert.Equal(t, message.Payload(`{"n":`), poisoned.Payload)
	assert.Equal(t, "not JSON", poisoned.Metadata[router.KeyPoisonReason])
	assert.Equal(t, "permanent", poisoned.Metadata[router.KeyPoisonClass])
	assert.Equal(t, "farm", poisoned.Metadata[router.KeyPoisonRoute])
	assert.Equal(t, "in", poisoned.Metadata[router.KeyPoisonTopic])
	assert.Equal(t, "*router_test.source", poisoned.Metadata[router.KeyPoisonSubscriber])
	assert.NotEmpty(t, poisoned.Metadata[sinks.KeyDedupID])
	assert.Equal(t, uint64(1), r.Health()[0].Poisoned)
}

// Shutdown with messages in every state: being written, waiting in an outage,
// waiting after a failure. None is poisoned; what is being written is
// acknowledged; the rest is given back.
func TestShutdownInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, poison := newSource(), newSink(nil)
		proceed := make(chan struct{})
		to := newSink(func(_ string, msg *message.Message) error {
			switch msg.UUID[0] {
			case 'w':
				select {
				case <-proceed:
					return nil
				case <-msg.Context().Done():
					return msg.Context().Err()
				}
			case 'f':
				panic("handler failure")
			default:
				return down
			}
		})
		r, err := router.New(router.Config{Poison: poison, Retry: router.RetryConfig{InitialInterval: time.Hour}}, nil)
		require.NoError(t, err)
		require.NoError(t, r.Add(farmRoute(from, to)))
		type ctxKey struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), ctxKey{}, "value"))
		result := make(chan error, 1)
		go func() { result <- r.Run(ctx) }()
		<-r.Running()

		sent := map[string][]*message.Message{}
		for i := range 300 {
			kind := string("wfo"[i/100])
			msg := farmMessage(fmt.Sprint(kind, i), "e", fmt.Sprint(i), "p")
			sent[kind] = append(sent[kind], msg)
			from.messages <- msg
		}
		time.Sleep(time.Minute)
		from.onClose = func() {
			for _, msg := range sent["w"] {
				assert.False(t, isOpen(msg), "the subscriber is closed after the messages are done")
			}
			assert.Zero(t, to.closeCount(), "the sink is closed after the subscriber")
		}
		cancel()
		for _, kind := range []string{"f", "o"} {
			for _, msg := range sent[kind] {
				assert.Equal(t, "nack", verdict(t, msg), kind)
			}
		}
		assert.Empty(t, result)
		for _, msg := range sent["w"] {
			assert.True(t, isOpen(msg), "attempts under way are waited for")
		}
		close(proceed)
		for _, msg := range sent["w"] {
			assert.Equal(t, "ack", verdict(t, msg))
		}
		require.NoError(t, <-result)
		assert.Empty(t, poison.all())
		assert.Equal(t, 1, from.closeCount())
		assert.Equal(t, 1, to.closeCount())
		health := r.Health()[0]
		assert.Equal(t, router.StateStopped, health.State)
		assert.Equal(t, uint64(100), health.Delivered)
		assert.Equal(t, uint64(200), health.Returned)
	})
}

// A sink that hangs costs CloseTimeout and no more; then the message's context
// ends, and the message is given back.
//
// In real time: Watermill's Close waits under a mutex, which stops the clock of
// synctest.
func TestShutdownIsBounded(t *testing.T) {
	in, poison := newGoChannel(), newSink(nil)
	arrived := make(chan struct{})
	to := newSink(func(_ string, msg *message.Message) error {
		close(arrived)
		<-msg.Context().Done() // gochannel: ends with the subscription
		return errors.New("interrupted")
	})
	r, err := router.New(router.Config{Poison: poison, CloseTimeout: time.Second}, nil)
	require.NoError(t, err)
	require.NoError(t, r.Add(farmRoute(in, to)))
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	<-r.Running()
	require.NoError(t, in.Publish("in", farmMessage("1", "e", "c", "p")))
	<-arrived
	began := time.Now()
	cancel()
	err = <-result
	assert.GreaterOrEqual(t, time.Since(began), 800*time.Millisecond)
	assert.Less(t, time.Since(began), 10*time.Second)
	var closeErr *router.CloseError
	require.ErrorAs(t, err, &closeErr)
	require.ErrorIs(t, err, router.ErrCloseTimeout)
	assert.Equal(t, 1, closeErr.Open)
	assert.Empty(t, poison.all())
	assert.Equal(t, uint64(1), r.Health()[0].Returned)
	assert.Equal(t, 1, to.closeCount())
	assert.ErrorIs(t, err, r.Close(), "the same for everybody")
}

func TestCloseLeavesBehindWhatDoesNotClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to, poison := newSource(), newSink(nil), newSink(nil)
		hang := make(chan struct{})
		from.onClose = func() { <-hang }
		r, err := router.New(router.Config{Poison: poison, CloseTimeout: time.Minute}, nil)
		require.NoError(t, err)
		require.NoError(t, r.Add(farmRoute(from, to)))
		began := time.Now()
		err = r.Close()
		require.ErrorIs(t, err, router.ErrCloseTimeout)
		assert.Contains(t, err.Error(), `subscriber of route "farm"`)
		assert.Equal(t, 54*time.Second, time.Since(began))
		synctest.Wait()
		assert.Equal(t, 1, to.closeCount(), "the others are closed all the same")
		close(hang)
		synctest.Wait()
	})
}

func TestPoisonStoreDownKeepsTheMessageOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		in, to := newGoChannel(), newSink(func(string, *message.Message) error { return sinks.NewError("s", "t", sinks.ErrTooLarge, nil) })
		poison := newSink(func(string, *message.Message) error {
			if broken.Load() {
				return down
			}
			return nil
		})
		r, err := router.New(router.Config{Poison: poison}, nil)
		require.NoError(t, err)
		require.NoError(t, r.Add(farmRoute(in, to)))
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- r.Run(ctx) }()
		<-r.Running()
		require.NoError(t, in.Publish("in", farmMessage("1", "e", "c", "p")))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Empty(t, poison.all())
		assert.Greater(t, r.Health()[0].Returned, uint64(50))
		assert.Less(t, poison.callCount(), 150, "not in a tight loop")
		broken.Store(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Len(t, poison.all(), 1)
		assert.Equal(t, uint64(1), r.Health()[0].Poisoned)
		cancel()
		require.NoError(t, <-result)
	})
}

// Everything shared is closed once.
func TestSharedPartsAreClosedOnce(t *testing.T) {
	from, to := newSource(), newSink(nil)
	a, b := farmRoute(from, to), farmRoute(from, to)
	b.Name = "b"
	r := start(t, router.Config{Poison: to}, a, b)
	require.NoError(t, r.stop())
	require.NoError(t, r.Close())
	assert.Equal(t, 1, from.closeCount())
	assert.Equal(t, 1, to.closeCount())
}

type closingStore struct {
	router.DedupStore
	closes atomic.Int64
}

func (s *closingStore) Close() error { s.closes.Add(1); return nil }

func TestCloseWithoutRun(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	store := &closingStore{DedupStore: newStore(t, 0)}
	r, err := router.New(router.Config{Poison: poison, Dedup: router.DedupConfig{Store: store}}, nil)
	require.NoError(t, err)
	require.NoError(t, r.Add(farmRoute(from, to)))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() { assert.NoError(t, r.Close()) })
	}
	group.Wait()
	assert.Equal(t, 1, from.closeCount())
	assert.Equal(t, 1, to.closeCount())
	assert.Equal(t, 1, poison.closeCount())
	assert.Equal(t, int64(1), store.closes.Load())
	assert.ErrorIs(t, r.Run(t.Context()), router.ErrClosed)
	assert.ErrorIs(t, r.Add(farmRoute(from, to)), router.ErrClosed)
}

func TestRunLifecycle(t *testing.T) {
	r, err := router.New(router.Config{Poison: newSink(nil)}, nil)
	require.NoError(t, err)
	assert.ErrorIs(t, r.Run(t.Context()), router.ErrNoRoutes)

	running := start(t, router.Config{Poison: newSink(nil)}, farmRoute(newSource(), newSink(nil)))
	assert.ErrorIs(t, running.Run(t.Context()), router.ErrStarted)
	other := farmRoute(newSource(), newSink(nil))
	other.Name = "other"
	assert.ErrorIs(t, running.Add(other), router.ErrStarted)

	// A context that has ended before Run is a clean end, too.
	r, err = router.New(router.Config{Poison: newSink(nil)}, nil)
	require.NoError(t, err)
	require.NoError(t, r.Add(farmRoute(newSource(), newSink(nil))))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NoError(t, r.Run(ctx))
}

// Whatever Run and Close do to each other, both return and nothing hangs.
func TestCloseRacesWithRun(t *testing.T) {
	for range 100 {
		from, to := newSource(), newSink(nil)
		r, err := router.New(router.Config{Poison: to}, nil)
		require.NoError(t, err)
		require.NoError(t, r.Add(farmRoute(from, to)))
		var group sync.WaitGroup
		group.Go(func() { assert.NoError(t, r.Close()) })
		group.Go(func() {
			if err := r.Run(context.Background()); err != nil {
				assert.ErrorIs(t, err, router.ErrClosed)
			}
		})
		group.Wait()
		assert.Equal(t, 1, from.closeCount())
	}
}

func TestOneRouteDoesNotStopOthers(t *testing.T) {
	ending, refused, healthy, to := newSource(), newSource(), newSource(), newSink(nil)
	refused.subErr = func(int) error { return router.Permanent(errors.New("no such topic")) }
	a, b, c := farmRoute(ending, to), farmRoute(refused, to), farmRoute(healthy, to)
	b.Name, c.Name = "refused", "healthy"
	r := start(t, router.Config{Poison: to}, a, b, c)
	close(ending.messages)
	msg := farmMessage("1", "e", "c", "p")
	healthy.messages <- msg
	assert.Equal(t, "ack", verdict(t, msg))
	assert.Eventually(t, func() bool { return r.Health()[0].State == router.StateEnded }, 10*time.Second, time.Millisecond)
	health := r.Health()
	assert.Equal(t, router.StateFailed, health[1].State)
	assert.Equal(t, "no such topic", health[1].LastError)
	assert.Equal(t, router.StateRunning, health[2].State)
	require.NoError(t, r.stop())
}

func TestRunReturnsWhenAllRoutesEnded(t *testing.T) {
	from, to := newSource(), newSink(nil)
	r, err := router.New(router.Config{Poison: to}, nil)
	require.NoError(t, err)
	require.NoError(t, r.Add(farmRoute(from, to)))
	close(from.messages)
	assert.ErrorIs(t, r.Run(t.Context()), router.ErrRoutesEnded)
	assert.Equal(t, 1, from.closeCount())
}

func TestSubscribeIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := newSource(), newSink(nil)
		from.subErr = func(n int) error {
			if n < 10 {
				return errors.New("no broker at nats://user:secret@host")
			}
			return nil
		}
		r, err := router.New(router.Config{Poison: to}, nil)
		require.NoError(t, err)
		require.NoError(t, r.Add(farmRoute(from, to)))
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- r.Run(ctx) }()
		<-r.Running()
		assert.Equal(t, router.StateStarting, r.Health()[0].State)
		assert.Equal(t, "no broker at nats://host", r.Health()[0].LastError)
		msg := farmMessage("1", "e", "c", "p")
		from.messages <- msg
		assert.Equal(t, "ack", verdict(t, msg))
		assert.Equal(t, router.StateRunning, r.Health()[0].State)
		cancel()
		require.NoError(t, <-result)
	})
}

func TestFilterAndTransform(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	route := farmRoute(from, to)
	route.Filter = func(msg *message.Message) bool { return msg.UUID != "filtered" }
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		switch msg.UUID {
		case "none":
			return nil, nil
		case "nil":
			return []*message.Message{nil}, nil
		}
		msg.Metadata["changed"] = "yes"
		msg.Payload = bytes.ToUpper(msg.Payload)
		second := &message.Message{UUID: "second"}
		return []*message.Message{msg, second}, nil
	}
	route.TopicFunc = func(msg *message.Message) (string, error) {
		if msg.Metadata["changed"] != "" {
			return "first", nil
		}
		return "second", nil
	}
	r := start(t, router.Config{Poison: poison}, route)
	for _, id := range []string{"filtered", "none", "nil", "1"} {
		msg := farmMessage(id, "e", id, "payload")
		msg.Metadata[sinks.KeyDedupID] = "of the source"
		from.messages <- msg
		assert.Equal(t, "ack", verdict(t, msg))
		assert.Empty(t, msg.Metadata["changed"], "the received message is not changed")
		assert.Equal(t, "of the source", msg.Metadata[sinks.KeyDedupID])
		assert.Equal(t, message.Payload("payload"), msg.Payload)
	}
	require.NoError(t, r.stop())
	all := to.all()
	require.Len(t, all, 2)
	assert.Equal(t, "first", all[0].topic)
	assert.Equal(t, message.Payload("PAYLOAD"), all[0].msg.Payload)
	assert.Equal(t, "second", all[1].topic)
	id := all[0].msg.Metadata[sinks.KeyDedupID]
	assert.Equal(t, id+"-1", all[1].msg.Metadata[sinks.KeyDedupID])
	require.Len(t, poison.all(), 1)
	assert.Equal(t, router.ErrNilMessage.Error(), poison.all()[0].msg.Metadata[router.KeyPoisonReason])
	health := r.Health()[0]
	assert.Equal(t, uint64(2), health.Filtered)
	assert.Equal(t, uint64(1), health.Delivered)
	assert.Equal(t, uint64(1), health.Poisoned)
}

// Without dedup key, an ID that the message brought along is not passed on: it
// named the message somewhere else.
func TestDedupIDOfTheSourceIsNotPassedOn(t *testing.T) {
	from, to := newSource(), newSink(nil)
	start(t, router.Config{Poison: to}, farmRoute(from, to))
	msg := message.NewMessage("1", nil)
	msg.Metadata[sinks.KeyDedupID] = "x"
	from.messages <- msg
	assert.Equal(t, "ack", verdict(t, msg))
	got := to.wait(t, 1)[0]
	assert.NotContains(t, got.msg.Metadata, sinks.KeyDedupID)
	assert.Equal(t, "none.none", got.topic)
}

// A route without sink: the handler does all the work, outages included.
func TestRouteWithoutSink(t *testing.T) {
	from, poison := newSource(), newSink(nil)
	fail := failTimes(3, down)
	r := start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{
		Name: "own", From: from, Topic: "in",
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			if msg.UUID == "returns" {
				return []*message.Message{msg}, nil
			}
			return nil, fail("", msg)
		},
	})
	for _, id := range []string{"1", "2", "returns"} {
		msg := farmMessage(id, "e", id, "p")
		from.messages <- msg
		assert.Equal(t, "ack", verdict(t, msg))
	}
	require.NoError(t, r.stop())
	assert.Equal(t, uint64(2), r.Health()[0].Delivered)
	require.Len(t, poison.all(), 1)
	assert.Equal(t, router.ErrNoSink.Error(), poison.all()[0].msg.Metadata[router.KeyPoisonReason])
}

// The way to the gateway: what it has answered for good is never repeated.
func TestToTheGateway(t *testing.T) {
	tests := []struct {
		name     string
		err      error
		attempts int
		poisoned bool
	}{
		{"partial delivery", fmt.Errorf("send: %w", gateway.ErrPartialDelivery), 1, true},
		{"no recipients", gateway.ErrNoRecipients, 1, true},
		{"403", gateway.ErrForbidden, 1, true},
		{"413", gateway.ErrTooLarge, 1, true},
		{"429", gateway.ErrRateLimited, 7, false},
		{"503", gateway.ErrUnavailable, 7, false},
		{"unknown", errors.New("what is this"), 7, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			from, poison := newSource(), newSink(nil)
			publisher := newSink(failTimes(6, test.err))
			r := start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{
				Name: "to gateway", From: from, Topic: "in",
				To: sinks.FromPublisher("gateway", publisher), ToTopic: "{type}",
			})
			msg := message.NewMessage("1", []byte("p"))
			msg.Metadata[gateway.KeyMessageType] = "img:png"
			from.messages <- msg
			assert.Equal(t, "ack", verdict(t, msg))
			require.NoError(t, r.stop())
			assert.Equal(t, test.attempts, publisher.callCount())
			if test.poisoned {
				require.Len(t, poison.all(), 1)
				assert.Contains(t, poison.all()[0].msg.Metadata[router.KeyPoisonReason], test.err.Error())
				assert.Empty(t, publisher.all())
			} else {
				assert.Empty(t, poison.all())
				assert.Len(t, publisher.all(), 1)
			}
		})
	}
}

func TestMissingTopicValueIsPoisoned(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	route := farmRoute(from, to)
	route.ToTopic = "{tenant}.x"
	start(t, router.Config{Poison: poison}, route)
	msg := message.NewMessage("1", nil)
	from.messages <- msg
	assert.Equal(t, "ack", verdict(t, msg))
	require.Len(t, poison.all(), 1)
	assert.Contains(t, poison.all()[0].msg.Metadata[router.KeyPoisonReason], "tenant")
}

// Neither Watermill's Router nor ours logs a payload, whatever happens.
func TestNoPayloadInLogs(t *testing.T) {
	const secret = "lat=52.123456789;lon=9.987654321"
	book := newLogBook()
	from := newSource()
	var queueDown atomic.Bool
	poison := newSink(func(string, *message.Message) error {
		if queueDown.Load() {
			return errors.New("cannot write " + secret)
		}
		return nil
	})
	r, err := router.New(router.Config{Poison: poison, Retry: fastRetry}, book)
	require.NoError(t, err)
	require.NoError(t, r.Add(router.Route{
		Name: "farm", From: from, Topic: "in", To: newSink(nil),
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			switch msg.UUID {
			case "error":
				return nil, fmt.Errorf("cannot parse %s", msg.Payload)
			case "panic":
				panic("cannot parse " + string(msg.Payload))
			case "shutdown":
				return nil, router.WithClass(fmt.Errorf("no new %s", msg.Payload), router.ClassRedeliver)
			}
			return []*message.Message{msg}, nil
		},
	}))
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	<-r.Running()
	for _, id := range []string{"ok", "error", "panic", "shutdown"} {
		msg := farmMessage(id, "e", id, secret)
		from.messages <- msg
		verdict(t, msg)
	}
	queueDown.Store(true)
	msg := farmMessage("error", "e", "2", secret)
	from.messages <- msg
	assert.Equal(t, "nack", verdict(t, msg))
	cancel()
	require.NoError(t, <-result)
	status, err := json.Marshal(r.Health())
	require.NoError(t, err)
	for _, line := range append(book.all(), string(status)) {
		assert.NotContains(t, line, "52.1234")
	}
	for _, poisoned := range poison.all() {
		assert.NotContains(t, fmt.Sprint(poisoned.msg.Metadata), "52.1234")
		assert.Equal(t, secret, string(poisoned.msg.Payload))
	}
}

func TestMiddlewareOutsideOfTheChain(t *testing.T) {
	for name, middleware := range map[string]message.HandlerMiddleware{
		"panics": func(message.HandlerFunc) message.HandlerFunc {
			return func(*message.Message) ([]*message.Message, error) { panic("x") }
		},
		"produces": func(message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) { return []*message.Message{msg}, nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := newSource(), newSink(nil)
			start(t, router.Config{Poison: to, Middleware: []message.HandlerMiddleware{middleware}}, farmRoute(from, to))
			msg := farmMessage("1", "e", "c", "p")
			from.messages <- msg
			assert.Equal(t, "nack", verdict(t, msg))
			assert.Empty(t, to.all())
		})
	}
}

func TestRouteMiddlewareMayPassTheMessageOn(t *testing.T) {
	from, to := newSource(), newSink(nil)
	route := farmRoute(from, to)
	route.Middleware = []message.HandlerMiddleware{func(message.HandlerFunc) message.HandlerFunc { return message.PassthroughHandler }}
	start(t, router.Config{Poison: to}, route)
	msg := farmMessage("1", "e", "c", "p")
	from.messages <- msg
	assert.Equal(t, "ack", verdict(t, msg))
	assert.Len(t, to.all(), 1)
	assert.NotContains(t, msg.Metadata, sinks.KeyDedupID)
}

func TestDedupOff(t *testing.T) {
	from, to := newSource(), newSink(nil)
	start(t, router.Config{Poison: to, Dedup: router.DedupConfig{Off: true}}, farmRoute(from, to))
	for range 2 {
		msg := farmMessage("1", "e", "c", "p")
		from.messages <- msg
		assert.Equal(t, "ack", verdict(t, msg))
	}
	assert.Len(t, to.all(), 2)
	assert.NotContains(t, to.all()[0].msg.Metadata, sinks.KeyDedupID)
}

func TestObserverSeesEachMessageEndOnce(t *testing.T) {
	var mu sync.Mutex
	counts := map[router.EventKind]int{}
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	route := farmRoute(from, to)
	route.Filter = func(msg *message.Message) bool { return msg.UUID != "filtered" }
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		switch msg.UUID {
		case "poisoned":
			return nil, router.Permanent(errHandler)
		case "returned":
			return nil, router.WithClass(errHandler, router.ClassRedeliver)
		}
		return []*message.Message{msg}, nil
	}
	r := start(t, router.Config{Poison: poison, Observer: router.ObserverFunc(func(e router.Event) {
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, "farm", e.Route)
		counts[e.Kind]++
		if name, _ := e.Context.Value(nameKey{}).(string); assert.NotEmpty(t, name, "event %s without the message's context", e.Kind) {
			if (e.Kind == router.EventPoisoned) != (name == "poisoned") {
				t.Errorf("%s has the context of %s", e.Kind, name)
			}
		}
	})}, route)
	for _, id := range []string{"ok", "ok", "filtered", "poisoned", "returned"} {
		msg := farmMessage(id, "e", id, "p")
		msg.SetContext(context.WithValue(t.Context(), nameKey{}, id))
		from.messages <- msg
		verdict(t, msg)
	}
	require.NoError(t, r.stop())
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, map[router.EventKind]int{
		router.EventDelivered: 1, router.EventDuplicate: 1, router.EventFiltered: 1,
		router.EventPoisoned: 1, router.EventReturned: 1,
	}, counts)
}

// TestHealthCountsRetriesByClass holds that what was tried again is told apart.
func TestHealthCountsRetriesByClass(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	route := farmRoute(from, to)
	failures := []error{errHandler, router.Outage(errHandler), router.Outage(errHandler), context.Canceled}
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		if len(failures) > 0 {
			err := failures[0]
			failures = failures[1:]
			return nil, err
		}
		return []*message.Message{msg}, nil
	}
	r := start(t, router.Config{Poison: poison, Retry: router.RetryConfig{InitialInterval: time.Millisecond}}, route)
	msg := farmMessage("1", "e", "c", "p")
	from.messages <- msg
	assert.Equal(t, "ack", verdict(t, msg))
	health := r.Health()[0]
	assert.Equal(t, router.RetryCounts{Handler: 1, Outage: 2, Shutdown: 1}, health.RetriesByClass)
	assert.EqualValues(t, 4, health.Retries)
}

// nameKey is the key of a context value.
type nameKey struct{}

func TestConfigErrors(t *testing.T) {
	to := newSink(nil)
	for name, config := range map[string]router.Config{
		"no poison queue": {},
		"close timeout":   {Poison: to, CloseTimeout: -1},
		"poison timeout":  {Poison: to, PoisonTimeout: -1},
		"retry":           {Poison: to, Retry: router.RetryConfig{MaxAttempts: -1}},
		"dedup":           {Poison: to, Dedup: router.DedupConfig{TTL: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := router.New(config, nil)
			assert.ErrorIs(t, err, router.ErrConfig)
		})
	}
	for name, change := range map[string]func(*router.Route){
		"name":     func(r *router.Route) { r.Name = "" },
		"from":     func(r *router.Route) { r.From = nil },
		"topic":    func(r *router.Route) { r.Topic = "" },
		"to":       func(r *router.Route) { r.To = nil },
		"template": func(r *router.Route) { r.ToTopic = "{unknown}" },
		"both": func(r *router.Route) {
			r.ToTopic, r.TopicFunc = "x", func(*message.Message) (string, error) { return "", nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := router.New(router.Config{Poison: to}, nil)
			require.NoError(t, err)
			route := farmRoute(newSource(), to)
			change(&route)
			assert.ErrorIs(t, r.Add(route), router.ErrConfig)
		})
	}
	r, err := router.New(router.Config{Poison: to}, nil)
	require.NoError(t, err)
	require.NoError(t, r.Add(farmRoute(newSource(), to)))
	assert.ErrorIs(t, r.Add(farmRoute(newSource(), to)), router.ErrConfig)
}
