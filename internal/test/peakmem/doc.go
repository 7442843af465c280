// Package peakmem holds tests and benchmarks of how much memory large payloads
// take on their way from the gateway to a subscriber and from a publisher to the
// gateway, and of what farm data takes: large, and hostile in a route.
//
// The gateway keeps payloads in memory. So that only the client is measured, it
// runs in a process of its own: the test binary once more. What is measured is
// the memory that the Go runtime of the client's process holds from the system,
// everything included, sampled every millisecond (peak-MB). On Linux the
// benchmarks also tell the kernel's own high-water mark of the process, which
// includes the program's code (rss-MB).
package peakmem
