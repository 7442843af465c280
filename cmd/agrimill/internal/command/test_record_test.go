package command

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// What tail has saved becomes cases that pass as things are, and fail once a route does something else.
func TestRecordFromTail(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.put(taskData, "field 1.zip", mark)
	f.put(shapes, "field 1.zip", mark+"2")
	inbox := filepath.Join(t.TempDir(), "inbox")
	lines := f.want(statusOK, "tail", "--count", "2", "--json", "--save", inbox)
	events := save(t, "events.jsonl", []byte(lines+`{"event":"AUTHORIZATION_ADDED"}`+"\n"))
	file := save(t, "agrimill.yaml", []byte(strings.Replace(tested, `filter: {type: "iso:*", expr: 'int(metadata[?"size"].orValue("0")) < 10'}`, `filter: {type: "iso:*"}`, 1)))
	cases := filepath.Join(t.TempDir(), "cases.yaml")
	text := f.want(statusOK, "test", "--record", cases, file, events)
	if !strings.HasPrefix(text, "2 cases in ") {
		t.Error(text)
	}
	if text := f.want(statusOK, "test", file, cases); !strings.Contains(text, "2 cases: 2 passed, 0 failed") || !strings.Contains(text, "field 1.zip (2)") {
		t.Error(text)
	}
	written, err := os.ReadFile(cases)
	if err != nil || !strings.Contains(string(written), "inbox/") || strings.Contains(string(written), mark) || !strings.Contains(string(written), "topic: ") {
		t.Errorf("%v\n%s", err, written)
	}
	changed := save(t, "agrimill.yaml", []byte(strings.Replace(tested, "{tenant}.{meta:team}", "elsewhere", 1)))
	testkit.Contains(t, f.want(statusFailed, "test", changed, cases), `got "elsewhere"`)
	f.want(statusFailed, "test", "--record", cases, file, events) // it is there already
	if after, err := os.ReadFile(cases); err != nil || string(after) != string(written) {
		t.Errorf("it was overwritten: %v", err)
	}
}

// Which endpoint has an external ID, nobody knows without the gateway: where a filter names one, so does the case of an event that
// tells it, and a case that does not is said to be unknown, and neither filtered nor poisoned.
func TestRecordWhereAFilterNamesAnExternalID(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.put(taskData, "field 1.zip", mark)
	events := save(t, "events.jsonl", []byte(f.want(statusOK, "tail", "--count", "1", "--json")))
	file := f.configure("  - {name: in, from: {gateway: all}, filter: {endpoint: " + softwareID + "}, to: {sink: farm}}\n" + fmt.Sprintf(oneSink, "nats://127.0.0.1:1"))
	cases := filepath.Join(t.TempDir(), "cases.yaml")
	f.want(statusOK, "test", "--record", cases, file, events)
	testkit.Contains(t, f.want(statusOK, "test", file, cases), "1 passed")
	written, err := os.ReadFile(cases)
	if err != nil || !strings.Contains(string(written), "receiver: "+softwareID) || strings.Contains(string(written), "poisoned") {
		t.Errorf("%v\n%s", err, written)
	}
	for _, outcome := range []string{"published", "filtered", "poisoned"} {
		unknown := save(t, "cases.yaml", fmt.Appendf(nil, "cases: [{name: a, message: {type: %q, tenant: %s, receiver: %s}, expect: [{route: in, outcome: %s}]}]\n", taskData, f.gate.Tenant(), f.software.ID, outcome))
		if text := f.want(statusFailed, "test", file, unknown); !strings.Contains(text, "only the gateway knows") {
			t.Errorf("%s: %s", outcome, text)
		}
	}
}

// A message in the journal becomes a case without a payload, which is said.
func TestRecordFromJournal(t *testing.T) {
	w := &world{T: t, env: map[string]string{}}
	known := map[string][]journal.Message{
		"field 1": {{EventType: string(gateway.EventMessageReceived), MessageType: taskData, Tenant: "t1", Filename: "field 1.zip"}},
		"out":     {{MessageType: taskData, Delivery: "nats/s/1", Events: []journal.Event{{Step: journal.StepStarted, Route: "back", Time: time.Now()}}}},
		"zip":     {{Filename: "a.zip"}, {Filename: "b.zip"}},
	}
	running := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		found := known[r.URL.Query().Get("q")]
		_ = json.NewEncoder(rw).Encode(journal.Trace{Query: r.URL.Query().Get("q"), Messages: found[:min(1, len(found))], More: max(0, len(found)-1)})
	}))
	defer running.Close()
	file := save(t, "agrimill.yaml", []byte(tested))
	record := func(status int, cases string, queries ...string) string {
		t.Helper()
		args := []string{"test", "--record", cases, "--admin", strings.TrimPrefix(running.URL, "http://"), file}
		for _, q := range queries {
			args = append(args, "--trace", q)
		}
		got, _, stderr := w.agrimill(args...)
		if got != status {
			t.Errorf("%q: status %d: %s", queries, got, stderr)
		}
		return stderr
	}
	cases := filepath.Join(t.TempDir(), "cases.yaml")
	testkit.Contains(t, record(statusOK, cases, "field 1", "out"), "field 1.zip: the payload is not known")
	testkit.Contains(t, w.want(statusOK, "test", file, cases), "2 cases: 2 passed")
	none := filepath.Join(t.TempDir(), "none.yaml")
	testkit.Contains(t, record(statusFailed, none, "nobody sent this"), "nothing is known of")
	testkit.Contains(t, record(statusFailed, none, "zip"), "finds 2 messages")
	record(statusUsage, none)
	if _, err := os.Stat(none); err == nil {
		t.Error("a file without cases was left behind")
	}
}

func TestRecordRefusesWhatIsNoEvent(t *testing.T) {
	w := &world{T: t}
	file, cases := save(t, "agrimill.yaml", []byte(tested)), filepath.Join(t.TempDir(), "cases.yaml")
	for _, content := range []string{"no JSON\n", "", `{"event":"AUTHORIZATION_ADDED"}` + "\n"} {
		w.want(statusFailed, "test", "--record", cases, file, save(t, "events.jsonl", []byte(content)))
	}
	w.want(statusUsage, "test", "--record", cases, "--junit", "x.xml", file, "events.jsonl")
}
