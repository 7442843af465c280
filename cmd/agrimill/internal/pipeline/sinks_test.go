package pipeline_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Sinks of the other kinds: files and lines.
func TestFilesAndLines(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	b := w.start(w.head() + fmt.Sprintf(`
sinks:
  files: {blob: {url: "file://%s/archive?create_dir=true"}}
  lines: {log: {}}
poison: {sink: files}
dedup: {nats_kv: {url: %q}}
claim_check: {url: "file://%s/payloads?create_dir=true"}
routes:
  - {name: archive, from: {gateway: all}, filter: {filename: "*.zip"}, to: {sink: files, topic: "{type|none}"}}
  - {name: show, from: {gateway: everything}, to: {sink: lines}}
`, dir, w.proxy.URL(), dir))
	b.waitReady()
	w.send(taskData, 5)
	w.waitConfirmed()
	b.mustStop()
	s := b.Snapshot()
	if s.Routes[0].Filtered != 5 || s.Routes[1].Delivered != 5 {
		t.Errorf("routes: %s", w.asJSON(s.Routes))
	}
	if n := strings.Count(b.logs.String(), `"x-router-message-type":"`+taskData+`"`); n != 5 {
		t.Errorf("%d lines were written, want 5", n)
	}
}

// A directory that is not there when agrimill starts.
func TestFilesDown(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir() + "/archive"
	b := w.start(strings.Replace(w.head(), "subscriber:\n", "subscriber:\n  payload: lazy\n", 1) + fmt.Sprintf(`
sinks:
  files: {blob: {url: "file://%s"}}
poison: {sink: files}
routes:
  - {name: archive, from: {gateway: all}, to: {sink: files, topic: "{type|none}"}}
`, dir))
	payload := append([]byte(mark), make([]byte, 200<<10)...) // too large for its event
	testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Payload: payload}))(t)
	b.waitOutage("")
	if b.isReady() {
		t.Error("ready without the directory")
	}
	testkit.NoError(t, os.Mkdir(dir, 0o700))
	w.waitConfirmed()
	b.waitReady()
	b.mustStop()
	if h := b.Snapshot().Routes[0]; h.Delivered != 1 || h.Poisoned != 0 {
		t.Errorf("route: %s", w.asJSON(h))
	}
}
