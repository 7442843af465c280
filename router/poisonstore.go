package router

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/validate"
)

// ErrNotInQueue says that the poison queue has no such message (any more).
var ErrNotInQueue = errors.New("no such message in the poison queue")

// PoisonStore is a poison queue that can be looked at without taking anything
// off, and from which any message can be taken. Packages
// stores/nats/poisonqueue and stores/kafka/poisonqueue have them for JetStream and
// Kafka, and router/poisonstoretest tests whether a store does what is said here.
// Any Watermill subscriber has [Router.Replay] and [ListPoisoned].
//
// Implementations are safe for concurrent use. IDs are theirs; they stay the same
// as long as the message is in the queue, and are not used again.
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
	// one that poisoned it. Only [Router.ReplaySelected] uses it.
	Route func(Poisoned) string
	// Force replays messages that have reached some of their direct recipients, too, which get them again. Only
	// [Router.ReplaySelected] uses it.
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

// deleteTimeout bounds the deletion of a message that was replayed: what is done
// is written down also when the replay is interrupted.
const deleteTimeout = 30 * time.Second

// ReplaySelected handles the selected messages of a poison queue again, one after
// the other, each as if it had just been received: it goes through the whole
// chain of its route and to the route's sink. An outage is waited for, a
// duplicate is recognized, and a failure puts the message into the queue again,
// under another ID, with its history going on. Only then is the old one
// deleted: one that was handled and not deleted, because the process was killed,
// is recognized as a duplicate by the next replay when the dedup store outlives
// the process, or by the sink's broker.
//
// Messages that PoisonQueue did not write are kept, and without selection.Force those that have reached some of their
// direct recipients ([Poisoned].Partial), as [ReplayReport] says. It ends with ctx, or with
// the first message that can be neither handled nor put back; that one stays.
// The routes have to be added; the Router need not run, and must not be closed.
func (r *Router) ReplaySelected(ctx context.Context, store PoisonStore, selection PoisonSelection) (ReplayReport, error) {
	var report ReplayReport
	byName, err := r.openRoutes()
	if err != nil {
		return report, err
	}
	run := watermill.NewUUID()
	for poisoned, err := range SelectPoisoned(ctx, store, selection) {
		if err != nil {
			return report, err
		}
		if _, ok := ParsePoisoned(poisoned.Message); !ok {
			report.Kept++
			continue
		}
		if poisoned.Partial && !selection.Force {
			report.Kept, report.Partial = report.Kept+1, report.Partial+1
			continue
		}
		name := poisoned.Route
		if selection.Route != nil {
			name = selection.Route(poisoned)
		}
		if err := r.replayOne(ctx, byName, name, run, poisoned.ID, poisoned.Message, &report); err != nil {
			return report, fmt.Errorf("poisoned message %q: %w", poisoned.ID, err)
		}
		if err := deleteReplayed(ctx, store, poisoned.ID); err != nil {
			return report, err
		}
	}
	return report, nil
}

func deleteReplayed(ctx context.Context, store PoisonStore, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	if err := store.Delete(ctx, id); err != nil && !errors.Is(err, ErrNotInQueue) {
		return fmt.Errorf("poisoned message %q was replayed and not deleted: %w", id, err)
	}
	return nil
}
