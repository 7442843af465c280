package tracing

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
)

const schemaURL = semconv.SchemaURL

// Attributes beyond the semantic conventions for messaging.
const (
	// KeyTenant is the attribute of the tenant.
	KeyTenant = attribute.Key("agrimill.tenant.id")
	// KeyEndpoint is the attribute of the receiving endpoint, or of the sending
	// one when a message is sent.
	KeyEndpoint = attribute.Key("agrimill.endpoint.id")
	// KeyMessageType and KeyEventType are the attributes of the types.
	KeyMessageType = attribute.Key("agrimill.message.type")
	KeyEventType   = attribute.Key("agrimill.event.type")
	// KeyFilename is the attribute of the filename, see [Config.Filename].
	KeyFilename = attribute.Key("agrimill.filename")
	// KeyRoute is the attribute of the route's name.
	KeyRoute = attribute.Key("agrimill.route")
	// KeyAttempt counts attempts, the first one is 1. On an event "retry" it
	// counts the failures so far.
	KeyAttempt = attribute.Key("agrimill.attempt")
	// KeyOutcome is the outcome of a message on a route: "delivered", "filtered",
	// "duplicate", "poisoned" or "returned".
	KeyOutcome = attribute.Key("agrimill.outcome")
	// KeySettled is "ack" or "nack", or "open" when the message was neither.
	KeySettled = attribute.Key("agrimill.settled")
	// KeyDelay is the wait before the next attempt in seconds, on an event "retry".
	KeyDelay = attribute.Key("agrimill.delay")
)

// maxText caps texts that a sender can choose, in bytes.
const maxText = 256

// text makes s suitable for an attribute: exporters reject a whole batch because of one
// invalid UTF-8 byte.
func text(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return s
}

// messageAttributes returns the attributes common to all spans of a message.
func (t *Tracing) messageAttributes(msg *message.Message) []attribute.KeyValue {
	m := msg.Metadata
	all := make([]attribute.KeyValue, 0, 8)
	add := func(key attribute.Key, value string) {
		if value != "" {
			all = append(all, key.String(text(value)))
		}
	}
	add(semconv.MessagingMessageIDKey, cmp.Or(m[gateway.KeyMessageID], msg.UUID))
	// Legacy senders put anything here, so only a valid ID is used.
	if id := m[gateway.KeyContextID]; uuid.Validate(id) == nil {
		add(semconv.MessagingMessageConversationIDKey, id)
	}
	add(KeyTenant, m[gateway.KeyTenantID])
	add(KeyEndpoint, cmp.Or(m[gateway.KeyReceivingEndpointID], m[gateway.KeyEndpointID]))
	add(KeyMessageType, m[gateway.KeyMessageType])
	add(KeyEventType, m[gateway.KeyEventType])
	if t.config.Filename {
		add(KeyFilename, m[gateway.KeyFilename])
	}
	size := len(msg.Payload)
	if m[gateway.KeyPayloadMode] != "" { // it is elsewhere
		if n, err := strconv.Atoi(m[gateway.KeyPayloadSize]); err == nil {
			size = n
		}
	}
	return append(all, semconv.MessagingMessageBodySize(size))
}

// fail gives a span the status of an error. Its text may name the payload.
func fail(span trace.Span, err error, msg *message.Message) {
	span.SetStatus(codes.Error, router.RedactError(err, msg))
	span.SetAttributes(semconv.ErrorTypeKey.String(router.ClassOf(err).String()))
}

// seconds is the value of KeyDelay.
func seconds(d time.Duration) attribute.KeyValue { return KeyDelay.Float64(d.Seconds()) }
