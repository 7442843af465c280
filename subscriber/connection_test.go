package subscriber

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// connectionWorld is a connection, and its clock.
type connectionWorld struct {
	*testing.T
	connection
	now time.Time
}

func newConnectionWorld(t *testing.T) *connectionWorld {
	cfg := Config{Reconnect: Backoff{Initial: time.Second, Max: time.Minute}, Payload: PayloadConfig{RefreshEvery: 5 * time.Minute}}
	cfg = cfg.WithDefaults()
	w := &connectionWorld{T: t, connection: connection{cfg: &cfg}, now: time.Now()}
	w.start()
	return w
}

// pass lets time pass.
func (w *connectionWorld) pass(d time.Duration) { w.now = w.now.Add(d) }

// open opens the stream, which then lasts for d.
func (w *connectionWorld) open(d time.Duration) {
	w.opened(w.now, false)
	w.pass(d)
}

// end ends the stream, or the attempt to open it, which must not be final, and returns the wait.
func (w *connectionWorld) end(end streamEnd) time.Duration {
	w.Helper()
	wait, final := w.ended(w.now, end)
	if final != nil || w.stream.Connected || !errors.Is(w.stream.LastError, end.err) {
		w.Fatalf("given up: %v; %+v", final, w.stream)
	}
	return wait
}

// waits fails the test unless wait, which has jitter, is that before the n-th attempt.
func (w *connectionWorld) waits(wait time.Duration, n int) {
	w.Helper()
	full := min(w.cfg.Reconnect.Initial<<(n-1), w.cfg.Reconnect.Max)
	if wait < full/2 || wait > full {
		w.Errorf("it waits for %v before attempt %d, want %v to %v", wait, n, full/2, full)
	}
}

var (
	errCut       = io.ErrUnexpectedEOF
	errForbidden = fmt.Errorf("events: %w", gateway.ErrForbidden)
)

// Only a stream that lasted, or brought something, ends the backoff.
func TestBackoffEndsWithAHealthyStream(t *testing.T) {
	w := newConnectionWorld(t)
	for n := 1; n < 10; n++ {
		w.waits(w.end(streamEnd{err: errCut}), n) // it cannot be opened
	}
	w.open(healthyAfter*time.Second - 1)
	w.waits(w.end(streamEnd{err: errCut}), 10) // it was too short
	w.open(0)
	w.waits(w.end(streamEnd{err: errCut, events: 1}), 1)
	w.open(0)
	w.waits(w.end(streamEnd{err: errCut, events: 1}), 1)
	w.open(0)
	w.waits(w.end(streamEnd{err: errCut}), 2)
	w.open(healthyAfter * time.Second)
	if wait := w.end(streamEnd{err: errCut}); wait != 0 {
		t.Errorf("it waits for %v", wait)
	}
	w.waits(w.end(streamEnd{err: errCut}), 1)
	// The head counts, not the request.
	w.opened(w.now, true)
	w.pass(time.Hour)
	w.headArrived(w.now)
	w.waits(w.end(streamEnd{err: errCut}), 2)
	w.start() // for another subscription
	w.waits(w.end(streamEnd{err: errCut}), 1)
}

// A stream that the subscriber closed itself is not healthy: it may have to close the next one, too.
func TestRecalledStreamsBackOff(t *testing.T) {
	w := newConnectionWorld(t)
	for n := 1; n < 5; n++ {
		w.open(time.Second)
		w.waits(w.end(streamEnd{err: gateway.ErrClosed, recalled: true, events: 100}), n)
	}
	w.open(time.Hour)
	w.waits(w.end(streamEnd{err: gateway.ErrClosed, recalled: true}), 1)
}

// A stream that is refused for long enough is given up, and only then.
func TestRefusedStreamIsGivenUp(t *testing.T) {
	refuse := func(w *connectionWorld) error {
		_, final := w.ended(w.now, streamEnd{err: errForbidden})
		return final
	}
	for _, c := range []struct {
		name    string
		between func(w *connectionWorld) // two refusals, of which the second one is too late
		final   bool
	}{
		{"nothing", func(*connectionWorld) {}, true},
		{"a stream that awaits its head", func(w *connectionWorld) {
			w.opened(w.now, true)
		}, true},
		{"accepted", func(w *connectionWorld) {
			w.open(0)
			w.end(streamEnd{err: errCut})
		}, false},
		{"the head arrives", func(w *connectionWorld) {
			w.opened(w.now, true)
			w.headArrived(w.now)
		}, false},
		{"another failure", func(w *connectionWorld) {
			w.end(streamEnd{err: gateway.ErrUnavailable})
		}, false},
		{"nobody needs it", func(w *connectionWorld) {
			w.end(streamEnd{})
			w.start()
		}, false},
		{"never", func(w *connectionWorld) {
			w.cfg.StreamRefusedFor = NeverRefused
			w.start()
			_ = refuse(w)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newConnectionWorld(t)
			if final := refuse(w); final != nil || w.stream.EndsAt.Sub(w.now) != w.cfg.StreamRefusedFor {
				t.Fatalf("given up: %v; %+v", final, w.stream)
			}
			since := w.stream.RefusedSince
			w.pass(w.cfg.StreamRefusedFor - 1)
			if final := refuse(w); final != nil || !w.stream.RefusedSince.Equal(since) {
				t.Fatalf("given up: %v; %+v", final, w.stream)
			}
			w.pass(1)
			c.between(w)
			final := refuse(w)
			if c.final != errors.Is(final, ErrStreamRefused) {
				t.Fatalf("given up: %v", final)
			}
			if c.final && (!strings.Contains(final.Error(), " for "+w.cfg.StreamRefusedFor.String()) || !errors.Is(final, gateway.ErrForbidden)) {
				t.Error(final)
			}
		})
	}
}

// A stream that cannot be requested is given up, unless the subscriber closed it itself.
func TestStreamThatCannotBeRequested(t *testing.T) {
	for _, err := range []error{gateway.ErrInvalid, gateway.ErrClosed} {
		w := newConnectionWorld(t)
		w.open(0)
		w.end(streamEnd{err: err, recalled: true})
		if _, final := w.ended(w.now, streamEnd{err: err}); !errors.Is(final, err) {
			t.Errorf("%v: %v", err, final)
		}
	}
}

// What is asked for while there is no stream comes with the next one.
func TestReconnectDuringBackoff(t *testing.T) {
	w := newConnectionWorld(t)
	w.open(0)
	w.end(streamEnd{err: errCut})
	w.wantFresh(w.now)
	if w.tick(w.now, true) {
		t.Error("a stream that is not open is closed")
	}
	w.open(0)
	if w.tick(w.now, true) || !w.freshNext.IsZero() {
		t.Error("reconnected, although all comes on this stream")
	}
}
