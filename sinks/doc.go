// Package sinks is the contract between a route and what it writes to: what a nil error of
// Publish promises, which errors there are, how topics are named. It imports no broker.
//
// Packages sinks/nats, sinks/kafka, sinks/blob and sinks/logsink keep it, as does package
// publisher. [FromPublisher] makes a sink of any other Watermill publisher. For a sink of
// your own, begin with the interface [Sink], and test it with package sinks/sinktest.
package sinks
