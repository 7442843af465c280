package sinks_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/agrimill/agrimill/sinks"
)

func TestError(t *testing.T) {
	cause := errors.New("no route")
	err := sinks.NewError("nats", "a.b", sinks.ErrUnavailable, cause)
	if !errors.Is(err, sinks.ErrUnavailable) || !errors.Is(err, cause) || errors.Is(err, sinks.ErrRejected) {
		t.Errorf("%v does not match its kind and its cause alone", err)
	}
	if got, want := err.Error(), "sink nats, topic a.b: sink unavailable: no route"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	named := fmt.Errorf("%w: no route", sinks.ErrUnavailable)
	if got, want := sinks.NewError("own", "a.b", sinks.ErrUnavailable, named).Error(), "sink own, topic a.b: sink unavailable: no route"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := sinks.NewError("nats", "", sinks.ErrClosed, nil).Error(), "sink nats: sink closed"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := sinks.NewError("nats", "a\r\nb", sinks.ErrRejected, nil).Error(), `sink nats, topic "a\r\nb": message rejected by the sink`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if again := sinks.NewError("outer", "c", sinks.ErrUnavailable, fmt.Errorf("again: %w", err)); again != err {
		t.Errorf("an error of the same kind is wrapped again: %v", again)
	}
	for _, ctxErr := range []error{context.Canceled, context.DeadlineExceeded} {
		err := sinks.NewError("nats", "", sinks.ErrUnavailable, fmt.Errorf("%w: %w", brokerError{"asked too long"}, ctxErr))
		if errors.Is(err, ctxErr) {
			t.Errorf("%v matches %v", err, ctxErr)
		}
		var inner brokerError
		if !errors.As(err, &inner) || !errors.Is(err, brokerError{"asked too long"}) {
			t.Errorf("%v does not match what else its cause is", err)
		}
	}
}

type brokerError struct{ text string }

func (e brokerError) Error() string { return e.text }

func TestDurabilityString(t *testing.T) {
	for level, want := range map[sinks.Durability]string{
		sinks.DurabilityUnknown: "unknown", sinks.DurabilityNone: "none", sinks.DurabilityMemory: "memory",
		sinks.DurabilityDisk: "disk", sinks.DurabilitySynced: "synced", sinks.DurabilityReplicated: "replicated",
	} {
		if got := level.String(); got != want {
			t.Errorf("%d is %q, want %q", level, got, want)
		}
	}
}
