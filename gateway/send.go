package gateway

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

const opSend = "send message"

// SendMessageRequest is one payload to send (specification, "POST /messages").
type SendMessageRequest struct {
	// TenantID is the tenant in relation to which communication is done (UUID).
	TenantID string
	// EndpointID is the service-generated ID of the sending endpoint (UUID).
	EndpointID string
	// MessageType is the type of the payload, 1 to 100 characters.
	MessageType string
	// IsPublish sends the message to every endpoint that is subscribed to its
	// type. With false only the direct recipients get it.
	IsPublish bool
	// DirectRecipients are endpoint IDs (UUIDs); they need no subscription.
	DirectRecipients []string
	// ContextID is the application's ID of the payload (UUID). Use a fresh one
	// for each payload, and the same one again only to repeat the same payload
	// after a failure, so that receivers recognise the duplicate. Empty means a
	// fresh one that the caller does not get to know; the attempts of one call
	// share it, but the caller cannot repeat the payload under it.
	ContextID string
	// SentAt is the time of sending; zero means now. All attempts carry the same.
	SentAt time.Time
	// TeamsetContextID is optional, at most 100 characters.
	TeamsetContextID string
	// Filename is optional, at most 100 characters. Like the other texts it
	// goes on the wire as raw UTF-8; control characters and spaces at the ends
	// are refused.
	Filename string

	// Payload is the payload, up to [Config.MaxPayloadSize] bytes. It is not
	// copied, and not used after the call has returned.
	Payload []byte
	// Body is used instead of Payload for payloads that are not in memory. It
	// is called once for each attempt and must give the same bytes from the
	// beginning; it and its reader are used in a goroutine of the attempt. The
	// client closes the reader, when an attempt is given up also while it is
	// being read; that should make it return. An error of Body or of its reader
	// ends the call and is wrapped; it is repeated only if it matches
	// [ErrUnavailable].
	Body func() (io.ReadCloser, error)
	// Size is the exact size of Body in bytes. A body that is longer or shorter
	// is an error, and is never sent whole. With Payload it may be zero.
	Size int64
}

func (r *SendMessageRequest) fill() {
	if r.ContextID == "" {
		r.ContextID = uuid.NewString()
	}
	if r.SentAt.IsZero() {
		r.SentAt = time.Now()
	}
}

func (r *SendMessageRequest) size() int64 {
	if r.Body != nil {
		return r.Size
	}
	return int64(len(r.Payload))
}

// SendMessage sends one payload and returns nil when the service has answered
// 200: the message is in the inbox. It blocks until then, until an error that
// does not pass, until the attempts are used up, or until ctx ends.
//
// Everything is validated first ([ErrInvalid]). Every attempt carries the same
// context ID and timestamp. [ErrPartialDelivery] means that some direct
// recipients have the message: do not repeat it to all of them.
// [ErrNoRecipients] means that nobody has it. When an attempt fails without an
// answer, the service may have the message all the same; the repeated context
// ID lets receivers recognise it.
func (c *Client) SendMessage(ctx context.Context, req SendMessageRequest) error {
	if err := c.invalidCall(ctx, opSend, req.validate(c.cfg.MaxPayloadSize)); err != nil {
		return err
	}
	req.fill()
	open, size := req.Body, req.size()
	if open == nil {
		open = bytesBody(req.Payload)
	}
	_, err := c.call(ctx, request{
		op:         opSend,
		method:     http.MethodPost,
		url:        c.base + "/messages",
		header:     c.messageHeader(&req),
		open:       open,
		size:       size,
		inMemory:   req.Body == nil,
		ignoreBody: true,
		timeout:    c.requestTimeout(size),
	})
	return err
}

// messageHeader builds the headers of a request that has been validated.
func (c *Client) messageHeader(r *SendMessageRequest) http.Header {
	h := make(http.Header, 14)
	h["Content-Type"] = []string{"application/octet-stream"}
	h[c.names.isPublish] = []string{strconv.FormatBool(r.IsPublish)}
	h[c.names.sentTimestamp] = []string{r.SentAt.UTC().Format(time.RFC3339Nano)}
	h[c.names.endpointID] = []string{r.EndpointID}
	h[c.names.messageType] = []string{r.MessageType}
	h[c.names.tenantID] = []string{r.TenantID}
	h[c.names.contextID] = []string{r.ContextID}
	if len(r.DirectRecipients) > 0 {
		h[c.names.directRecipients] = []string{strings.Join(r.DirectRecipients, ",")}
	}
	if r.TeamsetContextID != "" {
		h[c.names.teamsetContextID] = []string{r.TeamsetContextID}
	}
	if r.Filename != "" {
		h[c.names.filename] = []string{r.Filename}
	}
	return h
}
