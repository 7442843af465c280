package subscriber

import "strings"

// lower is strings.ToLower for IDs, which are short, and as a rule are in lower case already.
func lower(id string) string {
	for i := range len(id) {
		if c := id[i]; c-'A' <= 'Z'-'A' || c >= 0x80 {
			return strings.ToLower(id)
		}
	}
	return id
}
