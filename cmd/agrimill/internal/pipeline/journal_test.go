package pipeline_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
)

// The journal knows of each message what its routes did, where each sink stored it, and that it was
// confirmed: in NATS, Kafka and a bucket, filtered, poisoned, and on the way to the gateway. It
// outlives a reload.
func TestJournal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cluster := kafkatest.Start(t, kfake.SeedTopics(1, "agrimill.data"))
	bucket := t.TempDir()
	config := func(extra string) string {
		return w.head() + strings.Replace(w.natsSink(), "poison:", fmt.Sprintf(`  cluster: {kafka: {brokers: %q, topic_prefix: agrimill}}
  files: {blob: {url: "file://%s"}}
poison:`, cluster.Addr(), bucket), 1) + fmt.Sprintf(`
routes:
  - {name: to-nats, from: {gateway: %[1]q}, to: {sink: farm, topic: tasks}}
  - {name: to-kafka, from: {gateway: %[1]q}, to: {sink: cluster, topic: data}}
  - {name: to-files, from: {gateway: %[1]q}, to: {sink: files, topic: tasks}}
  - {name: big-only, from: {gateway: %[1]q}, filter: {expr: 'filename == "another.zip"'}, to: {sink: farm}}
  - {name: no-value, from: {gateway: %[2]q}, to: {sink: farm, topic: "{meta:nobody-sets-this}"}}
`, taskData, shapes) + extra
	}
	b := w.start(config(strings.TrimPrefix(w.outRoute(), "\nroutes:")))
	b.waitReady()
	send := func(messageType, name string) {
		t.Helper()
		testkit.Must(w.gate.Send(gatewaytest.SendRequest{
			From: w.sender.ID, MessageType: messageType, Filename: name, Payload: []byte(mark + name),
		}))(t)
	}
	send(taskData, "Field 1.zip")
	send(shapes, "Field 2.zip")
	w.waitConfirmed()
	one := func(query, state string) (m journal.Message) {
		t.Helper()
		var trace journal.Trace
		testkit.Eventually(w, fmt.Sprintf("%q is %s", query, state), func() bool {
			trace = b.Journal().Trace(query, journal.Only{}, 10)
			return len(trace.Messages) == 1 && trace.Messages[0].State == state
		})
		return trace.Messages[0]
	}
	places := func(m journal.Message) map[string]string {
		list := map[string]string{}
		for _, e := range m.Events {
			if e.Step == journal.StepStored {
				list[e.Route] = e.Place
			}
		}
		return list
	}
	m := one("field 1", "delivered by to-files, to-kafka, to-nats; filtered by big-only; confirmed")
	for route, want := range map[string]string{
		"to-nats":  `^agrimill\.tasks in stream AGRIMILL, sequence [1-9]\d*$`,
		"to-kafka": `^agrimill\.data, partition 0, offset 0$`,
		"to-files": `^object .+`,
	} {
		if got := places(m)[route]; !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s stored it at %q, want %s", route, got, want)
		}
	}
	if len(m.Unseen) != 1 || m.Unseen[0] != (journal.Unseen{Route: "no-value", Why: "takes " + shapes}) {
		t.Errorf("routes that never saw it: %+v", m.Unseen)
	}
	m = one("field 2", "poisoned by no-value; confirmed")
	if i := slices.IndexFunc(m.Events, func(e journal.Event) bool { return e.Step == journal.StepPoisoned }); i < 0 || !strings.Contains(m.Events[i].Text, "nobody-sets-this") {
		t.Errorf("why it was poisoned: %+v", m.Events)
	}

	b.reload(config(strings.TrimPrefix(strings.Replace(w.outRoute(), "name: back", "name: way-back", 1), "\nroutes:")))
	one("field 1", "delivered by to-files, to-kafka, to-nats; filtered by big-only; confirmed")
	id := w.put("out.task", taskData)
	// It comes back from the gateway as another message with the same context ID.
	var both []journal.Message
	testkit.Eventually(w, "both ways are known", func() bool {
		both = b.Journal().Trace(id, journal.Only{}, 10).Messages
		return len(both) == 2 && both[0].State != "" && !strings.Contains(both[0].State+both[1].State, "handled")
	})
	for _, m := range both {
		if m.Delivery == "" {
			continue
		}
		if got := places(m)["way-back"]; m.State != "delivered by way-back" || got != "gateway, context ID "+id {
			t.Errorf("%s, to %q, want the context ID %s", m.State, got, id)
		}
	}
	b.mustStop()
}

// What a broker has acknowledged, and lost with its power, is listed by ID, also if it stores others at once, and not what another
// broker has in a stream of that name.
func TestJournalListsWhatABrokerLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var dir string
	server := natstest.Start(t, func(o *server.Options) { dir = o.StoreDir })
	b := w.start(w.head() + strings.Replace(w.natsSink(), "poison:", fmt.Sprintf("  forgets: {nats: {url: %q}}\npoison:", server.URL()), 1) + `
routes:
  - {name: keeps, from: {gateway: all}, to: {sink: farm}}
  - {name: forgets, from: {gateway: all}, to: {sink: forgets}}
`)
	b.waitReady()
	send := func(names ...string) {
		t.Helper()
		for _, name := range names {
			testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Filename: name, Payload: []byte(mark + name)}))(t)
		}
	}
	send("a.zip")
	w.waitConfirmed()
	server.Stop()
	old := filepath.Join(t.TempDir(), "old")
	testkit.NoError(t, os.CopyFS(old, os.DirFS(dir)))
	server.Restart()
	send("b.zip", "c.zip")
	w.waitConfirmed()
	server.Stop()
	testkit.NoError(t, os.RemoveAll(dir))
	testkit.NoError(t, os.CopyFS(dir, os.DirFS(old)))
	send("d.zip", "e.zip", "f.zip")
	server.Restart()
	w.waitConfirmed()
	var lost []string
	for _, m := range b.Journal().Trace(journal.LostQuery, journal.Only{}, 10).Messages {
		lost = append(lost, m.Filename+": "+m.State)
	}
	slices.Sort(lost)
	testkit.Equal(t, lost, []string{"b.zip: delivered by keeps; lost by the broker of forgets; confirmed", "c.zip: delivered by keeps; lost by the broker of forgets; confirmed"})
	b.mustStop()
}

// With a file, what became of messages is known after a restart. A replay beside the running process leaves the file alone.
func TestJournalInAFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text := w.head() + w.natsSink() + fmt.Sprintf("journal: {path: %q}\nroutes:\n  - {name: farm-data, from: {gateway: all}, to: {sink: farm}}\n", filepath.Join(t.TempDir(), "journal.bbolt"))
	b := w.start(text)
	b.waitReady()
	testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Filename: "Field 1.zip", Payload: []byte(mark)}))(t)
	w.waitConfirmed()
	beside := testkit.Must(pipeline.NewReplayer(t.Context(), w.parse(text), nil, pipeline.Options{}))(t)
	testkit.NoError(t, beside.Close())
	b.mustStop()
	again := w.start(text)
	again.waitReady()
	if found := again.Journal().Trace("field 1", journal.Only{}, 10).Messages; len(found) != 1 || found[0].State != "delivered by farm-data; confirmed" {
		t.Errorf("after a restart: %+v", found)
	}
	again.mustStop()
}
