package command

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
)

// storedWorld has a route into each kind of sink, by message type.
type storedWorld struct {
	*farm
	nats  *natstest.Server
	kafka *kafkatest.Cluster
	dir   string
}

const statusToken = "token-of-the-status-page"

const octets = "application:octet-stream"

func newStoredWorld(t *testing.T) *storedWorld {
	w := &storedWorld{farm: newFarm(t, gatewaytest.Config{InlineLimit: 4 << 10}), nats: natstest.Start(t), kafka: kafkatest.Start(t), dir: t.TempDir()}
	w.env["AGRIMILL_TOKEN"] = statusToken
	dir := filepath.ToSlash(w.dir)
	text := fmt.Sprintf(`
gateway:
  {base_url: %q, token_url: %q, client_id: "${AGRIMILL_CLIENT_ID}", client_secret: "${AGRIMILL_CLIENT_SECRET}", service_name: "${AGRIMILL_SERVICE}",
   application_id: "${AGRIMILL_APPLICATION_ID}", software_version_id: "${AGRIMILL_SOFTWARE_VERSION_ID}"}
subscriber: {unmatched: confirm}
sinks:
  farm: {nats: {url: %[3]q, stream: FARM, subject_prefix: farm}}
  lake: {kafka: {brokers: %[4]q, topic_prefix: lake}}
  files: {blob: {url: "file://%[5]s/archive?create_dir=true"}}
  queue: {nats: {url: %[3]q, stream: QUEUE, subject_prefix: queue}}
  note: {log: {}}
claim_check: {url: "file://%[5]s/payloads?create_dir=true", from: 4KiB}
poison: {sink: queue}
admin: {address: "127.0.0.1:0", token: "${AGRIMILL_TOKEN}"}
routes:
  - {name: to-nats, from: {gateway: %[6]q}, to: {sink: farm, topic: task}}
  - {name: to-kafka, from: {gateway: %[7]q}, to: {sink: lake, topic: shape}}
  - {name: records, from: {gateway: %[7]q}, transform: {records: {}}, to: {sink: farm, topic: records}}
  - {name: to-files, from: {gateway: "doc:pdf"}, to: {sink: files, topic: documents}}
  - {name: broken, from: {gateway: %[8]q}, filter: {expr: 'filename.startsWith("poisoned")'}, to: {sink: farm, topic: "{teamset}"}}
  - {name: printed, from: {gateway: %[8]q}, filter: {expr: 'filename.startsWith("printed")'}, to: {sink: note, topic: "x"}}
`, w.env["AGRIMILL_BASE_URL"], w.env["AGRIMILL_TOKEN_URL"], w.nats.URL(), w.kafka.Addr(), dir, taskData, shapes, octets)
	path := filepath.Join(t.TempDir(), "agrimill.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	t.Chdir(filepath.Dir(path))
	return w
}

func (w *storedWorld) send(messageType, filename string, payload []byte) {
	w.Helper()
	if _, err := w.gate.Send(gatewaytest.SendRequest{From: w.terminal.ID, MessageType: messageType, Filename: filename, Payload: payload}); err != nil {
		w.Fatal(err)
	}
}

// done waits until agrimill is done with a message, and returns what it knows of it.
func (w *storedWorld) done(filename string) (m journal.Message) {
	w.Helper()
	testkit.Eventually(w.T, filename+" is confirmed", func() bool {
		status, stdout, _ := w.agrimill("trace", "--config", "agrimill.yaml", "--json", filename)
		if status != statusOK {
			return false
		}
		if found := decode[[]journal.Trace](w.world, stdout); len(found[0].Messages) > 0 {
			m = found[0].Messages[0]
		}
		return strings.HasSuffix(m.State, "confirmed") && !strings.HasSuffix(m.State, "of 1 messages confirmed")
	})
	return m
}

func (w *storedWorld) inspect(query string, args ...string) (status int, stdout, stderr string) {
	w.Helper()
	return w.agrimill(append([]string{"inspect", "trace", "--config", "agrimill.yaml", query}, args...)...)
}

// contents asks the status page for the contents of a message.
func (w *storedWorld) contents(m journal.Message) (status int, body string) {
	w.Helper()
	address := regexp.MustCompile(`127\.0\.0\.1:[0-9]+", token: `).FindString(w.file("agrimill.yaml"))
	r := testkit.Must(http.NewRequestWithContext(w.Context(), http.MethodGet, "http://"+strings.TrimSuffix(address, `", token: `)+"/api/contents?id="+m.MessageIDs[0]+"&endpoint="+m.Endpoint, http.NoBody))(w)
	r.Header.Set("Authorization", "Bearer "+statusToken)
	response := testkit.Must((&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r))(w)
	defer func() { _ = response.Body.Close() }()
	text := testkit.Must(io.ReadAll(response.Body))(w)
	return response.StatusCode, string(text)
}

func (w *storedWorld) file(name string) string {
	w.Helper()
	text := testkit.Must(os.ReadFile(name))(w)
	return string(text)
}

// A time log in EFDI is shown as it is, with what to do about its names; the status page of agrimill, which remembers the machine, has
// them.
func TestInspectTraceOfATimeLog(t *testing.T) {
	const description, log = "iso:11783:-10:device_description:protobuf", "iso:11783:-10:time_log:protobuf"
	w := newStoredWorld(t)
	w.terminal = w.gate.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:example:machine", Send: []string{description, log}})
	w.gate.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:example:receiver", Receive: []string{description, log}, Subscribe: []string{description, log}})
	further := fmt.Sprintf("  - {name: logs, from: {gateway: %q}, to: {sink: farm, topic: log}}\n", log) +
		"  - {name: decoded, from: {gateway: all}, filter: {type: \"*protobuf\"}, transform: {records: {}}, to: {sink: farm, topic: decoded}}\ndevices: {wait: 1ms}\n"
	must(t, os.WriteFile("agrimill.yaml", []byte(w.file("agrimill.yaml")+further), 0o600))
	w.send(description, "mower.bin", farmdatatest.Description(t))
	w.beside(t, []string{"trace", "--config", "agrimill.yaml", "mower.bin"})
	w.done("mower.bin")
	w.send(log, "log.bin", farmdatatest.TimeLog(t, 5))
	m := w.done("log.bin")
	if status, stdout, stderr := w.inspect("log.bin"); status != statusOK || !strings.Contains(stdout, " 5 records") || !strings.Contains(stderr, "give --devices FILE") {
		t.Errorf("status %d, %s\n%s", status, stdout, stderr)
	}
	must(t, os.WriteFile("mower.bin", farmdatatest.Description(t), 0o600))
	if status, stdout, stderr := w.inspect("log.bin", "--devices", "mower.bin"); status != statusOK || !strings.Contains(stdout, "Mower") || strings.Contains(stderr, "--devices") {
		t.Errorf("with --devices: status %d, %s\n%s", status, stdout, stderr)
	}
	if status, body := w.contents(m); status != http.StatusOK || !strings.Contains(body, "Mower") {
		t.Errorf("the status page: status %d, %.500s", status, body)
	}
}

// What is in a message is shown from where it was stored: each kind of sink, a claim check, the poison queue. When it is there
// no more, each place says so.
func TestInspectTrace(t *testing.T) {
	w := newStoredWorld(t)
	small, large := farmdatatest.Archive(t, 5), farmdatatest.Archive(t, 1000)
	if len(small) >= 4<<10 || len(large) < 4<<10 {
		t.Fatalf("%d and %d bytes do not show the claim check", len(small), len(large))
	}
	cases := []struct {
		messageType, filename string
		payload               []byte
		records               int64
		from                  string
	}{
		{taskData, "in nats.zip", small, 5, "farm.task in stream FARM, sequence "},
		{taskData, "in nats and a claim check.zip", large, 1000, "farm.task in stream FARM, sequence "},
		{shapes, "in kafka.zip", small, 5, "lake.shape, partition "},
		{"doc:pdf", "in files.zip", large, 1000, "object documents/"},
		{octets, "poisoned.zip", small, 5, "queue.poison in stream QUEUE, sequence 1 (poisoned by broken in sink queue)"},
		{octets, "poisoned and large.zip", large, 1000, "queue.poison in stream QUEUE, sequence 2 (poisoned by broken in sink queue)"},
	}
	for _, c := range cases {
		w.send(c.messageType, c.filename, c.payload)
	}
	w.beside(t, []string{"trace", "--config", "agrimill.yaml", "in nats.zip"})
	found := map[string]journal.Message{}
	for _, c := range cases {
		found[c.filename] = w.done(c.filename)
		status, stdout, stderr := w.inspect(c.filename, "--output", "json")
		var summary content.Summary
		if err := json.Unmarshal([]byte(stdout), &summary); status != statusOK || err != nil || summary.Sets[0].Logs[0].Records != c.records {
			t.Errorf("%s: status %d, %v, %.200s\n%s", c.filename, status, err, stdout, stderr)
		}
		if want := c.filename + ", " + c.messageType; !strings.Contains(stderr, want) || !strings.Contains(stderr, c.from) {
			t.Errorf("%s: no %q and %q in %q", c.filename, want, c.from, stderr)
		}
	}
	for _, c := range cases { // the status page shows the same, from the same place
		status, body := w.contents(found[c.filename])
		if status != http.StatusOK || !strings.Contains(body, fmt.Sprintf(`"records":%d`, c.records)) || !strings.Contains(body, c.from) {
			t.Errorf("%s: status %d: %.300s", c.filename, status, body)
		}
	}
	id := found["in nats.zip"].MessageIDs[0]
	if _, stdout, stderr := w.inspect(id); !strings.Contains(stdout, "\nTSK1  Mowing  completed  CTR1      FRM1  PFD1   1\n") {
		t.Errorf("by its ID, as a table: %s\n%s", stdout, stderr)
	}
	if _, stdout, _ := w.inspect(id, "--output", "svg"); !strings.HasPrefix(stdout, "<svg ") || !strings.Contains(stdout, "<polyline ") {
		t.Errorf("as a picture:\n%s", stdout)
	}
	if _, _, stderr := w.inspect("in kafka.zip"); !strings.Contains(stderr, "farm.records in stream FARM") || !strings.Contains(stderr, "what a transform made") {
		t.Errorf("what the transform made is not told apart: %s", stderr)
	}
	// Several match: the newest one is told.
	w.send(taskData, "in nats.zip", farmdatatest.Archive(t, 7))
	testkit.Eventually(t, "the newer one is shown", func() bool {
		_, stdout, stderr := w.inspect("in nats.zip")
		return strings.Contains(stdout, " 7 records") && strings.Contains(stderr, "1 older message ")
	})

	w.send(octets, "printed.zip", small)
	w.send(octets, "filtered.zip", small)
	w.send(taskData, "no farm data.zip", []byte(mark))
	for name, want := range map[string]string{
		"printed.zip":      "the journal knows of no place that has it (it is delivered by printed; filtered by broken; confirmed), and the gateway keeps nothing",
		"filtered.zip":     "the journal knows of no place that has it (it is filtered by broken, printed; confirmed), and the gateway keeps nothing",
		"no farm data.zip": "its content cannot be shown: neither TaskData nor EFDI",
	} {
		w.done(name)
		status, stdout, stderr := w.inspect(name)
		if status != statusFailed || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, no %q in %s", name, status, want, stderr)
		}
	}
	if status, _, stderr := w.inspect("nobody sent this"); status != statusFailed || !strings.Contains(stderr, `nothing is known of "nobody sent this": the journal begins at 2`) {
		t.Errorf("status %d: %s", status, stderr)
	}
	w.gone(found)
}

// placeOf returns the first place where a message was stored.
func placeOf(w *storedWorld, m journal.Message) *journal.Location {
	w.Helper()
	for _, e := range m.Events {
		if e.At != nil {
			return e.At
		}
	}
	w.Fatalf("it was stored nowhere: %+v", m)
	return nil
}

// gone deletes what was stored.
func (w *storedWorld) gone(found map[string]journal.Message) {
	w.Helper()
	refused := func(name, want string) {
		w.Helper()
		status, stdout, stderr := w.inspect(found[name].MessageIDs[0])
		if status != statusFailed || stdout != "" || !strings.Contains(stderr, want) || !strings.Contains(stderr, "none of the places above has it") {
			w.Errorf("%s: status %d, no %q in %s", name, status, want, stderr)
		}
		code, body := w.contents(found[name])
		if code != http.StatusNotFound && code != http.StatusBadGateway || !strings.Contains(body, want) {
			w.Errorf("%s on the status page: status %d, no %q in %s", name, code, want, body)
		}
	}
	conn := testkit.Must(natstest.Connect(w.nats.URL()))(w)
	defer conn.Close()
	js := testkit.Must(natstest.JetStream(conn))(w)
	queue := testkit.Must(js.Stream(w.Context(), "QUEUE"))(w)
	must(w, queue.DeleteMsg(w.Context(), 1))
	refused("poisoned.zip", "there is nothing any more: it was deleted")

	must(w, os.RemoveAll(filepath.Join(w.dir, "payloads")))
	refused("in nats and a claim check.zip", "claim check")
	must(w, js.DeleteStream(w.Context(), "FARM"))
	refused("in nats.zip", "the stream was deleted")
	// Another message is where it was.
	if _, err := js.CreateStream(w.Context(), jetstream.StreamConfig{Name: "FARM", Subjects: []string{"farm.>"}, FirstSeq: placeOf(w, found["in nats.zip"]).Sequence}); err != nil {
		w.Fatal(err)
	}
	w.send(taskData, "a newer one.zip", farmdatatest.Archive(w.T, 9))
	w.done("a newer one.zip")
	refused("in nats.zip", "there is another message now")

	if err := filepath.WalkDir(filepath.Join(w.dir, "archive"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, ".json") {
			return err
		}
		return os.WriteFile(path, []byte(mark), 0o600)
	}); err != nil {
		w.Fatal(err)
	}
	refused("in files.zip", "the SHA-256 of the object differs")
	must(w, os.RemoveAll(filepath.Join(w.dir, "archive", "documents")))
	refused("in files.zip", "there is nothing any more: the object")

	client := testkit.Must(kgo.NewClient(kgo.SeedBrokers(w.kafka.Addr())))(w)
	defer client.Close()
	admin := kadm.NewClient(client)
	kept := kadm.Offsets{}
	for _, e := range found["in kafka.zip"].Events {
		if e.At != nil && e.At.Topic != "" {
			kept.AddOffset(e.At.Topic, e.At.Partition, e.At.Offset+1, -1)
		}
	}
	if _, err := admin.DeleteRecords(w.Context(), kept); err != nil {
		w.Fatal(err)
	}
	refused("in kafka.zip", "the retention time of the topic is over")
	if _, err := admin.DeleteTopics(w.Context(), "lake.shape"); err != nil {
		w.Fatal(err)
	}
	refused("in kafka.zip", "the topic was deleted")
}

func TestInspectTraceFails(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	t.Chdir(filepath.Dir(f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: \"127.0.0.1:1\"}\n")))
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{}, statusUsage, "expected exactly one ID or part of a filename"},
		{[]string{"x"}, statusUsage, "--config is required"},
		{[]string{"x", "--config", "agrimill.yaml", "--output", "png"}, statusUsage, "must be table, json or svg"},
		{[]string{"x", "--config", "agrimill.yaml", "--devices", "absent"}, statusFailed, "--devices: stat absent"},
		{[]string{"x", "--config", "agrimill.yaml"}, statusFailed, "no agrimill answers at 127.0.0.1:1"},
	} {
		status, stdout, stderr := f.agrimill(append([]string{"inspect", "trace"}, c.args...)...)
		if status != c.status || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("inspect trace %q: status %d, want %d with %q: %s", c.args, status, c.status, c.want, stderr)
		}
	}
}
