package pipeline_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A disk that is full is said, and so is what to do; when there is room again, all is right.
func TestVerdictOfAFullDisk(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { testkit.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	b := w.start(w.head() + fmt.Sprintf("sinks:\n  farm: {blob: {url: \"file://%s\"}}\npoison: {sink: farm}\n", dir) + allRoute)
	b.says(true, "", "All is right")
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	w.send(taskData, 2)
	b.says(false, admin.ProblemRoute, `The route "farm-data" has been waiting for`, "no space left on device", "nothing is lost. Free space on that disk; agrimill continues by itself.")
	testkit.NoError(t, os.Remove(filler))
	b.says(true, "", "All is right")
	w.waitConfirmed()
	_ = b.stop()
}
