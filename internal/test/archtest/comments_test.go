package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryExportedNameHasAComment checks that godoc is complete: packages,
// declarations, methods, methods of interfaces, and fields, all say what they are. A
// comment on a group of constants, or on a field, also covers the names that
// follow it without a blank line, and that of a type the fields before the first
// comment.
func TestEveryExportedNameHasAComment(t *testing.T) {
	t.Parallel()
	packages := map[string]bool{} // folder → has a package comment
	err := filepath.WalkDir(top(t), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		packages[filepath.Dir(path)] = packages[filepath.Dir(path)] || file.Doc != nil
		if ast.IsGenerated(file) { // says what its source says
			return nil
		}
		for _, missing := range uncommented(files, file) {
			t.Errorf("%s: no comment", missing)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, commented := range packages {
		if !commented {
			t.Errorf("%s: no package comment", dir)
		}
	}
}

// uncommented lists the exported names of a file that no comment covers.
func uncommented(files *token.FileSet, file *ast.File) (missing []string) {
	report := func(pos token.Pos, name string) {
		missing = append(missing, fmt.Sprintf("%s: %s", files.Position(pos), name))
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			receiver := receiverName(decl)
			if decl.Name.IsExported() && (receiver == "" || ast.IsExported(receiver)) && decl.Doc == nil {
				report(decl.Pos(), decl.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						if name.IsExported() && decl.Doc == nil && spec.Doc == nil && spec.Comment == nil {
							report(spec.Pos(), name.Name)
						}
					}
				case *ast.TypeSpec:
					if !spec.Name.IsExported() {
						continue
					}
					if decl.Doc == nil && spec.Doc == nil {
						report(spec.Pos(), spec.Name.Name)
					}
					for _, field := range uncommentedFields(files, spec) {
						report(field.Pos(), spec.Name.Name+"."+field.Names[0].Name)
					}
				}
			}
		}
	}
	return missing
}

// uncommentedFields lists the exported fields of a struct, or methods of an
// interface, that no comment covers.
func uncommentedFields(files *token.FileSet, spec *ast.TypeSpec) (missing []*ast.Field) {
	var list *ast.FieldList
	switch kind := spec.Type.(type) {
	case *ast.StructType:
		list = kind.Fields
	case *ast.InterfaceType:
		list = kind.Methods
	default:
		return nil
	}
	line := func(pos token.Pos) int { return files.Position(pos).Line }
	covered := 0 // the last line that a comment on a field covers
	for _, field := range list.List {
		own := field.Doc != nil || field.Comment != nil
		commented := own || covered == 0 || line(field.Pos()) == covered+1
		if own || covered != 0 && commented {
			covered = line(field.End())
		}
		if len(field.Names) > 0 && field.Names[0].IsExported() && !commented {
			missing = append(missing, field)
		}
	}
	return missing
}
