package command

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

type eventLine struct {
	// Time is when the service received a message, or else when the event arrived.
	Time        time.Time         `json:"time"`
	Event       gateway.EventType `json:"event"`
	MessageID   string            `json:"message_id,omitempty"`
	MessageIDs  []string          `json:"message_ids,omitempty"` // of a file
	ContextID   string            `json:"context_id,omitempty"`  // as the sender says
	MessageType string            `json:"message_type,omitempty"`
	Filename    string            `json:"filename,omitempty"`
	// Size is nil if it is unknown until the payload is fetched.
	Size             *int64    `json:"size,omitempty"`
	Embedded         bool      `json:"embedded,omitempty"` // the payload, in the event
	EndpointID       string    `json:"endpoint_id,omitempty"`
	EndpointName     string    `json:"endpoint_name,omitempty"`
	ExternalID       string    `json:"external_id,omitempty"`
	TenantID         string    `json:"tenant_id,omitempty"`
	TeamsetContextID string    `json:"teamset_context_id,omitempty"`
	SentAt           time.Time `json:"sent_at,omitzero"`
	Scope            string    `json:"scope,omitempty"`
	// Endpoints is the length of a list of endpoints that changed.
	Endpoints *int `json:"endpoints,omitempty"`
	// Saved is the name of the file with the payload.
	Saved string `json:"saved,omitempty"`

	payload *eventPayload // of messages and files
}

// eventPayload is the payload of an event, or its address.
type eventPayload struct {
	data []byte // nil: at uri
	uri  string
	size int64 // -1: unknown
}

// newEventLine extracts what is printed of an event. The directory provides names, and the
// tenant if the event does not name it.
func newEventLine(event gateway.Event, now time.Time, directory *gateway.Directory) *eventLine {
	line := &eventLine{Time: now.UTC(), Event: event.Type()}
	switch e := event.(type) {
	case *gateway.MessageReceived:
		if !e.ReceivedAt.IsZero() {
			line.Time = e.ReceivedAt.UTC()
		}
		line.MessageID, line.ContextID, line.MessageType, line.Filename = e.ID, e.AppMessageID, e.MessageType, e.Filename
		line.EndpointID, line.TenantID, line.TeamsetContextID, line.SentAt = e.ReceivingEndpointID, e.TenantID, e.TeamsetContextID, e.SentAt.UTC()
		line.setPayload(e.Payload, e.PayloadURI, -1)
	case *gateway.FileReceived:
		line.MessageIDs, line.MessageType, line.Filename = e.MessageIDs, e.MessageType, e.Filename
		line.EndpointID, line.TenantID, line.TeamsetContextID = e.ReceivingEndpointID, e.TenantID, e.TeamsetContextID
		line.setPayload(e.Payload, e.PayloadURI, e.Size)
	case *gateway.EndpointDeleted:
		line.EndpointID, line.ExternalID = e.ID, e.ExternalID
	case *gateway.EndpointsListChanged:
		line.TenantID, line.Endpoints = e.TenantID, new(len(e.Endpoints))
	case *gateway.AuthorizationAdded:
		line.TenantID, line.Scope, line.Endpoints = e.Tenant.ID, e.Scope, new(len(e.Tenant.Endpoints))
	case *gateway.AuthorizationRevoked:
		line.TenantID, line.Scope = e.TenantID, e.Scope
	}
	if known, ok := directory.Endpoint(line.EndpointID); ok {
		line.EndpointName, line.ExternalID = known.Name, known.ExternalID
	}
	if tenant, ok := directory.TenantOf(line.EndpointID); ok && line.TenantID == "" {
		line.TenantID = tenant
	}
	return line
}

func (l *eventLine) setPayload(data []byte, uri string, size int64) {
	if data != nil {
		l.Embedded, size = true, int64(len(data))
	}
	if size >= 0 {
		l.Size = &size
	}
	l.payload = &eventPayload{data, uri, size}
}

func (l *eventLine) isMessage() bool { return l.payload != nil }

func (l *eventLine) id() string {
	if ids := l.ids(); len(ids) > 0 {
		return ids[0]
	}
	return string(l.Event)
}

// ids are the message IDs: of a file, those of its chunks.
func (l *eventLine) ids() []string {
	if l.MessageID != "" {
		return []string{l.MessageID}
	}
	return l.MessageIDs
}

// key identifies a redelivered message; empty for an event that is not redelivered or
// cannot be identified.
func (l *eventLine) key() string {
	if !l.isMessage() || len(l.ids()) == 0 {
		return ""
	}
	return strings.ToLower(strings.Join(slices.Concat([]string{string(l.Event), l.EndpointID}, l.ids()), " "))
}

// writeEventText writes time, event and then key=value, quoted where that is needed
// to tell where a value ends, or to keep a terminal safe.
func (p *program) writeEventText(line *eventLine) error {
	var b strings.Builder
	b.WriteString(line.Time.Format(time.RFC3339) + " " + quote(string(line.Event)))
	add := func(key, value string) {
		if value != "" {
			b.WriteString(" " + key + "=" + quote(value))
		}
	}
	add("type", line.MessageType)
	add("file", line.Filename)
	if line.Size != nil {
		add("bytes", strconv.FormatInt(*line.Size, 10))
	}
	add("endpoint", line.EndpointName)
	if line.EndpointName == "" {
		add("endpoint", line.EndpointID)
	}
	add("external_id", line.ExternalID)
	add("tenant", line.TenantID)
	add("teamset", line.TeamsetContextID)
	add("scope", line.Scope)
	if line.Endpoints != nil {
		add("endpoints", strconv.Itoa(*line.Endpoints))
	}
	add("id", line.MessageID)
	if len(line.MessageIDs) > 0 {
		add("messages", strconv.Itoa(len(line.MessageIDs)))
	}
	add("saved", line.Saved)
	_, err := fmt.Fprintln(p.stdout, b.String())
	return err
}
