package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// documentedName is `package.Name` or `package.Name.Member` at the beginning of
// a piece of code in a text.
var documentedName = regexp.MustCompile("`(?:errors\\.(?:Is|As)\\([^`]*?)?&?([a-z]+)\\.([A-Z]\\w*)(?:\\.([A-Z]\\w*))?")

// TestDocumentedNamesExist checks that what the documentation calls by the name of
// one of our packages is there.
func TestDocumentedNamesExist(t *testing.T) {
	t.Parallel()
	names := map[string]map[string]bool{}
	found := 0
	for _, file := range markdownFiles(t) {
		for _, match := range documentedName.FindAllStringSubmatch(readFile(t, file), -1) {
			path, ok := strings.CutPrefix(fragmentImports[match[1]], module+"/")
			if !ok {
				continue
			}
			if names[path] == nil {
				names[path] = exportedNames(t, path)
			}
			found++
			if !names[path][match[2]] || match[3] != "" && !names[path][match[2]+"."+match[3]] {
				t.Errorf("%s: %s has no %s", file, path, strings.TrimSuffix(match[2]+"."+match[3], "."))
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d names found", found)
	}
}

// exportedNames are the exported names of a package: its declarations, and its
// fields and methods as Type.Name.
func exportedNames(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(top(t), filepath.FromSlash(pkg), "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no Go files, %v", pkg, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source := testkit.Must(os.ReadFile(name))(t)
		file := testkit.Must(parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution))(t)
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if receiver := receiverName(decl); receiver != "" {
					names[receiver+"."+decl.Name.Name] = true
				} else {
					names[decl.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					collectSpec(names, spec)
				}
			}
		}
	}
	return names
}

func collectSpec(names map[string]bool, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			names[name.Name] = true
		}
	case *ast.TypeSpec:
		names[spec.Name.Name] = true
		var fields *ast.FieldList
		switch kind := spec.Type.(type) {
		case *ast.StructType:
			fields = kind.Fields
		case *ast.InterfaceType:
			fields = kind.Methods
		default:
			return
		}
		for _, field := range fields.List {
			for _, name := range field.Names {
				names[spec.Name.Name+"."+name.Name] = true
			}
		}
	}
}

func receiverName(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return ""
	}
	kind := f.Recv.List[0].Type
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	if index, ok := kind.(*ast.IndexExpr); ok {
		kind = index.X
	}
	if ident, ok := kind.(*ast.Ident); ok {
		return ident.Name
	}
	return ""
}
