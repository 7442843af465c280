package subscriber

import (
	"strings"
	"testing"
)

func TestLowerIsToLower(t *testing.T) {
	for _, id := range []string{"", "a-0", "A", "9Z", "@[`{", "0A1B2C3D-AAAA-4BBB-8CCC-0123456789AB", "0a1b2c3d-aaaa-4bbb-8ccc-0123456789ab", "ÄÖ", "aÉ", "\xff\xfeA"} {
		if got, want := lower(id), strings.ToLower(id); got != want {
			t.Errorf("%q becomes %q, want %q", id, got, want)
		}
	}
}
