package nats_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sources/nats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testkit.SuiteLeaks()...) }

// putKeys stores n messages "key number" in turn for each of the keys, each number of a key
// once.
func (f *field) putKeys(keys, n int) {
	f.Helper()
	for i := range n {
		msg := natsgo.NewMsg(fieldSubject)
		msg.Header.Set("Key", fmt.Sprintf("k%d", i%keys))
		msg.Data = fmt.Appendf(nil, "k%d %d", i%keys, i/keys)
		testkit.Must(f.js.PublishMsgAsync(msg))(f)
	}
	<-f.js.PublishAsyncComplete()
}

func keyed(c *nats.Config) { c.KeyHeader = "Key" }

// tally checks the order in which messages are handled, within each key.
type tally struct {
	testing.TB
	mu    sync.Mutex
	next  map[string]int
	again int
}

// take notes a message that is about to be acked.
func (s *tally) take(msg *message.Message) (n int) {
	s.Helper()
	var key string
	var number int
	if _, err := fmt.Sscan(string(msg.Payload), &key, &number); err != nil {
		s.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch want := s.next[key]; {
	case number == want:
		s.next[key]++
	case number < want:
		s.again++
	default:
		s.Errorf("%s comes before %d of its key", msg.Payload, want)
	}
	for _, next := range s.next {
		n += next
	}
	return n
}

// handle acks n messages, each in a goroutine that takes a moment and nacks some.
func (s *tally) handle(messages <-chan *message.Message, n int) {
	s.Helper()
	s.next = map[string]int{}
	done := make(chan struct{})
	var handlers sync.WaitGroup
	defer handlers.Wait()
	var once sync.Once
	for i := 0; ; i++ {
		select {
		case msg := <-messages:
			handlers.Go(func() {
				if i%17 == 5 {
					msg.Nack()
					return
				}
				if s.take(msg) == n {
					once.Do(func() { close(done) })
				}
				msg.Ack()
			})
		case <-done:
			return
		case <-time.After(testkit.Patience):
			s.Fatalf("nothing came after %d of %d", i, n)
		}
	}
}

// Subscriptions end, as with a reload, while messages are open, read ahead and on their way: what was not
// acked comes again in order, and at once, because AckWait is longer than the test waits.
func TestKeysKeepTheirOrderOverSubscriptions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		n, keys, room, perRound int
		live                    bool
	}{
		"an open request":  {n: 25, keys: 3, room: 10, perRound: 3},
		"a full stream":    {n: 1000, keys: 3, room: 10, perRound: 100},
		"one at a time":    {n: 60, keys: 1, room: 1, perRound: 3},
		"while more comes": {n: 3000, keys: 5, room: 100, perRound: 200, live: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newField(t)
			var putting sync.WaitGroup
			defer putting.Wait()
			if test.live {
				putting.Go(func() { f.putKeys(test.keys, test.n) })
			} else {
				f.putKeys(test.keys, test.n)
			}
			order := &tally{TB: t, next: map[string]int{}}
			for round, taken := 0, 0; taken < test.n && !t.Failed(); round++ {
				taken += f.takeSome(order, round, min(test.perRound, test.n-taken), test.room)
			}
			if order.again > 0 {
				t.Errorf("%d messages came again", order.again)
			}
			testkit.Eventually(t, "nothing is left", func() bool { return t.Failed() || f.pending() == 0 })
		})
	}
}

// takeSome subscribes, acks n messages, and ends the subscription while the last of them is open, which
// is nacked in every third round. It returns how many were acked.
func (f *field) takeSome(order *tally, round, n, room int) (acked int) {
	f.Helper()
	s := f.subscriber(keyed, func(c *nats.Config) {
		c.AckWait, c.MaxInFlight, c.MaxNackDelay, c.CloseTimeout = 10*time.Minute, room, time.Millisecond, testkit.Patience
	})
	ctx, end := context.WithCancel(f.Context())
	defer end()
	messages := testkit.Must(s.Subscribe(ctx, fieldSubject))(f)
	for range n - 1 {
		msg := f.next(messages)
		order.take(msg)
		msg.Ack()
	}
	last := f.next(messages)
	end()
	ended := make(chan struct{})
	go func() { // ends with the subscription
		defer close(ended)
		for msg := range messages { // handed out at that moment
			msg.Nack()
		}
	}()
	for range 3 * (round % 4) { // what nothing holds up may be sent back meanwhile
		f.pending()
	}
	if round%3 == 1 {
		n--
		last.Nack()
	} else {
		order.take(last)
		last.Ack()
	}
	if err := s.Close(); err != nil {
		f.Error(err)
	}
	<-ended
	return n
}

// The last that a subscription says about what it sends back asks for an answer, and the subscription ends with that. Else
// the next one could get newer messages before the server has taken back these.
func TestWhatIsSentBackIsTakenInBeforeTheEnd(t *testing.T) {
	t.Parallel()
	f := newField(t)
	words := testkit.Must(f.js.Conn().SubscribeSync("$JS.ACK.FIELD.out.>"))(t)
	f.put(0, 10)
	s := f.subscriber(keyed, func(c *nats.Config) { c.MaxInFlight, c.AckWait = 10, 10*time.Minute })
	ctx, end := context.WithCancel(t.Context())
	messages := testkit.Must(s.Subscribe(ctx, fieldSubject))(t)
	open := f.next(messages)
	end()
	open.Nack()
	for msg := range messages {
		msg.Nack()
	}
	testkit.NoError(t, f.js.Conn().Flush())
	back, last := 0, &natsgo.Msg{}
	for n, _, _ := words.Pending(); n > 0; n-- {
		last = testkit.Must(words.NextMsg(testkit.Patience))(t)
		if strings.HasPrefix(string(last.Data), "-NAK") {
			back++
		}
	}
	if back == 0 || string(last.Data) != "+WPI" || last.Reply == "" {
		t.Errorf("%d were sent back, and the last word was %q, answered to %q; want some, and a question", back, last.Data, last.Reply)
	}
}

// Connections break while deliveries are on their way: what was lost of them comes before
// what is behind it.
func TestKeysKeepTheirOrderOverLostConnections(t *testing.T) {
	inBubble(t, func(f *field) {
		const n = 3000
		f.putKeys(20, n)
		s := f.subscriber(keyed, func(c *nats.Config) { c.AckWait, c.MaxInFlight, c.MaxNackDelay = 5*time.Second, 50, time.Millisecond })
		messages := f.subscribe(s)
		through := make(chan *message.Message)
		stop := make(chan struct{})
		var relay sync.WaitGroup
		relay.Go(func() { // ends with stop
			for i := 0; ; i++ {
				select {
				case msg := <-messages:
					if i%700 == 300 {
						f.proxy.LoseReplies() // what is delivered from here on is lost
						time.AfterFunc(10*time.Millisecond, f.proxy.Cut)
					}
					select {
					case through <- msg:
					case <-stop:
						return
					}
				case <-stop:
					return
				}
			}
		})
		order := &tally{TB: f}
		order.handle(through, n)
		close(stop)
		relay.Wait()
		f.Logf("%d messages came again", order.again)
	})
}

// Nothing comes twice, and nothing else comes, while a message is open over a connection
// that hangs for longer than AckWait.
func TestOneOpenOverHang(t *testing.T) {
	inBubble(t, func(f *field) {
		f.put(0, 4)
		messages := f.subscribe(f.subscriber(func(c *nats.Config) { c.MaxInFlight, c.AckWait = 1, time.Second }))
		first := f.next(messages)
		f.proxy.Hang()
		f.nothing(messages, 1500*time.Millisecond)
		f.proxy.Resume()
		f.nothing(messages, 1500*time.Millisecond)
		first.Ack()
		for i := 1; i < 4; i++ {
			msg := f.next(messages)
			if string(msg.Payload) != fmt.Sprint(i) {
				f.Errorf("%s came, want %d", msg.Payload, i)
			}
			msg.Ack()
		}
		testkit.Eventually(f, "nothing is left", func() bool { return f.pending() == 0 })
	})
}

// nothing checks that no message comes for d.
func (f *field) nothing(messages <-chan *message.Message, d time.Duration) {
	f.Helper()
	select {
	case msg := <-messages:
		f.Errorf("%s came", msg.Payload)
	case <-time.After(d):
	}
}

// A key of which nothing is acked holds up others until it has its share, and nothing of it
// is lost or overtaken.
func TestStalledKey(t *testing.T) {
	inBubble(t, func(f *field) {
		const stalled = 200
		for i := range stalled {
			testkit.Must(f.js.Publish(f.Context(), "field.stalled", fmt.Appendf(nil, "stalled %d", i)))(f)
		}
		testkit.Must(f.js.Publish(f.Context(), "field.other", []byte("other 0")))(f)
		s := f.subscriber(func(c *nats.Config) { c.MaxInFlight = 8 })
		messages := testkit.Must(s.Subscribe(context.Background(), "field.>"))(f)
		first := f.next(messages)
		other := f.next(messages) // although 32 that are held before it fill the room
		if string(first.Payload) != "stalled 0" || string(other.Payload) != "other 0" {
			f.Fatalf("%q and %q came", first.Payload, other.Payload)
		}
		other.Ack()
		first.Ack()
		for i := 1; i < stalled; i++ {
			msg := f.next(messages)
			if string(msg.Payload) != fmt.Sprintf("stalled %d", i) {
				f.Fatalf("%q came, want number %d", msg.Payload, i)
			}
			msg.Ack()
		}
		testkit.Eventually(f, "nothing is left", func() bool { return f.pending() == 0 })
	})
}

// consumer makes a durable as somebody else would.
func (f *field) consumer(change func(*jetstream.ConsumerConfig)) {
	f.Helper()
	config := jetstream.ConsumerConfig{Durable: "out", FilterSubject: fieldSubject, AckPolicy: jetstream.AckExplicitPolicy}
	change(&config)
	testkit.Must(f.js.CreateOrUpdateConsumer(f.Context(), "FIELD", config))(f)
}

func (f *field) config() jetstream.ConsumerConfig {
	f.Helper()
	consumer := testkit.Must(f.js.Consumer(f.Context(), "FIELD", "out"))(f)
	return consumer.CachedInfo().Config
}

// Somebody else's consumer is read as it is, and its BackOff is heeded.
func TestForeignConsumer(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.consumer(func(c *jetstream.ConsumerConfig) {
		c.BackOff, c.MaxAckPending = []time.Duration{time.Second, 2 * time.Second}, 7
	})
	before := f.config()
	f.put(0, 1)
	messages := f.subscribe(f.subscriber(func(c *nats.Config) { c.AckWait = 10 * testkit.Patience }))
	msg := f.next(messages)
	f.reported(2)
	msg.Ack()
	if after := f.config(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the consumer was changed from %+v to %+v", before, after)
	}
	testkit.Eventually(t, "nothing is left", func() bool { return f.pending() == 0 })
}

// What a Subscriber made gets the AckWait of the next one, and nothing else.
func TestOwnConsumer(t *testing.T) {
	t.Parallel()
	f := newField(t)
	for _, wait := range []time.Duration{20 * time.Second, 40 * time.Second} {
		s := f.subscriber(func(c *nats.Config) { c.AckWait = wait })
		f.subscribe(s)
		testkit.NoError(t, s.Close())
		if have := f.config(); have.AckWait != wait || have.MaxDeliver != -1 || have.MaxAckPending != 100_000 {
			t.Errorf("the consumer is %+v", have)
		}
	}
	_, err := f.subscriber().Subscribe(t.Context(), "field.>")
	testkit.ErrorIs(t, err, nats.ErrConfig)
}

// The stream's limit for consumers holds for those that are made.
func TestConsumerLimits(t *testing.T) {
	t.Parallel()
	f := newField(t)
	stream := testkit.Must(f.js.Stream(t.Context(), "FIELD"))(t)
	config := stream.CachedInfo().Config
	config.ConsumerLimits.MaxAckPending = 50
	testkit.Must(f.js.UpdateStream(t.Context(), config))(t)
	f.put(0, 100)
	seen := map[string]bool{}
	f.takeAll(f.subscribe(f.subscriber()), seen, 100)
	if have := f.config(); have.MaxAckPending != 50 {
		t.Errorf("MaxAckPending is %d, want 50", have.MaxAckPending)
	}
}

// failingOnce cannot read one message the first time.
type failingOnce struct {
	what string
	mu   sync.Mutex
	n    int
}

func (u *failingOnce) Unmarshal(raw *natsgo.Msg) (*message.Message, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if string(raw.Data) == u.what {
		u.n++
		return nil, errors.New("unreadable")
	}
	return message.NewMessage(string(raw.Data), raw.Data), nil
}

// A message that cannot be read does not hold up its key, and stays unacknowledged.
func TestUnreadableMessage(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 3)
	s := f.subscriber(func(c *nats.Config) { c.Unmarshaler = &failingOnce{what: "1"} })
	messages := f.subscribe(s)
	var got []string
	for range 2 {
		msg := f.next(messages)
		got = append(got, msg.UUID)
		msg.Ack()
	}
	testkit.Equal(t, got, []string{"0", "2"})
	testkit.NoError(t, s.Close())
	testkit.Eventually(t, "one is left", func() bool { return f.pending() == 1 })
}

// byHand makes messages without message.NewMessage, and none of "1", without saying why.
type byHand struct{}

func (byHand) Unmarshal(raw *natsgo.Msg) (*message.Message, error) {
	if string(raw.Data) == "1" {
		return nil, nil
	}
	return &message.Message{UUID: string(raw.Data), Payload: raw.Data}, nil
}

// A message made by hand is acked as any other, and one that was not made stays unacknowledged.
func TestMessagesMadeByHand(t *testing.T) {
	inBubble(t, func(f *field) {
		f.put(0, 3)
		s := f.subscriber(func(c *nats.Config) { c.Unmarshaler = byHand{} })
		messages := f.subscribe(s)
		for _, want := range []string{"0", "2"} {
			msg := f.next(messages)
			synctest.Wait() // the subscriber waits for its ack
			msg.Metadata.Set("key", "value")
			testkit.Equal(f, msg.UUID, want)
			msg.Ack()
		}
		testkit.NoError(t, s.Close())
		testkit.Eventually(t, "one is left", func() bool { return f.pending() == 1 })
	})
}

// A message may look like a word of the server about the request: no payload, and a status in
// the headers. It is delivered as any other, and ends nothing.
func TestMessageThatLooksLikeAStatus(t *testing.T) {
	t.Parallel()
	f := newField(t)
	messages := f.subscribe(f.subscriber())
	for _, status := range []string{"100", "404", "408", "409", "503"} {
		msg := natsgo.NewMsg(fieldSubject)
		msg.Header.Set("Status", status)
		msg.Header.Set("Description", "Consumer Deleted")
		testkit.Must(f.js.PublishMsg(t.Context(), msg))(t)
		got := f.next(messages)
		if len(got.Payload) != 0 || got.Metadata["Status"] != status {
			t.Errorf("got %q with %v, want the status %s", got.Payload, got.Metadata, status)
		}
		got.Ack()
	}
	testkit.Eventually(t, "nothing is left", func() bool { return f.pending() == 0 })
}

// Two readers of one consumer lose their connections while deliveries are on their way. There
// is no order between them, and everything comes to one of them.
func TestTwoReadersOverLostConnections(t *testing.T) {
	inBubble(t, func(f *field) {
		const n = 600
		f.put(0, n)
		change := func(c *nats.Config) { c.AckWait, c.MaxInFlight, c.MaxNackDelay = 5*time.Second, 20, time.Millisecond }
		one, two := f.subscribe(f.subscriber(change)), f.subscribe(f.subscriber(change))
		seen := map[string]bool{}
		timeout := time.After(testkit.Patience)
		for i := 0; len(seen) < n; i++ {
			var msg *message.Message
			select {
			case msg = <-one:
			case msg = <-two:
			case <-timeout:
				f.Fatalf("%d of %d messages came", len(seen), n)
			}
			if i == 100 || i == 300 {
				f.proxy.Cut()
			}
			seen[string(msg.Payload)] = true
			msg.Ack()
		}
		testkit.Eventually(f, "nothing is left", func() bool {
			select {
			case msg := <-one:
				msg.Ack()
			case msg := <-two:
				msg.Ack()
			default:
			}
			return f.pending() == 0
		})
	})
}
