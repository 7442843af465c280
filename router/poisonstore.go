package router

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/agrimill/agrimill/internal/validate"
)

// ErrNotInQueue says that the poison queue has no such message (any more).
var ErrNotInQueue = errors.New("no such message in the poison queue")

// PoisonStore is a poison queue that can be looked at without taking anything off, and from which any message can be
// taken. Packages stores/nats/poisonqueue and stores/kafka/poisonqueue have them, and router/poisonstoretest tests what is said here.
//
// Implementations are safe for concurrent use. IDs stay the same as long as the message is in the queue, and are not used again.
type PoisonStore interface {
	// Messages yields what is in the queue when the iteration begins, oldest
	// first, also what [PoisonQueue] did not write. After an error nothing
	// follows.
	Messages(ctx context.Context) iter.Seq2[Poisoned, error]
	// Get returns one message; the error matches [ErrNotInQueue] when it is not
	// there.
	Get(ctx context.Context, id string) (Poisoned, error)
	// Delete takes one message off for good; the error matches [ErrNotInQueue]
	// when it is not there.
	Delete(ctx context.Context, id string) error
}

// PoisonSelection says which messages of a [PoisonStore] are meant. One of All,
// IDs and Filter is required, so that forgetting it means nothing and not
// everything.
type PoisonSelection struct {
	// All means every message.
	All bool
	// IDs means the messages with these IDs ([Poisoned.ID]), in this order. One
	// that is not there is an error that matches [ErrNotInQueue].
	IDs []string
	// Filter means the messages for which it returns true; together with IDs,
	// of those. It gets messages that [PoisonQueue] did not write too, with what
	// they have. It must not change the message.
	Filter func(Poisoned) bool
	// Route says which route handles a message that is replayed. Nil means the
	// one that poisoned it. Only [Router.Replay] uses it.
	Route func(Poisoned) string
	// Force replays messages that have reached some of their direct recipients, too, which get them again. Only
	// [Router.Replay] uses it.
	Force bool
}

// Validate reports what is not allowed; the error matches [ErrConfig].
func (s PoisonSelection) Validate() error {
	var e validate.Errors
	e.Check(s.All || len(s.IDs) > 0 || s.Filter != nil, "", "needs one of All, IDs and Filter")
	e.Check(!s.All || len(s.IDs) == 0 && s.Filter == nil, "All", "excludes IDs and Filter")
	return e.Err(ErrConfig)
}

// SelectPoisoned yields the messages of the queue that are selected. After an
// error nothing follows.
func SelectPoisoned(ctx context.Context, store PoisonStore, selection PoisonSelection) iter.Seq2[Poisoned, error] {
	return func(yield func(Poisoned, error) bool) {
		if err := selection.Validate(); err != nil {
			yield(Poisoned{}, err)
			return
		}
		messages := store.Messages(ctx)
		if len(selection.IDs) > 0 {
			messages = byID(ctx, store, slices.Clone(selection.IDs))
		}
		for poisoned, err := range messages {
			if err != nil {
				yield(Poisoned{}, err)
				return
			}
			if selection.Filter != nil && !selection.Filter(poisoned) {
				continue
			}
			if !yield(poisoned, nil) {
				return
			}
		}
	}
}

func byID(ctx context.Context, store PoisonStore, ids []string) iter.Seq2[Poisoned, error] {
	return func(yield func(Poisoned, error) bool) {
		for _, id := range ids {
			poisoned, err := store.Get(ctx, id)
			if err != nil {
				err = fmt.Errorf("poisoned message %q: %w", id, err)
			}
			if !yield(poisoned, err) || err != nil {
				return
			}
		}
	}
}

// DeletePoisoned deletes the selected messages from the queue and returns how many
// it deleted. A payload of theirs in a claim check stays there.
func DeletePoisoned(ctx context.Context, store PoisonStore, selection PoisonSelection) (int, error) {
	deleted := 0
	for poisoned, err := range SelectPoisoned(ctx, store, selection) {
		if err != nil {
			return deleted, err
		}
		switch err := store.Delete(ctx, poisoned.ID); {
		case errors.Is(err, ErrNotInQueue): // somebody was faster
		case err != nil:
			return deleted, fmt.Errorf("deleting poisoned message %q: %w", poisoned.ID, err)
		default:
			deleted++
		}
	}
	return deleted, nil
}
