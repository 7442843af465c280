// Package routertest is the conformance suite for set-ups of Watermill routers: a
// router.Router, Watermill's own with middlewares, or something else between a source and a
// handler. It says whether a set-up keeps what it declares: at shutdown, by the class of a
// failure, with its poison queue, a replay of that, and the order of a key.
package routertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// KeyMetadata is the metadata entry with the key of the messages that the suite sends.
const KeyMetadata = "routertest-key"

// DefaultPatience is that of Suite.Patience.
const DefaultPatience = testkit.Patience

// Suite says how to test a set-up, and what it promises. Of every set-up the suite expects
// that each message that is sent is handled, that one is handled again whose handler failed
// without being put aside, and that Run returns when its context has ended and the handlers
// have returned.
type Suite struct {
	// New makes a set-up of its own for each test. What handle returns is the outcome of
	// handling a message; it may be called by several goroutines. Required.
	New func(t *testing.T, handle message.NoPublishHandlerFunc) Setup

	// MaxAttempts: a message whose handler fails by itself is put aside after so many attempts,
	// and others are handled meanwhile or after that. 0: no such promise.
	MaxAttempts int
	// Permanent: one with an error of router.Permanent is put aside after the first.
	Permanent bool
	// Outage: one with an error of router.Outage is tried until it passes.
	Outage bool
	// Panic: a handler's panic counts as a failure by itself.
	Panic bool
	// Drain: the context of a message that is being handled when the shutdown begins does not
	// end before the handler returns, and the message counts as handled.
	Drain bool
	// Redeliver: what was not handled at the shutdown is handled by the next Run. A message
	// whose handler failed meanwhile is not put aside.
	Redeliver bool
	// Order: of the messages with one value of KeyMetadata, the next one is handled after the
	// one before, although that fails for a while.
	Order bool
	// Dedup: a second message with the UUID of one that was handled is not.
	Dedup bool

	// Patience is how long something may take that is expected. 0 means [DefaultPatience].
	Patience time.Duration
}

// Setup is what [Suite.New] makes. Functions that are not required may be nil.
type Setup struct {
	// Send gives a message to the source, while Run runs. It may return before the message is
	// handled. Required.
	Send func(msg *message.Message) error
	// Run handles messages until ctx ends, and calls running once the source is subscribed to.
	// With Suite.Redeliver it is called again after it has returned. Required.
	Run func(ctx context.Context, running func()) error
	// Poisoned returns the messages that were put aside so far. Required with
	// Suite.MaxAttempts, Suite.Permanent and Suite.Panic.
	Poisoned func() []*message.Message
	// Replay has all messages handled again that were put aside, and returns after that. It is
	// called while Run runs.
	Replay func(ctx context.Context) error
}

// Run tests a set-up. What it does not promise is skipped.
func Run(t *testing.T, config Suite) {
	if config.Patience == 0 {
		config.Patience = DefaultPatience
	}
	poison := config.MaxAttempts > 0
	for _, test := range []struct {
		name     string
		promised bool
		run      func(*fixture)
	}{
		{"Delivery", true, delivery},
		{"HandlerFailure", true, handlerFailure},
		{"Shutdown", true, shutdown},
		{"Outage", config.Outage, outage},
		{"Poison", poison, poisonQueue},
		{"Permanent", config.Permanent, permanent},
		{"Panic", config.Panic && poison, panics},
		{"Drain", config.Drain, drain},
		{"Redeliver", config.Redeliver, redeliver},
		{"Replay", poison, replay},
		{"Order", config.Order, order},
		{"Dedup", config.Dedup, dedup},
	} {
		t.Run(test.name, func(t *testing.T) {
			if !test.promised {
				t.Skip("not promised")
			}
			test.run(newFixture(t, config))
		})
	}
}

// fixture is a set-up under test. handle decides about each message by its payload and the
// number of the attempt, which begins with 1.
type fixture struct {
	*testing.T
	config Suite
	setup  Setup
	cancel context.CancelFunc // of Run; nil while it does not run
	result chan error

	mu       sync.Mutex
	handle   func(msg *message.Message, attempt int) error
	attempts map[string]int // by payload
	handled  []string       // payloads
}

func newFixture(t *testing.T, config Suite) *fixture {
	f := &fixture{T: t, config: config, attempts: map[string]int{}}
	f.setup = config.New(t, func(msg *message.Message) error {
		payload := string(msg.Payload)
		f.mu.Lock()
		f.attempts[payload]++
		attempt, handle := f.attempts[payload], f.handle
		f.mu.Unlock()
		if handle != nil {
			if err := handle(msg, attempt); err != nil {
				return err
			}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.handled = append(f.handled, payload)
		return nil
	})
	return f
}

// run starts the set-up; it ends with the test, if not before.
func (f *fixture) run(handle func(msg *message.Message, attempt int) error) {
	f.Helper()
	f.mu.Lock()
	f.handle = handle
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	f.cancel, f.result = cancel, result
	running := make(chan struct{})
	var once sync.Once
	go func() { result <- f.setup.Run(ctx, func() { once.Do(func() { close(running) }) }) }() // ends with ctx
	f.Cleanup(func() {
		if f.cancel != nil {
			f.stop()
		}
	})
	select {
	case <-running:
	case err := <-f.result:
		f.cancel = nil
		f.Fatalf("Run returned before it was running: %v", err)
	case <-time.After(f.config.Patience):
		f.Fatal("Run does not call running")
	}
}

// stop ends Run and waits for it.
func (f *fixture) stop() {
	f.Helper()
	f.cancel()
	f.cancel = nil
	select {
	case err := <-f.result:
		if err != nil && !errors.Is(err, context.Canceled) {
			f.Errorf("Run: %v", err)
		}
	case <-time.After(f.config.Patience):
		f.Fatal("Run does not return")
	}
}

func (f *fixture) send(payloads ...string) {
	f.Helper()
	for _, payload := range payloads {
		f.sendAs(watermill.NewUUID(), "key", payload)
	}
}

func (f *fixture) sendAs(uuid, key, payload string) {
	f.Helper()
	msg := message.NewMessage(uuid, []byte(payload))
	msg.Metadata[KeyMetadata] = key
	if err := f.setup.Send(msg); err != nil {
		f.Fatalf("Send: %v", err)
	}
}

// eventually waits until a condition holds.
func (f *fixture) eventually(what string, condition func() bool) {
	f.Helper()
	for deadline := time.Now().Add(f.config.Patience); !condition(); {
		if time.Now().After(deadline) {
			f.Fatalf("%s: not within %v", what, f.config.Patience)
		}
		_ = backoff.Sleep(context.Background(), 5*time.Millisecond)
	}
}

func (f *fixture) eventuallyHandled(payloads ...string) {
	f.Helper()
	for _, payload := range payloads {
		f.eventually(payload+" is handled", func() bool { return slices.Contains(f.allHandled(), payload) })
	}
}

func (f *fixture) allHandled() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.handled)
}

func (f *fixture) tried(payload string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.attempts[payload]
}

// poisoned reports whether a message was put aside.
func (f *fixture) poisoned(payload string) bool {
	f.Helper()
	if f.setup.Poisoned == nil {
		return false
	}
	return slices.ContainsFunc(f.setup.Poisoned(), func(msg *message.Message) bool { return string(msg.Payload) == payload })
}

func (f *fixture) eventuallyPoisoned(payload string, attempts int) {
	f.Helper()
	if f.setup.Poisoned == nil {
		f.Fatal("Setup.Poisoned is required")
	}
	f.eventually(payload+" is put aside", func() bool { return f.poisoned(payload) })
	if n := f.tried(payload); n != attempts {
		f.Errorf("%s was put aside after %d attempts, want %d", payload, n, attempts)
	}
}

func (f *fixture) neverPoisoned(payloads ...string) {
	f.Helper()
	for _, payload := range payloads {
		if f.poisoned(payload) {
			f.Errorf("%s was put aside", payload)
		}
	}
}

var errHandler = errors.New("routertest: the handler failed")

// delivery: every message is handled.
func delivery(f *fixture) {
	f.run(nil)
	var payloads []string
	for i := range 20 {
		payloads = append(payloads, fmt.Sprint("message ", i))
	}
	f.send(payloads...)
	f.eventuallyHandled(payloads...)
	f.stop()
	f.neverPoisoned(payloads...)
}

// handlerFailure: one failure loses nothing, and with more than one attempt puts nothing aside.
func handlerFailure(f *fixture) {
	if f.config.MaxAttempts == 1 {
		f.Skip("a message has one attempt")
	}
	f.run(func(_ *message.Message, attempt int) error {
		if attempt == 1 {
			return errHandler
		}
		return nil
	})
	f.send("first", "second")
	f.eventuallyHandled("first", "second")
	f.stop()
	f.neverPoisoned("first", "second")
}

// shutdown: Run does not return while a handler works.
func shutdown(f *fixture) {
	began, finish := make(chan struct{}, 1), make(chan struct{})
	returned := make(chan struct{})
	f.run(func(*message.Message, int) error {
		select {
		case began <- struct{}{}:
		default:
		}
		<-finish
		return nil
	})
	f.sendLater("open")
	f.await(began, "the handler is called")
	f.cancel()
	result := f.result
	f.result = make(chan error, 1)
	go func() { // ends with Run
		err := <-result
		close(returned)
		f.result <- err
	}()
	_ = backoff.Sleep(context.Background(), 20*time.Millisecond) // an absence can only be waited for
	select {
	case <-returned:
		f.Error("Run returned while a handler worked")
	default:
	}
	close(finish)
	f.stop()
}

// sendLater sends beside, for sources that wait until a message is handled.
func (f *fixture) sendLater(payloads ...string) {
	sent := make(chan struct{})
	go func() { // ends with the messages, or with the source
		defer close(sent)
		for _, payload := range payloads {
			msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
			msg.Metadata[KeyMetadata] = "key"
			if err := f.setup.Send(msg); err != nil {
				f.Logf("Send: %v", err)
				return
			}
		}
	}()
	f.Cleanup(func() {
		select {
		case <-sent:
		case <-time.After(f.config.Patience):
			f.Error("Send does not return after the end of Run")
		}
	})
}

func (f *fixture) await(c <-chan struct{}, what string) {
	f.Helper()
	select {
	case <-c:
	case <-time.After(f.config.Patience):
		f.Fatalf("%s: not within %v", what, f.config.Patience)
	}
}

// outage: more failures than attempts put nothing aside.
func outage(f *fixture) {
	failures := 2*f.config.MaxAttempts + 3
	f.run(func(_ *message.Message, attempt int) error {
		if attempt <= failures {
			return router.Outage(errHandler)
		}
		return nil
	})
	f.sendLater("first", "second")
	f.eventuallyHandled("first", "second")
	f.stop()
	f.neverPoisoned("first", "second")
}

// poisonQueue: what fails by itself is put aside after its attempts, and the next one passes.
func poisonQueue(f *fixture) {
	f.run(func(msg *message.Message, _ int) error {
		if string(msg.Payload) == "bad" {
			return errHandler
		}
		return nil
	})
	f.sendLater("bad", "good")
	f.eventuallyPoisoned("bad", f.config.MaxAttempts)
	f.eventuallyHandled("good")
	f.stop()
	f.neverPoisoned("good")
}

func permanent(f *fixture) {
	f.run(func(msg *message.Message, _ int) error {
		if string(msg.Payload) == "hopeless" {
			return router.Permanent(errHandler)
		}
		return nil
	})
	f.sendLater("hopeless", "good")
	f.eventuallyPoisoned("hopeless", 1)
	f.eventuallyHandled("good")
}

func panics(f *fixture) {
	f.run(func(msg *message.Message, _ int) error {
		if string(msg.Payload) == "bad" {
			panic("routertest: the handler panicked")
		}
		return nil
	})
	f.sendLater("bad", "good")
	f.eventuallyPoisoned("bad", f.config.MaxAttempts)
	f.eventuallyHandled("good")
}

// drain: a handler that works when the shutdown begins can finish, in a context that has not
// ended.
func drain(f *fixture) {
	began, finish := make(chan struct{}, 1), make(chan struct{})
	f.run(func(msg *message.Message, _ int) error {
		select {
		case began <- struct{}{}:
		default:
		}
		<-finish
		return msg.Context().Err()
	})
	f.sendLater("open")
	f.await(began, "the handler is called")
	f.cancel()
	_ = backoff.Sleep(context.Background(), 20*time.Millisecond) // an end of the context can only be waited for
	close(finish)
	f.stop()
	if !slices.Contains(f.allHandled(), "open") {
		f.Error("the context of a message ended before its handler returned")
	}
	f.neverPoisoned("open")
}

// redeliver: what the shutdown interrupts is no verdict about the message.
func redeliver(f *fixture) {
	began := make(chan struct{}, 1)
	stopping := make(chan struct{})
	f.run(func(*message.Message, int) error {
		select {
		case began <- struct{}{}:
		default:
		}
		<-stopping
		_ = backoff.Sleep(context.Background(), 20*time.Millisecond) // until the shutdown is under way
		return fmt.Errorf("%w: the application is shutting down", errHandler)
	})
	f.sendLater("interrupted")
	f.await(began, "the handler is called")
	f.cancel()
	close(stopping)
	f.stop()
	f.neverPoisoned("interrupted")
	if slices.Contains(f.allHandled(), "interrupted") {
		f.Fatal("a message counts as handled whose handler failed")
	}
	f.run(nil)
	f.eventuallyHandled("interrupted")
	f.stop()
	f.neverPoisoned("interrupted")
}

// replay: what was put aside is handled when its cause is gone.
func replay(f *fixture) {
	if f.setup.Replay == nil {
		f.Skip("not promised")
	}
	f.run(func(_ *message.Message, attempt int) error {
		if attempt <= f.config.MaxAttempts {
			return errHandler
		}
		return nil
	})
	f.sendLater("bad")
	f.eventuallyPoisoned("bad", f.config.MaxAttempts)
	ctx, cancel := context.WithTimeout(context.Background(), f.config.Patience)
	defer cancel()
	if err := f.setup.Replay(ctx); err != nil {
		f.Fatalf("Replay: %v", err)
	}
	f.eventuallyHandled("bad")
}

// order: a message that fails for a while is not overtaken by those of its key.
func order(f *fixture) {
	f.run(func(msg *message.Message, attempt int) error {
		if string(msg.Payload) == "0" && attempt <= 3 {
			if f.config.Outage {
				return router.Outage(errHandler)
			}
			if f.config.MaxAttempts == 0 || attempt < f.config.MaxAttempts {
				return errHandler
			}
		}
		return nil
	})
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprint(i))
	}
	f.sendLater(want...)
	f.eventuallyHandled(want...)
	var have []string // the first time each
	for _, payload := range f.allHandled() {
		if !slices.Contains(have, payload) {
			have = append(have, payload)
		}
	}
	if !slices.Equal(have, want) {
		f.Errorf("handled in the order %v, want %v", have, want)
	}
}

// dedup: the copy of a message that was handled is not handled, and that of one that failed is.
func dedup(f *fixture) {
	f.run(nil)
	uuid := watermill.NewUUID()
	f.sendAs(uuid, "key", "message")
	f.eventuallyHandled("message")
	f.sendAs(uuid, "key", "message")
	f.send("last")
	f.eventuallyHandled("last")
	f.stop()
	if n := f.tried("message"); n != 1 {
		f.Errorf("a message and its copy were handled %d times", n)
	}
}
