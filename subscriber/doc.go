// Package subscriber is the gateway's event stream as a Watermill subscriber. A message is
// confirmed to the gateway after every subscription that takes it has acked it.
//
//	sub, err := subscriber.New(subscriber.Config{Client: client}, nil)
//	…
//	messages, err := sub.Subscribe(ctx, subscriber.AllData) // or a message type, or an event type
//	for msg := range messages {
//		…
//		msg.Ack()
//	}
//	err = sub.Close() // sends the last confirmations
//
// Package router reads a Subscriber in routes, with retries, deduplication and a poison
// queue. Watermill's Router does too; set [Config].Ready then.
//
// Delivery is at least once. A nacked message is redelivered after a backoff, and what is
// unconfirmed when the process ends on the next connection. An event that is redelivered
// while its first copy is open, or soon after that was confirmed, is joined to it.
//
// By default, messages of one receiving endpoint are delivered one at a time and in order,
// those of different endpoints in parallel. [Config].MaxInFlight and MaxInFlightBytes bound
// what is in flight. At the limit the stream is not read; what a slow endpoint, tenant or
// subscription has too much of is left with the service, and comes again after a reconnect.
//
// Messages carry the metadata keys of package gateway. Their UUID is the same on every
// delivery, and another one for each endpoint that gets the message; the message ID is in
// gateway.KeyMessageID.
package subscriber
