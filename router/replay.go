package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/isotime"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/validate"
)

// defaultReplayIdle is the default of [ReplayConfig.Idle].
const defaultReplayIdle = 5 * time.Second

// Errors of poisoned messages that cannot be replayed as things are. They stay in
// the queue. Their class is [ClassPermanent].
var (
	// ErrNoRoute: the message is to be replayed by a route that the Router does
	// not have.
	ErrNoRoute = Permanent(errors.New("router has no such route"))
	// ErrFiltered: the route's Filter does not want the message. Replaying it
	// would drop the only copy there is.
	ErrFiltered = Permanent(errors.New("the route's filter rejects the message"))
)

// errFilteredReplay takes a message that is not wanted out of the chain, which
// neither tries it again nor poisons it nor remembers it as handled.
var errFilteredReplay = WithClass(ErrFiltered, ClassRedeliver)

// Poisoned is a message of the poison queue.
type Poisoned struct {
	// ID names the message within a [PoisonStore]; empty otherwise.
	ID string
	// Message is the message as the poison queue holds it: its own payload and
	// metadata, and the KeyPoison… metadata. It must not be changed.
	Message *message.Message
	// The KeyPoison… metadata, read.
	Route, Topic, Reason, Class string
	Attempts, Count             int
	First, Last                 time.Time
	// Partial: it has reached some of its direct recipients, see [KeyPoisonPartial].
	Partial bool
	// Unreadable are the keys whose value is missing or cannot be read; Attempts, Count, First or Last
	// is zero then. The message can be replayed all the same.
	Unreadable []string
}

// ParsePoisoned reads the KeyPoison… metadata. It is false for a message that has at most a reason
// and a class, which [PoisonQueue] did not write. A value that cannot be read costs itself.
func ParsePoisoned(msg *message.Message) (Poisoned, bool) {
	meta := msg.Metadata
	p := Poisoned{
		Message: msg, Route: meta[KeyPoisonRoute], Topic: meta[KeyPoisonTopic],
		Reason: meta[KeyPoisonReason], Class: meta[KeyPoisonClass], Partial: meta[KeyPoisonPartial] != "",
	}
	ours := p.Route != "" || p.Topic != "" // an event in the quarantine has a reason and a class
	number := func(key string, to *int) {
		if n, err := strconv.Atoi(meta[key]); err == nil && n >= 0 {
			*to, ours = n, true
		} else {
			p.Unreadable = append(p.Unreadable, key)
		}
	}
	at := func(key string, to *time.Time) {
		if t, ok := isotime.Parse([]byte(meta[key])); ok {
			*to, ours = t, true
		} else {
			p.Unreadable = append(p.Unreadable, key)
		}
	}
	number(KeyPoisonAttempts, &p.Attempts)
	number(KeyPoisonCount, &p.Count)
	at(KeyPoisonFirst, &p.First)
	at(KeyPoisonLast, &p.Last)
	if !ours {
		p.Unreadable = nil // there is nothing to read
	}
	return p, ours
}

// ReplayAction is what is to be done with a poisoned message.
type ReplayAction int

const (
	// ReplayKeep puts the message back at the end of the queue.
	ReplayKeep ReplayAction = iota
	// ReplaySend handles the message again; one that has reached some of its recipients is kept
	// ([Poisoned].Partial).
	ReplaySend
	// ReplayDelete takes the message off the queue.
	ReplayDelete
	// ReplayForce handles the message again, also if some of its recipients have it.
	ReplayForce
)

// ReplayConfig configures [Router.Replay] and [ListPoisoned].
type ReplayConfig struct {
	// From reads the poison queue. Required. It is not closed.
	//
	// Replay takes messages off the queue by acknowledging them: From has to be
	// a subscription that remembers what it acknowledged and that all replays
	// share (Kafka: one consumer group; NATS: one durable consumer), beginning
	// with the first message. ListPoisoned acknowledges too, so it has to have
	// a subscription of its own that nobody else uses and that begins with the
	// first message, and it also shows what was replayed already, as long as
	// the broker keeps it.
	From message.Subscriber
	// Topic is the topic of the poison queue. Empty means [DefaultPoisonTopic].
	Topic string
	// Idle is how long nothing has to come until the queue counts as read to
	// its end. 0 means 5 seconds; negative is an error.
	Idle time.Duration
	// Decide says what is to be done with a message. Required for Replay.
	Decide func(Poisoned) ReplayAction
	// Route says which route handles a message that is sent. Nil means the one
	// that poisoned it.
	Route func(Poisoned) string
}

func (c *ReplayConfig) setDefaults() {
	c.Topic = cmp.Or(c.Topic, DefaultPoisonTopic)
	c.Idle = cmp.Or(c.Idle, defaultReplayIdle)
	if c.Decide == nil {
		c.Decide = func(Poisoned) ReplayAction { return ReplayKeep }
	}
	if c.Route == nil {
		c.Route = func(p Poisoned) string { return p.Route }
	}
}

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c ReplayConfig) Validate() error {
	var e validate.Errors
	e.Check(c.From != nil, "From", "is required")
	validate.NotNegative(&e, "Idle", c.Idle)
	return e.Err(ErrConfig)
}

// ReplayReport counts what became of the messages.
type ReplayReport struct {
	// Sent: handled again, with success; a Transform may have dropped it. Duplicates
	// among them had been handled before. Poisoned: handled again, and back in the queue with their history.
	Sent, Duplicates, Poisoned int
	// Kept: put back. Messages that PoisonQueue did not write are kept, and those of which the recipients that
	// have them would get another one: Partial of Kept.
	Kept, Partial int
	// Deleted: taken off.
	Deleted int
	// Reason is why the last message of Poisoned failed again, redacted.
	Reason string
}

// Replay reads the poison queue once and does with each message what
// config.Decide says. A message that is sent goes through the whole chain of its
// route and to the route's sink, as if it had just been received: an outage is
// waited for, a duplicate is recognized, and a failure puts it back into the
// queue, with its history going on.
//
// It ends when nothing has come for config.Idle, when it meets a message that it
// has put (back) into the queue itself, with ctx, or with the first message that can be neither
// handled nor put back; that one stays in the queue. Messages are taken one
// after the other. The routes have to be added; the Router may be running, but
// not closed.
func (r *Router) Replay(ctx context.Context, config ReplayConfig) (ReplayReport, error) {
	var report ReplayReport
	if err := config.Validate(); err != nil {
		return report, err
	}
	if config.Decide == nil {
		return report, fmt.Errorf("%w: replay: Decide is required", ErrConfig)
	}
	config.setDefaults()
	byName, err := r.openRoutes()
	if err != nil {
		return report, err
	}
	run := watermill.NewUUID()
	err = readQueue(ctx, config, r.stop, func(msg *message.Message) (bool, error) {
		if msg.Metadata[KeyPoisonReplay] == run {
			return false, nil
		}
		poisoned, ok := ParsePoisoned(msg)
		action := ReplayKeep
		if ok {
			action = config.Decide(poisoned)
		}
		if action == ReplaySend && poisoned.Partial {
			action = ReplayKeep
			report.Partial++
		}
		switch action {
		case ReplaySend, ReplayForce:
			if err := r.replayOne(ctx, byName, config.Route(poisoned), run, poisoned.ID, msg, &report); err != nil {
				return false, err
			}
		case ReplayDelete:
			report.Deleted++
		default:
			if err := r.putBack(ctx, config.Topic, run, msg); err != nil {
				return false, fmt.Errorf("replay: putting a message back: %w", err)
			}
			report.Kept++
		}
		msg.Ack()
		return true, nil
	})
	return report, err
}

// openRoutes returns the routes by name, or ErrClosed.
func (r *Router) openRoutes() (map[string]*route, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	byName := make(map[string]*route, len(r.routes))
	for _, rt := range r.routes {
		byName[rt.Name] = rt
	}
	return byName, nil
}

// replayOne takes a poisoned message through the chain of a route and counts what
// became of it.
func (r *Router) replayOne(ctx context.Context, byName map[string]*route, name, run, id string, msg *message.Message, report *ReplayReport) error {
	rt := byName[name]
	if rt == nil {
		return fmt.Errorf("%w: %q", ErrNoRoute, name)
	}
	d, err := rt.replay(ctx, run, id, msg)
	switch {
	case err != nil:
		return fmt.Errorf("replay: %w", err)
	case d.poisoned:
		report.Poisoned++
		report.Reason = d.replay.reason
	default:
		report.Sent++
		if d.duplicate {
			report.Duplicates++
		}
	}
	return nil
}

// replay takes a poisoned message through the chain. The work ends with ctx.
func (rt *route) replay(ctx context.Context, run, id string, msg *message.Message) (*delivery, error) {
	work := msg.Copy()
	work.Metadata[KeyPoisonReplay] = run // if it fails, this run is not to meet it again
	if own, ok := work.Metadata[KeyPoisonDedupID]; ok {
		work.Metadata[gateway.KeyDedupID] = own
	} else {
		delete(work.Metadata, gateway.KeyDedupID)
	}
	workCtx, cancel := context.WithCancel(msg.Context())
	defer cancel()
	unwatch := context.AfterFunc(ctx, cancel)
	defer unwatch()
	value := msgctx.Received(workCtx)
	value.Delivery = work.Metadata[KeyPoisonDelivery] // not its place in the queue
	if work.Metadata[KeyPoisonPayload] == payloadWasInline {
		if err := rt.payloads.checkOut(workCtx, work); err != nil {
			return nil, err
		}
		delete(work.Metadata, KeyPoisonPayload)
	} else if reference := work.Metadata[gateway.KeyPayloadReference]; reference != "" && rt.payloads.store != nil {
		// As the subscriber does, so that the handler finds it.
		value.Nack = nil
		value.Open = func(ctx context.Context) (io.ReadCloser, int64, error) {
			return rt.payloads.store.Open(ctx, reference)
		}
	}
	workCtx = msgctx.With(workCtx, value)
	work.SetContext(workCtx)
	d := &delivery{Context: workCtx, replay: &replayed{record: id}}
	err := rt.process(d, work)
	if err != nil && d.filtered {
		err = fmt.Errorf("route %q: %w", rt.Name, ErrFiltered)
	}
	return d, err
}

// putBack writes the message to the end of the queue.
func (r *Router) putBack(ctx context.Context, topic, run string, msg *message.Message) error {
	kept := msg.Copy()
	kept.Metadata[KeyPoisonReplay] = run
	// It is the same message in the same topic, and has to be stored again.
	delete(kept.Metadata, gateway.KeyDedupID)
	kept.SetContext(ctx)
	return r.config.Poison.Publish(topic, kept)
}

// ListPoisoned reads the poison queue once and calls show for each message,
// until nothing has come for config.Idle, show returns an error, or ctx ends.
// Messages that [PoisonQueue] did not write are shown with what they have.
// Decide and Route are not used.
func ListPoisoned(ctx context.Context, config ReplayConfig, show func(Poisoned) error) error {
	if err := config.Validate(); err != nil {
		return err
	}
	config.setDefaults()
	return readQueue(ctx, config, nil, func(msg *message.Message) (bool, error) {
		poisoned, _ := ParsePoisoned(msg)
		if err := show(poisoned); err != nil {
			return false, err
		}
		msg.Ack()
		return true, nil
	})
}

// readQueue calls handle for each message, until it says no, fails, or the queue
// is at its end. handle acknowledges what it is done with; the message with
// which the reading ends is nacked.
func readQueue(
	ctx context.Context, config ReplayConfig, stop <-chan struct{}, handle func(*message.Message) (bool, error),
) error {
	subscription, cancel := context.WithCancel(ctx)
	defer cancel()
	messages, err := config.From.Subscribe(subscription, config.Topic)
	if err != nil {
		return err
	}
	// The subscriber closes its channel when its context has ended, and must
	// not hang while it hands over a message.
	defer func() {
		cancel()
		for msg := range messages {
			msg.Nack()
		}
	}()
	idle := time.NewTimer(config.Idle)
	defer idle.Stop()
	for {
		select {
		case msg, ok := <-messages:
			if !ok {
				return ctx.Err()
			}
			more, err := handle(msg)
			if !more || err != nil {
				msg.Nack()
				return err
			}
			idle.Reset(config.Idle)
		case <-idle.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			return ErrClosed
		}
	}
}
