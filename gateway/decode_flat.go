package gateway

import (
	"bytes"
	"strings"

	"github.com/segmentio/asm/base64"

	"github.com/agrimill/agrimill/internal/isotime"
)

// flatKey is a field of a MESSAGE_RECEIVED or FILE_RECEIVED.
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
	keySize
	keyMessageIDs
	keyUnknown
	keyCount

	keyCopied = keyEventType // an event keeps the strings before it
)

// flatObject is the result of the scan. Everything in it points into the data.
type flatObject struct {
	// str holds the strings; nil if the field is absent or null. The payload
	// has not been examined yet: it may contain anything but a quote.
	str     [keyCount][]byte
	seen    uint32
	size    int64
	hasSize bool
	ids     []byte // the contents of the message_ids array; non-empty if present
	idCount int
}

// decodeFlat decodes the usual form of a MESSAGE_RECEIVED or FILE_RECEIVED in
// one scan: a valid object without nested objects, escapes, repeated names or
// invalid UTF-8. It returns nil for anything else, whether invalid or merely
// unusual; decodeObject then handles it. A non-nil result equals what decodeObject
// would return.
func decodeFlat(name EventType, data []byte) Event {
	var o flatObject
	if !o.scan(data) || string(o.str[keyEventType]) != string(name) ||
		!validUUID(o.str[keyReceivingEndpointID]) || o.str[keyMessageType] == nil {
		return nil
	}
	uri := o.str[keyPayloadURI]
	if (o.str[keyPayload] == nil) == (uri == nil) || (uri != nil && !validPayloadURI(string(uri))) {
		return nil
	}
	if name == EventFileReceived {
		return o.file()
	}
	return o.message()
}

func (o *flatObject) message() Event {
	if !validUUID(o.str[keyID]) || o.str[keyAppMessageID] == nil || o.str[keySentAt] == nil {
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
	text, _ := o.text()
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

func (o *flatObject) file() Event {
	if !o.hasSize || o.ids == nil {
		return nil
	}
	f := &FileReceived{Size: o.size, MessageIDs: make([]string, o.idCount)}
	var ok bool
	if f.Payload, ok = o.payload(); !ok || f.Payload != nil && int64(len(f.Payload)) != f.Size {
		return nil
	}
	text, ids := o.text()
	f.ReceivingEndpointID = text[keyReceivingEndpointID]
	f.MessageType = text[keyMessageType]
	f.Filename = text[keyFilename]
	f.TenantID = text[keyTenantID]
	f.TeamsetContextID = text[keyTeamsetContextID]
	f.PayloadURI = text[keyPayloadURI]
	for i := range f.MessageIDs {
		f.MessageIDs[i] = ids[i*uuidLen : (i+1)*uuidLen]
	}
	return f
}

// text copies the fields that an event keeps, and the message IDs, into one string, so that all of them take a single
// allocation.
func (o *flatObject) text() (text [keyCopied]string, ids string) {
	n := o.idCount * uuidLen
	for _, s := range o.str[:keyCopied] {
		n += len(s)
	}
	var b strings.Builder
	b.Grow(n)
	for _, s := range o.str[:keyCopied] {
		b.Write(s)
	}
	for rest := o.ids; ; {
		i := bytes.IndexByte(rest, '"')
		if i < 0 {
			break
		}
		b.Write(rest[i+1 : i+1+uuidLen])
		rest = rest[i+uuidLen+2:]
	}
	ids = b.String()
	for k, s := range o.str[:keyCopied] {
		text[k], ids = ids[:len(s)], ids[len(s):]
	}
	return text, ids
}

// payload decodes the embedded payload, if there is one. It reports false for
// non-canonical input: a line break, which the standard library skips, is not allowed
// in a JSON string.
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
	// This uses SIMD for whole blocks of the alphabet and encoding/base64 for the rest;
	// both accept the same input. Since the exact size is known, a skipped
	// line break shows as a result that is too short.
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
		if n < 0 || key == keySize || key == keyMessageIDs {
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
	case c >= '0' && c <= '9' && (key == keySize || key == keyUnknown):
		return o.number(key, data, i)
	case c == '[' && key == keyMessageIDs:
		return o.list(data, i+1)
	}
	return -1
}

// number reads up to 18 digits, which always fit into an int64.
func (o *flatObject) number(key flatKey, data []byte, i int) int {
	from, n := i, int64(0)
	for ; i < len(data) && data[i] >= '0' && data[i] <= '9'; i++ {
		if i-from == 18 {
			return -1
		}
		n = n*10 + int64(data[i]-'0')
	}
	if data[from] == '0' && i-from > 1 {
		return -1
	}
	// A fraction or an exponent is rejected by the caller, which expects a comma.
	if key == keySize {
		o.size, o.hasSize = n, true
	}
	return i
}

// list reads an array of UUIDs, starting after its bracket.
func (o *flatObject) list(data []byte, i int) int {
	from := i - 1
	for i = skipSpace(data, i); ; i = skipSpace(data, i+1) {
		if o.idCount == 0 && i < len(data) && data[i] == ']' {
			break
		}
		end := i + uuidLen + 1
		if end >= len(data) || data[i] != '"' || data[end] != '"' || !validUUID(data[i+1:end]) {
			return -1
		}
		o.idCount++
		if i = skipSpace(data, end+1); i >= len(data) {
			return -1
		}
		if data[i] == ']' {
			break
		}
		if data[i] != ',' {
			return -1
		}
	}
	o.ids = data[from:i]
	return i + 1
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
	case "size":
		return keySize
	case "message_ids":
		return keyMessageIDs
	}
	return keyUnknown
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r') {
		i++
	}
	return i
}
