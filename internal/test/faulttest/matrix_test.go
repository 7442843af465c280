package faulttest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// The matrix names every row and every test of one, and no other.
func TestMatrixIsComplete(t *testing.T) {
	matrix := testkit.Must(os.ReadFile("matrix.md"))(t)
	table, _, _ := bytes.Cut(matrix, []byte("\n## ")) // other tables follow
	files, err := filepath.Glob("rows_*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	var source strings.Builder
	for _, file := range files {
		text := testkit.Must(os.ReadFile(file))(t)
		source.Write(text)
	}
	written := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^func (TestRow\w+)\(`).FindAllStringSubmatch(source.String(), -1) {
		written[match[1]] = true
	}
	named := map[string]bool{}
	for _, name := range regexp.MustCompile(`\bTestRow\w+`).FindAllString(string(matrix), -1) {
		named[name] = true
		if !written[name] {
			t.Errorf("the matrix names %s, which does not exist", name)
		}
	}
	for name := range written {
		if !named[name] {
			t.Errorf("the matrix does not name %s", name)
		}
	}
	const rows = 35
	for row := 1; row <= rows; row++ {
		line := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \|.*TestRow%02d`, row, row))
		if !line.Match(table) {
			t.Errorf("the matrix does not show row %d with its test", row)
		}
		if n := len(regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \|`, row)).FindAll(table, -1)); n != 1 {
			t.Errorf("the matrix has row %d %d times", row, n)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^\| \d+ \|`).FindAll(table, -1)); n != rows {
		t.Errorf("the matrix has %d rows, want %d", n, rows)
	}
}
