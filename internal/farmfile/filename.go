package farmfile

import (
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxFilename is the maximum length of a file name in the gateway, in characters.
const MaxFilename = 100

// WireFilename converts a name to one that the gateway accepts: valid UTF-8 without
// control characters and without leading or trailing spaces, truncated to MaxFilename
// but with its extension kept. The result may be empty.
func WireFilename(name string) string {
	name = strings.Trim(Printable(name), " ")
	if utf8.RuneCountInString(name) <= MaxFilename {
		return name
	}
	ending := []rune(filepath.Ext(name))
	if len(ending) > MaxFilename/2 {
		ending = nil
	}
	return strings.TrimRight(string([]rune(name)[:MaxFilename-len(ending)])+string(ending), " ")
}

// Printable replaces characters that would break a header or a table.
func Printable(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return '_'
		}
		return r
	}, name)
}
