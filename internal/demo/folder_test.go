package demo

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// write puts files, given as name and content, into a new folder.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		testkit.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return dir
}

func TestReadFolder(t *testing.T) {
	dir := write(t, map[string]string{"b.png": "b", "a.zip": "", ".hidden": "h", "sub/c.png": "c"})
	files, skipped, err := ReadFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, f.Name+" "+f.MessageType+" "+string(f.Data))
	}
	testkit.Equal(t, got, []string{"a.zip iso:11783:-10:taskdata:zip ", "b.png img:png b"})
	if want := []string{".hidden", "sub"}; !slices.Equal(skipped, want) {
		t.Errorf("skipped %q, want %q", skipped, want)
	}
}

func TestReadFolderRefuses(t *testing.T) {
	if _, _, err := ReadFolder(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent folder: %v, want %v", err, os.ErrNotExist)
	}
	if _, _, err := ReadFolder(t.TempDir()); !errors.Is(err, errNoFiles) {
		t.Errorf("empty folder: %v, want %v", err, errNoFiles)
	}
	dir := write(t, map[string]string{"large.zip": ""})
	// Sparse: takes no room.
	testkit.NoError(t, os.Truncate(filepath.Join(dir, "large.zip"), MaxFile+1))
	if _, _, err := ReadFolder(dir); err == nil || !strings.Contains(err.Error(), "large.zip") {
		t.Errorf("too large a file: %v, want an error that names it", err)
	}
}
