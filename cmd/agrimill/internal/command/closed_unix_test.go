//go:build unix

package command

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// unread runs agrimill in a process whose stdout, or also stderr, is a pipe that nobody reads, and returns its exit status and stderr.
func (w *world) unread(also bool, args ...string) (status int, stderr string) {
	w.Helper()
	name := filepath.Join(w.TempDir(), "agrimill") // see TestMain
	must(w, os.Symlink(testkit.Must(os.Executable())(w), name))
	reader, pipe, err := os.Pipe()
	must(w, errors.Join(err, reader.Close()))
	defer func() { _ = pipe.Close() }() // nothing was written to it
	var errs bytes.Buffer
	cmd := exec.CommandContext(w.Context(), name, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = os.Environ(), pipe, &errs
	for key, value := range w.env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	if also {
		cmd.Stderr = pipe
	}
	_ = cmd.Run() // the status says how it ended
	return cmd.ProcessState.ExitCode(), errs.String()
}

// Who reads the first lines only, as head does, ends neither sending nor a replay after the first.
func TestNobodyReads(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	status, stderr := f.unread(false, append([]string{"send", "--from", terminalID, "--publish"}, f.files("a.pdf", mark, "b.pdf", mark, "c.pdf", mark)...)...)
	if n := f.gate.Stats(gatewaytest.OpSendMessage).Requests; n != 3 || status != statusFailed || !strings.Contains(stderr, "the results could not be written") {
		t.Errorf("%d of 3 files were sent; status %d, stderr %q", n, status, stderr)
	}
	w := newWorld(t, 0, shapes, shapes, shapes)
	status, _ = w.unread(true, "poison", "replay", "--verbose", "--config", w.file, "--all")
	if left := w.list(); len(left) != 0 || status != statusFailed {
		t.Errorf("%d of 3 messages were not replayed; status %d", len(left), status)
	}
}
