package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// put sends a message to the software.
func (f *farm) put(messageType, filename, payload string) {
	f.Helper()
	testkit.Must(f.gate.Send(gatewaytest.SendRequest{
		From: f.terminal.ID, MessageType: messageType, Filename: filename, Payload: []byte(payload), TeamsetContextID: "team 7",
	}))(f)
}

// tail runs tail --json, which has to show a number of events.
func (f *farm) tail(count int, args ...string) (lines []eventLine) {
	f.Helper()
	text := f.want(statusOK, append([]string{"tail", "--json", "--count", fmt.Sprint(count)}, args...)...)
	for line := range strings.Lines(text) {
		lines = append(lines, decode[eventLine](f.world, line))
	}
	if len(lines) != count {
		f.Fatalf("%d events, want %d:\n%s", len(lines), count, text)
	}
	return lines
}

func TestTailOnlyLooks(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{ServiceName: "mill", InlineLimit: 100})
	f.put(taskData, "field 7.zip", mark)
	f.put("doc:pdf", "", strings.Repeat(mark, 10))

	status, text, stderr := f.agrimill("tail", "--count", "2")
	if status != statusOK || !strings.Contains(stderr, "nothing is confirmed") {
		t.Errorf("status %d, %s", status, stderr)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 2 || strings.Contains(text, mark) {
		t.Fatalf("text:\n%s", text)
	}
	for _, want := range []string{
		" MESSAGE_RECEIVED type=" + taskData, ` file="field 7.zip"`, fmt.Sprintf(" bytes=%d", len(mark)), ` endpoint="Farm software"`,
		" external_id=" + softwareID, " tenant=" + f.gate.Tenant(), ` teamset="team 7"`, " id=" + f.gate.Ledger()[0].MessageID,
	} {
		testkit.Contains(t, lines[0], want)
	}
	if strings.Contains(lines[1], "bytes=") || strings.Contains(lines[1], "file=") {
		t.Errorf("nothing is known of its name and size: %s", lines[1])
	}

	shown := f.tail(2) // the same again
	for i, e := range f.gate.Ledger() {
		if l := shown[i]; e.Confirmed() || l.MessageID != e.MessageID || l.EndpointID != f.software.ID || l.EndpointName != "Farm software" ||
			l.Event != gateway.EventMessageReceived || l.ContextID != e.ContextID || l.TenantID != e.TenantID || l.Time.IsZero() || l.SentAt.IsZero() ||
			l.Embedded != (i == 0) {
			t.Errorf("shown %+v of %+v", l, e)
		}
	}

	for _, test := range []struct {
		args string
		want string
	}{
		{"--type doc:*", "doc:pdf"},
		{"--event message_received --type nothing --type doc:pd?", "doc:pdf"},
		{"--endpoint " + softwareID + " --type *zip", taskData},
		{"--tenant " + strings.ToUpper(f.gate.Tenant()), taskData},
	} {
		if got := f.tail(1, strings.Fields(test.args)...); got[0].MessageType != test.want {
			t.Errorf("%s: %+v", test.args, got)
		}
	}
	for args, says := range map[string]string{
		"--event NOTHING": `unknown event type "NOTHING"`, "--count -1": "--count", "--tenant 17": "UUID", "--endpoint urn:no:body": "no endpoint", "now": "now: cannot be read", "now then": "unexpected",
	} {
		if status, _, stderr := f.agrimill(append([]string{"tail"}, strings.Fields(args)...)...); status != statusUsage || !strings.Contains(stderr, says) {
			t.Errorf("%s: status %d, %s", args, status, stderr)
		}
	}
}

// Messages and files, small and split, are saved as they were sent.
func TestTailSaves(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{ChunkSize: 1000, InlineLimit: 100})
	large := strings.Repeat(mark, 100) // three chunks
	f.put(taskData, "../../etc/pass\x00wd\u202e.zip", mark)
	f.put(taskData, "large.zip", large)
	folder := filepath.Join(t.TempDir(), "in", "box")
	events := 1 + (len(large)+999)/1000 + 1
	shown := f.tail(events, "--save", folder)
	for _, line := range shown {
		info, err := os.Stat(line.Saved)
		if err != nil || filepath.Dir(line.Saved) != folder || line.Size == nil || info.Size() != *line.Size || info.Mode().Perm() != 0o600 {
			t.Errorf("%+v: %v", line, err)
		}
	}
	if name := filepath.Base(shown[0].Saved); name != shown[0].MessageID+"-pass_wd_.zip" {
		t.Errorf("the name of a hostile file is %q", name)
	}
	file := shown[events-1]
	if got, err := os.ReadFile(file.Saved); err != nil || string(got) != large || file.Event != gateway.EventFileReceived || len(file.MessageIDs) != events-2 {
		t.Errorf("file %+v: %d bytes, %v", file, len(got), err)
	}
	if got, err := os.ReadFile(shown[0].Saved); err != nil || string(got) != mark {
		t.Errorf("message: %q, %v", got, err)
	}

	// What is there already is not fetched again.
	requests := f.gate.Stats(gatewaytest.OpPayload).Requests
	again := f.tail(events, "--save", folder)
	if n := f.gate.Stats(gatewaytest.OpPayload).Requests; n != requests || again[0].Saved != shown[0].Saved {
		t.Errorf("%d requests for payloads, were %d", n, requests)
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != events {
		t.Errorf("%d files, %v; want %d", len(entries), err, events)
	}

	// What is unavailable is redelivered.
	f.put("doc:pdf", "report.pdf", strings.Repeat(mark, 10))
	fault := f.gate.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: 403})
	status, stdout, stderr := f.agrimill("tail", "--save", folder, "--type", "doc:*", "--count", "1")
	if status != statusFailed || !strings.Contains(stdout, "type=doc:pdf") || !strings.Contains(stderr, "not saved: ") || strings.Contains(stdout, "saved=") {
		t.Errorf("status %d, %q, %s", status, stdout, stderr)
	}
	fault.Lift()
	f.tail(1, "--save", folder, "--type", "doc:*")
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != events+1 {
		t.Errorf("%d files, %v; want %d", len(entries), err, events+1)
	}
	// A folder that is none is found out at once.
	f.want(statusFailed, "tail", "--save", shown[0].Saved)
}

// A gateway need not say which tenant a message is of; the list of tenants does.
func TestTailWithoutTenant(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{OmitOptionalFields: true})
	f.put(taskData, "a.zip", mark)
	if shown := f.tail(1, "--tenant", f.gate.Tenant()); shown[0].TenantID != f.gate.Tenant() {
		t.Errorf("shown %+v", shown[0])
	}
}

// A stream that ends is opened again, and what is redelivered is shown once.
func TestTailGoesOn(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader, writer := io.Pipe()
	var errs bytes.Buffer
	done := make(chan int, 1)
	go func() {
		status := f.program(writer, &errs).run(ctx, []string{"tail", "--json"})
		_ = writer.Close()
		done <- status
	}()
	lines := json.NewDecoder(reader)
	next := func() (line eventLine) {
		t.Helper()
		must(t, lines.Decode(&line))
		return line
	}
	f.put(taskData, "1.zip", mark)
	if line := next(); line.Filename != "1.zip" {
		t.Errorf("first: %+v", line)
	}
	f.gate.CutStreams()
	f.put(taskData, "2.zip", mark)
	if line := next(); line.Filename != "2.zip" {
		t.Errorf("after the cut: %+v", line)
	}
	// Events of every kind; the name of what is deleted is still known.
	f.gate.DeleteEndpointByUser(f.software.ID)
	if line := next(); line.Event != gateway.EventEndpointDeleted || line.EndpointName != "Farm software" || line.ExternalID != softwareID || line.TenantID != f.gate.Tenant() {
		t.Errorf("deleted: %+v", line)
	}
	if line := next(); line.Event != gateway.EventEndpointsListChanged || line.Endpoints == nil || *line.Endpoints != 1 {
		t.Errorf("list: %+v", line)
	}
	f.gate.EmitRaw(f.gate.Application(), []byte("event: NEW_\x1b[2JKIND\ndata: {\"event_type\":\"NEW_\\u001b[2JKIND\"}\n\nevent: MESSAGE_RECEIVED\ndata: {}\n\n"))
	if line := next(); line.Event != "NEW_\x1b[2JKIND" {
		t.Errorf("a kind that is not known: %+v", line)
	}
	f.gate.Revoke(f.gate.Application(), f.gate.Tenant(), gateway.ScopeEndpointsManage)
	if line := next(); line.Event != gateway.EventAuthorizationRevoked || line.Scope != gateway.ScopeEndpointsManage {
		t.Errorf("revoked: %+v", line)
	}
	cancel()
	if _, err := io.Copy(io.Discard, reader); err != nil { // more may have come
		t.Error(err)
	}
	if status := <-done; status != statusOK {
		t.Errorf("status %d", status)
	}
	if !strings.Contains(errs.String(), "reconnecting") || !strings.Contains(errs.String(), "skipped: ") || strings.Contains(errs.String(), "\x1b") {
		t.Errorf("stderr: %q", errs.String())
	}
}

// A stream whose head comes with the first event is open, also when nothing comes
// for longer than a stream may be silent.
func TestTailAwaitsTheFirstEvent(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{StreamHead: gatewaytest.HeadWithFirstEvent})
	c := f.gate.ClientConfig()
	f.env["SECRET"] = string(c.ClientSecret)
	file := filepath.Join(t.TempDir(), "agrimill.yaml")
	testkit.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
gateway: {base_url: %q, token_url: %q, client_id: %q, client_secret: "${SECRET}", stream_idle_timeout: 100ms}
sinks: {farm: {log: {}}}
poison: {sink: farm}
routes: [{name: all, from: {gateway: all}, to: {sink: farm}}]
`, c.BaseURL, c.TokenURL, c.ClientID), 0o600))
	sent := make(chan error, 1)
	go func() {
		// Woken by every request.
		err := f.gate.Wait(t.Context(), func([]gatewaytest.LedgerEntry) bool { return f.gate.Stats(gatewaytest.OpEvents).Requests >= 3 })
		if err == nil {
			_, err = f.gate.Send(gatewaytest.SendRequest{From: f.terminal.ID, MessageType: taskData, Filename: "1.zip", Payload: []byte(mark)})
		}
		sent <- err
	}()
	if lines := f.tail(1, "--config", file); lines[0].Filename != "1.zip" {
		t.Errorf("%+v", lines)
	}
	testkit.NoError(t, <-sent)
}

// A stream that cannot be opened at all is a failure, at once.
func TestTailThatCannotBegin(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.gate.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: 503})
	if status, _, stderr := f.agrimill("tail"); status != statusFailed || !strings.Contains(stderr, "503") || !strings.Contains(stderr, "ask its operator") {
		t.Errorf("status %d, %s", status, stderr)
	}
	f.env["AGRIMILL_CLIENT_SECRET"] += "!"
	if status, _, stderr := f.agrimill("tail"); status != statusFailed || !strings.Contains(stderr, "check the client ID") {
		t.Errorf("status %d, %s", status, stderr)
	}
}

// Hostile text is quoted, so that it does nothing to a terminal and is distinguished from
// what the program says.
func TestQuote(t *testing.T) {
	for text, want := range map[string]string{
		"iso:11783:-10:taskdata:zip": "iso:11783:-10:taskdata:zip", "": `""`, "a b": `"a b"`, "\x1b[2J": `"\x1b[2J"`, "\u202e": `"\u202e"`, "x\ny": `"x\ny"`,
		`say "x"`: `"say \"x\""`, "Möhren.zip": "Möhren.zip", "bad\xff": `"bad\xff"`,
	} {
		if got := quote(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestSavedName(t *testing.T) {
	id := "6f9619ff-8b86-d011-b42d-00c04fc964ff"
	for name, want := range map[string]string{
		"": "payload", "..": "..", "/": "_", "a/b\\c.zip": "b_c.zip", ".hidden": ".hidden", "con:stream": "con_stream", "Möhren 7.zip": "Möhren_7.zip",
		strings.Repeat("ä", 100) + ".zip": strings.Repeat("ä", 73) + ".zip",
	} {
		if got := savedName(&eventLine{MessageID: strings.ToUpper(id), Filename: name}); got != id+"-"+want {
			t.Errorf("%q: %q, want %q", name, got, id+"-"+want)
		}
	}
}

// Whatever a sender calls a file: the name is one element of a path, not hidden,
// and not too long for a file system.
func FuzzSavedName(f *testing.F) {
	for _, name := range []string{"", ".", "..", "../..", "a/b", `a\b`, "\x00", "\u202e", "\xff", strings.Repeat("ä", 300), "CON", "a:b"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got := savedName(&eventLine{MessageIDs: []string{"6f9619ff-8b86-d011-b42d-00c04fc964ff"}, Event: gateway.EventFileReceived, Filename: name})
		if !filepath.IsLocal(got) || filepath.Base(got) != got || len(got) > 255 || !utf8.ValidString(got) || strings.ContainsAny(got, "/\\:\x00 ") ||
			!strings.HasPrefix(got, "file-6f9619ff-") {
			t.Errorf("%q: %q", name, got)
		}
	})
}

// What a terminal is shown has no character that does something to it, and can be
// read back.
func FuzzQuote(f *testing.F) {
	f.Add("\x1b[2J")
	f.Add("a=b c")
	f.Fuzz(func(t *testing.T, text string) {
		got := quote(text)
		if strings.ContainsFunc(got, func(r rune) bool { return !strconv.IsPrint(r) }) {
			t.Errorf("%q: %q", text, got)
		}
		if back, err := strconv.Unquote(got); got != text && (err != nil || back != text) {
			t.Errorf("%q: %s", text, got)
		}
	})
}
