package archtest

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// notSaid are the folders whose texts reach developers only.
var notSaid = regexp.MustCompile(`^(examples|internal/(test|testkit|tool)|gateway/gatewaytest|farmdata/efdi/efdipb|.*(sink|lease|store)test|.*/linttest)/`)

// A text that people read is one with a space. A word in another spelling is a name of Go, unless it is the name of something else.
var (
	prose  = regexp.MustCompile(`[A-Za-z] |: %`)
	code   = regexp.MustCompile(`{{|<svg`)
	goName = regexp.MustCompile(`\b[A-Za-z]\w*\.[A-Z]\w*|\b[A-Z]?[a-z]+[A-Z]\w*`)
	names  = regexp.MustCompile(`^(TaskData|JetStream|GeoJSON|GeoParquet|FeatureCollection|MultiPolygon|OpenTelemetry|CloudEvents|` +
		`DescribeConfigs|PowerShell|[KMG]iB|[kMG]Hz|JUnit)$|^TASKDATA\.XML$`)
)

// unsaid are words that no text has, and why.
var unsaid = map[string]*regexp.Regexp{
	"British": regexp.MustCompile(`(?i)\b(acknowledgement|(behavi|col|fav|hon|neighb)our\w*|centred?|licence|catalogue|analyse|grey|whilst|` +
		`(label|model|travel|signal|cancel|(un)?marshal)l(ed|ing)|(recogn|organ|initial|serial|synchron|author|summar|normal|optim|minim|maxim|final|util)is(e[ds]?|ing|ation))s?\b`),
	"a contraction":  regexp.MustCompile(`(?i)\b(\w+n't|(it|that|there|what|who|let|here)'s|(you|we|they)'(re|ve|ll|d)|i'm)\b`),
	"shouted":        regexp.MustCompile(`[a-z]!(\s|["'<` + "`" + `]|$)`),
	"without a noun": regexp.MustCompile(`^(what|those|one that|who) |(?i)\b(the latter|(the former|so it is|neither is)[,.;:]|gets? on )`),
	"a riddle":       regexp.MustCompile(`(?i)\b(not done|told apart|in memory alone|stands? still|is told|are told)\b`),
}

// TestWordsOfTexts holds the style of what people read: errors, logs, help and the page name no identifier of Go, and have no word
// that the style replaces by another one.
func TestWordsOfTexts(t *testing.T) {
	t.Parallel()
	texts := 0
	eachGoFile(t, func(path string, files *token.FileSet, file *ast.File) {
		relative := filepath.ToSlash(testkit.Must(filepath.Rel(top(t), path))(t))
		if strings.HasSuffix(path, "_test.go") || notSaid.MatchString(relative) {
			return
		}
		for _, literal := range textsOf(file) {
			text, _ := strconv.Unquote(literal.Value) // the parser has read it
			texts++
			for _, wrong := range wrongWords(text) {
				t.Errorf("%s: %s", files.Position(literal.Pos()), wrong)
			}
		}
	})
	for _, path := range testkit.Must(filepath.Glob(filepath.Join(top(t), "cmd/agrimill/internal/admin/page/*.[jh]*")))(t) {
		for i, line := range strings.Split(string(testkit.Must(os.ReadFile(path))(t)), "\n") {
			for what, word := range unsaid {
				if found := word.FindString(line); found != "" {
					t.Errorf("%s:%d: %q is %s", path, i+1, found, what)
				}
			}
		}
	}
	if texts < 2000 {
		t.Errorf("only %d texts found", texts)
	}
}

// textsOf returns the literals of a file that people may read: neither imports, tags nor patterns.
func textsOf(file *ast.File) (texts []*ast.BasicLit) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			return n.Tag == nil
		case *ast.CallExpr:
			name, _ := n.Fun.(*ast.SelectorExpr)
			return name == nil || name.Sel.Name != "MustCompile"
		case *ast.BasicLit:
			if n.Kind == token.STRING && prose.MatchString(n.Value) && !code.MatchString(n.Value) {
				texts = append(texts, n)
			}
		}
		return true
	})
	return texts
}

// wrongWords returns what is wrong with a text.
func wrongWords(text string) (wrong []string) {
	for _, name := range goName.FindAllString(text, -1) {
		if !names.MatchString(name) {
			wrong = append(wrong, strconv.Quote(name)+" is a name of Go")
		}
	}
	for what, word := range unsaid {
		if found := word.FindString(text); found != "" {
			wrong = append(wrong, strconv.Quote(found)+" is "+what)
		}
	}
	return wrong
}

// TestWordsFound: the test above finds what it is for.
func TestWordsFound(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"the limit %d is too low; raise it": 0, "TaskData from JetStream": 0, "Config.Ready is not closed": 1, "raise MaxPending": 1,
		"set publisher.Config.Marshaler": 1, "cancelled, and it's over!": 3, "what came last": 1, "the key stands still": 1,
	} {
		if got := wrongWords(text); len(got) != want {
			t.Errorf("%q: got %v, want %d", text, got, want)
		}
	}
}
