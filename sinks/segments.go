package sinks

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// ErrBadSegment is returned by [Segments.Unescape] for a string that
// [Segments.Escape] never returns.
var ErrBadSegment = errors.New("not an escaped topic segment")

// Segments maps any string to a legal segment of a topic and back, without
// collisions. Each byte that is not legal, and the mark itself, becomes the
// mark and two upper-case hexadecimal digits; the empty string becomes the mark
// alone. Strings of legal bytes stay as they are.
//
// The length is not limited: the segment has up to three times as many bytes.
type Segments struct {
	// Mark begins an escape. It has to be legal in topics.
	Mark byte
	// Legal reports whether a byte may stay. It has to be false for Mark and
	// true for 0-9 and A-F.
	Legal func(b byte) bool
}

// DefaultSegments keeps letters, digits, '-', '_' and ':' and escapes with '%'.
// `iso:11783:-10:taskdata:zip` stays as it is.
var DefaultSegments = Segments{Mark: '%', Legal: func(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_' || b == ':'
}}

const upperHex = "0123456789ABCDEF"

// Escape returns the segment for value.
func (s Segments) Escape(value string) string {
	if value == "" {
		return string(rune(s.Mark))
	}
	illegal := 0
	for i := 0; i < len(value); i++ {
		if !s.Legal(value[i]) {
			illegal++
		}
	}
	if illegal == 0 {
		return value
	}
	var b strings.Builder
	b.Grow(len(value) + 2*illegal)
	for i := 0; i < len(value); i++ {
		if c := value[i]; s.Legal(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte(s.Mark)
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
	}
	return b.String()
}

// Unescape returns the value that Escape maps to segment. A string that Escape
// never returns is [ErrBadSegment].
func (s Segments) Unescape(segment string) (string, error) {
	if segment == string(rune(s.Mark)) {
		return "", nil
	}
	if s.Escape(segment) == segment {
		return segment, nil
	}
	value := make([]byte, 0, len(segment))
	for rest := segment; rest != ""; {
		plain, escape, escaped := strings.Cut(rest, string(rune(s.Mark)))
		value, rest = append(value, plain...), escape
		if !escaped {
			break
		}
		code, err := hex.DecodeString(rest[:min(2, len(rest))])
		if err != nil || len(code) == 0 {
			return "", fmt.Errorf("%w: %q has an escape without two hexadecimal digits", ErrBadSegment, segment)
		}
		value, rest = append(value, code...), rest[2:]
	}
	if s.Escape(string(value)) != segment {
		return "", fmt.Errorf("%w: %q", ErrBadSegment, segment)
	}
	return string(value), nil
}
