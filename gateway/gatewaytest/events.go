package gatewaytest

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// GET /events (receiveEvents).
//
// Implements: one stream for all endpoints of the application; `types` as
// types=A&types=B, types=A,B and mixtures, 400 for an unknown type; each event with
// one `event:` and one `data:` line and event_type in the data; replay of all
// unconfirmed messages in order of acceptance, then live events (Config.NoReplay);
// every open stream receives every event (Config.Streams); comment lines as
// keep-alive (Config.KeepAlive); the head immediately or with the first event
// (Config.StreamHead); embedded payloads up to Config.InlineLimit, and a
// fresh payload_uri beyond it.
// Lifecycle events go to the streams that are open when they occur. An open stream
// outlives the token it was opened with.

func (s *Server) handleEvents(w http.ResponseWriter, r *request) error {
	filter, err := typesFilter(r)
	if err != nil {
		return err
	}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache")
	// A client that has seen the 200 must not miss anything that happens after it.
	st := s.openStream(r.app, filter, connOf(r.Request))
	defer s.closeStream(st)
	if s.cfg.StreamHead == HeadAtOnce {
		w.WriteHeader(http.StatusOK)
	}
	s.writeStream(w, r.Request, st)
	return nil
}

// typesFilter returns nil if `types` is omitted, for all events.
func typesFilter(r *request) (map[gateway.EventType]bool, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("query is malformed")
	}
	for name := range query {
		if name != "types" { // a filter under another name would let everything through
			return nil, badRequest("unknown parameter %q", name)
		}
	}
	values, given := query["types"]
	if !given {
		return nil, nil
	}
	filter := map[gateway.EventType]bool{}
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			if !slices.Contains(gateway.EventTypes(), gateway.EventType(item)) {
				return nil, badRequest("parameter types has an unknown event type")
			}
			filter[gateway.EventType(item)] = true
		}
	}
	return filter, nil
}

// writeStream writes events until the connection or the run ends.
func (s *Server) writeStream(w http.ResponseWriter, r *http.Request, st *stream) {
	out := bufio.NewWriterSize(w, 64<<10)
	control := http.NewResponseController(w)
	begun := s.cfg.StreamHead == HeadAtOnce
	flush := func() error {
		if !begun {
			return nil // flushing would send the head
		}
		if err := out.Flush(); err != nil {
			return err
		}
		return control.Flush()
	}
	// Send the header immediately, even if no event follows for a long time.
	if err := flush(); err != nil {
		return
	}
	var keepAlive <-chan time.Time
	if s.cfg.KeepAlive != NoKeepAlive {
		ticker := time.NewTicker(s.cfg.KeepAlive)
		defer ticker.Stop()
		keepAlive = ticker.C
	}
	base := s.PayloadURL()
	for {
		s.mu.Lock()
		i := s.takeLocked(st)
		open, silent := st.open, s.faults.stalls > 0
		s.mu.Unlock()
		if !open {
			// CutStreams is about to close the connection. A stream that ended well before that
			// would give it back to the client for other requests.
			panic(http.ErrAbortHandler)
		}
		if i != nil {
			begun = true
			if err := s.writeEvent(out, base, i); err != nil {
				return
			}
			continue
		}
		if !silent {
			if err := flush(); err != nil {
				return
			}
		}
		select {
		case <-st.wake:
		case <-keepAlive:
			if !silent && begun {
				_, _ = io.WriteString(out, ": keep-alive\n\n") // the flush reports the error
			}
		case <-r.Context().Done():
			return
		}
	}
}

// writeEvent writes the wire format of an event. The error is that of an earlier write, too.
func (s *Server) writeEvent(out *bufio.Writer, base string, i *item) error {
	if i.name == "" {
		_, err := out.Write(i.data)
		return err
	}
	_, _ = out.WriteString("event: " + string(i.name) + "\ndata: ") // the last write has the error
	if i.payload == nil {
		_, _ = out.Write(i.data)
		_ = out.WriteByte('\n')
	} else {
		encoder := json.NewEncoder(out) // which ends the line
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(s.received(base, i))
	}
	return out.WriteByte('\n')
}

// receivedEvent is a MESSAGE_RECEIVED or a FILE_RECEIVED.
type receivedEvent struct {
	EventType        gateway.EventType `json:"event_type"`
	ID               string            `json:"id,omitempty"`
	ContextID        string            `json:"app_message_id,omitempty"`
	MessageType      string            `json:"message_type"`
	SentAt           string            `json:"sent_at,omitempty"`
	ReceivedAt       time.Time         `json:"received_at,omitzero"`
	Size             *int              `json:"size,omitempty"`
	MessageIDs       []string          `json:"message_ids,omitempty"`
	Payload          []byte            `json:"payload,omitzero"`
	PayloadURI       string            `json:"payload_uri,omitempty"`
	EndpointID       string            `json:"receiving_endpoint_id"`
	Filename         string            `json:"filename,omitempty"`
	TenantID         string            `json:"tenant_id,omitempty"`
	TeamsetContextID string            `json:"teamset_context_id,omitempty"`
}

func (s *Server) received(base string, i *item) receivedEvent {
	p, part := i.payload, i.chunk
	e := receivedEvent{
		EventType: i.name, MessageType: p.messageType, EndpointID: i.receiver.id, Filename: p.filename, TeamsetContextID: p.teamsetContextID,
	}
	if i.name == gateway.EventFileReceived {
		part = wholePayload
		e.Size, e.MessageIDs = new(len(p.data)), p.messageIDs
	} else {
		e.ID, e.ContextID, e.SentAt = p.messageIDs[part], p.contextID, p.sentAt
	}
	if !s.cfg.OmitOptionalFields {
		e.TenantID = p.tenantID
		if i.name == gateway.EventMessageReceived {
			e.ReceivedAt = p.received.UTC()
		}
	}
	if content := p.part(part); int64(len(content)) > s.cfg.InlineLimit {
		e.PayloadURI = s.payloadURI(base, p, part)
	} else if e.Payload = content; content == nil {
		e.Payload = []byte{} // an empty one
	}
	return e
}
