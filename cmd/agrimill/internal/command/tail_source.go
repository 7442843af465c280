package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
)

// eventSource is an event stream that reconnects when it ends.
type eventSource struct {
	client    *gateway.Client
	request   gateway.ReceiveEventsRequest
	directory *gateway.Directory
	now       func() time.Time
	items     chan sourceItem
}

// sourceItem is an event, a note for the user, or the error that ends the source.
type sourceItem struct {
	line *eventLine
	note string
	err  error
}

// reconnecting is the backoff between two streams.
func reconnecting() backoff.Policy {
	return backoff.Policy{Initial: 500 * time.Millisecond, Max: 30 * time.Second}
}

// run sends events to items until ctx ends or the stream cannot be opened, and then closes
// items.
func (s *eventSource) run(ctx context.Context) {
	defer close(s.items)
	refreshing, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { // ends with stop
		s.directory.KeepFresh(refreshing, func(tenant string, err error) {
			s.put(refreshing, sourceItem{note: fmt.Sprintf("endpoints of tenant %s unavailable: %s; retrying", cell(tenant), redact(err))})
		})
	})
	for opened, failures := false, 0; ctx.Err() == nil; {
		got, err := s.stream(ctx)
		if got > 0 {
			opened, failures = true, 0
		}
		again := errors.Is(err, io.EOF) || errors.Is(err, gateway.ErrIdle) || gateway.Retryable(err)
		if ctx.Err() != nil || !again || !opened {
			s.put(ctx, sourceItem{err: err})
			return
		}
		if !errors.Is(err, gateway.ErrIdle) {
			s.put(ctx, sourceItem{note: fmt.Sprintf("the stream ended: %s; reconnecting", redact(err))})
		}
		if reconnecting().Wait(ctx, failures) != nil {
			return
		}
		failures++
	}
}

// stream reads one stream to its end and returns a measure of its progress: one for opening
// it, one for each event.
func (s *eventSource) stream(ctx context.Context) (got int, err error) {
	stream, err := s.client.ReceiveEvents(ctx, s.request)
	if errors.Is(err, gateway.ErrIdle) {
		return 1, err // it was open, but nothing arrived, not even a header
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	// After opening the stream, so that no change is missed in between.
	if err := s.directory.Sync(ctx); err != nil {
		return 0, err
	}
	for got = 1; ; got++ {
		raw, err := stream.Next()
		switch {
		case errors.Is(err, gateway.ErrEventTooLarge):
			s.put(ctx, sourceItem{note: "skipped: " + redact(err)})
			continue
		case err != nil:
			return got, err
		}
		event, err := gateway.DecodeEvent(raw.Type, raw.Data)
		if err != nil {
			s.put(ctx, sourceItem{note: "skipped: " + redact(err)})
			continue
		}
		line := newEventLine(event, s.now(), s.directory) // before the directory forgets what was deleted
		s.directory.HandleEvent(event)
		if !s.put(ctx, sourceItem{line: line}) {
			return got, ctx.Err()
		}
	}
}

func (s *eventSource) put(ctx context.Context, item sourceItem) bool {
	select {
	case s.items <- item:
		return true
	case <-ctx.Done():
		return false
	}
}
