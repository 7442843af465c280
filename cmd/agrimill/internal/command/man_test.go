package command

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/spf13/cobra"
)

// Every command has a page with its texts as they are in the help, and the same bytes each time.
func TestManualPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1795910400")
	w, one, another := &world{T: t}, filepath.Join(t.TempDir(), "new", "man1"), t.TempDir()
	w.want(statusOK, "man", one)
	w.want(statusOK, "man", another)
	pages := 0
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		page := testkit.Must(os.ReadFile(filepath.Join(one, name)))(t)
		again := testkit.Must(os.ReadFile(filepath.Join(another, name)))(t)
		pages++
		// Without the requests and escapes of roff the words are those of the help.
		words := func(text string) string {
			text = regexp.MustCompile(`(?m)^\.(PP|EX|EE|nh|fi|nf)\b.*$|\\f[A-Z]|\\&`).ReplaceAllString(text, "")
			return strings.Join(strings.Fields(strings.ReplaceAll(text, `\`, "")), " ")
		}
		if !strings.Contains(words(string(page)), words(cmd.Long)) || !strings.Contains(words(string(page)), words(cmd.Example)) || !strings.Contains(string(page), `"Nov 2026"`) {
			t.Errorf("%s lacks the text of the help or the date:\n%s", name, page)
		}
		if string(page) != string(again) {
			t.Errorf("%s differs", name)
		}
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				look(sub)
			}
		}
	}
	root := newRootCommand(w.program(nil, nil))
	root.InitDefaultHelpCmd()
	look(root)
	if found, err := os.ReadDir(one); err != nil || len(found) != pages {
		t.Errorf("%d pages for %d commands: %v", len(found), pages, err)
	}
	w.want(statusUsage, "man")
	w.want(statusFailed, "man", filepath.Join(one, "agrimill.1", "below-a-file"))
}
