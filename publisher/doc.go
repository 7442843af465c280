// Package publisher turns POST /messages of the gateway into a Watermill
// [message.Publisher].
//
// # Headers
//
// The metadata of a message becomes the headers of the request; the keys are
// those of package gateway (gateway.KeyMessageType and so on). What is absent
// comes from [Config] or is made up:
//
//	message type       the topic
//	tenant, endpoint   Config
//	direct recipients  Config
//	is publish         true without direct recipients, else false
//	context ID         the message's UUID when it is one, else a new UUID
//	sent timestamp     now
//
// Context ID and sent timestamp are written back into the metadata before the
// first attempt, so that publishing the same message again sends the same ones
// and receivers recognise the duplicate. Other metadata is not sent; see
// [EnvelopeMarshaler] for applications that need it.
//
// # Errors
//
// Publish checks every message before it sends the first. Its error is a
// [*PublishError], which tells for each message what became of it and matches
// the sentinels of package gateway with errors.Is.
package publisher
