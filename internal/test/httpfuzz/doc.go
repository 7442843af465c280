// Package httpfuzz attacks the client over HTTP, not function by function: hostile
// event streams, answers, tokens and payload hosts, and hostile metadata on the way
// out. It has tests only. `make fuzz` runs its targets in small rounds, because each
// input is a request or more (see the names that begin with FuzzHTTP).
package httpfuzz
