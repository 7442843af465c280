package pipeline_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A disk that is full is said, and so is what to do; when there is room again, all is right.
func TestVerdictOfAFullDisk(t *testing.T) {
	t.Parallel() // it waits
	t.Run("of stdout", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		device := testkit.Must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
		roomy := testkit.Must(os.Create(filepath.Join(t.TempDir(), "lines")))(t)
		t.Cleanup(func() { testkit.NoError(t, device.Close()); testkit.NoError(t, roomy.Close()) })
		disk := &switched{}
		disk.file.Store(roomy)
		w.stdout = disk
		b := w.start(w.head() + "sinks: {farm: {log: {}}}\npoison: {sink: farm}\n" + allRoute)
		w.fullDisk(b, func() { disk.file.Store(device) }, func() { disk.file.Store(roomy) })
	})
	t.Run("of a bucket", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		dir := t.TempDir()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("a small file system cannot be mounted: %v", err)
		}
		t.Cleanup(func() { testkit.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
		b := w.start(w.head() + fmt.Sprintf("sinks:\n  farm: {blob: {url: \"file://%s\"}}\npoison: {sink: farm}\n", dir) + allRoute)
		filler := filepath.Join(dir, "filler")
		w.fullDisk(b, func() {
			if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); err == nil {
				t.Fatal("the disk is not full")
			}
		}, func() { testkit.NoError(t, os.Remove(filler)) })
	})
}

// A claim check on a full disk is what fails, and not the host that has the payloads.
func TestVerdictOfAFullClaimCheck(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { testkit.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	b := w.start(w.head() + w.natsSink() + fmt.Sprintf("claim_check: {url: \"file://%s\", from: 65536}\n", dir) + allRoute)
	b.says(true, "", "All is right")
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	payload := append([]byte(mark), make([]byte, 500<<10)...)
	testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Payload: payload}))(t)
	b.says(false, admin.ProblemClaimCheck, "The store of the claim check has been failing for", "no space left on device", "Messages with large payloads wait; nothing is lost. Free space on that disk; agrimill continues by itself.")
	if n := len(b.Snapshot().Verdict.Problems); n != 1 {
		t.Errorf("%d problems", n)
	}
	testkit.NoError(t, os.Remove(filler))
	b.says(true, "", "All is right")
	_ = b.stop()
}

// A journal whose disk is full at the start keeps nothing from running, and is no secret.
func TestVerdictOfAFullJournal(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { testkit.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	b := w.start(w.head() + w.natsSink() + fmt.Sprintf("journal: {path: \"%s/journal.db\"}\n", dir) + allRoute)
	testkit.Eventually(w, "the verdict is that the journal alone has a problem", func() bool { // the log may have told it before all else was ready
		v := b.Snapshot().Verdict
		return v.Ready && len(v.Problems) == 1 && v.Problems[0].Kind == admin.ProblemJournal &&
			strings.Contains(v.Sentence, "no space left on device") && strings.HasSuffix(v.Sentence, "Free space on that disk; agrimill continues by itself.")
	})
	b.logs.contains("msg=problem", "kind=journal")
	testkit.NoError(t, os.Remove(filler))
	b.says(true, "", "All is right")
	b.mustStop()
}

// fullDisk expects the verdict while a disk is full, and when it is not.
func (w *world) fullDisk(b *agrimill, fill, free func()) {
	w.Helper()
	b.says(true, "", "All is right")
	fill()
	w.send(taskData, 2)
	b.says(false, admin.ProblemRoute, `The route "farm-data" has been waiting for`, "no space left on device", "nothing is lost. Free space on that disk; agrimill continues by itself.")
	free()
	b.says(true, "", "All is right")
	w.waitConfirmed()
	_ = b.stop()
}

// switched writes to one file or another.
type switched struct{ file atomic.Pointer[os.File] }

// Write implements io.Writer.
func (s *switched) Write(line []byte) (int, error) { return s.file.Load().Write(line) }
