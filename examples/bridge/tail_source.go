package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
)

// eventSource is an event stream that is opened again when it ends.
type eventSource struct {
	client    *gateway.Client
	request   gateway.ReceiveEventsRequest
	directory *gateway.Directory
	now       func() time.Time
	items     chan sourceItem
}

// sourceItem is an event, something to tell, or the error that ends everything.
type sourceItem struct {
	line *eventLine
	note string
	err  error
}

// reconnecting waits between two streams.
func reconnecting() backoff.Policy {
	return backoff.Policy{Min: 500 * time.Millisecond, Max: 30 * time.Second}
}

// run puts events into items until ctx ends or the stream cannot be opened, and
// closes items then.
func (s *eventSource) run(ctx context.Context) {
	defer close(s.items)
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
			s.put(ctx, sourceItem{note: fmt.Sprintf("the stream ended: %s; opening it again", redact(err))})
		}
		if reconnecting().Wait(ctx, failures) != nil {
			return
		}
		failures++
	}
}

// stream reads one stream to its end and returns how often it got somewhere: its
// opening counts.
func (s *eventSource) stream(ctx context.Context) (got int, err error) {
	stream, err := s.client.ReceiveEvents(ctx, s.request)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	// After the stream, so that no change falls between the two.
	if err := s.directory.Sync(ctx); err != nil {
		return 0, err
	}
	for got = 1; ; got++ {
		raw, err := stream.Next()
		switch {
		case errors.Is(err, gateway.ErrEventTooLarge):
			s.put(ctx, sourceItem{note: "left out: " + redact(err)})
			continue
		case err != nil:
			return got, err
		}
		event, err := gateway.DecodeEvent(raw.Type, raw.Data)
		if err != nil {
			s.put(ctx, sourceItem{note: "left out: " + redact(err)})
			continue
		}
		line := newEventLine(event, s.now(), s.directory) // as long as the directory knows what is deleted
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

// recent remembers the keys that were added last: at least limit, at most twice
// as many.
type recent struct {
	limit     int
	now, past map[string]struct{}
}

func newRecent(limit int) *recent { return &recent{limit: limit, now: map[string]struct{}{}} }

// add reports whether the key was there already. The empty key never is.
func (r *recent) add(key string) bool {
	if key == "" {
		return false
	}
	_, inNow := r.now[key]
	_, inPast := r.past[key]
	if inNow || inPast {
		return true
	}
	if len(r.now) >= r.limit {
		r.now, r.past = map[string]struct{}{}, r.now
	}
	r.now[key] = struct{}{}
	return false
}

func (r *recent) forget(key string) {
	delete(r.now, key)
	delete(r.past, key)
}
