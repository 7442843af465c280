// Package pipeline makes a running bridge of a configuration. It is also the
// reference for embedding agrimill: each file puts together one part of it.
//
//	gateway.go     the client, the directory of tenants, the subscriber
//	endpoints.go   endpoints that are made when the bridge starts
//	sinks.go       where messages go, opened when they can be reached
//	sources.go     where messages come from on their way to the gateway
//	filter.go      which messages a route carries
//	dedup.go       the memory of what was handled
//	generation.go  the routes of one configuration, in a router
//	run.go         start, run, stop
//	reload.go      another configuration, without a restart
//	watch.go       what changes is logged; what cannot go on ends the bridge
//	status.go      the state of everything, for probes and pages
//
// # What is down does not stop it
//
// A sink that cannot be reached when the bridge starts is opened when it can:
// until then the messages wait, unconfirmed, as in any outage. The same holds for the
// gateway. What ends a bridge is a mistake in the configuration, and a gateway
// that refuses it: the credentials before they were accepted once, or the stream
// for good ([ErrRefused]).
//
// # Reload
//
// A new configuration is taken over by draining the router and starting another
// one on the same gateway client, subscriber and sinks. Two never run at the same
// time, a route acks only what its sink has stored, and the event stream is opened
// again only when all new routes are subscribed, so nothing is lost and nothing is
// confirmed early: what the old router did not finish comes again, and what it had
// stored is recognised by the memory of duplicates, which both share.
package pipeline
