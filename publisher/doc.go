// Package publisher turns POST /messages of the gateway into a Watermill
// [message.Publisher], which is a [sinks.Sink] as well.
//
// # Headers
//
// The metadata of a message becomes the headers of the request; the keys are those of
// package gateway (gateway.KeyMessageType and so on). What is absent or empty comes from
// [Config] or has a default:
//
//	message type       the topic
//	tenant, endpoint   Config
//	teamset context    Config
//	direct recipients  Config
//	is publish         true without direct recipients, else false
//	context ID         see below
//	sent timestamp     now
//
// A topic that was configured is the message type, whatever the metadata says: that of a handler in Watermill's Router, and
// Route.ToTopic and Route.TopicFunc of package router. Only a topic given to Publish directly gives way to the metadata.
//
// An empty list of direct recipients is an error: leaving it out means publishing to
// everyone. Other metadata is not sent; see [EnvelopeMarshaler] for applications that need
// it. A received message can be forwarded unchanged, once its sender and recipients are
// set.
//
// # Context ID
//
// The context ID is the application's ID of the payload, by which receivers recognize a
// copy. It is derived from the message, so publishing the same message again sends the same
// one; [Publisher.ContextID] returns it. It is the first of these that is present:
//
//   - gateway.KeyContextID in the metadata. One that is no UUID is an error.
//     On a message with gateway.KeyEventType, which was received or made from one that
//     was, it is the sender's: a UUID derived from it, the payload, and the sender and the
//     recipients of what is sent takes its place. So two payloads never share one, and
//     sending the same on again sends the same one.
//   - the message's UUID, when it is one.
//   - a UUID derived from the topic and gateway.KeyDedupID, which a router sets.
//   - a UUID derived from the message's UUID when that is another string, such as a
//     ULID.
//   - a new UUID for each call of Publish. Give messages a UUID.
//
// So two messages with different payloads need different UUIDs. A route of package router
// sees to that for the messages that it makes of one, and keeps them over its retries.
//
// # Sent timestamp
//
// Within one call of Publish all attempts carry the same sent timestamp, and so do
// the attempts of a route of package router to deliver one message. An application
// that calls Publish again, and wants the same one, sets
// gateway.KeySentTimestamp.
//
// # Payloads elsewhere
//
// A message with gateway.KeyPayloadMode refers to a payload that is stored elsewhere (see
// [Config].ClaimCheck). It is streamed to the service in constant memory. Its size is
// gateway.KeyPayloadSize; without that, the payload is opened once more to determine it.
//
// # Errors
//
// Publish checks every message before it sends the first. A mistake is a [*MetadataError]
// that names the metadata key and the rule. With errors.As its error is a [*PublishError],
// which reports what became of each message, and with errors.Is it matches the sentinels of
// package gateway and one class of package sinks. If a message's context ends, the error is
// only that of the context.
package publisher
