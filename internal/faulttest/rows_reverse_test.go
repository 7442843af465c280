//go:build faults

package faulttest

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

// outward is the way back: JetStream to the gateway.
type outward struct {
	*world
	source  sinks.Sink
	context map[string][sha256.Size]byte // what was put into JetStream
	partial map[string]bool              // with a recipient that does not exist
}

const outTopic = "out"

func newOutward(t *testing.T, cfg gatewaytest.Config) *outward {
	t.Helper()
	w := newWorld(t, worldConfig{gateway: cfg})
	source, err := nats.New(nats.Config{URL: w.broker.(*natsBroker).Server.URL()}, w.logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close() })
	return &outward{world: w, source: source, context: map[string][sha256.Size]byte{}, partial: map[string]bool{}}
}

// put stores n messages to be sent, every twentieth of them also to somebody who
// does not exist.
func (o *outward) put(n int) {
	o.Helper()
	for range n {
		payload := o.bytes(100)
		msg := message.NewMessage(uuid.NewString(), payload)
		msg.Metadata = message.Metadata{gateway.KeyMessageType: messageType, gateway.KeyContextID: uuid.NewString(),
			gateway.KeyDirectRecipients: o.receivers[0].ID}
		if len(o.context)%20 == 7 {
			msg.Metadata[gateway.KeyDirectRecipients] += "," + uuid.NewString()
			o.partial[msg.Metadata[gateway.KeyContextID]] = true
		}
		o.context[msg.Metadata[gateway.KeyContextID]] = sha256.Sum256(payload)
		if err := o.source.Publish(outTopic, msg); err != nil {
			o.Fatal(err)
		}
	}
}

// run starts the pipeline and returns what stops it.
func (o *outward) run() (r *router.Router, stop func() error) {
	o.Helper()
	cfg := newParts(o.gateway.ClientConfig(), address{}).Gateway
	cfg.Retry.MaxAttempts = 2
	client, err := gateway.New(cfg)
	if err != nil {
		o.Fatal(err)
	}
	pub, err := publisher.New(publisher.Config{Client: client, TenantID: o.gateway.Tenant(), EndpointID: o.sender.ID}, o.logger())
	if err != nil {
		o.Fatal(err)
	}
	from := &jetStreamSubscriber{url: o.broker.address().Address}
	poison, err := nats.New(nats.Config{URL: o.broker.(*natsBroker).Server.URL()}, o.logger())
	if err != nil {
		o.Fatal(err)
	}
	r, err = router.New(router.Config{
		Poison: poison, CloseTimeout: 8 * time.Second,
		Retry: router.RetryConfig{InitialInterval: 10 * time.Millisecond, MaxInterval: 100 * time.Millisecond},
	}, o.logger())
	if err != nil {
		o.Fatal(err)
	}
	if err := r.Add(router.Route{
		Name: "to the gateway", From: from, Topic: "agrimill." + outTopic, To: sinks.FromPublisher("gateway", pub), ToTopic: "{type}",
	}); err != nil {
		o.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }() // ends with ctx
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return errors.Join(<-done, client.Close())
	}
	o.Cleanup(func() { _ = stop() })
	return r, stop
}

// waitAll waits until everything that can arrive has.
func (o *outward) waitAll() {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), patience)
	defer cancel()
	if err := o.gateway.Wait(ctx, func(ledger []gatewaytest.LedgerEntry) bool {
		return len(ledger) >= len(o.context) && len(contexts(ledger)) == len(o.context)
	}); err != nil {
		o.Fatalf("%d of %d messages arrived: %v", len(contexts(o.gateway.Ledger())), len(o.context), err)
	}
}

func contexts(ledger []gatewaytest.LedgerEntry) map[string]int {
	count := map[string]int{}
	for _, e := range ledger {
		count[e.ContextID]++
	}
	return count
}

// judgeOutward holds that everything arrived whole, and once after deduplication
// by context ID; raw duplicates at most max. A partial delivery is never repeated
// once it was told.
func (o *outward) judgeOutward(maxDuplicates int) {
	o.Helper()
	ledger := o.gateway.Ledger()
	duplicates := 0
	for id, n := range contexts(ledger) {
		if _, known := o.context[id]; !known {
			o.Errorf("%s arrived and was never sent", id)
		}
		duplicates += n - 1
	}
	for _, e := range ledger {
		if e.SHA256 != o.context[e.ContextID] || e.EndpointID != o.receivers[0].ID {
			o.Errorf("%s arrived with other bytes or at another endpoint", e.ContextID)
		}
	}
	if duplicates > maxDuplicates {
		o.Errorf("%d raw duplicates, at most %d answers were lost", duplicates, maxDuplicates)
	}
	o.Logf("sent %d (%d partly), arrived %d, raw duplicates %d", len(o.context), len(o.partial), len(ledger), duplicates)
}

// The service fails in every way while messages go to it.
func TestRow31Outward(t *testing.T) {
	o := newOutward(t, gatewaytest.Config{})
	lost := 0
	for _, f := range []gatewaytest.Fault{
		{Status: 429, Times: 5, Header: http.Header{"Retry-After": {"0"}}}, {Status: 500, Times: 20}, {Status: 503, Times: 20},
		{Refuse: true, Times: 20}, {DropAnswer: true, Times: 20}, {Status: 500, AfterWork: true, Times: 20}, {Hang: true, Times: 2},
		{Status: 401, Times: 5},
	} {
		f.Skip = o.rng.IntN(messages / 2)
		if f.DropAnswer || f.AfterWork || f.Hang {
			lost += f.Times
		}
		i := o.gateway.Inject(gatewaytest.OpSendMessage, f)
		time.AfterFunc(10*time.Second, i.Lift)
	}
	o.put(messages / 2)
	r, _ := o.run()
	o.put(messages / 2)
	o.waitAll()
	defer func() { t.Logf("%+v", r.Health()[0]) }()
	o.eventually("all are done", func() bool {
		h := r.Health()[0]
		return h.InFlight == 0 && h.Delivered+h.Poisoned+h.Duplicates >= uint64(len(o.context))
	})
	o.judgeOutward(lost)
	if h := r.Health()[0]; h.Poisoned != uint64(len(o.partial)) {
		t.Errorf("%d messages are in the poison queue, want the %d that arrived in part", h.Poisoned, len(o.partial))
	}
	if err := o.oracle.archive.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	poisoned := 0
	for _, records := range o.oracle.archive.all() {
		poisoned += len(slices.DeleteFunc(slices.Clone(records), func(r record) bool {
			return !r.poisoned() || !strings.Contains(r.metadata[router.KeyPoisonReason], "Recipient")
		}))
	}
	if poisoned != len(o.partial) {
		t.Errorf("the poison queue tells of %d partial deliveries, want %d", poisoned, len(o.partial))
	}
}

// The source is down, its acknowledgements are lost, and the process is
// restarted (rows 16, 17 and 22, outward).
func TestRow31SourceFaults(t *testing.T) {
	o := newOutward(t, gatewaytest.Config{})
	o.put(messages / 4)
	_, stop := o.run()
	for i := range 3 {
		switch i {
		case 0:
			o.broker.cut()
		case 1:
			o.broker.hang()
			o.pause(500 * time.Millisecond)
			o.broker.resume()
		case 2:
			if err := stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			_, stop = o.run()
		}
		o.put(messages / 4)
	}
	o.waitAll()
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	o.judgeOutward(messages / 4)
}

// jetStreamSubscriber is a Watermill subscriber as simple as can be: a durable
// consumer, up to 64 messages open.
type jetStreamSubscriber struct {
	url  string
	mu   sync.Mutex
	ends []func()
}

func (s *jetStreamSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	conn, err := natsgo.Connect(s.url, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20*time.Millisecond))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	consumer, err := js.CreateOrUpdateConsumer(ctx, "AGRIMILL", jetstream.ConsumerConfig{
		Durable: "out", FilterSubject: topic, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 5 * time.Second, MaxAckPending: 64,
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(32), jetstream.PullHeartbeat(500*time.Millisecond), jetstream.PullExpiry(2*time.Second))
	if err != nil {
		conn.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan *message.Message)
	var open, reader sync.WaitGroup
	reader.Go(func() { // ends with messages
		defer close(out)
		for {
			raw, err := messages.Next()
			if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
				return
			}
			if err != nil {
				continue // it goes on after an outage
			}
			msg, err := (nats.Marshaler{}).Unmarshal(&natsgo.Msg{Data: raw.Data(), Header: raw.Headers()})
			if err != nil {
				continue
			}
			select {
			case out <- msg:
			case <-ctx.Done():
				continue
			}
			open.Go(func() {
				select {
				case <-msg.Acked():
					_ = raw.Ack() // a lost one means that it comes again
				case <-msg.Nacked():
					_ = raw.Nak()
				case <-ctx.Done():
				}
			})
		}
	})
	end := sync.OnceFunc(func() {
		messages.Stop()
		cancel()
		reader.Wait()
		open.Wait()
		conn.Close()
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, end)
	context.AfterFunc(ctx, end)
	return out, nil
}

func (s *jetStreamSubscriber) Close() error {
	s.mu.Lock()
	ends := s.ends
	s.mu.Unlock()
	for _, end := range ends {
		end()
	}
	return nil
}
