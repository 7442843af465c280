package router

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/isotime"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// Poisoned is a message of the poison queue.
type Poisoned struct {
	// ID names the message within its [PoisonStore].
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

func (p *PoisonQueue) envelope(ctx context.Context, route string, msg *message.Message, class Class, reason error) *message.Message {
	now := time.Now()
	attempts, first, last := 1, now, now
	text := reason
	if retried, ok := errors.AsType[*RetryError](reason); ok {
		attempts, first, last = retried.Attempts, retried.First, retried.Last
		text = retried.Err // the number of attempts has its own key
	}

	poisoned := msg.Copy()
	meta := poisoned.Metadata
	before, again := ParsePoisoned(msg)
	count := 1 + before.Count
	if attempts += before.Attempts; again {
		count = max(count, 2)
	}
	if before.First.IsZero() {
		delete(meta, KeyPoisonFirst)
	}
	meta[KeyPoisonReason] = RedactError(text, msg)
	meta[KeyPoisonClass] = class.String()
	meta[KeyPoisonRoute] = route
	// A message that is replayed was not received by a subscriber this time.
	if topic := message.SubscribeTopicFromCtx(ctx); topic != "" || count == 1 {
		meta[KeyPoisonTopic] = topic
		meta[KeyPoisonSubscriber] = message.SubscriberNameFromCtx(ctx)
	}
	meta[KeyPoisonAttempts] = strconv.Itoa(attempts)
	if meta[KeyPoisonFirst] == "" {
		meta[KeyPoisonFirst] = first.UTC().Format(time.RFC3339Nano)
	}
	meta[KeyPoisonLast] = last.UTC().Format(time.RFC3339Nano)
	meta[KeyPoisonCount] = strconv.Itoa(count)
	switch {
	case errors.Is(reason, gateway.ErrPartialDelivery):
		meta[KeyPoisonPartial] = "true"
	case count == 1: // somebody else's
		delete(meta, KeyPoisonPartial)
	}

	// The same message may be poisoned by several routes and, after a replay,
	// several times: all of these are to be kept.
	if id, ok := meta[gateway.KeyDedupID]; ok {
		meta[KeyPoisonDedupID] = id
		delete(meta, gateway.KeyDedupID)
	}
	delete(meta, KeyPoisonDelivery)
	if name := msgctx.Delivery(ctx); name != "" {
		meta[KeyPoisonDelivery] = name
	}
	// Without a name for the delivery a copy is kept: it may be what the sender has sent
	// again after this record was dropped.
	if id, ok := dedupIDOf(ctx); ok && id.named {
		meta[gateway.KeyDedupID] = KeyOf("poison", route, id.key.String(), strconv.Itoa(count)).String()
	}
	return poisoned
}
