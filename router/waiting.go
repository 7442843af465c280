package router

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/warnlog"
)

const (
	// reservedFirst and reservedMost bound how soon a message comes back that found its key reserved.
	reservedFirst = 5 * time.Millisecond
	reservedMost  = time.Second
	// waitInPlace is how long a message waits for its copy where it is: most copies are
	// handled by then. Later it waits with its subscriber, if that knows how.
	waitInPlace = 150 * time.Millisecond
	// waitTold is after how long a wait is logged.
	waitTold = 10 * time.Second
	// maxCopyWaits is how many holders are reported.
	maxCopyWaits = 20
	// waitForgotten is after how long a message that does not come again waits no more, as far
	// as we know: its subscription has ended, for instance.
	waitForgotten = time.Minute
)

// reservedError is an [ErrReserved], with what is known of the wait.
type reservedError struct {
	error
	since time.Time // when the message began to wait
}

// Unwrap returns [ErrReserved].
func (e *reservedError) Unwrap() error { return e.error }

// waits knows which keys are waited for, through all deliveries of their messages.
type waits struct {
	logger watermill.LoggerAdapter
	line   ratelog.Line

	some  atomic.Bool // mirror of len(byKey) > 0, for the fast path
	mu    sync.Mutex
	byKey map[Key]*waitFor
	swept time.Time
}

type waitFor struct {
	since, seen time.Time
	told        bool
	holder      Owner
	until       time.Time // see [Reservation.Until]
}

// busy notes that a message found its key reserved, and returns its error.
func (w *waits) busy(route string, key Key, found Reservation) error {
	now := time.Now()
	w.mu.Lock()
	one := w.byKey[key]
	if one == nil || now.Sub(one.seen) > waitForgotten {
		one = &waitFor{since: now}
		if w.byKey == nil {
			w.byKey = map[Key]*waitFor{}
		}
		w.byKey[key] = one
		w.some.Store(true)
	}
	one.seen, one.holder, one.until = now, found.Holder, found.Until
	w.sweep(now)
	waited, waiting := now.Sub(one.since), len(w.byKey)
	tell := !one.told && waited >= waitTold
	one.told = one.told || tell
	w.mu.Unlock()
	if tell {
		fields := watermill.LogFields{
			"route": route, "waited": waited, "waiting": waiting, "instance": found.Holder.Instance, "session": found.Holder.Session,
		}
		if !found.Until.IsZero() {
			fields["until"] = found.Until.UTC().Format(time.RFC3339)
		}
		warnlog.Limited(&w.line, w.logger, "message waits for a copy that is being handled elsewhere", fields)
	}
	return &reservedError{error: ErrReserved, since: one.since}
}

// over notes that nothing waits for the key any more.
func (w *waits) over(route string, key Key) {
	if !w.some.Load() {
		return
	}
	w.mu.Lock()
	w.drop(key)
	ended := len(w.byKey) == 0
	w.mu.Unlock()
	if ended {
		if suppressed, ok := w.line.Over(); ok {
			w.logger.Info("messages no longer wait for copies elsewhere", warnlog.Counted(watermill.LogFields{"route": route}, suppressed))
		}
	}
}

// report returns how many messages wait, each one once however many copies of it there are, and
// for whom.
func (w *waits) report() (n int, by []CopyWait) {
	if !w.some.Load() {
		return 0, nil
	}
	byHolder := map[Owner]CopyWait{}
	w.mu.Lock()
	now := time.Now()
	for _, one := range w.byKey {
		if now.Sub(one.seen) > waitForgotten {
			continue
		}
		n++
		c, known := byHolder[one.holder]
		if !known || one.since.Before(c.Since) {
			c.Since = one.since
		}
		if one.until.After(c.Until) {
			c.Until = one.until
		}
		c.Instance, c.Session = one.holder.Instance, one.holder.Session
		c.Count++
		byHolder[one.holder] = c
	}
	w.mu.Unlock()
	by = slices.SortedFunc(maps.Values(byHolder), func(a, b CopyWait) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Session, b.Session))
	})
	return n, by[:min(len(by), maxCopyWaits)]
}

// drop removes a wait. w.mu is held.
func (w *waits) drop(key Key) {
	delete(w.byKey, key)
	w.some.Store(len(w.byKey) > 0)
}

// sweep drops what is forgotten, now and then. w.mu is held.
func (w *waits) sweep(now time.Time) {
	if now.Sub(w.swept) < waitForgotten {
		return
	}
	w.swept = now
	for key, one := range w.byKey {
		if now.Sub(one.seen) > waitForgotten {
			w.drop(key)
		}
	}
}
