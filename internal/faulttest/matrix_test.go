package faulttest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The matrix names every row and every test of one, and no other.
func TestMatrixIsComplete(t *testing.T) {
	matrix, err := os.ReadFile("../../docs/fault-matrix.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("rows_*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	var source strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
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
	for row := 1; row <= 34; row++ {
		line := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \|.*TestRow%02d`, row, row))
		if !line.Match(matrix) {
			t.Errorf("the matrix does not show row %d with its test", row)
		}
	}
}
