package command

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe is neither waited for nor called empty.
func TestInspectRefusesAPipe(t *testing.T) {
	w := &world{T: t, env: map[string]string{}}
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	for name, args := range map[string][]string{"pipe": {pipe}, "device": {"/dev/zero"}, "devices": {"--devices", pipe, "-"}} {
		status, stdout, stderr := w.agrimill(append([]string{"inspect"}, args...)...)
		if status != statusFailed || stdout != "" || !strings.Contains(stderr, "is a pipe or a device: write - instead, and give its content as stdin") {
			t.Errorf("%s: status %d, %s%s", name, status, stdout, stderr)
		}
	}
}
