package archtest

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// fragmentImports are the packages that a block of Go without a package clause
// may name, by the name that the documentation uses.
var fragmentImports = map[string]string{
	"bytes": "bytes", "context": "context", "errors": "errors", "fmt": "fmt", "io": "io", "log": "log", "net": "net", "oauth2": "golang.org/x/oauth2",
	"http": "net/http", "os": "os", "signal": "os/signal", "slog": "log/slog", "strings": "strings",
	"sync": "sync", "synctest": "testing/synctest", "syscall": "syscall", "testing": "testing", "time": "time", "json": "encoding/json",

	"boltstore":   module + "/router/boltstore",
	"claimcheck":  module + "/sinks/claimcheck",
	"content":     module + "/farmdata/content",
	"efdi":        module + "/farmdata/efdi",
	"devicestore": module + "/stores/nats/devicestore",
	"farm":        module + "/router/farm",
	"farmdata":    module + "/farmdata",
	"gateway":     module + "/gateway",
	"gatewaytest": module + "/gateway/gatewaytest",
	"geo":         module + "/farmdata/geo",
	"geoparquet":  module + "/farmdata/geo/geoparquet",
	"isoxml":      module + "/farmdata/isoxml",
	"kafka":       module + "/sinks/kafka",
	"kvlease":     module + "/stores/nats/kvlease",
	"kvstore":     module + "/stores/nats/kvstore",
	"logsink":     module + "/sinks/logsink",
	"metrics":     module + "/router/metrics",
	"nats":        module + "/sinks/nats",
	"poisonqueue": module + "/stores/nats/poisonqueue",
	"publisher":   module + "/publisher",
	"router":      module + "/router",
	"routertest":  module + "/router/routertest",
	"sinks":       module + "/sinks",
	"subscriber":  module + "/subscriber",
	"tracing":     module + "/router/tracing",

	"errgroup":   "golang.org/x/sync/errgroup",
	"goleak":     "go.uber.org/goleak",
	"message":    "github.com/ThreeDotsLabs/watermill/message",
	"gochannel":  "github.com/ThreeDotsLabs/watermill/pubsub/gochannel",
	"natsgo":     "github.com/nats-io/nats.go",
	"prometheus": "github.com/prometheus/client_golang/prometheus",
	"promhttp":   "github.com/prometheus/client_golang/prometheus/promhttp",
	"trace":      "go.opentelemetry.io/otel/trace",
	"watermill":  "github.com/ThreeDotsLabs/watermill",
}

// fragmentVariables are what statements without a function around them may
// take as given.
var fragmentVariables = map[string]string{
	"ctx": "context.Context", "url": "string", "logger": "watermill.LoggerAdapter", "client": "*gateway.Client",
	"provider": "trace.TracerProvider", "queue": "message.Publisher", "stopping": "<-chan struct{}", "key": "router.KeyFunc",
	"in": "message.Subscriber", "handle": "message.NoPublishHandlerFunc", "r": "*router.Router", "sink": "*nats.Sink", "sub": "*subscriber.Subscriber", "msg": "*message.Message",
}

// page is the package that the fragments of one Markdown file make together.
type page struct {
	file      string
	name      string            // of the package
	sources   map[string]string // file name → Go source
	tests     bool
	originals []block
}

// TestDocumentedFragmentsCompile compiles every ```go block of the
// documentation that is no whole program, and runs the tests among them. The
// blocks of one page are one package: declarations as they stand, statements
// inside a function of their own. The imports are added here.
func TestDocumentedFragmentsCompile(t *testing.T) {
	t.Parallel()
	overlay := struct{ Replace map[string]string }{Replace: map[string]string{}}
	temp := t.TempDir()
	packages := map[string]page{}
	for i, file := range markdownFiles(t) {
		p := fragmentPage(t, file)
		if len(p.sources) == 0 {
			continue
		}
		pkg := fmt.Sprintf("internal/test/archtest/docpage%d", i)
		packages[pkg] = p
		for name, source := range p.sources {
			path := filepath.Join(temp, fmt.Sprintf("%d_%s", i, name))
			testkit.NoError(t, os.WriteFile(path, []byte(source), 0o600))
			overlay.Replace[filepath.Join(top(t), filepath.FromSlash(pkg), name)] = path
		}
	}
	data := testkit.Must(json.Marshal(overlay))(t)
	overlayFile := filepath.Join(temp, "overlay.json")
	testkit.NoError(t, os.WriteFile(overlayFile, data, 0o600))
	args := []string{"list", "-export", "-f", "{{.Name}}", "-overlay=" + overlayFile}
	for _, pkg := range slices.Sorted(maps.Keys(packages)) {
		args = append(args, "./"+pkg)
	}
	goCommand(t, append(args, "./internal/test/archtest")...)
	for pkg, p := range packages {
		if p.tests {
			runDocumentedTests(t, p, pkg, overlayFile, temp)
		}
	}
}

// runDocumentedTests builds the tests of a page and runs them. (go test would
// run them in the package's folder, which does not exist.)
func runDocumentedTests(t *testing.T, p page, pkg, overlayFile, temp string) {
	t.Helper()
	binary := filepath.Join(temp, filepath.Base(pkg)+".test")
	goCommand(t, "test", "-c", "-vet=off", "-overlay="+overlayFile, "-o", binary, "./"+pkg)
	cmd := exec.CommandContext(t.Context(), binary, "-test.v", "-test.timeout=1m")
	cmd.Dir = temp
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("tests of %s: %v\n%s", p.file, err, out)
	}
	if !strings.Contains(string(out), "--- PASS") {
		t.Errorf("tests of %s: none ran\n%s", p.file, out)
	}
}

// fragmentPage makes Go files out of the fragments of a Markdown file.
func fragmentPage(t *testing.T, file string) page {
	t.Helper()
	p := page{file: file, name: "page", sources: map[string]string{}}
	for _, block := range goBlocks(t, file) {
		if !block.program() {
			p.originals = append(p.originals, block)
		}
	}
	for _, block := range p.originals {
		if regexp.MustCompile(`(?m)^func main\(\)`).MatchString(block.text) {
			p.name = "main"
		}
	}
	if len(p.originals) > 0 { // a page may have nothing but tests
		p.sources["page.go"] = "package " + p.name + "\n"
	}
	for i, block := range p.originals {
		source, isTest := fragmentSource(t, p.name, block)
		name := fmt.Sprintf("block%d.go", i)
		if isTest {
			name = fmt.Sprintf("block%d_test.go", i)
			p.tests = true
		}
		p.sources[name] = source
	}
	return p
}

// fragmentSource completes a fragment to a file. Positions in the compiler's
// messages are those in the Markdown file.
func fragmentSource(t *testing.T, pkg string, block block) (source string, isTest bool) {
	t.Helper()
	const markerLine = "\n//line %s:%d\n%s\n"
	body := fmt.Sprintf(markerLine, filepath.Join(top(t), filepath.FromSlash(block.file)), block.line+1, block.text)
	tree, err := parseFragment(pkg, body)
	if err != nil { // statements
		tree, err = parseFragment(pkg, "\nfunc _() (_ error) {"+body+"return nil\n}\n")
		if err != nil {
			t.Errorf("%s:%d is neither declarations nor statements of Go: %v", block.file, block.line, err)
			return "package " + pkg, false
		}
		var params, used []string
		for name := range unresolved(tree) {
			if kind, known := fragmentVariables[name]; known {
				params = append(params, name+" "+kind)
			}
		}
		for _, name := range declared(tree) {
			used = append(used, "_ = "+name+"\n")
		}
		slices.Sort(params)
		body = "\nfunc _(" + strings.Join(params, ", ") + ") (_ error) {" + body + strings.Join(used, "") + "return nil\n}\n"
		if tree, err = parseFragment(pkg, body); err != nil {
			t.Fatalf("%s:%d: %v", block.file, block.line, err)
		}
	}
	for _, decl := range tree.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Test") {
			isTest = true
		}
	}
	var imports []string
	for name := range selected(tree) {
		if path, known := fragmentImports[name]; known {
			imports = append(imports, fmt.Sprintf("import %s %q", name, path))
		}
	}
	slices.Sort(imports)
	return "package " + pkg + "\n\n" + strings.Join(imports, "\n") + "\n" + body, isTest
}

func parseFragment(pkg, body string) (*ast.File, error) {
	// The file's scope is what tells which names come from elsewhere.
	return parser.ParseFile(token.NewFileSet(), "fragment.go", "package "+pkg+"\n"+body, parser.ParseComments)
}

// unresolved are the names that a file does not declare.
func unresolved(tree *ast.File) map[string]bool {
	names := map[string]bool{}
	for _, ident := range tree.Unresolved {
		names[ident.Name] = true
	}
	return names
}

// selected are those of them that something is selected from: a package, or a
// variable that is declared elsewhere.
func selected(tree *ast.File) map[string]bool {
	foreign := map[*ast.Ident]bool{}
	for _, ident := range tree.Unresolved {
		foreign[ident] = true
	}
	names := map[string]bool{}
	ast.Inspect(tree, func(node ast.Node) bool {
		if sel, ok := node.(*ast.SelectorExpr); ok {
			if ident, ok := sel.X.(*ast.Ident); ok && foreign[ident] {
				names[ident.Name] = true
			}
		}
		return true
	})
	return names
}

// declared are the variables that the statements of the only function declare
// outside of inner blocks. A reader of a fragment uses them, the fragment may not.
func declared(tree *ast.File) []string {
	var names []string
	for _, statement := range tree.Decls[0].(*ast.FuncDecl).Body.List {
		assign, ok := statement.(*ast.AssignStmt)
		if !ok || assign.Tok != token.DEFINE {
			continue
		}
		for _, left := range assign.Lhs {
			if ident, ok := left.(*ast.Ident); ok && ident.Name != "_" && !slices.Contains(names, ident.Name) {
				names = append(names, ident.Name)
			}
		}
	}
	return names
}
