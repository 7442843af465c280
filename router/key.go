package router

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/validate"
)

// Key names what [Dedup] recognizes. Equal keys mean copies of one message. It
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

// KeyFunc gives the keys of a message. Zero [Keys] are for a message that has no
// copies to be recognized by; it is then always handled. scope is [DedupConfig.Scope]
// and has to be part of each key. A KeyFunc must be safe for concurrent use and must
// not change the message.
type KeyFunc func(scope string, msg *message.Message) (Keys, error)

// NoKeys is the KeyFunc for handling every message, copies included.
func NoKeys(string, *message.Message) (Keys, error) { return Keys{}, nil }

// defaultNeverChunkBelow is the default of [DedupSettings.NeverChunkBelow]: 512 KiB.
const defaultNeverChunkBelow = 512 << 10

// DefaultKeys is the KeyFunc of messages that packages subscriber and publisher know.
//
// The delivery key consists of the scope, the event type, the receiving endpoint and the message IDs, in any order: it
// recognizes the same event, and one payload for two endpoints is two messages. That of a message that packages sources/nats
// and sources/kafka have delivered consists of the scope and its place with the broker (stream and sequence; cluster, topic,
// partition and offset; the time of storing), and it has no content key: two equal records are two messages. What another
// subscriber delivers with a [gateway.KeyDedupID], or a [gateway.KeyReceivedDedupID], has none either, and that ID in its delivery key.
//
// The content key recognizes what a sender has sent twice, under two message IDs. It consists of the scope, the event type,
// receiving and sending endpoint, direct recipients, context ID, message type, filename, teamset context ID and a
// 128-bit digest (XXH3) of the payload, or its SHA-256 in the claim check. There is none where two different messages may
// be equal in all of that: for payloads of 512 KiB and more, which may be chunks, for files, for payloads that have
// not been read yet (lazy), and without a context ID.
//
// Otherwise there are no keys without a receiving endpoint, and without both message IDs and context ID. DefaultKeys
// remembers nothing; what [NewKeyFunc] returns tells more chunks apart.
func DefaultKeys(scope string, msg *message.Message) (Keys, error) {
	keys, _ := defaultKeys(scope, msg, defaultNeverChunkBelow)
	return keys, nil
}

// content is what is known of a payload.
type content struct {
	sibling bool // it may have siblings: it has message and context ID, and is no file
	context Key  // the endpoint and the context ID, if sibling
	digest  Key  // of the payload; zero if it may be a chunk or is not known
}

func defaultKeys(scope string, msg *message.Message, below int64) (Keys, content) {
	if name := msgctx.Delivery(msg.Context()); name != "" {
		// What is in its metadata may be in that of others, which were made of the same.
		return Keys{Delivery: KeyOf(scope, "delivery", name)}, content{}
	}
	meta := msg.Metadata
	endpoint := meta[gateway.KeyReceivingEndpointID]
	if endpoint == "" {
		return Keys{}, content{}
	}
	var keys Keys
	var space [512]byte
	head := appendPart(space[:0], scope)
	head = appendPart(head, meta[gateway.KeyEventType])
	head = appendPart(head, endpoint)

	if buf, ok := appendIDs(append(head, 'i'), meta); ok {
		if made := cmp.Or(meta[gateway.KeyDedupID], meta[gateway.KeyReceivedDedupID]); made != "" { // by a route, with others that have all but this in common
			return Keys{Delivery: hash(appendPart(buf, made))}, content{}
		}
		keys.Delivery = hash(buf)
	}
	contextID := meta[gateway.KeyContextID]
	keys.MaybeRepeated = meta[gateway.KeyEventType] == string(gateway.EventFileReceived)
	if contextID == "" || keys.MaybeRepeated {
		return keys, content{}
	}
	// Without a message ID the content is all there is.
	c := content{sibling: keys.Delivery != (Key{})}
	if c.sibling {
		// Should two of them be equal, their payloads differ, and are kept.
		c.context = Key(xxh3.Hash128(appendPart(appendPart(head[len(head):], endpoint), contextID)).Bytes())
	}
	if c.sibling && payloadSize(msg) >= below {
		keys.MaybeRepeated = true
		return keys, c
	}
	switch sum := meta[gateway.KeyPayloadSHA256]; {
	case sum != "": // the payload is elsewhere
		c.digest = KeyOf("sha256", sum)
	case meta[gateway.KeyPayloadMode] == "":
		c.digest = Key(xxh3.Hash128(msg.Payload).Bytes())
	default:
		keys.MaybeRepeated = true
		return keys, c
	}
	buf := append(head, 'c')
	for _, name := range [...]string{
		gateway.KeyEndpointID, gateway.KeyDirectRecipients, gateway.KeyContextID,
		gateway.KeyMessageType, gateway.KeyFilename, gateway.KeyTeamsetContextID,
	} {
		buf = appendPart(buf, meta[name])
	}
	keys.Content = hash(append(buf, c.digest[:]...))
	return keys, c
}

// payloadSize returns the size of the payload in bytes, wherever it is, and more than any
// payload has if it is not known.
func payloadSize(msg *message.Message) int64 {
	if msg.Metadata[gateway.KeyPayloadMode] == "" {
		return int64(len(msg.Payload))
	}
	size, err := strconv.ParseInt(msg.Metadata[gateway.KeyPayloadSize], 10, 64)
	if err != nil || size < 0 {
		return math.MaxInt64
	}
	return size
}

// maxContexts is of how many context IDs the siblings are remembered at least; of twice as many at most.
const maxContexts = 1 << 14

// siblings knows which context IDs have payloads that differ.
type siblings struct {
	below atomic.Int64

	// young and old have the digest of all payloads of a context ID, zero if they differ; old the earlier ones.
	mu         sync.Mutex
	young, old map[Key]Key
}

// KeysConfig configures [NewKeyFunc].
type KeysConfig struct {
	// NeverChunkBelow is [DedupSettings.NeverChunkBelow], with its default.
	NeverChunkBelow int64
}

// NewKeyFunc returns the KeyFunc that a [Dedup] without one has, or an error that matches [ErrConfig]. It is [DefaultKeys]
// with a memory: there is no content key for a payload under a context ID that had another payload before (at the
// same endpoint, among the latest 16,384), because both are probably chunks; and a file whose parts are smaller than
// NeverChunkBelow lowers it for the messages after it.
func NewKeyFunc(config KeysConfig) (KeyFunc, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	s := siblings{young: make(map[Key]Key), old: make(map[Key]Key)}
	s.below.Store(cmp.Or(config.NeverChunkBelow, defaultNeverChunkBelow))
	return func(scope string, msg *message.Message) (Keys, error) {
		below := s.learn(msg)
		keys, c := defaultKeys(scope, msg, below)
		if c.sibling && !s.alike(c) {
			keys.Content, keys.MaybeRepeated = Key{}, true
		}
		return keys, nil
	}, nil
}

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c KeysConfig) Validate() error {
	var e validate.Errors
	validate.NotNegative(&e, "NeverChunkBelow", c.NeverChunkBelow)
	return e.Err(ErrConfig)
}

// learn takes in how large the parts of a file are, and returns the size from which on
// payloads may be chunks.
func (s *siblings) learn(msg *message.Message) int64 {
	below := s.below.Load()
	if msg.Metadata[gateway.KeyEventType] != string(gateway.EventFileReceived) {
		return below
	}
	// One part has no siblings. All parts but the last one have the same size, so that
	// is the average at least.
	n := int64(len(messageIDs(msg.Metadata)))
	size := payloadSize(msg)
	if n <= 1 || size == math.MaxInt64 {
		return below
	}
	part := (size + n - 1) / n
	for part < below {
		if s.below.CompareAndSwap(below, part) {
			return part
		}
		below = s.below.Load()
	}
	return below
}

// alike takes in a payload, and reports whether all payloads under its context ID have been
// the same.
func (s *siblings) alike(c content) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	digest, known := s.young[c.context]
	if !known {
		digest, known = s.old[c.context]
	}
	if known && digest != c.digest {
		c.digest = Key{}
	}
	if len(s.young) >= maxContexts {
		s.young, s.old = s.old, s.young
		clear(s.young)
	}
	s.young[c.context] = c.digest
	return c.digest != (Key{})
}

// appendIDs appends the message IDs, sorted, and reports whether there are any.
func appendIDs(buf []byte, meta message.Metadata) ([]byte, bool) {
	ids := messageIDs(meta)
	for _, id := range ids {
		buf = appendPart(buf, id)
	}
	if id := meta[gateway.KeyMessageID]; id != "" && ids == nil {
		return appendPart(buf, id), true
	}
	return buf, ids != nil
}

// messageIDs returns the message IDs of a file, sorted.
func messageIDs(meta message.Metadata) []string {
	list := meta[gateway.KeyMessageIDs]
	if list == "" {
		return nil
	}
	ids := strings.Split(list, ",")
	for i := range ids {
		ids[i] = strings.TrimSpace(ids[i])
	}
	slices.Sort(ids)
	return ids
}
