package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// TestOneWay holds the table "One way for one thing" of CONTRIBUTING.md in what users import.
func TestOneWay(t *testing.T) {
	inside := regexp.MustCompile(`(^|/)(internal|cmd|examples|docs|testdata)/`)
	eachGoFile(t, func(path string, files *token.FileSet, file *ast.File) {
		relative := filepath.ToSlash(testkit.Must(filepath.Rel(top(t), path))(t))
		if strings.HasSuffix(path, "_test.go") || inside.MatchString(relative) {
			return
		}
		for _, problem := range oneWay(filepath.ToSlash(filepath.Dir(relative)), file) {
			t.Errorf("%s: %s", files.Position(problem.at.Pos()), problem.text)
		}
	})
}

// strayed is what is done in another way than by the table.
type strayed struct {
	at   ast.Node
	text string
}

func oneWay(dir string, file *ast.File) []strayed {
	var found []strayed
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if text := oneWayFunc(dir, d); text != "" {
				found = append(found, strayed{d, text})
			}
		case *ast.GenDecl:
			ast.Inspect(d, func(n ast.Node) bool {
				if spec, ok := n.(*ast.TypeSpec); ok {
					found = append(found, zeros(spec)...)
				}
				field, ok := n.(*ast.Field)
				if !ok {
					return true
				}
				for _, name := range field.Names {
					if want := loggerOf(dir); name.Name == "Logger" && types.ExprString(field.Type) != want {
						found = append(found, strayed{field, "a Logger that is no " + want})
					}
				}
				return true
			})
		}
	}
	return found
}

// zeroSaid matches what a comment says of zero.
var zeroSaid = regexp.MustCompile(`(?i)\b(defaults?|0|zero|required|optional|empty)\b`)

// zeros returns the numbers of a configuration whose comments do not say what zero means.
func zeros(spec *ast.TypeSpec) (found []strayed) {
	body, ok := spec.Type.(*ast.StructType)
	if !ok || !spec.Name.IsExported() || !strings.HasSuffix(spec.Name.Name, "Config") && !strings.HasSuffix(spec.Name.Name, "Settings") {
		return nil
	}
	for _, field := range body.Fields.List {
		switch types.ExprString(field.Type) {
		case "int", "int32", "int64", "uint64", "float64", "time.Duration":
			if len(field.Names) > 0 && field.Names[0].IsExported() && !zeroSaid.MatchString(field.Doc.Text()) {
				found = append(found, strayed{field, field.Names[0].Name + " does not say what zero means"})
			}
		}
	}
	return found
}

// loggerOf returns the type of loggers in a package.
func loggerOf(dir string) string {
	if dir == "gateway" || strings.HasPrefix(dir, "gateway/") {
		return "*slog.Logger" // does not know Watermill
	}
	return "watermill.LoggerAdapter"
}

// oneWayFunc returns what is wrong with a function.
func oneWayFunc(dir string, f *ast.FuncDecl) string {
	name, params := f.Name.Name, paramsOf(f)
	switch {
	case f.Recv != nil:
		receiver := types.ExprString(f.Recv.List[0].Type)
		switch {
		case name == "Validate" && (strings.HasPrefix(receiver, "*") || len(params) != 0 || results(f) != "error"):
			return "Validate is not of a value, without parameters, with an error"
		case name == "WithDefaults" && (strings.HasPrefix(receiver, "*") || len(params) != 0 || results(f) != receiver):
			return "WithDefaults is not of a value, without parameters, with another one"
		case name == "Health" && len(params) > 0 && (!slices.Equal(params, []string{"context.Context"}) || results(f) != "error"):
			return "Health that asks is not Health(ctx context.Context) error"
		}
	case strings.HasPrefix(name, "New"):
		return constructor(dir, params)
	case name == "Run" && strings.HasSuffix(dir, "test") && !slices.Equal(params, []string{"*testing.T", "Suite"}):
		return "the conformance suite is not Run(t *testing.T, s Suite)"
	}
	return ""
}

// constructor returns what is wrong with the parameters of a constructor.
func constructor(dir string, params []string) string {
	for i, param := range params {
		switch {
		case param == "context.Context" && i != 0:
			return "the context is not first"
		case strings.HasSuffix(param, "Config") && strings.HasPrefix(param, "*"):
			return "the Config is not passed by value"
		case strings.HasSuffix(param, "Config") && i != len(params)-1 && !(i == len(params)-2 && params[i+1] == loggerOf(dir)):
			return "the Config is not last, or last but for the logger"
		case strings.Contains(param, "Logger") && (param != loggerOf(dir) || i != len(params)-1):
			return "the logger is not a " + loggerOf(dir) + ", last"
		}
	}
	return ""
}

func paramsOf(f *ast.FuncDecl) []string { return typesOf(f.Type.Params) }

func results(f *ast.FuncDecl) string { return strings.Join(typesOf(f.Type.Results), ", ") }

func typesOf(fields *ast.FieldList) []string {
	var list []string
	if fields == nil {
		return nil
	}
	for _, field := range fields.List {
		for range max(1, len(field.Names)) {
			list = append(list, types.ExprString(field.Type))
		}
	}
	return list
}

// TestOneWayFinds: the test above finds what strays.
func TestOneWayFinds(t *testing.T) {
	for code, want := range map[string]int{
		`func New(ctx context.Context, config Config, logger watermill.LoggerAdapter) {}`:            0,
		`func New(config Config, ctx context.Context) {}`:                                            1,
		`func New(config *Config) {}`:                                                                1,
		`func New(config Config, logger *slog.Logger) {}`:                                            1,
		`type Config struct { Logger *slog.Logger }`:                                                 1,
		`func (c *Config) Validate() error { return nil }`:                                           1,
		`func (c Config) Validate() bool { return true }`:                                            1,
		`func (c Config) WithDefaults() (Config, error) { return c, nil }`:                           1,
		`func (s *Sink) Health(timeout time.Duration) error { return nil }`:                          1,
		"type Config struct {\n// Most is a bound.\nMost int\n// Least is. 0 means 3.\nLeast int\n}": 1,
		`func Run(t *testing.T, h Harness) {}`:                                                       1,
	} {
		file := testkit.Must(parser.ParseFile(token.NewFileSet(), "", "package p\n"+code, parser.ParseComments))(t)
		if got := oneWay("sinks/sinktest", file); len(got) != want {
			t.Errorf("%s: got %v, want %d problems", code, got, want)
		}
	}
}
