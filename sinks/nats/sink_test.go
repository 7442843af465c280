package nats_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

func newSink(t *testing.T, config nats.Config, logger watermill.LoggerAdapter) *nats.Sink {
	t.Helper()
	sink := testkit.Must(nats.New(config, logger))(t)
	t.Cleanup(func() { _ = sink.Close() })
	return sink
}

func newMessage(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), []byte(payload))
}

func storedCount(t *testing.T, js jetstream.JetStream, name string) uint64 {
	t.Helper()
	stream := testkit.Must(js.Stream(t.Context(), name))(t)
	return stream.CachedInfo().State.Msgs
}

func TestProvisionCreates(t *testing.T) {
	s := natstest.Start(t)
	newSink(t, nats.Config{
		Connection: nats.Connection{URL: s.URL()}, Stream: "FARM", SubjectPrefix: "farm.data", MaxAge: time.Hour, MaxBytes: 1 << 20, MaxMessages: 100,
		MaxMessageSize: 5000, DedupWindow: 20 * time.Minute, Retention: jetstream.WorkQueuePolicy,
	}, nil)
	_, js := natstest.Client(t, s.URL())
	stream := testkit.Must(js.Stream(t.Context(), "FARM"))(t)
	have := stream.CachedInfo().Config
	if !slices.Equal(have.Subjects, []string{"farm.data.>"}) || have.MaxAge != time.Hour || have.MaxBytes != 1<<20 ||
		have.MaxMsgs != 100 || have.MaxMsgSize != 5000 || have.Duplicates != 20*time.Minute ||
		have.Retention != jetstream.WorkQueuePolicy || have.Storage != jetstream.FileStorage ||
		have.Discard != jetstream.DiscardNew || have.Replicas != 1 {
		t.Errorf("got %+v", have)
	}
	// The same again is no difference.
	log := testkit.NewLog()
	newSink(t, nats.Config{
		Connection: nats.Connection{URL: s.URL()}, Stream: "FARM", SubjectPrefix: "farm.data", MaxAge: time.Hour, MaxBytes: 1 << 20, MaxMessages: 100,
		MaxMessageSize: 5000, DedupWindow: 20 * time.Minute, Retention: jetstream.WorkQueuePolicy, Synced: sinks.SyncedAlways,
	}, log)
	if text := log.String(); text != "" {
		t.Errorf("logged %s", text)
	}
}

// withStream starts a server with a stream of the default name.
func withStream(t *testing.T, cfg jetstream.StreamConfig) (url string, js jetstream.JetStream) {
	t.Helper()
	s := natstest.Start(t)
	_, js = natstest.Client(t, s.URL())
	cfg.Name = nats.DefaultStream
	testkit.Must(js.CreateStream(t.Context(), cfg))(t)
	return s.URL(), js
}

func wantLogged(t *testing.T, log *testkit.Log, texts ...string) {
	t.Helper()
	for _, want := range texts {
		testkit.Contains(t, log.String(), want)
	}
}

func TestProvisionNoneWithoutStream(t *testing.T) {
	s := natstest.Start(t)
	_, err := nats.New(nats.Config{Connection: nats.Connection{URL: s.URL()}, Provision: nats.ProvisionNone}, nil)
	if !errors.Is(err, sinks.ErrUnavailable) || !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("got %v", err)
	}
}

// TestProvisionOtherSettings: they stay, with a warning, or are changed on
// demand.
func TestProvisionOtherSettings(t *testing.T) {
	url, js := withStream(t, jetstream.StreamConfig{
		Subjects: []string{"agrimill.>", "more"}, MaxAge: time.Hour, Metadata: map[string]string{"owner": "ops"},
	})
	log := testkit.NewLog()
	newSink(t, nats.Config{Connection: nats.Connection{URL: url}}, log)
	wantLogged(t, log, "max age 1h0m0s (configured: 0s)", "dedup window 2m0s (configured: 10m0s)",
		"the dedup window of 2m0s is short", "set provision to update")

	newSink(t, nats.Config{Connection: nats.Connection{URL: url}, Provision: nats.ProvisionUpdate, MaxAge: 2 * time.Hour}, nil)
	stream := testkit.Must(js.Stream(t.Context(), nats.DefaultStream))(t)
	have := stream.CachedInfo().Config
	if have.MaxAge != 2*time.Hour || have.Duplicates != nats.DefaultDedupWindow || have.Metadata["owner"] != "ops" || !slices.Contains(have.Subjects, "more") {
		t.Errorf("after the update: %+v", have)
	}
}

func TestProvisionOtherSubjects(t *testing.T) {
	url, _ := withStream(t, jetstream.StreamConfig{Subjects: []string{"agrimill.a.*", "other.>"}})
	for _, provision := range []nats.Provision{nats.ProvisionCreate, nats.ProvisionNone} {
		if _, err := nats.New(nats.Config{Connection: nats.Connection{URL: url}, Provision: provision}, nil); !errors.Is(err, nats.ErrStream) {
			t.Errorf("Provision %d: got %v, want ErrStream", provision, err)
		}
	}
	for _, subjects := range [][]string{{"other.>"}, {"agrimill.*.*", "agrimill.poison"}} {
		url, _ = withStream(t, jetstream.StreamConfig{Subjects: subjects})
		sink := newSink(t, nats.Config{Connection: nats.Connection{URL: url}, Provision: nats.ProvisionUpdate}, nil)
		if err := sink.Publish("topic", newMessage("x")); err != nil {
			t.Errorf("after the update of the subjects %v: %v", subjects, err)
		}
	}
}

// A mirror is said to be one: it takes no messages and can have no subjects.
func TestProvisionMirror(t *testing.T) {
	url, js := withStream(t, jetstream.StreamConfig{Subjects: []string{"other.>"}})
	mirror := jetstream.StreamConfig{Name: "COPY", Mirror: &jetstream.StreamSource{Name: nats.DefaultStream}}
	testkit.Must(js.CreateStream(t.Context(), mirror))(t)
	for _, provision := range []nats.Provision{nats.ProvisionCreate, nats.ProvisionUpdate, nats.ProvisionNone} {
		_, err := nats.New(nats.Config{Connection: nats.Connection{URL: url}, Stream: "COPY", Provision: provision}, nil)
		if !errors.Is(err, nats.ErrStream) || !strings.Contains(err.Error(), "mirrors the stream "+nats.DefaultStream) {
			t.Errorf("Provision %d: got %v", provision, err)
		}
	}
}

// A stream that is missing cannot have subjects of another one, which would get the messages instead.
func TestProvisionOverlap(t *testing.T) {
	for _, subject := range []string{"agrimill.>", "agrimill.a.b", "agrimill.*.poison", "agrimill.*"} {
		server := natstest.Start(t)
		_, js := natstest.Client(t, server.URL())
		testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{subject}}))(t)
		for _, config := range []nats.Config{{}, {Provision: nats.ProvisionUpdate}, {ReadOnly: true}} {
			config.URL = server.URL()
			if _, err := nats.New(config, nil); !errors.Is(err, nats.ErrStream) || !strings.Contains(err.Error(), "OTHER") {
				t.Errorf("%s, provision %v: got %v, want ErrStream that names OTHER", subject, config.Provision, err)
			}
		}
		newSink(t, nats.Config{Connection: nats.Connection{URL: server.URL()}, Stream: "MORE", SubjectPrefix: "else.where"}, nil)
		for _, readOnly := range []bool{true, false} { // MORE would have to get the subjects of OTHER
			_, err := nats.New(nats.Config{Connection: nats.Connection{URL: server.URL()}, Stream: "MORE", Provision: nats.ProvisionUpdate, ReadOnly: readOnly}, nil)
			if !errors.Is(err, nats.ErrStream) || !strings.Contains(err.Error(), "OTHER") {
				t.Errorf("%s, an update: got %v, want ErrStream that names OTHER", subject, err)
			}
		}
	}
}

// Whoever only looks creates and changes nothing; a stream that is to be changed counts as changed.
func TestReadOnly(t *testing.T) {
	url, js := withStream(t, jetstream.StreamConfig{Subjects: []string{"other.>"}, MaxAge: time.Minute})
	log := testkit.NewLog()
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: url}, Provision: nats.ProvisionUpdate, ReadOnly: true}, log)
	if got := sink.Describe().Durability; got != sinks.DurabilityDisk || strings.Contains(log.String(), "durability none") {
		t.Errorf("the stream does not count as changed: %s; logged:\n%s", got, log)
	}
	if stream, err := js.Stream(t.Context(), nats.DefaultStream); err != nil || !slices.Equal(stream.CachedInfo().Config.Subjects, []string{"other.>"}) {
		t.Errorf("the stream was changed: %v", err)
	}
	if _, err := nats.New(nats.Config{Connection: nats.Connection{URL: url}, Stream: "NEW", ReadOnly: true}, nil); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("got %v, want ErrStreamNotFound", err)
	}
	if _, err := js.Stream(t.Context(), "NEW"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("got %v, want no stream", err)
	}
}

// TestProvisionUnusable: a stream that does not acknowledge messages, or has them nowhere or under another subject,
// where the poison queue would not find them.
func TestProvisionUnusable(t *testing.T) {
	for name, stream := range map[string]jetstream.StreamConfig{
		"retention interest": {Retention: jetstream.InterestPolicy},
		"no_ack":             {NoAck: true},
		"allow_msg_counter":  {AllowMsgCounter: true},
		"subject_transform":  {SubjectTransform: &jetstream.SubjectTransformConfig{Source: "agrimill.>", Destination: "zzz.>"}},
	} {
		stream.Subjects = []string{"agrimill.>", "more.>"}
		url, _ := withStream(t, stream)
		for _, provision := range []nats.Provision{nats.ProvisionCreate, nats.ProvisionNone} {
			_, err := nats.New(nats.Config{Connection: nats.Connection{URL: url}, Provision: provision}, nil)
			if !errors.Is(err, nats.ErrStream) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s, provision %v: got %v, want ErrStream that names it", name, provision, err)
			}
		}
	}
}

// TestProvisionInterestUpdated: a stream whose retention may be changed becomes one that keeps messages.
func TestProvisionInterestUpdated(t *testing.T) {
	url, js := withStream(t, jetstream.StreamConfig{Subjects: []string{"agrimill.>"}, Retention: jetstream.InterestPolicy})
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: url}, Provision: nats.ProvisionUpdate}, nil)
	testkit.NoError(t, sink.Publish("topic", newMessage("1")))
	if got := storedCount(t, js, nats.DefaultStream); got != 1 {
		t.Errorf("the stream keeps %d messages, want 1", got)
	}
}

// TestStreamThatDeletesAcknowledgedMessages: whatever an existing stream deletes
// to make room for later messages is reported at the start, by Describe, and when the
// stream is changed while the sink runs.
func TestStreamThatDeletesAcknowledgedMessages(t *testing.T) {
	for name, c := range map[string]struct {
		stream jetstream.StreamConfig
		kept   uint64 // of ten messages; 0: fewer, by sizes that are the server's affair
		want   string // empty: the stream keeps them, or does not acknowledge
	}{
		"messages per subject": {jetstream.StreamConfig{Discard: jetstream.DiscardNew, MaxMsgsPerSubject: 1}, 1, "max_msgs_per_subject"},
		"messages":             {jetstream.StreamConfig{MaxMsgs: 3}, 3, "discard old"},
		"bytes":                {jetstream.StreamConfig{MaxBytes: 300}, 0, "discard old"},
		"age":                  {jetstream.StreamConfig{MaxAge: 30 * time.Minute, Duplicates: time.Minute}, 10, "deleted after 30m0s"},
		"refuses per subject":  {jetstream.StreamConfig{Discard: jetstream.DiscardNew, MaxMsgsPerSubject: 1, DiscardNewPerSubject: true}, 1, ""},
		"refuses":              {jetstream.StreamConfig{Discard: jetstream.DiscardNew, MaxMsgs: 3}, 3, ""},
		"discard old, no end":  {jetstream.StreamConfig{Discard: jetstream.DiscardOld}, 10, ""},
		"a long age":           {jetstream.StreamConfig{MaxAge: 48 * time.Hour}, 10, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.stream.Subjects = []string{"agrimill.>"}
			url, js := withStream(t, c.stream)
			log := testkit.NewLog()
			sink := newSink(t, nats.Config{Connection: nats.Connection{URL: url}, Synced: sinks.SyncedAlways}, log)
			acked := 0
			for i := range 10 {
				if sink.Publish("topic", newMessage(fmt.Sprint(i))) == nil {
					acked++
				}
			}
			if got := storedCount(t, js, nats.DefaultStream); got != c.kept && (c.kept > 0 || got >= uint64(acked)) {
				t.Errorf("the stream keeps %d messages, want %d", got, c.kept)
			}
			d := sink.Describe()
			if c.want == "" {
				if d.Durability != sinks.DurabilitySynced || strings.Contains(log.String(), "durability") || uint64(acked) != c.kept {
					t.Errorf("%d acknowledged, %d kept; Describe: %+v\nlogged:\n%s", acked, c.kept, d, log.String())
				}
				if c.stream.MaxAge > 0 && !strings.Contains(d.DurabilityNote, "48h") {
					t.Errorf("Describe does not tell the age: %+v", d)
				}
				return
			}
			if d.Durability != sinks.DurabilityNone || !strings.Contains(d.DurabilityNote, c.want) {
				t.Errorf("Describe: %+v, want none and %q", d, c.want)
			}
			wantLogged(t, log, "durability none: ", c.want)
		})
	}
}

// A stream that is changed while the sink runs is told once.
func TestStreamChanged(t *testing.T) {
	for want, stream := range map[string]jetstream.StreamConfig{
		"retention interest":                  {Discard: jetstream.DiscardNew, Retention: jetstream.InterestPolicy},
		"the last 5 messages of each subject": {Discard: jetstream.DiscardNew, MaxMsgsPerSubject: 5},
	} {
		url, js := withStream(t, jetstream.StreamConfig{Subjects: []string{"agrimill.>"}, Discard: jetstream.DiscardNew})
		log := testkit.NewLog()
		sink := newSink(t, nats.Config{Connection: nats.Connection{URL: url}, Synced: sinks.SyncedAlways}, log)
		stream.Name, stream.Subjects = nats.DefaultStream, []string{"agrimill.>"}
		testkit.Must(js.UpdateStream(t.Context(), stream))(t)
		for range 2 {
			testkit.NoError(t, sink.Health(t.Context()))
		}
		if got := sink.Describe(); got.Durability != sinks.DurabilityNone || !strings.Contains(got.DurabilityNote, want) {
			t.Errorf("Describe: %+v, want none and %q", got, want)
		}
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%q is told %d times:\n%s", want, n, log)
		}
	}
}

func TestWarnsAboutDurability(t *testing.T) {
	s := natstest.Start(t)
	for _, c := range []struct {
		name   string
		config nats.Config
		level  sinks.Durability
		want   string // in the log; empty = no warning
	}{
		{"disk", nats.Config{Stream: "A", SubjectPrefix: "a"}, sinks.DurabilityDisk, "sync_interval: always"},
		{"synced", nats.Config{Stream: "B", SubjectPrefix: "b", Synced: sinks.SyncedAlways}, sinks.DurabilitySynced, ""},
		{"memory", nats.Config{Stream: "C", SubjectPrefix: "c", Storage: jetstream.MemoryStorage, Synced: sinks.SyncedAlways}, sinks.DurabilityMemory, "use file storage"},
		{"short window", nats.Config{Stream: "D", SubjectPrefix: "d", Synced: sinks.SyncedAlways, DedupWindow: time.Minute}, sinks.DurabilitySynced, "dedup window of 1m0s is short"},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := testkit.NewLog()
			c.config.URL = s.URL()
			d := newSink(t, c.config, log).Describe()
			if d.Durability != c.level || d.DurabilityNote == "" || d.Name != "nats" || d.MaxMessageSize != 1<<20 {
				t.Errorf("Describe: %+v", d)
			}
			if text := log.String(); (c.want == "") != (text == "") || !strings.Contains(text, c.want) {
				t.Errorf("logged:\n%s\nwant %q", text, c.want)
			}
		})
	}
}

// TestReplicated runs three servers: a stream of three replicas stores what it
// acknowledged while one of them is down.
func TestReplicated(t *testing.T) {
	servers := natstest.StartCluster(t)
	log := testkit.NewLog()
	var sink *nats.Sink
	testkit.Eventually(t, "a stream of three replicas", func() bool { // the leader learns of its peers bit by bit
		var err error
		sink, err = nats.New(nats.Config{Connection: nats.Connection{URL: servers.URL()}, Replicas: 3, PublishTimeout: 2 * time.Second}, log)
		return err == nil
	})
	defer sink.Close()
	if got := sink.Describe().Durability; got != sinks.DurabilityReplicated {
		t.Errorf("durability %v", got)
	}
	if strings.Contains(log.String(), "durability") {
		t.Errorf("logged:\n%s", log.String())
	}
	var acked []string
	send := func(i int) {
		payload := fmt.Sprint(i)
		msg := newMessage(payload)
		msg.Metadata[gateway.KeyDedupID] = payload
		testkit.Eventually(t, "publish", func() bool {
			err := sink.Publish("topic", msg)
			if err != nil && !errors.Is(err, sinks.ErrUnavailable) {
				t.Fatalf("Publish: %v", err)
			}
			return err == nil
		})
		acked = append(acked, payload)
	}
	for i := range 20 {
		send(i)
	}
	servers[0].Stop() // maybe the leader, maybe the one the sink is connected to
	for i := range 20 {
		send(100 + i)
	}
	var got []string
	for _, raw := range readRaw(t, servers[1].URL(), "agrimill.topic") {
		got = append(got, string(raw.Data))
	}
	if !slices.Equal(got, acked) {
		t.Errorf("stored %v, acknowledged %v", got, acked)
	}
}

// TestOnTheWire looks at the headers as another client sees them.
func TestOnTheWire(t *testing.T) {
	s := natstest.Start(t)
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL()}}, nil)
	msg := message.NewMessage("the-uuid", []byte("payload"))
	msg.Metadata["plain"] = "Grünfläche 7"
	msg.Metadata["crlf"] = "a\r\nb"
	msg.Metadata["Nats-TTL"] = "1s"
	msg.Metadata[gateway.KeyDedupID] = "endpoint/context/digest"
	testkit.NoError(t, sink.Publish("tenant.type", msg))
	raw := readRaw(t, s.URL(), "agrimill.tenant.type")[0]
	want := natsgo.Header{
		"_watermill_message_uuid": {"the-uuid"},
		"plain":                   {"Grünfläche 7"},
		"crlf":                    {"=?utf-8?B?YQ0KYg==?="},
		"agrimill-key-Nats-TTL":   {"1s"},
		gateway.KeyDedupID:        {"endpoint/context/digest"},
		"Nats-Msg-Id":             {"endpoint/context/digest agrimill.tenant.type"},
	}
	for name, values := range want {
		if !slices.Equal(raw.Header[name], values) {
			t.Errorf("%s: got %q, want %q", name, raw.Header[name], values)
		}
	}
	if len(raw.Header) != len(want) {
		t.Errorf("got %v", raw.Header)
	}
}

// TestAcknowledgementLost is row 17 of the fault matrix: stored, but the
// acknowledgment does not arrive. The repeated publish is recognized.
func TestAcknowledgementLost(t *testing.T) {
	s := natstest.Start(t)
	proxy := natstest.NewProxy(t, s.URL())
	sink := newSink(t, nats.Config{
		Connection: nats.Connection{URL: proxy.URL(), Options: []natsgo.Option{natsgo.ReconnectWait(10 * time.Millisecond)}}, PublishTimeout: time.Second,
	}, nil)
	var messages []*message.Message
	for i := range 10 {
		msg := newMessage(fmt.Sprint(i))
		msg.Metadata[gateway.KeyDedupID] = fmt.Sprint("id", i)
		messages = append(messages, msg)
	}
	proxy.LoseReplies()
	testkit.ErrorIs(t, sink.Publish("topic", messages...), sinks.ErrUnavailable)
	_, js := natstest.Client(t, s.URL())
	testkit.Eventually(t, "all are stored", func() bool { return storedCount(t, js, nats.DefaultStream) == 10 })
	proxy.Cut()
	testkit.Eventually(t, "publish after the cut", func() bool { return sink.Publish("topic", messages...) == nil })
	if got := storedCount(t, js, nats.DefaultStream); got != 10 {
		t.Errorf("%d messages are stored, want 10", got)
	}
}

func TestStreamFull(t *testing.T) {
	s := natstest.Start(t)
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL()}, MaxMessages: 3}, nil)
	for range 3 {
		testkit.NoError(t, sink.Publish("topic", newMessage("x")))
	}
	testkit.ErrorIs(t, sink.Publish("topic", newMessage("x")), sinks.ErrUnavailable)
	_, js := natstest.Client(t, s.URL())
	stream := testkit.Must(js.Stream(t.Context(), nats.DefaultStream))(t)
	testkit.NoError(t, stream.Purge(t.Context()))
	if err := sink.Publish("topic", newMessage("x")); err != nil {
		t.Errorf("Publish after there is room: %v", err)
	}
}

func TestStreamGone(t *testing.T) {
	for _, c := range []struct {
		provision nats.Provision
		recovers  bool
	}{{nats.ProvisionCreate, true}, {nats.ProvisionUpdate, true}, {nats.ProvisionNone, false}} {
		t.Run(fmt.Sprint(c.provision), func(t *testing.T) {
			url, js := withStream(t, jetstream.StreamConfig{Subjects: []string{"agrimill.>"}})
			sink := newSink(t, nats.Config{Connection: nats.Connection{URL: url}, Provision: c.provision}, nil)
			testkit.NoError(t, js.DeleteStream(t.Context(), nats.DefaultStream))
			testkit.ErrorIs(t, sink.Publish("topic", newMessage("x")), sinks.ErrUnavailable)
			if !c.recovers {
				testkit.ErrorIs(t, sink.Health(t.Context()), sinks.ErrUnavailable)
				return
			}
			// The server removes the files of a deleted stream in the background, and the new
			// stream with them if it comes too early: then the sink makes it once more.
			testkit.EventuallyNil(t, func() error {
				if err := sink.Publish("topic", newMessage("x")); err != nil {
					return err
				}
				return sink.Health(t.Context())
			})
		})
	}
}

// The sink tells when its server is back.
func TestRecovered(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL(), Options: []natsgo.Option{natsgo.ReconnectWait(10 * time.Millisecond)}}}, nil)
	back := sink.Recovered()
	s.Stop()
	testkit.Eventually(t, "the connection is lost", func() bool { return sink.Health(t.Context()) != nil })
	// A server that is shutting down may take a connection for a moment, of which back tells.
	away := sink.Recovered()
	select {
	case <-away:
		t.Fatal("told while the server is away")
	default:
	}
	s.Restart()
	for _, told := range []<-chan struct{}{back, away} {
		testkit.Receive(t, "that it is back", told)
	}
	testkit.NoError(t, sink.Publish("topic", newMessage("x")))
}

func TestSizeLimits(t *testing.T) {
	s := natstest.Start(t)
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL(), Options: []natsgo.Option{natsgo.ReconnectWait(10 * time.Millisecond)}}}, nil)
	sized := func(payload, metadata int) *message.Message {
		msg := newMessage(strings.Repeat("x", payload))
		if metadata > 0 {
			msg.Metadata["m"] = strings.Repeat("y", metadata)
		}
		return msg
	}
	limit := int(sink.Describe().MaxMessageSize)
	// The header of such a message: version line, UUID, empty line.
	header := len("NATS/1.0\r\n_watermill_message_uuid: \r\n\r\n") + len(watermill.NewUUID())
	for _, c := range []struct {
		name string
		msg  *message.Message
		want error
	}{
		{"exactly max_payload", sized(limit-header, 0), nil},
		{"one byte above max_payload", sized(limit-header+1, 0), sinks.ErrTooLarge},
		{"headers at their limit", sized(0, 65535-header-len("m: \r\n")), nil},
		{"headers above their limit", sized(0, 65535-header-len("m: \r\n")+1), sinks.ErrTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.ErrorIs(t, sink.Publish("topic", c.msg), c.want)
		})
	}

	// Limits that change behind the sink's back.
	_, js := natstest.Client(t, s.URL())
	cfg := jetstream.StreamConfig{Name: nats.DefaultStream, Subjects: []string{"agrimill.>"}, MaxMsgSize: 1000}
	testkit.Must(js.UpdateStream(t.Context(), cfg))(t)
	if err := sink.Publish("topic", sized(2000, 0)); !errors.Is(err, sinks.ErrTooLarge) {
		t.Errorf("stream with a lower limit: got %v, want ErrTooLarge", err)
	}
	testkit.NoError(t, sink.Health(t.Context()))
	if got := sink.Describe().MaxMessageSize; got != 1000 {
		t.Errorf("after a look at the stream MaxMessageSize is %d", got)
	}
	s.Restart(func(o *server.Options) { o.MaxPayload = 500 })
	testkit.Eventually(t, "publish", func() bool { return sink.Publish("topic", sized(10, 0)) == nil })
	if err := sink.Publish("topic", sized(600, 0)); !errors.Is(err, sinks.ErrTooLarge) {
		t.Errorf("server with a lower limit: got %v, want ErrTooLarge", err)
	}
}

func TestMaxPending(t *testing.T) {
	s := natstest.Start(t)
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL()}, MaxPending: 2}, nil)
	var messages []*message.Message
	for i := range 500 {
		messages = append(messages, newMessage(fmt.Sprint(i)))
	}
	testkit.NoError(t, sink.Publish("topic", messages...))
	_, js := natstest.Client(t, s.URL())
	if got := storedCount(t, js, nats.DefaultStream); got != 500 {
		t.Errorf("%d messages are stored, want 500", got)
	}
}

// TestGivenConnection: Close leaves a connection that it was given as it was.
func TestGivenConnection(t *testing.T) {
	s := natstest.Start(t)
	conn, js := natstest.Client(t, s.URL())
	before := conn.NumSubscriptions()
	sink := testkit.Must(nats.New(nats.Config{Conn: conn}, nil))(t)
	testkit.NoError(t, sink.Publish("topic", newMessage("x")))
	testkit.NoError(t, sink.Close())
	if !conn.IsConnected() {
		t.Error("the connection is closed")
	}
	if got := storedCount(t, js, nats.DefaultStream); got != 1 {
		t.Errorf("%d messages are stored, want 1", got)
	}
	// One subscription is the connection's own, for answers.
	if got := conn.NumSubscriptions(); got > before+1 {
		t.Errorf("%d subscriptions are left", got-before)
	}

	// Disconnected, it may buffer; the sink does not let it.
	sink = newSink(t, nats.Config{Conn: conn}, nil)
	s.Stop()
	testkit.Eventually(t, "the loss of the connection", func() bool { return !conn.IsConnected() })
	if err := sink.Publish("topic", newMessage("x")); !errors.Is(err, sinks.ErrUnavailable) || !errors.Is(err, natsgo.ErrDisconnected) {
		t.Errorf("Publish: %v", err)
	}
	if n, err := conn.Buffered(); err == nil && n > 0 {
		t.Errorf("%d bytes are buffered", n)
	}
	conn.Close()
	if err := sink.Publish("topic", newMessage("x")); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("Publish on a closed connection: %v", err)
	}
}

func TestNewUnavailable(t *testing.T) {
	s := natstest.Start(t)
	s.Stop()
	_, err := nats.New(nats.Config{Connection: nats.Connection{URL: s.URL(), User: "farm", Password: "hunter2"}}, nil)
	testkit.ErrorIs(t, err, sinks.ErrUnavailable)
	if strings.Contains(err.Error(), "hunter2") {
		t.Error("the error holds the password")
	}
	s.Restart(func(o *server.Options) { o.JetStream = false })
	if _, err := nats.New(nats.Config{Connection: nats.Connection{URL: s.URL()}}, nil); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("no JetStream: %v", err)
	}
}

func TestAuthentication(t *testing.T) {
	user := testkit.Must(nkeys.CreateUser())(t)
	publicKey := testkit.Must(user.PublicKey())(t)
	seed := testkit.Must(user.Seed())(t)
	seedFile := filepath.Join(t.TempDir(), "user.nk")
	testkit.NoError(t, os.WriteFile(seedFile, seed, 0o600))
	operator, account, credentials := newAccount(t)
	_, system, _ := newAccount(t)
	system.Limits.JetStreamLimits = jwt.JetStreamLimits{} // not allowed there

	for _, c := range []struct {
		name   string
		server func(*server.Options)
		good   nats.Config
		bad    nats.Config
	}{
		{
			"user and password",
			func(o *server.Options) { o.Username, o.Password = "farm", "s3cret" },
			nats.Config{Connection: nats.Connection{User: "farm", Password: "s3cret"}},
			nats.Config{Connection: nats.Connection{User: "farm", Password: "hunter2"}},
		},
		{
			"token",
			func(o *server.Options) { o.Authorization = "s3cret" },
			nats.Config{Connection: nats.Connection{Token: "s3cret"}},
			nats.Config{Connection: nats.Connection{Token: "hunter2"}},
		},
		{
			"nkey",
			func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: publicKey}} },
			nats.Config{Connection: nats.Connection{NKeySeedFile: seedFile}},
			nats.Config{},
		},
		{
			"credentials",
			func(o *server.Options) {
				resolver := &server.MemAccResolver{}
				testkit.NoError(t, resolver.Store(account.Subject, encode(t, account, operator)))
				// Without an account for the system there is no JetStream.
				testkit.NoError(t, resolver.Store(system.Subject, encode(t, system, operator)))
				o.SystemAccount = system.Subject
				o.AccountResolver = resolver
				o.TrustedKeys = []string{publicKeyOf(t, operator)}
			},
			nats.Config{Connection: nats.Connection{CredentialsFile: credentials}},
			nats.Config{},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := natstest.Start(t, c.server)
			c.good.URL, c.bad.URL = s.URL(), s.URL()
			sink := newSink(t, c.good, nil)
			testkit.NoError(t, sink.Publish("topic", newMessage("x")))
			_, err := nats.New(c.bad, nil)
			testkit.ErrorIs(t, err, sinks.ErrUnavailable)
			for _, secret := range []string{"s3cret", "hunter2"} {
				if strings.Contains(fmt.Sprint(err), secret) {
					t.Errorf("the error holds a secret: %v", err)
				}
			}
		})
	}
	for _, config := range []nats.Config{{Connection: nats.Connection{NKeySeedFile: filepath.Join(t.TempDir(), "none")}}, {Connection: nats.Connection{User: "a", Token: "b"}}} {
		if _, err := nats.New(config, nil); !errors.Is(err, nats.ErrConfig) {
			t.Errorf("got %v, want ErrConfig", err)
		}
	}
}

// newAccount returns the key of an operator, the claims of an account of it with
// JetStream, and a credentials file of a user of that account.
func newAccount(t *testing.T) (nkeys.KeyPair, *jwt.AccountClaims, string) {
	t.Helper()
	key := func(create func() (nkeys.KeyPair, error)) nkeys.KeyPair {
		return testkit.Must(create())(t)
	}
	operator, accountKey, userKey := key(nkeys.CreateOperator), key(nkeys.CreateAccount), key(nkeys.CreateUser)
	account := jwt.NewAccountClaims(publicKeyOf(t, accountKey))
	account.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1, Streams: -1, Consumer: -1}
	user := jwt.NewUserClaims(publicKeyOf(t, userKey))
	token := testkit.Must(user.Encode(accountKey))(t)
	seed := testkit.Must(userKey.Seed())(t)
	text := testkit.Must(jwt.FormatUserConfig(token, seed))(t)
	file := filepath.Join(t.TempDir(), "user.creds")
	testkit.NoError(t, os.WriteFile(file, text, 0o600))
	return operator, account, file
}

func publicKeyOf(t *testing.T, pair nkeys.KeyPair) string {
	t.Helper()
	return testkit.Must(pair.PublicKey())(t)
}

func encode(t *testing.T, claims *jwt.AccountClaims, signer nkeys.KeyPair) string {
	t.Helper()
	return testkit.Must(claims.Encode(signer))(t)
}

// TestCredentialsRefusedForAWhile: a server that refuses the credentials at a
// reconnect, twice and more, does not end the reconnecting.
func TestCredentialsRefusedForAWhile(t *testing.T) {
	s := natstest.Start(t, func(o *server.Options) { o.Username, o.Password = "farm", "s3cret" })
	log := testkit.NewLog()
	var refused atomic.Int32
	sink := newSink(t, nats.Config{
		Connection: nats.Connection{URL: s.URL(), User: "farm", Password: "s3cret", Options: []natsgo.Option{
			natsgo.ReconnectWait(5 * time.Millisecond),
			natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
				if errors.Is(err, natsgo.ErrAuthorization) {
					refused.Add(1)
				}
			}),
		}},
	}, log)
	s.Restart(func(o *server.Options) { o.Password = "other" })
	testkit.Eventually(t, "five refusals", func() bool { return refused.Load() >= 5 })
	testkit.ErrorIs(t, sink.Publish("topic", newMessage("x")), sinks.ErrUnavailable)
	s.Restart(func(o *server.Options) { o.Password = "s3cret" })
	testkit.Eventually(t, "publish", func() bool { return sink.Publish("topic", newMessage("x")) == nil })
	if strings.Contains(log.String(), "s3cret") {
		t.Error("the log holds the password")
	}
}

// TestNotAuthorised: a server does not answer a publish that it does not allow.
func TestNotAuthorised(t *testing.T) {
	s := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{
			Username: "farm", Password: "x",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"agrimill.secret.>"}}},
		}}
	})
	config := nats.Config{Connection: nats.Connection{URL: s.URL(), User: "farm", Password: "x"}}
	sink := newSink(t, config, nil)
	config.PublishTimeout = 500 * time.Millisecond // no answer comes
	denied := newSink(t, config, nil)
	testkit.Eventually(t, "the server has said why", func() bool {
		err := denied.Publish("secret.topic", newMessage("x"))
		testkit.ErrorIs(t, err, sinks.ErrUnavailable)
		return errors.Is(err, natsgo.ErrPermissionViolation)
	})
	testkit.NoError(t, sink.Publish("open.topic", newMessage("x")))
}

func TestTLS(t *testing.T) {
	certificate := testkit.NewCertificate(t)
	s := natstest.Start(t, func(o *server.Options) { o.TLSConfig = certificate.Server(t) })
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL(), TLS: certificate.Client()}}, nil)
	testkit.NoError(t, sink.Publish("topic", newMessage("x")))
	if _, err := nats.New(nats.Config{Connection: nats.Connection{URL: s.URL(), TLS: &tls.Config{MinVersion: tls.VersionTLS12}}}, nil); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("unknown authority: %v", err)
	}
}

// TestErrorsWithoutPassword: a password that is not percent-encoded, or in a URL
// without a scheme, is in no error and no line of the log.
func TestErrorsWithoutPassword(t *testing.T) {
	for _, url := range []string{
		"farmer:s3cr%zzet@127.0.0.1:1", "farmer:s3crzzet@[::1:1", "127.0.0.1:1,farmer:s3crzzet@127.0.0.1:2:3",
		"nats://farmer:s3cr/zzet@127.0.0.1:1", "nats://farmer:s3cr#zzet@127.0.0.1:1", "nats://farmer:s3cr?zzet@127.0.0.1:1",
		"nats://farmer:s3cr zzet@127.0.0.1:1", "nats://farmer:s3cr@zzet@127.0.0.1:1", "nats://s3cr/zzet@127.0.0.1:1",
		"tls://farmer:s3crzzet@127.0.0.1:1", "ws://farmer:s3crzzet@127.0.0.1:1,nats://127.0.0.1:2", "farmer:s3crzzet@127.0.0.1:1",
	} {
		t.Run(url, func(t *testing.T) {
			log := testkit.NewLog()
			_, err := nats.New(nats.Config{Connection: nats.Connection{URL: url, ConnectTimeout: time.Second}}, log)
			if err == nil {
				t.Fatal("connected to nobody")
			}
			_, err2 := nats.Connection{URL: url, ConnectTimeout: time.Second}.Connect("test")
			for _, text := range []string{err.Error(), fmt.Sprint(err2), log.String()} {
				if strings.Contains(text, "s3cr") || strings.Contains(text, "zzet") {
					t.Errorf("tells the password: %s", text)
				}
			}
		})
	}
}

func TestConfigValidate(t *testing.T) {
	if err := (nats.Config{}).Validate(); err != nil {
		t.Errorf("zero value: %v", err)
	}
	conn := &natsgo.Conn{}
	for name, config := range map[string]nats.Config{
		"Conn with URL":          {Conn: conn, Connection: nats.Connection{URL: "nats://x"}},
		"Conn with token":        {Conn: conn, Connection: nats.Connection{Token: "x"}},
		"Conn with TLS":          {Conn: conn, Connection: nats.Connection{TLS: &tls.Config{MinVersion: tls.VersionTLS12}}},
		"two credentials":        {Connection: nats.Connection{User: "a", CredentialsFile: "b"}},
		"address of the monitor": {Connection: nats.Connection{URL: "nats://x, http://x:8222"}},
		"stream name":            {Stream: "a.b"},
		"prefix with wildcard":   {SubjectPrefix: "a.*"},
		"prefix with space":      {SubjectPrefix: "a b"},
		"prefix of the server":   {SubjectPrefix: "$JS"},
		"provision":              {Provision: 7},
		"storage":                {Storage: 7},
		"retention interest":     {Retention: jetstream.InterestPolicy},
		"replicas":               {Replicas: 6},
		"negative replicas":      {Replicas: -1},
		"negative age":           {MaxAge: -1},
		"negative bytes":         {MaxBytes: -1},
		"negative messages":      {MaxMessages: -1},
		"negative size":          {MaxMessageSize: -1},
		"tiny window":            {DedupWindow: time.Millisecond},
		"negative window":        {DedupWindow: -1},
		"window longer than age": {MaxAge: time.Minute, DedupWindow: time.Hour},
		"negative timeout":       {PublishTimeout: -1},
		"negative pending":       {MaxPending: -1},
		"URL":                    {Connection: nats.Connection{URL: "nats://user:hunter2@host:port:x"}},
	} {
		err := config.Validate()
		if !errors.Is(err, nats.ErrConfig) {
			t.Errorf("%s: got %v, want ErrConfig", name, err)
		}
		if strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%s: the error holds the password", name)
		}
	}
	if err := (nats.Config{Connection: nats.Connection{URL: "127.0.0.1:4222, farm:secret@localhost"}}).Validate(); err != nil {
		t.Errorf("URLs without a scheme: %v", err)
	}
	if err := (nats.Config{MaxAge: time.Minute}).Validate(); err != nil {
		t.Errorf("the default window does not follow a short MaxAge: %v", err)
	}
}
