// Package subscriber turns the event stream of the gateway (GET /events) into
// a Watermill [message.Subscriber]. Acking a message leads to a batched
// POST /confirmations.
//
// # Delivery
//
// Delivery is at least once. An event is confirmed only after every
// subscription that takes it has acked its message. A nacked message is
// redelivered after a backoff. Events still unconfirmed when the process ends
// are redelivered on the next connection. An event that is redelivered while its
// first copy is still open, or shortly after that copy was confirmed, is joined
// to the first copy instead of being delivered twice.
//
// By default, messages of one receiving endpoint are delivered one at a time,
// each after the previous one was acked; endpoints are delivered in parallel.
//
// # In-flight window
//
// [Config.MaxInFlight] and [Config.MaxInFlightBytes] bound the events in flight. At the
// limit the stream is not read, and TCP applies back-pressure to the service. In a full
// window, a key is stalled if its oldest message has been open, or unconfirmed, for a
// second, and so is a tenant or a subscription of which all keys are. Beside others that
// make progress, all stalled ones keep a quarter of the window, each an equal share. Further
// messages of theirs are left with the service until they have worked off three quarters of
// the share, or for 30 seconds, which double each time. A reconnect, at most one every four
// seconds, then brings them again, in order. If nothing makes progress, all keys share half
// of the window in the same way.
//
// # Metadata
//
// Messages carry the metadata keys of package gateway (gateway.KeyMessageType and
// so on). The message UUID is derived from the receiving endpoint and the message ID,
// those of all chunks for a file: it is the same on every delivery, and another one for
// each endpoint that gets the message. The message ID itself is in gateway.KeyMessageID.
package subscriber
