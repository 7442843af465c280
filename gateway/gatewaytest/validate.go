package gatewaytest

import (
	"regexp"
	"strings"
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

// canonicalUUID returns the form in which IDs are compared.
func canonicalUUID(s string) (string, bool) {
	if !isUUID(s) {
		return "", false
	}
	return strings.ToLower(s), true
}

// withinCharacters counts characters rather than bytes, as the specification does.
func withinCharacters(s string, minimum, maximum int) bool {
	n := utf8.RuneCountInString(s)
	return utf8.ValidString(s) && n >= minimum && n <= maximum
}

// externalID is the format of PUT /endpoints/{externalId}. A leading urn: may be the prefix or the namespace identifier.
var externalID = regexp.MustCompile(`^(?i:urn:)?[A-Za-z0-9][A-Za-z0-9-]{0,31}:[A-Za-z0-9()+,\-.:=@;$_!*%/?#]+$`)

func isExternalID(s string) bool { return len(s) >= 3 && len(s) <= 255 && externalID.MatchString(s) }

// isEndpointName checks the rule for `name`: 1 to 200 letters of any script with their marks, digits and other numbers,
// spaces and - _ . , : and not only whitespace.
func isEndpointName(s string) bool {
	if !withinCharacters(s, 1, 200) || strings.TrimSpace(s) == "" {
		return false
	}
	for _, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsMark(r) && !unicode.IsNumber(r) && !strings.ContainsRune(" -_.,:", r) {
			return false
		}
	}
	return true
}
