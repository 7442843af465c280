// Command configdoc writes docs/configuration.md out of the doc comments of the
// configuration structs:
//
//	go run ./internal/configdoc
//
// Run it at the top of the module after a change to one of them. Its test holds
// that the page is current.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// page is the file that is written.
const page = "docs/configuration.md"

// roots are the packages that users configure, with everything below them.
var roots = []string{"gateway", "publisher", "subscriber", "router", "sinks"}

// further are structs of configuration whose names do not end in Config.
var further = []string{"router.Route", "router.PoisonSelection", "subscriber.Backoff", "subscriber.Hooks"}

const intro = `# Configuration

Every struct that configures something, by package. Zero values mean the default that is named; "off" is a
constant of its own where it exists. Each struct has a method ` + "`Validate() error`" + `, or its constructor checks it, and tells the field
that is wrong. Secrets appear in no log and no error.

This page is made of the doc comments: ` + "`go run ./internal/configdoc`" + `. How to choose topics and keys:
[topics-and-keys.md](topics-and-keys.md). Deduplication over several processes: [dedup.md](dedup.md). The poison queue:
[poison-queue.md](poison-queue.md).
`

func main() {
	text, err := generate(".")
	if err == nil {
		err = os.WriteFile(page, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "configdoc:", err)
		os.Exit(1)
	}
}

// generate returns the page for the module at top.
func generate(top string) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(intro)
	for _, root := range roots {
		dirs, err := packageDirs(top, root)
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			if err := writePackage(&out, top, dir); err != nil {
				return nil, fmt.Errorf("%s: %w", dir, err)
			}
		}
	}
	return out.Bytes(), nil
}

// packageDirs returns the folders of packages that are configured by users: not
// those of helpers for tests.
func packageDirs(top, root string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(filepath.Join(top, root), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if name := entry.Name(); name == "testdata" || strings.HasSuffix(name, "test") {
			return fs.SkipDir
		}
		dir, err := filepath.Rel(top, path)
		dirs = append(dirs, filepath.ToSlash(dir))
		return err
	})
	return dirs, err
}

// pkg is what the page needs of a package.
type pkg struct {
	name   string
	consts map[string]string // Default… constants as they are written
	types  []*ast.TypeSpec
	docs   map[string]string
}

func writePackage(out *bytes.Buffer, top, dir string) error {
	p, err := parsePackage(filepath.Join(top, filepath.FromSlash(dir)))
	if err != nil || len(p.types) == 0 {
		return err
	}
	fmt.Fprintf(out, "\n## %s\n", dir)
	for _, spec := range p.types {
		fmt.Fprintf(out, "\n### %s.%s\n\n%s\n\n", p.name, spec.Name.Name, p.plain(p.docs[spec.Name.Name]))
		out.WriteString("| field | type | meaning |\n|---|---|---|\n")
		for _, row := range p.rows(spec.Type.(*ast.StructType)) {
			fmt.Fprintf(out, "| %s | %s | %s |\n", strings.Join(row.names, ", "), strings.Join(row.types, ", "), row.meaning)
		}
	}
	return nil
}

func parsePackage(dir string) (*pkg, error) {
	p := &pkg{consts: map[string]string{}, docs: map[string]string{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.name = file.Name.Name
		for _, decl := range file.Decls {
			if d, ok := decl.(*ast.GenDecl); ok {
				p.add(d)
			}
		}
	}
	// Config first, the others by name.
	slices.SortFunc(p.types, func(a, b *ast.TypeSpec) int {
		rank := func(s *ast.TypeSpec) string {
			if s.Name.Name == "Config" {
				return ""
			}
			return s.Name.Name
		}
		return strings.Compare(rank(a), rank(b))
	})
	return p, nil
}

// add takes the constants and configuration structs of a declaration.
func (p *pkg) add(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.ValueSpec:
			for i, name := range s.Names {
				if d.Tok == token.CONST && strings.HasPrefix(name.Name, "Default") && i < len(s.Values) {
					p.consts[name.Name] = expression(s.Values[i])
				}
			}
		case *ast.TypeSpec:
			name := s.Name.Name
			_, isStruct := s.Type.(*ast.StructType)
			if !isStruct || !s.Name.IsExported() ||
				!strings.HasSuffix(name, "Config") && !slices.Contains(further, p.name+"."+name) {
				continue
			}
			doc := s.Doc
			if doc == nil {
				doc = d.Doc
			}
			p.docs[name] = doc.Text()
			p.types = append(p.types, s)
		}
	}
}

// row is a row of a table: one field, or several that share a comment.
type row struct {
	names, types []string
	meaning      string
}

func (p *pkg) rows(s *ast.StructType) []row {
	var rows []row
	for _, field := range s.Fields.List {
		var names []string
		for _, name := range field.Names {
			if name.IsExported() {
				names = append(names, "`"+name.Name+"`")
			}
		}
		if len(field.Names) == 0 {
			names = append(names, "`"+expression(field.Type)+"`")
		}
		if len(names) == 0 {
			continue
		}
		doc := field.Doc.Text() + field.Comment.Text()
		types := "`" + strings.ReplaceAll(expression(field.Type), "|", "\\|") + "`"
		if last := len(rows) - 1; doc == "" && last >= 0 {
			// It shares the comment of the field before it.
			rows[last].names = append(rows[last].names, names...)
			if !slices.Contains(rows[last].types, types) {
				rows[last].types = append(rows[last].types, types)
			}
			continue
		}
		rows = append(rows, row{names: names, types: []string{types}, meaning: strings.ReplaceAll(p.plain(doc), "|", "\\|")})
	}
	return rows
}

var (
	docLink  = regexp.MustCompile(`\[\*?([A-Za-z][A-Za-z0-9_.]*)\]`)
	linkDef  = regexp.MustCompile(`(?m)^\[[^\]]+\]: .*$`)
	duration = regexp.MustCompile(`^(?:(\d+) \* )?time\.(Hour|Minute|Second|Millisecond)$`)
)

// plain makes one line of Markdown of a doc comment.
func (p *pkg) plain(doc string) string {
	doc = strings.Join(strings.Fields(linkDef.ReplaceAllString(doc, "")), " ")
	doc = strings.NewReplacer("<", "&lt;", "*", `\*`).Replace(doc)
	return docLink.ReplaceAllStringFunc(doc, func(link string) string {
		name := strings.TrimLeft(strings.Trim(link, "[]"), `\*`)
		text := "`" + name + "`"
		if value, ok := p.consts[name]; ok {
			text += " (" + readable(value) + ")"
		}
		return text
	})
}

// readable writes durations as people do.
func readable(value string) string {
	m := duration.FindStringSubmatch(value)
	if m == nil {
		return "`" + value + "`"
	}
	n := m[1]
	if n == "" {
		n = "1"
	}
	return n + " " + map[string]string{"Hour": "h", "Minute": "min", "Second": "s", "Millisecond": "ms"}[m[2]]
}

func expression(e ast.Expr) string {
	var out bytes.Buffer
	if err := printer.Fprint(&out, token.NewFileSet(), e); err != nil {
		return "?"
	}
	return strings.Join(strings.Fields(out.String()), " ")
}
