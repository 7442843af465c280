package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

// files makes files in a folder, each with its own name as text.
func files(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, filepath.FromSlash(name))
		testkit.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.NoError(t, os.WriteFile(path, []byte("text of "+name+"\n"), 0o600))
	}
}

// listed is what go list says of a package in folder of a module.
func listed(t *testing.T, module, dir, folder string) []byte {
	t.Helper()
	line := testkit.Must(json.Marshal(map[string]any{
		"Dir": filepath.Join(dir, folder), "Module": map[string]string{"Path": module, "Version": "v1.2.3", "Dir": dir},
	}))(t)
	return line
}

// A binary's licenses are those of the modules that it has packages of, with the ones for parts of a module that are linked.
func TestLicenses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files(t, dir, "LICENSE", "NOTICE.md", "license.go", "README.md", "zstd/internal/xxhash/LICENSE.txt", "unused/COPYING")
	found := licenses{}
	testkit.NoError(t, found.collect(listed(t, "example.com/one", dir, "zstd/internal/xxhash")))
	text := string(found.text())
	for _, want := range []string{"example.com/one v1.2.3: LICENSE\n\ntext of LICENSE\n", ": NOTICE.md\n", ": zstd/internal/xxhash/LICENSE.txt\n"} {
		testkit.Contains(t, text, want)
	}
	for _, other := range []string{"license.go", "README", "COPYING"} {
		if strings.Contains(text, other) {
			t.Errorf("%s is in\n%s", other, text)
		}
	}
}

func TestModuleWithoutALicense(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files(t, dir, "main.go")
	if err := (licenses{}).collect(listed(t, "example.com/none", dir, "")); err == nil || !strings.Contains(err.Error(), "example.com/none v1.2.3 has no license file") {
		t.Errorf("got %v, want an error that names the module", err)
	}
	if err := (licenses{}).collect([]byte(`{"Dir": "/somewhere"}`)); err == nil {
		t.Error("got no error for a package that is in no module")
	}
	if err := (licenses{}).collect([]byte(`{"Dir": "/go/src/fmt", "Standard": true}`)); err != nil {
		t.Errorf("got %v for a package of Go itself, whose license is added once", err)
	}
}

// What differs between two runs of syft does not differ in what is written.
func TestReproducibleSBOM(t *testing.T) {
	t.Parallel()
	made := func(name, created, packages string) []byte {
		return []byte(`{"spdxVersion": "SPDX-2.3", "documentNamespace": "https://example.com/` + name + `", "packages": [` + packages + `],
			"creationInfo": {"created": "` + created + `", "creators": ["Tool: x"]}}`)
	}
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.FixedZone("", 3600))
	first := testkit.Must(reproducible(made("1", "2026-05-01T00:00:00Z", "{}, {}"), "https://example.com/digest", at, "syft@v1.0.0"))(t)
	second := testkit.Must(reproducible(made("2", "2026-06-01T00:00:00Z", "{}, {}"), "https://example.com/digest", at, "syft@v1.0.0"))(t)
	if string(first) != string(second) {
		t.Errorf("got %s, then %s", first, second)
	}
	for _, want := range []string{`"created": "2026-03-04T04:06:07Z"`, `"Tool: syft-v1.0.0"`, `"https://example.com/digest"`} {
		testkit.Contains(t, string(first), want)
	}
	for _, wrong := range [][]byte{made("1", "", "{}"), []byte(`{}`), []byte(`no JSON`), nil} {
		if document, err := reproducible(wrong, "", at, ""); err == nil {
			t.Errorf("got %s and no error for %q", document, wrong)
		}
	}
}

func TestChecksums(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files(t, dir, "b", "a", "man1/c")
	testkit.NoError(t, writeChecksums(dir))
	got := testkit.Must(os.ReadFile(filepath.Join(dir, "SHA256SUMS")))(t)
	const want = "0c2f81f868de36ecc93388dfe572f45a10f9df9cc9ace71978294165c02574e2  a\n" +
		"f44fdf451f96e3f25e7493d6123d9258e4caadb745841b6d18d0ce985bf43764  b\n" +
		"211fca6618d4a4a1bc75406269a88213b7e5282b91334314594de3db61c38010  man1/c\n"
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
