// Package router carries messages from Watermill subscribers to sinks without losing any.
//
//	r, err := router.New(router.Config{Poison: sink}, nil)
//	…
//	err = r.Add(router.Route{Name: "farm data", From: sub, Topic: subscriber.AllData, To: sink})
//	…
//	err = r.Run(ctx) // until ctx ends and open messages are finished
//
// A [Route] says where messages come from, what happens to them, and where they go. Each
// message runs under a chain of Watermill middlewares, outside in:
//
//	poison queue → retry → dedup → recoverer → handler, which publishes to the sink
//
// The sink is written inside the handler, so a message is acked only after the sink, or the
// poison queue, holds it. Delivery is at least once: [Dedup] drops copies of what was handled,
// and a key counts only after the handler succeeded.
//
// # What happens to a failure
//
// [ClassOf] decides, unless an error says so itself ([Permanent], [Outage], [WithClass], or a method ErrorClass), or
// [Config].Classify does:
//
//   - [ClassPermanent]: to the poison queue at once.
//   - [ClassHandler]: tried [RetrySettings].MaxAttempts times, then to the poison queue.
//   - [ClassOutage]: retried until it succeeds. Never to the poison queue.
//   - [ClassShutdown], [ClassRedeliver]: nacked; the subscriber delivers the message again, perhaps in the next run.
//
// A message that the poison queue cannot take is nacked, too. Results of a handler are published in the context of the
// delivery, whatever context the handler gave its message.
//
// [PoisonQueue], [Retry], [Dedup] and [NewRecoverer] are plain middlewares, each useful alone in Watermill's Router.
package router
