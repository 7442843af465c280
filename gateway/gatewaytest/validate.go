package gatewaytest

import (
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// isUUID accepts the 36-character form only; google/uuid also reads others.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	_, err := uuid.Parse(s)
	return err == nil
}

// canonicalUUID is the form IDs are compared in.
func canonicalUUID(s string) (string, bool) {
	if !isUUID(s) {
		return "", false
	}
	return strings.ToLower(s), true
}

// isDateTime accepts an ISO 8601 date-time with a zone (the date-time format of
// the interface description, RFC 3339).
func isDateTime(s string) bool {
	_, err := time.Parse(time.RFC3339Nano, s)
	return err == nil
}

// isHeaderToken reports whether s can be part of a header name (RFC 9110 token).
func isHeaderToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// withinCharacters counts characters, not bytes: the limits of the
// specification are in characters.
func withinCharacters(s string, minimum, maximum int) bool {
	n := utf8.RuneCountInString(s)
	return utf8.ValidString(s) && n >= minimum && n <= maximum
}

// externalID is the shape of PUT /endpoints/{externalId} without its optional
// prefix: the namespace identifier, a colon and the namespace-specific string.
var externalID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,31}:[A-Za-z0-9()+,\-.:=@;$_!*%/?#]+$`)

// isExternalID takes a leading urn: in any case for the prefix, never for the
// namespace identifier; else the rules of the latter would not hold behind it.
func isExternalID(s string) bool {
	rest := s
	if len(s) >= 4 && strings.EqualFold(s[:4], "urn:") {
		rest = s[4:]
	}
	return len(s) >= 3 && len(s) <= 255 && externalID.MatchString(rest)
}

// isEndpointName holds the rule for `name`: 1 to 200 letters of any script,
// digits, spaces and - _ . , : and something that is not whitespace.
func isEndpointName(s string) bool {
	if !withinCharacters(s, 1, 200) || strings.TrimSpace(s) == "" {
		return false
	}
	for _, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(" -_.,:", r) {
			return false
		}
	}
	return true
}
