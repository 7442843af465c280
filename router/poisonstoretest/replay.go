package poisonstoretest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// replayer is a Router with the route "farm", which replays from a queue.
type replayer struct {
	*router.Router
	arrived testkit.Publisher
	mu      sync.Mutex
	failure error
}

func (b *bench) replayer() *replayer {
	b.Helper()
	r := &replayer{}
	var err error
	if r.Router, err = router.New(router.Config{Poison: b.Sink, PoisonTopic: b.Topic}, nil); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.Close() })
	transform := func(msg *message.Message) ([]*message.Message, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return []*message.Message{msg}, r.failure
	}
	from := gochannel.NewGoChannel(gochannel.Config{}, nil) // nothing is received
	testkit.NoError(b, r.Add(router.Route{Name: "farm", From: from, Topic: "in", To: sinks.FromPublisher("to", &r.arrived, sinks.PublisherConfig{}), ToTopic: "to", Transform: transform}))
	return r
}

func (r *replayer) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = err
}

func (b *bench) wantReplay(r *replayer, store router.PoisonStore, selection router.PoisonSelection, want router.ReplayReport) {
	b.Helper()
	got, err := r.Replay(b.Context(), store, selection)
	got.Reason = ""
	if err != nil || got != want {
		b.Errorf("replay: %+v, %v; want %+v", got, err, want)
	}
}

// What is replayed arrives once and is gone, also for another process.
func (s Suite) replay(t *testing.T) {
	b := s.bench(t)
	r := b.replayer()
	b.poison("one", "two", "three")
	b.publish(b.Topic, foreign())
	all := list(t, b.Store)
	b.wantReplay(r, b.Store, router.PoisonSelection{IDs: []string{all[1].ID}}, router.ReplayReport{Sent: 1})
	b.want(b.Store, "one", "three", "foreign")
	b.wantReplay(r, b.Peer(t), router.PoisonSelection{All: true}, router.ReplayReport{Sent: 2, Kept: 1})
	b.want(b.Store, "foreign")
	var got []string
	for _, msg := range r.arrived.Messages("to") {
		got = append(got, string(msg.Payload))
		if msg.Metadata[router.KeyPoisonReason] != "" || msg.Metadata[gateway.KeyTenantID] != "tenant" {
			t.Errorf("arrived with %v", msg.Metadata)
		}
	}
	if !slices.Equal(got, []string{"two", "one", "three"}) {
		t.Errorf("arrived: %q", got)
	}
	if _, err := r.Replay(t.Context(), b.Store, router.PoisonSelection{IDs: []string{all[0].ID}}); !errors.Is(err, router.ErrNotInQueue) {
		t.Errorf("replayed again: %v", err)
	}
}

// A message that fails again is at the end of the queue, under another ID, with its history.
func (s Suite) failsAgain(t *testing.T) {
	b := s.bench(t)
	r := b.replayer()
	r.fail(router.Permanent(errors.New("still broken")))
	b.poison("one", "two")
	before := list(t, b.Store)
	b.wantReplay(r, b.Store, router.PoisonSelection{IDs: []string{before[0].ID}}, router.ReplayReport{Poisoned: 1})
	after := b.want(b.Store, "two", "one")[1]
	if after.ID == before[0].ID || after.Count != 2 || after.Attempts != 2 || !after.First.Equal(before[0].First) || after.Reason != "still broken" {
		t.Errorf("came back as %+v, was %+v", after, before[0])
	}
	b.wantReplay(r, b.Store, router.PoisonSelection{All: true}, router.ReplayReport{Poisoned: 2})
	r.fail(nil)
	b.wantReplay(r, b.Store, router.PoisonSelection{All: true}, router.ReplayReport{Sent: 2})
	b.want(b.Store)
}

// What some recipients have stays where it is, unless the replay is forced, also after it has failed again for another reason.
func (s Suite) partial(t *testing.T) {
	b := s.bench(t)
	r := b.replayer()
	r.fail(gateway.ErrPartialDelivery)
	b.poison("one", "two")
	b.wantReplay(r, b.Store, router.PoisonSelection{IDs: []string{list(t, b.Store)[0].ID}}, router.ReplayReport{Poisoned: 1})
	all := b.want(b.Store, "two", "one")
	if all[0].Partial || !all[1].Partial {
		t.Errorf("got partial %v and %v, want false and true", all[0].Partial, all[1].Partial)
	}
	r.fail(router.Permanent(errors.New("still broken")))
	b.wantReplay(r, b.Store, router.PoisonSelection{IDs: []string{all[1].ID}}, router.ReplayReport{Kept: 1, Partial: 1})
	b.wantReplay(r, b.Store, router.PoisonSelection{IDs: []string{all[1].ID}, Force: true}, router.ReplayReport{Poisoned: 1})
	r.fail(nil)
	b.wantReplay(r, b.Peer(t), router.PoisonSelection{All: true}, router.ReplayReport{Sent: 1, Kept: 1, Partial: 1})
	b.want(b.Store, "one")
	b.wantReplay(r, b.Store, router.PoisonSelection{All: true, Force: true}, router.ReplayReport{Sent: 1})
	b.want(b.Store)
	for _, msg := range r.arrived.Messages("to") {
		if _, ok := msg.Metadata[router.KeyPoisonPartial]; ok {
			t.Errorf("arrived with %s", router.KeyPoisonPartial)
		}
	}
}

// A replay that was killed before it could delete is recognized by the next one.
func (s Suite) killed(t *testing.T) {
	b := s.bench(t)
	r := b.replayer()
	b.poison("one", "one")
	if _, err := r.Replay(t.Context(), undeletable{b.Store}, router.PoisonSelection{All: true}); !errors.Is(err, errKilled) {
		t.Errorf("got %v", err)
	}
	b.want(b.Store, "one", "one")
	report, err := r.Replay(t.Context(), b.Store, router.PoisonSelection{All: true})
	if err != nil || report.Sent != 2 || report.Duplicates == 0 {
		t.Errorf("%+v, %v", report, err)
	}
	b.want(b.Store)
}

type undeletable struct{ router.PoisonStore }

var errKilled = errors.New("killed")

func (undeletable) Delete(context.Context, string) error { return errKilled }
