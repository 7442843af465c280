package command

import (
	"bufio"
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
