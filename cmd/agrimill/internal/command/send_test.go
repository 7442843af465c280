package command

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// files writes files, given as name and content, and returns their names in order.
func (w *world) files(namesAndContents ...string) (names []string) {
	w.Helper()
	dir := w.TempDir()
	for i := 0; i < len(namesAndContents); i += 2 {
		name := filepath.Join(dir, namesAndContents[i])
		must(w, os.WriteFile(name, []byte(namesAndContents[i+1]), 0o600))
		names = append(names, name)
	}
	return names
}

// send runs send --json.
func (f *farm) send(status int, args ...string) sendReport {
	f.Helper()
	return decode[sendReport](f.world, f.want(status, append([]string{"send", "--json"}, args...)...))
}

func TestSend(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{ServiceName: "mill"})
	large := strings.Repeat(mark, 100_000) // more than a chunk
	names := f.files("task.zip", mark+"task", "shape fields.zip", mark+"shape", "empty.pdf", "", "large.bin", large)
	args := append([]string{"--from", terminalID, "--publish", "--teamset", "team 7"}, names...)
	report := f.send(statusOK, args...)
	if report.Sent != 4 || len(report.Results) != 4 {
		t.Fatalf("report: %+v", report)
	}
	byContext := map[string][]gatewaytest.LedgerEntry{}
	for _, e := range f.gate.Ledger() {
		byContext[e.ContextID] = append(byContext[e.ContextID], e)
	}
	for i, want := range []struct{ messageType, name, content string }{
		{taskData, "task.zip", mark + "task"}, {shapes, "shape fields.zip", mark + "shape"}, {"doc:pdf", "empty.pdf", ""},
		{"application:octet-stream", "large.bin", large},
	} {
		r := report.Results[i]
		if r != (sendResult{
			File: names[i], Filename: want.name, MessageType: want.messageType, Size: int64(len(want.content)), ContextID: r.ContextID, Outcome: outcomeSent,
		}) {
			t.Errorf("result: %+v", r)
		}
		entries := byContext[r.ContextID]
		if len(entries) == 0 || entries[0].PayloadSHA256 != sha256.Sum256([]byte(want.content)) || entries[0].MessageType != want.messageType ||
			entries[0].Filename != want.name || entries[0].TeamsetContextID != "team 7" || entries[0].SenderID != f.terminal.ID || entries[0].EndpointID != f.software.ID {
			t.Errorf("%s: ledger %+v", want.name, entries)
		}
	}

	// To one endpoint, everything given; a name of its own, a repeated context ID.
	id := uuid.NewString()
	text := f.want(statusOK, "send", "--tenant", f.gate.Tenant(), "--from", f.terminal.ID, "--to", f.software.ID, "--type", "doc:pdf",
		"--filename", "report.pdf", "--context-id", id, names[0])
	if want := fmt.Sprintf("sent\t%s\t%d\tdoc:pdf\t%s\n", names[0], len(mark)+4, id); text != want {
		t.Errorf("%q, want %q", text, want)
	}
	ledger := f.gate.Ledger()
	if e := ledger[len(ledger)-1]; e.ContextID != id || e.Filename != "report.pdf" || e.MessageType != "doc:pdf" {
		t.Errorf("ledger: %+v", e)
	}
	if n := f.gate.Stats(gatewaytest.OpListTenants).Requests; n != 1 {
		t.Errorf("the tenants were asked for %d times, want once for the external ID", n)
	}
	f.want(statusOK, "send", "--from", terminalID, "--to", softwareID, "--filename", "", names[0])
	ledger = f.gate.Ledger()
	if e := ledger[len(ledger)-1]; e.Filename != "" {
		t.Errorf("filename %q", e.Filename)
	}
}

// What fails for a reason of its own does not stop the others; what became of
// each is reported separately.
func TestSendFailures(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{MaxPayloadSize: 1000})
	second := f.gate.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:example:second", Receive: []string{taskData}})
	f.gate.SetRoute(f.terminal.ID, second.ID, false)
	names := f.files("a.zip", mark+"a", "b.zip", mark+"b", "large.zip", strings.Repeat("x", 1001))
	missing, folder := filepath.Join(t.TempDir(), "missing.zip"), t.TempDir()

	status, stdout, stderr := f.agrimill("send", "--from", terminalID, "--to", softwareID, "--to", "urn:example:second", names[0])
	if status != statusFailed || !strings.HasPrefix(stdout, "partial\t") || !strings.Contains(stderr, "do not send it to all of them again") ||
		!strings.Contains(stderr, "1 of 1 file did not reach every recipient") {
		t.Errorf("partial: status %d, %q, %s", status, stdout, stderr)
	}
	status, stdout, stderr = f.agrimill("send", "--from", terminalID, "--to", "urn:example:second", names[0])
	if status != statusFailed || !strings.HasPrefix(stdout, "no_recipients\t") || !strings.Contains(stderr, "there is no route") {
		t.Errorf("no recipients: status %d, %q, %s", status, stdout, stderr)
	}

	args := []string{"--from", terminalID, "--publish", missing, folder, names[2], names[0], names[1]}
	report := f.send(statusFailed, args...)
	if report.Sent != 2 || report.Failed != 3 || report.NotSent != 0 || len(report.Results) != 5 || report.Results[4].Outcome != outcomeSent {
		t.Errorf("report: %+v", report)
	}
	if a := report.Results[2].Advice; strings.Contains(a, "--context-id") {
		t.Errorf("what was refused for its size may not have arrived: %q", a)
	}
	report = f.send(statusFailed, append(args, "--fail-fast")...)
	if report.Failed != 1 || report.NotSent != 4 || report.Results[4].Outcome != outcomeNotSent {
		t.Errorf("--fail-fast: %+v", report)
	}

	// An outage stops everything, and says what is not known.
	file := f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\n")
	args = []string{"--config", file, "--from", terminalID, "--publish", names[0], names[1]}
	fault := f.gate.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{DropAnswer: true})
	report = f.send(statusFailed, args...)
	first := report.Results[0]
	if report.Failed != 1 || report.NotSent != 1 || !strings.Contains(first.Advice, "--context-id "+first.ContextID) || first.ContextID == "" {
		t.Errorf("an outage: %+v", report)
	}
	fault.Lift()
	fault = f.gate.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 403})
	began := time.Now()
	report = f.send(statusFailed, args...)
	timeout := (300*time.Millisecond + 20*time.Since(began)).Round(time.Millisecond).String() // there is time to begin to send
	if first = report.Results[0]; report.NotSent != 1 || !strings.Contains(first.Advice, "has not authorized") {
		t.Errorf("forbidden: %+v", report)
	}
	fault.Lift()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if status := f.program(t.Output(), t.Output()).run(ctx, []string{"send", "--tenant", f.gate.Tenant(), "--from", f.terminal.ID, "--publish", names[0], names[1]}); status != statusFailed {
		t.Errorf("cancelled: status %d", status)
	}
	fault = f.gate.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Hang: true})
	status, stdout, stderr = f.agrimill("send", "--from", terminalID, "--publish", "--timeout", timeout, names[0], names[1])
	if status != statusFailed || !strings.Contains(stderr, "not finished within "+timeout+" (--timeout)") || !strings.Contains(stdout, "not_sent\t"+names[1]) {
		t.Errorf("--timeout: status %d, %q, %s", status, stdout, stderr)
	}
	fault.Lift()
	if status, _, stderr := f.agrimill("send", "--from", terminalID, "--publish", "--timeout", "1ns", names[0]); status != statusFailed || !strings.Contains(stderr, "agrimill: not finished within 1ns (--timeout)") {
		t.Errorf("--timeout of a look-up: status %d, %s", status, stderr)
	}
}

// Context IDs are UUIDs, unless the configuration is that of a gateway that takes any.
func TestSendAnyContextID(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{AnyContextID: true})
	name, uuids := f.files("a.zip", mark)[0], f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\n")
	text := testkit.Must(os.ReadFile(uuids))(t)
	anyID := f.files("any.yaml", strings.Replace(string(text), "gateway:\n", "gateway:\n  any_context_id: true\n", 1))[0]
	for _, test := range []struct {
		config, id string
		status     int
		says       string // part of what is said if it is not sent
	}{
		{anyID, "order-12", statusOK, ""},
		{anyID, "Lieferschein ü/3", statusOK, ""},
		{anyID, uuid.NewString(), statusOK, ""},
		{anyID, strings.Repeat("x", 51), statusFailed, "50"},
		{anyID, "a\nb", statusFailed, "--context-id must not contain control characters"},
		{uuids, "order-12", statusUsage, "any_context_id"},
		{uuids, uuid.NewString(), statusOK, ""},
	} {
		sent := len(f.gate.Ledger())
		status, stdout, stderr := f.agrimill("send", "--config", test.config, "--from", terminalID, "--publish", "--context-id", test.id, name)
		if status != test.status || !strings.Contains(stdout+stderr, test.says) {
			t.Errorf("%q: status %d, %s%s", test.id, status, stdout, stderr)
		}
		ledger := f.gate.Ledger()[sent:]
		if (len(ledger) > 0) != (test.status == statusOK) || len(ledger) > 0 && ledger[0].ContextID != test.id {
			t.Errorf("%q: ledger %+v", test.id, ledger)
		}
	}
}

func TestSendWrongUsage(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	name := f.files("a.zip", mark)[0]
	for _, test := range []struct{ args, says string }{
		{"", "expected the files"},
		{name, "--from"},
		{"--from a:b " + name, "--publish"},
		{"--from a:b --publish -", "--type or --filename"},
		{"--from a:b --publish --type x - -", "only once"},
		{"--from a:b --publish --context-id x " + name, "must be a UUID"},
		{"--from a:b --publish --tenant x " + name, "must be the ID (UUID) of a tenant"},
		{"--from a:b --publish --filename x a b", "a single file"},
		{"--from a:b --publish --timeout -1s " + name, "--timeout"},
		{"--from urn:nobody:here --publish " + name, `no endpoint has the ID or external ID "urn:nobody:here"`},
		{"--from " + terminalID + " --to urn:nobody:here " + name, "--to: no endpoint"},
	} {
		status, stdout, stderr := f.agrimill(append([]string{"send"}, strings.Fields(test.args)...)...)
		if status != statusUsage || stdout != "" || !strings.Contains(stderr, test.says) {
			t.Errorf("%s: status %d, %q, %s", test.args, status, stdout, stderr)
		}
	}
	other := f.gate.AddTenant()
	f.gate.Authorize(f.gate.Application(), other)
	f.gate.AddEndpoint(gatewaytest.EndpointConfig{Tenant: other, ExternalID: terminalID, Send: []string{taskData}})
	if status, _, stderr := f.agrimill("send", "--from", terminalID, "--publish", name); status != statusUsage || !strings.Contains(stderr, "2 endpoints have") {
		t.Errorf("two of them: status %d, %s", status, stderr)
	}
	f.want(statusOK, "send", "--from", terminalID, "--tenant", other, "--publish", name)
	if len(f.gate.Ledger()) != 0 {
		t.Error("something arrived that was sent in another tenant")
	}
}

func TestSendStdin(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing")) // as in the container image
	f.stdin = strings.NewReader(mark)
	f.gate.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 503, Times: 1}) // so that it has to be read again
	report := f.send(statusOK, "--from", terminalID, "--publish", "--filename", "field.zip", stdinName)
	if r := report.Results[0]; r.MessageType != taskData || r.Filename != "field.zip" || r.Size != int64(len(mark)) {
		t.Errorf("result: %+v", r)
	}
	if ledger := f.gate.Ledger(); len(ledger) != 1 || ledger[0].PayloadSHA256 != sha256.Sum256([]byte(mark)) {
		t.Errorf("ledger: %+v", ledger)
	}

	// What is large needs a place, and says so when there is none.
	const large = 17 << 20
	zeros := manyZeros(large)
	sum := sha256.New()
	testkit.Must(io.Copy(sum, zeros))(t)
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	f.stdin = manyZeros(large)
	report = f.send(statusFailed, "--from", terminalID, "--publish", "--type", "doc:pdf", stdinName)
	if text := report.Results[0].Error; !strings.Contains(text, "--spool-dir") || !strings.Contains(text, "TMPDIR") || !strings.Contains(text, "16 MiB") {
		t.Errorf("without a place: %s", text)
	}
	spool := t.TempDir()
	f.stdin = manyZeros(large)
	f.send(statusOK, "--from", terminalID, "--publish", "--type", "doc:pdf", "--spool-dir", spool, stdinName)
	var last [sha256.Size]byte
	sum.Sum(last[:0])
	if ledger := f.gate.Ledger(); ledger[len(ledger)-1].PayloadSHA256 != last {
		t.Error("something else arrived than a large stdin")
	}
	t.Setenv("TMPDIR", spool)

	file := f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\n")
	text := testkit.Must(os.ReadFile(file))(t)
	must(t, os.WriteFile(file, bytes.Replace(text, []byte("gateway:\n"), []byte("gateway:\n  max_payload_size: 17MiB\n"), 1), 0o600))
	f.stdin = manyZeros(large + 1)
	if report := f.send(statusFailed, "--config", file, "--from", terminalID, "--publish", "--type", "doc:pdf", stdinName); !strings.Contains(report.Results[0].Error, "too large") {
		t.Errorf("too large: %+v", report)
	}

	// A signal while nothing comes.
	reader, writer := io.Pipe()
	f.stdin = reader
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan int, 1)
	var stderr bytes.Buffer // read after done
	go func() {
		done <- f.program(t.Output(), &stderr).run(ctx, []string{"send", "--from", terminalID, "--publish", "--type", "doc:pdf", stdinName})
	}()
	if _, err := writer.Write([]byte("the beginning")); err != nil { // it is being read
		t.Error(err)
	}
	cancel(errors.New("interrupt signal received"))
	if status := <-done; status != statusFailed || !strings.HasPrefix(stderr.String(), "-: interrupt signal received\n") {
		t.Errorf("cancelled: status %d, %s", status, stderr.String())
	}
	testkit.NoError(t, writer.Close())
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

// manyZeros is a reader of n bytes.
func manyZeros(n int64) io.Reader { return io.LimitReader(zeros{}, n) }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Names of files are anything that a file system takes.
func TestSendHostileNames(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	names := f.files("two\nlines\x1b[2J.zip", mark, " spaces .pdf ", mark, "-", mark, "--publish", mark, strings.Repeat("ä", 110)+".zip", mark, "bad\xffutf8.zip", mark, "\u202egpj.zip", mark)
	t.Chdir(filepath.Dir(names[0]))
	args := []string{"send", "--from", terminalID, "--to", softwareID, "--"}
	for _, name := range names {
		if name = filepath.Base(name); name == stdinName {
			name = "./-"
		}
		args = append(args, name)
	}
	stdout := f.want(statusOK, args...)
	if strings.ContainsAny(stdout, "\x1b\u202e") || strings.Count(stdout, "\n") != len(names) {
		t.Errorf("stdout: %q", stdout)
	}
	var got []string
	for _, e := range f.gate.Ledger() {
		got = append(got, e.Filename)
	}
	want := []string{"two_lines_[2J.zip", "spaces .pdf", "-", "--publish", strings.Repeat("ä", 96) + ".zip", "bad_utf8.zip", "\u202egpj.zip"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("arrived: %q, want %q", got, want)
	}
	status, _, stderr := f.agrimill("send", "--from", terminalID, "--to", softwareID, "none\x1b[2J\n.zip")
	if status != statusFailed || strings.Contains(stderr, "\x1b") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

// A person sees how far it is; nothing is left of that at the end.
func TestSendShowsProgress(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.world.terminal = true
	names := f.files("large.zip", strings.Repeat(mark, 200_000), "empty.zip", "")
	f.gate.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 503, Times: 1})
	var out, errs bytes.Buffer
	if status := f.program(&out, &errs).run(t.Context(), append([]string{"send", "--from", terminalID, "--publish"}, names...)); status != statusOK {
		t.Fatalf("status %d, %s", status, errs.String())
	}
	if !strings.Contains(errs.String(), "1/2 large.zip") || !strings.Contains(errs.String(), "MiB") || strings.Contains(errs.String(), "100%") {
		t.Errorf("stderr: %q", errs.String())
	}
	if strings.Count(out.String(), "sent\t") != 2 {
		t.Errorf("stdout: %q", out.String())
	}
}

// A file that cannot be read arrived nowhere, unless an attempt before that had no response.
func TestSendWhatCannotBeRead(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	client := f.gate.Client()
	request := gateway.SendMessageRequest{
		TenantID: f.gate.Tenant(), EndpointID: f.terminal.ID, IsPublish: true, MessageType: taskData, ContextID: uuid.NewString(), Size: int64(len(mark)),
	}
	bar := f.program(io.Discard, io.Discard).newBar("a.zip", request.Size)
	unreadable := &os.PathError{Op: "read", Path: "a.zip", Err: syscall.EIO}
	f.gate.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{DropAnswer: true, Times: 1})
	var opened atomic.Int32
	request.Body = showing(bar, request.Size, func() (io.ReadCloser, error) {
		if opened.Add(1) > 1 {
			return nil, unreadable
		}
		return io.NopCloser(strings.NewReader(mark)), nil
	})
	if err := client.SendMessage(t.Context(), request); turnedDown(err) || !errors.Is(err, syscall.EIO) {
		t.Errorf("after an attempt without a response: %v", err)
	}
	for name, open := range map[string]func() (io.ReadCloser, error){
		"open": func() (io.ReadCloser, error) { return nil, unreadable },
		"read": func() (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(strings.NewReader(mark[:2]), iotest.ErrReader(unreadable))), nil
		},
	} {
		request.Body = showing(bar, request.Size, open)
		if err := client.SendMessage(t.Context(), request); !turnedDown(err) || !errors.Is(err, syscall.EIO) || strings.Contains(err.Error(), "a.zip") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, content := range []string{mark + "1", mark[1:], ""} {
		request.Body = showing(bar, request.Size, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil })
		if err := client.SendMessage(t.Context(), request); !turnedDown(err) || !errors.Is(err, errChanged) {
			t.Errorf("%d bytes of %d: %v", len(content), request.Size, err)
		}
	}
}
