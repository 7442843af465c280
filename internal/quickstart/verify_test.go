package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestReadStream(t *testing.T) {
	url := startNATS(t)
	conn := testkit.Must(nats.Connect(url))(t)
	defer conn.Close()
	js := testkit.Must(jetstream.New(conn))(t)
	ctx := t.Context()
	testkit.Must(js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}))(t)
	if found, err := readStream(ctx, url, "S"); err != nil || len(found) != 0 {
		t.Fatalf("empty stream: %v, %v", found, err)
	}
	var want []stored
	for i := range 300 {
		data := []byte(fmt.Sprint("payload ", i))
		subject := fmt.Sprint("s.", i%3)
		testkit.Must(js.Publish(ctx, subject, data))(t)
		want = append(want, stored{subject, len(data), sha256.Sum256(data)})
	}
	found := testkit.Must(readStream(ctx, url, "S"))(t)
	if !slices.Equal(found, want) {
		t.Errorf("found %d messages that differ from the %d stored", len(found), len(want))
	}
	if _, err := readStream(ctx, url, "ABSENT"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("absent stream: %v, want %v", err, jetstream.ErrStreamNotFound)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := readStream(cancelled, url, "S"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v, want %v", err, context.Canceled)
	}
}

func TestCompare(t *testing.T) {
	digest := func(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }
	want := []expectation{{"a", digest("1")}, {"a", digest("1")}, {"b", digest("2")}}
	at := func(subject, content string) stored { return stored{subject: subject, digest: digest(content)} }
	tests := []struct {
		name                 string
		found                []stored
		subjects             []string
		poisoned, mismatched int
	}{
		{"all", []stored{at("b", "2"), at("a", "1"), at("a", "1")}, []string{"a", "a", "b"}, 0, 0},
		{"nothing", nil, []string{"", "", ""}, 0, 0},
		{"one of two equal ones", []stored{at("a", "1"), at("b", "2")}, []string{"a", "", "b"}, 0, 0},
		{"one twice", []stored{at("a", "1"), at("a", "1"), at("b", "2"), at("b", "2")}, []string{"a", "a", "b"}, 0, 1},
		{"other bytes", []stored{at("a", "1"), at("a", "1"), at("b", "3")}, []string{"a", "a", ""}, 0, 1},
		{"other subject", []stored{at("a", "1"), at("a", "1"), at("c", "2")}, []string{"a", "a", ""}, 0, 1},
		{"poisoned", []stored{at("a", "1"), at("a", "1"), at("poison", "2")}, []string{"a", "a", ""}, 1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			subjects, poisoned, mismatched := compare(want, tt.found, "poison")
			if !slices.Equal(subjects, tt.subjects) || poisoned != tt.poisoned || mismatched != tt.mismatched {
				t.Errorf("got %q, poisoned %d, mismatched %d; want %q, %d, %d",
					subjects, poisoned, mismatched, tt.subjects, tt.poisoned, tt.mismatched)
			}
		})
	}
}
