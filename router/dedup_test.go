package router_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
)

func newDedup(t *testing.T, config router.DedupConfig) *router.Dedup {
	t.Helper()
	if config.Scope == "" {
		config.Scope = "route"
	}
	dedup := testkit.Must(router.NewDedup(config, nil))(t)
	return dedup
}

func counting(calls *int, err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) {
		*calls++
		return nil, err
	}
}

// What Watermill's own Deduplicator gets wrong: a failure is not a duplicate.
func TestDedupFailedMessageIsNoDuplicate(t *testing.T) {
	calls := 0
	fail := error(errHandler)
	h := newDedup(t, router.DedupConfig{}).Middleware(func(*message.Message) ([]*message.Message, error) {
		calls++
		return nil, fail
	})
	_, err := h(farmMessage("1", "e", "c", "p"))
	testkit.ErrorIs(t, err, errHandler)
	fail = nil
	handle(t, h, farmMessage("1", "e", "c", "p"))
	handle(t, h, farmMessage("1", "e", "c", "p"))
	if calls != 2 {
		t.Errorf("calls = %d, want 2", calls)
	}
}

// What a handler of Watermill's Router returns is published after the middlewares, so the message is handled when it is acked.
func TestDedupOfWhatIsPublishedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		h := newDedup(t, router.DedupConfig{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
			calls++
			return message.Messages{msg}, nil
		})
		for i, settle := range []func(*message.Message) bool{(*message.Message).Nack, (*message.Message).Ack, (*message.Message).Ack} {
			msg := farmMessage("1", "e", "c", "p")
			out := testkit.Must(h(msg))(t)
			if published := len(out) == 1; published != (i < 2) {
				t.Errorf("delivery %d: %d messages", i, len(out))
			}
			settle(msg)
			synctest.Wait()
		}
		if calls != 2 {
			t.Errorf("calls = %d, want 2", calls)
		}
	})
}

// Handlers of Watermill's Router are told apart by the name in the context. A middleware further out that hands on a copy, as
// Message.Copy makes it, takes the name away: then none gets what another one has handled for a copy of that.
func TestDedupKeepsWhatHasLostItsHandler(t *testing.T) {
	t.Parallel()
	for name, copied := range map[string]func(*message.Message) *message.Message{
		"a copy":          (*message.Message).Copy,
		"a fresh context": func(msg *message.Message) *message.Message { msg.SetContext(context.Background()); return msg },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				in := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
				dedup := testkit.Must(router.NewDedup(router.DedupConfig{}, nil))(t)
				r := testkit.Must(message.NewRouter(message.RouterConfig{}, nil))(t)
				r.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) { return h(copied(msg)) }
				}, dedup.Middleware)
				handled := make(map[string]*atomic.Int32)
				for _, handler := range []string{"archive", "accounts"} {
					n := new(atomic.Int32)
					handled[handler] = n
					r.AddConsumerHandler(handler, "in", in, func(*message.Message) error { n.Add(1); return nil })
				}
				result := make(chan error, 1)
				go func() { result <- r.Run(t.Context()) }()
				<-r.Running()
				for _, id := range []string{"1", "2", "1"} {
					testkit.NoError(t, in.Publish("in", farmMessage(id, "e", id, "p")))
				}
				synctest.Wait()
				for handler, n := range handled {
					if n.Load() != 2 {
						t.Errorf("%s has handled %d messages, want both, once", handler, n.Load())
					}
				}
				testkit.NoError(t, errors.Join(r.Close(), <-result, in.Close()))
			})
		})
	}
}

// A copy that a middleware further out has handed on is never acked. It is not waited for beyond its lease.
func TestDedupOfACopyIsNotAwaitedForever(t *testing.T) {
	t.Parallel()
	for name, copied := range map[string]func(*message.Message) *message.Message{
		"with its context": (*message.Message).CopyWithContext,
		"without":          (*message.Message).Copy,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // which fails with a goroutine that stays
				in := gochannel.NewGoChannel(gochannel.Config{}, nil)
				dedup := newDedup(t, router.DedupConfig{})
				r := testkit.Must(message.NewRouter(message.RouterConfig{}, nil))(t)
				r.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) { return h(copied(msg)) }
				}, dedup.Middleware)
				var handled atomic.Int32
				r.AddHandler("hands on", "in", in, "out", newSink(nil), func(msg *message.Message) ([]*message.Message, error) {
					handled.Add(1)
					return []*message.Message{msg}, nil
				})
				result := make(chan error, 1)
				go func() { result <- r.Run(t.Context()) }()
				<-r.Running()
				for range 2 {
					testkit.NoError(t, in.Publish("in", farmMessage("1", "e", "c", "p")))
					time.Sleep(2 * time.Minute) // nobody knows whether it was handled
				}
				if n := handled.Load(); n != 2 {
					t.Errorf("handled %d times, want 2", n)
				}
				testkit.NoError(t, errors.Join(r.Close(), <-result, in.Close()))
			})
		})
	}
}

// TestDedupForever: the largest durations are long, and not over before they begin.
func TestDedupForever(t *testing.T) {
	bolt := testkit.Must(boltstore.New(boltstore.Config{Path: filepath.Join(t.TempDir(), "dedup.db")}))(t)
	defer bolt.Close()
	for name, store := range map[string]router.DedupStore{"memory": nil, "bbolt": bolt} {
		dedup := newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: store, TTL: math.MaxInt64, Lease: math.MaxInt64}})
		calls := 0
		var inFlight error
		h := dedup.Middleware(func(*message.Message) ([]*message.Message, error) {
			calls++
			_, inFlight = dedup.Middleware(counting(&calls, nil))(farmMessage("1", "e", "c", "p"))
			return nil, nil
		})
		for range 2 {
			testkit.Must(h(farmMessage("1", "e", "c", "p")))(t)
		}
		if calls != 1 || !errors.Is(inFlight, router.ErrReserved) {
			t.Errorf("%s: handled %d times, %v in flight", name, calls, inFlight)
		}
	}
}

func TestDedupPanicReleases(t *testing.T) {
	h := newDedup(t, router.DedupConfig{}).Middleware(func(*message.Message) ([]*message.Message, error) { panic("x") })
	for range 2 { // the second one would be ErrReserved
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic does not pass through")
				}
			}()
			_, _ = h(farmMessage("1", "e", "c", "p"))
		}()
	}
}

// A copy of a message that is being handled is neither handled nor acknowledged.
func TestDedupCopyInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var outcome error
		proceed := make(chan struct{})
		retry := newRetry(t, router.RetryConfig{})
		h := retry.Middleware(newDedup(t, router.DedupConfig{}).Middleware(func(*message.Message) ([]*message.Message, error) {
			calls++
			if calls == 1 {
				<-proceed
				return nil, outcome
			}
			return nil, nil
		}))
		outcome = router.Permanent(errHandler)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := h(farmMessage("1", "e", "c", "p")); first <- err }()
		synctest.Wait()
		go func() { _, err := h(farmMessage("2", "e", "c", "p")); second <- err }()
		time.Sleep(10 * time.Second)
		if len(second) != 0 {
			t.Errorf("second has %d values, want none: the copy waits", len(second))
		}
		_, out := retry.OutageSince()
		if out {
			t.Error("out = true, want false: waiting for a copy is no outage")
		}
		close(proceed)
		testkit.ErrorIs(t, <-first, errHandler)
		testkit.NoError(t, <-second)
		if calls != 2 {
			t.Errorf("calls = %d, want 2: the copy was handled, because the first one was not", calls)
		}

		handle(t, h, farmMessage("3", "e", "c", "p"))
		if calls != 2 {
			t.Errorf("calls = %d, want 2", calls)
		}
	})
}

// faultyStore fails where told to.
type faultyStore struct {
	router.DedupStore
	reserve, commit, release error
}

func (s *faultyStore) Reserve(ctx context.Context, c router.Claim, l time.Duration) (router.Reservation, error) {
	if s.reserve != nil {
		return router.Reservation{}, s.reserve
	}
	return s.DedupStore.Reserve(ctx, c, l)
}

func (s *faultyStore) Commit(ctx context.Context, c router.Claim, token router.Token, ttl time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.commit != nil {
		return s.commit
	}
	return s.DedupStore.Commit(ctx, c, token, ttl)
}

func (s *faultyStore) Release(ctx context.Context, c router.Claim, token router.Token) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.release != nil {
		return s.release
	}
	return s.DedupStore.Release(ctx, c, token)
}

// panickyStore panics, from the beginning or once a message was handled.
type panickyStore struct {
	router.DedupStore // nil
	later             bool
}

func (s panickyStore) Reserve(ctx context.Context, c router.Claim, l time.Duration) (router.Reservation, error) {
	if s.later {
		return router.Reservation{State: router.Reserved, Token: router.Token{1}}, nil
	}
	return s.DedupStore.Reserve(ctx, c, l)
}

// A store that panics is as good as down: it puts no message into the poison queue,
// and one that is handled stays handled.
func TestDedupStorePanics(t *testing.T) {
	calls := 0
	h := newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: panickyStore{}}}).Middleware(counting(&calls, nil))
	_, err := h(farmMessage("1", "e", "c", "p"))
	wantClass(t, err, router.ClassOutage)
	if calls != 0 {
		t.Errorf("calls = %d, want 0", calls)
	}

	for _, outcome := range []error{nil, errHandler} {
		store := panickyStore{later: true}
		h = newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: store}}).Middleware(counting(&calls, outcome))
		_, err = h(farmMessage("1", "e", "c", "p"))
		testkit.Equal(t, err, outcome)
	}
	if calls != 2 {
		t.Errorf("calls = %d, want 2", calls)
	}
}

func TestDedupStoreDown(t *testing.T) {
	disk, calls := errors.New("broken"), 0
	var events []router.Event
	with := func(store *faultyStore, outcome error) message.HandlerFunc {
		store.DedupStore = newStore(t, 0)
		return newDedup(t, router.DedupConfig{
			DedupSettings: router.DedupSettings{Store: store},
			Observer:      router.ObserverFunc(func(e router.Event) { events = append(events, e) }),
		}).Middleware(counting(&calls, outcome))
	}
	for _, failure := range []error{disk, context.Canceled} { // the message's own context goes on
		_, err := with(&faultyStore{reserve: failure}, nil)(farmMessage("1", "e", "c", "p"))
		testkit.ErrorIs(t, err, failure)
		wantClass(t, err, router.ClassOutage)
	}
	if calls != 0 {
		t.Errorf("calls = %d, want 0", calls)
	}

	// The message is held by now; failing it would make the duplicate.
	handle(t, with(&faultyStore{commit: disk}, nil), farmMessage("1", "e", "c", "p"))
	if calls != 1 || len(events) != 1 || events[0].Kind != router.EventDedupFailed {
		t.Errorf("%d calls and events %+v, want 1 and that the store failed", calls, events)
	}
	_, err := with(&faultyStore{release: disk}, errHandler)(farmMessage("1", "e", "c", "p"))
	testkit.Equal(t, err, errHandler)
}

// A store that takes nothing, such as a file on a full disk, fails with every message.
// The log tells it once, then how often, and when it is over.
func TestDedupStoreDownDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := testkit.NewLog()
		store := &faultyStore{DedupStore: newStore(t, 0), commit: errors.New("no space left on device")}
		dedup := testkit.Must(router.NewDedup(router.DedupConfig{DedupSettings: router.DedupSettings{Store: store}}, logger))(t)
		h := dedup.Middleware(counting(new(int), nil))
		handled := func(n int) (lines []watermill.CapturedMessage) {
			for range n {
				handle(t, h, farmMessage(watermill.NewUUID(), "e", watermill.NewUUID(), "p"))
			}
			return logger.Lines(watermill.ErrorLogLevel)
		}
		if lines := handled(5799); len(lines) != 1 {
			t.Fatalf("%d lines, want 1", len(lines))
		}
		time.Sleep(time.Minute)
		if lines := handled(1); len(lines) != 2 || lines[1].Fields["suppressed"] != 5798 {
			t.Fatalf("the lines are %v, want a second one for 5798 others", lines)
		}
		handled(10)
		store.commit = nil
		if lines := handled(10); len(lines) != 2 {
			t.Fatalf("%d lines, want 2", len(lines))
		}
		over := logger.Lines(watermill.InfoLogLevel)
		if len(over) != 1 || over[0].Msg != "handled messages are recorded again" || over[0].Fields["suppressed"] != 10 {
			t.Fatalf("the lines are %v, want one that it is over, for 10 others", over)
		}
	})
}

// What is known is written down although the message's context has ended.
func TestDedupCommitsAndReleasesInShutdown(t *testing.T) {
	for _, outcome := range []error{nil, errHandler} {
		store := &faultyStore{DedupStore: newStore(t, 0)}
		ctx, cancel := context.WithCancel(t.Context())
		h := newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: store}}).Middleware(func(*message.Message) ([]*message.Message, error) {
			cancel()
			return nil, outcome
		})
		msg := farmMessage("1", "e", "c", "p")
		msg.SetContext(ctx)
		_, err := h(msg)
		testkit.Equal(t, err, outcome)

		calls := 0
		testkit.Must(newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: store}}).Middleware(counting(&calls, nil))(farmMessage("2", "e", "c", "p")))(t)
		if want := map[bool]int{true: 0, false: 1}[outcome == nil]; calls != want {
			t.Errorf("after %v, %d calls, want %d", outcome, calls, want)
		}
	}
}

func TestDedupScopeKeepsHandlersApart(t *testing.T) {
	store, calls := newStore(t, 0), 0
	for _, scope := range []string{"a", "b", "a"} {
		h := newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: store}, Scope: scope}).Middleware(counting(&calls, nil))
		handle(t, h, farmMessage("1", "e", "c", "p"))
	}
	if calls != 2 {
		t.Errorf("calls = %d, want 2", calls)
	}
}

func TestDedupKeyError(t *testing.T) {
	calls := 0
	h := newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{KeyFunc: func(string, *message.Message) (router.Keys, error) {
		return router.Keys{}, router.Permanent(errHandler)
	}}}).Middleware(counting(&calls, nil))
	_, err := h(farmMessage("1", "e", "c", "p"))
	wantClass(t, err, router.ClassPermanent)
	if calls != 0 {
		t.Errorf("calls = %d, want 0", calls)
	}
}

func TestDedupID(t *testing.T) {
	var id string
	h := newDedup(t, router.DedupConfig{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
		id, _ = router.DedupID(msg.Context())
		return nil, nil
	})
	msg := farmMessage("1", "e", "c", "p")
	before := maps.Clone(msg.Metadata)
	handle(t, h, msg)
	if want := defaultKeys(t, "route", msg).Delivery.String(); id != want {
		t.Errorf("id = %q, want %q", id, want)
	}
	testkit.Equal(t, msg.Metadata, before) // the caller's message is not changed
	if id, ok := router.DedupID(msg.Context()); ok {
		t.Errorf("the caller's message has the ID %q", id)
	}
}

func TestKeyOfCannotCollideByConcatenation(t *testing.T) {
	seen := map[router.Key][]string{}
	for _, parts := range [][]string{
		{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"", "ab"}, {"ab", ""}, {"a", "", "b"}, {"\x01a"}, {"\x01a\x01b"},
	} {
		key := router.KeyOf(parts...)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have the same key", parts, other)
		}
		seen[key] = parts
	}
}

// Added to a Router and to its handler, Dedup does not wait for its own reservation, and still drops copies.
func TestDedupAddedTwice(t *testing.T) {
	t.Parallel()
	d := testkit.Must(router.NewDedup(router.DedupConfig{Scope: "in", DedupSettings: router.DedupSettings{
		KeyFunc: func(scope string, msg *message.Message) (router.Keys, error) {
			return router.Keys{Delivery: router.KeyOf(scope, msg.UUID)}, nil
		},
	}}, nil))(t)
	calls := 0
	h := d.Middleware(d.Middleware(func(*message.Message) ([]*message.Message, error) {
		calls++
		if calls == 1 {
			return nil, errors.New("not yet")
		}
		return nil, nil
	}))
	for range 3 { // it fails, is handled, and is dropped
		_, err := h(message.NewMessage("1", nil))
		if (err != nil) != (calls == 1) {
			t.Fatalf("%v after %d calls", err, calls)
		}
	}
	if calls != 2 {
		t.Errorf("handled %d times, want 2: a failure and a success", calls)
	}
}

// The same in a route: around its chain and inside of it.
func TestDedupAroundAndInAChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, calls, from := newDedup(t, router.DedupConfig{}), 0, newSource()
		around := []message.HandlerMiddleware{d.Middleware}
		chain := func(_ string, standard router.Chain) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{standard.Poison, standard.Retry, d.Middleware, standard.Recoverer}
		}
		r := start(t, router.Config{Poison: newSink(nil), Middleware: around, Chain: chain}, router.Route{Name: "route", From: from, Topic: "in", Transform: counting(&calls, nil)})
		began := time.Now()
		for range 2 {
			from.deliver(t, farmMessage("1", "e", "c", "p"))
		}
		if took := time.Since(began); took > 0 || calls != 1 {
			t.Errorf("handled %d times in %v, want once without a wait", calls, took)
		}
		r.wantStop(t)
	})
}

// In a route it would take for handled what the handler has returned, and a second attempt for a copy.
func TestDedupInARouteIsRefused(t *testing.T) {
	in := []message.HandlerMiddleware{newDedup(t, router.DedupConfig{}).Middleware}
	err := build(t, router.Config{Poison: newSink(nil)}).Add(router.Route{Name: "route", From: newSource(), Topic: "in", To: newSink(nil), Middleware: in})
	testkit.ErrorIs(t, err, router.ErrConfig)
	testkit.Contains(t, err.Error(), "put it around all routes")
}

// What a handler returned is settled with the ack. Until then a middleware further out may call again: Duplicator, or Retry
// for one in between that fails afterwards. That is handled, and a copy still is not.
func TestDedupCalledAgainBeforeTheAck(t *testing.T) {
	t.Parallel()
	for name, acked := range map[string]bool{"acked": true, "nacked": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var ids []string
				h := newDedup(t, router.DedupConfig{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
					id, _ := router.DedupID(msg.Context())
					ids = append(ids, id)
					return []*message.Message{message.NewMessage("made", nil)}, nil
				})
				msg := farmMessage("1", "e", "c", "p")
				msg.SetContext(t.Context())
				if made, err := middleware.Duplicator(h)(msg); err != nil || len(made) != 2 || ids[0] != ids[1] || ids[0] == "" {
					t.Fatalf("%v, %d messages, IDs %q", err, len(made), ids)
				}
				copied := farmMessage("1", "e", "c", "p")
				copied.SetContext(msg.Context())
				if _, err := h(copied); !errors.Is(err, router.ErrReserved) {
					t.Fatalf("a copy before the ack: %v", err)
				}
				if acked {
					msg.Ack()
				} else {
					msg.Nack()
				}
				synctest.Wait()
				made, err := h(copied)
				copied.Ack()
				if dropped := len(made) == 0; err != nil || dropped != acked {
					t.Errorf("a copy afterwards: %v, %d messages", err, len(made))
				}
			})
		})
	}
}
