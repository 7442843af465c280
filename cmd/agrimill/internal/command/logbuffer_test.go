package command

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// gatedWriter takes nothing until open is closed.
type gatedWriter struct {
	open chan struct{}
	out  testkit.Output
}

func (w *gatedWriter) Write(p []byte) (int, error) {
	<-w.open
	return w.out.Write(p)
}

// A stream that takes nothing holds up nobody. When it flows again it has the first lines, and says how many are missing.
func TestLogBufferDropsWhatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := &gatedWriter{open: make(chan struct{})}
		buffer := newLogBuffer(stream)
		logger := slog.New(slog.NewTextHandler(buffer, nil))
		buffer.logger.Store(logger)
		const lines = 4000
		for i := range lines {
			logger.Info(fmt.Sprintf("line %d", i), "fill", strings.Repeat("x", 1000))
		}
		close(stream.open)
		synctest.Wait()
		logger.Info("the last line")
		buffer.Close()
		text := stream.out.String()
		kept := strings.Count(text, `msg="line `)
		if kept == 0 || kept > maxLogBuffer/1000 || !strings.Contains(text, `msg="line 0"`) {
			t.Errorf("%d lines are kept, want the first ones, at most %d", kept, maxLogBuffer/1000)
		}
		if want := fmt.Sprintf("lines=%d\n", lines-kept); strings.Count(text, "the log lacks lines here") != 1 || !strings.Contains(text, want) {
			t.Errorf("it does not say once that %s are missing", want)
		}
		if !strings.Contains(text, "the last line") {
			t.Error("what came after the pause is missing")
		}
	})
}

// What is left when the program ends waits for the stream, and no longer than a second.
func TestLogBufferCloses(t *testing.T) {
	for name, open := range map[string]bool{"a stream that flows": true, "a stream that is stuck": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stream := &gatedWriter{open: make(chan struct{})}
				buffer := newLogBuffer(stream)
				_, _ = io.WriteString(buffer, "a line\n") // it never fails
				if open {
					close(stream.open)
				}
				buffer.Close()
				if got := stream.out.String() == "a line\n"; got != open {
					t.Errorf("got %q", stream.out.String())
				}
				if !open {
					close(stream.open)
				}
			})
		})
	}
}

// Whatever becomes of stderr and stdout, messages move, and SIGTERM ends the program.
func TestRunWithoutReaders(t *testing.T) {
	for name, test := range map[string]struct {
		stderr, stdout bool // are broken
		closed         bool // nobody reads any more; else somebody has stopped reading
		level          string
		want           int
	}{
		"stderr is stuck, at debug": {stderr: true, level: "debug", want: statusOK},
		"stderr is closed":          {stderr: true, closed: true, level: "debug", want: statusOK},
		"stdout is stuck":           {stdout: true, level: "info", want: statusUnfinished},
		"both are closed":           {stderr: true, stdout: true, closed: true, level: "debug", want: statusUnfinished},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			w := newRunWorld(t)
			text := strings.Replace(w.routes("from-farm", "farm"), "sinks:\n", "sinks:\n  out: {log: {payload_bytes: 0}}\n", 1)
			text = strings.Replace(text, "routes:\n", "routes:\n  - {name: to-stdout, from: {gateway: "+shapes+"}, to: {sink: out}}\n", 1)
			text = strings.Replace(text, "{gateway: all}", "{gateway: "+taskData+"}", 1)
			if test.want == statusUnfinished { // it takes all of its time to end
				text = strings.Replace(text, "timeout: 20s", "timeout: 3s", 1)
			}
			w.write(text)
			reader, writer, err := os.Pipe()
			must(t, err)
			defer func() { _ = reader.Close() }() // nothing is read
			fill(t, writer)
			c := newChild(t, []string{"SECRET=" + w.gate.Application().ClientSecret}, "run", w.file, "--address", "off", "--log-level", test.level)
			if test.stderr {
				c.cmd.Stderr = writer
			}
			if test.stdout {
				c.cmd.Stdout = writer
			}
			c.begin()
			_ = writer.Close() // the program has its own
			if test.closed {
				_ = reader.Close()
			}
			if test.stdout {
				testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: shapes, Payload: []byte(mark)}))(t)
			}
			w.send(200)
			testkit.Eventually(t, "messages move", func() bool { return w.confirmed() == w.sent })
			c.signal(syscall.SIGTERM)
			if got := c.status(); got != test.want {
				t.Errorf("status %d, want %d", got, test.want)
			}
		})
	}
}

// fill writes to a pipe until it is full.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	raw := testkit.Must(pipe.SyscallConn())(t)
	testkit.NoError(t, raw.Write(func(fd uintptr) bool {
		for err := error(nil); err == nil; _, err = syscall.Write(int(fd), []byte("-")) {
		}
		return true
	}))
}
