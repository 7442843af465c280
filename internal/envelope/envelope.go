// Package envelope packs a complete Watermill message, including UUID and metadata,
// into one payload, for senders and receivers that both use it: the gateway
// itself does not transmit arbitrary metadata.
//
// The format is the magic "AGM1", the UUID, the number of metadata entries, the
// entries as key and value sorted by key, and the unmodified payload.
// Numbers are four bytes, big-endian; UUID, keys and values are a
// number, their length in bytes, followed by the bytes. The same
// message always yields the same bytes, so that receivers recognize a copy.
//
// Keys that begin with [reserved] are omitted by Pack and dropped by Unpack.
// The service provides what the receiver needs of them. If a sender could choose
// them, it would decide where the receiver forwards a message or
// which stored payload the message refers to.
package envelope

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	magic    = "AGM1"
	reserved = "x-router-"
	// maxHead bounds everything before the payload, in bytes.
	maxHead = 16 << 20
)

var (
	// ErrNotEnvelope means that a payload does not begin with the magic.
	ErrNotEnvelope = errors.New("not an envelope")
	// ErrMalformed means that a payload begins with the magic but is not an envelope.
	ErrMalformed = errors.New("envelope: malformed")
)

// Pack returns UUID, metadata and payload of msg as one payload.
func Pack(msg *message.Message) ([]byte, error) {
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(msg.Metadata)), isReserved)
	size := len(magic) + 4 + len(msg.UUID) + 4
	for _, k := range keys {
		size += 4 + len(k) + 4 + len(msg.Metadata[k])
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
		out = appendString(out, msg.Metadata[k])
	}
	return append(out, msg.Payload...), nil
}

// Unpack reverses Pack. The returned payload is a subslice of data. It
// returns [ErrNotEnvelope] if data does not begin with the magic, and
// [ErrMalformed] if the rest is not in the format that Pack writes.
func Unpack(data []byte) (uuid string, metadata message.Metadata, payload []byte, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return "", nil, nil, ErrNotEnvelope
	}
	d := decoder{rest: rest}
	uuid = d.string()
	n := d.number()
	metadata = message.Metadata{}
	previous := ""
	for i := 0; i < n && !d.failed; i++ {
		key := d.string()
		if i > 0 && key <= previous {
			return "", nil, nil, ErrMalformed // twice, or out of order
		}
		previous = key
		if value := d.string(); !isReserved(key) {
			metadata[key] = value
		}
	}
	if d.failed || len(data)-len(d.rest) > maxHead {
		return "", nil, nil, ErrMalformed
	}
	return uuid, metadata, d.rest, nil
}

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
