// Package core decides what becomes of each event that the gateway delivers: which routes get it, in
// which order, what is left with the service when there is too much, and what may be confirmed.
//
// It is a state machine: events and the time go in, and effects come out, which whoever owns the [Core]
// carries out. There is no goroutine, no lock, no clock and no random number in it, so the same
// input always leads to the same effects.
//
// The nouns: a [Message] is one event, and an [Item] is that message for one [Route]. The items of a route
// that have the same key are in a [Lane], in their order. Lanes, the tenants above them, and the routes
// above those are the nodes of a tree, which knows of each node how much of it is open and when it
// last finished something. The window is the root of this tree, and leaves with the service what a node that is
// behind others has above its share. The ledger knows of each message that the service may deliver again
// what has become of it, and files what waits for its file. README.md has the rules.
package core
