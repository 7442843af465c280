package journal_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/internal/testkit"
)

// On a full disk the journal is in memory, says so, and gets its file when there is room; so does one that finds no room for more.
func TestFileOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { testkit.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	path, filler := filepath.Join(dir, "journal.bbolt"), filepath.Join(dir, "filler")
	fill := func() {
		if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	d := &diary{t: t, now: time.Now()}
	fill()
	errs := d.reopen(journal.Config{}, path)
	for round, name := range []string{"a.zip", "b.zip"} {
		for range 200 << round {
			d.Event(received(name, "", name))
		}
		testkit.Eventually(t, "there is no room", func() bool { return errors.Is(d.Err(), syscall.ENOSPC) })
		testkit.NoError(t, os.Remove(filler))
		testkit.Eventually(t, "the file has it", func() bool { return d.Err() == nil })
		fill()
	}
	d.close()
	if len(*errs) != 2 {
		t.Errorf("told %v", *errs)
	}
	d.reopen(journal.Config{}, path)
	d.one("a.zip")
	d.one("b.zip")
}
