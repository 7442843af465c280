// Package pipeline builds and runs a pipeline from a configuration. It is also the
// reference for embedding agrimill: each file assembles one part of it.
//
//	gateway.go     the client, the directory of tenants, the subscriber
//	endpoints.go   endpoints that are made when agrimill starts
//	sinks.go       where messages go, opened when they can be reached
//	sources.go     where messages come from on their way to the gateway
//	filter.go      which messages a route carries, and what it makes of farm data
//	dedup.go       the memory of what was handled
//	generation.go  the routes of one configuration, in a router
//	run.go         start, run, stop
//	reload.go      another configuration, without a restart
//	lognames.go    what people call the IDs in the log
//	watch.go       what changes is logged; what cannot continue ends agrimill
//	replay.go      the routes again, for poisoned messages only
//	status.go      the state of everything, for probes and pages
//
// # Outages do not stop it
//
// A sink that is unreachable when agrimill starts is opened once it can be: until then
// messages wait, unconfirmed, as in any outage. The same holds for the gateway. A pipeline
// ends only because of a mistake in the configuration, or if the gateway refuses it: the
// credentials before they were accepted once, or the stream for good ([ErrRefused]).
//
// # Reload
//
// A new configuration is applied by draining the router and starting another one on the
// same gateway client, subscriber and sinks. Two routers never run at the same time, a
// route acks only what its sink has stored, and the event stream is reopened only after all
// new routes are subscribed, so nothing is lost and nothing is confirmed early: what the
// old router did not finish is redelivered, and what it had stored is recognized by the
// dedup store, which both share.
package pipeline
