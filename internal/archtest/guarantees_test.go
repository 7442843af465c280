package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGuaranteesNameTestsThatExist holds docs/guarantees.md to the tests: every
// guarantee names some, and each of them exists.
func TestGuaranteesNameTestsThatExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		names := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(section, -1)
		if len(names) == 0 {
			t.Errorf("%q names no test", title)
		}
		for _, name := range names {
			if !slices.Contains(tests, name[1]) {
				t.Errorf("%q names %s, which does not exist", title, name[1])
			}
		}
	}
}

// testNames returns the names of all test functions of the module.
func testNames(t *testing.T) []string {
	t.Helper()
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	var names []string
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, match := range declaration.FindAllSubmatch(source, -1) {
			names = append(names, string(match[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
