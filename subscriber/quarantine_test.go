package subscriber_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/streamproxy"
	"github.com/agrimill/agrimill/subscriber"
)

// shelf stores messages, unless it is told to fail.
type shelf struct {
	mu     sync.Mutex
	stored []*message.Message
	calls  int
	held   atomic.Int64 // calls that wait for hold, or have
	// fail decides, called with the lock held. Nil: it works.
	fail func(msg *message.Message) error
	// hold, when not nil, is waited for before anything is stored.
	hold chan struct{}
}

func (s *shelf) Publish(_ string, messages ...*message.Message) error {
	if s.hold != nil {
		s.held.Add(1)
		select {
		case <-s.hold:
		case <-messages[0].Context().Done():
			return messages[0].Context().Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, msg := range messages {
		s.calls++
		if s.fail != nil {
			if err := s.fail(msg); err != nil {
				return err
			}
		}
		s.stored = append(s.stored, msg)
	}
	return nil
}

func (s *shelf) Close() error { return nil }

func (s *shelf) set(fail func(*message.Message) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *shelf) all() []*message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*message.Message(nil), s.stored...)
}

func (s *shelf) tried() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

var errShelf = errors.New("the shelf is down")

func shelfDown(*message.Message) error { return errShelf }

// quarantineConfig has a quarantine, and sees the events of messages whose
// payload begins with "broken" without a readable time.
func (f *fixture) quarantineConfig(store message.Publisher) subscriber.Config {
	f.Helper()
	cfg := f.config()
	client := f.server.ClientConfig()
	broken := []byte(`"payload":"YnJva2Vu`)
	client.BaseURL = streamproxy.Start(f.T, client.BaseURL, func(event []byte) []byte {
		if !bytes.Contains(event, broken) && !bytes.Contains(event, []byte(`"filename":"broken"`)) {
			return event
		}
		return bytes.Replace(event, []byte(`"sent_at":"2`), []byte(`"sent_at":"about 2`), 1)
	})
	cfg.Client = f.newClient(client)
	cfg.Quarantine = subscriber.QuarantineConfig{
		Publisher: store, Retry: subscriber.Backoff{Initial: 2 * time.Millisecond, Max: 10 * time.Millisecond},
	}
	return cfg
}

func (f *fixture) sendBroken(n int) {
	f.Helper()
	for i := range n {
		f.send(typeJSON, fmt.Append(nil, "broken ", i), f.receiver)
	}
}

func (f *fixture) isConfirmed(id string) bool {
	for _, e := range f.server.Ledger() {
		if e.MessageID == id {
			return e.Confirmed()
		}
	}
	return false
}

// What cannot be decoded is stored as it came, and confirmed after that when its
// IDs could be read.
func TestMalformedEventIsQuarantinedAndThenConfirmed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	store := &shelf{hold: make(chan struct{})}
	sub, messages := f.receive(f.quarantineConfig(store))
	ids := f.send(typeJSON, []byte("broken"), f.receiver)
	var early atomic.Bool
	f.server.OnConfirm(func(e gatewaytest.LedgerEntry) {
		if e.MessageID == ids[0] && len(store.all()) == 0 {
			early.Store(true)
		}
	})
	f.send(typeJSON, []byte("good"), f.receiver)
	if msg := f.next(messages); string(msg.Payload) != "good" {
		t.Fatalf("got %q", msg.Payload)
	} else {
		msg.Ack()
	}
	f.waitConfirmed(1)
	if f.isConfirmed(ids[0]) {
		t.Error("it was confirmed before it was stored")
	}
	testkit.Eventually(f, "it waits", func() bool { return sub.Stats().QuarantineWaiting == 1 })
	close(store.hold)
	f.waitConfirmed(2)
	if early.Load() {
		t.Error("it was confirmed before the quarantine had it")
	}
	stored := store.all()
	if len(stored) != 1 {
		t.Fatalf("%d records", len(stored))
	}
	msg, m := stored[0], stored[0].Metadata
	if !bytes.Contains(msg.Payload, []byte(`"payload":"YnJva2Vu"`)) || !bytes.HasPrefix(msg.Payload, []byte("{")) {
		t.Errorf("stored %q", msg.Payload)
	}
	if m[subscriber.KeyQuarantineClass] != subscriber.QuarantineMalformed || !strings.Contains(m[subscriber.KeyQuarantineReason], "sent_at") ||
		m[subscriber.KeyQuarantineMessageIDs] != ids[0] || m[subscriber.KeyQuarantineEndpointID] != f.receiver.ID ||
		m[subscriber.KeyQuarantineEventType] != string(gateway.EventMessageReceived) || m[gateway.KeyDedupID] == "" {
		t.Errorf("metadata %v", m)
	}
	testkit.Must(time.Parse(time.RFC3339Nano, m[subscriber.KeyQuarantineReceived]))(t)
	if s := sub.Stats(); s.Malformed != 1 || s.Quarantined != 1 || s.QuarantineWaiting != 0 || s.Stream.Connects != 1 {
		t.Errorf("%+v", s)
	}
	f.close(sub)
}

// What cannot be confirmed comes again with each connection, and is stored once.
func TestQuarantineIsNotFilledWithCopies(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: 1000})
	store := &shelf{}
	sub, messages := f.receive(f.quarantineConfig(store))
	// Its payload is elsewhere, so the record does not have it.
	ids := f.sendRequest(gatewaytest.SendRequest{
		From: f.sender.ID, MessageType: typeJSON, Payload: random(5000), Filename: "broken", Recipients: []string{f.receiver.ID},
	})
	for i := range 5 {
		f.send(typeJSON, []byte("good"), f.receiver)
		f.next(messages).Ack()
		f.waitConfirmed(i + 1)
		f.server.CutStreams()
		testkit.Eventually(f, "connected again", func() bool { return sub.Stats().Stream.Connects == int64(i+2) })
	}
	testkit.Eventually(f, "it came again", func() bool { return sub.Stats().Malformed >= 5 })
	if got := store.all(); len(got) != 1 || got[0].Metadata[subscriber.KeyQuarantineMessageIDs] != ids[0] {
		t.Errorf("%d records", len(got))
	}
	if f.isConfirmed(ids[0]) {
		t.Error("it was confirmed, and its payload is not stored")
	}
	if q := sub.Stats().Quarantined; q != 1 {
		t.Errorf("Quarantined = %d", q)
	}
}

// While the store is down, events wait in their share of the window, the others are left with
// the service, the stream goes on, and nothing is confirmed. Then all come.
func TestQuarantineOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	store := &shelf{}
	store.set(shelfDown)
	cfg := f.quarantineConfig(store)
	cfg.MaxInFlight = 8
	sub, messages := f.receive(cfg)
	f.sendBroken(20)
	f.send(typeJSON, []byte("good"), f.receiver)
	f.next(messages).Ack() // behind all of them
	f.waitConfirmed(1)
	testkit.Eventually(f, "it is tried again", func() bool { return store.tried() > 5 })
	if s := sub.Stats(); s.QuarantineWaiting > 4 || s.Quarantined != 0 || s.QuarantineFailures == 0 || f.confirmed() != 1 {
		t.Errorf("%+v", s)
	}
	store.set(nil)
	f.waitConfirmed(21)
	seen := map[string]int{}
	for _, msg := range store.all() {
		seen[msg.Metadata[subscriber.KeyQuarantineMessageIDs]]++
	}
	if len(seen) != 20 || len(store.all()) != 20 {
		t.Errorf("%d records of %d events", len(store.all()), len(seen))
	}
	f.close(sub)
}

// Records are stored one at a time, in the order of the stream, and a store that hangs holds the stream back.
func TestQuarantineHoldsTheStreamBack(t *testing.T) {
	for _, order := range []subscriber.Order{subscriber.OrderByKey, subscriber.Unordered} {
		testkit.RunBubble(t, order.String(), func(t *testing.T) { testQuarantineHoldsTheStreamBack(t, order) })
	}
}

func testQuarantineHoldsTheStreamBack(t *testing.T, order subscriber.Order) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	store := &shelf{hold: make(chan struct{})}
	cfg := f.config()
	cfg.Order, cfg.MaxInFlight, cfg.Quarantine.Publisher = order, 3, store
	sub := f.subscriber(cfg)
	f.subscribe(sub, subscriber.AllData)
	synctest.Wait() // it is connected
	ids := make([]string, 5)
	for i := range ids {
		ids[i] = uuid.NewString()
		f.emit(gateway.EventMessageReceived, fmt.Sprintf(`"id":%q,"receiving_endpoint_id":%q`, ids[i], f.receiver.ID))
	}
	time.Sleep(time.Second / 2)
	if s := sub.Stats(); s.QuarantineWaiting != 3 || s.Malformed != 4 {
		t.Errorf("%d wait, %d have come; want 3, and the next one held back", s.QuarantineWaiting, s.Malformed)
	}
	close(store.hold)
	time.Sleep(time.Second)
	var stored []string
	for _, msg := range store.all() {
		stored = append(stored, msg.Metadata[subscriber.KeyQuarantineMessageIDs])
	}
	if !slices.Equal(stored, ids) {
		t.Errorf("stored %q, want %q", stored, ids)
	}
	if s := sub.Stats(); s.Stream.Connects != 1 || s.Quarantined != 5 {
		t.Errorf("%+v", s)
	}
	f.close(sub)
}

// What the store will never take is known by a notice, is not confirmed, and
// does not hold up the others.
func TestQuarantineRefusesAnEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: 1 << 20})
	store := &shelf{}
	store.set(func(msg *message.Message) error {
		if len(msg.Payload) > 10_000 {
			return errShelf
		}
		return nil
	})
	sub := f.subscriber(f.quarantineConfig(store))
	f.subscribe(sub, subscriber.AllData)
	large := f.send(typeJSON, append([]byte("broken"), random(50_000)...), f.receiver)
	f.sendBroken(3)
	f.waitConfirmed(3)
	if f.isConfirmed(large[0]) {
		t.Error("it was confirmed")
	}
	notices := 0
	for _, msg := range store.all() {
		if msg.Metadata[subscriber.KeyQuarantineBody] == "absent" {
			notices++
			if len(msg.Payload) != 0 || msg.Metadata[subscriber.KeyQuarantineMessageIDs] != large[0] {
				t.Errorf("%d bytes, %v", len(msg.Payload), msg.Metadata)
			}
		}
	}
	if notices == 0 || sub.Stats().Quarantined != 3 {
		t.Errorf("%d notices, %+v", notices, sub.Stats())
	}
}

// A sound copy of a message that is open decides about its confirmation, and one
// that comes after a broken one is delivered.
func TestQuarantineLeavesSoundCopiesAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	store := &shelf{}
	cfg := f.quarantineConfig(store)
	sub, messages := f.receive(cfg)
	ids := f.send(typeJSON, []byte("good"), f.receiver)
	open := f.next(messages)
	f.server.EmitRaw(f.server.Application(), fmt.Appendf(nil,
		"event: MESSAGE_RECEIVED\ndata: {\"event_type\":\"MESSAGE_RECEIVED\",\"id\":%q,\"receiving_endpoint_id\":%q,\"tenant_id\":%q}\n\n",
		ids[0], f.receiver.ID, f.server.Tenant()))
	testkit.Eventually(f, "stored", func() bool { return sub.Stats().Quarantined == 1 })
	f.sendBroken(1)
	f.waitConfirmed(1) // what the quarantine confirms after that one
	if f.isConfirmed(ids[0]) {
		t.Error("it was confirmed while its sound copy was open")
	}
	open.Ack()
	f.waitConfirmed(2)

	// Now the other way round: the broken one first.
	again := f.send(typeJSON, []byte("broken once"), f.receiver)
	f.waitConfirmed(3)
	entry := f.server.Ledger()[2]
	f.server.EmitRaw(f.server.Application(), fmt.Appendf(nil,
		"event: MESSAGE_RECEIVED\ndata: {\"event_type\":\"MESSAGE_RECEIVED\",\"id\":%q,\"app_message_id\":%q,\"message_type\":%q,"+
			"\"sent_at\":\"2026-01-01T00:00:00Z\",\"receiving_endpoint_id\":%q,\"tenant_id\":%q,\"payload\":\"c291bmQ=\"}\n\n",
		again[0], entry.ContextID, typeJSON, f.receiver.ID, f.server.Tenant()))
	if msg := f.next(messages); string(msg.Payload) != "sound" {
		t.Errorf("got %q", msg.Payload)
	} else {
		msg.Ack()
	}
	f.close(sub)
}

// A broken chunk of a file that is open is confirmed with the file only.
func TestQuarantineLeavesChunksToTheirFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{ChunkSize: 1000, FileOrder: gatewaytest.FileFirst})
	store := &shelf{}
	cfg := f.quarantineConfig(store)
	cfg.Files, cfg.ChunkSize = []string{typeFile}, 1000
	sub, messages := f.receive(cfg)
	f.send(typeFile, append([]byte("broken"), random(1900)...), f.receiver)
	file := f.next(messages)
	if file.Metadata[gateway.KeyEventType] != string(gateway.EventFileReceived) {
		t.Fatalf("got %v", file.Metadata)
	}
	testkit.Eventually(f, "the chunk is stored", func() bool { return sub.Stats().Quarantined == 1 })
	f.sendBroken(1)
	f.waitConfirmed(1)
	if ledger := f.server.Ledger(); ledger[0].Confirmed() || ledger[1].Confirmed() {
		t.Error("a chunk was confirmed before its file was acked")
	}
	file.Ack()
	f.waitConfirmed(3)
}

// Of what is too large there is a notice, which tells what could be read.
func TestTooLargeEventLeavesANotice(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: 1 << 20})
	store := &shelf{}
	cfg := f.config()
	client := f.server.ClientConfig()
	client.MaxEventSize = 100_000
	cfg.Client = f.newClient(client)
	cfg.Quarantine.Publisher = store
	sub, messages := f.receive(cfg)
	large := f.send(typeJSON, random(200_000), f.receiver)
	testkit.Eventually(f, "connected", func() bool { return f.server.Streams() == 1 })
	f.server.EmitRaw(f.server.Application(), []byte("data: "+strings.Repeat("x", 200_000)+"\n\n"))
	testkit.Eventually(f, "both are noticed", func() bool { return sub.Stats().Quarantined == 2 })
	for range 3 {
		f.send(typeJSON, []byte("small"), f.receiver)
		f.next(messages).Ack()
		f.server.CutStreams()
	}
	f.waitConfirmed(3)
	if s := sub.Stats(); s.TooLarge < 4 || s.Quarantined != 2 {
		t.Errorf("%d events were too large, %d are noticed; want the first one again and again, and both", s.TooLarge, s.Quarantined)
	}
	stored := store.all()
	if len(stored) != 2 {
		t.Fatalf("%d records", len(stored))
	}
	for i, msg := range stored {
		m := msg.Metadata
		if len(msg.Payload) != 0 || m[subscriber.KeyQuarantineClass] != subscriber.QuarantineTooLarge || m[subscriber.KeyQuarantineBody] != "absent" {
			t.Errorf("%d bytes, %v", len(msg.Payload), m)
		}
		if i == 0 && (m[subscriber.KeyQuarantineMessageIDs] != large[0] || m[subscriber.KeyQuarantineEventType] != string(gateway.EventMessageReceived)) {
			t.Errorf("metadata %v", m)
		}
	}
	if f.isConfirmed(large[0]) {
		t.Error("it was confirmed")
	}
}

// Close waits for the record that is being stored, and confirms it, but for no other one, and does not hang on a store that
// hangs.
func TestCloseAndTheQuarantine(t *testing.T) {
	t.Run("stores", func(t *testing.T) {
		f := newFixture(t, gatewaytest.Config{})
		store := &shelf{hold: make(chan struct{})}
		cfg := f.quarantineConfig(store)
		cfg.DrainTimeout = testkit.Patience
		sub := f.subscriber(cfg)
		f.subscribe(sub, subscriber.AllData)
		f.sendBroken(3)
		testkit.Eventually(f, "they wait", func() bool { return sub.Stats().QuarantineWaiting == 3 && store.held.Load() == 1 })
		closed := make(chan error, 1)
		go func() { closed <- sub.Close() }()
		testkit.Eventually(f, "the others are left", func() bool { return sub.Stats().QuarantineWaiting == 0 })
		close(store.hold)
		testkit.NoError(t, <-closed)
		if len(store.all()) != 1 || f.confirmed() != 1 {
			t.Errorf("%d stored, %d confirmed", len(store.all()), f.confirmed())
		}
	})
	t.Run("gives up", func(t *testing.T) {
		f := newFixture(t, gatewaytest.Config{})
		store := &shelf{hold: make(chan struct{})}
		cfg := f.quarantineConfig(store)
		cfg.DrainTimeout, cfg.Quarantine.Timeout = 50*time.Millisecond, time.Hour // the second one must not be needed
		sub := f.subscriber(cfg)
		f.subscribe(sub, subscriber.AllData)
		f.sendBroken(1)
		testkit.Eventually(f, "it waits", func() bool { return sub.Stats().QuarantineWaiting == 1 })
		testkit.NoError(t, closesInTime(t, sub))
		if f.confirmed() != 0 {
			t.Error("it was confirmed")
		}
	})
}

// The oldest digests are forgotten; then an event that was forgotten otherwise as well is stored once more.
func TestQuarantineRemembersSoMany(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	store := &shelf{}
	cfg := f.quarantineConfig(store)
	cfg.Quarantine.Remember, cfg.RecentFor = 2, time.Nanosecond
	sub := f.subscriber(cfg)
	f.subscribe(sub, subscriber.AllData)
	testkit.NoError(t, f.server.WaitStreams(testkit.Context(t), 1))
	for i, text := range []string{"a", "a", "b", "c", "a", "c"} {
		f.server.EmitRaw(f.server.Application(), []byte("data: "+text+"\n\n"))
		testkit.Eventually(f, "it came", func() bool { s := sub.Stats(); return s.Malformed == int64(i+1) && s.QuarantineWaiting == 0 })
	}
	if n := len(store.all()); n != 4 {
		t.Errorf("%d records, want a, b, c and a", n)
	}
}

// A confirmation that the service forgets is sent again when the event comes
// again.
func TestQuarantinedEventIsConfirmedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{ConfirmationLag: time.Hour})
	store := &shelf{}
	sub := f.subscriber(f.quarantineConfig(store))
	f.subscribe(sub, subscriber.AllData)
	f.sendBroken(1)
	testkit.Eventually(f, "confirmed", func() bool { return sub.Stats().Confirmed == 1 })
	f.server.CutStreams()
	testkit.Eventually(f, "confirmed again", func() bool { return sub.Stats().Confirmed == 2 })
	if n := len(store.all()); n != 1 {
		t.Errorf("%d records", n)
	}
}
