// Package tracing follows messages with OpenTelemetry: from the gateway's event, through
// every attempt and the sink, to the confirmation, and on through the broker by the W3C
// trace context in the message's headers. A program that does not import it does not
// compile OpenTelemetry.
//
// Everything is a wrapper or a hook of an existing component:
//
//	t, err := tracing.New(tracing.Config{TracerProvider: provider})
//
//	sub, err := subscriber.New(subscriber.Config{Client: client, Hooks: t.Hooks(subscriber.Hooks{})}, nil)
//	from := t.Subscriber(tracing.SystemGateway, sub)   // once for each subscriber; routes share it
//	to := t.Sink("nats", sink)                         // once for each sink, the poison queue as well
//
//	r, err := router.New(router.Config{
//		Poison:   to,
//		Chain:    t.Chain(nil),
//		Observer: t.Observer(metrics.NewObserver(nil)),
//	}, nil)
//	err = r.Add(router.Route{From: from, To: to, …})
//
// Routes to the gateway have the same parts: t.Subscriber("kafka", …) and t.Sink around the
// gateway's publisher; t.Publisher is for programs that publish without a router. If
// metrics wrap a sink as well, tracing goes outside: t.Sink("nats", measured.Wrap("nats",
// sink)).
//
// These are the spans of one message:
//
//	process ALL_DATA              consumer, from delivery to ack or nack
//	├─ attempt farm data          one for each attempt of the route
//	│  └─ publish nats            producer; its context travels with the message
//	│     └─ process farm.>       consumer of whoever reads the broker
//	└─ confirm                    from the ack to the service's answer
//
// The first span starts a trace, or continues the one whose traceparent is in the message's
// metadata. What happens on the way becomes an event of the first span: retry, duplicate,
// poisoned, returned.
//
// Spans carry IDs, types, sizes and names of topics. They never carry payloads,
// and filenames only when [Config.Filename] says so; texts of errors are those of
// router.RedactError.
//
// All methods of a nil *Tracing return what they are given, so that a program with optional
// tracing needs only one code path.
package tracing
