// Package poisonqueue is a poison queue in memory, for tests.
package poisonqueue

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/router"
)

// Queue is a [router.PoisonStore] and its publisher. The zero value is empty.
type Queue struct {
	mu       sync.Mutex
	messages []router.Poisoned
	last     int // the last ID
}

var _ router.PoisonStore = (*Queue)(nil)

// Publish implements message.Publisher. The topic of the queue is [router.DefaultPoisonTopic]; what goes to others is dropped.
func (q *Queue) Publish(topic string, messages ...*message.Message) error {
	if topic != router.DefaultPoisonTopic {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, msg := range messages {
		poisoned, _ := router.ParsePoisoned(msg.Copy())
		q.last++
		poisoned.ID = strconv.Itoa(q.last)
		q.messages = append(q.messages, poisoned)
	}
	return nil
}

// Close implements message.Publisher.
func (*Queue) Close() error { return nil }

// Copy returns another queue with the same messages.
func (q *Queue) Copy() *Queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	return &Queue{messages: slices.Clone(q.messages), last: q.last}
}

// All returns the messages.
func (q *Queue) All() []*message.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	var all []*message.Message
	for _, poisoned := range q.messages {
		all = append(all, poisoned.Message)
	}
	return all
}

// UUIDs returns the UUIDs of the messages.
func (q *Queue) UUIDs() []string {
	var uuids []string
	for _, msg := range q.All() {
		uuids = append(uuids, msg.UUID)
	}
	return uuids
}

// Messages implements [router.PoisonStore].
func (q *Queue) Messages(ctx context.Context) iter.Seq2[router.Poisoned, error] {
	return func(yield func(router.Poisoned, error) bool) {
		for _, poisoned := range q.Copy().messages {
			if err := ctx.Err(); !yield(poisoned, err) || err != nil {
				return
			}
		}
	}
}

// Get implements [router.PoisonStore].
func (q *Queue) Get(ctx context.Context, id string) (router.Poisoned, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i, err := q.find(ctx, id)
	if err != nil {
		return router.Poisoned{}, err
	}
	return q.messages[i], nil
}

func (q *Queue) find(ctx context.Context, id string) (int, error) {
	i := slices.IndexFunc(q.messages, func(p router.Poisoned) bool { return p.ID == id })
	if i < 0 {
		return 0, router.ErrNotInQueue
	}
	return i, ctx.Err()
}

// Delete implements [router.PoisonStore].
func (q *Queue) Delete(ctx context.Context, id string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	i, err := q.find(ctx, id)
	if err != nil {
		return err
	}
	q.messages = slices.Delete(q.messages, i, i+1)
	return nil
}
