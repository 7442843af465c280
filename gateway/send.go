package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

const (
	opSend = "send message"
	// maxCopied is up to what size a payload is copied, in bytes. Package http then writes it together with the head, and
	// may go on reading the copy when the call has returned.
	maxCopied = 16 << 10
)

// SendMessageRequest is a payload to send (specification, "POST /messages").
type SendMessageRequest struct {
	// TenantID is the tenant on whose behalf the message is sent (UUID).
	TenantID string
	// EndpointID is the service-generated ID of the sending endpoint (UUID).
	EndpointID string
	// MessageType is the type of the payload, 1 to 100 characters.
	MessageType string
	// IsPublish sends the message to every endpoint that is subscribed to its type, too.
	IsPublish bool
	// DirectRecipients are endpoint IDs (UUIDs); they need no subscription.
	DirectRecipients []string
	// ContextID is the application's ID of the payload, a UUID unless [Config.AnyContextID] is set. Use a fresh one for each
	// payload, and reuse it only to repeat the same payload after a failure, so that receivers recognize the duplicate. If it
	// is empty, a fresh one is generated, and the caller cannot repeat the payload under it.
	ContextID string
	// SentAt is the time of sending; zero means now. It is the same for all attempts.
	SentAt time.Time
	// TeamsetContextID is optional, at most 100 characters.
	TeamsetContextID string
	// Filename is optional, at most 100 characters. Texts are sent as raw UTF-8; control characters and leading or trailing
	// spaces are rejected.
	Filename string

	// Payload is the payload, up to [Config.MaxPayloadSize] bytes. It is not used after the
	// call has returned, and above 16 KiB not copied.
	Payload []byte
	// Body is used instead of Payload for payloads that are not in memory. It is called once per attempt, in a goroutine of
	// the attempt, and must return the same bytes from the beginning. The client closes the reader, possibly while a Read is in
	// progress, which Close should make return. An error of Body or of its reader ends the call and is wrapped; it is retried
	// only if it matches [ErrUnavailable]. For a payload that can be read only once, call with [SingleAttempt], and return an
	// error when Body is called again.
	Body func() (io.ReadCloser, error)
	// Size is the exact size of Body in bytes. A longer or
	// shorter body is an error, and is never sent completely. With Payload it may be zero.
	Size int64
}

// SendMessage sends one payload and returns nil once the service has answered 200: the message is in the inbox. So it has
// if it answers 400 with the text "Duplicate message" and the context ID of the request. It blocks until then, until a
// permanent error, until the attempts are used up, or until ctx ends.
//
// The request is validated first ([ErrInvalid]). Every attempt carries the same context ID and timestamp.
// [ErrPartialDelivery] means that some direct recipients have the message: do not resend it to all of them.
// [ErrNoRecipients] means that no recipient has it. If an attempt fails without a response, the service may
// nevertheless have the message, which receivers recognize by its context ID.
func (c *Client) SendMessage(ctx context.Context, req SendMessageRequest) error {
	if err := c.invalidCall(ctx, opSend, req.validate(&c.cfg)); err != nil {
		return err
	}
	if req.ContextID == "" {
		req.ContextID = uuid.NewString()
	}
	if req.SentAt.IsZero() {
		req.SentAt = time.Now()
	}
	size, content, shared := max(req.Size, int64(len(req.Payload))), req.Payload, len(req.Payload) > maxCopied
	if !shared {
		content = bytes.Clone(content)
	}
	_, err := c.call(ctx, request{
		op:         opSend,
		like:       c.messages,
		header:     c.messageHeader(&req),
		open:       req.Body,
		size:       size,
		content:    content,
		shared:     shared,
		ignoreBody: true,
		timeout:    c.requestTimeout(size),
	})
	return err
}

// messageHeader builds the headers of a validated request.
func (c *Client) messageHeader(r *SendMessageRequest) http.Header {
	h := make(http.Header, 14)
	values := make([]string, 0, 10) // one allocation for all
	set := func(name, value string) {
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	set("Content-Type", "application/octet-stream")
	set(c.names[KeyIsPublish], strconv.FormatBool(r.IsPublish))
	set(c.names[KeySentTimestamp], r.SentAt.UTC().Format(time.RFC3339Nano))
	set(c.names[KeyEndpointID], r.EndpointID)
	set(c.names[KeyMessageType], r.MessageType)
	set(c.names[KeyTenantID], r.TenantID)
	set(c.names[KeyContextID], r.ContextID)
	for _, optional := range [...]struct{ key, value string }{
		{KeyDirectRecipients, strings.Join(r.DirectRecipients, ",")}, {KeyTeamsetContextID, r.TeamsetContextID}, {KeyFilename, r.Filename},
	} {
		if optional.value != "" {
			set(c.names[optional.key], optional.value)
		}
	}
	return h
}

// ValidateMessage returns the error with which [Client.SendMessage] would refuse req before sending it: an [*Error] that
// wraps a [*ValidationError]. It does not block and sends nothing.
func (c *Client) ValidateMessage(req SendMessageRequest) error {
	return c.invalidCall(context.Background(), opSend, req.validate(&c.cfg))
}
