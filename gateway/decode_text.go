package gateway

import "unicode/utf8"

// plain reports whether the content of a JSON string represents itself: no
// escape, no control character, valid UTF-8.
func plain(b []byte) bool {
	ascii := true
	for _, c := range b {
		if c < 0x20 || c == '\\' {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return ascii || utf8.Valid(b)
}

// uuidLen is the length of a UUID.
const uuidLen = 36

// validUUID reports whether s has the form of a UUID: 8-4-4-4-12 hexadecimal
// digits in either case.
func validUUID(s []byte) bool {
	if len(s) != uuidLen || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return false
	}
	digits := 0
	for _, c := range s {
		if lower := c | 0x20; c >= '0' && c <= '9' || lower >= 'a' && lower <= 'f' {
			digits++
		}
	}
	return digits == uuidLen-4
}
