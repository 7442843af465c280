// Package envelope packs a complete Watermill message, including UUID and metadata, into one payload.
//
// The format is the magic "AGM1", the UUID, the number of metadata entries, the entries as key and value sorted by key, and
// the unmodified payload. Numbers are four bytes, big-endian; UUID, keys and values are a number, their length in bytes,
// followed by the bytes. The same message always yields the same bytes, so that receivers recognize a copy.
//
// The entry [payloadSize] is the length of the payload in bytes, so that nobody takes a part of an envelope, which the service
// delivers of one that is larger than its chunks, for the whole. Older senders do not write it.
//
// All other keys that begin with [reserved] are omitted by Pack and dropped by Unpack: if a sender could choose them, it would
// decide where the receiver forwards a message or which stored payload the message refers to.
package envelope

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// HeadSize is how many bytes tell an envelope.
const HeadSize = len(magic)

const (
	magic    = "AGM1"
	reserved = "x-router-"
	// payloadSize is reserved, so that older receivers drop it.
	payloadSize = reserved + "payload-size"
	// maxHead bounds everything before the payload, in bytes.
	maxHead = 16 << 20
)

var (
	// ErrNotEnvelope means that a payload does not begin with the magic.
	ErrNotEnvelope = errors.New("not an envelope")
	// ErrMalformed means that a payload begins with the magic but is not an envelope.
	ErrMalformed = errors.New("envelope: malformed")
	// ErrPart means that a payload is the beginning of an envelope, or that something follows it.
	ErrPart = errors.New("envelope: not whole")
)

// Pack returns UUID, metadata and payload of msg as one payload.
func Pack(msg *message.Message) ([]byte, error) {
	keys := append(slices.DeleteFunc(slices.Collect(maps.Keys(msg.Metadata)), isReserved), payloadSize)
	slices.Sort(keys)
	value := func(key string) string {
		if key == payloadSize {
			return strconv.Itoa(len(msg.Payload))
		}
		return msg.Metadata[key]
	}
	size := len(magic) + 4 + len(msg.UUID) + 4
	for _, k := range keys {
		size += 4 + len(k) + 4 + len(value(k))
	}
	if size > maxHead {
		return nil, fmt.Errorf("envelope: UUID and metadata take %d bytes, at most %d are allowed", size, maxHead)
	}
	out := make([]byte, 0, size+len(msg.Payload))
	out = append(out, magic...)
	out = appendString(out, msg.UUID)
	out = appendNumber(out, len(keys))
	for _, k := range keys {
		out = appendString(out, k)
		out = appendString(out, value(k))
	}
	return append(out, msg.Payload...), nil
}

// Unpack reverses Pack. The returned payload is a subslice of data. It returns [ErrNotEnvelope] without the magic,
// [ErrMalformed] for what Pack does not write, and [ErrPart] if the payload does not have the size that Pack has written.
func Unpack(data []byte) (uuid string, metadata message.Metadata, payload []byte, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return "", nil, nil, ErrNotEnvelope
	}
	d := decoder{rest: rest}
	uuid = d.string()
	n := d.number()
	metadata = message.Metadata{}
	previous, packed := "", ""
	for i := 0; i < n && !d.failed; i++ {
		key := d.string()
		if i > 0 && key <= previous {
			return "", nil, nil, ErrMalformed // twice, or out of order
		}
		previous = key
		switch value := d.string(); {
		case key == payloadSize:
			packed = value
		case !isReserved(key):
			metadata[key] = value
		}
	}
	if d.failed || len(data)-len(d.rest) > maxHead {
		return "", nil, nil, ErrMalformed
	}
	if packed != "" && packed != strconv.Itoa(len(d.rest)) {
		return "", nil, nil, fmt.Errorf("%w: its payload has %d of %s bytes", ErrPart, len(d.rest), packed)
	}
	return uuid, metadata, d.rest, nil
}

// Begins reports whether a payload that begins with head, of [HeadSize] bytes, is in an envelope.
func Begins(head []byte) bool { return string(head) == magic }

// isReserved is case-insensitive, because header names are.
func isReserved(key string) bool {
	return len(key) >= len(reserved) && strings.EqualFold(key[:len(reserved)], reserved)
}

// appendNumber appends n; maxHead ensures that it fits.
func appendNumber(b []byte, n int) []byte { return binary.BigEndian.AppendUint32(b, uint32(n)) }

func appendString(b []byte, s string) []byte { return append(appendNumber(b, len(s)), s...) }

// decoder reads fields from a payload. After a failure it returns zero values.
type decoder struct {
	rest   []byte
	failed bool
}

func (d *decoder) number() int {
	if d.failed || len(d.rest) < 4 {
		d.failed = true
		return 0
	}
	n := binary.BigEndian.Uint32(d.rest)
	d.rest = d.rest[4:]
	if n > math.MaxInt32 {
		d.failed = true
		return 0
	}
	return int(n)
}

func (d *decoder) string() string {
	n := d.number()
	if d.failed || n > len(d.rest) {
		d.failed = true
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}
