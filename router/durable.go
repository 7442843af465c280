package router

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/sinks"
)

// Durable is what a message has to survive before its source may forget it.
type Durable int

const (
	// DurableAcknowledged: it is as durable as the sink says, see [sinks.Description].
	DurableAcknowledged Durable = iota
	// DurableSynced: it survives a power cut of the broker. Its confirmation waits as long as [sinks.Description].Synced says,
	// and if the broker did not run on until then, the message comes again.
	DurableSynced
)

var durables = []string{"acknowledged", "synced"}

// String returns acknowledged or synced.
func (d Durable) String() string { return enum.Text(d, durables) }

// UnmarshalText reads what String returns.
func (d *Durable) UnmarshalText(text []byte) error { return enum.Parse(d, text, durables) }

// Errors of a route with [DurableSynced]. Messages wait, as in an outage.
var (
	errSyncUnknown = WithClass(errors.New("nobody has said when what the sink acknowledged survives a power cut"), ClassOutage)
	errNotTold     = WithClass(errors.New("the sink has an interval in which its broker syncs, and no way to find out whether that ran on"), ClassOutage)
	errNoHold      = WithClass(errors.New("the source forgets a message with its ack, and cannot wait until the sink has synced it"), ClassOutage)
)

// durable is what a route with DurableSynced waits for: its sink, and the poison queue.
type durable struct {
	sinks [2]sinks.Sink
	known atomic.Pointer[known]
}

// known is what the sinks said.
type known struct {
	at      time.Time
	horizon *msgctx.Horizon // nil if nothing has to be waited for
	err     error           // nobody knows
}

// knownFor is how long they are not asked again: to describe itself costs a sink a microsecond.
const knownFor = 100 * time.Millisecond

// newDurable returns nil for other routes.
func newDurable(route *Route, poison any) (*durable, error) {
	switch route.Durable {
	case DurableAcknowledged:
		return nil, nil //nolint:nilnil // nothing has to be waited for
	case DurableSynced:
	default:
		return nil, fmt.Errorf("%w: route %q: Durable must be one of the named constants", ErrConfig, route.Name)
	}
	poisonSink, ok := poison.(sinks.Sink)
	switch {
	case route.To == nil:
		return nil, fmt.Errorf("%w: route %q: Durable needs To", ErrConfig, route.Name)
	case !ok:
		return nil, fmt.Errorf("%w: route %q: Durable needs a poison queue that is a sink, too", ErrConfig, route.Name)
	}
	return &durable{sinks: [2]sinks.Sink{route.To, poisonSink}}, nil
}

// after returns for how long the confirmation of what is stored has to wait. An error says that nobody knows.
func (w *durable) after() (after time.Duration, err error) {
	for _, sink := range w.sinks {
		synced := sink.Describe().Synced
		if !synced.Known() {
			return 0, errSyncUnknown
		}
		if _, tells := sinks.As[sinks.Syncing](sink); synced.After() > 0 && !tells {
			return 0, errNotTold
		}
		after = max(after, synced.After())
	}
	return after, nil
}

// check returns an error if the message of d must not be stored, because nobody could tell when it is durable.
func (w *durable) check(d *delivery) error {
	if w == nil || d.replay != nil {
		return nil
	}
	if nack := d.value.Nack; nack == nil || !nack.Holds {
		return errNoHold
	}
	return w.now().err
}

// horizon returns what the confirmation of d waits for, so that what it has stored survives a power cut; nil if it does not wait.
// The sinks are asked once: [Dedup] must not record what then waits, nor leave to be recorded later what then does not.
func (d *delivery) horizon() *msgctx.Horizon {
	if d == nil || d.route.durable == nil || d.value.Nack == nil || !d.touched && !d.poisoned {
		return nil
	}
	if d.durable == nil {
		d.durable = d.route.durable.now()
	}
	return d.durable.horizon
}

// now returns what the sinks say.
func (w *durable) now() *known {
	last := w.known.Load()
	if last != nil && time.Since(last.at) < knownFor {
		return last
	}
	after, err := w.after()
	k := &known{at: time.Now(), err: err}
	if err != nil {
		after = time.Second // it has changed meanwhile: it is asked about until it is known
	}
	switch {
	case after == 0:
	case last != nil && last.horizon != nil && last.horizon.After == after:
		k.horizon = last.horizon
	default:
		k.horizon = &msgctx.Horizon{After: after, Survives: w.survive}
	}
	w.known.Store(k)
	return k
}

// survive is that of [sinks.Syncing] for all sinks.
func (w *durable) survive(began, acked time.Time) (bool, error) {
	all := true
	for _, sink := range w.sinks {
		synced := sink.Describe().Synced
		if synced.Known() && synced.After() == 0 {
			continue
		}
		is := false
		if syncing, tells := sinks.As[sinks.Syncing](sink); tells && synced.Known() {
			var err error
			if is, err = syncing.Survives(began, acked); err != nil {
				return false, err
			}
		}
		all = all && is
	}
	return all, nil
}
