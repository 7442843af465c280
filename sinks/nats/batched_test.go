package nats_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

// batchedMessage is one that a broker recognizes a copy of.
func batchedMessage(id, payload string) *message.Message {
	msg := newMessage(payload)
	msg.Metadata[sinks.KeyDedupID] = id
	return msg
}

func publishBatched(t *testing.T, sink sinks.Sink, msg *message.Message) *sinks.Publication {
	t.Helper()
	p, err := sink.PublishAsync("topic", msg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func storedPayloads(t *testing.T, url string) (payloads []string) {
	t.Helper()
	for _, msg := range readRaw(t, url, nats.DefaultSubjectPrefix+".topic") {
		payloads = append(payloads, string(msg.Data))
	}
	return payloads
}

// wire records what is sent to the subjects of the stream, as others see it.
type wire struct {
	mu   sync.Mutex
	sent []*natsgo.Msg
}

func tap(t *testing.T, url string) *wire {
	t.Helper()
	conn, _ := connect(t, url)
	w := &wire{}
	if _, err := conn.Subscribe(nats.DefaultSubjectPrefix+".>", func(msg *natsgo.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sent = append(w.sent, msg)
	}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return w
}

// kinds says how each message with a payload was sent: "batch" or "plain" and its payload.
func (w *wire) kinds() (kinds []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, msg := range w.sent {
		kind := "plain "
		if strings.HasSuffix(msg.Reply, ".$FI") {
			kind = "batch "
		}
		if len(msg.Data) > 0 {
			kinds = append(kinds, kind+string(msg.Data))
		}
	}
	return kinds
}

// want waits until this was sent, and nothing else, in any order.
func (w *wire) want(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	slices.Sort(want)
	testkit.Eventually(t, "others see what was sent", func() bool {
		got = w.kinds()
		slices.Sort(got)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("sent %.500q, want %q", got, want)
	}
}

// ended reports whether a batch was ended.
func (w *wire) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.sent, func(msg *natsgo.Msg) bool {
		return len(msg.Data) == 0 && strings.HasSuffix(msg.Reply, ".3.$FI")
	})
}

func startBatched(t *testing.T, config nats.Config) (*natstest.Server, *nats.Sink) {
	t.Helper()
	server := natstest.Start(t)
	config.URL, config.Ingest = server.URL(), sinks.IngestBatched
	if config.BatchAfter == 0 {
		config.BatchAfter = 1
	}
	return server, newSink(t, config, nil)
}

func wantStored(t *testing.T, p *sinks.Publication) sinks.Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	receipt, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return receipt
}

func wantFailed(t *testing.T, p *sinks.Publication, kind error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, kind) {
		t.Fatalf("got %v, want %v", err, kind)
	}
}

// A receipt has no sequence, a single message waits for no others, and a batch is ended when nothing
// comes any more.
func TestBatchedReceipt(t *testing.T) {
	t.Parallel()
	server, sink := startBatched(t, nats.Config{})
	w := tap(t, server.URL())
	if d := sink.Describe(); !d.Pipelined || !d.Strict || !d.Ordered {
		t.Errorf("Describe: %+v", d)
	}
	want := sinks.Receipt{Stream: nats.DefaultStream, Subject: "agrimill.topic"}
	for i := range 3 {
		p := publishBatched(t, sink, batchedMessage(fmt.Sprint(i), fmt.Sprint(i)))
		if got := wantStored(t, p); got != want || p.HoldsBehind() {
			t.Errorf("receipt %+v, holds others: %v", got, p.HoldsBehind())
		}
	}
	if err := sink.Publish("topic", newMessage("3")); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "the batch is ended", w.ended)
	w.want(t, "batch 0", "batch 1", "batch 2", "plain 3")
	wantStored(t, publishBatched(t, sink, batchedMessage("4", "4"))) // in another one
	if got := storedPayloads(t, server.URL()); !slices.Equal(got, []string{"0", "1", "2", "3", "4"}) {
		t.Errorf("stored %q", got)
	}
}

// One message that the server refuses takes all with it that were sent after it; published again they
// go plainly, without a copy, and only what was never sent goes into a batch.
func TestBatchedRefused(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	proxy := natstest.NewProxy(t, server.URL())
	sink := newSink(t, nats.Config{URL: proxy.URL(), Ingest: sinks.IngestBatched, BatchAfter: 1}, nil)
	_, js := connect(t, server.URL())
	stream, err := js.Stream(t.Context(), nats.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgSize = 5000 // the sink does not know
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	w := tap(t, server.URL())
	proxy.Hang() // what comes after the refusal is on its way then
	var publications []*sinks.Publication
	for i := range 50 {
		payload := fmt.Sprint(i)
		if i == 20 {
			payload = strings.Repeat("x", 6000)
		}
		publications = append(publications, publishBatched(t, sink, batchedMessage(fmt.Sprint(i), payload)))
	}
	proxy.Resume()
	known := 0
	for i, p := range publications {
		switch _, err := p.Result(); {
		case i < 20 && err == nil && known == i:
			known++
		case i < 20 && errors.Is(err, sinks.ErrUnavailable): // the answer came after that of the other
		case i == 20 && errors.Is(err, sinks.ErrTooLarge):
		case i > 20 && errors.Is(err, sinks.ErrUnavailable):
		default:
			t.Fatalf("message %d: %v", i, err)
		}
	}
	var want []string
	for i := known; i < 50; i++ {
		if i != 20 {
			p := publishBatched(t, sink, batchedMessage(fmt.Sprint(i), fmt.Sprint(i)))
			if wantStored(t, p); !p.HoldsBehind() {
				t.Errorf("message %d does not hold those behind it", i)
			}
			want = append(want, fmt.Sprint("plain ", i))
		}
	}
	testkit.Eventually(t, "a batch again", func() bool {
		p := publishBatched(t, sink, newMessage("new"))
		wantStored(t, p)
		return !p.HoldsBehind()
	})
	testkit.Eventually(t, "others see what was sent", func() bool { return slices.Contains(w.kinds(), "batch new") })
	plain := slices.DeleteFunc(w.kinds(), func(kind string) bool { return kind == "plain new" || strings.HasPrefix(kind, "batch ") })
	if !slices.Equal(plain, want) {
		t.Errorf("sent plainly %q, want %q", plain, want)
	}
	got := slices.DeleteFunc(storedPayloads(t, server.URL()), func(payload string) bool { return payload == "new" })
	if len(got) != 49 || got[20] != "21" || got[48] != "49" {
		t.Errorf("stored %d: %q", len(got), got)
	}
	// TRAP 2: the server would acknowledge a message that it does not store.
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, msg := range w.sent {
		for name := range msg.Header {
			if strings.HasPrefix(name, "Nats-") && name != natsgo.MsgIdHdr {
				t.Errorf("sent with the header %s", name)
			}
		}
	}
}

// standing is that of a message that a route publishes.
type standing struct {
	since  time.Time
	halted atomic.Bool
}

func (s *standing) Since() time.Time                                 { return s.since }
func (s *standing) Halted() bool                                     { return s.halted.Load() }
func (s *standing) Stored(_ *message.Message, receipt sinks.Receipt) { _ = receipt }

// TRAP 1: for a minute after New, and after whoever delivers began to, another process may have sent the
// message just before, and no batch is used. What a route has to hold back is not sent.
func TestBatchedAfterStart(t *testing.T) {
	t.Parallel()
	server, sink := startBatched(t, nats.Config{BatchAfter: time.Hour})
	w := tap(t, server.URL())
	for i := range 3 {
		p := publishBatched(t, sink, newMessage(fmt.Sprint(i)))
		if receipt := wantStored(t, p); receipt.Sequence != uint64(i+1) || !p.HoldsBehind() {
			t.Errorf("%+v", receipt)
		}
	}
	w.want(t, "plain 0", "plain 1", "plain 2")

	server, sink = startBatched(t, nats.Config{BatchAfter: 10 * time.Second})
	w = tap(t, server.URL())
	nats.Started(sink, time.Now().Add(-time.Minute))
	halted := &standing{}
	halted.halted.Store(true)
	for payload, s := range map[string]*standing{"new": {since: time.Now()}, "old": {since: time.Now().Add(-time.Minute)}, "halted": halted} {
		msg := newMessage(payload)
		msg.SetContext(context.WithValue(t.Context(), msgctx.ReceiptsKey{}, s))
		p := publishBatched(t, sink, msg)
		if payload == "halted" {
			wantFailed(t, p, sinks.ErrUnavailable)
			continue
		}
		wantStored(t, p)
	}
	w.want(t, "batch old", "plain new")
}

// header is a marshaler that adds a header.
type header struct{ nats.Marshaler }

func (header) Marshal(topic string, msg *message.Message) (*natsgo.Msg, error) {
	out, err := nats.Marshaler{}.Marshal(topic, msg)
	if err == nil && string(msg.Payload) == "commands" {
		out.Header[natsgo.ExpectedLastMsgIdHdr] = []string{"another"}
	}
	return out, err
}

// TRAP 2: what commands the server is never in a batch, where it makes a hole that is acknowledged.
func TestBatchedCommands(t *testing.T) {
	t.Parallel()
	server, sink := startBatched(t, nats.Config{Marshaler: header{}})
	w := tap(t, server.URL())
	wantStored(t, publishBatched(t, sink, batchedMessage("1", "one")))
	p := publishBatched(t, sink, batchedMessage("2", "commands"))
	if _, err := p.Result(); err == nil {
		t.Error("a message counts as stored that is not")
	}
	wantStored(t, publishBatched(t, sink, batchedMessage("3", "two")))
	w.want(t, "batch one", "plain commands", "batch two")
}

// A server that says nothing, one that was restarted, and answers that are lost: each message is
// stored once, and in its order, when it is published again. They stand as those of a route do: once
// one has failed, those that the route had begun to publish are not sent any more.
func TestBatchedBroken(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*natstest.Server, *natstest.Proxy){
		"silence":   func(_ *natstest.Server, p *natstest.Proxy) { p.Hang() },
		"no answer": func(_ *natstest.Server, p *natstest.Proxy) { p.LoseReplies() },
		"cut":       func(_ *natstest.Server, p *natstest.Proxy) { p.Cut() },
		"restart":   func(s *natstest.Server, _ *natstest.Proxy) { s.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &backend{server: natstest.Start(t)}
			b.proxy = natstest.NewProxy(t, b.server.URL())
			sink := newSink(t, nats.Config{
				URL: b.proxy.URL(), Ingest: sinks.IngestBatched, BatchAfter: 1, PublishTimeout: 300 * time.Millisecond,
				Options: []natsgo.Option{natsgo.ReconnectWait(10 * time.Millisecond), natsgo.ReconnectJitter(0, 0)},
			}, nil)
			wantStored(t, publishBatched(t, sink, batchedMessage("a", "a"))) // a batch is open
			w := tap(t, b.server.URL())
			if name == "restart" || name == "cut" {
				fault(b.server, b.proxy)
			}
			var want []string
			var publications []*sinks.Publication
			var route standing
			for i := range 20 {
				if i == 10 && name != "restart" && name != "cut" {
					fault(b.server, b.proxy)
				}
				want = append(want, fmt.Sprint(i))
				msg := batchedMessage(want[i], want[i])
				msg.SetContext(context.WithValue(t.Context(), msgctx.ReceiptsKey{}, &route))
				p := publishBatched(t, sink, msg)
				p.Then(func(_ sinks.Receipt, err error) {
					if err != nil {
						route.halted.Store(true)
					}
				})
				publications = append(publications, p)
			}
			for i, p := range publications {
				if _, err := p.Result(); err != nil && !errors.Is(err, sinks.ErrUnavailable) {
					t.Fatalf("message %d: %v", i, err)
				}
			}
			b.proxy.Resume()
			b.proxy.Cut()
			for i := range want {
				_, failed := publications[i].Result()
				if failed == nil {
					continue
				}
				testkit.Eventually(t, want[i]+" is stored", func() bool {
					p := publishBatched(t, sink, batchedMessage(want[i], want[i]))
					_, err := p.Result()
					if !p.HoldsBehind() && !errors.Is(failed, nats.ErrHalted) {
						t.Fatalf("%s goes into a batch again after %v", want[i], failed)
					}
					return err == nil
				})
			}
			if got := storedPayloads(t, b.server.URL()); !slices.Equal(got, append([]string{"a"}, want...)) {
				t.Errorf("stored %q", got)
			}
			batched := map[string]int{}
			for _, kind := range w.kinds() {
				if strings.HasPrefix(kind, "batch ") {
					batched[kind]++
				}
			}
			for kind, n := range batched {
				if n > 1 {
					t.Errorf("%q was sent %d times", kind, n)
				}
			}
		})
	}
}

// A message whose context ends while it waits behind a full batch is not sent.
func TestBatchedContextEnds(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	proxy := natstest.NewProxy(t, server.URL())
	sink := newSink(t, nats.Config{URL: proxy.URL(), Ingest: sinks.IngestBatched, BatchAfter: 1, MaxPending: 1, CloseTimeout: 50 * time.Millisecond}, nil)
	proxy.Hang()
	first := publishBatched(t, sink, newMessage("first"))
	ctx, cancel := context.WithCancel(t.Context())
	msg := newMessage("second")
	msg.SetContext(ctx)
	second := publishBatched(t, sink, msg)
	third := publishBatched(t, sink, newMessage("third"))
	cancel()
	wantFailed(t, second, context.Canceled)
	// Close ends what is under way.
	if err := sink.Close(); err != nil {
		t.Error(err)
	}
	wantFailed(t, first, sinks.ErrClosed)
	wantFailed(t, third, sinks.ErrClosed)
}

// Batches need a stream that allows them, and a server that knows them.
func TestBatchedRefusesToStart(t *testing.T) {
	t.Parallel()
	url, js := withStream(t, jetstream.StreamConfig{Subjects: []string{"agrimill.>"}})
	config := nats.Config{URL: url, Ingest: sinks.IngestBatched, BatchAfter: 1}
	for _, config.Provision = range []nats.Provision{nats.ProvisionCreate, nats.ProvisionNone} {
		if _, err := nats.New(config, nil); !errors.Is(err, nats.ErrStream) || !strings.Contains(err.Error(), "allow_batched") {
			t.Errorf("%v: %v", config.Provision, err)
		}
	}
	config.Provision = nats.ProvisionUpdate
	sink := newSink(t, config, nil)
	p := publishBatched(t, sink, newMessage("x"))
	if wantStored(t, p); p.HoldsBehind() {
		t.Error("not in a batch")
	}
	// Whoever does not need it leaves it.
	newSink(t, nats.Config{URL: url, Provision: nats.ProvisionUpdate, MaxMessages: 100}, nil)
	stream, err := js.Stream(t.Context(), nats.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	if !stream.CachedInfo().Config.AllowBatchPublish {
		t.Error("batches are not allowed any more")
	}
	for version, want := range map[string]bool{
		"2.14.0": true, "2.15.2": true, "3.0.0": true, "2.14.0-RC.1": true, "2.13.9": false, "2.9.25": false, "1.4.1": false, "": true,
	} {
		if got := nats.HasBatches(version); got != want {
			t.Errorf("server %q has batches: %v", version, got)
		}
	}
}

// What the server has acknowledged in a batch has the form that is read without a decoder, else every
// message takes longer.
func TestBatchAnswerForm(t *testing.T) {
	t.Parallel()
	server, sink := startBatched(t, nats.Config{})
	conn, _ := connect(t, server.URL())
	answers := make(chan *natsgo.Msg, 10)
	if _, err := conn.ChanSubscribe("_INBOX.>", answers); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	wantStored(t, publishBatched(t, sink, newMessage("x")))
	for {
		answer := <-answers
		if !strings.HasSuffix(answer.Subject, ".$FI") {
			continue
		}
		var ack struct{ Seq int }
		if err := json.Unmarshal(answer.Data, &ack); err != nil {
			t.Fatal(err)
		}
		if !nats.UsualBatchAck(answer.Data) {
			t.Errorf("%s", answer.Data)
		}
		if ack.Seq == 1 {
			return
		}
	}
}
