package router

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/gateway"
)

// Key names what [Dedup] recognises. Equal keys mean copies of one message. It
// is the first half of a SHA-256.
type Key [16]byte

// String returns the key in hexadecimal.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// KeyOf makes a key of parts. Each part goes in with its length, so different
// lists of parts never give the same key: KeyOf("ab", "c") ≠ KeyOf("a", "bc").
func KeyOf(parts ...string) Key {
	var space [256]byte
	buf := space[:0]
	for _, part := range parts {
		buf = appendPart(buf, part)
	}
	return hash(buf)
}

func hash(data []byte) Key {
	sum := sha256.Sum256(data)
	return Key(sum[:len(Key{})])
}

func appendPart(buf []byte, part string) []byte {
	buf = binary.AppendUvarint(buf, uint64(len(part)))
	return append(buf, part...)
}

// KeyFunc gives the key of a message. ok is false for a message that has no
// copies to be recognised by, and a zero key means the same; it is then always handled. scope is
// [DedupConfig.Scope] and has to be part of the key. A KeyFunc must be safe for
// concurrent use and must not change the message.
//
// To the store it is the delivery key ([Keys.Delivery]); there is no content key yet.
type KeyFunc func(scope string, msg *message.Message) (key Key, ok bool, err error)

// NoKey is the KeyFunc for handling every message, copies included.
func NoKey(string, *message.Message) (Key, bool, error) { return Key{}, false, nil }

// DefaultKey is the KeyFunc of messages that packages subscriber and publisher
// know. The key consists of
//
//   - the scope, the event type and the receiving endpoint: one payload for two
//     endpoints is two messages
//   - sending endpoint and direct recipients, which messages on their way to the
//     gateway have: one payload sent to two recipients is two messages
//   - the context ID: a sender that repeats a payload repeats it
//   - a 128-bit digest (XXH3) of the payload, or its SHA-256 when it is stored
//     elsewhere (claim check): the chunks of one payload share the context ID
//     and must all be kept
//
// The message IDs stand for the context ID and the digest when there is no
// context ID (a file whose chunks were not seen), and for the digest when the
// payload was not read yet (lazy): their order does not matter. Then only a
// repeated delivery is recognised, not a sender's repetition.
//
// ok is false without a receiving endpoint, and without both context ID and
// message IDs: events about endpoints and authorizations, and messages that did
// not come from the gateway.
func DefaultKey(scope string, msg *message.Message) (Key, bool, error) {
	meta := msg.Metadata
	endpoint := meta[gateway.KeyReceivingEndpointID]
	if endpoint == "" {
		return Key{}, false, nil
	}
	contextID := meta[gateway.KeyContextID]

	var space [512]byte
	buf := appendPart(space[:0], scope)
	buf = appendPart(buf, meta[gateway.KeyEventType])
	buf = appendPart(buf, endpoint)
	buf = appendPart(buf, meta[gateway.KeyEndpointID])
	buf = appendPart(buf, meta[gateway.KeyDirectRecipients])
	buf = appendPart(buf, contextID)

	if contextID != "" {
		switch sum := meta[gateway.KeyPayloadSHA256]; {
		case sum != "": // the payload is elsewhere
			buf = append(buf, 's')
			return hash(appendPart(buf, sum)), true, nil
		case meta[gateway.KeyPayloadMode] == "":
			digest := xxh3.Hash128(msg.Payload).Bytes()
			buf = append(buf, 'd')
			return hash(append(buf, digest[:]...)), true, nil
		}
	}
	ids := messageIDs(meta)
	if len(ids) == 0 {
		return Key{}, false, nil
	}
	buf = append(buf, 'm')
	for _, id := range ids {
		buf = appendPart(buf, id)
	}
	return hash(buf), true, nil
}

// messageIDs returns the message IDs, sorted.
func messageIDs(meta message.Metadata) []string {
	if list := meta[gateway.KeyMessageIDs]; list != "" {
		ids := strings.Split(list, ",")
		for i := range ids {
			ids[i] = strings.TrimSpace(ids[i])
		}
		slices.Sort(ids)
		return ids
	}
	if id := meta[gateway.KeyMessageID]; id != "" {
		return []string{id}
	}
	return nil
}
