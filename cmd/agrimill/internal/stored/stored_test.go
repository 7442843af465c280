package stored_test

import (
	"fmt"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/stored"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Copies are tried in this order: whole files before their parts, NATS, Kafka, objects, the poison queue last; none twice.
func TestCopiesOf(t *testing.T) {
	event := func(route, part string, at journal.Location) journal.Event {
		return journal.Event{Step: journal.StepStored, Route: route, MessageID: part, At: &at}
	}
	cfg := &config.Config{Routes: []config.Route{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	for i, sink := range []string{"nats", "kafka", "files"} {
		cfg.Routes[i].To.Sink = sink
	}
	cfg.Poison.Sink = "queue"
	poisoned := event("b", "", journal.Location{Stream: "Q", Sequence: 1})
	poisoned.Step = journal.StepPoisoned
	m := &journal.Message{Events: []journal.Event{
		event("a", "part", journal.Location{Stream: "S", Sequence: 1}), {Step: journal.StepStored, Route: "a"}, poisoned,
		event("c", "", journal.Location{Key: "k"}), event("b", "", journal.Location{Topic: "t", Offset: 2}),
		event("a", "", journal.Location{Stream: "S", Sequence: 9}), event("a", "", journal.Location{Stream: "S", Sequence: 2}),
		event("a", "", journal.Location{Stream: "S", Sequence: 9}),
	}}
	var got []string
	for _, c := range stored.CopiesOf(cfg, m) {
		got = append(got, fmt.Sprint(c.Sink, " ", c.At.Sequence, c.At.Offset))
	}
	testkit.Equal(t, got, []string{"nats 9 0", "nats 2 0", "kafka 0 2", "files 0 0", "queue 1 0", "nats 1 0"})
}
