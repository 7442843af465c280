package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// serve runs a command until the returned function is called, and reads the addresses of its first line.
func (w *world) serve(args ...string) (env map[string]string, stop func(want int)) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	out, in := io.Pipe()
	status := make(chan int, 1)
	program := w.program(in, io.Discard)
	go func() {
		status <- program.run(ctx, args)
		_ = in.Close()
	}()
	line := testkit.Must(bufio.NewReader(out).ReadBytes('\n'))(w.T)
	var d map[string]string
	must(w.T, json.Unmarshal(line, &d))
	env = map[string]string{"AGRIMILL_BASE_URL": d["base_url"], "AGRIMILL_TOKEN_URL": d["token_url"]}
	if d["client_id"] != "" {
		env["AGRIMILL_CLIENT_ID"], env["AGRIMILL_CLIENT_SECRET"] = d["client_id"], d["client_secret"]
	}
	return env, func(want int) {
		w.Helper()
		cancel()
		if got := <-status; got != want {
			w.Errorf("agrimill %q: status %d, want %d", args, got, want)
		}
	}
}

// What other commands show of a gateway that is recorded they show of the recording, too.
func TestRecordAndReplay(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.put(taskData, "field.zip", mark)
	w := &world{T: t, env: f.env}
	t.Chdir(t.TempDir())
	env, stop := w.serve("record", "--listen", "127.0.0.1:0", "session.jsonl")
	for name, value := range f.env {
		if env[name] == "" {
			env[name] = value
		}
	}
	direct := w.want(statusOK, "tail", "--json", "--count", "1")
	w.env = env
	through := w.want(statusOK, "tail", "--json", "--count", "1")
	stop(statusOK)
	text := testkit.Must(os.ReadFile("session.jsonl"))(t)
	if strings.Contains(string(text), gatewaytest.TokenPrefix) || strings.Contains(string(text), env["AGRIMILL_CLIENT_SECRET"]) {
		t.Errorf("the recording has secrets:\n%s", text)
	}
	w.env, stop = w.serve("emulator", "--listen", "127.0.0.1:0", "--replay", "session.jsonl", "--speed", "0")
	replayed := w.want(statusOK, "tail", "--json", "--count", "1")
	stop(statusOK)
	if through != replayed || !strings.Contains(replayed, "field.zip") {
		t.Errorf("direct %s\nthrough %s\nreplayed %s", direct, through, replayed)
	}
	w.want(statusFailed, "emulator", "--listen", "127.0.0.1:0", "--replay", "absent.jsonl")
	w.want(statusUsage, "emulator", "--speed", "-1")
	w.want(statusUsage, "emulator", "--speed", "3", "--listen", "192.0.2.1:1") // before it listens
	w.env = nil
	w.want(statusUsage, "record", "other.jsonl")
	w.want(statusUsage, "record", "--listen", "127.0.0.1:0", "--base-url", "ftp://x", "--token-url", "http://x", "other.jsonl")
	w.want(statusFailed, "record", "--listen", "127.0.0.1:0", "--base-url", "http://x", "--token-url", "http://x", "session.jsonl")
	if _, err := os.Stat("other.jsonl"); err == nil {
		t.Error("a file of nothing was left behind")
	}
}

// A recording ends before it is larger than what can be played.
func TestRecordNoMoreThanCanBePlayed(t *testing.T) {
	t.Parallel()
	var to bytes.Buffer
	stopped := false
	f := &failing{Writer: &to, stop: func() { stopped = true }, room: 10}
	if n, err := f.Write(make([]byte, 10)); n != 10 || err != nil || stopped {
		t.Errorf("what fits: %d, %v, stopped: %v", n, err, stopped)
	}
	if n, err := f.Write(make([]byte, 1)); n != 0 || err == nil || !stopped || to.Len() != 10 {
		t.Errorf("what does not fit: %d, %v, stopped: %v, with %d bytes written", n, err, stopped, to.Len())
	}

	// The largest one can be played: lines may end in blanks.
	lines := []string{
		`{"gateway_recording":1,"started":"2026-04-01T06:00:00Z","payloads":false}`,
		`{"at":0,"request":1,"method":"GET","path":"/tenants"}`, `{"at":1,"request":1,"status":503}`, `{"at":2,"request":1,"end":"complete"}`,
		`{"at":3,"request":2,"method":"GET","path":"/tenants"}`, `{"at":4,"request":2,"status":503}`, `{"at":5,"request":2,"end":"complete"}`,
		`{"at":6,"request":3,"method":"GET","path":"/tenants"}`,
	}
	path := t.TempDir() + "/largest.jsonl"
	file := testkit.Must(os.Create(path))(t)
	for _, line := range lines {
		blanks := bytes.Repeat([]byte{' '}, maxRecording/len(lines)-len(line)-1)
		testkit.Must(file.WriteString(line + string(blanks) + "\n"))(t)
	}
	must(t, file.Close())
	if info := testkit.Must(os.Stat(path))(t); info.Size() != maxRecording {
		t.Fatalf("%d bytes", info.Size())
	}
	w := &world{T: t}
	_, stop := w.serve("emulator", "--listen", "127.0.0.1:0", "--replay", path)
	stop(statusOK)
}
