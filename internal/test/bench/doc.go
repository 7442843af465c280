// Package bench holds the benchmarks whose figures `make bench` prints: each
// beside a floor or a peer that is measured in the same run. It has no code
// that the library needs.
package bench
