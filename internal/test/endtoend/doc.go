// Package endtoend holds the tests of the whole pipeline: a real gateway over
// HTTP, the subscriber, the router, and a real JetStream, under an oracle that
// compares the gateway's ledger with what an independent reader finds.
package endtoend
