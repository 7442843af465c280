package gateway

import (
	"net/url"
	"strings"
)

// Limits of an external ID (specification, "Limits").
const (
	minExternalID  = 3
	maxExternalID  = 255
	maxNamespaceID = 32
)

// ValidateExternalID checks the shape of an external ID: 3 to 255 characters; an optional `urn:` in any case, a namespace
// identifier (a letter or digit, then letters, digits or hyphens, at most 32), a colon, and one or more of letters, digits
// and ( ) + , - . : = @ ; $ _ ! * % / ? #. The error is a [*ValidationError].
func ValidateExternalID(id string) error {
	bad := func(rule string) error { return &ValidationError{Field: "externalId", Rule: rule} }
	for i := range len(id) {
		if !isExternalIDByte(id[i]) {
			return bad("must consist of ASCII letters, digits and ( ) + , - . : = @ ; $ _ ! * % / ? #")
		}
	}
	// Every allowed character is one byte.
	if len(id) < minExternalID || len(id) > maxExternalID {
		return bad("must have 3 to 255 characters")
	}
	// What is valid after `urn:` is also valid as the specific string of the namespace urn.
	namespace, specific, found := strings.Cut(id, ":")
	switch {
	case !found || namespace == "" || specific == "":
		return bad("must have two parts, separated by a colon, such as example:farm")
	case len(namespace) > maxNamespaceID:
		return bad("must have a namespace identifier of at most 32 characters")
	case !isAlphanumeric(namespace[0]):
		return bad("must have a namespace identifier that starts with a letter or digit")
	}
	for i := range len(namespace) {
		if !isAlphanumeric(namespace[i]) && namespace[i] != '-' {
			return bad("must have a namespace identifier of letters, digits and hyphens")
		}
	}
	return nil
}

func isAlphanumeric(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' }

func isExternalIDByte(c byte) bool {
	return isAlphanumeric(c) || strings.IndexByte("()+,-.:=@;$_!*%/?#", c) >= 0
}

// escapePathSegment escapes s so that it is one path segment. It is never a dot segment, because external IDs contain a
// colon and tenant IDs are UUIDs.
func escapePathSegment(s string) string { return url.PathEscape(s) }
