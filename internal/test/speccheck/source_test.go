package speccheck

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// source is what the Go code of the repository declares.
type source struct {
	root string
	// tests are the test, example and fuzz functions, as "dir/TestName", each
	// with the names that its subtests can have.
	tests map[string]map[string]bool
	// names are the exported names, as "pkg.Name" and "pkg.Type.Member".
	names map[string]bool
}

// readSource parses every Go file below root, tests included.
func readSource(root string) (*source, error) {
	s := &source{root: root, tests: map[string]map[string]bool{}, names: map[string]bool{}}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go"):
			return nil
		}
		parsed, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a temporary file of another test, gone meanwhile
		}
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		for _, decl := range parsed.Decls {
			if strings.HasSuffix(file, "_test.go") {
				s.addTest(filepath.ToSlash(dir), decl)
			} else {
				s.addNames(parsed.Name.Name, decl)
			}
		}
		return nil
	})
	return s, err
}

func (s *source) addTest(dir string, decl ast.Decl) {
	f, ok := decl.(*ast.FuncDecl)
	if !ok || f.Recv != nil || !isTestName(f.Name.Name) {
		return
	}
	sub := map[string]bool{}
	add := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if name, err := strconv.Unquote(lit.Value); err == nil {
				sub[subtestName(name)] = true
			}
		}
	}
	// A subtest is named by the first argument of Run, or by a row of a table:
	// its key, its first value, or its field name.
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Run" && len(n.Args) == 2 {
				add(n.Args[0])
			}
		case *ast.KeyValueExpr:
			add(n.Key)
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "name" {
				add(n.Value)
			}
		case *ast.CompositeLit:
			if len(n.Elts) > 0 {
				add(n.Elts[0])
			}
		}
		return true
	})
	s.tests[path.Join(dir, f.Name.Name)] = sub
}

func isTestName(name string) bool {
	return strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example") || strings.HasPrefix(name, "Fuzz")
}

// subtestName is what package testing makes of a name.
func subtestName(name string) string { return strings.ReplaceAll(name, " ", "_") }

func (s *source) addNames(pkg string, decl ast.Decl) {
	add := func(names ...string) {
		for _, name := range names {
			if !ast.IsExported(name) {
				return
			}
		}
		s.names[pkg+"."+strings.Join(names, ".")] = true
	}
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv == nil {
			add(decl.Name.Name)
			return
		}
		t := decl.Recv.List[0].Type
		if star, ok := t.(*ast.StarExpr); ok {
			t = star.X
		}
		if id, ok := t.(*ast.Ident); ok {
			add(id.Name, decl.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					add(id.Name)
				}
			case *ast.TypeSpec:
				add(spec.Name.Name)
				if st, ok := spec.Type.(*ast.StructType); ok {
					for _, field := range st.Fields.List {
						for _, id := range field.Names {
							add(spec.Name.Name, id.Name)
						}
					}
				}
			}
		}
	}
}

// checkTest reports what is wrong with a reference such as
// gateway/TestName/subtest.
func (s *source) checkTest(ref string) error {
	parts := strings.Split(ref, "/")
	n := 0
	for n < len(parts) && !isTestName(parts[n]) {
		n++
	}
	if n == len(parts) {
		return fmt.Errorf("%s is no test", ref)
	}
	sub, known := s.tests[path.Join(parts[:n+1]...)]
	if !known {
		return fmt.Errorf("there is no test %s", strings.Join(parts[:n+1], "/"))
	}
	for _, name := range parts[n+1:] {
		if !sub[name] {
			return fmt.Errorf("%s has no subtest %s", strings.Join(parts[:n+1], "/"), name)
		}
	}
	return nil
}

// checkPlace reports what is wrong with a reference to a file or an exported
// name.
func (s *source) checkPlace(ref string) error {
	if strings.Contains(ref, "/") {
		if _, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(ref))); err != nil {
			return fmt.Errorf("there is no file %s", ref)
		}
		return nil
	}
	if !s.names[ref] {
		return fmt.Errorf("there is no exported %s", ref)
	}
	return nil
}
