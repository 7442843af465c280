package gateway

import (
	"bytes"
	"strings"

	"github.com/segmentio/asm/base64"

	"github.com/agrimill/agrimill/internal/isotime"
)

// flatKey is a field of a MESSAGE_RECEIVED.
type flatKey int

const (
	keyID flatKey = iota
	keyAppMessageID
	keyMessageType
	keyReceivingEndpointID
	keyFilename
	keyTenantID
	keyTeamsetContextID
	keyPayloadURI
	keyEventType
	keySentAt
	keyReceivedAt
	keyPayload
	keyUnknown
	keyCount

	keyCopied = keyEventType // an event keeps the strings before it
)

// flatObject is the result of the scan. Everything in it points into the data.
type flatObject struct {
	// str holds the strings; nil if the field is absent or null. The payload
	// has not been examined yet: it may contain anything but a quote.
	str  [keyCount][]byte
	seen uint32
}

// decodeFlat decodes the usual form of a MESSAGE_RECEIVED in one scan: a valid object without nested objects and lists,
// escapes, repeated names or invalid UTF-8. It returns nil for anything else, and otherwise what decodeObject would.
func decodeFlat(data []byte) *MessageReceived {
	var o flatObject
	if !o.scan(data) || string(o.str[keyEventType]) != string(EventMessageReceived) || !validUUID(o.str[keyReceivingEndpointID]) ||
		!validUUID(o.str[keyID]) || o.str[keyMessageType] == nil || o.str[keyAppMessageID] == nil || o.str[keySentAt] == nil {
		return nil
	}
	uri := o.str[keyPayloadURI]
	if (o.str[keyPayload] == nil) == (uri == nil) || (uri != nil && !validPayloadURI(string(uri))) {
		return nil
	}
	m := new(MessageReceived)
	var ok bool
	if m.SentAt, ok = isotime.Parse(o.str[keySentAt]); !ok {
		return nil
	}
	if s := o.str[keyReceivedAt]; s != nil {
		if m.ReceivedAt, ok = isotime.Parse(s); !ok {
			return nil
		}
	}
	if m.Payload, ok = o.payload(); !ok {
		return nil
	}
	text := o.text()
	m.ID = text[keyID]
	m.AppMessageID = text[keyAppMessageID]
	m.MessageType = text[keyMessageType]
	m.ReceivingEndpointID = text[keyReceivingEndpointID]
	m.Filename = text[keyFilename]
	m.TenantID = text[keyTenantID]
	m.TeamsetContextID = text[keyTeamsetContextID]
	m.PayloadURI = text[keyPayloadURI]
	return m
}

// text copies the fields that an event keeps into one string: a single allocation.
func (o *flatObject) text() (text [keyCopied]string) {
	n := 0
	for _, s := range o.str[:keyCopied] {
		n += len(s)
	}
	var b strings.Builder
	b.Grow(n)
	for _, s := range o.str[:keyCopied] {
		b.Write(s)
	}
	rest := b.String()
	for k, s := range o.str[:keyCopied] {
		text[k], rest = rest[:len(s)], rest[len(s):]
	}
	return text
}

// payload decodes the embedded payload, if there is one. It reports false for non-canonical input, such as a line break,
// which is not allowed in a JSON string.
func (o *flatObject) payload() ([]byte, bool) {
	src := o.str[keyPayload]
	if src == nil {
		return nil, true
	}
	if len(src)%4 != 0 {
		return nil, false
	}
	n := len(src) / 4 * 3
	if k := len(src); k > 0 && src[k-1] == '=' {
		n--
		if src[k-2] == '=' {
			n--
		}
	}
	dst := make([]byte, n)
	// SIMD for whole blocks, encoding/base64 for the rest: a skipped line break shows as a result that is too short.
	got, err := base64.StdEncoding.Decode(dst, src)
	return dst, err == nil && got == n
}

// scan fills o from data. It reports false for anything unusual.
func (o *flatObject) scan(data []byte) bool {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return false
	}
	i++
	for {
		// A name. An empty object is unusual, too.
		i = skipSpace(data, i)
		if i >= len(data) || data[i] != '"' {
			return false
		}
		n := bytes.IndexByte(data[i+1:], '"')
		if n < 0 || n > 64 {
			return false
		}
		name := data[i+1 : i+1+n]
		if !plain(name) {
			return false
		}
		i = skipSpace(data, i+n+2)
		if i >= len(data) || data[i] != ':' {
			return false
		}
		i = skipSpace(data, i+1)
		if i >= len(data) {
			return false
		}
		key := flatKeyOf(name)
		if key != keyUnknown {
			if o.seen&(1<<key) != 0 {
				return false
			}
			o.seen |= 1 << key
		}
		if i = o.value(key, data, i); i < 0 {
			return false
		}
		i = skipSpace(data, i)
		if i >= len(data) {
			return false
		}
		switch data[i] {
		case ',':
			i++
		case '}':
			return skipSpace(data, i+1) == len(data)
		default:
			return false
		}
	}
}

// value reads the value at data[i] and returns the position after it, or -1.
func (o *flatObject) value(key flatKey, data []byte, i int) int {
	switch c := data[i]; {
	case c == '"':
		n := bytes.IndexByte(data[i+1:], '"')
		if n < 0 {
			return -1
		}
		s := data[i+1 : i+1+n : i+1+n]
		if key != keyPayload && !plain(s) {
			return -1
		}
		o.str[key] = s // the entry of keyUnknown is never read
		return i + n + 2
	case c == 'n' && bytes.HasPrefix(data[i:], []byte("null")):
		return i + 4
	case c == 't' && key == keyUnknown && bytes.HasPrefix(data[i:], []byte("true")):
		return i + 4
	case c == 'f' && key == keyUnknown && bytes.HasPrefix(data[i:], []byte("false")):
		return i + 5
	case c >= '1' && c <= '9' && key == keyUnknown:
		for i < len(data) && data[i] >= '0' && data[i] <= '9' {
			i++
		}
		return i // what follows other than a comma or the end, such as a fraction, is unusual
	}
	return -1
}

func flatKeyOf(name []byte) flatKey {
	switch string(name) {
	case "event_type":
		return keyEventType
	case "id":
		return keyID
	case "app_message_id":
		return keyAppMessageID
	case "message_type":
		return keyMessageType
	case "sent_at":
		return keySentAt
	case "received_at":
		return keyReceivedAt
	case "payload":
		return keyPayload
	case "payload_uri":
		return keyPayloadURI
	case "receiving_endpoint_id":
		return keyReceivingEndpointID
	case "filename":
		return keyFilename
	case "tenant_id":
		return keyTenantID
	case "teamset_context_id":
		return keyTeamsetContextID
	}
	return keyUnknown
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r') {
		i++
	}
	return i
}
