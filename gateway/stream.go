package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
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
	// AwaitingHead is called when the request has been written and its response has not begun: the stream is open, and its
	// head may come only with the first event. It may be called more than once, from another goroutine, and as late as
	// ReceiveEvents returns; it must not block. It may be nil.
	AwaitingHead func()
}

// RawEvent is one event of a stream before decoding; see [DecodeEvent].
type RawEvent struct {
	// Type is the value of the `event:` line, or empty. It may be a type unknown to this version.
	Type EventType
	// Data is the JSON object. It is valid until the next call of Next.
	Data []byte
}

// EventStream is one open connection to GET /events. Next may be called by one
// goroutine at a time, Close by any.
type EventStream struct {
	ctx    context.Context // the caller's; ends the stream
	body   *attemptBody
	events *sse.Reader
	source *idleReader
}

// ReceiveEvents opens an event stream and returns when the response head has arrived, which may be as late as the first
// event. Until the request has been written, the wait is bounded by [Config.StreamConnectTimeout]; after that, like the wait
// of Next for an event, by [Config.StreamIdleTimeout] ([ErrIdle]). It makes one attempt, and another one with a fresh token
// if the service refuses the first; reconnecting is up to the caller. The stream lives until ctx ends, it is closed, the
// service ends it, or it has been silent for too long.
//
// A response that is not text/event-stream is an [ErrBadResponse]; one with a Content-Encoding is also an
// [ErrContentEncoding]. For errors only the status counts: 400 is [ErrBadRequest] and 403 is [ErrForbidden].
func (c *Client) ReceiveEvents(ctx context.Context, req ReceiveEventsRequest) (*EventStream, error) {
	if err := c.invalidCall(ctx, opEvents, validateEventTypes(req.Types)); err != nil {
		return nil, err
	}
	awaiting := req.AwaitingHead
	if awaiting == nil {
		awaiting = func() {}
	}
	x, err := c.call(ctx, request{
		op:        opEvents,
		method:    http.MethodGet,
		url:       c.base + "/events" + c.eventTypesQuery(req.Types),
		header:    http.Header{"Accept": {"text/event-stream"}, "Cache-Control": {"no-cache"}},
		streaming: true,
		accept:    acceptEventStream,
		timeout:   max(c.cfg.StreamConnectTimeout, 0),
		once:      true,
		sent:      awaiting,
		headIdle:  max(c.cfg.StreamIdleTimeout, 0),
	})
	if err != nil {
		return nil, err
	}
	source := newIdleReader(x.stream, c.cfg.StreamIdleTimeout)
	return &EventStream{ctx: ctx, body: x.stream, events: sse.NewReader(source, c.cfg.MaxEventSize), source: source}, nil
}

func acceptEventStream(resp *http.Response) error {
	if resp.StatusCode != http.StatusOK || mediaType(resp.Header) != "text/event-stream" {
		return &ResponseError{Reason: "not a text/event-stream of status 200"}
	}
	return nil
}

// eventTypesQuery returns the filter, including its question mark.
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

// Next blocks until the next event and returns it. Errors:
//   - io.EOF: the service ended the stream. An unfinished event is dropped.
//   - [*EventTooLargeError]: one event was skipped. Call Next again; after
//     any other error the stream is over.
//   - [ErrIdle]: the stream was silent for the idle timeout while Next was waiting.
//   - [ErrClosed]: the stream was closed.
//   - the context's error, if it has ended.
//   - [ErrUnavailable]: the connection broke.
func (s *EventStream) Next() (RawEvent, error) {
	e, err := s.events.Next()
	if err == nil {
		return RawEvent{Type: internEventType(e.Name), Data: e.Data}, nil
	}
	large, ok := errors.AsType[*sse.TooLargeError](err)
	switch {
	case ok:
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

// internEventType avoids allocations for the frequent types.
func internEventType(name []byte) EventType {
	switch string(name) {
	case string(EventMessageReceived):
		return EventMessageReceived
	case string(EventFileReceived):
		return EventFileReceived
	}
	return EventType(bytes.TrimSpace(name))
}

// Retry returns the reconnection time that the service requested on this
// stream, uncapped, and whether it did. Call it from the goroutine that calls Next.
func (s *EventStream) Retry() (time.Duration, bool) { return s.events.Retry() }

// LastHeard returns when the service last sent anything on this stream that Next has read, a comment included, and before
// that, when the stream was opened. It may be called from any goroutine.
func (s *EventStream) LastHeard() time.Time { return *s.source.heard.Load() }

// Close ends the stream; a pending Next returns [ErrClosed]. It is idempotent and may be called at any time.
func (s *EventStream) Close() error {
	// Errors of a connection that is being closed do not matter.
	_ = s.body.Close()
	return nil
}
