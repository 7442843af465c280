package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/reminders"
	"github.com/agrimill/agrimill/sinks"
)

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
		var out []*message.Message
		// A panic from between this middleware and the recoverer must not take the turn of a probe along.
		err := guarded(func() (err error) {
			out, err = h(t.msg)
			return err
		})
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
	if t == nil || t.turn != nil || !t.gates.closed.Load() {
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

// begin is told that messages to the topic are published next; none if it is empty.
func (t *retrying) begin(topic string) {
	if t != nil {
		t.sending, t.seenTopic = topic, t.gates.counter(topic).Load()
	}
}

// yield returns a channel that is ready when the message is to wait elsewhere, if it can.
func (t *retrying) yield() (ready <-chan struct{}, stop func()) {
	if msgctx.NackOf(t.ctx) == nil {
		return nil, func() {}
	}
	if up := t.gates.stuck(t.putOff); up != nil {
		return up, func() {}
	}
	patience := waitInPlace
	if t.putOff { // it has waited
		patience = 0
	}
	limit, stop := context.WithTimeout(context.Background(), patience)
	return limit.Done(), stop
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
		d.leaveOutStored()
		t.topics = slices.Clone(d.made.topics)
	}
	// What is cut short says nothing about the sink.
	interrupted := t.stopping() || t.ctx.Err() != nil && errors.Is(err, t.ctx.Err())
	if class != ClassOutage || errors.Is(err, ErrReserved) || interrupted {
		t.passed()
	}

	switch class {
	case ClassPermanent, ClassRedeliver, ClassOutage, ClassShutdown:
		t.others++
	default: // an error of no other class is one of a handler
		class = ClassHandler
		t.failures++
	}
	switch {
	case class == ClassPermanent, class == ClassRedeliver:
		return t.giveUp(class, err)
	case interrupted:
		return t.interrupted(err)
	case class == ClassHandler && t.failures >= t.config.MaxAttempts && !t.ended():
		return t.giveUp(class, err)
	}
	delay, yields := t.delay(class, err)
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

// delay returns how long a message that has failed is to wait at least, or at which gate elsewhere.
func (t *retrying) delay(class Class, err error) (delay time.Duration, yields *gate) {
	switch {
	case errors.Is(err, ErrReserved) && class == ClassOutage:
		return reservedDelay(err, t.last), nil
	case class == ClassOutage:
		return t.outage(err)
	case class == ClassShutdown:
		return t.policy.Delay(t.others - 1), nil
	}
	return t.policy.Delay(t.failures - 1), nil
}

// reservedDelay is how long a message stays away that finds its key reserved: about as long as it has waited, by all its
// deliveries. The holder is handling it, so that is short at first.
func reservedDelay(err error, now time.Time) time.Duration {
	delay := reservedFirst
	if reserved, ok := errors.AsType[*reservedError](err); ok {
		delay = min(max(delay, now.Sub(reserved.since)), reservedMost)
	}
	return delay - rand.N(delay/4) // so that those who began together do not ask together
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
	case errors.Is(err, sinks.ErrNotConnected):
		how = failedWaiting
	case errors.Is(err, gateway.ErrIntermediary), errors.Is(err, gateway.ErrForbidden):
		how = failedAnswered
	}
	text := RedactError(err, t.msg)
	// The clock may have been set back since the last success.
	v := t.gates.failed(t.turn, outageFailure{
		topic: t.sending, seen: t.seen, seenTopic: t.seenTopic, wake: t.wake, how: how, text: text,
		alone: t.sending == "" && t.config.lastSuccess != nil && time.Since(t.config.lastSuccess()).Abs() < aloneFor,
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

func (t *retrying) remind(err error, lasted time.Duration) {
	t.logger.Error("outage continues; messages wait until it ends", redacted(RedactError(err, t.msg)),
		reminders.Fields(lasted, err).Add(watermill.LogFields{"route": t.config.Name, "waiting": t.gates.waiting.Load()}))
}

// pause waits; false means that the wait was cut short.
func (t *retrying) pause(d time.Duration) bool {
	t.gates.waiting.Add(1)
	defer t.gates.waiting.Add(-1)
	return sleep(t.ctx, t.config.Stop, d)
}

// ended reports whether the message cannot be tried again.
func (t *retrying) ended() bool { return t.ctx.Err() != nil || t.stopping() }

func (r *Retry) stopping() bool { return isStopping(r.config.Stop, r.config.ending) }

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
