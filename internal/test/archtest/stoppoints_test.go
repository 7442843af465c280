package archtest

import (
	"regexp"
	"slices"
	"testing"

	"github.com/agrimill/agrimill/internal/stoppoint"
)

// TestStopPoints: the table of points in the fault matrix is that of the code.
func TestStopPoints(t *testing.T) {
	t.Parallel()
	var want, got []string
	for _, p := range stoppoint.All() {
		want = append(want, string(p))
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| (?:with|before|between) ").FindAllStringSubmatch(readFile(t, "internal/test/faulttest/matrix.md"), -1) {
		got = append(got, row[1])
	}
	if !slices.Equal(got, want) {
		t.Errorf("internal/test/faulttest/matrix.md has the points %v, want %v", got, want)
	}
}
