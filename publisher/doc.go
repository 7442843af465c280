// Package publisher sends messages through the gateway: a Watermill [message.Publisher] whose
// topic is the message type, and a [sinks.Sink].
//
//	pub, err := publisher.New(publisher.Config{Client: client, TenantID: tenant, EndpointID: endpoint}, nil)
//	…
//	msg := message.NewMessage(watermill.NewUUID(), file) // one UUID per payload
//	err = pub.Publish("iso:11783:-10:taskdata:zip", msg)
//
// Publish returns when the gateway has answered. Publishing the same message again sends the same
// context ID, by which receivers recognize a copy ([Publisher.ContextID]). [Publisher.Send] sends a
// file that is not in memory. To send from a broker, make it the To of a route.
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
//	direct recipients  Config; an empty list is an error
//	is publish         true without direct recipients, else false
//	context ID         see [Publisher.ContextID]
//	sent timestamp     now, the same for all attempts of one call, and of a route
//
// A topic that was configured is the message type, whatever the metadata says: that of a
// handler in Watermill's Router, and Route.ToTopic and Route.TopicFunc of package router. In a
// call of your own, another type in the metadata than the topic is an error: send a received
// message on under its own type, or remove that. Other metadata is not sent, except with
// [EnvelopeMarshaler]: what cqrs and requestreply of Watermill send cannot be read without theirs,
// so it is an error outside of a route of package router and of what a handler in Watermill's Router returns.
//
// A message with gateway.KeyPayloadMode refers to a payload that is stored elsewhere (see
// [Config].ClaimCheck). It is streamed in constant memory. Without gateway.KeyPayloadSize it is
// opened once more to determine its size.
//
// # Errors
//
// A mistake is a [*MetadataError] that names the metadata key and the rule. With errors.As an
// error is a [*PublishError], which says what became of each message, also when a context has
// ended; with errors.Is it matches the sentinels of package gateway, and one class of package
// sinks or the error of the context.
package publisher
