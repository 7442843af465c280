package nats_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

// stock opens the subscriber of watermill-nats.
func (f *field) stock(change ...func(*nats.Config)) nats.Source {
	f.Helper()
	config := nats.Config{
		Connection: sinknats.Connection{URL: f.proxy.URL(), ConnectTimeout: time.Second}, Durable: "out",
		Driver: nats.DriverWatermill, CloseTimeout: time.Second, MaxNackDelay: time.Millisecond,
	}
	for _, c := range change {
		c(&config)
	}
	s, err := nats.Open(config, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	return s
}

// subscribeStock waits for the subject, too.
func (f *field) subscribeStock(ctx context.Context, s nats.Source) <-chan *message.Message {
	f.Helper()
	messages, err := s.Subscribe(ctx, fieldSubject)
	if err != nil {
		f.Fatal(err)
	}
	return messages
}

// A place has the same name with both drivers, for each delivery, and no other message has it.
func TestWatermillDriverNamesDeliveries(t *testing.T) {
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
	messages := f.subscribeStock(t.Context(), f.stock(func(c *nats.Config) { c.Durable = "stock" }))
	take(messages).Nack()
	take(messages).Ack()
	take(messages).Ack()
	messages = f.subscribe(f.subscriber())
	take(messages).Ack()
	take(messages).Ack()
	testkit.Equal(t, names, []string{names[0], names[0], names[2], names[0], names[2]})
	if names[0] == names[2] || names[0] == "" {
		t.Errorf("names %q", names)
	}
}

// Everything comes, also what was nacked, and after that what the next one finds: its
// acks outlive it.
func TestWatermillDriver(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 20)
	s := f.stock()
	if _, err := s.Backlog(t.Context()); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("before Subscribe: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	messages := f.subscribeStock(ctx, s)
	uuids := map[string]bool{}
	for i := 0; i < 10; i++ {
		msg := f.next(messages)
		if i%3 == 1 {
			msg.Nack()
			msg = f.next(messages)
		}
		if string(msg.Payload) != fmt.Sprint(i) {
			t.Errorf("%s came, want %d", msg.Payload, i)
		}
		uuids[msg.UUID] = true
		msg.Ack()
	}
	if len(uuids) != 10 || uuids[""] {
		t.Errorf("UUIDs %v", uuids)
	}
	testkit.Eventually(t, "10 are left", func() bool {
		n, err := s.Backlog(t.Context())
		return err == nil && n == 10
	})
	cancel()
	for msg := range messages { // one may be on its way
		msg.Nack()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Subscribe(t.Context(), fieldSubject); !errors.Is(err, nats.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	seen := map[string]bool{}
	f.takeAll(f.subscribeStock(context.Background(), f.stock()), seen, 10)
	if seen["9"] {
		t.Error("an acked message came again")
	}
}

// A deadline that passes while a message is handled: it comes again, and the first copy's
// context has ended.
func TestWatermillDriverLetsAckWaitExpire(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 1)
	s := f.stock(func(c *nats.Config) { c.AckWait = time.Second })
	messages := f.subscribeStock(context.Background(), s)
	first := f.next(messages)
	again := f.next(messages)
	<-first.Context().Done()
	first.Ack()
	if first.UUID != again.UUID {
		t.Errorf("the deliveries of one message have the UUIDs %q and %q", first.UUID, again.UUID)
	}
	again.Ack()
	testkit.Eventually(t, "nothing is left", func() bool {
		n, err := s.Backlog(t.Context())
		return err == nil && n == 0
	})
}

func TestWatermillDriverOutage(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 5)
	s := f.stock(func(c *nats.Config) { c.AckWait, c.CloseTimeout = time.Second, 100*time.Millisecond })
	seen := map[string]bool{}
	messages := f.subscribeStock(context.Background(), s)
	f.takeAll(messages, seen, 5)
	f.proxy.Cut()
	f.put(5, 5)
	f.takeAll(messages, seen, 10)
	f.server.Stop()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }() // ends with Close
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("Close does not return")
	}
	down := f.stock()
	if _, err := down.Subscribe(t.Context(), fieldSubject); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
	f.restart()
	f.put(10, 1)
	f.takeAll(f.subscribeStock(context.Background(), down), seen, 11)
}

// Consumers that do not fit are refused and not changed: those of the other driver, too.
func TestWatermillDriverUnfitConsumers(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 1)
	f.next(f.subscribe(f.subscriber())).Ack()
	if _, err := f.stock().Subscribe(t.Context(), fieldSubject); !errors.Is(err, nats.ErrConfig) {
		t.Errorf("a pull consumer: %v", err)
	}
	push := func(c *nats.Config) { c.Durable = "push" }
	f.put(1, 1)
	f.next(f.subscribeStock(context.Background(), f.stock(push))).Ack()
	if _, err := f.subscriber(push).Subscribe(t.Context(), fieldSubject); !errors.Is(err, nats.ErrConfig) {
		t.Errorf("a push consumer for the other driver: %v", err)
	}
	if _, err := f.js.CreatePushConsumer(t.Context(), "FIELD", jetstream.ConsumerConfig{
		Durable: "lossy", FilterSubject: fieldSubject, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3,
		DeliverSubject: "lossy.push", DeliverGroup: "lossy",
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.stock(func(c *nats.Config) { c.Durable = "lossy" }).Subscribe(t.Context(), fieldSubject); !errors.Is(err, nats.ErrConfig) {
		t.Errorf("with max_deliver: %v", err)
	}
	if _, err := f.stock().Subscribe(t.Context(), "nothing.here"); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("without a stream: %v", err)
	}
}

func TestDriverSettings(t *testing.T) {
	for name, config := range map[string]nats.Config{
		"key header": {Durable: "a", Driver: nats.DriverWatermill, KeyHeader: "Key"},
		"unknown":    {Durable: "a", Driver: 7},
		"no durable": {Driver: nats.DriverWatermill},
		"default":    {},
	} {
		if s, err := nats.Open(config, nil); !errors.Is(err, nats.ErrConfig) || s != nil {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if _, err := nats.New(nats.Config{Durable: "a", Driver: nats.DriverWatermill}, nil); !errors.Is(err, nats.ErrConfig) {
		t.Errorf("New with another driver: %v", err)
	}
	s, err := nats.Open(nats.Config{Durable: "a"}, nil)
	if _, own := s.(*nats.Subscriber); err != nil || !own {
		t.Errorf("Open = %T, %v", s, err)
	}
	_ = s.Close()
	for _, d := range []nats.Driver{nats.DriverAgrimill, nats.DriverWatermill} {
		var parsed nats.Driver
		if err := parsed.UnmarshalText([]byte(d.String())); err != nil || parsed != d {
			t.Errorf("%v becomes %v, %v", d, parsed, err)
		}
	}
}
