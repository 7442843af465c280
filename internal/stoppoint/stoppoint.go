// Package stoppoint names the places at which a test stops a process that has a lease. In a program
// that is built as usual they cost nothing and do nothing. One that is built with the tag stoppoints
// stops itself with SIGSTOP, as a whole, at the point named by the environment variable of [Env],
// the next time that it gets there after SIGUSR2. SIGCONT lets it go on from there.
package stoppoint

// Env is the environment variable with the point.
const Env = "AGRIMILL_STOPPOINT"

// Point is a place in the way of a message, or of the lease. The steps that begin there are those
// of which nothing may begin once the lease is over; Write and Confirm, between the last look at
// the clock and the write, are those that nothing can keep from landing.
type Point string

// The points, in the order of the way.
const (
	Receive Point = "receive" // an event was read from the stream, and not yet looked at
	Deliver Point = "deliver" // a message is about to be handed to its route
	Reserve Point = "reserve" // its route is about to reserve it in the dedup store
	Publish Point = "publish" // the route has looked at the lease, and is about to call the sink
	Write   Point = "write"   // the sink has marshaled it, and is about to write it to the socket, or to give it to the client that does
	Stored  Point = "stored"  // the broker has acknowledged it, and nobody knows yet
	Commit  Point = "commit"  // its route is about to record it in the dedup store
	Acked   Point = "acked"   // its route has acked it, and no confirmation is queued
	Confirm Point = "confirm" // the lease was looked at for the last time before its confirmation
	Renew   Point = "renew"   // the holder is about to write its record once more
)

// All returns the points in their order.
func All() []Point {
	return []Point{Receive, Deliver, Reserve, Publish, Write, Stored, Commit, Acked, Confirm, Renew}
}
