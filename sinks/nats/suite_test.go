package nats_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend is a server in the process, behind a proxy.
type backend struct {
	server *natstest.Server
	proxy  *natstest.Proxy
	config nats.Config
}

func newBackend(t *testing.T, settings sinktest.Settings) *backend {
	t.Helper()
	b := &backend{server: natstest.Start(t)}
	b.proxy = natstest.NewProxy(t, b.server.URL())
	b.config = nats.Config{
		Connection:     nats.Connection{URL: b.proxy.URL(), Options: []natsgo.Option{natsgo.ReconnectWait(20 * time.Millisecond), natsgo.ReconnectJitter(0, 0)}},
		MaxMessageSize: int32(settings.MaxMessageSize),
	}
	if settings.Faults {
		b.config.PublishTimeout, b.config.CloseTimeout = 2*time.Second, time.Second
	}
	return b
}

func (b *backend) NewSink(t *testing.T) sinks.Sink {
	t.Helper()
	sink := testkit.Must(nats.New(b.config, nil))(t)
	t.Cleanup(func() { _ = sink.Close() })
	return sink
}

// Read reads the stream message by message over a connection of its own.
func (b *backend) Read(t *testing.T, topic string) []*message.Message {
	t.Helper()
	var messages []*message.Message
	for _, raw := range readRaw(t, b.server.URL(), nats.DefaultSubjectPrefix+"."+topic) {
		msg := testkit.Must(nats.Marshaler{}.Unmarshal(raw))(t)
		messages = append(messages, msg)
	}
	return messages
}

// readRaw reads all messages of a subject with an ordered consumer, which is
// the way most readers take.
func readRaw(t *testing.T, url, subject string) []*natsgo.Msg {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	_, js := natstest.Client(t, url)
	// A cluster that elects a leader does not answer for a while.
	ask := func(request func(context.Context) error) {
		t.Helper()
		testkit.Eventually(t, "reader", func() bool {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return request(short) == nil
		})
	}
	var stream jetstream.Stream
	ask(func(ctx context.Context) (err error) {
		stream, err = js.Stream(ctx, nats.DefaultStream)
		return err
	})
	var info *jetstream.StreamInfo
	ask(func(ctx context.Context) (err error) {
		info, err = stream.Info(ctx, jetstream.WithSubjectFilter(subject))
		return err
	})
	want := info.State.Subjects[subject]
	if want == 0 {
		return nil
	}
	var consumer jetstream.Consumer
	ask(func(ctx context.Context) (err error) {
		consumer, err = stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
		return err
	})
	it := testkit.Must(consumer.Messages())(t)
	defer it.Stop()
	var messages []*natsgo.Msg
	for uint64(len(messages)) < want {
		msg, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatalf("reader: after %d of %d messages: %v", len(messages), want, err)
		}
		messages = append(messages, &natsgo.Msg{Subject: msg.Subject(), Header: msg.Headers(), Data: msg.Data()})
	}
	return messages
}

func (b *backend) url() string { return b.server.URL() }

func (b *backend) Break(*testing.T)    { b.server.Stop() }
func (b *backend) Repair(t *testing.T) { t.Helper(); b.server.Restart() }
func (b *backend) Hang(*testing.T)     { b.proxy.Hang() }
func (b *backend) Resume(*testing.T)   { b.proxy.Resume() }

var rejectedTopics = []string{
	"", ".", "a.", ".a", "a..b", "*", "a.*", ">", "a.>", "a.>.b",
	strings.Repeat("a", 3000), strings.Repeat("a.", 5000) + "a",
}

func features() sinktest.Features {
	return sinktest.Features{
		UUID:     true,
		Metadata: true,
		ReservedNames: []string{
			natsgo.MsgIdHdr, natsgo.ExpectedStreamHdr, natsgo.ExpectedLastSeqHdr, natsgo.ExpectedLastSubjSeqHdr,
			natsgo.ExpectedLastMsgIdHdr, natsgo.MsgRollup, "Nats-TTL", "Nats-Incr", "Nats-Schedule", "Nats-Schedule-Target",
			"Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit", "Nats-Required-Api-Level", "Nats-Trace-Dest",
			"Nats-Stream-Source", "Nats-Marker-Reason", "Nats-", "Status", "Description", "agrimill-key-", "agrimill-key-a",
			"agrimill-key-Nats-Msg-Id", "agrimill-key-%0D", "_watermill_message_uuid",
		},
		Dedup:                true,
		AtReceipt:            atReceipt,
		MaxMessageSize:       true,
		Outage:               true,
		Hang:                 true,
		RejectedTopics:       rejectedTopics,
		UnescapeTopicSegment: nats.UnescapeTopicSegment,
		LegalSegment: func(s string) bool {
			return server.IsValidLiteralSubject(s) && !strings.ContainsAny(s, ". \t\r\n\x00")
		},
	}
}

// atReceipt asks the stream for the message of a sequence.
func atReceipt(t *testing.T, b sinktest.Backend, topic string, receipt sinks.Receipt) *message.Message {
	t.Helper()
	if receipt.Stream != nats.DefaultStream || receipt.Subject != nats.DefaultSubjectPrefix+"."+topic {
		return nil
	}
	_, js := natstest.Client(t, b.(interface{ url() string }).url())
	stream := testkit.Must(js.Stream(t.Context(), receipt.Stream))(t)
	raw := testkit.Must(stream.GetMsg(t.Context(), receipt.Sequence))(t)
	msg, err := nats.Marshaler{}.Unmarshal(&natsgo.Msg{Subject: raw.Subject, Header: raw.Header, Data: raw.Data})
	if err != nil || raw.Subject != receipt.Subject {
		t.Fatalf("%v, subject %s", err, raw.Subject)
	}
	return msg
}

func TestConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Suite{
		New: func(t *testing.T, settings sinktest.Settings) sinktest.Backend {
			t.Helper()
			return newBackend(t, settings)
		},
		Features: features(),
	})
}
