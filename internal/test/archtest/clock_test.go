package archtest

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

// shortest is the least time that a test may wait for at most: below it, a busy machine decides whether
// the test passes. A wait for what has to happen takes testkit.Patience.
const shortest = 30 * time.Second

// TestNoShortWait checks that nothing that make test runs waits for less than 30 s of the machine's
// clock, or for a time that the code does not tell: no sleep, timer, deadline or helper with a limit,
// except in a bubble of testing/synctest, whose clock is its own.
//
// What remains is in testdata/clock, in a file for each package, a line each:
//
//	TestAbsent: time.After(quiet)  # an absence can only be waited for: passes whatever the time
//
// A line without a reason is to be mended. A line of something that is not there any more is an error.
func TestNoShortWait(t *testing.T) {
	t.Parallel()
	known := knownWaits(t)
	for dir, files := range packagesOf(t) {
		waits := newWaitFinder(files).find()
		for _, key := range slices.Sorted(maps.Keys(waits)) {
			if _, ok := known[dir][key]; !ok {
				t.Errorf("%s: waits for less than %v: use testing/synctest, or testkit.Patience for what has to happen\n%s", waits[key], shortest, key)
			}
			delete(known[dir], key)
		}
		for key := range known[dir] {
			t.Errorf("testdata/clock/%s has a line of what is not there: %s", clockFile(dir), key)
		}
		delete(known, dir)
	}
	for dir := range known {
		t.Errorf("testdata/clock/%s is of no package", clockFile(dir))
	}
}

// TestClientsOfNATSHaveTime checks that tests connect by natstest, whose clients wait for testkit.Patience: those of
// nats.go wait for two seconds for a connection, and for five for an answer.
func TestClientsOfNATSHaveTime(t *testing.T) {
	t.Parallel()
	eachTestFile(t, func(files *token.FileSet, file *ast.File) {
		if hasTag(file) {
			return
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Example") || file.Name.Name == "bench" {
				continue // what a user writes, and what runs on demand
			}
			ast.Inspect(decl, func(node ast.Node) bool {
				if isNamed(node, "natsgo", "Connect") || isNamed(node, "nats", "Connect") || isNamed(node, "jetstream", "New") {
					t.Errorf("%s: use natstest.Connect and natstest.JetStream", files.Position(node.Pos()))
				}
				return true
			})
		}
	})
}

// TestPortsAreOfTheSystem checks that no listener of a test has a port that somebody else may have.
func TestPortsAreOfTheSystem(t *testing.T) {
	t.Parallel()
	listens := regexp.MustCompile(`^Listen(Packet|TLS)?$`)
	eachTestFile(t, func(files *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 || !listens.MatchString(called(call)) {
				return true
			}
			address, ok := call.Args[1].(*ast.BasicLit)
			if ok && !strings.HasSuffix(address.Value, `:0"`) {
				t.Errorf("%s: listens on %s, not on a port of the system's choice", files.Position(call.Pos()), address.Value)
			}
			return true
		})
	})
}

// TestWaitsThatAreFound: what the check sees, and what it leaves alone.
func TestWaitsThatAreFound(t *testing.T) {
	t.Parallel()
	const source = `package p
const quiet, long = 100 * time.Millisecond, time.Minute
func TestA(t *testing.T) { time.Sleep(time.Second); <-time.After(quiet); <-time.After(long); shared(); w := world{}; w.pause() }
func TestB(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1); inside() }); time.NewTimer(d) }
func TestC(t *testing.T) { ctx, cancel := context.WithDeadline(ctx, time.Now().Add(20*time.Second)) }
func TestD(t *testing.T) { bubble(t, func() { time.Sleep(2) }); eventually(t, time.Second, f); <-time.After(testkit.Patience) }
func bubble(t *testing.T, f func()) { synctest.Test(t, func(*testing.T) { f() }) }
func inside() { time.Sleep(3) }
func shared() { time.Sleep(4) }
type world struct{}
func (world) pause() { time.Sleep(5) }
func (world) onlyInside() { time.Sleep(6) }
func (world) Publish() { time.Sleep(7) }
func helper() { synctest.Test(nil, func() { world{}.onlyInside() }) }
func BenchmarkA() { time.Sleep(8) }
func ExampleA() { conn.SetReadDeadline(time.Now().Add(time.Second)) }
`
	set := token.NewFileSet()
	file := testkit.Must(parser.ParseFile(set, "p_test.go", source, 0))(t)
	found := newWaitFinder([]goFile{{set: set, syntax: file, test: true}}).find()
	testkit.Equal(t, slices.Sorted(maps.Keys(found)), []string{
		"ExampleA: conn.SetReadDeadline(time.Now().Add(time.Second))",
		"TestA: time.After(quiet)",
		"TestA: time.Sleep(time.Second)",
		"TestB: time.NewTimer(d)",
		"TestC: context.WithDeadline(ctx, time.Now().Add(20 * time.Second))",
		"TestD: eventually(t, time.Second, f)",
		"shared: time.Sleep(4)",
		"world.Publish: time.Sleep(7)",
		"world.pause: time.Sleep(5)",
	})
}

// goFile is a parsed file; test tells that it is of tests, and that make test runs it.
type goFile struct {
	set    *token.FileSet
	syntax *ast.File
	test   bool
}

// packagesOf returns the files of each package of the module.
func packagesOf(t *testing.T) map[string][]goFile {
	t.Helper()
	pkgs := map[string][]goFile{}
	eachGoFile(t, func(path string, set *token.FileSet, file *ast.File) {
		dir := testkit.Must(filepath.Rel(top(t), filepath.Dir(path)))(t)
		test := strings.HasSuffix(path, "_test.go") || slices.ContainsFunc(file.Imports, func(spec *ast.ImportSpec) bool {
			return spec.Path.Value == `"testing"` // a suite, or what tests share
		})
		dir = filepath.ToSlash(dir)
		pkgs[dir] = append(pkgs[dir], goFile{set, file, test && !hasTag(file)})
	})
	return pkgs
}

// knownWaits returns the lines of testdata/clock, by package.
func knownWaits(t *testing.T) map[string]map[string]string {
	t.Helper()
	known := map[string]map[string]string{}
	files := testkit.Must(filepath.Glob("testdata/clock/*.txt"))(t)
	for _, name := range files {
		data := testkit.Must(os.ReadFile(name))(t)
		lines := map[string]string{}
		for line := range strings.Lines(string(data)) {
			key, reason, _ := strings.Cut(strings.TrimSpace(line), "  # ")
			lines[key] = reason
		}
		known[strings.ReplaceAll(strings.TrimSuffix(filepath.Base(name), ".txt"), "_", "/")] = lines
	}
	return known
}

func clockFile(dir string) string { return strings.ReplaceAll(dir, "/", "_") + ".txt" }

// waitFinder finds the waits in a package's tests. It tells what runs outside of bubbles by names: what
// a test mentions outside of synctest.Test, and what that mentions.
type waitFinder struct {
	decls     map[string][]scoped // by name; those of a method by the name of its type
	constants map[string]ast.Expr
	bubbles   map[string]bool // functions that run what they are given in a bubble
	selected  map[string]bool // names of methods that are called in the package
	called    map[string]bool // names of methods that are called outside of bubbles
	reached   map[string]bool
	waits     map[string]token.Position
}

// scoped is a declaration and how it is called in the list.
type scoped struct {
	node   ast.Node
	set    *token.FileSet
	name   string
	method string
}

func newWaitFinder(files []goFile) *waitFinder {
	f := &waitFinder{
		decls: map[string][]scoped{}, constants: map[string]ast.Expr{}, bubbles: map[string]bool{}, selected: map[string]bool{},
		called: map[string]bool{}, reached: map[string]bool{}, waits: map[string]token.Position{},
	}
	for _, file := range files {
		ast.Inspect(file.syntax, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.ValueSpec:
				for i, value := range node.Values {
					f.constants[node.Names[i].Name] = value
				}
			case *ast.SelectorExpr:
				f.selected[node.Sel.Name] = true
			}
			return true
		})
		if !file.test {
			continue
		}
		for _, decl := range file.syntax.Decls {
			f.add(file.set, decl)
		}
	}
	return f
}

func (f *waitFinder) add(set *token.FileSet, decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv != nil {
			receiver := types.ExprString(decl.Recv.List[0].Type)
			receiver, _, _ = strings.Cut(strings.TrimPrefix(receiver, "*"), "[")
			f.decls[receiver] = append(f.decls[receiver], scoped{decl, set, receiver + "." + decl.Name.Name, decl.Name.Name})
			return
		}
		name := decl.Name.Name
		f.decls[name] = append(f.decls[name], scoped{node: decl, set: set, name: name})
		f.bubbles[name] = mentions(decl, isBubble)
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				f.decls[spec.Name.Name] = append(f.decls[spec.Name.Name], scoped{node: spec, set: set, name: spec.Name.Name})
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					f.decls[name.Name] = append(f.decls[name.Name], scoped{node: spec, set: set, name: name.Name})
				}
			}
		}
	}
}

func isBubble(node ast.Node) bool {
	return isNamed(node, "synctest", "Test") || isNamed(node, "natstest", "Bubble") || isNamed(node, "testkit", "RunBubble")
}

// entry are the names of what runs by itself, or from another package. Benchmarks run on demand only.
var entry = regexp.MustCompile(`^([A-Z]|init$|_$)`)

// find returns the position of each wait outside of bubbles by its line in the list.
func (f *waitFinder) find() map[string]token.Position {
	for before := -1; before < len(f.reached); {
		before = len(f.reached)
		for name, decls := range f.decls {
			for _, decl := range decls {
				runs := f.reached[name] || decl.method == "" && entry.MatchString(name) && !strings.HasPrefix(name, "Benchmark")
				if decl.method != "" {
					runs = runs && (f.called[decl.method] || !f.selected[decl.method]) // others call it by an interface
				}
				if runs && !f.reached[" "+decl.name] {
					f.reached[" "+decl.name] = true
					f.look(decl)
				}
			}
		}
	}
	return f.waits
}

// look looks at what a declaration has outside of bubbles.
func (f *waitFinder) look(decl scoped) {
	ast.Inspect(decl.node, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.Ident:
			f.reached[node.Name] = true
		case *ast.SelectorExpr:
			f.called[node.Sel.Name] = true
			f.reached["."+node.Sel.Name] = true // what was called counts as progress
		case *ast.CallExpr:
			if isBubble(node.Fun) || f.bubbles[called(node)] || called(node) == "Bubble" { // natstest.Bubble
				return false
			}
			if f.isShort(node) {
				f.waits[decl.name+": "+types.ExprString(node)] = decl.set.Position(node.Pos())
			}
		}
		return true
	})
}

var (
	timed    = regexp.MustCompile(`^(time\.(Sleep|After|AfterFunc|NewTimer)|context\.With(Timeout|Deadline)(Cause)?)$`)
	deadline = regexp.MustCompile(`^Set(Read|Write)?Deadline$`)
	limited  = regexp.MustCompile(`(?i)^(require\.|assert\.)?(eventually|within|waitfor)`)
)

// isShort reports whether a call waits for less than 30 s, or nobody knows how long.
func (f *waitFinder) isShort(call *ast.CallExpr) bool {
	name := types.ExprString(call.Fun)
	switch {
	case timed.MatchString(name):
		for _, arg := range call.Args {
			if d, ok := f.duration(arg); ok && (d >= shortest || d <= 0) {
				return false // d <= 0 is over before it begins
			}
		}
		return true
	case deadline.MatchString(called(call)):
		d, ok := f.duration(call.Args[0])
		return ok && d < shortest
	case limited.MatchString(name):
		return slices.ContainsFunc(call.Args, func(arg ast.Expr) bool {
			d, ok := f.duration(arg)
			return ok && d < shortest && mentions(arg, func(node ast.Node) bool { _, named := node.(*ast.Ident); return named })
		})
	}
	return false
}

// called returns the last name of what is called.
func called(call *ast.CallExpr) string {
	name := types.ExprString(call.Fun)
	return name[strings.LastIndex(name, ".")+1:]
}

// duration evaluates what is made of numbers, units of time, and constants of the package.
func (f *waitFinder) duration(expr ast.Expr) (time.Duration, bool) {
	value := f.value(expr, 0)
	n, exact := constant.Int64Val(constant.ToInt(value))
	return time.Duration(n), exact && value.Kind() != constant.Unknown
}

var units = map[string]time.Duration{
	"time.Nanosecond": time.Nanosecond, "time.Microsecond": time.Microsecond, "time.Millisecond": time.Millisecond,
	"time.Second": time.Second, "time.Minute": time.Minute, "time.Hour": time.Hour,
}

func (f *waitFinder) value(expr ast.Expr, depth int) constant.Value {
	switch expr := expr.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(expr.Value, expr.Kind, 0)
	case *ast.SelectorExpr:
		if expr.Sel.Name == "Patience" { // testkit's, or what a suite is told to use for it
			return constant.MakeInt64(int64(testkit.Patience))
		}
		if unit, ok := units[types.ExprString(expr)]; ok {
			return constant.MakeInt64(int64(unit))
		}
	case *ast.Ident:
		if known, ok := f.constants[expr.Name]; ok && depth < 10 {
			return f.value(known, depth+1)
		}
	case *ast.ParenExpr:
		return f.value(expr.X, depth)
	case *ast.UnaryExpr:
		if x := f.value(expr.X, depth); x.Kind() != constant.Unknown {
			return constant.UnaryOp(expr.Op, x, 0)
		}
	case *ast.BinaryExpr:
		x, y := f.value(expr.X, depth), f.value(expr.Y, depth)
		if x.Kind() == constant.Unknown || y.Kind() == constant.Unknown || expr.Op == token.QUO && constant.Sign(y) == 0 {
			break
		}
		op := expr.Op
		if op == token.QUO && x.Kind() == constant.Int && y.Kind() == constant.Int {
			op = token.QUO_ASSIGN // of whole numbers
		}
		if slices.Contains([]token.Token{token.ADD, token.SUB, token.MUL, token.QUO_ASSIGN, token.QUO}, op) {
			return constant.BinaryOp(x, op, y)
		}
	case *ast.CallExpr:
		if name := types.ExprString(expr.Fun); len(expr.Args) == 1 && (name == "time.Duration" || name == "time.Now().Add") {
			return f.value(expr.Args[0], depth)
		}
	}
	return constant.MakeUnknown()
}
