package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/reminders"
	"github.com/agrimill/agrimill/internal/validate"
)

// Defaults of [RetrySettings].
const (
	DefaultRetryAttempts       = 5
	DefaultRetryInitialBackoff = 200 * time.Millisecond
	DefaultRetryMaxBackoff     = 30 * time.Second
)

// RetrySettings determine how often and how fast a message is retried, as configured by
// the user of a [Router]. The zero value is ready for use.
type RetrySettings struct {
	// MaxAttempts is how many times a message is handled at most if its handler fails
	// ([ClassHandler]); 1 means no retry. Outages do not count. 0 means
	// [DefaultRetryAttempts]; negative is an error.
	MaxAttempts int `yaml:"max_attempts"`
	// InitialBackoff is the wait after the first failure. It doubles with each
	// further one, up to MaxBackoff, and half of it is random. 0 means
	// [DefaultRetryInitialBackoff]; negative is an error.
	InitialBackoff time.Duration `yaml:"initial_backoff"`
	// MaxBackoff caps the waits, and so how soon after an outage messages flow again. A sink
	// that reports its recovery ends the wait. 0 means [DefaultRetryMaxBackoff], or
	// InitialBackoff if that is longer; less than InitialBackoff is an error.
	MaxBackoff time.Duration `yaml:"max_backoff"`
}

// RetryConfig configures a [Retry] that is used on its own. The zero value is ready
// for use.
type RetryConfig struct {
	// RetrySettings are the same as in [Config.Retry].
	RetrySettings
	// Stop, when closed, ends all waits, and the messages are nacked. Nil means
	// that only the messages' contexts end waits. A Router sets it.
	Stop <-chan struct{}
	// Recovered returns a channel that is closed when the handler's dependency is
	// available again: a message waiting for the end of an outage is then retried. It
	// is called before every attempt and must not block. Nil means that only time ends
	// the wait. A Router sets it to that of the route's sink; see [sinks.Recovering].
	Recovered func() <-chan struct{}
	// Classify is [Config.Classify]. Nil means [Classify] alone.
	Classify func(error) (Class, bool)
	// Name identifies the route in logs and events. A Router sets it to the route's name.
	Name string
	// Observer is notified of retries and outages. It may be nil.
	Observer Observer

	// stopping tells that a shutdown has begun, perhaps a moment before Stop does.
	stopping func() bool
}

// WithDefaults returns the settings with the defaults filled in.
func (c RetrySettings) WithDefaults() RetrySettings {
	c.setDefaults()
	return c
}

func (c *RetrySettings) setDefaults() {
	if c.MaxAttempts == 0 {
		c.MaxAttempts = DefaultRetryAttempts
	}
	if c.InitialBackoff == 0 {
		c.InitialBackoff = DefaultRetryInitialBackoff
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = max(DefaultRetryMaxBackoff, c.InitialBackoff)
	}
}

// Validate reports every field with an invalid value; the error matches
// [ErrConfig].
func (c RetrySettings) Validate() error {
	c.setDefaults()
	var e validate.Errors
	validate.NotNegative(&e, "MaxAttempts", c.MaxAttempts)
	validate.NotNegative(&e, "InitialBackoff", c.InitialBackoff)
	e.Check(c.MaxBackoff >= c.InitialBackoff, "MaxBackoff", "must not be below %s", validate.Field("InitialBackoff"))
	return e.Err(ErrConfig)
}

// Retry is the middleware that retries. [Classify], and before it RetryConfig.Classify,
// determines what is retried how often:
//
//   - permanent and redeliver: never
//   - handler: MaxAttempts times in all, each message with its own waits
//   - outage: until it succeeds. During an outage one message at a time
//     probes and the others wait, so a thousand messages in flight do not mean
//     a thousand calls per interval; if RetryConfig.Recovered signals recovery, they
//     are retried immediately. The begin and the end of an outage are logged. One that
//     consists of responses, from an intermediary of the gateway or with
//     status 403, is also logged in between, after 1 and 5 minutes and then every
//     hour, because nothing is visibly down. A message that an
//     intermediary refuses three times over five minutes, while others pass, is
//     permanent: [ErrRefusedInBetween].
//   - a copy of the message is being handled ([ErrReserved]): until that is done. It
//     waits in place for a moment, and then, if it comes from this module's
//     subscriber of the gateway, is nacked and comes again soon: it holds nothing
//     meanwhile, and keeps its order.
//   - shutdown, of an error that says so itself: until it succeeds, too.
//
// Once Stop is closed or the message's own context has ended, nothing is retried: what
// failed then may have been interrupted. The class of the returned error, a [*RetryError],
// is then [ClassShutdown] if Stop is closed, else [ClassRedeliver], and never
// [ClassHandler] or [ClassOutage]. A context that has ended and that a middleware or
// handler further in has made for itself means nothing of that kind: the handler failed.
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
		policy: backoff.Policy{Initial: config.InitialBackoff, Max: config.MaxBackoff},
		logger: logger,
	}, nil
}

// RetryError is the error of a message on which [Retry] gave up.
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
	if e.Attempts <= 1 {
		return e.Err.Error()
	}
	return fmt.Sprintf("after %d attempts: %s", e.Attempts, e.Err)
}

// Unwrap returns the last failure.
func (e *RetryError) Unwrap() error { return e.Err }

// ErrorClass returns Class.
func (e *RetryError) ErrorClass() Class { return e.Class }

// ErrStopped is the reason of messages that were returned because the Router
// stops. Its class is [ClassShutdown].
var ErrStopped = WithClass(errors.New("router is stopping"), ClassShutdown)

// ErrNotConnected is matched by the errors of what has not been reached since the start:
// a sink, say, that is made in the background. Its class is [ClassOutage], and [Retry]
// logs that it waits instead of an error.
var ErrNotConnected = WithClass(errors.New("not connected yet"), ClassOutage)

// ErrRefusedInBetween is the reason of a message that never reached the gateway: an
// intermediary, such as a proxy with a limit for the size of bodies, refused it
// again and again ([gateway.ErrIntermediary]) while others of its route passed.
var ErrRefusedInBetween = Permanent(errors.New("refused by an intermediary"))

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
	between  refusedBetween
}

func (t *retrying) run(h message.HandlerFunc) ([]*message.Message, error) {
	for {
		probe, ok := t.gate.enter(t.ctx)
		if !ok {
			return nil, t.interrupted(nil)
		}
		seen := t.gate.successes.Load()
		var wake <-chan struct{} // before the attempt: no return is missed
		if t.config.Recovered != nil {
			wake = t.config.Recovered()
		}
		out, err := t.attempt(h, probe)
		if err == nil {
			t.succeeded(probe)
			return out, nil
		}
		if next := t.failed(probe, seen, wake, err); next != nil {
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
	if t.between.times > 0 {
		t.gate.healed.Add(1)
	}
	if ended := t.gate.succeeded(); ended != nil {
		lasted := time.Since(ended.since)
		t.logger.Info("outage ended", watermill.LogFields{"route": t.config.Name, "lasted": lasted})
		observe(t.config.Observer, Event{Route: t.config.Name, Kind: EventOutageEnded, Context: t.ctx, Delay: lasted})
	}
}

// failed decides about a failure. It returns nil, after having waited, when the
// message is to be tried again.
func (t *retrying) failed(probe *outage, seen uint64, wake <-chan struct{}, err error) error {
	t.last = time.Now()
	if t.first.IsZero() {
		t.first = t.last
	}
	class := classifier(t.config.Classify).class(err)
	if class == ClassOutage && t.between.final(t.gate, err, t.last) {
		class, err = ClassPermanent, fmt.Errorf("%w: %w", ErrRefusedInBetween, err)
	}
	// What is cut short says nothing about the sink.
	interrupted := t.stopping() || t.ctx.Err() != nil && errors.Is(err, t.ctx.Err())
	if class != ClassOutage || errors.Is(err, ErrReserved) || interrupted {
		t.gate.passed(probe)
	}

	var delay time.Duration
	switch {
	case class == ClassPermanent, class == ClassRedeliver:
		t.others++
		return t.giveUp(class, err)
	case interrupted:
		t.others++
		return t.interrupted(err)
	case class == ClassOutage:
		t.others++
		if errors.Is(err, ErrReserved) {
			delay = reservedPolicy.Delay(t.others - 1)
			if t.putOff(err) {
				return t.giveUp(class, err)
			}
			break
		}
		how := failedDown
		switch {
		case errors.Is(err, ErrNotConnected):
			how = failedWaiting
		case errors.Is(err, gateway.ErrIntermediary), errors.Is(err, gateway.ErrForbidden):
			how = failedAnswered
		}
		closed, began, lasted := t.gate.failed(probe, seen, wake, how)
		switch {
		case began != nil:
			t.tellOutage(err, how == failedWaiting, began != probe)
		case lasted > 0:
			t.remind(err, lasted)
		}
		if !closed {
			delay = t.policy.Delay(t.others - 1)
		}
	case class == ClassShutdown:
		t.others++
		delay = t.policy.Delay(t.others - 1)
	default:
		class = ClassHandler
		t.failures++
		if t.failures >= t.config.MaxAttempts && !t.ended() {
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

// putOff has a message wait with its subscriber that has waited for its copy for some
// time, if the subscriber knows how: its goroutine, and its place in flight, are for others
// until then.
func (t *retrying) putOff(err error) bool {
	var reserved *ReservedError
	nack := msgctx.NackOf(t.ctx)
	if nack == nil || !errors.As(err, &reserved) || t.ended() {
		return false
	}
	waited := t.last.Sub(reserved.Since)
	if waited < waitInPlace {
		return false
	}
	delay := min(waited/2, reservedPolicy.Max)
	delay -= rand.N(delay / 4) // so that those who began together do not ask together
	nack.After(delay)
	observe(t.config.Observer, Event{
		Route: t.config.Name, Kind: EventRetry, Class: ClassOutage, Context: t.ctx, Err: err, Text: err.Error(),
		Attempt: t.failures + t.others, Delay: delay,
	})
	return true
}

// tellOutage logs that an outage began, or a wait for the first connection. first is
// false when such a wait has become an outage, of which observers know.
func (t *retrying) tellOutage(err error, waits, first bool) {
	text := RedactError(err, t.msg)
	if waits {
		t.logger.Info("waiting for the first connection; messages wait until then",
			watermill.LogFields{"route": t.config.Name, "reason": text})
	} else {
		t.logger.Error("outage began; messages wait until it ends",
			redacted(text), reminders.Fields(0, err).Add(watermill.LogFields{"route": t.config.Name}))
	}
	if first {
		observe(t.config.Observer, Event{
			Route: t.config.Name, Kind: EventOutageBegan, Class: ClassOutage, Context: t.ctx, Err: err, Text: text,
		})
	}
}

// remind logs that an outage continues.
func (t *retrying) remind(err error, lasted time.Duration) {
	t.logger.Error("outage continues; messages wait until it ends", redacted(RedactError(err, t.msg)),
		reminders.Fields(lasted, err).Add(watermill.LogFields{"route": t.config.Name, "waiting": t.gate.waiting.Load()}))
}

// Bounds of [ErrRefusedInBetween].
const (
	refusedTimes = 3
	refusedFor   = 5 * time.Minute
)

// refusedBetween counts how often an intermediary refused a message while others
// passed. While nobody passes it counts nothing: that is an outage. And when a
// message passes that had been refused as well, the refusals before that were an
// outage, and the count starts again.
type refusedBetween struct {
	times  int
	first  time.Time
	passed uint64 // gate.successes at the last refusal that counted
	healed uint64 // gate.healed at the first
}

// final takes in a failure and reports whether there were enough.
func (r *refusedBetween) final(g *gate, err error, now time.Time) bool {
	// What answers for the token endpoint has not seen the message.
	if !errors.Is(err, gateway.ErrIntermediary) || errors.Is(err, gateway.ErrToken) {
		return false
	}
	passed, healed := g.successes.Load(), g.healed.Load()
	switch {
	case r.times == 0 || r.healed != healed:
		*r = refusedBetween{times: 1, first: now, passed: passed, healed: healed}
		return false
	case r.passed == passed:
		return false
	}
	r.times, r.passed = r.times+1, passed
	return r.times >= refusedTimes && now.Sub(r.first) >= refusedFor
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

// ended reports whether the message cannot be tried again.
func (t *retrying) ended() bool { return t.ctx.Err() != nil || t.stopping() }

// stopping reports whether a shutdown is under way.
func (r *Retry) stopping() bool {
	select {
	case <-r.config.Stop:
		return true
	default:
		return r.config.stopping != nil && r.config.stopping()
	}
}

func (t *retrying) giveUp(class Class, err error) error {
	return &RetryError{Attempts: t.failures + t.others, First: t.first, Last: t.last, Class: class, Err: err}
}

// errMessageEnded is the reason of messages whose own context has ended without a
// shutdown: their subscriber has given them up, or a middleware around Retry has a limit.
var errMessageEnded = errors.New("the message's context has ended")

// interrupted is the error of a message that might have been tried again, had
// its context not ended or the Router not stopped.
func (t *retrying) interrupted(err error) error {
	class, cause := ClassShutdown, context.Cause(t.ctx)
	switch {
	case !t.stopping():
		class, cause = ClassRedeliver, fmt.Errorf("%w: %w", errMessageEnded, cause)
	case cause == nil:
		cause = ErrStopped
	}
	if err == nil {
		err = cause
	} else {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return t.giveUp(class, err)
}
