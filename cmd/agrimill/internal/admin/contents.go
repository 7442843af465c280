package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
)

const (
	// lookTimeout bounds reading a stored message, maxLooks the number of those that are read at a time.
	lookTimeout = 15 * time.Second
	maxLooks    = 2
	// maxWhyNot is how many places a response says why they do not have a message.
	maxWhyNot = 5
)

// contents tells what is in the payload of a message that the journal knows, from where it was stored.
func (s *Server) contents(r *http.Request) (any, error) {
	id, endpoint := r.URL.Query().Get("id"), r.URL.Query().Get("endpoint")
	if id == "" {
		return nil, badRequest("id must be a UUID or message ID")
	}
	known := s.source.Journal()
	if known == nil {
		return nil, problem{status: http.StatusNotFound, Text: "there is no journal (journal.max_age is off), so where messages are stored is not known"}
	}
	if !s.looking.TryAcquire(1) {
		return nil, problem{http.StatusServiceUnavailable, time.Second, "the contents of other messages are being read; try again"}
	}
	defer s.looking.Release(1)
	ctx, cancel := context.WithTimeout(r.Context(), lookTimeout)
	defer cancel()
	if s.tracing.Acquire(ctx, 1) != nil {
		return nil, problem{status: http.StatusServiceUnavailable, Text: "the journal is being searched by other requests; try again"}
	}
	m := named(known, id, endpoint)
	s.tracing.Release(1)
	if m == nil {
		return nil, problem{status: http.StatusNotFound, Text: "nothing is known of this message: the journal has neither older messages nor those of other instances"}
	}
	return s.storedContents(ctx, m)
}

// named returns the newest message that has an ID; nil if none has.
func named(known *journal.Journal, id, endpoint string) *journal.Message {
	same := func(other string) bool { return strings.EqualFold(other, id) }
	found := known.Trace(id, journal.Only{Endpoint: endpoint}, maxTraceLimit).Messages
	for i, m := range found {
		if same(m.UUID) || m.Delivery == id || slices.ContainsFunc(m.MessageIDs, same) {
			return &found[i]
		}
	}
	return nil
}

// storedContents returns what is in the payload of a message, preferably as farm data.
func (s *Server) storedContents(ctx context.Context, m *journal.Message) (found *PoisonContents, err error) {
	var reasons []string
	status := http.StatusNotFound
	for stored, err := range s.source.Stored(ctx, m) {
		if err == nil {
			var contents PoisonContents
			contents, err = s.contentsOf(ctx, stored)
			switch {
			case err != nil:
			case contents.Summary != nil:
				return &contents, nil
			case found == nil:
				found = &contents
			}
		}
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			continue
		}
		if !stored.Absent {
			status = http.StatusBadGateway
		}
		reason := redact(err)
		if stored.Place != "" {
			reason = stored.Place + ": " + reason
		}
		reasons = append(reasons, reason)
	}
	switch {
	case found != nil:
		return found, nil
	case ctx.Err() != nil:
		return nil, problem{status: http.StatusGatewayTimeout, Text: fmt.Sprintf("it could not be read within %s", lookTimeout)}
	case len(reasons) == 0:
		return nil, problem{status: status, Text: "the journal knows of no place that has it"}
	}
	if more := len(reasons) - maxWhyNot; more > 0 {
		reasons = append(reasons[:maxWhyNot], fmt.Sprintf("and %d more", more))
	}
	return nil, problem{status: status, Text: strings.Join(reasons, "; ")}
}

// contentsOf returns what is in the payload of a copy, whatever its metadata says of where that is.
func (s *Server) contentsOf(ctx context.Context, stored StoredCopy) (PoisonContents, error) {
	msg := message.NewMessage("", stored.Payload)
	msg.Metadata = stored.Metadata
	contents := PoisonContents{Metadata: shownMetadata(msg), Place: stored.Place}
	msg.Metadata = message.Metadata{}
	for _, key := range []string{gateway.KeyMessageType, gateway.KeyTenantID, gateway.KeyTeamsetContextID, gateway.KeySentTimestamp} {
		msg.Metadata[key] = stored.Metadata[key]
	}
	msg.SetContext(ctx)
	err := s.look(ctx, msg, &contents)
	return contents, err
}

// NotFarmData is the error by which farm data could not be opened, without Go packages.
func NotFarmData(err error) error {
	return errors.New(strings.NewReplacer(": isoxml: no TaskData", "", "content: ", "", "isoxml: ", "", "efdi: ", "", ": zip: not a valid zip file", "").Replace(err.Error()))
}
