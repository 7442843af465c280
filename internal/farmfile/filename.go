package farmfile

import (
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxFilename is the most characters that the gateway takes as a file name.
const MaxFilename = 100

// WireFilename makes a name fit for the gateway: valid UTF-8 without control
// characters and without spaces at its ends, and shortened to what it takes,
// keeping the ending. What nothing is left of is empty.
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

// Printable replaces what would break a header or a table.
func Printable(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return '_'
		}
		return r
	}, name)
}
