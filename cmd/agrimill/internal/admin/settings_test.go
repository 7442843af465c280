package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
)

func TestChanges(t *testing.T) {
	setting := func(path string, value any) admin.Setting { return admin.Setting{Path: path, Value: value} }
	old := []admin.Setting{setting("same", 1), setting("text", "a"), setting("list", []string{"x"}), setting("gone", true), setting("moved", "b")}
	old[4].Source = "agrimill.yaml:3"
	next := []admin.Setting{setting("same", 1), setting("text", strings.Repeat("ä", 100)), setting("list", []string{"x", "y"}), setting("new", nil), setting("moved", "b")}
	want := []string{"text: a → " + strings.Repeat("ä", 60) + "…", `list: ["x"] → ["x","y"]`, "new: not set → null", "gone: true → not set"}
	if got := admin.Changes(old, next); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	var many []admin.Setting
	for i := range 25 {
		many = append(many, setting(fmt.Sprint(i), i))
	}
	if got := admin.Changes(nil, many); len(got) != 21 || got[20] != "and 5 more" {
		t.Errorf("%q", got)
	}
	if got := admin.Changes(many, many); len(got) != 0 {
		t.Errorf("of the same: %q", got)
	}
}
