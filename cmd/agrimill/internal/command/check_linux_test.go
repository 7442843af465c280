package command

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// What run could not create, because this user may not write there, does not look as if it only had to be created.
func TestCheckNotWritable(t *testing.T) {
	dir := t.TempDir()
	shut, open := filepath.Join(dir, "shut"), filepath.Join(dir, "open")
	must(t, os.MkdirAll(filepath.Join(shut, "there"), 0o700))
	must(t, os.Chmod(filepath.Join(shut, "there"), 0o555))
	must(t, os.Chmod(shut, 0o555))
	must(t, os.Mkdir(open, 0o777))
	must(t, os.Chmod(open, 0o777))
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) // made for its user alone
	file := func(path string) error {
		_, err := storeFile(path, func() (io.Closer, error) { return os.Open(path) })
		return err
	}
	address := func(path string) error {
		_, err := bucket(t.Context(), "file://"+path)
		return err
	}
	defer testkit.Unprivileged(t)()
	for _, err := range []error{file(open + "/dedup.db"), address(open), address(open + "/a/b?create_dir=true")} {
		if err != nil {
			t.Errorf("where this user may write: %v", err)
		}
	}
	for name, err := range map[string]error{
		"file": file(shut + "/dedup.db"), "directory": address(shut + "/there"), "directory to come": address(shut + "/a/b?create_dir=true"),
	} {
		if err == nil || !strings.Contains(err.Error(), "nothing can be written in "+shut) {
			t.Errorf("%s where this user may not write: %v", name, err)
		}
	}
	if left := testkit.Must(os.ReadDir(open))(t); len(left) > 0 {
		t.Errorf("%v is left there", left)
	}
}

// A disk that is full takes an empty file, and nothing that run would write.
func TestCheckFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { testkit.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	_, ofFile := storeFile(dir+"/dedup.db", func() (io.Closer, error) { return os.Open(dir + "/dedup.db") })
	_, ofAddress := bucket(t.Context(), "file://"+dir)
	for _, err := range []error{ofFile, ofAddress} {
		if err == nil || !strings.Contains(err.Error(), "nothing can be written in "+dir+": no space left on device") {
			t.Errorf("on a full disk: %v", err)
		}
	}
	if left := testkit.Must(os.ReadDir(dir))(t); len(left) != 1 {
		t.Errorf("%v is there", left)
	}
}
