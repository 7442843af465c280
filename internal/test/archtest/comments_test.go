package archtest

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// TestEveryFieldHasAComment checks that godoc is complete where the linter does not look: exported fields, and methods of
// interfaces, say what they are. A comment on one also covers the names that follow it without a blank line, and that
// of the type the names before the first comment.
func TestEveryFieldHasAComment(t *testing.T) {
	t.Parallel()
	eachGoFile(t, func(path string, files *token.FileSet, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") || ast.IsGenerated(file) { // which says what its source says
			return
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.TypeSpec); ok && spec.Name.IsExported() {
				for _, field := range uncommentedFields(files, spec) {
					t.Errorf("%s: %s.%s: no comment", files.Position(field.Pos()), spec.Name.Name, field.Names[0].Name)
				}
			}
			_, inside := node.(*ast.FuncDecl)
			return !inside
		})
	})
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
