package routertest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/routertest"
)

// brokenEnv names what is wrong with the set-up of TestBrokenSetup.
const brokenEnv = "AGRIMILL_ROUTERTEST_BROKEN"

// plain is a set-up of a few lines: a list of messages and a loop. It keeps every promise,
// except the one that broken names.
type plain struct {
	handle message.NoPublishHandlerFunc
	broken string

	wake chan struct{}

	mu      sync.Mutex
	waiting []*message.Message
	aside   []*message.Message
	seen    map[string]bool // UUIDs of what was handled
	taken   int
}

func newPlain(handle message.NoPublishHandlerFunc, broken string) *plain {
	return &plain{handle: handle, broken: broken, wake: make(chan struct{}, 1), seen: map[string]bool{}}
}

func (p *plain) setup() routertest.Setup {
	return routertest.Setup{Send: p.send, Run: p.run, Poisoned: p.poisoned, Replay: p.replay}
}

func (p *plain) send(msg *message.Message) error {
	p.mu.Lock()
	p.waiting = append(p.waiting, msg)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return nil
}

func (p *plain) run(ctx context.Context, running func()) error {
	running()
	for {
		p.mu.Lock()
		var next *message.Message
		if len(p.waiting) > 0 && ctx.Err() == nil {
			next, p.waiting = p.waiting[0], p.waiting[1:]
			p.taken++
		}
		lost := p.broken == "loses a message" && p.taken == 5
		p.mu.Unlock()
		switch {
		case lost:
		case next != nil && p.broken == "does not wait for handlers":
			go p.process(ctx, next)
		case next != nil:
			p.process(ctx, next)
		default:
			select {
			case <-p.wake:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// process handles a message until it is handled, put aside, or interrupted.
func (p *plain) process(ctx context.Context, msg *message.Message) {
	p.mu.Lock()
	seen := p.seen[msg.UUID]
	p.mu.Unlock()
	if seen && p.broken != "handles copies" {
		return
	}
	for attempt := 1; ; attempt++ {
		err := p.attempt(ctx, msg)
		class := router.ClassOf(err)
		switch {
		case err == nil:
			p.mu.Lock()
			p.seen[msg.UUID] = true
			p.mu.Unlock()
			return
		case ctx.Err() != nil:
			switch p.broken {
			case "puts aside what the shutdown interrupts":
				p.putAside(msg)
			case "loses what the shutdown interrupts":
			default:
				p.mu.Lock()
				p.waiting = append([]*message.Message{msg}, p.waiting...)
				p.mu.Unlock()
			}
			return
		case p.broken == "loses what failed once":
			return
		case p.broken == "puts aside what failed once":
			p.putAside(msg)
			return
		case p.broken == "sends what failed to the end":
			_ = p.send(msg)
			return
		case class == router.ClassPermanent && p.broken != "repeats permanent failures":
			p.putAside(msg)
			return
		case class == router.ClassOutage && p.broken != "does not know outages", p.broken == "puts nothing aside":
		case attempt >= attempts:
			if p.broken != "one attempt too many" || attempt > attempts {
				p.putAside(msg)
				return
			}
		}
	}
}

// attempt calls the handler once.
func (p *plain) attempt(ctx context.Context, msg *message.Message) (err error) {
	defer func() {
		if cause := recover(); cause != nil && p.broken != "acks what panicked" {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	own := msg.Copy()
	if p.broken == "ends open contexts" {
		own.SetContext(ctx)
	}
	return p.handle(own)
}

func (p *plain) putAside(msg *message.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.aside = append(p.aside, msg)
}

func (p *plain) poisoned() []*message.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.aside)
}

func (p *plain) replay(context.Context) error {
	if p.broken == "replays nothing" {
		return nil
	}
	p.mu.Lock()
	again := p.aside
	p.aside = nil
	p.mu.Unlock()
	for _, msg := range again {
		if err := p.send(msg); err != nil {
			return err
		}
	}
	return nil
}

func runPlain(t *testing.T, broken string, patience time.Duration) {
	routertest.Run(t, routertest.Suite{
		New: func(_ *testing.T, handle message.NoPublishHandlerFunc) routertest.Setup {
			return newPlain(handle, broken).setup()
		},
		MaxAttempts: attempts, Permanent: true, Outage: true, Panic: true, Drain: true, Redeliver: true, Order: true, Dedup: true,
		Patience: patience,
	})
}

// A set-up of a few lines passes, so what TestEachCaseFails sees is the fault of what is broken.
func TestPlainSetup(t *testing.T) {
	t.Parallel()
	runPlain(t, "", 0)
}

// TestBrokenSetup fails in the process that TestEachCaseFails starts.
func TestBrokenSetup(t *testing.T) {
	broken := os.Getenv(brokenEnv)
	if broken == "" {
		t.Skip("for TestEachCaseFails")
	}
	runPlain(t, broken, time.Second) // what is broken never happens
}

// Every case of the suite fails with a set-up that breaks what it tests, and says what is wrong.
func TestEachCaseFails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, broken, says string }{
		{"Delivery", "loses a message", "message 4 is handled: not within"},
		{"HandlerFailure", "loses what failed once", "first is handled: not within"},
		{"HandlerFailure", "puts aside what failed once", "first is handled: not within"},
		{"Shutdown", "does not wait for handlers", "Run returned while a handler worked"},
		{"Outage", "does not know outages", "first is handled: not within"},
		{"Poison", "puts nothing aside", "bad is put aside: not within"},
		{"Poison", "one attempt too many", "bad was put aside after 4 attempts, want 3"},
		{"Permanent", "repeats permanent failures", "hopeless was put aside after 3 attempts, want 1"},
		{"Panic", "acks what panicked", "bad is put aside: not within"},
		{"Drain", "ends open contexts", "the context of a message ended before its handler returned"},
		{"Redeliver", "puts aside what the shutdown interrupts", "interrupted was put aside"},
		{"Redeliver", "loses what the shutdown interrupts", "interrupted is handled: not within"},
		{"Replay", "replays nothing", "bad is handled: not within"},
		{"Order", "sends what failed to the end", "handled in the order"},
		{"Dedup", "handles copies", "a message and its copy were handled 2 times"},
	} {
		t.Run(tt.name+", "+tt.broken, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokenSetup$/^"+tt.name+"$")
			cmd.Env = append(os.Environ(), brokenEnv+"="+tt.broken)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("got %v, want the failure of a test:\n%s", err, out)
			}
			if text := string(out); !strings.Contains(text, "--- FAIL: TestBrokenSetup/"+tt.name) || !strings.Contains(text, tt.says) {
				t.Errorf("want a failure of %s that says %q:\n%s", tt.name, tt.says, text)
			}
		})
	}
}
