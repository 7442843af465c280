package gateway

import (
	"encoding/binary"
	"time"
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

// plain reports whether the content of a JSON string represents itself: no
// escape, no control character, valid UTF-8.
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

// validUUID reports whether s has the form of a UUID: 8-4-4-4-12 hexadecimal
// digits in either case.
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

// parseUTC parses the usual form, 2006-01-02T15:04:05Z with up to nine fractional
// digits, about ten times faster than package time. It reports false for anything
// else, whether invalid or merely unusual.
func parseUTC(s []byte) (time.Time, bool) {
	const whole = len("2006-01-02T15:04:05")
	last := len(s) - 1
	if last < whole || s[last] != 'Z' ||
		// 0000-00-, 00T00:00 and 00:00:00, with any digit in place of 0; the first
		// byte is the lowest.
		!shaped(s, 0x2d30302d30303030, 0x7f76767f76767676) ||
		!shaped(s[8:], 0x30303a3030543030, 0x76767f76767f7676) ||
		!shaped(s[11:], 0x30303a30303a3030, 0x76767f76767f7676) {
		return time.Time{}, false
	}
	nanos := 0
	if last > whole {
		fraction := s[whole+1 : last]
		if s[whole] != '.' || len(fraction) < 1 || len(fraction) > 9 {
			return time.Time{}, false
		}
		for _, c := range fraction {
			if c < '0' || c > '9' {
				return time.Time{}, false
			}
			nanos = nanos*10 + int(c-'0')
		}
		for range 9 - len(fraction) {
			nanos *= 10
		}
	}
	two := func(i int) int { return int(s[i]-'0')*10 + int(s[i+1]-'0') }
	month, day, hour, minute, second := two(5), two(8), two(11), two(14), two(17)
	// February 29 is left to package time, which knows the leap years.
	days := [...]int{0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}
	if month < 1 || month > 12 || day < 1 || day > days[month] || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, false
	}
	return time.Date(two(0)*100+two(2), time.Month(month), day, hour, minute, second, nanos, time.UTC), true
}

// shaped reports whether the first eight bytes of s match shape. Each byte may exceed
// that of shape by as much as room leaves below 0x80.
func shaped(s []byte, shape, room uint64) bool {
	x := binary.LittleEndian.Uint64(s) ^ shape
	return (x|(x+room))&eachHigh == 0
}
