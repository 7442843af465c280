package pipeline

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/logsink"
)

// What comes up within a minute is a warning; what takes longer is an error, once. Both
// are reported as a wait to the routes, whatever the cause is.
func TestWhatIsNotThereYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards lines
		lines := map[slog.Level]int{}
		ready := time.Now().Add(5 * time.Minute)
		l := newLater(func(context.Context) (int, func() error, error) {
			if time.Now().Before(ready) {
				return 0, nil, context.DeadlineExceeded
			}
			return 7, func() error { return nil }, nil
		}, slog.New(counter(func(level slog.Level) {
			mu.Lock()
			defer mu.Unlock()
			lines[level]++
		})))
		notYet := func() {
			t.Helper()
			_, err := l.get()
			err = sinks.NewError("farm", "", sinks.ErrUnavailable, err)
			if !errors.Is(err, router.ErrNotConnected) || errors.Is(err, context.DeadlineExceeded) || router.ClassOf(err) != router.ClassOutage {
				t.Errorf("error %v of class %s", err, router.ClassOf(err))
			}
		}
		notYet()
		opened := make(chan int, 1)
		l.start(t.Context(), func(value int) { opened <- value })
		expect := func(warnings, errs int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if lines[slog.LevelWarn] != warnings || lines[slog.LevelError] != errs {
				t.Errorf("after %v: logged %v, want %d warnings and %d errors", 5*time.Minute-time.Until(ready), lines, warnings, errs)
			}
		}
		time.Sleep(59 * time.Second)
		notYet()
		expect(1, 0)
		time.Sleep(time.Minute)
		expect(1, 1)
		if value := <-opened; value != 7 {
			t.Errorf("opened %d", value)
		}
		expect(1, 1)
		if value, err := l.get(); value != 7 || err != nil {
			t.Errorf("get() = %d, %v", value, err)
		}
	})
}

// counter is a log handler that counts lines by level.
type counter func(slog.Level)

func (c counter) Enabled(context.Context, slog.Level) bool { return true }
func (c counter) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c counter) WithGroup(string) slog.Handler            { return c }

func (c counter) Handle(_ context.Context, r slog.Record) error {
	c(r.Level)
	return nil
}

// A sink that is opened in the background forwards publications once it is open, and is
// an outage before.
func TestPublishAsyncOfWhatIsOpenedLater(t *testing.T) {
	inner, err := logsink.New(logsink.Config{Writer: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inner.Close() }()
	open := func(context.Context) (sinks.Sink, func() error, error) { return inner, inner.Close, nil }
	s := &sink{name: "farm", later: newLater(open, slog.New(slog.DiscardHandler))}
	msg := message.NewMessage("1", nil)
	if _, err := s.PublishAsync("topic", msg); !errors.Is(err, sinks.ErrUnavailable) || !errors.Is(err, router.ErrNotConnected) {
		t.Errorf("before it is open: %v", err)
	}
	if err := s.try(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, err := s.PublishAsync("topic", msg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Result(); err != nil {
		t.Error(err)
	}
}
