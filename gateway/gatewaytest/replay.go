package gatewaytest

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// replay plays a recording in place of the service (Config.Replay).
type replay struct {
	recorded map[string][]*recordedRequest // by method and path

	mu     sync.Mutex
	played map[string]int
}

// next returns the next recorded answer, or with again the last one, and whether it is the last.
func (p *replay) next(r *http.Request, again bool) (x *recordedRequest, last bool) {
	key := r.Method + " " + r.URL.EscapedPath()
	answers := p.recorded[key]
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.played[key]
	if again {
		n = min(n, len(answers)-1)
	}
	if n < 0 || n >= len(answers) {
		return nil, true
	}
	p.played[key] = n + 1
	return answers[n], n == len(answers)-1
}

func (x *recordedRequest) status() int {
	for _, line := range x.lines {
		if line.Status != 0 {
			return line.Status
		}
	}
	return 0
}

// tokenHandler issues the server's own tokens, after the refusals that were recorded.
func (s *Server) tokenHandler() func(http.ResponseWriter, *http.Request) {
	if s.replay == nil {
		return s.handleToken
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if x, _ := s.replay.next(r, false); x != nil && x.status()/100 != 2 {
			_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 64<<10))
			s.play(w, r, x)
			return
		}
		s.handleToken(w, r)
	}
}

// handleReplay answers an operation.
func (s *Server) handleReplay(w http.ResponseWriter, r *request) error {
	switch operationOf(r.Request) {
	case OpEvents:
		s.playEvents(w, r)
		return nil
	case OpConfirm:
		return s.playConfirm(w, r)
	}
	return s.playAgain(w, r.Request)
}

// playAgain plays the next answer, or the last one again.
func (s *Server) playAgain(w http.ResponseWriter, r *http.Request) error {
	s.drain(r) // a connection that is closed with something unread would lose the answer
	x, _ := s.replay.next(r, true)
	if x == nil {
		return statusError(http.StatusNotFound, "the recording has no answer to this request")
	}
	s.play(w, r, x)
	return nil
}

// play plays an answer to its end.
func (s *Server) play(w http.ResponseWriter, r *http.Request, x *recordedRequest) {
	if s.playLines(w, r, x, func([]byte) {}) != endComplete {
		panic(http.ErrAbortHandler)
	}
}

// playLines plays what was recorded of an answer, and returns how that ended: as the recording if it stops before.
func (s *Server) playLines(w http.ResponseWriter, r *http.Request, x *recordedRequest, before func([]byte)) string {
	began, base := time.Now(), s.PayloadURL()
	control := http.NewResponseController(w)
	var buffer bytes.Buffer
	for _, line := range x.lines {
		if !s.pause(r, began, line.At-x.lines[0].At) {
			return endClient
		}
		if line.Status != 0 {
			for name, value := range line.Header {
				w.Header().Set(name, value)
			}
			w.WriteHeader(line.Status)
		}
		for _, part := range line.Body {
			if part.As == asRaw { // may be large, and is no event
				_ = part.write(w, base) // the flush reports it
				continue
			}
			_ = part.write(&buffer, base) // never fails
		}
		before(buffer.Bytes())
		_, _ = buffer.WriteTo(w)
		if line.Status != 0 || len(line.Body) > 0 {
			if control.Flush() != nil {
				return endClient
			}
		}
		if line.End != "" {
			return line.End
		}
	}
	return endClient
}

// pause waits for what happened so many microseconds after the request; false if that ends before.
func (s *Server) pause(r *http.Request, began time.Time, after int64) bool {
	if s.cfg.ReplaySpeed == 0 {
		return r.Context().Err() == nil
	}
	due := time.Duration(float64(after) / s.cfg.ReplaySpeed * float64(time.Microsecond))
	timer := time.NewTimer(due - time.Since(began))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// playEvents plays an event stream.
func (s *Server) playEvents(w http.ResponseWriter, r *request) {
	x, last := s.replay.next(r.Request, false)
	st := s.openStream(r.app, nil, connOf(r.Request))
	defer s.closeStream(st)
	how := endClient
	if x == nil {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
	} else {
		if x.status() == 0 { // the program did not wait for it
			w.Header().Set("Content-Type", "text/event-stream")
		}
		var name gateway.EventType
		how = s.playLines(w, r.Request, x, func(body []byte) { name = s.playedEvents(r.app, name, body) })
	}
	switch {
	case how == endComplete:
	case how == endClient && last:
		s.writeStream(w, r.Request, st) // nothing but what the test emits
	default:
		panic(http.ErrAbortHandler)
	}
}

// playedEvents counts the deliveries of what is about to be sent, whole lines. It takes and returns the type of the
// event to which the lines belong.
func (s *Server) playedEvents(app *Application, name gateway.EventType, body []byte) gateway.EventType {
	lines := bytes.FieldsFunc(body, func(r rune) bool { return r == '\n' || r == '\r' })
	for _, line := range lines {
		if value, ok := bytes.CutPrefix(line, []byte("event:")); ok {
			name = gateway.EventType(bytes.TrimSpace(value))
		}
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		event, err := gateway.DecodeEvent(name, bytes.TrimSpace(data))
		if err != nil {
			continue // it is played, and is no message
		}
		switch m := event.(type) {
		case *gateway.MessageReceived:
			s.playedMessage(LedgerEntry{
				MessageID: m.ID, EndpointID: m.ReceivingEndpointID, TenantID: m.TenantID, ApplicationID: app.ID, ContextID: m.AppMessageID,
				MessageType: m.MessageType, Filename: m.Filename, TeamsetContextID: m.TeamsetContextID,
				Size: int64(len(m.Payload)), SHA256: sha256.Sum256(m.Payload), Chunks: 1,
				PayloadSize: int64(len(m.Payload)), PayloadSHA256: sha256.Sum256(m.Payload),
			}, false)
		case *gateway.FileReceived:
			for n, id := range m.MessageIDs {
				s.playedMessage(LedgerEntry{
					MessageID: id, EndpointID: m.ReceivingEndpointID, TenantID: m.TenantID, ApplicationID: app.ID,
					MessageType: m.MessageType, Filename: m.Filename, TeamsetContextID: m.TeamsetContextID,
					Chunk: n, Chunks: len(m.MessageIDs), PayloadSize: m.Size, PayloadSHA256: sha256.Sum256(m.Payload),
				}, true)
			}
		}
	}
	return name
}

// playedMessage adds the entry of a message, unless there is one, and counts the delivery.
func (s *Server) playedMessage(le LedgerEntry, file bool) {
	le.MessageID, _ = canonicalUUID(le.MessageID) // decoded
	le.EndpointID, _ = canonicalUUID(le.EndpointID)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.now()
	e := s.ledger.index[entryKey{le.MessageID, le.EndpointID}]
	if e == nil {
		le.Accepted = now
		e = s.addEntryLocked(le)
		file = false // as files do that come alone
	}
	s.sequence++
	e.delivered(file, now, s.sequence)
	s.changedLocked()
}

// playConfirm answers a confirmation as recorded, and accepts what is beyond that. What is accepted is in the ledger.
func (s *Server) playConfirm(w http.ResponseWriter, r *request) error {
	x, _ := s.replay.next(r.Request, false)
	if x == nil {
		return s.handleConfirm(w, r)
	}
	tenantID, confirmations, err := s.readConfirmations(r)
	if err == nil && x.status()/100 == 2 {
		err = s.confirm(r.app, tenantID, confirmations)
	}
	if err != nil {
		return err
	}
	s.play(w, r.Request, x)
	return nil
}
