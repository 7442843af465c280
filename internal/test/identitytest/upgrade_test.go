package identitytest

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sinks/nats/kvstore"
	"github.com/agrimill/agrimill/sinks/nats/poisonqueue"
)

// former is where an earlier version has left its state; see the README there.
const former = "testdata/e2f8d9d"

func readJSON[T any](t *testing.T, name string) (value T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(former, name))
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// delivered is a message that the earlier version has handled.
type delivered struct {
	Metadata map[string]string
	Payload  []byte
}

// openFormerStore opens a copy of the store that the earlier version has written.
func openFormerStore(t *testing.T) *boltstore.Store {
	t.Helper()
	packed, err := os.Open(filepath.Join(former, "dedup.db.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packed.Close() }() // was only read
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dedup.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := boltstore.New(boltstore.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	return store // closed by its router
}

// runRouter runs a router with one route until stop is called.
func runRouter(t *testing.T, config router.Config, route router.Route) (r *router.Router, stop func()) {
	t.Helper()
	r, err := router.New(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Add(route); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }() // ends with ctx
	<-r.Running()
	return r, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// TestUpgradedKeys: what an earlier version has recorded as handled is recognized when it
// is delivered again, for one TTL after the start.
func TestUpgradedKeys(t *testing.T) {
	t.Parallel()
	handled := readJSON[[]delivered](t, "handled.json")
	if len(handled) != 5 {
		t.Fatalf("%d messages, want 5", len(handled))
	}
	synctest.Test(t, func(t *testing.T) {
		const ttl = 24 * time.Hour
		b := &broker{ids: map[string]bool{}, stored: map[string][]*message.Message{}}
		from := source{make(chan *message.Message)}
		_, stop := runRouter(t, router.Config{Poison: b, Dedup: router.DedupSettings{Store: openFormerStore(t), TTL: ttl}}, router.Route{
			Name: "farm", From: from, Topic: "ALL_DATA", To: b, ToTopic: "out",
		})
		defer stop()
		deliver := func(d delivered, id string) (stored int) {
			before := len(b.in("out"))
			msg := message.NewMessage("another uuid", slices.Clone(d.Payload))
			for key, value := range d.Metadata {
				msg.Metadata[key] = value
			}
			if id != "" {
				msg.Metadata[gateway.KeyMessageID], msg.Metadata[gateway.KeyContextID] = id, id
				delete(msg.Metadata, gateway.KeyMessageIDs)
			}
			from.messages <- msg
			select {
			case <-msg.Acked():
			case <-msg.Nacked():
				t.Errorf("nacked: %q", d.Payload)
			}
			return len(b.in("out")) - before
		}
		for round := range 2 {
			for _, d := range handled {
				if n := deliver(d, ""); n != 0 {
					t.Errorf("round %d: %d messages stored of %v %q, which the earlier version had handled", round, n, d.Metadata[gateway.KeyEventType], d.Payload)
				}
			}
			time.Sleep(ttl - time.Minute) // the second round is at the end of the TTL
		}
		time.Sleep(2 * time.Minute) // what was recognized is remembered like what was handled
		if n := deliver(handled[0], "another"); n != 1 {
			t.Errorf("%d messages stored of one that is new, want 1", n)
		}
		for _, d := range handled {
			for _, want := range []int{1, 0} { // by its new key from now on
				if n := deliver(d, ""); n != want {
					t.Errorf("after the TTL: %d messages stored of %q, want %d", n, d.Payload, want)
				}
			}
		}
	})
}

// TestUpgradedKeysOfABroker: what an earlier version has recorded of messages that came by way of a broker is
// recognized when that redelivers them; what was stored after the start is new.
func TestUpgradedKeysOfABroker(t *testing.T) {
	t.Parallel()
	handled := readJSON[[]delivered](t, "handled.json")
	synctest.Test(t, func(t *testing.T) {
		b := &broker{ids: map[string]bool{}, stored: map[string][]*message.Message{}}
		from := source{make(chan *message.Message)}
		before := time.Now().Add(-time.Hour)
		_, stop := runRouter(t, router.Config{Poison: b, Dedup: router.DedupSettings{Store: openFormerStore(t)}}, router.Route{
			Name: "farm", From: from, Topic: "ALL_DATA", To: b, ToTopic: "out",
		})
		defer stop()
		for i, d := range handled {
			for j, stored := range []time.Time{before, before, time.Now()} {
				msg := message.NewMessage("another uuid", slices.Clone(d.Payload))
				for key, value := range d.Metadata {
					msg.Metadata[key] = value
				}
				place := fmt.Sprintf("nats S %d %d", i, stored.UnixNano())
				msg.SetContext(msgctx.With(context.Background(), msgctx.Value{Delivery: place, Stored: stored}))
				n := len(b.in("out"))
				from.messages <- msg
				<-msg.Acked()
				if got, want := len(b.in("out"))-n, j/2; got != want {
					t.Errorf("%d messages stored of %s, want %d", got, place, want)
				}
			}
		}
	})
}

// TestUpgradedNamesOfABroker: what a version has handled that named the records of Kafka without their cluster is
// recognized when it comes again under the name with it, for one TTL; what was stored after the start is new, and so is
// the record of another cluster from then on.
func TestUpgradedNamesOfABroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 24 * time.Hour
		path := filepath.Join(t.TempDir(), "dedup.db")
		b := &broker{ids: map[string]bool{}, stored: map[string][]*message.Message{}}
		from := source{make(chan *message.Message)}
		run := func() (stop func()) {
			store, err := boltstore.New(boltstore.Config{Path: path}) // closed by the router
			if err != nil {
				t.Fatal(err)
			}
			_, stop = runRouter(t, router.Config{Poison: b, Dedup: router.DedupSettings{Store: store, TTL: ttl}}, router.Route{
				Name: "farm", From: from, Topic: "ALL_DATA", To: b, ToTopic: "out",
			})
			return stop
		}
		deliver := func(name, former string, at time.Time) (stored int) {
			t.Helper()
			before := len(b.in("out"))
			msg := message.NewMessage("uuid", []byte("payload"))
			msg.SetContext(msgctx.With(context.Background(), msgctx.Value{Delivery: name, Former: former, Stored: at}))
			from.messages <- msg
			<-msg.Acked()
			return len(b.in("out")) - before
		}
		const was, is, other = "kafka reports 0 7 1000", "kafka cluster reports 0 7 1000", "kafka another reports 0 7 1000"
		at := time.Now().Add(-time.Minute)
		stop := run()
		if n := deliver(was, "", at); n != 1 {
			t.Fatalf("%d messages stored, want 1", n)
		}
		stop()

		defer run()()
		for _, d := range []struct {
			name, former string
			at           time.Time
			want         int
		}{
			{is, was, at, 0},
			{is, was, at, 0}, // by its own name
			{other + "1", was + "1", at, 1},
			{other, was, time.Now(), 1},
			{other, was, at, 0},
		} {
			if n := deliver(d.name, d.former, d.at); n != d.want {
				t.Errorf("%d messages stored of %s, stored at %v, want %d", n, d.name, d.at, d.want)
			}
		}
		time.Sleep(ttl + time.Minute)
		if n := deliver("kafka third reports 0 7 1000", was, at); n != 1 {
			t.Errorf("%d messages stored of another cluster after the TTL, want 1", n)
		}
	})
}

// bucketOf is a server with an empty bucket of an earlier version.
func bucketOf(t *testing.T, config jetstream.StreamConfig) (*natsgo.Conn, jetstream.JetStream) {
	t.Helper()
	conn, err := natsgo.Connect(natstest.Start(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	return conn, js
}

// TestUpgradedBucket: what an earlier version has recorded in a bucket is recognized, also when
// another payload was seen under its context ID since, and what it was killed with is
// handled.
func TestUpgradedBucket(t *testing.T) {
	t.Parallel()
	handled := readJSON[[]delivered](t, "handled.json")
	former := readJSON[struct {
		Config  jetstream.StreamConfig
		Entries []struct {
			Subject string
			Headers map[string][]string
			Data    []byte
		}
	}](t, "kv.json")
	conn, js := bucketOf(t, former.Config)
	for _, e := range former.Entries {
		if _, err := js.PublishMsg(t.Context(), &natsgo.Msg{Subject: e.Subject, Header: e.Headers, Data: e.Data}); err != nil {
			t.Fatal(err)
		}
	}
	store, err := kvstore.New(t.Context(), kvstore.Config{Conn: conn})
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{ids: map[string]bool{}, stored: map[string][]*message.Message{}}
	from := source{make(chan *message.Message)}
	_, stop := runRouter(t, router.Config{Poison: b, Dedup: router.DedupSettings{Store: store}}, router.Route{
		Name: "farm", From: from, Topic: "ALL_DATA", To: b, ToTopic: "out",
	})
	unfinished := handled[0]
	unfinished.Payload = []byte("unfinished")
	for range 2 {
		for _, d := range append(slices.Clone(handled), unfinished) {
			for acked := false; !acked; {
				msg := message.NewMessage("another uuid", slices.Clone(d.Payload))
				for key, value := range d.Metadata {
					msg.Metadata[key] = value
				}
				if &d.Payload[0] == &unfinished.Payload[0] {
					msg.Metadata[gateway.KeyMessageID] = "another"
				}
				from.messages <- msg
				select {
				case <-msg.Acked():
					acked = true
				case <-msg.Nacked():
				}
			}
		}
	}
	stop()
	var got []string
	for _, m := range b.in("out") {
		got = append(got, string(m.Payload))
	}
	if !slices.Equal(got, []string{"unfinished"}) {
		t.Errorf("stored: %q, want what was not finished, once", got)
	}
}

// TestUpgradedReservation: what an earlier version is handling beside this one is held back until that has committed it, or
// lets it go.
func TestUpgradedReservation(t *testing.T) {
	t.Parallel()
	d := readJSON[[]delivered](t, "handled.json")[0]
	former := readJSON[struct {
		Config  jetstream.StreamConfig
		Entries []struct{ Subject string }
	}](t, "kv.json")
	key := former.Entries[len(former.Entries)-1].Subject // of what it was killed with
	for name, end := range map[string]*natsgo.Msg{
		"committed": {Subject: key, Data: []byte("c")},
		"let go":    {Subject: key, Header: natsgo.Header{"KV-Operation": {"DEL"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, js := bucketOf(t, former.Config)
			if _, err := js.Publish(t.Context(), key, []byte("r")); err != nil {
				t.Fatal(err)
			}
			store, err := kvstore.New(t.Context(), kvstore.Config{Conn: conn})
			if err != nil {
				t.Fatal(err)
			}
			b := &broker{ids: map[string]bool{}, stored: map[string][]*message.Message{}}
			from := source{make(chan *message.Message)}
			r, stop := runRouter(t, router.Config{Poison: b, Dedup: router.DedupSettings{Store: store}}, router.Route{
				Name: "farm", From: from, Topic: "ALL_DATA", To: b, ToTopic: "out",
			})
			defer stop()
			deliver := func() *message.Message {
				msg := message.NewMessage("another uuid", []byte("unfinished"))
				for key, value := range d.Metadata {
					msg.Metadata[key] = value
				}
				msg.Metadata[gateway.KeyMessageID] = "another"
				from.messages <- msg
				return msg
			}
			msg := deliver()
			testkit.Eventually(t, "it is held back", func() bool { return r.Health()[0].WaitingForCopies == 1 })
			if _, err := js.PublishMsg(t.Context(), end); err != nil {
				t.Fatal(err)
			}
			for acked := false; !acked; {
				select {
				case <-msg.Acked():
					acked = true
				case <-msg.Nacked():
					msg = deliver()
				}
			}
			want := 1
			if name == "committed" {
				want = 0
			}
			if got := len(b.in("out")); got != want {
				t.Errorf("%d messages are stored, want %d", got, want)
			}
		})
	}
}

// TestUpgradedPoisonQueue: the records of an earlier version can be listed and replayed.
func TestUpgradedPoisonQueue(t *testing.T) {
	t.Parallel()
	type record struct {
		Subject string
		Headers map[string][]string
		Payload []byte
	}
	records := readJSON[[]record](t, "poison.json")
	server := natstest.Start(t)
	conn, err := natsgo.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "AGRIMILL", Subjects: []string{"agrimill.>"}}); err != nil {
		t.Fatal(err)
	}
	var payloads []string
	for _, r := range records {
		if _, err := js.PublishMsg(t.Context(), &natsgo.Msg{Subject: r.Subject, Header: r.Headers, Data: r.Payload}); err != nil {
			t.Fatal(err)
		}
		payloads = append(payloads, string(r.Payload))
	}

	sink, err := nats.New(nats.Config{URL: server.URL()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	from := source{make(chan *message.Message)}
	r, stop := runRouter(t, router.Config{Poison: sink, Dedup: router.DedupSettings{Store: openFormerStore(t)}}, router.Route{
		Name: "farm", From: from, Topic: "ALL_DATA", To: sink, ToTopic: "out",
	})
	defer stop()
	list := func(topic string) (list []router.Poisoned) {
		queue, err := poisonqueue.New(poisonqueue.Config{Conn: conn, Topic: topic})
		if err != nil {
			t.Fatal(err)
		}
		for p, err := range queue.Messages(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, p)
		}
		return list
	}
	poisoned := list("")
	if len(poisoned) != len(records) || len(poisoned) != 3 {
		t.Fatalf("%d records are listed, want %d", len(poisoned), len(records))
	}
	for i, p := range poisoned {
		if p.Route != "farm" || p.Topic != "ALL_DATA" || p.Count != 1 || p.Attempts != 1 || p.Class != "permanent" || p.Reason != "not an object" ||
			p.First.IsZero() || p.Last.IsZero() || string(p.Message.Payload) != payloads[i] {
			t.Errorf("record %d: %+v", i, p)
		}
	}
	queue, err := poisonqueue.New(poisonqueue.Config{Conn: conn})
	if err != nil {
		t.Fatal(err)
	}
	report, err := r.ReplaySelected(t.Context(), queue, router.PoisonSelection{All: true})
	if err != nil || report.Sent != 3 {
		t.Errorf("replay: %+v, %v", report, err)
	}
	if left := list(""); len(left) > 0 {
		t.Errorf("%d records are left", len(left))
	}
	var got []string
	for _, p := range list("out") {
		got = append(got, string(p.Message.Payload))
		if p.Message.Metadata[sinks.KeyDedupID] == "" {
			t.Errorf("%q has no name", p.Message.Payload)
		}
	}
	if !slices.Equal(got, payloads) {
		t.Errorf("stored: %q, want %q", got, payloads)
	}
}
