// Package subscriber turns the event stream of the gateway (GET /events) into
// a Watermill [message.Subscriber]. The Ack of a message leads to a batched
// POST /confirmations.
//
// # Delivery
//
// Delivery is at least once. An event is confirmed only after every
// subscription that got it has acked its message; a message that is nacked is
// delivered again after a backoff; what is not confirmed when the process ends
// comes again with the next connection. An event that comes again while its
// first copy is still open, or was confirmed a short while ago, is joined to
// the first copy and not delivered twice.
//
// By default messages of one receiving endpoint are delivered one after the
// other, the next when the one before was acked, and endpoints in parallel.
//
// # Memory
//
// [Config.MaxInFlight] and [Config.MaxInFlightBytes] bound what is open. At the
// bound the stream is not read, and TCP holds the service back.
//
// # Metadata
//
// Messages carry the keys of package gateway (gateway.KeyMessageType and so
// on). The message UUID is the service's message ID; for a file it is derived
// from the IDs of its chunks, so it is the same at every delivery.
package subscriber
