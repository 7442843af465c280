package command

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/stores/nats/poisonqueue"
)

// Messages that have route, type and reason in common are one line with their number.
func TestListGroups(t *testing.T) {
	w := newWorld(t, 0, taskData, shapes, taskData)
	text := w.want(statusOK, "poison", "list", "--config", w.file, "--group")
	if lines := strings.Split(text, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[0], "COUNT  ROUTE") ||
		!strings.HasPrefix(lines[1], "2      task-data  handler") || !strings.HasPrefix(lines[2], "1      shapes     permanent") {
		t.Error(text)
	}
	groups := decode[[]admin.PoisonGroup](w, w.want(statusOK, "poison", "list", "--config", w.file, "--group", "--json", "--route", "shapes"))
	if len(groups) != 1 || groups[0].Count != 1 || groups[0].Route != "shapes" || groups[0].First.IsZero() {
		t.Errorf("%+v", groups)
	}
	if text := w.want(statusOK, "poison", "list", "--config", w.file, "--group", "--type", "nothing:*"); text != "no messages\n" {
		t.Error(text)
	}
}

func TestList(t *testing.T) {
	w := newWorld(t, 0, taskData, shapes, taskData)
	if text := w.want(statusOK, "poison", "list", "--config", w.file, "--type", "nothing:*"); text != "no messages\n" {
		t.Errorf("nothing to list: %q", text)
	}
	if text := w.want(statusOK, "poison", "list", "--config", w.file, "--type", "nothing:*", "--json"); text != "[]\n" {
		t.Errorf("nothing to list as JSON: %q", text)
	}
	all := w.list()
	if len(all) != 3 {
		t.Fatalf("%d in the list, want 3: %+v", len(all), all)
	}
	for _, r := range all {
		want := admin.PoisonedRecord{
			ID: r.ID, Route: "task-data", Topic: taskData, Class: "handler", Reason: r.Reason, Attempts: 2, Count: 1,
			First: r.First, Last: r.Last, UUID: r.UUID, MessageType: taskData, Tenant: r.Tenant,
			Size: int64(len(mark + "0, which is long enough")),
		}
		if r.MessageType == shapes {
			want.Route, want.Topic, want.Class, want.Attempts, want.MessageType = "shapes", shapes, "permanent", 1, shapes
		}
		if r.ID == "" || r.UUID == "" || r.Tenant == "" || r.Reason == "" || r.First.IsZero() || r.Last.Before(r.First) ||
			strings.Contains(r.Reason, mark) || strings.Contains(r.Reason, password) {
			t.Errorf("listed: %+v", r)
		}
		if !equal(r, want) {
			t.Errorf("listed %+v, want %+v", r, want)
		}
	}

	soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, test := range []struct {
		args []string
		want int
	}{
		{[]string{"--route", "shapes"}, 1},
		{[]string{"--route", "shapes", "--route", "task-data"}, 3},
		{[]string{"--route", "shape"}, 0},
		{[]string{"--class", "handler"}, 2},
		{[]string{"--class", "handler", "--route", "shapes"}, 0},
		{[]string{"--type", "iso:*"}, 2},
		{[]string{"--type", "shp:shape:zi?", "--type", "iso:*:zip"}, 3},
		{[]string{"--type", "iso.*"}, 0},
		{[]string{"--since", "1h"}, 3},
		{[]string{"--since", "0.5d"}, 3},
		{[]string{"--since", "2020-01-01"}, 3},
		{[]string{"--since", soon}, 0},
		{[]string{"--limit", "2"}, 2},
		{[]string{"--limit", "2", "--type", "shp:*"}, 1},
	} {
		if got := w.list(test.args...); len(got) != test.want {
			t.Errorf("%q: %d messages, want %d", test.args, len(got), test.want)
		}
	}

	lines := strings.Split(strings.TrimSpace(w.want(statusOK, "poison", "list", "--config", w.file)), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "ID ") || strings.Contains(strings.Join(lines, ""), mark) {
		t.Errorf("table:\n%s", strings.Join(lines, "\n"))
	}
}

func equal(a, b admin.PoisonedRecord) bool {
	return a.ID == b.ID && a.Route == b.Route && a.Topic == b.Topic && a.Class == b.Class && a.Reason == b.Reason &&
		a.Attempts == b.Attempts && a.Count == b.Count && a.First.Equal(b.First) && a.Last.Equal(b.Last) && a.Foreign == b.Foreign &&
		a.UUID == b.UUID && a.MessageType == b.MessageType && a.Tenant == b.Tenant && a.Filename == b.Filename &&
		a.Size == b.Size && a.PayloadMode == b.PayloadMode
}

func TestShow(t *testing.T) {
	w := newWorld(t, 0, taskData)
	r := w.list()[0]
	text := w.want(statusOK, "poison", "show", "--config", w.file, r.ID)
	for _, want := range []string{"2 failed attempts, poisoned 1 time", "task-data", taskData, gateway.KeyTenantID, r.Reason} {
		testkit.Contains(t, text, want)
	}
	if strings.Contains(text, mark) {
		t.Errorf("the payload is shown unasked:\n%s", text)
	}
	shown := decode[shownRecord](w, w.want(statusOK, "poison", "show", "--config", w.file, r.ID, "--json"))
	if !equal(shown.PoisonedRecord, r) || shown.Metadata[gateway.KeyMessageType] != taskData || shown.Metadata[router.KeyPoisonCount] != "1" {
		t.Errorf("shown %+v, want %+v and its metadata", shown, r)
	}

	payload := mark + "0, which is long enough"
	if got := w.want(statusOK, "poison", "show", "--config", w.file, "--payload", "-", r.ID); got != payload {
		t.Errorf("payload on stdout: %q", got)
	}
	file := filepath.Join(t.TempDir(), "payload")
	w.want(statusOK, "poison", "show", "--config", w.file, r.ID, "--payload", file)
	if got, err := os.ReadFile(file); err != nil || string(got) != payload {
		t.Errorf("payload in the file: %q, %v", got, err)
	}
	w.want(statusFailed, "poison", "show", "--config", w.file, r.ID, "--payload", file) // not overwritten
	if got, err := os.ReadFile(file); err != nil || string(got) != payload {
		t.Errorf("after a second time: %q, %v", got, err)
	}
	w.want(statusFailed, "poison", "show", "--config", w.file, "4711")
	if got := w.list(); len(got) != 1 {
		t.Errorf("looking took something off: %d left", len(got))
	}
}

func TestReplayArrivesOnce(t *testing.T) {
	w := newWorld(t, 0, taskData, shapes, taskData)
	all := w.list()
	if text := w.want(statusOK, "poison", "replay", "--config", w.file, "--all", "--dry-run", "--json"); len(decode[[]admin.PoisonedRecord](w, text)) != 3 {
		t.Errorf("dry run: %s", text)
	}
	if len(w.list()) != 3 {
		t.Fatal("a dry run took something off")
	}

	// By ID, given twice.
	status, stdout, stderr := w.agrimill("poison", "replay", "--config", w.file, all[0].ID, all[0].ID)
	if status != statusOK || stdout != "1 message selected: 1 delivered, 0 duplicate, 0 poisoned again, 0 kept, 0 gone\n" ||
		stderr != "" {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	if got := ids(w.list()); !slices.Equal(got, ids(all[1:])) {
		t.Errorf("left: %v, want %v", got, ids(all[1:]))
	}
	// By filter.
	report := decode[replayReport](w, w.want(statusOK, "poison", "replay", "--config", w.file, "--json", "--type", "shp:*"))
	if report.Selected != 1 || report.Delivered != 1 || report.Results[0] != (admin.ReplayResult{ID: all[1].ID, Outcome: admin.ReplayDelivered}) ||
		len(w.stored(poisonqueue.Config{Topic: topicOf(all[1])})) != 1 {
		t.Errorf("report: %+v", report)
	}
	// All, twice: the second time there is nothing.
	w.terminal = true
	if _, _, stderr := w.agrimill("poison", "replay", "--config", w.file, "--all", "-v"); !strings.Contains(stderr, "1/1  "+all[2].ID+"  delivered\n") || !strings.Contains(stderr, "replaying") {
		t.Errorf("to a person: %q", stderr)
	}
	w.terminal = false
	if report := decode[replayReport](w, w.want(statusOK, "poison", "replay", "--config", w.file, "--all", "--json")); report.Selected != 0 || report.Results == nil {
		t.Errorf("an empty queue: %+v", report)
	}
	if left := w.list(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}

	arrived := map[string]int{}
	for _, topic := range []string{topicOf(all[0]), topicOf(all[1])} { // the third has that of the first
		for _, msg := range w.stored(poisonqueue.Config{Topic: topic}) {
			arrived[msg.UUID]++
			if !strings.HasPrefix(string(msg.Payload), mark) || msg.Metadata[gateway.KeyContextID] == "" {
				t.Errorf("arrived: %q %v", msg.Payload, msg.Metadata)
			}
			for key := range msg.Metadata {
				if strings.HasPrefix(key, "x-router-poison-") {
					t.Errorf("it still has %s", key)
				}
			}
		}
	}
	for _, r := range all {
		if arrived[r.UUID] != 1 {
			t.Errorf("message %s arrived %d times", r.UUID, arrived[r.UUID])
		}
	}
	if w.want(statusFailed, "poison", "replay", "--config", w.file, all[0].ID) != "" {
		t.Error("a message that is gone was replayed")
	}
}

// What no router wrote is shown without what it could do to a terminal, and cannot be replayed.
func TestForeignRecord(t *testing.T) {
	w := newWorld(t, 0)
	must(t, w.sink.Publish(router.DefaultPoisonTopic, message.NewMessage("foreign\x1b[2J", []byte(mark))))
	all := w.list()
	if len(all) != 1 || !all[0].Foreign {
		t.Fatalf("listed: %+v", all)
	}
	if text := w.want(statusOK, "poison", "show", "--config", w.file, all[0].ID); strings.Contains(text, "\x1b") || !strings.Contains(text, "cannot be replayed") || strings.Contains(text, "attempt") {
		t.Errorf("shown: %q", text)
	}
	if text := w.want(statusOK, "poison", "list", "--config", w.file); !regexp.MustCompile(fmt.Sprintf(` %d +- +- +- `, len(mark))).MatchString(text) {
		t.Errorf("the attempts are known: %q", text)
	}
	status, stdout, stderr := w.agrimill("poison", "replay", "--config", w.file, "--all")
	if status != statusFailed || !strings.HasPrefix(stdout, "1 message selected: 0 delivered, 0 duplicate, 0 poisoned again, 1 kept") {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	w.want(statusOK, "poison", "drop", "--config", w.file, all[0].ID)
	if left := w.list(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

// watcher is a stderr that tells when a text was written. The program writes
// from one goroutine.
type watcher struct {
	bytes.Buffer
	text  string
	found func()
}

func (w *watcher) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	if strings.Contains(string(b), w.text) {
		w.found()
	}
	return n, err
}

func TestDrop(t *testing.T) {
	w := newWorld(t, 0, taskData, shapes, taskData, taskData)
	all := w.list()
	w.want(statusFailed, "poison", "drop", "--config", w.file, all[0].ID, "4711")
	w.want(statusUsage, "poison", "drop", "--config", w.file, "--all")
	w.want(statusOK, "poison", "drop", "--config", w.file, "--all", "--dry-run")
	if len(w.list()) != 4 {
		t.Fatal("something is gone that should not be")
	}
	report := decode[dropReport](w, w.want(statusOK, "poison", "drop", "--config", w.file, "--json", all[0].ID))
	if report.Selected != 1 || !slices.Equal(report.Deleted, []string{all[0].ID}) {
		t.Errorf("report: %+v", report)
	}
	if text := w.want(statusOK, "poison", "drop", "--config", w.file, "--route", "task-data", "--limit", "1"); text != "1 message selected: 1 deleted\n" {
		t.Errorf("drop by filter: %q", text)
	}
	if left := w.list(); len(left) != 2 {
		t.Errorf("left: %+v", left)
	}
	w.want(statusOK, "poison", "drop", "--config", w.file, "--all", "--yes")
	if left := w.list(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	w.want(statusFailed, "poison", "show", "--config", w.file, all[0].ID)
	for _, r := range all {
		if got := w.stored(poisonqueue.Config{Topic: topicOf(r)}); len(got) != 0 {
			t.Errorf("dropped, and yet stored: %v", got)
		}
	}
}

// A payload that was too large for the poison queue is in the claim check, and
// comes back from there.
func TestClaimCheck(t *testing.T) {
	w := newWorld(t, 0)
	url := "file://" + filepath.ToSlash(t.TempDir())
	store := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{URL: url}))(t)
	defer func() { _ = store.Close() }()
	w.store = store
	w.server.Restart(func(o *natsserver.Options) { o.MaxPayload = 4 << 10 })
	w.payload = bytes.Repeat([]byte(mark), 1000)
	w.poison(taskData)

	r := w.list()[0]
	if r.PayloadMode != gateway.PayloadModeClaimCheck || r.Size != int64(1000*len(mark)) {
		t.Fatalf("listed: %+v", r)
	}
	_, _, stderr := w.agrimill("poison", "show", "--config", w.file, "--payload", "-", r.ID)
	testkit.Contains(t, stderr, "the configuration has none (claim_check)")
	file := filepath.Join(t.TempDir(), "payload")
	w.want(statusFailed, "poison", "show", "--config", w.file, "--payload", file, r.ID)
	if _, err := os.Stat(file); err == nil {
		t.Error("a file without the payload was left behind")
	}
	// Without the claim check the message stays as it is.
	status, _, stderr := w.agrimill("poison", "replay", "--config", w.file, "--all")
	if status != statusFailed || !strings.Contains(stderr, "kept: ") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	if left := w.list(); len(left) != 1 || left[0].ID != r.ID {
		t.Errorf("left: %+v", left)
	}
	w.file = w.queueIn("", fmt.Sprintf("claim_check: {url: %q}\n", url))
	if got := w.want(statusOK, "poison", "show", "--config", w.file, "--payload", "-", r.ID); got != strings.Repeat(mark, 1000) {
		t.Errorf("payload of %d bytes", len(got))
	}
	w.want(statusOK, "poison", "replay", "--config", w.file, "--all")
	got := w.stored(poisonqueue.Config{Topic: topicOf(r)})
	if len(got) != 1 || got[0].Metadata[gateway.KeyPayloadMode] != gateway.PayloadModeClaimCheck {
		t.Errorf("arrived: %v", got)
	}
}

// What someone else takes off in the meantime is counted, and no failure.
func TestGoneInTheMeantime(t *testing.T) {
	w := newWorld(t, 0, taskData, shapes)
	stale := w.list()
	w.want(statusOK, "poison", "drop", "--config", w.file, stale[0].ID)
	queue, err := poisonqueue.New(poisonqueue.Config{Conn: w.sink.Conn()})
	must(t, err)
	cfg := testkit.Must(config.Load(w.file, config.Options{Env: func(key string) string { return w.env[key] }}))(t)
	p := &program{stderr: t.Output(), isTerminal: func(any) bool { return false }}
	replayer := testkit.Must(pipeline.NewReplayer(t.Context(), cfg, []string{"shapes", "task-data"}, pipeline.Options{Observer: waits{p}}))(t)
	defer func() {
		if err := replayer.Close(); err != nil {
			t.Error(err)
		}
	}()
	report, err := replayEach(t.Context(), p, replayer, queue, stale, false)
	if err != nil || report.Gone != 1 || report.Delivered != 1 {
		t.Errorf("replay: %+v, %v", report, err)
	}
	dropped, err := drop(t.Context(), queue, stale)
	if err != nil || dropped.Gone != 2 || len(dropped.Deleted) != 0 {
		t.Errorf("drop: %+v, %v", dropped, err)
	}
}

// A server that says nothing is not waited for longer than is wanted.
func TestSilentQueue(t *testing.T) {
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }() // and what waits to be accepted, with it
	w := newWorld(t, 0)
	file := w.configure(fmt.Sprintf(oneSink, "nats://"+listener.Addr().String()))
	status, _, stderr := w.agrimill("poison", "replay", "--config", file, "--all", "--timeout", "10ms")
	if status != statusFailed || !strings.Contains(stderr, "not finished within 10ms (--timeout)") {
		t.Errorf("status %d, %s", status, stderr)
	}
}
