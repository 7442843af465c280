package archtest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

func (b block) lines() int { return strings.Count(strings.TrimRight(b.text, "\n"), "\n") + 1 }

// program reports whether the block is a whole Go file. Others are fragments,
// which no compiler can judge.
func (b block) program() bool { return strings.HasPrefix(strings.TrimSpace(b.text), "package ") }

// TestDocumentedProgramsCompile builds every whole Go file that
// the documentation shows.
func TestDocumentedProgramsCompile(t *testing.T) {
	t.Parallel()
	// The files exist only in an overlay: the source tree stays untouched,
	// and ./... of another command running meanwhile does not see them.
	overlay := struct{ Replace map[string]string }{Replace: map[string]string{}}
	temp := t.TempDir()
	var pkgs, origins []string
	for _, file := range markdownFiles(t) {
		for _, block := range goBlocks(t, file) {
			if !block.program() {
				continue
			}
			n := len(pkgs)
			source := filepath.Join(temp, fmt.Sprintf("block%d.go", n))
			testkit.NoError(t, os.WriteFile(source, []byte(block.text), 0o600))
			pkg := fmt.Sprintf("internal/test/archtest/docblock%d", n)
			overlay.Replace[filepath.Join(top(t), filepath.FromSlash(pkg), "main.go")] = source
			pkgs = append(pkgs, "./"+pkg)
			origins = append(origins, fmt.Sprintf("%s is %s:%d", pkg, block.file, block.line))
		}
	}
	if len(pkgs) == 0 {
		t.Fatal("the documentation shows no whole Go program; docs/embedding.md should")
	}
	data := testkit.Must(json.Marshal(overlay))(t)
	overlayFile := filepath.Join(temp, "overlay.json")
	testkit.NoError(t, os.WriteFile(overlayFile, data, 0o600))
	t.Log(strings.Join(origins, "\n"))
	// list -export compiles and does not link. (vet cannot take files that
	// are in no real folder.)
	goCommand(t, append([]string{"list", "-export", "-f", "{{.Name}}", "-overlay=" + overlayFile}, append(pkgs, "./internal/test/archtest")...)...)
}

// TestFewLinesAreThoseThatRun: what the README and the page about farm data promise in few lines are functions that an example
// or a test runs.
func TestFewLinesAreThoseThatRun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		page, function string
		limit          int // lines
		example        string
	}{
		{"README.md", "run", 25, "examples/embed/main.go"},
		{"docs/farm-data.md", "areas", 30, "farmdata/content/example_totals_test.go"},
		{"docs/farm-data.md", "yieldMap", 30, "farmdata/geo/example_yieldmap_test.go"},
	} {
		blocks := goBlocks(t, tt.page)
		i := slices.IndexFunc(blocks, func(b block) bool { return strings.HasPrefix(b.text, "func "+tt.function+"(") })
		if i < 0 || tt.page == "README.md" && i > 0 {
			t.Errorf("%s does not show the function %s, or others before it", tt.page, tt.function)
			continue
		}
		if got := blocks[i].lines(); got > tt.limit {
			t.Errorf("%s:%d: %d lines, want at most %d", tt.page, blocks[i].line, got, tt.limit)
		}
		if !strings.Contains(readFile(t, tt.example), "\n\n"+strings.TrimSuffix(blocks[i].text, "\n")+"\n\n") {
			t.Errorf("%s:%d: not the function %s of %s", tt.page, blocks[i].line, tt.function, tt.example)
		}
	}
}

// TestEmbeddingBeginsWithAProgram: the guide's first block is a whole program of at most 25
// lines of code, which TestDocumentedProgramsCompile builds.
func TestEmbeddingBeginsWithAProgram(t *testing.T) {
	t.Parallel()
	const limit, file = 25, "docs/embedding.md"
	blocks := goBlocks(t, file)
	if len(blocks) == 0 || !blocks[0].program() {
		t.Fatalf("%s does not begin with a whole program", file)
	}
	if got := countCode(blocks[0].text); got > limit {
		t.Errorf("%s:%d: %d lines of code, want at most %d", file, blocks[0].line, got, limit)
	}
}

// TestComponentsAreTested: each row of the table of Watermill's components in docs/watermill.md
// names a test that is there, and each of those tests has a row.
func TestComponentsAreTested(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`\bTestComponent\w+`)
	listed := name.FindAllString(readFile(t, "docs/watermill.md"), -1)
	var there []string
	for _, file := range []string{"components_test.go", "components_more_test.go"} {
		for _, test := range regexp.MustCompile(`(?m)^func (TestComponent\w+)\(`).FindAllStringSubmatch(readFile(t, "internal/test/endtoend/"+file), -1) {
			there = append(there, test[1])
		}
	}
	slices.Sort(listed)
	slices.Sort(there)
	if len(listed) == 0 || !slices.Equal(listed, there) {
		t.Errorf("docs/watermill.md lists %v, and there are %v", listed, there)
	}
}

var markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestDocumentationLinks checks that what the documentation links to inside the
// repository exists, headings included.
func TestDocumentationLinks(t *testing.T) {
	t.Parallel()
	for _, file := range markdownFiles(t) {
		for _, match := range markdownLink.FindAllStringSubmatch(readFile(t, file), -1) {
			link, err := url.Parse(match[1])
			if err != nil {
				t.Errorf("%s: link %q: %v", file, match[1], err)
				continue
			}
			if link.Scheme != "" {
				continue
			}
			target := file
			if link.Path != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(file), filepath.FromSlash(link.Path)))
				if _, err := os.Stat(filepath.Join(top(t), filepath.FromSlash(target))); err != nil {
					t.Errorf("%s links to %s: %v", file, match[1], err)
					continue
				}
			}
			if link.Fragment != "" && !headings(t, target)[link.Fragment] {
				t.Errorf("%s links to %s: %s has no such heading", file, match[1], target)
			}
		}
	}
}

// TestIndexNamesEveryPage checks that docs/README.md leads to every page.
func TestIndexNamesEveryPage(t *testing.T) {
	t.Parallel()
	index := readFile(t, "docs/README.md")
	for _, file := range markdownFiles(t) {
		if page, ok := strings.CutPrefix(file, "docs/"); ok && page != "README.md" && !strings.Contains(index, "]("+page+")") {
			t.Errorf("docs/README.md does not lead to %s", file)
		}
	}
}

var (
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	notInSlugs = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// headings returns the anchors of a Markdown file as forges make them.
func headings(t *testing.T, file string) map[string]bool {
	t.Helper()
	anchors := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(readFile(t, file), -1) {
		slug := notInSlugs.ReplaceAllString(strings.ToLower(match[1]), "")
		anchors[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return anchors
}

// markdownFiles lists the documentation, relative to the top with slashes.
func markdownFiles(t *testing.T) []string {
	t.Helper()
	files := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
	docs := testkit.Must(filepath.Glob(filepath.Join(top(t), "docs", "*.md")))(t)
	for _, path := range docs {
		files = append(files, "docs/"+filepath.Base(path))
	}
	for _, dir := range []string{"examples", filepath.Join("internal", "test")} {
		testkit.NoError(t, filepath.WalkDir(filepath.Join(top(t), dir), func(path string, _ os.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".md" {
				return err
			}
			name, err := filepath.Rel(top(t), path)
			files = append(files, filepath.ToSlash(name))
			return err
		}))
	}
	return files
}

// goBlocks returns the ```go blocks of a Markdown file.
func goBlocks(t *testing.T, file string) []block {
	t.Helper()
	return slices.DeleteFunc(blocks(t, file), func(b block) bool { return b.language != "go" })
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	data := testkit.Must(os.ReadFile(filepath.Join(top(t), filepath.FromSlash(file))))(t)
	return string(data)
}
