package command

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

var errAsked = errors.New("asked to stop")

// A pipe into which nobody writes is waited for until a signal.
func TestPipesEndWithASignal(t *testing.T) {
	w := &world{T: t, env: map[string]string{}}
	dir := t.TempDir()
	file := filepath.Join(dir, "agrimill.yaml")
	must(t, os.WriteFile(file, []byte(tested), 0o600))
	for name, args := range map[string][]string{
		"cases": {"test", file}, "events": {"test", "--record", filepath.Join(dir, "new.yaml"), file}, "recording": {"emulator", "--listen", "127.0.0.1:0", "--replay"},
	} {
		pipe := filepath.Join(dir, name)
		must(t, syscall.Mkfifo(pipe, 0o600))
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan int, 1)
		var stderr strings.Builder
		go func() { ended <- w.program(io.Discard, &stderr).run(ctx, append(args, pipe)) }()
		var writer *os.File
		testkit.Eventually(t, "nobody reads", func() bool {
			writer, _ = os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
			return writer != nil
		})
		cancel(errAsked)
		if status := <-ended; status == statusOK || !strings.Contains(stderr.String(), errAsked.Error()) {
			t.Errorf("%s: status %d, %s", name, status, &stderr)
		}
		must(t, writer.Close()) // what still reads ends
	}
}
