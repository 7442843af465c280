package nats_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

const fieldSubject = "field.data"

// field is a server with a stream of raw messages, and a way to it that can break.
type field struct {
	*testing.T
	server *natstest.Server
	proxy  *natstest.Proxy
	js     jetstream.JetStream
	via    sinknats.Connection // of subscribers
}

func newField(t *testing.T) *field {
	t.Helper()
	f := &field{T: t, server: natstest.Start(t)}
	f.proxy = natstest.NewProxy(t, f.server.URL())
	f.via = sinknats.Connection{URL: f.proxy.URL(), Options: quickly()}
	_, f.js = natstest.Client(t, f.server.URL(), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20*time.Millisecond))
	f.createStream()
	return f
}

// inBubble runs a test in a bubble with the server: what takes AckWait takes no time, however busy the machine is.
func inBubble(t *testing.T, test func(f *field)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T, s *natstest.Server) {
		f := &field{T: t, server: s, proxy: natstest.NewLine(t, s)}
		f.via.Options = append(quickly(), natsgo.InProcessServer(f.proxy))
		_, f.js = natstest.Client(t, "", natsgo.InProcessServer(s))
		f.createStream()
		test(f)
	})
}

// quickly is how subscribers connect again.
func quickly() []natsgo.Option {
	return []natsgo.Option{natsgo.ReconnectWait(20 * time.Millisecond), natsgo.ReconnectJitter(0, 0)}
}

func (f *field) createStream() {
	f.Helper()
	// The server removes the files of a deleted stream in the background, and refuses a new
	// one of the same name until it has.
	testkit.EventuallyNil(f, func() error {
		_, err := f.js.CreateStream(f.Context(), jetstream.StreamConfig{Name: "FIELD", Subjects: []string{"field.>"}, MaxAge: natstest.Ever})
		return err
	})
}

// restart starts the server again, and returns when the test can put messages there.
func (f *field) restart() {
	f.Helper()
	f.server.Restart()
	natstest.AwaitReconnect(f, f.js.Conn())
}

// put stores n messages that say their numbers, beginning with from.
func (f *field) put(from, n int) {
	f.Helper()
	for i := from; i < from+n; i++ {
		testkit.Must(f.js.Publish(f.Context(), fieldSubject, fmt.Append(nil, i)))(f)
	}
}

func (f *field) subscriber(change ...func(*nats.Config)) *nats.Subscriber {
	f.Helper()
	config := nats.Config{
		Connection: f.via, SubjectPrefix: sinknats.NoSubjectPrefix, Durable: "out", CloseTimeout: time.Second,
	}
	for _, c := range change {
		c(&config)
	}
	s := testkit.Must(nats.New(config, nil))(f)
	f.Cleanup(func() { _ = s.Close() })
	return s
}

func (f *field) subscribe(s *nats.Subscriber) <-chan *message.Message {
	f.Helper()
	messages := testkit.Must(s.Subscribe(context.Background(), fieldSubject))(f)
	return messages
}

// next waits for a message.
func (f *field) next(messages <-chan *message.Message) *message.Message {
	f.Helper()
	msg := testkit.Receive(f, "a message", messages)
	if msg == nil {
		f.Fatal("the subscription has ended")
	}
	return msg
}

// takeAll acks messages until each of the numbers below n has come, and returns
// how many came more than once.
func (f *field) takeAll(messages <-chan *message.Message, seen map[string]bool, n int) (again int) {
	f.Helper()
	for len(seen) < n {
		msg := f.next(messages)
		if seen[string(msg.Payload)] {
			again++
		}
		seen[string(msg.Payload)] = true
		msg.Ack()
	}
	return again
}

// takeRest acks what is redelivered, because its ack was lost, until nothing is left.
func (f *field) takeRest(messages <-chan *message.Message) {
	f.Helper()
	testkit.Eventually(f.T, "nothing is left", func() bool {
		select {
		case msg := <-messages:
			msg.Ack()
		default:
		}
		return f.pending() == 0
	})
}

// pending is how many messages nobody has acknowledged.
func (f *field) pending() int {
	f.Helper()
	consumer := testkit.Must(f.js.Consumer(f.Context(), "FIELD", "out"))(f)
	info := consumer.CachedInfo()
	return info.NumAckPending + int(info.NumPending)
}

func TestSubscriberNack(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 1)
	messages := f.subscribe(f.subscriber())
	first := f.next(messages)
	ctx := first.Context()
	first.Nack()
	second := f.next(messages)
	if first.UUID == "" || first.UUID != second.UUID {
		t.Errorf("the deliveries of one message have the UUIDs %q and %q", first.UUID, second.UUID)
	}
	second.Ack()
	<-ctx.Done()
	<-second.Context().Done()
	testkit.Eventually(t, "nothing is left", func() bool { return f.pending() == 0 })
}

// reported waits until the server has heard n times that messages are being handled.
func (f *field) reported(n int) {
	f.Helper()
	reports, err := f.js.Conn().SubscribeSync("$JS.ACK.FIELD.out.>")
	for err == nil && n > 0 {
		var report *natsgo.Msg
		if report, err = reports.NextMsg(testkit.Patience); err == nil && string(report.Data) == "+WPI" {
			n--
		}
	}
	if err != nil {
		f.Fatal(err)
	}
}

func TestSubscriberOutages(t *testing.T) {
	t.Parallel()
	f := newField(t)
	messages := f.subscribe(f.subscriber(func(c *nats.Config) { c.AckWait = 2 * time.Second }))
	seen := map[string]bool{}
	f.put(0, 20)
	f.takeAll(messages, seen, 20)
	f.proxy.Cut()
	f.put(20, 20)
	f.takeAll(messages, seen, 40)

	f.takeRest(messages)
	f.server.Stop()
	f.restart()
	f.put(40, 20)
	f.takeAll(messages, seen, 60)
	f.takeRest(messages)

	testkit.NoError(t, f.js.DeleteConsumer(t.Context(), "FIELD", "out"))
	f.put(60, 1)
	f.takeAll(messages, seen, 61) // from the beginning: who acknowledged what is gone with the consumer
}

// The server goes away while a message is handled. Its ack follows when the server
// is back, and it does not are redelivered.
func TestSubscriberAcksLater(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 1)
	noticed := make(chan struct{}, 1)
	messages := f.subscribe(f.subscriber(func(c *nats.Config) {
		c.AckWait = testkit.Patience / 2
		c.Options = append(c.Options, natsgo.DisconnectErrHandler(func(*natsgo.Conn, error) {
			select {
			case noticed <- struct{}{}:
			default:
			}
		}))
	}))
	msg := f.next(messages)
	f.server.Stop()
	f.proxy.Cut()
	<-noticed // before that an ack is written, and lost
	msg.Ack()
	f.restart()
	// If it came again it would stay, for nobody takes it.
	testkit.Eventually(t, "nothing is left", func() bool { return f.pending() == 0 })
}

// Close returns while the server is away, with a message open and without.
func TestSubscriberCloseInOutage(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 30)
	s := f.subscriber(func(c *nats.Config) { c.MaxInFlight = 10 })
	messages := f.subscribe(s)
	open := f.next(messages)
	f.server.Stop()
	f.proxy.Cut()
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- s.Close() }() // ends with Close
	}
	for range 2 {
		testkit.NoError(t, testkit.Receive(t, "the end of Close", closed))
	}
	<-open.Context().Done()
	if _, err := s.Subscribe(t.Context(), fieldSubject); !errors.Is(err, nats.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	f.restart()
	seen := map[string]bool{}
	f.takeAll(f.subscribe(f.subscriber(func(c *nats.Config) { c.AckWait = time.Second })), seen, 30)
}

// Messages that are open when the context ends can still be acked.
func TestSubscriberDrains(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	patient := func(c *nats.Config) { c.CloseTimeout = testkit.Patience }
	messages := testkit.Must(f.subscriber(patient).Subscribe(ctx, fieldSubject))(t)
	msg := f.next(messages)
	cancel()
	select {
	case <-msg.Context().Done():
		t.Error("the message's context has ended")
	case <-messages:
		t.Error("the channel is closed while a message is open")
	case <-time.After(300 * time.Millisecond):
	}
	msg.Ack()
	if _, open := <-messages; open {
		t.Error("the channel is open after the end of the context")
	}
	testkit.Eventually(t, "nothing is left", func() bool { return f.pending() == 0 })
}

func TestSubscriberErrors(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]nats.Config{
		"no durable":      {},
		"durable":         {Durable: "a.b"},
		"stream":          {Durable: "a", Stream: "a b"},
		"ack wait":        {Durable: "a", AckWait: time.Millisecond},
		"in flight":       {Durable: "a", MaxInFlight: -1},
		"close timeout":   {Durable: "a", CloseTimeout: -1},
		"two credentials": {Durable: "a", Connection: sinknats.Connection{User: "a", Token: "b"}},
	} {
		if _, err := nats.New(config, nil); !errors.Is(err, nats.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := newField(t)
	s := f.subscriber()
	if _, err := s.Subscribe(t.Context(), "nothing.here"); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("without a stream: %v", err)
	}
	if _, err := s.Subscribe(t.Context(), ""); !errors.Is(err, nats.ErrConfig) {
		t.Errorf("without a subject: %v", err)
	}
	if _, err := s.Subscribe(t.Context(), fieldSubject); !errors.Is(err, nats.ErrConfig) {
		t.Errorf("a second subject: %v", err)
	}
	f.server.Stop()
	down := f.subscriber()
	if _, err := down.Subscribe(t.Context(), fieldSubject); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
	f.restart()
	f.put(0, 1)
	f.next(f.subscribe(down)).Ack()
}

func TestSubscriberBacklog(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 5)
	s := f.subscriber(func(c *nats.Config) { c.MaxInFlight = 2 })
	if _, err := s.Backlog(t.Context()); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("before Subscribe: %v", err)
	}
	messages := f.subscribe(s)
	for want := int64(5); want > 0; want-- {
		msg := f.next(messages)
		testkit.Eventually(t, fmt.Sprintf("%d messages are left", want), func() bool {
			n, err := s.Backlog(t.Context())
			return err == nil && n == want
		})
		msg.Ack()
	}
	f.server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Backlog(ctx); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}

// TestLargeMessages: no more of them are held than take 64 MiB and one request, which brings 32 MiB, be they new or sent back
// by somebody before.
func TestLargeMessages(t *testing.T) {
	for _, sentBack := range []bool{false, true} {
		natstest.Bubble(t, func(t *testing.T, s *natstest.Server) {
			f := &field{T: t, server: s, proxy: natstest.NewLine(t, s)}
			f.via.Options = append(quickly(), natsgo.InProcessServer(f.proxy))
			_, f.js = natstest.Client(t, "", natsgo.InProcessServer(s))
			f.createStream()
			const n, size, most = 60, 4 << 20, 64/4 + 32/4
			for i := range n {
				msg := natsgo.NewMsg(fieldSubject)
				msg.Header.Set("k", fmt.Sprint(i))
				msg.Data = make([]byte, size)
				testkit.Must(f.js.PublishMsg(t.Context(), msg))(t)
			}
			if sentBack {
				consumer := testkit.Must(f.js.CreateConsumer(t.Context(), "FIELD", jetstream.ConsumerConfig{
					Durable: "out", FilterSubject: fieldSubject, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1,
				}))(t)
				for msg := range testkit.Must(consumer.Fetch(n))(t).Messages() {
					testkit.NoError(t, msg.Nak())
				}
			}
			messages := f.subscribe(f.subscriber(func(c *nats.Config) { c.KeyHeader = "k" }))
			held := 0
			for came := true; came; {
				select {
				case <-messages:
					held++
				case <-time.After(2 * time.Minute):
					came = false
				}
			}
			if held == 0 || held > most {
				t.Errorf("sent back %t: %d messages are held, want at most %d", sentBack, held, most)
			}
		}, func(o *server.Options) { o.MaxPayload = 8 << 20 })
	}
}

// TestLargeMessagesAreTaken: the server does not cut a subscriber off because more was requested than it may have to write.
func TestLargeMessagesAreTaken(t *testing.T) {
	t.Parallel()
	f := &field{T: t, server: natstest.Start(t, func(o *server.Options) { o.MaxPayload = 8 << 20 })}
	f.via = sinknats.Connection{URL: f.server.URL()}
	_, f.js = natstest.Client(t, f.server.URL())
	f.createStream()
	const n = 60
	for range n {
		testkit.Must(f.js.Publish(t.Context(), fieldSubject, make([]byte, 4<<20)))(t)
	}
	messages := f.subscribe(f.subscriber())
	for range n {
		f.next(messages).Ack()
	}
	if cut := f.server.Server().NumSlowConsumers(); cut > 0 {
		t.Errorf("the server has cut it off %d times", cut)
	}
}

// TestSetAsideBlocksNothing: however many messages fit nowhere, those behind them are delivered.
func TestSetAsideBlocksNothing(t *testing.T) {
	inBubble(t, func(f *field) {
		f.put(0, 20)
		messages := f.subscribe(f.subscriber(func(c *nats.Config) { c.MaxInFlight = 1 }))
		seen := map[string]int{}
		for len(seen) < 20 {
			msg := f.next(messages)
			seen[string(msg.Payload)]++
			if seen[string(msg.Payload)] > 10 {
				f.Fatalf("only these come: %v", seen)
			}
			if string(msg.Payload) == "19" {
				msg.Ack()
				continue
			}
			msgctx.NackOf(msg.Context()).Want(msgctx.SetAside)
			msg.Nack()
		}
	})
}

// TestDeliveriesAreNamed: each delivery of a message has the same name, and no other message
// has it, however equal.
func TestDeliveriesAreNamed(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(7, 1)
	f.put(7, 1)
	var names []string
	take := func(messages <-chan *message.Message) *message.Message {
		msg := f.next(messages)
		names = append(names, msgctx.Delivery(msg.Context()))
		if stored := msgctx.Stored(msg.Context()); stored.IsZero() || stored.After(time.Now()) {
			t.Errorf("stored at %v", stored)
		}
		return msg
	}
	s := f.subscriber()
	messages := f.subscribe(s)
	take(messages).Nack()
	take(messages).Ack()
	take(messages).Nack() // the other one, which the next subscription gets again
	testkit.NoError(t, s.Close())
	s = f.subscriber()
	take(f.subscribe(s)).Ack()
	testkit.NoError(t, s.Close())
	if names[0] == "" || names[0] != names[1] || names[1] == names[2] || names[2] != names[3] {
		t.Errorf("names of two equal messages, each delivered twice: %q", names)
	}
}

// TestDeliveriesOfTwoServers: messages of two servers with the same stream and sequence have
// different names: each server stores at its own time.
func TestDeliveriesOfTwoServers(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for range 2 {
		f := newField(t)
		f.put(7, 1)
		msg := f.next(f.subscribe(f.subscriber()))
		names[msgctx.Delivery(msg.Context())] = true
		msg.Ack()
	}
	if len(names) != 2 {
		t.Errorf("names: %v", names)
	}
}

// A stream that was made anew has other messages with the numbers of those that are open: the acks of these are not theirs.
func TestAckOfAFormerStream(t *testing.T) {
	t.Parallel()
	f := newField(t)
	put := func(key string) {
		testkit.Must(f.js.PublishMsg(t.Context(), &natsgo.Msg{Subject: fieldSubject, Header: natsgo.Header{"Key": {key}}, Data: []byte(key)}))(t)
	}
	s := f.subscriber(func(c *nats.Config) { c.KeyHeader = "Key" })
	messages := f.subscribe(s)
	put("former")
	former := f.next(messages)
	testkit.NoError(t, f.js.DeleteStream(t.Context(), "FIELD"))
	f.createStream()
	put("present")
	if present := f.next(messages); string(present.Payload) != "present" {
		t.Fatalf("got %s", present.Payload)
	}
	former.Ack()
	testkit.NoError(t, s.Close())
	if present := f.next(f.subscribe(f.subscriber())); string(present.Payload) != "present" {
		t.Errorf("got %s", present.Payload)
	}
}

// JetStream goes away for a while, and the connection stays: the consumer is the same, and what is open is acked there.
func TestJetStreamIsAwayForAWhile(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 1)
	log := testkit.NewLog()
	messages := testkit.Must(f.logged(log, func(c *nats.Config) { c.AckWait = time.Hour }).Subscribe(t.Context(), fieldSubject))(t)
	open := f.next(messages)
	server := f.server.Server()
	config := *server.JetStreamConfig()
	config.StoreDir = filepath.Dir(config.StoreDir)
	testkit.NoError(t, server.DisableJetStream())
	testkit.Eventually(t, "it is away", func() bool { return strings.Contains(log.String(), "NATS consumer unavailable") })
	testkit.NoError(t, server.EnableJetStream(&config))
	testkit.Eventually(t, "it is there again", func() bool { return strings.Contains(log.String(), "NATS consumer is available again") })
	open.Ack()
	testkit.Eventually(t, "it is acked", func() bool { return f.pending() == 0 })
	server.Shutdown() // here: its count of requests in work, which stopping it waits for, is wrong from now on
	server.WaitForShutdown()
}
