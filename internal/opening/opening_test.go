package opening_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// What comes up within a minute is a warning; what takes longer is an error, once. Both
// are reported as a wait to the routes, whatever the cause is.
func TestWhatIsNotThereYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := testkit.NewLog()
		ready := time.Now().Add(5 * time.Minute)
		o := opening.New(func(context.Context) error {
			if time.Now().Before(ready) {
				return errors.Join(context.DeadlineExceeded, fs.ErrPermission, errors.New("nats://user:hidden@farm"))
			}
			return nil
		}, log)
		notYet := func() {
			t.Helper()
			err := sinks.NewError("farm", "", sinks.ErrUnavailable, o.Err())
			if !errors.Is(err, sinks.ErrNotConnected) || errors.Is(err, context.DeadlineExceeded) || router.ClassOf(err) != router.ClassOutage || router.ClassOf(o.Err()) != router.ClassOutage {
				t.Errorf("error %v of class %s", err, router.ClassOf(err))
			}
		}
		notYet()
		opened := make(chan time.Time, 1)
		o.Start(t.Context(), func(context.Context) { opened <- time.Now() })
		expect := func(warnings, errs int) {
			t.Helper()
			synctest.Wait()
			if w, e := len(log.Lines(watermill.InfoLogLevel)), len(log.Lines(watermill.ErrorLogLevel)); w != warnings || e != errs {
				t.Errorf("after %v, want %d warnings and %d errors, logged\n%v", 5*time.Minute-time.Until(ready), warnings, errs, log)
			}
		}
		time.Sleep(59 * time.Second)
		notYet()
		if !errors.Is(o.Err(), fs.ErrPermission) {
			t.Errorf("the cause is hidden: %v", o.Err())
		}
		expect(1, 0)
		time.Sleep(time.Minute)
		expect(1, 1)
		if late := (<-opened).Sub(ready); late > opening.Policy().Max || o.Err() != nil {
			t.Errorf("opened %v late, error %v", late, o.Err())
		}
		expect(1, 1)
		if strings.Contains(log.String(), "hidden") {
			t.Errorf("the log tells the password:\n%v", log)
		}
	})
}

// What is called on success ends with Stop, which waits for it.
func TestStopEndsWhatIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		o := opening.New(func(context.Context) error { return nil }, watermill.NopLogger{})
		o.Start(t.Context(), func(ctx context.Context) {
			<-ctx.Done()
			ended = true
		})
		synctest.Wait()
		o.Stop(t.Context())
		if !ended {
			t.Error("it goes on")
		}
	})
}

// Now has an attempt made at once, and Stop ends them.
func TestNowAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		o := opening.New(func(context.Context) error {
			at = append(at, time.Since(began))
			return fs.ErrPermission
		}, watermill.NopLogger{})
		o.Start(t.Context(), func(context.Context) { t.Error("opened") })
		synctest.Wait()
		o.Now()
		synctest.Wait()
		o.Stop(t.Context())
		if len(at) != 2 || at[1] != 0 {
			t.Errorf("attempts after %v, want two at once", at)
		}
	})
}

// Health ends with its context, and with the sink, also if the broker does not answer; what goes on then is waited for.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down, away := errors.New("down"), true
		o := opening.New(func(context.Context) error {
			if away {
				return down
			}
			return nil
		}, nil)
		life := lifecycle.New()
		background, stop := context.WithCancel(t.Context())
		health := func(ctx context.Context, look func() error, targets ...error) {
			t.Helper()
			err := o.Health(ctx, background, "farm", life, look)
			for _, target := range targets {
				testkit.ErrorIs(t, err, target)
			}
			if len(targets) == 0 && err != nil {
				t.Errorf("got %v", err)
			}
		}
		answer := make(chan struct{})
		hangs := func() error { <-answer; return down }
		_ = o.Try(t.Context())
		health(t.Context(), hangs, sinks.ErrUnavailable, sinks.ErrNotConnected, down)
		away = false
		testkit.NoError(t, o.Try(t.Context()))
		health(t.Context(), func() error { return nil })
		health(t.Context(), func() error { return down }, sinks.ErrUnavailable, down)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		health(ctx, func() error { <-ctx.Done(); return down }, context.DeadlineExceeded)
		health(ctx, hangs, context.DeadlineExceeded)
		time.AfterFunc(time.Second, stop)
		health(t.Context(), hangs, sinks.ErrClosed)
		life.Close(func() {
			idle := life.Idle()
			synctest.Wait()
			if wakeup.Raised(idle) {
				t.Error("what hangs is not counted")
			}
			close(answer)
			<-idle
		})
		health(t.Context(), hangs, sinks.ErrClosed)
	})
}
