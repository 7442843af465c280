package command

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A person asks for a file by a part of its name and sees its life; what is not known is said, with
// the status of a failure.
func TestTrace(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.put(taskData, "Field 7 \x1b[31mNorth.zip", mark)
	f.put(shapes, "other.zip", mark)
	t.Chdir(filepath.Dir(f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: \"127.0.0.1:0\"}\n")))
	ask := []string{"trace", "--config", "agrimill.yaml"}
	f.beside(t, append(ask, "field 7", "other.zip"))
	text := f.want(statusOK, append(ask, "field 7")...)
	for _, want := range []string{
		`(?m)^Field 7 \x{FFFD}\[31mNorth\.zip, iso:11783:-10:taskdata:zip, \d+ bytes, context [-0-9a-f]{36}, tenant \S+, endpoint ".+" \([-0-9a-f]{36}\), message [-0-9a-f]{36}$`,
		`(?m)^  \S+Z  received +- +$`, `(?m)^  \S+Z  started +farm-data`, `(?m)^  \S+Z  stored +task-data`, `(?m)^  \S+Z  delivered +farm-data`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, mark) || strings.Contains(text, "other.zip") {
		t.Error(text)
	}
	traces := decode[[]journal.Trace](f.world, f.want(statusOK, append(ask, "--json", "--limit", "1", "zip")...))
	if len(traces) != 1 || len(traces[0].Messages) != 1 || traces[0].More != 1 {
		t.Errorf("%+v", traces)
	}
	status, stdout, stderr := f.agrimill(append(ask, "nobody sent this", "other.zip")...)
	if status != statusFailed || !strings.Contains(stdout, "other.zip") || !strings.Contains(stderr, `nothing is known of "nobody sent this": the journal begins at 2`) {
		t.Errorf("status %d\n%s\n%s", status, stdout, stderr)
	}
}

// What happened to the messages of a file is told once, so that its life fits a screen of 40 lines; one that came again is told again.
func TestTraceOfAFileFitsAScreen(t *testing.T) {
	m := journal.Message{Filename: "map.zip", State: "confirmed", MessageIDs: make([]string, 300)}
	at := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	happened := func(step journal.Step, id string) {
		at = at.Add(time.Millisecond)
		m.Events = append(m.Events, journal.Event{Time: at, Step: step, MessageID: id})
	}
	for _, again := range []int{300, 20} {
		for i := range again {
			happened(journal.StepReceived, fmt.Sprint("chunk ", i))
			happened(journal.StepHeld, fmt.Sprint("chunk ", i))
		}
	}
	for i := range 100 {
		m.Events = append(m.Events, journal.Event{Time: at, Step: journal.StepRetry, Route: "task-data", Attempt: i + 1})
		m.Unseen = append(m.Unseen, journal.Unseen{Route: "other", Why: "it takes doc:pdf"})
	}
	for i := range m.MessageIDs {
		happened(journal.StepConfirmed, fmt.Sprint("chunk ", i))
	}
	var out bytes.Buffer
	must(t, (&world{T: t}).program(&out, io.Discard).writeMessage(&m, nil))
	text := out.String()
	if n := strings.Count(text, "\n"); n > 40 || n < 30 {
		t.Errorf("%d lines:\n%s", n, text)
	}
	for _, want := range []string{
		`(?m)^  2026-11-20T08:00:00\.001Z +received +- +300 messages, the last 598ms later$`, `(?m)^  2026-11-20T08:00:00\.002Z +held +- +300 messages, `,
		`(?m)^  \S+Z +received +- +20 messages, `, `(?m)^  … +77 steps +- +not shown; --json has them$`, `(?m)^  \S+Z +retry +task-data +attempt 100`,
		`(?m)^  \S+Z +confirmed +- +300 messages, the last 299ms later$`, `(?m)^  … +never saw it +- +94 more routes$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

func TestTraceFails(t *testing.T) {
	w := &world{T: t, env: map[string]string{}}
	foreign := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("q") == "moved" {
			http.Redirect(rw, r, "http://192.0.2.1/", http.StatusFound)
			return
		}
		if r.URL.Query().Get("q") == "cut" {
			rw.Header().Set("Content-Length", "1000")
		}
		_, _ = rw.Write(bytes.Repeat([]byte("<html>"), 10))
	}))
	defer foreign.Close()
	address := strings.TrimPrefix(foreign.URL, "http://")
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{}, statusUsage, "expected an ID or a part of a filename"},
		{[]string{"x", "--admin", "http://127.0.0.1:9090"}, statusUsage, "must be host:port"},
		{[]string{strings.Repeat("x", 513), "--admin", "127.0.0.1:1"}, statusUsage, "xxxxxxxxxxxxxxxxxxxx… has 513 bytes; look for at most 512"},
		{[]string{"x", "--admin", "127.0.0.1:1"}, statusFailed, "no agrimill answers at 127.0.0.1:1"},
		{[]string{"x", "--admin", address}, statusFailed, "is no agrimill"},
		{[]string{"x", "--admin", "https://" + address}, statusFailed, "agrimill: " + address + " has no TLS: --admin " + address},
		{[]string{"cut", "--admin", address}, statusFailed, "the response of " + address + " was cut off"},
		{[]string{"moved", "--admin", address}, statusFailed, "responded 302 Found"},
	} {
		status, stdout, stderr := w.agrimill(append([]string{"trace"}, c.args...)...)
		if status != c.status || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("trace %q: status %d, want %d with %q: %s", c.args, status, c.status, c.want, stderr)
		}
	}
}

// The JSON of another program is no answer: not that nothing is missing, nor that agrimill is not ready.
func TestJSONOfAnotherProgram(t *testing.T) {
	w := &world{T: t, env: map[string]string{}}
	for _, body := range []string{`{"status":"ok"}`, `{}`, `null`, `[]`} {
		foreign := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte(body)) }))
		for _, args := range [][]string{{"status"}, {"status", "--json"}, {"trace", "x"}, {"why", "--type", "doc:pdf"}} {
			status, stdout, stderr := w.agrimill(append(args, "--admin", strings.TrimPrefix(foreign.URL, "http://"))...)
			if status != statusFailed || stdout != "" || !strings.Contains(stderr, "is no agrimill") || strings.Contains(stderr, "json:") {
				t.Errorf("%q of %s: status %d, %s%s", args, body, status, stdout, stderr)
			}
		}
		foreign.Close()
	}
}

// A protected page is asked with the token of the configuration, or with one in a file.
func TestTraceOfAProtectedPage(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.put(taskData, "Field 7.zip", mark)
	dir := filepath.Dir(f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: \"127.0.0.1:0\", read_token: a-token-that-may-read}\n"))
	t.Chdir(dir)
	f.beside(t, []string{"trace", "--config", "agrimill.yaml", "field 7"})
	text := testkit.Must(os.ReadFile("agrimill.yaml"))(t)
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(string(text[bytes.Index(text, []byte("admin:")):]))
	if status, _, stderr := f.agrimill("trace", "field 7", "--config", "agrimill.yaml", "--limit", "0"); status != statusUsage || !strings.Contains(stderr, "agrimill trace: limit must be a number") {
		t.Errorf("--limit 0: status %d, %s", status, stderr)
	}
	status, _, stderr := f.agrimill("trace", "field 7", "--admin", address)
	if status != statusFailed || !strings.Contains(stderr, "401 Unauthorized: the token is missing or wrong") || !strings.Contains(stderr, "--admin-token-file") {
		t.Errorf("without a token: status %d: %s", status, stderr)
	}
	must(t, os.WriteFile("token", []byte("a-token-that-may-read\n"), 0o600))
	f.want(statusOK, "trace", "field 7", "--admin", address, "--admin-token-file", "token")
	var answer string
	testkit.Eventually(t, "the gateway has responded", func() bool {
		status, answer, _ = f.agrimill("why", "--config", "agrimill.yaml", "--type", taskData, "--json")
		return status == statusOK
	})
	testkit.Contains(t, answer, "the event stream is open")
}

// A page with TLS is trusted with the certificate in its configuration, and with
// no other one.
func TestTraceOverTLS(t *testing.T) {
	certificate := testkit.NewCertificate(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer a-token-that-may-read" {
			t.Errorf("Authorization is %q", got)
		}
		_, _ = rw.Write([]byte(`{"messages": [{"filename": "a.zip"}]}`))
	}))
	server.TLS, server.Config.ErrorLog = certificate.Server(t), log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	f := newFarm(t, gatewaytest.Config{})
	address := server.Listener.Addr().String()
	file := f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: \"" + address + "\", read_token: a-token-that-may-read, tls: {cert_file: cert.pem, key_file: key.pem}}\n")
	t.Chdir(filepath.Dir(file))
	certificate.Write(t, ".")
	f.want(statusOK, "trace", "--config", "agrimill.yaml", "a.zip")
	testkit.NewCertificate(t).Write(t, ".")
	if status, _, stderr := f.agrimill("trace", "--config", "agrimill.yaml", "a.zip"); status != statusFailed || !strings.Contains(stderr, "certificate") {
		t.Errorf("with another certificate: status %d: %s", status, stderr)
	}
	if status, _, stderr := f.agrimill("trace", "--admin", "https://"+address, "a.zip"); status != statusFailed || !strings.Contains(stderr, "certificate") {
		t.Errorf("with the certificates of the system: status %d: %s", status, stderr)
	}
}
