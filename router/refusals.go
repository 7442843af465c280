package router

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// refusedPause is the wait before a message is returned that the poison queue
// will not take however often it is asked.
var refusedPause = backoff.Policy{Initial: 10 * time.Second, Max: 10 * time.Minute}

// maxRefusals bounds how many refused messages are remembered. One that is
// forgotten is logged again.
const maxRefusals = 1024

// refusals counts how often each message was refused.
type refusals struct {
	partial atomic.Bool // of one, some recipients have it

	mu  sync.Mutex
	all *simplelru.LRU[refusedMessage, refusal] // nil before the first
}

// refusedMessage is a message in all its deliveries to a route, as far as its subscriber names it.
type refusedMessage struct{ route, name string }

type refusal struct {
	times  int
	reason error // that it has reached only some of its recipients; nil if it has not
}

func refusedOf(ctx context.Context, route string, msg *message.Message) refusedMessage {
	return refusedMessage{route, cmp.Or(msgctx.Delivery(ctx), msg.UUID)}
}

// add counts one more for a message, which was poisoned for that reason, and returns how often it was refused before.
func (r *refusals) add(m refusedMessage, reason error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all, _ = simplelru.NewLRU[refusedMessage, refusal](maxRefusals, nil) // it fails without a size
	}
	before, _ := r.all.Peek(m)
	now := refusal{times: before.times + 1}
	if m.name != "" && errors.Is(reason, gateway.ErrPartialDelivery) { // without a name it could be another message
		now.reason = reason
		r.partial.Store(true)
	}
	r.all.Add(m, now)
	return before.times
}

// partialDelivery returns why a message was refused that has reached some of its recipients: it must not be handled again. Else nil.
func (r *refusals) partialDelivery(m refusedMessage) error {
	if !r.partial.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known, _ := r.all.Peek(m)
	return known.reason
}

// forget forgets a message that was taken.
func (r *refusals) forget(m refusedMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all != nil {
		r.all.Remove(m)
	}
}
