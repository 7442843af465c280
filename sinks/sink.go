package sinks

import (
	"context"

	"github.com/agrimill/agrimill/internal/enum"

	"github.com/ThreeDotsLabs/watermill/message"
)

// KeyOvertaken is the metadata key of a message that failed while messages of its key that came
// after it were on their way, see [Description].Pipelined: the number of those, any of which may be
// stored before it. A broker may have stored the message itself as well, and only its answer was
// lost; then this one is a copy, and Receipt.Duplicate where the sink knows.
const KeyOvertaken = "x-agrimill-overtaken"

// Sink is a Watermill publisher with the promises that routing without loss
// needs. All methods are safe for concurrent use.
//
// The metadata gateway.KeyDedupID is the deduplication ID of a message. A sink whose
// broker recognizes duplicates hands the ID to the broker (NATS: Nats-Msg-Id), so
// that a publish repeated after a lost acknowledgment is stored once.
//
// A sink treats two messages as copies of each other when both the topic and
// the ID are equal, and may then keep only the first. So a caller that sets the key
// gives different IDs to messages that must both be kept in one topic: the
// results of a transformation that makes several messages out of one, and a
// message that returns to the poison topic after a replay.
//
// Messages with the same ID are one message, whatever they contain: the sink never puts a later copy
// in the place of the first one, or a part of it, such as its metadata beside the
// first one's payload. It stores the first one alone, and reports the others as
// [Receipt.Duplicate], or each of them as a whole.
//
// Without the key, or with an empty value, nothing is deduplicated.
type Sink interface {
	// Publish stores the messages in the topic, in the order given, and returns
	// nil only when every one of them is stored as durably as Describe says. It
	// blocks until then, until the context of one of the messages ends, or
	// until the sink gives up.
	//
	// Topics consist of segments that TopicSegment made, joined by dots.
	//
	// When a message ended the wait by its context, the error matches that of the
	// context, and is that alone if nothing was sent. Every other error is an [*Error] and matches exactly
	// one of [ErrTooLarge], [ErrRejected], [ErrUnavailable] and [ErrClosed].
	// After ErrTooLarge from a check before sending, or for a message that is nil,
	// nothing of the call was sent; after any other error some or all of the messages may be stored,
	// and repeating the call may store them twice unless they carry
	// gateway.KeyDedupID and the broker knows duplicates.
	//
	// Publish neither changes the messages nor keeps them after it returned.
	// A call without messages returns nil, or ErrClosed after Close.
	//
	// Close is idempotent, may be called at any time and from several
	// goroutines, and waits, bounded, for calls of Publish and publications that are
	// under way. Those that are not done by then fail with ErrClosed.
	message.Publisher

	// PublishAsync is the first half of Publish: it gives the message its place behind
	// all others of its topic, and returns without waiting until it is stored, which the
	// publication reports. It blocks only for back-pressure, and while the sink looks up
	// a topic that is new to it, at the latest until the message's context ends. An error
	// means that the message was not sent. Errors, here and in the publication, are those
	// of Publish.
	//
	// The publication is resolved once it is known what became of the message, when the
	// sink gives up, or by Close. The end of the message's context ends it only where what
	// is on its way can be taken back. Until then the message must not be changed.
	//
	// Description.Ordered says what the order of places is worth.
	PublishAsync(topic string, msg *message.Message) (*Publication, error)

	// Describe tells what the sink is. It does not block on the network.
	Describe() Description

	// Topics says which topics Publish takes.
	Topics

	// Health returns nil when a message could be stored now, as far as can be
	// told without storing one, or an error in the classes of Publish. It asks
	// the broker, and returns at the latest when ctx ends.
	Health(ctx context.Context) error
}

// Topics says which topics a sink takes. The methods need no connection: the Config of each sink of
// this module has them too, with the answers of its sink.
type Topics interface {
	// TopicSegment maps any string to one legal segment of a topic, different
	// strings to different segments. Strings that are legal as they are stay
	// as they are wherever the broker's rules allow it. A sink whose topic is a value
	// that receivers read, as the message type of the gateway, returns every string
	// as it is, and Publish rejects topics that are not legal.
	TopicSegment(value string) string

	// CheckTopic returns nil if the sink can store messages in the topic, or else an [*Error] that
	// matches ErrRejected, as Publish does. See [TopicTemplate.Check] for templates.
	CheckTopic(topic string) error
}

// Recovering is a [Sink] that notices when it can be reached again. A route whose
// sink is one resumes at once after an outage, instead of with its next attempt.
type Recovering interface {
	// Recovered returns a channel that is closed when the sink can be reached
	// again the next time, after it could not be. It does not block, and may be
	// called with every message. Whether messages are stored then, only Publish
	// tells.
	Recovered() <-chan struct{}
}

// As returns the first of sink and the sinks that it wraps that is a T, such as [Recovering] or [Syncing],
// and whether there is one. A wrapper has a method Unwrap() Sink.
func As[T any](sink Sink) (found T, ok bool) {
	for sink != nil {
		if found, ok = sink.(T); ok {
			return found, true
		}
		wrapper, wraps := sink.(interface{ Unwrap() Sink })
		if !wraps {
			break
		}
		sink = wrapper.Unwrap()
	}
	return found, false
}

// DescribeAs returns the description of inner for a sink that wraps it and leaves the messages that it is given as they are.
func DescribeAs(wrapper, inner Sink) Description {
	d := inner.Describe()
	if d.ReadOnly == inner {
		d.ReadOnly = wrapper
	}
	return d
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

	// TopicIsType says that the topic is the message type that receivers read, as it is for the publisher to the
	// gateway. The type that router.Route.ToTopic or TopicFunc names then replaces the one in the metadata.
	TopicIsType bool

	// ReadOnly is the sink itself if it changes neither metadata nor payload of a message that it is given, at no
	// time. A route then gives it the messages that it received, instead of copies. It is not a bool, so that a sink
	// that embeds another one and changes messages does not inherit it; one that changes none has [DescribeAs].
	ReadOnly Sink

	// Ordered says that messages of one topic are stored in the order of their places:
	// when one call of PublishAsync returned before another began, its message is stored
	// first. In Kafka that holds for messages of the same partition.
	//
	// It does not hold around a failure. A message may be stored although one before it
	// failed, and that one, published again, comes behind it; order holds again for
	// messages that are published after all publications of the topic are resolved. For
	// strict order, publish the next message of a key after the one before it is stored.
	//
	// Without Ordered the messages of a topic may be stored in any order.
	Ordered bool

	// Pipelined says that a route is to have several messages of a key on their way to the
	// sink at once, in the order of their places, if the route's subscriber delivers them so:
	// that of this module does, by key. What that is worth around a failure, Ordered says: the
	// route waits then until it is known what became of everything that is on its way, and
	// publishes what failed again, in its order, and with [KeyOvertaken]. Without Pipelined a
	// route publishes the next message of a key after the one before it is stored.
	Pipelined bool

	// Durability is what an acknowledged message survives.
	Durability Durability

	// Synced is when what is acknowledged survives a power cut. With an interval the sink is [Syncing].
	Synced Synced

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
	// DurabilityNone: nothing is stored, or what is stored is deleted to make room
	// for later messages.
	DurabilityNone
	// DurabilityMemory: lost when the broker's process ends.
	DurabilityMemory
	// DurabilityDisk: written to a file, but not forced to the medium before
	// the acknowledgment. Survives the broker's process, not a power cut.
	DurabilityDisk
	// DurabilitySynced: forced to the medium before the acknowledgment.
	// Survives a power cut, not the loss of the medium.
	DurabilitySynced
	// DurabilityReplicated: held by a majority of several brokers before the
	// acknowledgment.
	DurabilityReplicated
)

var durabilities = []string{"unknown", "none", "memory", "disk", "synced", "replicated"}

// String returns the level in lower case, e.g. "replicated".
func (d Durability) String() string {
	if d < DurabilityUnknown || d > DurabilityReplicated {
		return "unknown"
	}
	return enum.Text(d, durabilities)
}

// UnmarshalText reads what String returns.
func (d *Durability) UnmarshalText(text []byte) error { return enum.Parse(d, text, durabilities) }
