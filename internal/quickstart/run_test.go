package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/demo"
	"github.com/agrimill/agrimill/internal/farmfile"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// execute runs the program and returns its status, the lines of its stdout and
// its stderr.
func execute(t *testing.T, args ...string) (status int, lines []string, stderr string) {
	t.Helper()
	var stdout, progress bytes.Buffer
	status = command(t.Context(), args, &stdout, &progress)
	lines = strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")
	if t.Failed() || testing.Verbose() {
		t.Logf("stderr:\n%sstdout:\n%s", progress.String(), stdout.String())
	}
	return status, lines, progress.String()
}

// row finds the row of the table that begins with name.
func row(t *testing.T, lines []string, name string) []string {
	t.Helper()
	for _, line := range lines {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.Fields(rest)
		}
	}
	t.Fatalf("no row for %q in\n%s", name, strings.Join(lines, "\n"))
	return nil
}

func okLine(n int) string {
	return fmt.Sprintf("OK sent=%d received=%[1]d stored=%[1]d confirmed=%[1]d poisoned=0 mismatched=0", n)
}

func TestDefaults(t *testing.T) {
	status, lines, stderr := execute(t)
	if got := lines[len(lines)-1]; got != okLine(5) || status != 0 {
		t.Errorf("status %d, last line %q; want 0, %q\n%s", status, got, okLine(5), stderr)
	}
	if len(lines) != 1+5+1 {
		t.Errorf("%d lines, want a heading, 5 rows and the last line", len(lines))
	}
	for name, want := range map[string]struct {
		messageType string
		size        int
		chunks      string
	}{
		"taskdata_long_acre.zip": {"iso:11783:-10:taskdata:zip", 0, "1"},
		"timelog_long_acre.pb":   {"iso:11783:-10:time_log:protobuf", 0, "1"},
		"coverage_long_acre.png": {"img:png", 0, "1"},
		"summary_long_acre.json": {farmfile.DefaultMessageType, 0, "1"},
		"raw_sensor_dump.bin":    {farmfile.DefaultMessageType, 3 << 20, "3"},
	} {
		got := row(t, lines, name)
		// messages type, bytes, chunks, subject, stored, confirmed
		if len(got) != 6 || got[0] != want.messageType || got[2] != want.chunks || got[4] != "yes" || got[5] != "yes" {
			t.Errorf("%s: row %q, want %+v", name, got, want)
		}
		if want.size > 0 && got[1] != strconv.Itoa(want.size) {
			t.Errorf("%s: %s bytes, want %d", name, got[1], want.size)
		}
		if !strings.HasPrefix(got[3], "agrimill.") || !strings.HasSuffix(got[3], "."+want.messageType) {
			t.Errorf("%s: subject %s, want agrimill.TENANT.%s", name, got[3], want.messageType)
		}
		for _, step := range []string{"sent     ", "received ", "stored   "} {
			if !strings.Contains(stderr, step+name) {
				t.Errorf("stderr does not tell %q", step+name)
			}
		}
	}
}

func TestFolderOfOddFiles(t *testing.T) {
	dir := write(t, map[string]string{
		"empty.json":                         "",
		"Möllers großer Acker 2026.ZIP":      "not really a zip",
		"no ending":                          "x",
		strings.Repeat("long ", 30) + ".PNG": "name above 100 characters",
		"two\nlines.pdf":                     "control character",
		"same content 1.bin":                 "twins",
		"same content 2.bin":                 "twins",
		"one_chunk.bin":                      strings.Repeat("c", chunkSize),
		"just_above_one_chunk.bin":           strings.Repeat("c", chunkSize+1),
		"above_inline_limit.pdf":             strings.Repeat("p", 200_000),
		".hidden":                            "skipped",
		"folder/inside.png":                  "skipped",
	})
	status, lines, stderr := execute(t, "-dir", dir)
	if got := lines[len(lines)-1]; got != okLine(10) || status != 0 {
		t.Fatalf("status %d, last line %q; want 0, %q\n%s", status, got, okLine(10), stderr)
	}
	for name, want := range map[string]string{"empty.json": "1", "one_chunk.bin": "1", "just_above_one_chunk.bin": "2", "two_lines.pdf": "1"} {
		if got := row(t, lines, name); got[2] != want {
			t.Errorf("%s: %s chunks, want %s", name, got[2], want)
		}
	}
	for _, name := range []string{".hidden", "folder"} {
		if !strings.Contains(stderr, "skipped "+name) {
			t.Errorf("stderr does not report that %s was skipped", name)
		}
	}
}

// TestFarmFiles sends real files, which lie beside the repository where it is
// developed and in CI.
func TestFarmFiles(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "shared", "data", "farm")
	if _, err := os.Stat(dir); err != nil {
		const message = "REAL FARM FILES ARE ABSENT: this test sends what lies in ../shared/data/farm beside the repository: %v"
		if os.Getenv("CI") != "" {
			t.Fatalf(message, err)
		}
		t.Skipf(message, err)
	}
	status, lines, stderr := execute(t, "-dir", dir)
	last := lines[len(lines)-1]
	match := regexp.MustCompile(`^OK sent=(\d+) `).FindStringSubmatch(last)
	if status != 0 || match == nil {
		t.Fatalf("status %d, last line %q\n%s", status, last, stderr)
	}
	if n, _ := strconv.Atoi(match[1]); n < 13 || last != okLine(n) {
		t.Errorf("last line %q, want that of at least 13 files", last)
	}
}

func TestFailures(t *testing.T) {
	for name, args := range map[string][]string{
		"absent folder":   {"-dir", filepath.Join(t.TempDir(), "absent")},
		"no time":         {"-timeout", "1ns"},
		"unknown flag":    {"-nonsense"},
		"loose argument":  {"folder"},
		"a file as -dir":  {"-dir", "run_test.go"},
		"malformed value": {"-timeout", "soon"},
	} {
		t.Run(name, func(t *testing.T) {
			status, lines, _ := execute(t, args...)
			if last := lines[len(lines)-1]; status != 1 || !strings.HasPrefix(last, "FAILED sent=0 ") {
				t.Errorf("status %d, last line %q; want 1, FAILED sent=0 …", status, last)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	status, lines, stderr := execute(t, "-h")
	if status != 0 || lines[0] != "" || !strings.Contains(stderr, "-dir") {
		t.Errorf("status %d, stdout %q, stderr %q; want 0, nothing, the flags", status, lines, stderr)
	}
}

// startNATS runs a NATS server until the test ends.
func startNATS(t *testing.T) (url string) {
	t.Helper()
	broker := testkit.Must(demo.StartNATS())(t)
	t.Cleanup(func() {
		if err := broker.Close(); err != nil {
			t.Error(err)
		}
	})
	return broker.URL()
}

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

// start brings up what run starts, for tests that change it first.
func start(t *testing.T) (*gatewaytest.Server, string) {
	t.Helper()
	url := startNATS(t)
	return gatewaytest.New(t, gatewaytest.Config{ChunkSize: chunkSize}), url
}

func newTestFlow(t *testing.T, server *gatewaytest.Server, url string) (*flow, *testkit.Output) {
	t.Helper()
	files := testkit.Must(demo.LongAcre())(t)
	var stderr testkit.Output
	return newFlow(files, newProgress(&stderr), server, url), &stderr
}

func TestConfirmationsRefused(t *testing.T) {
	server, url := start(t)
	server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusServiceUnavailable})
	f, stderr := newTestFlow(t, server, url)
	late := errors.New("time is up")
	ctx, cancel := context.WithCancelCause(t.Context())
	var result report
	var err error
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		result, err = f.run(ctx)
	}()
	testkit.Eventually(t, "all are sent and stored", func() bool {
		text := stderr.String()
		return strings.Count(text, " sent ") == len(f.files) && strings.Count(text, " stored ") == len(f.files)
	})
	cancel(late)
	<-ended
	if !errors.Is(err, late) {
		t.Errorf("error %v, want %v", err, late)
	}
	line, ok := result.lastLine(err)
	if want := "FAILED sent=5 received=5 stored=5 confirmed=0 poisoned=0 mismatched=0: "; ok || !strings.HasPrefix(line, want) {
		t.Errorf("got  %s\nwant %s…\n%s", line, want, stderr)
	}
}

func TestSendingRefused(t *testing.T) {
	server, url := start(t)
	server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: http.StatusForbidden})
	f, stderr := newTestFlow(t, server, url)
	result, err := f.run(t.Context())
	line, ok := result.lastLine(err)
	if want := "FAILED sent=0 received=0 stored=0 confirmed=0 poisoned=0 mismatched=0: sending taskdata_long_acre.zip: "; ok || !strings.HasPrefix(line, want) {
		t.Errorf("got  %s\nwant %s…\n%s", line, want, stderr)
	}
}
