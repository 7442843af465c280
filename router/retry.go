package router

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
)

// Defaults of [RetryConfig].
const (
	DefaultRetryAttempts        = 5
	DefaultRetryInitialInterval = 200 * time.Millisecond
	DefaultRetryMaxInterval     = 30 * time.Second
)

// RetryConfig configures [Retry]. The zero value is ready for use.
type RetryConfig struct {
	// MaxAttempts is how many times a message is handled at most when the
	// handling itself fails ([ClassHandler]), the first time included; 1 means
	// no retry. Outages do not count. 0 means [DefaultRetryAttempts]; negative
	// is an error.
	MaxAttempts int
	// InitialInterval is the wait after the first failure. It doubles with each
	// further one, up to MaxInterval, and half of it is random. 0 means
	// [DefaultRetryInitialInterval]; negative is an error.
	InitialInterval time.Duration
	// MaxInterval caps the waits, and so says how long after the end of an
	// outage the flow resumes at the latest. 0 means
	// [DefaultRetryMaxInterval], or InitialInterval if that is longer; below
	// InitialInterval is an error.
	MaxInterval time.Duration
	// Stop, when closed, ends all waits: the messages are given back. Nil means
	// that only the messages' contexts end waits. The Router sets it.
	Stop <-chan struct{}
	// Name stands in logs and events. The Router sets it to the route's name.
	Name string
	// Observer is told about retries and outages. Nil means nobody.
	Observer Observer
}

func (c *RetryConfig) setDefaults() {
	if c.MaxAttempts == 0 {
		c.MaxAttempts = DefaultRetryAttempts
	}
	if c.InitialInterval == 0 {
		c.InitialInterval = DefaultRetryInitialInterval
	}
	if c.MaxInterval == 0 {
		c.MaxInterval = max(DefaultRetryMaxInterval, c.InitialInterval)
	}
}

// Validate reports the first field whose value is not allowed; the error matches
// [ErrConfig].
func (c RetryConfig) Validate() error {
	c.setDefaults()
	switch {
	case c.MaxAttempts < 0:
		return fmt.Errorf("%w: retry: MaxAttempts is negative", ErrConfig)
	case c.InitialInterval < 0:
		return fmt.Errorf("%w: retry: InitialInterval is negative", ErrConfig)
	case c.MaxInterval < c.InitialInterval:
		return fmt.Errorf("%w: retry: MaxInterval is below InitialInterval", ErrConfig)
	}
	return nil
}

// Retry is the middleware that tries again. [Classify] says what is tried how
// often:
//
//   - permanent and redeliver: not at all
//   - handler: MaxAttempts times in all, each message with its own waits
//   - outage: until it works. While the outage lasts one message at a time
//     probes and the others wait, so a thousand messages in flight do not mean
//     a thousand calls per interval. It is logged when it begins and when it
//     ends, not in between.
//   - shutdown: not when the message's context has ended or Stop is closed; an
//     interruption while neither is the case is tried without limit.
//
// The error that comes out is a [*RetryError]. Its class is never
// [ClassHandler] or [ClassOutage] when the message's context has ended or Stop
// is closed: then it is [ClassShutdown], because nobody knows what the message
// would have come to.
//
// A handler that does not return is waited for. Panics of the handler count as
// failures of the handler.
type Retry struct {
	config RetryConfig
	policy backoff.Policy
	logger watermill.LoggerAdapter

	mu    sync.Mutex
	gates []*gate // one per use of Middleware
}

// NewRetry returns the middleware, or an error that matches [ErrConfig]. A nil
// logger is silent.
func NewRetry(config RetryConfig, logger watermill.LoggerAdapter) (*Retry, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &Retry{
		config: config,
		policy: backoff.Policy{Min: config.InitialInterval, Max: config.MaxInterval},
		logger: logger,
	}, nil
}

// RetryError is the error of a message for which [Retry] has given up.
type RetryError struct {
	// Attempts counts the failures.
	Attempts int
	// First and Last are the times of the first and the last failure.
	First, Last time.Time
	// Class is what is to be done with the message.
	Class Class
	// Err is the last failure; for a message that was never tried, because an
	// outage was on when it came, the reason why the wait ended.
	Err error
}

// Error tells the number of attempts and the last failure.
func (e *RetryError) Error() string {
	if e.Attempts == 1 {
		return e.Err.Error()
	}
	return fmt.Sprintf("after %d attempts: %s", e.Attempts, e.Err)
}

// Unwrap returns the last failure.
func (e *RetryError) Unwrap() error { return e.Err }

// ErrorClass returns Class.
func (e *RetryError) ErrorClass() Class { return e.Class }

// ErrStopped is the reason of messages that were given back because the Router
// stops. Its class is [ClassShutdown].
var ErrStopped = WithClass(errors.New("router is stopping"), ClassShutdown)

// Middleware is the message.HandlerMiddleware.
func (r *Retry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	g := &gate{delay: r.policy.Delay, stop: r.config.Stop}
	r.mu.Lock()
	r.gates = append(r.gates, g)
	r.mu.Unlock()
	return func(msg *message.Message) ([]*message.Message, error) {
		t := retrying{Retry: r, gate: g, msg: msg, ctx: msg.Context()}
		return t.run(h)
	}
}

// Waiting returns how many messages wait for another attempt now.
func (r *Retry) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, g := range r.gates {
		n += int(g.waiting.Load())
	}
	return n
}

// OutageSince returns when the current outage began, and false when there is
// none. With several handlers under one Retry it is the oldest.
func (r *Retry) OutageSince() (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var oldest time.Time
	for _, g := range r.gates {
		if since := g.since(); !since.IsZero() && (oldest.IsZero() || since.Before(oldest)) {
			oldest = since
		}
	}
	return oldest, !oldest.IsZero()
}

// retrying is one message on its way through Retry.
type retrying struct {
	*Retry
	gate *gate
	msg  *message.Message
	ctx  context.Context

	failures int // of the handler; these are what MaxAttempts limits
	others   int // of anything else
	first    time.Time
	last     time.Time
}

func (t *retrying) run(h message.HandlerFunc) ([]*message.Message, error) {
	for {
		probe, ok := t.gate.enter(t.ctx)
		if !ok {
			return nil, t.interrupted(nil)
		}
		seen := t.gate.successes.Load()
		out, err := t.attempt(h, probe)
		if err == nil {
			t.succeeded(probe)
			return out, nil
		}
		if next := t.failed(probe, seen, err); next != nil {
			return nil, next
		}
		// Handlers may replace the context; the next attempt starts afresh.
		t.msg.SetContext(t.ctx)
	}
}

// attempt calls the handler. A panic from between this middleware and the
// recoverer becomes an error here: it must not take the turn of a probe along.
func (t *retrying) attempt(h message.HandlerFunc, probe *outage) (out []*message.Message, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if value := recover(); value != nil {
			out, err = nil, &PanicError{Value: value, Stack: debug.Stack()}
			return
		}
		t.gate.passed(probe) // runtime.Goexit: nobody comes after us
	}()
	out, err = h(t.msg)
	returned = true
	return out, err
}

func (t *retrying) succeeded(probe *outage) {
	if d := deliveryOf(t.msg); d != nil && !d.touched {
		t.gate.passed(probe)
		return
	}
	if ended := t.gate.succeeded(); ended != nil {
		lasted := time.Since(ended.since)
		t.logger.Info("outage is over", watermill.LogFields{"route": t.config.Name, "lasted": lasted})
		observe(t.config.Observer, Event{Route: t.config.Name, Kind: EventOutageEnded, Context: t.ctx, Delay: lasted})
	}
}

// failed decides about a failure. It returns nil, after having waited, when the
// message is to be tried again.
func (t *retrying) failed(probe *outage, seen uint64, err error) error {
	t.last = time.Now()
	if t.first.IsZero() {
		t.first = t.last
	}
	class := Classify(err)
	if class != ClassOutage || errors.Is(err, ErrReserved) {
		t.gate.passed(probe)
	}

	var delay time.Duration
	switch class {
	case ClassPermanent, ClassRedeliver:
		t.others++
		return t.giveUp(class, err)
	case ClassOutage:
		t.others++
		if errors.Is(err, ErrReserved) {
			delay = reservedPolicy.Delay(t.others - 1)
			break
		}
		closed, began := t.gate.failed(probe, seen)
		if began != nil {
			text := RedactError(err, t.msg)
			t.logger.Error("outage began, messages wait until it is over",
				redacted(text), watermill.LogFields{"route": t.config.Name})
			observe(t.config.Observer, Event{
				Route: t.config.Name, Kind: EventOutageBegan, Class: class, Context: t.ctx, Err: err, Text: text,
			})
		}
		if !closed {
			delay = t.policy.Delay(t.others - 1)
		}
	case ClassShutdown:
		t.others++
		delay = t.policy.Delay(t.others - 1)
	default:
		class = ClassHandler
		t.failures++
		if t.failures >= t.config.MaxAttempts {
			if t.ctx.Err() != nil {
				return t.interrupted(err)
			}
			return t.giveUp(class, err)
		}
		delay = t.policy.Delay(t.failures - 1)
	}

	if t.ended() {
		return t.interrupted(err)
	}
	if t.config.Observer != nil {
		t.config.Observer.Observe(Event{
			Route: t.config.Name, Kind: EventRetry, Class: class, Context: t.ctx, Err: err, Text: RedactError(err, t.msg),
			Attempt: t.failures + t.others, Delay: delay,
		})
	}
	if delay > 0 && !t.pause(delay) {
		return t.interrupted(err)
	}
	return nil
}

// pause waits; false means that the wait was cut short.
func (t *retrying) pause(d time.Duration) bool {
	t.gate.waiting.Add(1)
	defer t.gate.waiting.Add(-1)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.ctx.Done():
		return false
	case <-t.config.Stop:
		return false
	}
}

func (t *retrying) ended() bool {
	select {
	case <-t.ctx.Done():
		return true
	case <-t.config.Stop:
		return true
	default:
		return false
	}
}

func (t *retrying) giveUp(class Class, err error) error {
	return &RetryError{Attempts: t.failures + t.others, First: t.first, Last: t.last, Class: class, Err: err}
}

// interrupted is the error of a message that might have been tried again, had
// its context not ended or the Router not stopped.
func (t *retrying) interrupted(err error) error {
	cause := context.Cause(t.ctx)
	if cause == nil {
		cause = ErrStopped
	}
	if err == nil {
		err = cause
	} else {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return t.giveUp(ClassShutdown, err)
}
