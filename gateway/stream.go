package gateway

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agrimill/agrimill/internal/sse"
)

const opEvents = "receive events"

// ReceiveEventsRequest selects events (specification, "GET /events").
type ReceiveEventsRequest struct {
	// Types limits the stream to these of the six event types; empty means all.
	Types []EventType
}

// RawEvent is one event of a stream, not decoded; [DecodeEvent] does that.
type RawEvent struct {
	// Type is the value of the `event:` line, empty when there was none. It may
	// be a type that this version does not know.
	Type EventType
	// Data is the JSON object. It is valid until the next call of Next.
	Data []byte
}

// EventStream is one open connection to GET /events. Next is for one goroutine
// at a time; Close may be called from any.
type EventStream struct {
	ctx    context.Context // the caller's; ends the stream
	body   *attemptBody
	events *sse.Reader
}

// ReceiveEvents opens one event stream and returns when its head has arrived.
// It makes one attempt, and one more with a fresh token when the service
// refuses the first; reconnecting is up to the caller. The stream lives until
// ctx ends, it is closed, the service ends it, or it has been silent for
// [Config.StreamIdleTimeout] while Next was waiting. Nothing else bounds it.
//
// An answer that is not text/event-stream is an [ErrBadResponse].
func (c *Client) ReceiveEvents(ctx context.Context, req ReceiveEventsRequest) (*EventStream, error) {
	if err := c.invalidCall(ctx, opEvents, validateEventTypes(req.Types)); err != nil {
		return nil, err
	}
	timeout := c.cfg.StreamConnectTimeout
	x, err := c.call(ctx, request{
		op:        opEvents,
		method:    http.MethodGet,
		url:       c.base + "/events" + c.eventTypesQuery(req.Types),
		header:    http.Header{"Accept": {"text/event-stream"}, "Cache-Control": {"no-cache"}},
		streaming: true,
		accept:    acceptEventStream,
		timeout:   max(timeout, 0),
		once:      true,
	})
	if err != nil {
		return nil, err
	}
	r := newIdleReader(x.stream, c.cfg.StreamIdleTimeout)
	return &EventStream{ctx: ctx, body: x.stream, events: sse.NewReader(r, c.cfg.MaxEventSize)}, nil
}

func acceptEventStream(resp *http.Response) error {
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || err != nil || media != "text/event-stream" {
		return &ResponseError{Reason: "not a text/event-stream of status 200"}
	}
	return nil
}

// eventTypesQuery writes the filter, with its question mark.
func (c *Client) eventTypesQuery(types []EventType) string {
	if len(types) == 0 {
		return ""
	}
	separator := "&types="
	if c.cfg.EventTypesEncoding == EventTypesComma {
		separator = ","
	}
	escaped := make([]string, len(types))
	for i, t := range types {
		escaped[i] = url.QueryEscape(string(t))
	}
	return "?types=" + strings.Join(escaped, separator)
}

// Next returns the next event and blocks until there is one. Errors:
//   - io.EOF: the service ended the stream. An unfinished event is dropped.
//   - [*EventTooLargeError]: one event was skipped. Call Next again; after
//     every other error the stream is over.
//   - [ErrIdle]: no byte came for the idle timeout while Next was waiting.
//   - [ErrClosed]: the stream was closed.
//   - the error of the context, when that has ended.
//   - [ErrUnavailable]: the connection broke.
func (s *EventStream) Next() (RawEvent, error) {
	e, err := s.events.Next()
	if err == nil {
		return RawEvent{Type: internEventType(e.Name), Data: e.Data}, nil
	}
	var large *sse.TooLargeError
	switch {
	case errors.As(err, &large):
		return RawEvent{}, &EventTooLargeError{Limit: large.Limit, Type: EventType(large.Name), Head: large.Head}
	case errors.Is(err, io.EOF):
		return RawEvent{}, io.EOF
	case errors.Is(err, ErrIdle), errors.Is(err, ErrClosed):
		return RawEvent{}, &Error{Op: opEvents, Err: err}
	case s.ctx.Err() != nil:
		return RawEvent{}, &Error{Op: opEvents, Err: s.ctx.Err()}
	}
	return RawEvent{}, &Error{Op: opEvents, Err: transportCause(err)}
}

// internEventType makes no garbage for the types that are known.
func internEventType(name []byte) EventType {
	switch string(name) {
	case string(EventMessageReceived):
		return EventMessageReceived
	case string(EventFileReceived):
		return EventFileReceived
	}
	return EventType(name)
}

// Retry returns the reconnection time that the service asked for on this
// stream, uncapped, and whether it did. Call it from the goroutine of Next.
func (s *EventStream) Retry() (time.Duration, bool) { return s.events.Retry() }

// Close ends the stream; a Next that is waiting returns [ErrClosed]. It is
// idempotent and may be called at any time.
func (s *EventStream) Close() error {
	// What the connection says at its end is of no interest.
	_ = s.body.Close()
	return nil
}
