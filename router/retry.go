package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/warnlog"
)

// Defaults of [RetrySettings].
const (
	defaultRetryAttempts       = 5
	defaultRetryInitialBackoff = 200 * time.Millisecond
	defaultRetryMaxBackoff     = 30 * time.Second
)

// RetrySettings determine how often and how fast a message is retried, as configured by
// the user of a [Router]. The zero value is ready for use.
type RetrySettings struct {
	// MaxAttempts is how many attempts there are at most, including the first; 1 means no retry. Only those count in
	// which the handler failed ([ClassHandler]). 0 means 5; negative is an error.
	MaxAttempts int `yaml:"max_attempts"`
	// InitialBackoff is the wait after the first failure. It doubles with each further one, up to MaxBackoff, and half of
	// it is random. 0 means 200 milliseconds; negative is an error.
	InitialBackoff time.Duration `yaml:"initial_backoff"`
	// MaxBackoff is the longest wait. It is how soon after an outage messages flow again, unless the sink reports its
	// recovery, which ends the wait. 0 means 30 seconds, or InitialBackoff if that is longer; less than InitialBackoff is an error.
	MaxBackoff time.Duration `yaml:"max_backoff"`
}

// RetryConfig configures a [Retry] that is used on its own. The zero value is ready
// for use.
type RetryConfig struct {
	// RetrySettings are the same as in [Config.Retry].
	RetrySettings
	// Stop, when closed, ends all waits, and the messages are nacked. A Router sets it.
	Stop <-chan struct{}
	// Recovered returns a channel that is closed when the handler's dependency is available again, which ends waits for
	// the end of an outage. It is called before every attempt and must not block. Nil means that only time ends them. A
	// Router sets it to that of the route's sink; see [sinks.Recovering].
	Recovered func() <-chan struct{}
	// Classify is [Config.Classify]. Nil means [ClassOf] alone.
	Classify func(error) (Class, bool)
	// Name identifies the route in logs and events. A Router sets it to the route's name.
	Name string
	// Observer is notified of retries and outages. It may be nil.
	Observer Observer

	// ending reports whether a shutdown has begun, perhaps a moment before Stop is closed.
	ending func() bool
	// lastSuccess tells when the route has last delivered a message. It may be nil.
	lastSuccess func() time.Time
}

// WithDefaults returns the settings with the defaults filled in.
func (c RetrySettings) WithDefaults() RetrySettings {
	c.MaxAttempts = cmp.Or(c.MaxAttempts, defaultRetryAttempts)
	c.InitialBackoff = cmp.Or(c.InitialBackoff, defaultRetryInitialBackoff)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, max(defaultRetryMaxBackoff, c.InitialBackoff))
	return c
}

// Validate reports every field with an invalid value; the error matches
// [ErrConfig].
func (c RetrySettings) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors
	validate.NotNegative(&e, "MaxAttempts", c.MaxAttempts)
	validate.NotNegative(&e, "InitialBackoff", c.InitialBackoff)
	e.Check(c.MaxBackoff >= c.InitialBackoff, "MaxBackoff", "must not be below %s", validate.Field("InitialBackoff"))
	return e.Err(ErrConfig)
}

// Retry is the middleware that retries, as the class of the error says ([ClassOf], and before it RetryConfig.Classify):
//
//   - permanent, redeliver: never.
//   - handler, a panic included: MaxAttempts times in all.
//   - outage: until it succeeds. One message at a time probes and the others wait, so a thousand in flight do not mean
//     a thousand calls per interval; RetryConfig.Recovered ends the wait. In a Router a topic that the sink refuses while
//     something else passes has an outage of its own: it is probed at least every 2 seconds, logged after 10, and in
//     [Retry.Refused]. Begin and end of an outage are logged; one that consists of responses, from an intermediary of
//     the gateway or with status 403, also after 1 and 5 minutes and then every hour, because nothing is visibly
//     down. A message that an intermediary refuses three times over five minutes, while others pass, is permanent.
//   - a copy of the message is being handled ([ErrReserved]): until that is done.
//   - shutdown, of an error that says so itself: until it succeeds.
//
// A message from this module's subscriber of the gateway that is to wait for longer than 150 ms is nacked, with
// [ClassRedeliver], which Watermill's Router logs as an error, and comes again, in the order of its key; its attempts count
// on. It stays while nothing passes at all known handlers of its subscriber, which holds that back. If messages failed before
// anything was published, they may be to blame: each probe that fails makes room for another one.
//
// When Stop is closed or the message's own context has ended, nothing is retried, because what failed then may have been
// interrupted: the class of the returned [*RetryError] is [ClassShutdown] if Stop is closed, else
// [ClassRedeliver]. A context that a middleware or handler further in has made and that has ended is a failure of the handler.
//
// A handler that does not return is waited for.
type Retry struct {
	config RetryConfig
	policy backoff.Policy
	logger watermill.LoggerAdapter

	mu      sync.Mutex
	gates   []*gates // one per use of Middleware
	company *company // of all gates, in a Router
}

// NewRetry returns the middleware, or an error that matches [ErrConfig]. A nil
// logger is silent.
func NewRetry(config RetryConfig, logger watermill.LoggerAdapter) (*Retry, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.RetrySettings = config.WithDefaults()
	logger = warnlog.Or(logger)
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

// errStopped is the reason of messages that were returned because the Router
// stops. Its class is [ClassShutdown].
var errStopped = decide(errors.New("router is stopping"), ClassShutdown)

// Middleware is the message.HandlerMiddleware.
func (r *Retry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	g := &gates{delay: r.policy.Delay, stop: r.config.Stop, company: &company{members: 1}}
	r.mu.Lock()
	r.gates = append(r.gates, g)
	r.mu.Unlock()
	return func(msg *message.Message) ([]*message.Message, error) {
		d := deliveryOf(msg)
		var t *retrying
		if d != nil && d.own.Retry == nil {
			t = &d.own // saves an allocation
		} else {
			t = &retrying{}
		}
		t.Retry, t.gates, t.msg, t.ctx = r, g, msg, msg.Context()
		return t.run(d, h)
	}
}

// share makes the handlers those of a source that others share. It is called before there are messages.
func (r *Retry) share(c *company) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.company = c
	for _, g := range r.gates {
		g.mu.Lock()
		g.company = c
		g.mu.Unlock()
		c.join()
	}
}

// waitingMessages returns how many messages wait in place for another attempt.
func (r *Retry) waitingMessages() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, g := range r.gates {
		n += int(g.waiting.Load())
	}
	return n
}

// outage returns when the current outage began, the oldest of several handlers', and when the sink is tried again; zero
// when there is none. Topics that are refused while others are not are no outage.
func (r *Retry) outage() (since, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.gates {
		if began, next := g.outage(); !began.IsZero() && (since.IsZero() || began.Before(since)) {
			since, until = began, next
		}
	}
	return since, until
}

// end tells observers of each outage that is on that it ends here: nothing is tried any longer, so what goes on after a reload
// begins anew.
func (r *Retry) end() {
	r.mu.Lock()
	all := slices.Clone(r.gates)
	r.mu.Unlock()
	for _, g := range all {
		if since := g.end(); !since.IsZero() {
			observe(r.config.Observer, Event{
				Route: r.config.Name, Kind: EventOutageEnded, Class: ClassShutdown, Context: context.Background(), Delay: time.Since(since),
			})
		}
	}
}

// RefusedTopic is a topic that the sink does not take messages for, while it takes others.
type RefusedTopic struct {
	Topic string `json:"topic"`
	// Since is when it was first refused, Until about when it is tried again, if messages wait
	// for it.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Error is the redacted text of the last failure.
	Error string `json:"error"`
}

// Refused returns the topics that are refused while other messages pass, the oldest
// first: at most 1,000, and none during an outage of everything. One that nobody has tried
// for a minute is left out.
func (r *Retry) Refused() []RefusedTopic {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []RefusedTopic
	for _, g := range r.gates {
		list = g.refused(list)
	}
	slices.SortFunc(list, func(a, b RefusedTopic) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Topic, b.Topic))
	})
	return list
}
