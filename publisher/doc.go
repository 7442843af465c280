// Package publisher turns POST /messages of the gateway into a Watermill
// [message.Publisher].
//
// # Headers
//
// The metadata of a message becomes the headers of the request; the keys are
// those of package gateway (gateway.KeyMessageType and so on). What is absent,
// or empty, comes from [Config] or is made up:
//
//	message type       the topic
//	tenant, endpoint   Config
//	teamset context    Config
//	direct recipients  Config
//	is publish         true without direct recipients, else false
//	context ID         see below
//	sent timestamp     now
//
// A list of direct recipients that is there and empty is an error: to leave it
// out means to publish to everyone. Other metadata is not sent; see
// [EnvelopeMarshaler] for applications that need it. A received message can be
// sent on as it is, once its sender and recipients are set.
//
// # Context ID
//
// The context ID is the application's ID of the payload, by which receivers
// recognise a copy. Context ID and sent timestamp are written back into the
// metadata before the first attempt, so that publishing the same message again
// sends the same ones. The context ID is the first of these that there is:
//
//   - gateway.KeyContextID in the metadata. One that is no UUID is an error, but
//     on a received message, where legacy senders use arbitrary strings, a UUID
//     derived from it takes its place.
//   - the message's UUID, when it is one.
//   - a UUID derived from the topic and gateway.KeyDedupID. A router gives every
//     attempt a fresh copy of the message, which loses what was written back; it
//     sets this key, so all attempts have one context ID nevertheless.
//   - a new UUID.
//
// So two messages with different payloads need different UUIDs; and a message
// made out of a received one, with its metadata, should drop
// gateway.KeyContextID, or both count as the same payload to receivers that
// look at nothing else.
//
// # Payloads elsewhere
//
// A message with gateway.KeyPayloadMode refers to a payload that is stored
// elsewhere (see [ClaimCheck]). It is streamed to the service in constant
// memory. Its size is gateway.KeyPayloadSize; without that the payload is
// opened once more to learn it.
//
// # Errors
//
// Publish checks every message before it sends the first. What it finds names
// the metadata key and the rule in a [*MetadataError]. Its error is a
// [*PublishError], which tells for each message what became of it and matches
// the sentinels of package gateway with errors.Is.
package publisher
