package command

import (
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A disk that is full ends a recording, and what was recorded before is there to be played.
func TestRecordOnFullDisk(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	w := &world{T: t, env: f.env}
	t.Chdir(t.TempDir())
	env, stop := w.serve("record", "--listen", "127.0.0.1:0", "session.jsonl")
	ask := func() error { // is answered with 401: there is no token
		answer, err := http.Get(env["AGRIMILL_BASE_URL"] + "/tenants")
		if err != nil {
			return err
		}
		return answer.Body.Close()
	}
	must(t, ask())
	info := testkit.Must(os.Stat("session.jsonl"))(t)
	fileLimit(t, uint64(info.Size())+50, func() {
		for ask() == nil { // until the command ends
			continue
		}
	})
	stop(statusFailed)
	text := testkit.Must(os.ReadFile("session.jsonl"))(t)
	if !strings.HasPrefix(string(text), `{"gateway_recording":`) || len(text) != int(info.Size())+50 {
		t.Errorf("the file has %d bytes, and had %d:\n%s", len(text), info.Size(), text)
	}
	env, stop = w.serve("emulator", "--listen", "127.0.0.1:0", "--replay", "session.jsonl")
	must(t, ask())
	stop(statusOK)
}

// fileLimit runs with a limit on the size of files, beyond which writing fails as on a full disk.
func fileLimit(t *testing.T, size uint64, run func()) {
	t.Helper()
	var before syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before))
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: before.Max}))
	run()
	must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before))
}
