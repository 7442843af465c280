package gatewaytest

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
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
	// Register the stream before sending the header: a client that has seen the 200
	// must not miss anything that happens after it.
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

// writeStream writes events until the connection or the run ends. It flushes
// when nothing is left to write.
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
	var buf []byte
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
			buf = s.appendEvent(buf[:0], base, i)
			if _, err := out.Write(buf); err != nil {
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

// appendEvent appends the wire format of an event.
func (s *Server) appendEvent(buf []byte, base string, i *item) []byte {
	if i.name == "" {
		return append(buf, i.data...)
	}
	buf = append(buf, "event: "...)
	buf = append(buf, i.name...)
	buf = append(buf, "\ndata: "...)
	switch {
	case i.payload == nil:
		buf = append(buf, i.data...)
	case i.name == gateway.EventFileReceived:
		buf = s.appendFile(buf, base, i)
	default:
		buf = s.appendMessage(buf, base, i)
	}
	return append(buf, "\n\n"...)
}

func (s *Server) appendMessage(buf []byte, base string, i *item) []byte {
	p := i.payload
	buf = append(buf, `{"event_type":"MESSAGE_RECEIVED"`...)
	buf = appendField(buf, "id", p.messageIDs[i.chunk])
	buf = appendField(buf, "app_message_id", p.contextID)
	buf = appendField(buf, "message_type", p.messageType)
	buf = appendField(buf, "sent_at", p.sentAt)
	if !s.cfg.OmitOptionalFields {
		buf = append(buf, `,"received_at":"`...)
		buf = p.received.UTC().AppendFormat(buf, time.RFC3339Nano)
		buf = append(buf, '"')
	}
	return s.appendRest(buf, base, i, i.chunk)
}

func (s *Server) appendFile(buf []byte, base string, i *item) []byte {
	p := i.payload
	buf = append(buf, `{"event_type":"FILE_RECEIVED"`...)
	buf = appendField(buf, "message_type", p.messageType)
	buf = append(buf, `,"size":`...)
	buf = strconv.AppendInt(buf, int64(len(p.data)), 10)
	buf = append(buf, `,"message_ids":[`...)
	for n, id := range p.messageIDs {
		if n > 0 {
			buf = append(buf, ',')
		}
		buf = appendString(buf, id)
	}
	buf = append(buf, ']')
	return s.appendRest(buf, base, i, wholePayload)
}

// appendRest appends the fields common to both events, and closes the object.
func (s *Server) appendRest(buf []byte, base string, i *item, part int) []byte {
	p := i.payload
	if content := p.part(part); int64(len(content)) <= s.cfg.InlineLimit {
		buf = append(buf, `,"payload":"`...)
		buf = base64.StdEncoding.AppendEncode(buf, content)
		buf = append(buf, '"')
	} else {
		buf = append(buf, `,"payload_uri":"`...)
		buf = s.appendPayloadURI(buf, base, p, part, s.clock.now())
		buf = append(buf, '"')
	}
	buf = appendField(buf, "receiving_endpoint_id", i.receiver.id)
	if p.filename != "" {
		buf = appendField(buf, "filename", p.filename)
	}
	if !s.cfg.OmitOptionalFields {
		buf = appendField(buf, "tenant_id", p.tenantID)
	}
	if p.teamsetContextID != "" {
		buf = appendField(buf, "teamset_context_id", p.teamsetContextID)
	}
	return append(buf, '}')
}

func appendField(buf []byte, name, value string) []byte {
	buf = append(buf, ',', '"')
	buf = append(buf, name...)
	buf = append(buf, '"', ':')
	return appendString(buf, value)
}

// appendString appends a JSON string, without quoting if nothing needs an escape.
func appendString(buf []byte, s string) []byte {
	for n := range len(s) {
		if c := s[n]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string never fails
			return append(buf, quoted...)
		}
	}
	buf = append(buf, '"')
	buf = append(buf, s...)
	return append(buf, '"')
}
