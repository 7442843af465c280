package command

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// What is no file any more is reported without a signal, is not waited for, and the file is loaded once it is back.
func TestRunKeepsWhatCannotBeRead(t *testing.T) {
	t.Parallel() // it waits
	w := newRunWorld(t)
	c := w.start("--log-level", "info")
	c.waitFor("agrimill is running")
	text := testkit.Must(os.ReadFile(w.file))(t)
	for reason, create := range map[string]func() error{
		"is a directory": func() error { return os.Mkdir(w.file, 0o700) },
		"is a pipe":      func() error { return syscall.Mkfifo(w.file, 0o600) },
		"is too large":   func() error { return os.WriteFile(w.file, make([]byte, 2<<20), 0o600) },
	} {
		must(t, os.Remove(w.file))
		must(t, create())
		c.waitFor("cannot be read: " + reason)
		for _, successful := range []int{0, 1} {
			testkit.Eventually(t, fmt.Sprint(reason, ": reloaded ", successful), func() bool {
				_, body := c.get("/metrics")
				return strings.Contains(body, fmt.Sprintf("\nagrimill_config_last_reload_successful %d\n", successful))
			})
			_ = os.Remove(w.file)
			must(t, os.WriteFile(w.file, text, 0o600))
		}
	}
	c.endsWell(syscall.SIGTERM)
}

// A shell gives run <(command) a pipe: once it is read it is empty.
func TestRunRefusesAPipe(t *testing.T) {
	w := newWorld(t, 0)
	file := w.configure("")
	text := testkit.Must(os.ReadFile(file))(t)
	r, pipe, err := os.Pipe()
	must(t, err)
	defer func() { _ = r.Close() }() // only read
	testkit.Must(pipe.Write(text))(t)
	must(t, pipe.Close())
	status, _, stderr := w.agrimill("run", fmt.Sprintf("/dev/fd/%d", r.Fd()))
	if status != statusUsage || !strings.Contains(stderr, "is a pipe, which run could not read again: write the configuration to a file") {
		t.Errorf("got status %d, %s", status, stderr)
	}
}
