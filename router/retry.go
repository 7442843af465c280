package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
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
	defaultRetryAttempts       = 5
	defaultRetryInitialBackoff = 200 * time.Millisecond
	defaultRetryMaxBackoff     = 30 * time.Second
)

// RetrySettings determine how often and how fast a message is retried, as configured by
// the user of a [Router]. The zero value is ready for use.
type RetrySettings struct {
	// MaxAttempts is how many attempts there are at most, including the first; 1 means no retry. Only those count in which the
	// handler failed ([ClassHandler]), and none in an outage. 0 means
	// 5; negative is an error.
	MaxAttempts int `yaml:"max_attempts"`
	// InitialBackoff is the wait after the first failure. It doubles with each
	// further one, up to MaxBackoff, and half of it is random. 0 means
	// 200 milliseconds; negative is an error.
	InitialBackoff time.Duration `yaml:"initial_backoff"`
	// MaxBackoff is the longest wait. It is how soon after an outage messages flow again, unless the sink reports its
	// recovery, which ends the wait. 0 means 30 seconds, or
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
	// Classify is [Config.Classify]. Nil means [ClassOf] alone.
	Classify func(error) (Class, bool)
	// Name identifies the route in logs and events. A Router sets it to the route's name.
	Name string
	// Observer is notified of retries and outages. It may be nil.
	Observer Observer

	// stopping tells that a shutdown has begun, perhaps a moment before Stop does.
	stopping func() bool
	// lastSuccess tells when the route has last delivered a message. It may be nil.
	lastSuccess func() time.Time
}

// WithDefaults returns the settings with the defaults filled in.
func (c RetrySettings) WithDefaults() RetrySettings {
	c.setDefaults()
	return c
}

func (c *RetrySettings) setDefaults() {
	if c.MaxAttempts == 0 {
		c.MaxAttempts = defaultRetryAttempts
	}
	if c.InitialBackoff == 0 {
		c.InitialBackoff = defaultRetryInitialBackoff
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = max(defaultRetryMaxBackoff, c.InitialBackoff)
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

// Retry is the middleware that retries. [ClassOf], and before it RetryConfig.Classify,
// determines what is retried how often:
//
//   - permanent and redeliver: never
//   - handler: MaxAttempts times in all, each message with its own waits
//   - outage: until it succeeds. During an outage one message at a time
//     probes and the others wait, so a thousand messages in flight do not mean
//     a thousand calls per interval; if RetryConfig.Recovered signals recovery, they
//     are retried immediately. In a Router a topic that the sink refuses is one for itself,
//     as long as something else passes: it is probed at least every 2 seconds, is logged
//     after 10 seconds, and is in [Retry.Refused]. Otherwise it is an outage. The begin and the end of an outage are logged. One that
//     consists of responses, from an intermediary of the gateway or with
//     status 403, is also logged in between, after 1 and 5 minutes and then every
//     hour, because nothing is visibly down. A message that an
//     intermediary refuses three times over five minutes, while others pass, is
//     permanent.
//   - a copy of the message is being handled ([ErrReserved]): until that is done. It
//     waits in place for a moment, and then, if it comes from this module's
//     subscriber of the gateway, is nacked and comes again soon: it holds nothing
//     meanwhile, and keeps its order.
//   - shutdown, of an error that says so itself: until it succeeds, too.
//
// A message from this module's subscriber of the gateway that is to wait for longer than 150 ms is
// nacked, with [ClassRedeliver], and comes again, in the order of its key; its attempts count on.
// It stays only while nothing passes at all handlers of its subscriber, as far as the Router knows
// them, so that the subscriber is held back. If messages failed before anything was published, they may
// be to blame themselves: then each probe that fails makes room for another message.
//
// When Stop is closed or the message's own context has ended, nothing is retried: what
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
	gates []*gates // one per use of Middleware
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

// errStopped is the reason of messages that were returned because the Router
// stops. Its class is [ClassShutdown].
var errStopped = WithClass(errors.New("router is stopping"), ClassShutdown)

// ErrNotConnected is matched by the errors of what has not been reached since the start:
// a sink, say, that is made in the background. Its class is [ClassOutage], and [Retry]
// logs that it waits instead of an error.
var ErrNotConnected = WithClass(errors.New("not connected yet"), ClassOutage)

// errRefusedInBetween is the reason of a message that never reached the gateway: an
// intermediary, such as a proxy with a limit for the size of bodies, refused it
// again and again ([gateway.ErrIntermediary]) while others of its route passed.
var errRefusedInBetween = Permanent(errors.New("refused by an intermediary"))

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

// share makes the handlers those of a source that others share.
func (r *Retry) share(c *company) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.gates {
		g.mu.Lock()
		g.company = c
		g.mu.Unlock()
		c.join()
	}
}

// waitingMessages returns how many messages wait in place for another attempt now. Those that have
// been put off, to wait with their subscriber, are not among them.
func (r *Retry) waitingMessages() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, g := range r.gates {
		n += int(g.waiting.Load())
	}
	return n
}

// outageSince returns when the current outage began, and false when there is
// none. With several handlers under one Retry it is the oldest. Topics that are refused
// while others are not are no outage; see [Retry.Refused].
func (r *Retry) outageSince() (time.Time, bool) {
	since, _ := r.outage()
	return since, !since.IsZero()
}

// outage is outageSince, with when the sink is tried again.
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

// retrying is one message on its way through Retry.
type retrying struct {
	*Retry
	*attempts // nil until there is something to note
	gates     *gates
	msg       *message.Message
	ctx       context.Context
	turn      *turn // nil: it does not probe

	// Of the attempt that is made.
	seen      uint64
	seenTopic uint64
	sending   string // the topic that is published to; empty before, and after all are
	wake      <-chan struct{}
}

// attempts is what is kept of a message while it waits with its subscriber.
type attempts struct {
	of       *gates // set when it is kept
	failures int    // of the handler; these are what MaxAttempts limits
	others   int    // of anything else
	first    time.Time
	last     time.Time
	between  refusedBetween

	topics []string // that it goes to, as far as known
	again  bool     // an outage, not only a gate, has stopped it
	freed  bool     // a gate was opened by somebody else since
	odd    int      // how often it failed all the same
	putOff bool
	made   *keptProduct
}

func (t *retrying) run(d *delivery, h message.HandlerFunc) ([]*message.Message, error) {
	if nack := msgctx.NackOf(t.ctx); nack != nil {
		if kept, ok := nack.Kept().(*attempts); ok && kept.of == t.gates {
			again := *kept
			t.attempts = &again
			if d != nil && kept.made != nil {
				d.resume(kept.made)
			}
		}
	}
	for {
		if err := t.enter(d); err != nil {
			return nil, err
		}
		t.seen, t.sending = t.gates.successes.Load(), ""
		t.wake = nil
		if t.config.Recovered != nil {
			t.wake = t.config.Recovered() // before the attempt: no return is missed
		}
		if d != nil {
			d.retrying, d.sent, d.placed = t, 0, false
		}
		out, err := t.attempt(h)
		if err == nil {
			t.succeeded(d)
			return out, nil
		}
		if next := t.failed(d, err); next != nil {
			return nil, next
		}
		// Handlers may replace the context; the next attempt starts afresh.
		t.msg.SetContext(t.ctx)
	}
}

// enter waits until the message may be tried. Its error is that of a message that is not.
func (t *retrying) enter(d *delivery) error {
	for t.gates.closed.Load() {
		t.note()
		// A message of which nothing is known yet is held up where it is published: it may
		// go somewhere else, or nowhere.
		o := t.gates.at(t.topics, len(t.topics) > 0, t.again || d == nil || d.route.To == nil)
		if o == nil {
			return nil
		}
		if t.behind() && !t.ended() {
			return t.postpone(d, errTopicWaits, t.gates.comeBack(o, t.again))
		}
		yield, stop := t.yield()
		turn, result := t.gates.wait(t.ctx, o, t.again, yield)
		stop()
		switch result {
		case waitProbe:
			t.turn = turn
			return nil
		case waitOver:
			t.freed = t.again
		case waitYielded:
			switch {
			case t.mayPutOff():
				return t.postpone(d, errTopicWaits, t.gates.comeBack(o, t.again))
			case t.ended():
				return t.interrupted(nil)
			}
		default:
			return t.interrupted(nil)
		}
	}
	return nil
}

// note makes room for what is kept of the message. Most pass without.
func (t *retrying) note() {
	if t.attempts == nil {
		t.attempts = &attempts{}
	}
}

// placedAgain is how long a message stays away at least that failed when others of its key were on
// their way.
const placedAgain = 10 * time.Millisecond

// behind reports whether others of the message's key are on their way before it.
func (t *retrying) behind() bool {
	nack := msgctx.NackOf(t.ctx)
	return nack != nil && nack.Behind
}

// errTopicWaits is the reason of messages that wait although they were not tried themselves.
var errTopicWaits = WithClass(errors.New("the topic is refused at the moment"), ClassOutage)

// admit is asked before messages to these topics are published in an attempt. Its error
// means that they have to wait.
func (t *retrying) admit(topics []string) error {
	if t.turn != nil || !t.gates.closed.Load() {
		return nil
	}
	t.note()
	o := t.gates.at(topics, true, t.again)
	if o == nil {
		return nil
	}
	t.topics = slices.Clone(topics)
	if t.turn = t.gates.try(o, t.again); t.turn == nil {
		return errTopicWaits
	}
	return nil
}

// begin is told that messages to the topic are published next.
func (t *retrying) begin(topic string) { t.sending, t.seenTopic = topic, t.gates.counter(topic).Load() }

// yield returns a channel that is ready when the message is to wait elsewhere, if it can.
func (t *retrying) yield() (ready <-chan struct{}, stop func()) {
	if msgctx.NackOf(t.ctx) == nil {
		return nil, func() {}
	}
	if up := t.gates.stuck(t.putOff); up != nil {
		return up, func() {}
	}
	limit := make(chan struct{})
	if t.putOff { // it has waited
		close(limit)
		return limit, func() {}
	}
	timer := time.AfterFunc(waitInPlace, func() { close(limit) })
	return limit, func() { timer.Stop() }
}

// mayPutOff reports whether the message may wait with its subscriber: that is for as long as
// something else passes, or is to.
func (t *retrying) mayPutOff() bool {
	return msgctx.NackOf(t.ctx) != nil && !t.ended() && t.gates.stuck(t.putOff) == nil
}

// postpone returns the message to its subscriber, which delivers it again after delay and until
// then keeps neither a goroutine nor a place in flight for it.
func (t *retrying) postpone(d *delivery, err error, delay time.Duration) error {
	nack := msgctx.NackOf(t.ctx)
	t.putOff = true
	t.of = t.gates
	kept := *t.attempts
	if d != nil {
		kept.made = d.keep(t.msg)
	}
	nack.Keep(&kept)
	nack.After(delay)
	return t.giveUp(ClassRedeliver, err)
}

// attempt calls the handler. A panic from between this middleware and the
// recoverer becomes an error here: it must not take the turn of a probe along.
func (t *retrying) attempt(h message.HandlerFunc) (out []*message.Message, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if value := recover(); value != nil {
			out, err = nil, &PanicError{Value: value, Stack: debug.Stack()}
			return
		}
		t.passed() // runtime.Goexit: nobody comes after us
	}()
	out, err = h(t.msg)
	returned = true
	return out, err
}

// passed gives the turn on, if the message has it.
func (t *retrying) passed() {
	t.gates.passed(t.turn)
	t.turn = nil
}

func (t *retrying) succeeded(d *delivery) {
	if d != nil && !d.touched {
		t.passed()
		return
	}
	if t.attempts != nil && t.between.times > 0 {
		t.gates.healed.Add(1)
	}
	var topics []string
	if d != nil {
		topics = d.stored()
	}
	t.reached(topics)
	t.passed()
}

// reached tells the gates that something has succeeded.
func (t *retrying) reached(topics []string) {
	for _, o := range t.gates.reached(topics) {
		lasted := time.Since(o.since)
		if o.topic != "" {
			if o.listed {
				t.logger.Info("the sink takes messages of the topic again", watermill.LogFields{
					"route": t.config.Name, "topic": capText(o.topic, maxFieldLength), "lasted": lasted,
				})
			}
			continue
		}
		t.logger.Info("outage ended", watermill.LogFields{"route": t.config.Name, "lasted": lasted})
		observe(t.config.Observer, Event{Route: t.config.Name, Kind: EventOutageEnded, Context: t.ctx, Delay: lasted})
	}
}

// failed decides about a failure. It returns nil, after having waited, when the
// message is to be tried again.
func (t *retrying) failed(d *delivery, err error) error {
	t.note()
	if errors.Is(err, errTopicWaits) {
		t.passed()
		return nil // it has not failed
	}
	if errors.Is(err, errHalted) {
		t.passed()
		return t.postpone(d, err, placedAgain)
	}
	t.last = time.Now()
	if t.first.IsZero() {
		t.first = t.last
	}
	class := classifier(t.config.Classify).class(err)
	if class == ClassOutage && t.between.final(t.gates, err, t.last) {
		class, err = ClassPermanent, fmt.Errorf("%w: %w", errRefusedInBetween, err)
	}
	if d != nil && d.sent > 0 {
		t.reached(d.stored()) // of what it made, some was stored
	}
	// What is cut short says nothing about the sink.
	interrupted := t.stopping() || t.ctx.Err() != nil && errors.Is(err, t.ctx.Err())
	if class != ClassOutage || errors.Is(err, ErrReserved) || interrupted {
		t.passed()
	}

	delay, yields, final := t.delay(&class, err, interrupted)
	if final != nil {
		return final
	}
	if t.ended() {
		return t.interrupted(err)
	}
	if t.config.Observer != nil {
		t.config.Observer.Observe(Event{
			Route: t.config.Name, Kind: EventRetry, Class: class, Context: t.ctx, Message: t.msg, Err: err, Text: RedactError(err, t.msg),
			Attempt: t.failures + t.others, Delay: delay,
		})
	}
	return t.wait(d, err, delay, yields)
}

// delay returns how long a message that has failed is to wait at least, or at which gate elsewhere; final is the error
// with which it is given up, if it is. Errors of no other class are those of a handler.
func (t *retrying) delay(class *Class, err error, interrupted bool) (delay time.Duration, yields *gate, final error) {
	switch {
	case *class == ClassPermanent, *class == ClassRedeliver:
		t.others++
		return 0, nil, t.giveUp(*class, err)
	case interrupted:
		t.others++
		return 0, nil, t.interrupted(err)
	case *class == ClassOutage && errors.Is(err, ErrReserved):
		t.others++
		if t.putOffReserved(err) {
			return 0, nil, t.giveUp(*class, err)
		}
		return reservedPolicy.Delay(t.others - 1), nil, nil
	case *class == ClassOutage:
		t.others++
		delay, yields = t.outage(err)
		return delay, yields, nil
	case *class == ClassShutdown:
		t.others++
		return t.policy.Delay(t.others - 1), nil, nil
	}
	*class = ClassHandler
	t.failures++
	if t.failures >= t.config.MaxAttempts && !t.ended() {
		return 0, nil, t.giveUp(*class, err)
	}
	return t.policy.Delay(t.failures - 1), nil, nil
}

// wait waits before the next attempt. It returns an error if the message is to wait elsewhere.
func (t *retrying) wait(d *delivery, err error, delay time.Duration, yields *gate) error {
	switch {
	case d != nil && d.placed || t.behind():
		// It has to wait for what becomes of those that have their places behind it, and lets
		// those go first that are before it.
		return t.postpone(d, err, max(delay, placedAgain))
	case yields != nil && msgctx.NackOf(t.ctx) != nil:
		return t.postpone(d, err, t.gates.comeBack(yields, true))
	case delay <= 0:
	case delay > waitInPlace && t.mayPutOff():
		return t.postpone(d, err, delay)
	case !t.pause(delay):
		return t.interrupted(err)
	}
	return nil
}

// outage takes in a failure of something that is down, and returns how long the message is
// to wait before it may wait at a gate, or the gate that it is to wait for elsewhere.
func (t *retrying) outage(err error) (delay time.Duration, yields *gate) {
	how := failedDown
	switch {
	case errors.Is(err, ErrNotConnected):
		how = failedWaiting
	case errors.Is(err, gateway.ErrIntermediary), errors.Is(err, gateway.ErrForbidden):
		how = failedAnswered
	}
	text := RedactError(err, t.msg)
	v := t.gates.failed(t.turn, outageFailure{
		topic: t.sending, seen: t.seen, seenTopic: t.seenTopic, wake: t.wake, how: how, text: text,
		alone: t.sending == "" && t.config.lastSuccess != nil && time.Since(t.config.lastSuccess()) < aloneFor,
	})
	t.turn, t.again = nil, true
	if len(t.topics) == 0 && t.sending != "" {
		t.topics = []string{t.sending}
	}
	switch {
	case v.began != nil:
		t.tellOutage(err, how == failedWaiting, v.first)
	case v.lasted > 0:
		t.remind(err, v.lasted)
	case v.refused != nil:
		t.logger.Error("the sink refuses messages of the topic; they wait, others pass", redacted(text),
			reminders.Fields(time.Since(v.refused.since), err).Add(watermill.LogFields{
				"route": t.config.Name, "topic": capText(v.refused.topic, maxFieldLength),
			}))
	}
	freed := t.freed
	t.freed = false
	if !v.closed || freed {
		// It was not the sink's being down that it failed of: others have passed. What it waited
		// for before does not count.
		t.odd++
		return t.policy.Delay(t.odd - 1), nil
	}
	return 0, v.yields
}

// putOffReserved has a message wait with its subscriber that has waited for its copy for some
// time, if the subscriber knows how: its goroutine, and its place in flight, are for others
// until then.
func (t *retrying) putOffReserved(err error) bool {
	var reserved *reservedError
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
	if until := nack.After(delay); reserved.waits != nil {
		reserved.waits.putOff(reserved, until)
	}
	observe(t.config.Observer, Event{
		Route: t.config.Name, Kind: EventRetry, Class: ClassOutage, Context: t.ctx, Message: t.msg, Err: err, Text: err.Error(),
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
		reminders.Fields(lasted, err).Add(watermill.LogFields{"route": t.config.Name, "waiting": t.gates.waiting.Load()}))
}

// Bounds of errRefusedInBetween.
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
	passed uint64 // gates.successes at the last refusal that counted
	healed uint64 // gates.healed at the first
}

// final takes in a failure and reports whether there were enough.
func (r *refusedBetween) final(g *gates, err error, now time.Time) bool {
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
	t.gates.waiting.Add(1)
	defer t.gates.waiting.Add(-1)
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
		cause = errStopped
	}
	if err == nil {
		err = cause
	} else {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return t.giveUp(class, err)
}
