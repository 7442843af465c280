package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

const module = "github.com/agrimill/agrimill"

// brokers are the import paths by which Kafka or NATS would reach a program.
var brokers = []string{
	"github.com/nats-io",
	"github.com/ThreeDotsLabs/watermill-nats",
	"github.com/IBM/sarama",
	"github.com/ThreeDotsLabs/watermill-kafka",
	"github.com/twmb/franz-go",
	"github.com/segmentio/kafka-go",
	"github.com/confluentinc/confluent-kafka-go",
}

// heavy are what only the package that needs it may link.
var heavy = []string{"testing", "github.com/stretchr/testify", "go.etcd.io/bbolt", "gocloud.dev", "github.com/prometheus", "go.opentelemetry.io"}

// TestLightImports checks that a program that imports one of these links no broker and nothing heavy, also indirectly.
func TestLightImports(t *testing.T) {
	t.Parallel()
	for pkg, forbidden := range map[string][]string{
		"gateway":             {"github.com/ThreeDotsLabs/watermill"},
		"gateway/gatewaytest": {"github.com/ThreeDotsLabs/watermill"},
		"publisher":           {module + "/sinks/blob", module + "/sinks/logsink", module + "/sinks/claimcheck", module + "/sinks/cloudevents"},
		"subscriber":          nil,
		"router":              {module + "/farmdata", module + "/subscriber"},
		"sinks":               nil,
	} {
		if pkg != "gateway/gatewaytest" {
			forbidden = append(forbidden, module+"/gateway/gatewaytest")
		}
		for _, dep := range linked(t, module+"/"+pkg) {
			for _, path := range slices.Concat(brokers, heavy, forbidden, []string{module + "/sinks/nats", module + "/sinks/kafka"}) {
				if dep == path || strings.HasPrefix(dep, path+"/") {
					t.Errorf("%s links %s", pkg, dep)
				}
			}
		}
	}
}

// below says which folders the packages of a folder may import.
var below = map[string][]string{
	"gateway":    {},
	"farmdata":   {},
	"sinks":      {"gateway"},
	"publisher":  {"gateway", "sinks"},
	"subscriber": {"gateway"},
	"sources":    {"gateway", "sinks"},
	"router":     {"gateway", "farmdata", "sinks", "subscriber"},
	"stores":     {"gateway", "farmdata", "sinks", "subscriber", "router"},
}

// TestNoImportRunsUp holds the arrows of docs/design.md for every package of these folders: what a package
// imports is in its own folder or in one below it.
func TestNoImportRunsUp(t *testing.T) {
	t.Parallel()
	found := map[string]int{}
	for _, pkg := range packages(t) {
		path := strings.TrimPrefix(pkg.ImportPath, module+"/")
		top, _, _ := strings.Cut(path, "/")
		if top == "cmd" || top == "examples" || top == "internal" {
			continue // programs, and what no folder has for itself
		}
		found[top]++
		allowed, listed := below[top]
		if !listed {
			t.Errorf("nothing says what %s may import", path)
		}
		for _, imp := range pkg.Imports {
			imported, own := strings.CutPrefix(imp, module+"/")
			to, _, _ := strings.Cut(imported, "/")
			if own && to != top && to != "internal" && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s, which is not below it", path, imported)
			}
		}
	}
	for folder := range below {
		if found[folder] == 0 {
			t.Errorf("there is no package in %s", folder)
		}
	}
}

// TestFarmDataStandsAlone checks that whoever reads farm data compiles nothing else of
// agrimill, and no C.
func TestFarmDataStandsAlone(t *testing.T) {
	t.Parallel()
	const root = module + "/farmdata"
	found := 0
	for _, pkg := range packages(t) {
		if pkg.ImportPath != root && !strings.HasPrefix(pkg.ImportPath, root+"/") {
			continue
		}
		found++
		for _, dep := range linked(t, pkg.ImportPath) {
			if dep == module || strings.HasPrefix(dep, module+"/") && dep != root && !strings.HasPrefix(dep, root+"/") {
				t.Errorf("%s links %s", pkg.ImportPath, dep)
			}
		}
		if slices.Contains(pkg.Imports, "C") {
			t.Errorf("%s needs C", pkg.ImportPath)
		}
	}
	if found < 2 {
		t.Errorf("%d packages found", found)
	}
}

// TestLayoutNamesEveryPackage checks that CONTRIBUTING.md lists every package.
func TestLayoutNamesEveryPackage(t *testing.T) {
	t.Parallel()
	layout := readFile(t, "CONTRIBUTING.md")
	for _, pkg := range packages(t) {
		path := strings.TrimPrefix(pkg.ImportPath, module+"/")
		if !strings.HasPrefix(path, "internal/") && !strings.Contains(layout, path) {
			t.Errorf("CONTRIBUTING.md does not mention %s", path)
		}
	}
}

// TestBrokersOnlyBelowSinks checks that no package outside sinks/, sources/, stores/ and examples/
// (helpers of tests aside) imports a broker's client, also one that is added later.
func TestBrokersOnlyBelowSinks(t *testing.T) {
	t.Parallel()
	allowed := []string{module + "/sinks/", module + "/sources/", module + "/stores/", module + "/examples/", module + "/cmd/", module + "/internal/demo", module + "/internal/kafkaclient/", module + "/internal/streamrule", module + "/internal/test/", module + "/internal/testkit/"}
	for _, pkg := range packages(t) {
		path := pkg.ImportPath + "/"
		var exempt bool
		for _, prefix := range allowed {
			exempt = exempt || strings.HasPrefix(path, prefix)
		}
		if exempt && path != module+"/sinks/" {
			continue
		}
		for _, imp := range pkg.Imports {
			for _, broker := range brokers {
				if imp == broker || strings.HasPrefix(imp, broker+"/") {
					t.Errorf("%s imports %s: brokers belong below sinks/, sources/ and stores/", pkg.ImportPath, imp)
				}
			}
		}
	}
}

// TestNATSServerOnlyInPrograms checks that nobody who embeds a package links a NATS server.
func TestNATSServerOnlyInPrograms(t *testing.T) {
	t.Parallel()
	var embeddable []string
	for _, pkg := range packages(t) {
		path := strings.TrimPrefix(pkg.ImportPath, module+"/")
		first, _, _ := strings.Cut(path, "/")
		if first != "cmd" && first != "examples" && first != "internal" {
			embeddable = append(embeddable, pkg.ImportPath)
		}
	}
	if len(embeddable) < 30 {
		t.Errorf("only %d packages found", len(embeddable))
	}
	if deps := linked(t, embeddable...); slices.ContainsFunc(deps, func(dep string) bool { return strings.HasPrefix(dep, "github.com/nats-io/nats-server/") }) {
		t.Error("a package that programs embed links a NATS server")
	}
}

// TestOpenTelemetryOnlyInTracing checks that nobody pays for tracing who does not
// ask for it. Brokers' clients may link it; that is theirs to say.
func TestOpenTelemetryOnlyInTracing(t *testing.T) {
	t.Parallel()
	for _, pkg := range packages(t) {
		path := strings.TrimPrefix(pkg.ImportPath, module+"/")
		if path == "router/tracing" || strings.HasPrefix(path, "cmd/agrimill") {
			continue
		}
		for _, imp := range pkg.Imports {
			if imp == module+"/router/tracing" || strings.HasPrefix(imp, "go.opentelemetry.io/") {
				t.Errorf("%s imports %s: tracing belongs into router/tracing and programs that ask for it", pkg.ImportPath, imp)
			}
		}
	}
}

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// listed asks the go command once for all tests.
var listed = sync.OnceValues(func() ([]goPackage, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = filepath.Join("..", "..", "..")
	out, err := cmd.Output()
	var list []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); err == nil; {
		var pkg goPackage
		if err = dec.Decode(&pkg); err == nil {
			list = append(list, pkg)
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return list, nil
})

// packages lists the packages of the module with what they import.
func packages(t *testing.T) []goPackage {
	t.Helper()
	dependOnSources(t)
	list, err := listed()
	if err != nil || len(list) == 0 {
		t.Fatalf("go list ./... found %d packages: %v", len(list), err)
	}
	return list
}

// linked lists every package that a program links when it imports pkgs.
func linked(t *testing.T, pkgs ...string) (deps []string) {
	t.Helper()
	found := 0
	for _, pkg := range packages(t) {
		if slices.Contains(pkgs, pkg.ImportPath) {
			found++
			deps = append(append(deps, pkg.Deps...), pkg.ImportPath)
		}
	}
	if found != len(pkgs) {
		t.Fatalf("%d packages found, want %v", found, pkgs)
	}
	return deps
}

// goCommand runs the go command at the top of the module and returns its stdout.
func goCommand(t *testing.T, args ...string) string {
	t.Helper()
	dependOnSources(t)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = top(t)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// dependOnSources looks at every Go file of the module. `go test` caches a
// result until a file that the test looked at changes, and it cannot know what
// a command run by the test looks at.
func dependOnSources(t *testing.T) {
	t.Helper()
	testkit.NoError(t, filepath.WalkDir(top(t), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".go" || entry.Name() == "go.mod" {
			_, err = os.Stat(path)
		}
		return err
	}))
}

// top is the folder with go.mod.
func top(t *testing.T) string {
	t.Helper()
	return testkit.Must(filepath.Abs(filepath.Join("..", "..", "..")))(t)
}

// TestOracleIsIndependent keeps what judges the pipeline from sharing code with it.
func TestOracleIsIndependent(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"oracle_test.go", "archive_test.go"} {
		path := filepath.Join("..", "faulttest", name)
		file := testkit.Must(parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly))(t)
		for _, imp := range file.Imports {
			for _, judged := range []string{"router", "subscriber"} {
				if strings.HasPrefix(strings.Trim(imp.Path.Value, `"`), module+"/"+judged) {
					t.Errorf("%s imports %s, which it judges", path, imp.Path.Value)
				}
			}
		}
	}
}
