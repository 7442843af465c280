package archtest

import (
	"github.com/agrimill/agrimill/internal/testkit"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestNoSleepWithoutSynctest checks that tests wait for what they need and not
// for time to pass: time.Sleep stands only in files that use testing/synctest,
// or natstest.Bubble, where it moves the clock of the bubble. (For other files the linter does it.)
func TestNoSleepWithoutSynctest(t *testing.T) {
	t.Parallel()
	eachTestFile(t, func(files *token.FileSet, file *ast.File) {
		for _, spec := range file.Imports {
			if name, _ := strconv.Unquote(spec.Path.Value); name == "testing/synctest" {
				return
			}
		}
		if mentions(file, isBubble) {
			return
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if isNamed(node, "time", "Sleep") {
				t.Errorf("%s: time.Sleep in a test without testing/synctest", files.Position(node.Pos()))
			}
			return true
		})
	})
}

// TestNoBoundOnTheClock checks that no test fails because the machine was busy with something else: of
// what make test runs, nothing asks whether it took too long, as in
//
//	if took := time.Since(began); took > time.Second {
//
// but in a bubble of testing/synctest. A test says instead what must not be what ended it, and puts that
// far beyond testkit.Patience. Bounds of an hour, and testkit.Patience itself, are not about the machine.
func TestNoBoundOnTheClock(t *testing.T) {
	t.Parallel()
	eachTestFile(t, func(files *token.FileSet, file *ast.File) {
		if hasTag(file) {
			return
		}
		for _, decl := range file.Decls {
			if mentions(decl, isBubble) {
				continue
			}
			ast.Inspect(decl, func(node ast.Node) bool {
				if is, ok := node.(*ast.IfStmt); ok && isBound(is) {
					t.Errorf("%s: a bound on how long something takes on a machine that may be busy", files.Position(is.Pos()))
				}
				return true
			})
		}
	})
}

// isBound reports whether a condition asks if more time has passed than a limit.
func isBound(is *ast.IfStmt) bool {
	if is.Init == nil || !mentions(is.Init, isSince) {
		if !mentions(is.Cond, isSince) {
			return false
		}
	}
	return mentions(is.Cond, func(node ast.Node) bool {
		compared, ok := node.(*ast.BinaryExpr)
		if !ok {
			return false
		}
		limit := compared.Y
		switch compared.Op {
		case token.GTR, token.GEQ:
		case token.LSS, token.LEQ:
			limit = compared.X
			if !mentions(compared.Y, isSince) {
				return false // whether it took too little
			}
		default:
			return false
		}
		zero, ok := limit.(*ast.BasicLit)
		return !(ok && zero.Value == "0") && !mentions(limit, func(node ast.Node) bool {
			return isNamed(node, "time", "Hour") || isNamed(node, "testkit", "Patience")
		})
	})
}

func isSince(node ast.Node) bool { return isNamed(node, "time", "Since") }

// isNamed reports whether a node is a name of a package.
func isNamed(node ast.Node, pkg, name string) bool {
	selected, ok := node.(*ast.SelectorExpr)
	if !ok || selected.Sel.Name != name {
		return false
	}
	x, ok := selected.X.(*ast.Ident)
	return ok && x.Name == pkg
}

func mentions(node ast.Node, is func(ast.Node) bool) (found bool) {
	ast.Inspect(node, func(node ast.Node) bool {
		found = found || node != nil && is(node)
		return !found
	})
	return found
}

// hasTag reports whether make test leaves a file out: it has a build tag that is no system.
func hasTag(file *ast.File) bool {
	for _, group := range file.Comments {
		for _, comment := range group.List {
			if expr, err := constraint.Parse(comment.Text); err == nil && !expr.Eval(func(tag string) bool {
				return slices.Contains([]string{"linux", "unix", "race"}, tag)
			}) {
				return true
			}
		}
	}
	return false
}

// eachTestFile parses each test file of the module.
func eachTestFile(t *testing.T, check func(*token.FileSet, *ast.File)) {
	t.Helper()
	eachGoFile(t, func(path string, files *token.FileSet, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") {
			check(files, file)
		}
	})
}

// eachGoFile parses each Go file of the module.
func eachGoFile(t *testing.T, check func(path string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	testkit.NoError(t, filepath.WalkDir(top(t), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err == nil {
			check(path, files, file)
		}
		return err
	}))
}
