// Package router carries messages from Watermill subscribers to sinks without
// losing any. A [Route] says where messages come from, what happens to them and where
// they go. It reads its subscription itself, not through Watermill's own Router, and
// runs each message under the same chain of Watermill middlewares, outside in:
//
//	poison queue → retry → dedup → recoverer → handler, which publishes to the sink
//
// The sink is written inside the handler, so the chain covers it: a message is
// acknowledged only after the sink (or the poison queue) holds it.
//
// # What happens to a failure
//
// [Classify] alone decides. An error may decide for itself ([Permanent],
// [Outage], [WithClass], or a method ErrorClass), and the application for errors of
// others ([Config.Classify]):
//
//   - [ClassPermanent]: to the poison queue at once.
//   - [ClassHandler]: tried [RetrySettings.MaxAttempts] times, then to the poison queue.
//   - [ClassOutage]: retried until it succeeds. Never to the poison queue.
//   - [ClassShutdown], [ClassRedeliver]: returned (nacked); the subscriber
//     delivers the message again, perhaps in the next run. Never to the poison queue.
//
// When the poison queue cannot take a message, the message is returned too.
//
// A handler may give its message a context of its own, or have middlewares do so, and end
// it: that is a matter of the handler. Its results are published in the context of the
// delivery, with the values of the handler's.
//
// # Delivery
//
// At least once. [Dedup] recognizes what was handled before and acknowledges it
// without handling it again; a key is recorded only after the handler succeeded.
//
// # Use without this Router
//
// [PoisonQueue], [Retry], [Dedup] and [NewRecoverer] are plain Watermill
// middlewares, each useful alone in any Watermill Router.
package router
