package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

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
var errFilteredReplay = decide(ErrFiltered, ClassRedeliver)

// ReplayReport counts what became of the messages.
type ReplayReport struct {
	// Sent: handled again, with success; a Transform may have dropped it. Duplicates
	// among them had been handled before. Poisoned: handled again, and back in the queue with their history.
	Sent, Duplicates, Poisoned int
	// Kept: left in the queue. Messages that PoisonQueue did not write are kept, and those of which the recipients that
	// have them would get another one: Partial of Kept.
	Kept, Partial int
	// Reason is why the last message of Poisoned failed again, redacted.
	Reason string
}

// deleteTimeout bounds the deletion of a message that was replayed: what is done
// is written down also when the replay is interrupted.
const deleteTimeout = 30 * time.Second

// Replay handles the selected messages of a poison queue again, one after the other, each as if its route had just received
// it: an outage is waited for, a duplicate is recognized, and a failure puts the message into the queue again, under
// another ID, with its history going on. Only then is the old one deleted: one that was handled and not deleted, because
// the process was killed, is recognized by the next replay when the dedup store outlives the process, or by the
// sink's broker.
//
// Some are kept, as [ReplayReport] says; selection.Force replays those with [Poisoned].Partial. It ends with ctx, or with the
// first message that can be neither handled nor put back; that one stays. The routes have to be added; the Router
// need not run, and must not be closed.
func (r *Router) Replay(ctx context.Context, store PoisonStore, selection PoisonSelection) (ReplayReport, error) {
	var report ReplayReport
	byName, err := r.openRoutes()
	if err != nil {
		return report, err
	}
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
		if err := r.replayOne(ctx, byName, name, poisoned, &report); err != nil {
			return report, fmt.Errorf("poisoned message %q: %w", poisoned.ID, err)
		}
		if err := deleteReplayed(ctx, store, poisoned); err != nil {
			return report, err
		}
	}
	return report, nil
}

// deleteReplayed deletes a message, unless its place has another one: the outage that its replay has waited for may have been that of the
// queue, whose server then came back without its latest records, and took others since.
func deleteReplayed(ctx context.Context, store PoisonStore, poisoned Poisoned) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	now, err := store.Get(ctx, poisoned.ID)
	switch {
	case err != nil:
	case now.Message.UUID == poisoned.Message.UUID && maps.Equal(now.Message.Metadata, poisoned.Message.Metadata): // handlers may have changed the payload
		err = store.Delete(ctx, poisoned.ID)
	default:
		err = ErrNotInQueue
	}
	if err != nil && !errors.Is(err, ErrNotInQueue) {
		return fmt.Errorf("poisoned message %q was replayed and not deleted: %w", poisoned.ID, err)
	}
	return nil
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
func (r *Router) replayOne(ctx context.Context, byName map[string]*route, name string, poisoned Poisoned, report *ReplayReport) error {
	rt := byName[name]
	if rt == nil {
		return fmt.Errorf("%w: %q", ErrNoRoute, name)
	}
	d, err := rt.replay(ctx, poisoned)
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
func (rt *route) replay(ctx context.Context, poisoned Poisoned) (*delivery, error) {
	work := poisoned.Message.Copy()
	if own, ok := work.Metadata[KeyPoisonDedupID]; ok {
		work.Metadata[gateway.KeyDedupID] = own
	} else {
		delete(work.Metadata, gateway.KeyDedupID)
	}
	workCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	value := msgctx.Value{Delivery: work.Metadata[KeyPoisonDelivery]}
	if work.Metadata[KeyPoisonPayload] == payloadWasInline {
		if err := rt.payloads.checkOut(workCtx, work); err != nil {
			return nil, err
		}
		delete(work.Metadata, KeyPoisonPayload)
	} else if reference := work.Metadata[gateway.KeyPayloadReference]; reference != "" && rt.payloads.store != nil {
		// As the subscriber does, so that the handler finds it.
		value.Open = func(ctx context.Context) (io.ReadCloser, int64, error) {
			return rt.payloads.store.Open(ctx, reference)
		}
	}
	workCtx = msgctx.WithReplayed(msgctx.With(workCtx, value))
	work.SetContext(workCtx)
	d := &delivery{Context: workCtx, replay: &replayed{record: poisoned.ID}}
	err := rt.process(d, work)
	if err != nil && d.filtered {
		err = fmt.Errorf("route %q: %w", rt.Name, ErrFiltered)
	}
	return d, err
}
