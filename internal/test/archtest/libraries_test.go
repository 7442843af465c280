package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

var (
	major    = regexp.MustCompile(`/v[0-9]+$`)
	required = regexp.MustCompile(`(?m)^\t(\S+) v\S+$`) // of go.mod, without indirect ones
	// namedTest is a test that a page names, with its package.
	namedTest = regexp.MustCompile("`([Tt]est\\w+)` in `([a-z/]+)`")
	symbols   = regexp.MustCompile("`([a-z0-9]+)\\.([A-Z]\\w+)(?:\\.\\w+)?`")
)

// TestLibraryTable checks the table of CONTRIBUTING.md that says what of each library is used:
// Watermill's modules, the brokers' clients and those of HTTP each have a row if the product imports them,
// what a row says is used is, and what it says is bypassed is not. The tests that the page names exist.
func TestLibraryTable(t *testing.T) {
	t.Parallel()
	var modules []string
	for _, match := range required.FindAllStringSubmatch(readFile(t, "go.mod"), -1) {
		for _, prefix := range append([]string{
			"github.com/ThreeDotsLabs/watermill", "github.com/hashicorp/go-retryablehttp", "golang.org/x/oauth2",
		}, brokers...) {
			if strings.HasPrefix(match[1], prefix) && !slices.Contains(modules, match[1]) {
				modules = append(modules, match[1])
			}
		}
	}
	used := usedSymbols(t, modules)
	page := readFile(t, "CONTRIBUTING.md")
	checkNamedTests(t, page, 2)
	_, table, found := strings.Cut(page, "| library | used | bypassed, and why |\n|---|---|---|\n")
	if !found {
		t.Fatal("CONTRIBUTING.md has no table of libraries")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			t.Fatalf("not a row: %s", line)
		}
		name := strings.TrimSpace(cells[1])
		rows[name] = true
		named := symbols.FindAllStringSubmatch(cells[2], -1)
		if len(named) == 0 {
			t.Errorf("the row of %s names nothing that is used", name)
		}
		for _, symbol := range named {
			if !used[name][symbol[1]+"."+symbol[2]] {
				t.Errorf("%s: %s.%s is not used", name, symbol[1], symbol[2])
			}
		}
		for _, symbol := range symbols.FindAllStringSubmatch(cells[3], -1) {
			if used[name][symbol[1]+"."+symbol[2]] {
				t.Errorf("%s: %s.%s is used, not bypassed", name, symbol[1], symbol[2])
			}
		}
	}
	for name := range used {
		if !rows[name] {
			t.Errorf("%s is used and has no row", name)
		}
	}
	for name := range rows {
		if used[name] == nil {
			t.Errorf("%s has a row and is not used", name)
		}
	}
}

// checkNamedTests checks that there are the tests that a page names, n of them.
func checkNamedTests(t *testing.T, page string, n int) {
	t.Helper()
	named := namedTest.FindAllStringSubmatch(page, -1)
	if len(named) != n {
		t.Errorf("%d tests are named with their packages, want %d", len(named), n)
	}
	for _, match := range named {
		files := testkit.Must(filepath.Glob(filepath.Join(top(t), match[2], "*_test.go")))(t)
		if !slices.ContainsFunc(files, func(file string) bool {
			source, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(source), "\nfunc "+match[1]+"(t *testing.T")
		}) {
			t.Errorf("%s has no test %s", match[2], match[1])
		}
	}
}

// usedSymbols returns what the product uses of modules, by the last element of their names:
// package.Symbol, by the name under which a file imports the package.
func usedSymbols(t *testing.T, modules []string) map[string]map[string]bool {
	t.Helper()
	used := map[string]map[string]bool{}
	for _, dir := range []string{"cmd", "gateway", "internal", "publisher", "router", "sinks", "sources", "stores", "subscriber"} {
		testkit.NoError(t, filepath.WalkDir(filepath.Join(top(t), dir), func(file string, entry fs.DirEntry, err error) error {
			name := entry.Name()
			if err != nil || entry.IsDir() {
				if slices.Contains([]string{"test", "testkit", "tool", "testdata"}, name) {
					return fs.SkipDir
				}
				return err
			}
			if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return nil
			}
			syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			addSymbols(used, syntax, modules)
			return nil
		}))
	}
	return used
}

func addSymbols(used map[string]map[string]bool, file *ast.File, modules []string) {
	imported := map[string]string{} // the library, by the name of the package in the file
	for _, spec := range file.Imports {
		location, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		for _, module := range modules {
			if location != module && !strings.HasPrefix(location, module+"/") {
				continue
			}
			library := path.Base(major.ReplaceAllString(module, ""))
			name := strings.TrimPrefix(strings.TrimSuffix(path.Base(major.ReplaceAllString(location, "")), ".go"), "go-")
			if spec.Name != nil {
				name = spec.Name.Name
			}
			imported[name] = library
			if used[library] == nil {
				used[library] = map[string]bool{}
			}
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if selector, ok := node.(*ast.SelectorExpr); ok {
			if pkg, ok := selector.X.(*ast.Ident); ok {
				if library, ok := imported[pkg.Name]; ok {
					used[library][pkg.Name+"."+selector.Sel.Name] = true
				}
			}
		}
		return true
	})
}
