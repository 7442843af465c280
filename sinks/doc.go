// Package sinks is the contract between the router and the brokers it writes
// to: what a sink promises, which errors it returns, how topics are named.
// Packages sinks/nats and sinks/kafka keep it; [FromPublisher] turns any other
// Watermill publisher into a sink; package sinks/sinktest is the conformance
// suite for all of them.
//
// The package imports no broker.
package sinks
