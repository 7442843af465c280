// Package natssubject compares the patterns of NATS subjects.
package natssubject

import "strings"

// Covers reports whether every subject that matches narrow also matches wide.
func Covers(wide, narrow string) bool {
	ws, ns := strings.Split(wide, "."), strings.Split(narrow, ".")
	for i, w := range ws {
		switch {
		case i >= len(ns):
			return false
		case w == ">":
			return true
		case ns[i] == ">" || w != "*" && w != ns[i]:
			return false
		}
	}
	return len(ws) == len(ns)
}

// Overlap reports whether there are subjects that both patterns match.
func Overlap(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		switch {
		case as[i] == ">" || bs[i] == ">":
			return true
		case as[i] != bs[i] && as[i] != "*" && bs[i] != "*":
			return false
		}
	}
	return len(as) == len(bs)
}
