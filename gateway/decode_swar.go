package gateway

import (
	"encoding/binary"
	"unicode/utf8"
)

// The checks in this file process eight bytes at a time, held in a uint64. In the
// result, the high bit of a byte is set if the test is true for that byte of
// the operand; the other bits are meaningless. Bytes of 0x80 and above would
// carry into their neighbors, so each check tests for those first.

const (
	eachByte = 0x0101010101010101 // times n: n in each byte
	eachHigh = 0x80 * eachByte
)

// plain reports whether a JSON string represents itself: no escape, no control character, valid UTF-8.
func plain(b []byte) bool {
	// Check eight bytes at a time, with the last eight overlapping instead of single
	// bytes. The high bit of some byte of odd is set if any byte is
	// unusual; false positives are possible, and plainBytes resolves them.
	if len(b) < 8 {
		return plainBytes(b)
	}
	odd := oddBytes(binary.LittleEndian.Uint64(b[len(b)-8:]))
	for rest := b; len(rest) > 8; rest = rest[8:] {
		odd |= oddBytes(binary.LittleEndian.Uint64(rest))
	}
	return odd&eachHigh == 0 || plainBytes(b)
}

func plainBytes(b []byte) bool {
	ascii := true
	for _, c := range b {
		if c < 0x20 || c == '\\' {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return ascii || utf8.Valid(b)
}

func oddBytes(x uint64) uint64 {
	control := (x - 0x20*eachByte) &^ x
	escape := x ^ '\\'*eachByte
	return x | control | (escape-eachByte)&^escape
}

// uuidLen is the length of a UUID.
const uuidLen = 36

// validUUID reports whether s has the form of a UUID, in either case.
func validUUID(s []byte) bool {
	if len(s) != uuidLen || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return false
	}
	four := func(i int) uint64 { return uint64(binary.LittleEndian.Uint32(s[i:])) }
	return hexBytes(binary.LittleEndian.Uint64(s)) &&
		hexBytes(four(9)|four(14)<<32) &&
		hexBytes(four(19)|four(24)<<32) &&
		hexBytes(binary.LittleEndian.Uint64(s[28:]))
}

// hexBytes reports whether all eight bytes are hexadecimal digits.
func hexBytes(x uint64) bool {
	lower := x | 0x20*eachByte
	// At least the first of a range, and not beyond its last.
	digit := (x + (0x80-'0')*eachByte) &^ (x + (0x7f-'9')*eachByte)
	letter := (lower + (0x80-'a')*eachByte) &^ (lower + (0x7f-'f')*eachByte)
	return x&eachHigh == 0 && (digit|letter)&eachHigh == eachHigh
}
