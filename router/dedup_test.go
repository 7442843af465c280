package router_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

func newDedup(t *testing.T, config router.DedupConfig) *router.Dedup {
	t.Helper()
	if config.Scope == "" {
		config.Scope = "route"
	}
	dedup, err := router.NewDedup(config, nil)
	if err != nil {
		t.Fatal(err)
	}
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
	if !errors.Is(err, errHandler) {
		t.Fatalf("err = %v, want errHandler", err)
	}
	fail = nil
	if _, err = h(farmMessage("1", "e", "c", "p")); err != nil {
		t.Fatal(err)
	}
	if _, err = h(farmMessage("1", "e", "c", "p")); err != nil {
		t.Fatal(err)
	}
	if calls != 2 {
		t.Errorf("calls = %d, want 2", calls)
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
		if err := <-first; !errors.Is(err, errHandler) {
			t.Fatalf("got = %v, want errHandler", err)
		}
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		if calls != 2 {
			t.Errorf("calls = %d, want 2: the copy was handled, because the first one was not", calls)
		}

		if _, err := h(farmMessage("3", "e", "c", "p")); err != nil {
			t.Fatal(err)
		}
		if calls != 2 {
			t.Errorf("calls = %d, want 2", calls)
		}
	})
}

func TestDedupReservedWithoutRetry(t *testing.T) {
	h := newDedup(t, router.DedupConfig{})
	var inner error
	calls := 0
	outer := h.Middleware(func(*message.Message) ([]*message.Message, error) {
		_, inner = h.Middleware(counting(&calls, nil))(farmMessage("2", "e", "c", "p"))
		return nil, nil
	})
	if _, err := outer(farmMessage("1", "e", "c", "p")); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(inner, router.ErrReserved) {
		t.Errorf("inner = %v, want ErrReserved", inner)
	}
	if calls != 0 {
		t.Errorf("calls = %d, want 0", calls)
	}
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
	if got := router.Classify(err); got != router.ClassOutage {
		t.Errorf("router.Classify(err) = %v, want %v: %v", got, router.ClassOutage, err)
	}
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
	broken := errors.New("broken")
	calls := 0

	h := newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: &faultyStore{DedupStore: newStore(t, 0), reserve: broken}}}).Middleware(counting(&calls, nil))
	_, err := h(farmMessage("1", "e", "c", "p"))
	if !errors.Is(err, broken) {
		t.Fatalf("err = %v, want %v", err, broken)
	}
	if got := router.Classify(err); got != router.ClassOutage {
		t.Errorf("router.Classify(err) = %v, want %v", got, router.ClassOutage)
	}
	if calls != 0 {
		t.Errorf("calls = %d, want 0", calls)
	}

	h = newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: &faultyStore{DedupStore: newStore(t, 0), reserve: context.Canceled}}}).Middleware(counting(&calls, nil))
	_, err = h(farmMessage("1", "e", "c", "p"))
	if got := router.Classify(err); got != router.ClassOutage {
		t.Errorf("router.Classify(err) = %v, want %v: the message's own context goes on", got, router.ClassOutage)
	}

	// The message is held by now; failing it would make the duplicate.
	var events []router.Event
	h = newDedup(t, router.DedupConfig{
		DedupSettings: router.DedupSettings{Store: &faultyStore{DedupStore: newStore(t, 0), commit: broken}},
		Observer:      router.ObserverFunc(func(e router.Event) { events = append(events, e) }),
	}).Middleware(counting(&calls, nil))
	if _, err = h(farmMessage("1", "e", "c", "p")); err != nil {
		t.Fatal(err)
	}
	if calls != 1 {
		t.Errorf("calls = %d, want 1", calls)
	}
	if len(events) != 1 {
		t.Fatalf("events has %d elements, want 1", len(events))
	}
	if events[0].Kind != router.EventDedupFailed {
		t.Errorf("events[0].Kind = %v, want %v", events[0].Kind, router.EventDedupFailed)
	}

	h = newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: &faultyStore{DedupStore: newStore(t, 0), release: broken}}}).Middleware(counting(&calls, errHandler))
	_, err = h(farmMessage("1", "e", "c", "p"))
	testkit.Equal(t, err, errHandler)
}

// A store that takes nothing, such as a file on a full disk, fails with every message.
// The log tells it once, then how often, and when it is over.
func TestDedupStoreDownDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := testkit.NewLog()
		store := &faultyStore{DedupStore: newStore(t, 0), commit: errors.New("no space left on device")}
		dedup, err := router.NewDedup(router.DedupConfig{DedupSettings: router.DedupSettings{Store: store}}, logger)
		if err != nil {
			t.Fatal(err)
		}
		h := dedup.Middleware(counting(new(int), nil))
		handle := func(n int) {
			for range n {
				if _, err := h(farmMessage(watermill.NewUUID(), "e", watermill.NewUUID(), "p")); err != nil {
					t.Fatal(err)
				}
			}
		}
		handle(5799)
		errorLines := func() []watermill.CapturedMessage { return logger.Lines(watermill.ErrorLogLevel) }
		if n := len(errorLines()); n != 1 {
			t.Fatalf("errorLines() has %d elements, want 1", n)
		}
		time.Sleep(time.Minute)
		handle(1)
		if n := len(errorLines()); n != 2 {
			t.Fatalf("errorLines() has %d elements, want 2", n)
		}
		if got := errorLines()[1].Fields["suppressed"]; got != 5798 {
			t.Errorf("suppressed = %v, want 5798", got)
		}

		handle(10)
		store.commit = nil
		handle(10)
		if n := len(errorLines()); n != 2 {
			t.Fatalf("errorLines() has %d elements, want 2", n)
		}
		over := logger.Lines(watermill.InfoLogLevel)
		if len(over) != 1 {
			t.Fatalf("over has %d elements, want 1", len(over))
		}
		if got, want := over[0].Msg, "handled messages are recorded again"; got != want {
			t.Errorf("over[0].Msg = %q, want %q", got, want)
		}
		if over[0].Fields["suppressed"] != 10 {
			t.Errorf("suppressed = %v, want 10", over[0].Fields["suppressed"])
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
		if _, err = newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: store}}).Middleware(counting(&calls, nil))(farmMessage("2", "e", "c", "p")); err != nil {
			t.Fatal(err)
		}
		if outcome == nil {
			if calls != 0 {
				t.Errorf("calls = %d, want 0", calls)
			}
		} else {
			if calls != 1 {
				t.Errorf("calls = %d, want 1", calls)
			}
		}
	}
}

func TestDedupScopeKeepsHandlersApart(t *testing.T) {
	store, calls := newStore(t, 0), 0
	for _, scope := range []string{"a", "b", "a"} {
		h := newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: store}, Scope: scope}).Middleware(counting(&calls, nil))
		if _, err := h(farmMessage("1", "e", "c", "p")); err != nil {
			t.Fatal(err)
		}
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
	if got := router.Classify(err); got != router.ClassPermanent {
		t.Errorf("router.Classify(err) = %v, want %v", got, router.ClassPermanent)
	}
	if calls != 0 {
		t.Errorf("calls = %d, want 0", calls)
	}
}

func TestDedupID(t *testing.T) {
	var id string
	var ok bool
	h := newDedup(t, router.DedupConfig{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
		id, ok = router.DedupID(msg.Context())
		return nil, nil
	})
	msg := farmMessage("1", "e", "c", "p")
	metadata := fmt.Sprint(msg.Metadata)
	if _, err := h(msg); err != nil {
		t.Fatal(err)
	}
	keys, _ := router.DefaultKeys("route", msg)
	if !ok {
		t.Error("ok = false, want true")
	}
	if got, want := id, keys.Delivery.String(); got != want {
		t.Errorf("id = %q, want %q", got, want)
	}
	if got := fmt.Sprint(msg.Metadata); got != metadata {
		t.Errorf("msg.Metadata = %q, want %q: the caller's message is not changed", got, metadata)
	}
	_, ok = router.DedupID(msg.Context())
	if ok {
		t.Error("ok = true, want false")
	}
}

func TestDedupConfigValidate(t *testing.T) {
	for name, settings := range map[string]router.DedupSettings{
		"ttl": {TTL: -1}, "lease": {Lease: -1}, "timeout": {StoreTimeout: -1},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := router.NewDedup(router.DedupConfig{DedupSettings: settings}, nil); !errors.Is(err, router.ErrConfig) {
				t.Errorf("err = %v, want ErrConfig", err)
			}
		})
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
