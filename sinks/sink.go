package sinks

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
)

// KeyDedupID is the metadata key of a message's deduplication ID. A sink whose
// broker recognises duplicates hands it to the broker (NATS: Nats-Msg-Id), so
// that a publish repeated after a lost acknowledgement is stored once.
//
// A sink treats two messages as copies of each other when both the topic and
// the ID are equal, and may then keep only the first. So whoever sets the key
// gives different IDs to messages that must both be kept in one topic: the
// results of a transformation that makes several messages out of one, and a
// message that returns to the poison topic after a replay.
//
// Without the key, or with an empty value, nothing is deduplicated.
const KeyDedupID = gateway.KeyDedupID

// A Sink is a Watermill publisher with the promises that routing without loss
// needs. All methods are safe for concurrent use.
type Sink interface {
	// Publish stores the messages in the topic, in the order given, and returns
	// nil only when every one of them is stored as durably as Describe says. It
	// blocks until then, until the context of one of the messages ends, or
	// until the sink gives up.
	//
	// Topics consist of segments that TopicSegment made, joined by dots.
	//
	// When a message ended the wait by its context, the context's error is
	// returned as it is. Every other error is an [*Error] and matches exactly
	// one of [ErrTooLarge], [ErrRejected], [ErrUnavailable] and [ErrClosed].
	// After ErrTooLarge from a check before sending, nothing of the call was
	// sent; after any other error some or all of the messages may be stored,
	// and repeating the call may store them twice unless they carry
	// [KeyDedupID] and the broker knows duplicates.
	//
	// Publish neither changes the messages nor keeps them after it returned.
	// A call without messages returns nil, or ErrClosed after Close.
	//
	// Close is idempotent, may be called at any time and from several
	// goroutines, and waits, bounded, for calls of Publish that are under way.
	message.Publisher

	// Describe tells what the sink is. It does not block on the network.
	Describe() Description

	// TopicSegment maps any string to one legal segment of a topic, different
	// strings to different segments. Strings that are legal as they are stay
	// as they are wherever the broker's rules allow it.
	TopicSegment(value string) string

	// Health returns nil when a message could be stored now, as far as can be
	// told without storing one, or an error in the classes of Publish. It asks
	// the broker, and returns at the latest when ctx ends.
	Health(ctx context.Context) error
}

// Description is what a sink tells about itself, for start-up checks, size
// decisions and status pages.
type Description struct {
	// Name names the sink in logs, errors and metrics, e.g. "nats". It holds no
	// secret.
	Name string

	// MaxMessageSize is the largest message in bytes that the sink takes,
	// payload and encoded metadata together; 0 = no limit known. A larger
	// payload certainly fails with ErrTooLarge. One that is just below may too,
	// on account of its metadata: only Publish decides.
	MaxMessageSize int64

	// OpensPayloads says that the sink itself opens payloads that are not in the
	// message (gateway.KeyPayloadMode), as the publisher to the gateway does,
	// which streams them. Other sinks are given the payload, or a reference to a
	// claim check, never a message whose payload is still with the service.
	OpensPayloads bool

	// Durability is what an acknowledged message survives.
	Durability Durability

	// DurabilityNote is one sentence for people: why it is this durability, and
	// how to get a better one.
	DurabilityNote string
}

// Durability is what an acknowledged message survives, weakest first, so that
// levels compare with <.
type Durability int

const (
	// DurabilityUnknown: the sink cannot tell.
	DurabilityUnknown Durability = iota
	// DurabilityNone: nothing is stored.
	DurabilityNone
	// DurabilityMemory: lost when the broker's process ends.
	DurabilityMemory
	// DurabilityDisk: written to a file, but not forced to the medium before
	// the acknowledgement. Survives the broker's process, not a power cut.
	DurabilityDisk
	// DurabilitySynced: forced to the medium before the acknowledgement.
	// Survives a power cut, not the loss of the medium.
	DurabilitySynced
	// DurabilityReplicated: held by a majority of several brokers before the
	// acknowledgement.
	DurabilityReplicated
)

// String returns the level in lower case, e.g. "replicated".
func (d Durability) String() string {
	switch d {
	case DurabilityNone:
		return "none"
	case DurabilityMemory:
		return "memory"
	case DurabilityDisk:
		return "disk"
	case DurabilitySynced:
		return "synced"
	case DurabilityReplicated:
		return "replicated"
	default:
		return "unknown"
	}
}
