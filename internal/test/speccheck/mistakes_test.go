package speccheck

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// A repository and a specification of a few lines, and one mistake at a time.
const (
	smallTests = `package p

import "testing"

func TestOne(t *testing.T) {
	for _, row := range []struct{ name string }{{"a row"}, {name: "another"}} {
		t.Run(row.name, func(t *testing.T) { t.Run("inner", func(*testing.T) {}) })
	}
	_ = "not a subtest"
}
`
	smallCode = `package p

type T struct{ Field, hidden int }

func (*T) Method() {}

const Value = 1
`
	smallSpec = "# Title\n\nFirst sentence. Second; third, with `a.b: c. d`.\nA list:\n\n- item one\n\n## Things\n\n| Field | Type |\n|---|---|\n| id | `x|y` |\n\n" +
		"## Moves\n\n| Subject | Trigger |\n|---|---|\n| Thing | a |\n| Thing | b |\n\n| Status | Meaning |\n|---|---|\n| 500, 502 | bad |\n\n| Name | Values |\n|---|---|\n| Kind | `one`, `two` |\n"
	smallHead = "| Row | Asks | Client | Service | Tests |\n|---|---|---|---|---|\n"
	smallPage = "# Page\n\nText.\n\n## Opening\n\n" + smallHead +
		"| s1 | x | `p.Value` | `p/p.go` | `p/TestOne` |\n| s2 | x | `p.T` | nothing: why not | `p/TestOne/a_row/inner` |\n" +
		"| s3 | x | `p.T.Field` | `p.T.Method` | `p/TestOne/another` |\n| s4 | x | `p.T` | `p.T` | `p/TestOne` |\n\n" +
		"## Things\n\n" + smallHead + "| `id` | x | `p.T` | `p.T` | `p/TestOne` |\n\n" +
		"## Moves\n\n" + smallHead + "| `Thing 1` | x | `p.T` | `p.T` | `p/TestOne` |\n| `Thing 2` | x | `p.T` | `p.T` | `p/TestOne` |\n" +
		"| `500` | x | `p.T` | `p.T` | `p/TestOne` |\n| `502` | x | `p.T` | `p.T` | `p/TestOne` |\n" +
		"| `Kind` | x | `p.T` | `p.T` | `p/TestOne` |\n| `one` | x | `p.T` | `p.T` | `p/TestOne` |\n| `two` | x | `p.T` | `p.T` | `p/TestOne` |\n"
)

func TestMistakesAreFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"p/p.go": smallCode, "p/p_test.go": smallTests} {
		file := filepath.Join(dir, filepath.FromSlash(name))
		testkit.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		testkit.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	s := testkit.Must(readSource(dir))(t)
	specification := parseMarkdown(smallSpec)[1:]
	specification[0].heading = opening
	problems := func(page string) string {
		sections := parseMarkdown(page)
		return strings.Join(append(checkPage(s, sections), compare(specification, sections)...), "\n")
	}
	if got := problems(smallPage); got != "" {
		t.Fatalf("a page without mistakes: %s", got)
	}
	for _, row := range []struct{ name, old, new, want string }{
		{"no such test", "`p/TestOne` |\n| s2", "`p/TestTwo` |\n| s2", "there is no test p/TestTwo"},
		{"no such directory", "`p/TestOne` |\n| s2", "`q/TestOne` |\n| s2", "there is no test q/TestOne"},
		{"no such subtest", "another`", "other`", "TestOne has no subtest other"},
		{"a string that is no subtest", "another`", "not_a_subtest`", "has no subtest not_a_subtest"},
		{"no test", "`p/TestOne` |\n| s2", "`p/p.go` |\n| s2", "p/p.go is no test"},
		{"tests without quotes", "`p/TestOne` |\n| s2", "p/TestOne |\n| s2", "names no test"},
		{"no such name", "`p.Value`", "`p.Nothing`", "there is no exported p.Nothing"},
		{"name not exported", "`p.T.Field`", "`p.T.hidden`", "there is no exported p.T.hidden"},
		{"no such file", "`p/p.go`", "`p/q.go`", "there is no file p/q.go"},
		{"no place", "`p.Value`", "somewhere", "names neither"},
		{"no reason", "nothing: why not", "nothing:", "gives no reason"},
		{"empty cell", "| s1 | x |", "| s1 | |", "cell 2 is empty"},
		{"cell missing", "| s1 | x |", "| s1 |", "4 cells, want 5"},
		{"row twice", "| s2 |", "| s1 |", `"s1" has two rows`},
		{"sentence missing", "| s4 | x | `p.T` | `p.T` | `p/TestOne` |\n", "", `no row for "s4"`},
		{"row missing", "| `id` | x | `p.T` | `p.T` | `p/TestOne` |\n", "", `no row for "id"`},
		{"move missing", "| `Thing 2` | x | `p.T` | `p.T` | `p/TestOne` |\n", "", `no row for "Thing 2"`},
		{"status missing", "| `502` | x | `p.T` | `p.T` | `p/TestOne` |\n", "", `no row for "502"`},
		{"value missing", "| `two` | x | `p.T` | `p.T` | `p/TestOne` |\n", "", `no row for "two"`},
		{"row too many", "| `id` |", "| `ID` |", `a row for "ID"`},
		{"heading missing", "## Things", "## Other things", `no heading "Things"`},
		{"heading too many", "## Things", "## Other things", `has no heading "Other things"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			page := strings.Replace(smallPage, row.old, row.new, 1)
			if page == smallPage {
				t.Fatalf("%q does not occur", row.old)
			}
			if got := problems(page); !strings.Contains(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
