package gatewaytest

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// POST /messages (sendMessages).
//
// Implements: every header, required and optional, with its type and length;
// Content-Length required (so no chunked transfer encoding: 400) and checked
// against Config.MaxPayloadSize (413); Content-Type application/octet-stream;
// the sender must be an endpoint of the application in the tenant (403) that may
// send the type (400); routing with its two exact error texts (routing.go);
// splitting above Config.ChunkSize. The body of the 200 is empty. An empty
// payload is valid.
// Does not recognize retries: a repeated context ID is delivered
// again, under new message IDs, since the specification leaves recognizing it to
// the receivers.

func (s *Server) handleSendMessage(w http.ResponseWriter, r *request) error {
	m, err := s.messageHeaders(r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	_, err = s.senderLocked(r.app, m)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if m.data, err = io.ReadAll(r.Body); err != nil {
		return badRequest("body is shorter than Content-Length")
	}
	if _, err := s.dispatch(r.app, m); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// outgoing is a message being sent; its headers have been validated.
type outgoing struct {
	tenantID, senderID string
	publish            bool
	direct             []string
	messageType        string
	contextID          string
	sentAt             string // as spelled by the sender
	filename           string
	teamsetContextID   string
	data               []byte
}

func (s *Server) messageHeaders(r *request) (m outgoing, err error) {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != "application/octet-stream" {
		return m, badRequest("header Content-Type must be application/octet-stream")
	}
	if r.Header.Get("Content-Length") == "" {
		return m, badRequest("header Content-Length is missing")
	}
	publish, err := s.header(r, gateway.KeyIsPublish, true)
	if err != nil {
		return m, err
	}
	// Clients write booleans the way their language prints them, such as True or 1.
	if m.publish, err = strconv.ParseBool(publish); err != nil {
		return m, badRequest("header %s is neither true nor false", gateway.HeaderName(s.cfg.ServiceName, gateway.KeyIsPublish))
	}
	if m.direct, err = s.directRecipients(r); err != nil {
		return m, err
	}
	if m.sentAt, err = s.header(r, gateway.KeySentTimestamp, true); err != nil {
		return m, err
	}
	if _, err := time.Parse(time.RFC3339Nano, m.sentAt); err != nil {
		return m, badRequest("header %s is not a date-time", gateway.HeaderName(s.cfg.ServiceName, gateway.KeySentTimestamp))
	}
	if m.senderID, err = s.uuidHeader(r, gateway.KeyEndpointID); err != nil {
		return m, err
	}
	if m.tenantID, err = s.uuidHeader(r, gateway.KeyTenantID); err != nil {
		return m, err
	}
	// The context ID reaches the receivers as spelled by the sender.
	if m.contextID, err = s.header(r, gateway.KeyContextID, true); err != nil {
		return m, err
	}
	switch name := gateway.HeaderName(s.cfg.ServiceName, gateway.KeyContextID); {
	case s.cfg.AnyContextID && !withinCharacters(m.contextID, 1, 50):
		return m, badRequest("header %s is longer than 50 characters or not UTF-8", name)
	case !s.cfg.AnyContextID && !isUUID(m.contextID):
		return m, badRequest("header %s is not a UUID", name)
	}
	for _, h := range []struct {
		key      string
		required bool
		value    *string
	}{
		{gateway.KeyMessageType, true, &m.messageType},
		{gateway.KeyTeamsetContextID, false, &m.teamsetContextID},
		{gateway.KeyFilename, false, &m.filename},
	} {
		if *h.value, err = s.textHeader(r, h.key, h.required); err != nil {
			return m, err
		}
	}
	if r.ContentLength > s.cfg.MaxPayloadSize {
		return m, statusError(http.StatusRequestEntityTooLarge, "payload exceeds the limit of %d bytes", s.cfg.MaxPayloadSize)
	}
	return m, nil
}

// directRecipients parses the comma-separated list and removes duplicates.
// The header may be repeated, as HTTP allows for lists.
func (s *Server) directRecipients(r *request) ([]string, error) {
	name := gateway.HeaderName(s.cfg.ServiceName, gateway.KeyDirectRecipients)
	joined := strings.Join(r.Header.Values(name), ",")
	if strings.TrimSpace(joined) == "" {
		return nil, nil
	}
	var ids []string
	for item := range strings.SplitSeq(joined, ",") {
		id, ok := canonicalUUID(strings.TrimSpace(item))
		if !ok {
			return nil, badRequest("header %s is not a comma-separated list of UUIDs", name)
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// senderLocked checks that the application may send from the endpoint in the tenant.
func (s *Server) senderLocked(app *Application, m outgoing) (*endpoint, error) {
	t, err := s.tenantLocked(app, m.tenantID, "")
	if err != nil {
		return nil, err
	}
	sender := s.endpoints[m.senderID]
	if sender == nil || sender.tenant != t || sender.app != app {
		return nil, forbidden("endpoint %s does not belong to a tenant the application is authorized for", m.senderID)
	}
	return sender, nil
}

// dispatch routes a message, also with the error of a partial delivery.
func (s *Server) dispatch(app *Application, m outgoing) (*payload, error) {
	size := int64(len(m.data))
	chunks := max(1, (size+s.cfg.ChunkSize-1)/s.cfg.ChunkSize)
	p := &payload{
		outgoing: m, id: newID(),
		fileAlone: chunks > 1 && s.cfg.FileOrder == FileAlone || chunks == 1 && slices.Contains(s.cfg.FileTypes, m.messageType),
		chunkSize: s.cfg.ChunkSize, digest: sha256.Sum256(m.data),
	}
	for chunk := range chunks {
		p.messageIDs = append(p.messageIDs, newID())
		digest := p.digest
		if chunks > 1 {
			digest = sha256.Sum256(p.part(int(chunk)))
		}
		p.digests = append(p.digests, digest)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	sender, err := s.senderLocked(app, m)
	if err != nil {
		return nil, err
	}
	receivers, err := recipients(sender, m.messageType, m.publish, m.direct)
	p.received = s.clock.now()
	for _, receiver := range receivers {
		s.emitPayloadLocked(p, receiver)
	}
	if len(receivers) > 0 {
		s.changedLocked()
	}
	return p, err
}

// emitPayloadLocked appends the events of a payload for one receiver.
func (s *Server) emitPayloadLocked(p *payload, receiver *endpoint) {
	if int64(len(p.data)) > s.cfg.InlineLimit {
		s.payloads[p.id] = p
	}
	entries := make([]*entry, len(p.messageIDs))
	for chunk := range entries {
		entries[chunk] = s.recordLocked(p, chunk, receiver)
	}
	file := &item{name: gateway.EventFileReceived, payload: p, receiver: receiver, entries: entries}
	feed := &receiver.app.feed
	switch {
	case p.fileAlone:
		s.appendLocked(feed, file)
		return
	case len(entries) > 1 && s.cfg.FileOrder == FileFirst:
		s.appendLocked(feed, file)
	}
	for chunk, e := range entries {
		s.appendLocked(feed, &item{name: gateway.EventMessageReceived, payload: p, receiver: receiver, entries: []*entry{e}, chunk: chunk})
		if chunk == 0 && len(entries) > 1 && s.cfg.FileOrder == FileBetween {
			s.appendLocked(feed, file)
		}
	}
	if len(entries) > 1 && s.cfg.FileOrder == FileLast {
		s.appendLocked(feed, file)
	}
}

// SendRequest is the message that [Server.Send] sends.
type SendRequest struct {
	// From is the ID of the sending endpoint. Required.
	From string
	// MessageType is required.
	MessageType string
	// Payload is retained, not copied: do not modify it afterwards.
	Payload []byte
	// Publish sends the message to all subscribers. Default: if there are no Recipients.
	Publish bool
	// Recipients are the IDs of direct recipients.
	Recipients []string
	// ContextID is the sender's ID of the payload, any string. Default: a new UUID.
	ContextID string
	// SentAt defaults to the server's clock.
	SentAt time.Time
	// Filename and TeamsetContextID are optional.
	Filename, TeamsetContextID string
}

// Send does what POST /messages does, without HTTP. It returns the IDs of the messages, one per chunk, even together with
// the error of a partial delivery. Errors are [*StatusError].
func (s *Server) Send(req SendRequest) (messageIDs []string, err error) {
	s.mu.Lock()
	sender := s.endpoints[req.From]
	s.mu.Unlock()
	switch {
	case sender == nil:
		return nil, forbidden("no such endpoint: %s", req.From)
	case req.MessageType == "":
		return nil, badRequest("the message type is missing")
	case int64(len(req.Payload)) > s.cfg.MaxPayloadSize:
		return nil, statusError(http.StatusRequestEntityTooLarge, "payload exceeds the limit of %d bytes", s.cfg.MaxPayloadSize)
	}
	sentAt := req.SentAt
	if sentAt.IsZero() {
		sentAt = s.clock.now()
	}
	req.ContextID = cmp.Or(req.ContextID, newID())
	p, err := s.dispatch(sender.app, outgoing{
		tenantID: sender.tenant.id, senderID: sender.id,
		publish: req.Publish || len(req.Recipients) == 0, direct: req.Recipients,
		messageType: req.MessageType, contextID: req.ContextID, sentAt: sentAt.UTC().Format(time.RFC3339Nano),
		filename: req.Filename, teamsetContextID: req.TeamsetContextID, data: req.Payload,
	})
	if status, ok := errors.AsType[*StatusError](err); err != nil && (!ok || status.Message != messagePartialDelivery) {
		return nil, err
	}
	return p.messageIDs, err
}
