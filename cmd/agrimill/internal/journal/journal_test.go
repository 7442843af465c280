package journal_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const endpoint = "0B9EE84B-5B1B-4A5A-9E11-3E3A6F7E5F01"

// diary is a journal with a clock that tests set.
type diary struct {
	*journal.Journal
	t   testing.TB
	now time.Time
}

func newDiary(t testing.TB, cfg journal.Config) *diary {
	d := &diary{t: t, now: time.Date(2026, 4, 1, 6, 0, 0, 0, time.UTC)}
	cfg.Now = func() time.Time { return d.now }
	d.Journal = testkit.Must(journal.New(cfg))(t)
	return d
}

func received(id, contextID, filename string) *gateway.MessageReceived {
	return &gateway.MessageReceived{
		ID: id, AppMessageID: contextID, MessageType: "iso:11783:-10:taskdata:zip", Payload: []byte("12345"), ReceivingEndpointID: endpoint,
		Filename: filename, TenantID: "tenant",
	}
}

// routed is the message that a route gets of an event.
func routed(id, contextID string) *message.Message {
	msg := message.NewMessage("uuid-of-"+id, []byte("12345"))
	msg.Metadata[gateway.KeyMessageID], msg.Metadata[gateway.KeyContextID] = id, contextID
	msg.Metadata[gateway.KeyReceivingEndpointID] = strings.ToLower(endpoint)
	return msg
}

func (d *diary) observe(kind router.EventKind, msg *message.Message, change ...func(*router.Event)) {
	d.now = d.now.Add(time.Millisecond)
	e := router.Event{Route: "farm", Kind: kind, Message: msg, Context: msg.Context()}
	for _, f := range change {
		f(&e)
	}
	d.Observer(nil).Observe(e)
}

func (d *diary) confirm(ids ...string) {
	d.now = d.now.Add(time.Millisecond)
	var list []gateway.MessageConfirmation
	for _, id := range ids {
		list = append(list, gateway.MessageConfirmation{EndpointID: endpoint, MessageID: id})
	}
	d.Confirmed("tenant", list)
}

// one returns the only message that a query finds.
func (d *diary) one(query string) journal.Message {
	d.t.Helper()
	trace := d.Trace(query, journal.Only{}, 10)
	if len(trace.Messages) != 1 || trace.More != 0 {
		d.t.Fatalf("%q finds %+v", query, trace)
	}
	return trace.Messages[0]
}

func steps(m journal.Message) (list []journal.Step) {
	for _, e := range m.Events {
		list = append(list, e.Step)
	}
	return list
}

// The life of a message, found by all that people know of it.
func TestLifeOfAMessage(t *testing.T) {
	d := newDiary(t, journal.Config{})
	id, contextID := "11111111-aaaa-4000-8000-000000000001", "22222222-BBBB-4000-8000-000000000002"
	d.Event(received(id, contextID, "Feld 7 (Nord).ZIP"))
	d.Event(received("33333333-aaaa-4000-8000-000000000003", "another-context", "other.zip"))
	msg := routed(id, contextID)
	d.observe(router.EventStarted, msg)
	d.observe(router.EventRetry, msg, func(e *router.Event) {
		e.Attempt, e.Delay, e.Class, e.Err, e.Text = 1, time.Second, router.ClassHandler, errors.New("secret"), "no such field"
	})
	d.observe(router.EventStored, msg, func(e *router.Event) {
		e.Receipt = sinks.Receipt{Stream: "FARM", Subject: "farm.task", Sequence: 17}
	})
	d.observe(router.EventDelivered, msg)
	if got := d.one(id).State; got != "delivered by farm; not confirmed yet" {
		t.Errorf("before the confirmation: %q", got)
	}
	d.confirm(strings.ToUpper(id))
	for _, query := range []string{id, id[:8], strings.ToUpper(id), contextID, " " + strings.ToLower(contextID) + "\n", "feld 7", "NORD", "uuid-of-" + id} {
		m := d.one(query)
		testkit.Equal(t, steps(m), []journal.Step{
			journal.StepReceived, journal.StepStarted, journal.StepRetry, journal.StepStored, journal.StepDelivered, journal.StepConfirmed,
		})
		if m.Filename != "Feld 7 (Nord).ZIP" || m.Bytes != 5 || m.ContextID != contextID || m.Tenant != "tenant" || m.Endpoint != endpoint ||
			m.State != "delivered by farm; confirmed" || m.UUID != msg.UUID || !slices.Equal(m.MessageIDs, []string{id}) {
			t.Errorf("%q finds %+v", query, m)
		}
		if got := m.Events[2].Detail(); got != "attempt 1, again in 1s, handler: no such field" {
			t.Errorf("the retry says %q", got)
		}
		if got := m.Events[3].Detail(); got != "farm.task in stream FARM, sequence 17" {
			t.Errorf("the place is %q", got)
		}
	}
	for _, query := range []string{id[:7], "nobody knows this", "Feld 8"} {
		if trace := d.Trace(query, journal.Only{}, 10); len(trace.Messages) != 0 || trace.Messages == nil || trace.Since.IsZero() {
			t.Errorf("%q finds %+v", query, trace)
		}
	}
}

// Where something is stored is told in words, and for programs, whole.
func TestPlaces(t *testing.T) {
	key := strings.Repeat("k", 900) // as long as a blob sink makes them
	for _, c := range []struct {
		kind    router.EventKind
		receipt sinks.Receipt
		place   string
		at      *journal.Location
	}{
		{router.EventStored, sinks.Receipt{Stream: "FARM", Subject: "farm.task", Sequence: 1}, "farm.task in stream FARM, sequence 1", &journal.Location{Stream: "FARM", Subject: "farm.task", Sequence: 1}},
		{router.EventStored, sinks.Receipt{Topic: "farm.task"}, "farm.task, partition 0, offset 0", &journal.Location{Topic: "farm.task"}},
		{router.EventStored, sinks.Receipt{Key: key}, "object " + key, &journal.Location{Key: key}},
		{router.EventStored, sinks.Receipt{ID: "context"}, "gateway, context ID context", &journal.Location{ContextID: "context"}},
		{router.EventStored, sinks.Receipt{}, "", nil},
		{router.EventPoisoned, sinks.Receipt{Topic: "poison", Partition: 2, Offset: 7}, "poison, partition 2, offset 7", &journal.Location{Topic: "poison", Partition: 2, Offset: 7}},
	} {
		d := newDiary(t, journal.Config{})
		d.observe(c.kind, routed("a-message", "context-of-it"), func(e *router.Event) { e.Receipt = c.receipt })
		e := d.one("a-message").Events[0]
		testkit.Equal(t, e.At, c.at)
		if e.Place != c.place {
			t.Errorf("%+v is %q, want %q", c.receipt, e.Place, c.place)
		}
	}
}

// What a broker has lost is known by its place, as the route stored it there last, and is found together.
func TestLost(t *testing.T) {
	d := newDiary(t, journal.Config{})
	stored := func(id, stream string, sequence uint64) {
		msg := routed(id, "context-of-"+id)
		d.observe(router.EventStored, msg, func(e *router.Event) { e.Receipt = sinks.Receipt{Stream: stream, Sequence: sequence} })
		d.observe(router.EventDelivered, msg)
		d.confirm(id)
	}
	wants := func(when string, ids ...string) {
		t.Helper()
		var got []string
		for _, m := range d.Trace(journal.LostQuery, journal.Only{}, 10).Messages {
			if got = append(got, m.MessageIDs...); m.State != "lost by the broker of farm; confirmed" {
				t.Errorf("%s, %s is %s", when, m.MessageIDs, m.State)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, ids) {
			t.Errorf("%s, got %s, want %s", when, got, ids)
		}
	}
	all := func(route string, _ bool) bool { return route == "farm" }
	for i, id := range []string{"message-a", "message-b", "message-c", "message-d"} {
		stored(id, "FARM", uint64(i+1))
	}
	stored("message-other", "OTHER", 3)
	d.Lost(journal.Location{Stream: "FARM", Sequence: 3}, 4, func(string, bool) bool { return false })
	wants("when another sink did")
	d.Lost(journal.Location{Stream: "FARM", Sequence: 3}, 4, all)
	wants("once", "message-c", "message-d")
	d.Lost(journal.Location{Stream: "FARM", Sequence: 3}, 4, all)
	stored("message-e", "FARM", 3)
	d.Lost(journal.Location{Stream: "FARM", Sequence: 3}, 9, all)
	wants("twice", "message-c", "message-d", "message-e")
	d.Lost(journal.Location{Topic: "farm", Partition: 1, Offset: 0}, 9, all)
	wants("in a topic", "message-c", "message-d", "message-e")
	msg := routed("message-f", "context-f")
	d.observe(router.EventStored, msg, func(e *router.Event) { e.Receipt = sinks.Receipt{Topic: "farm", Partition: 1, Offset: 7} })
	d.confirm("message-f")
	d.Lost(journal.Location{Topic: "farm", Partition: 0, Offset: 7}, 9, all)
	d.Lost(journal.Location{Topic: "farm", Partition: 1, Offset: 7}, 7, all)
	wants("in its partition", "message-c", "message-d", "message-e", "message-f")
	if at := d.one("message-f").Events[2].At; *at != (journal.Location{Topic: "farm", Partition: 1, Offset: 7}) {
		t.Errorf("got %+v", at)
	}
	if lost := d.one("message-c"); len(lost.Events) != 4 || lost.Events[3].Step != journal.StepLost || lost.Events[3].At.Sequence != 3 {
		t.Errorf("got %+v", lost.Events)
	}
}

// Each of two brokers with a stream of one name has lost its own, whichever stored a message first, and what was poisoned is
// listed once.
func TestLostByOneOfTwo(t *testing.T) {
	d := newDiary(t, journal.Config{})
	msg := routed("message-a", "context-a")
	for _, what := range []router.EventKind{router.EventStored, router.EventPoisoned} {
		d.observe(what, msg, func(e *router.Event) {
			e.Receipt = sinks.Receipt{Stream: "FARM", Sequence: 1}
			if what == router.EventPoisoned {
				e.Err = router.Permanent(errors.New("bad"))
			}
		})
	}
	for _, poisoned := range []bool{false, true, true} {
		d.now = d.now.Add(time.Millisecond)
		d.Lost(journal.Location{Stream: "FARM", Sequence: 1}, 1, func(_ string, is bool) bool { return is == poisoned })
	}
	lost := 0
	for _, event := range d.one("message-a").Events {
		if event.Step == journal.StepLost {
			lost++
		}
	}
	if lost != 2 {
		t.Errorf("%d are lost", lost)
	}
}

// A file and the messages that carried it are one life, whichever is asked for; with them come
// confirmations of each.
func TestFilesComeWithTheirMessages(t *testing.T) {
	d := newDiary(t, journal.Config{})
	ids := []string{"chunk-one-1", "chunk-two-2", "chunk-three"}
	for _, id := range ids {
		d.Event(received(id, "context-of-the-file", ""))
	}
	d.Event(received("chunk-of-another", "context-of-another", ""))
	d.Event(&gateway.FileReceived{ReceivingEndpointID: endpoint, MessageIDs: ids, Filename: "whole.bin", Size: 3 << 20})
	msg := message.NewMessage("uuid-of-file", nil)
	msg.Metadata[gateway.KeyMessageIDs], msg.Metadata[gateway.KeyReceivingEndpointID] = strings.Join(ids, ","), endpoint
	d.observe(router.EventStarted, msg)
	d.observe(router.EventDelivered, msg)
	d.confirm(ids[:2]...)
	if got := d.one("whole.bin").State; got != "delivered by farm; 2 of 3 messages confirmed" {
		t.Errorf("the state is %q", got)
	}
	d.confirm(ids[2])
	for _, query := range append(ids, "whole.bin", "uuid-of-file") {
		m := d.one(query)
		if len(m.Events) != 9 || m.State != "delivered by farm; confirmed" || m.EventType != "FILE_RECEIVED" || m.Bytes != 3<<20 || len(m.MessageIDs) != 3 {
			t.Errorf("%q finds %+v", query, m)
		}
	}
}

// Two messages stay two, whatever is equal in them: the same message for two endpoints, the same
// context ID, one UUID for two places with a broker.
func TestMessagesAreNotMixedUp(t *testing.T) {
	d := newDiary(t, journal.Config{})
	second := received("same-message", "same-context", "same.zip")
	second.ReceivingEndpointID = "another endpoint"
	d.Event(received("same-message", "same-context", "same.zip"))
	d.Event(second)
	d.Event(received("other-message", "same-context", "same.zip"))
	if got := len(d.Trace("same-context", journal.Only{}, 10).Messages); got != 3 {
		t.Errorf("%d messages under one context ID, want 3", got)
	}
	d.confirm("same-message")
	confirmed := 0
	for _, m := range d.Trace("same.zip", journal.Only{}, 10).Messages {
		if m.State == "confirmed" {
			confirmed++
		}
	}
	if confirmed != 1 {
		t.Errorf("%d are confirmed, want 1", confirmed)
	}
	for _, place := range []string{"nats/FARM/1", "nats/FARM/2"} {
		msg := message.NewMessage("one-uuid-for-two", nil)
		msg.SetContext(msgctx.With(t.Context(), msgctx.Value{Delivery: place}))
		d.observe(router.EventStarted, msg)
	}
	if got := len(d.Trace("one-uuid-for-two", journal.Only{}, 10).Messages); got != 2 {
		t.Errorf("%d messages of a broker, want 2", got)
	}
}

func TestStates(t *testing.T) {
	other := func(e *router.Event) { e.Route = "other" }
	for want, happens := range map[string]func(d *diary, msg *message.Message){
		"received; no route has begun with it; not confirmed yet": func(*diary, *message.Message) {},
		"is being handled by farm; not confirmed yet":             func(d *diary, msg *message.Message) { d.observe(router.EventStarted, msg) },
		"delivered by farm; poisoned by other; confirmed": func(d *diary, msg *message.Message) {
			d.observe(router.EventDelivered, msg)
			d.observe(router.EventPoisoned, msg, other)
			d.confirm("message-1")
		},
		"waits for another attempt on farm; filtered by other; not confirmed yet": func(d *diary, msg *message.Message) {
			d.observe(router.EventRetry, msg, func(e *router.Event) { e.Attempt = 1 })
			d.observe(router.EventFiltered, msg, other)
		},
		"delivered by farm; not confirmed yet": func(d *diary, msg *message.Message) {
			d.observe(router.EventRetry, msg, func(e *router.Event) { e.Attempt = 1 })
			d.observe(router.EventDelivered, msg)
		},
		"a duplicate for farm; the service rejected the confirmation": func(d *diary, msg *message.Message) {
			d.observe(router.EventDuplicate, msg)
			d.Rejected("tenant", gateway.MessageConfirmation{EndpointID: endpoint, MessageID: "message-1"}, errors.New("no"))
		},
		"received; no route has begun with it; its payload cannot be had: gone; not confirmed yet": func(d *diary, _ *message.Message) {
			d.Undeliverable(received("message-1", "", ""), errors.New("gone"))
		},
	} {
		d := newDiary(t, journal.Config{})
		d.Event(received("message-1", "", ""))
		happens(d, routed("message-1", ""))
		if got := d.one("message-1").State; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// What happens inside of the subscriber is a part of the life of a message, and says where it is.
func TestInsideOfTheSubscriber(t *testing.T) {
	d := newDiary(t, journal.Config{})
	tell := func(kind subscriber.ProgressKind, event gateway.Event, bytes int64) {
		d.now = d.now.Add(time.Millisecond)
		d.Progress(subscriber.Progress{Kind: kind, Event: event, Bytes: bytes})
	}
	chunk := received("chunk-one-1", "context-of-the-file", "")
	chunk.Payload, chunk.PayloadURI = nil, "https://payloads.example/1"
	for _, step := range []struct {
		happens func()
		want    string
	}{
		{func() { d.Event(chunk) }, "received; no route has begun with it; not confirmed yet"},
		{func() { tell(subscriber.ProgressHeld, chunk, 0) }, "held until its file comes; not confirmed yet"},
		{func() { tell(subscriber.ProgressUnclaimed, chunk, 0) }, "no file came for it; no route has begun with it; not confirmed yet"},
		{func() { tell(subscriber.ProgressFetched, chunk, 12) }, "fetched; no route has begun with it; not confirmed yet"},
		{func() { tell(subscriber.ProgressUntaken, chunk, 0) }, "received; no route takes it; not confirmed yet"},
	} {
		step.happens()
		if got := d.one("chunk-one-1").State; got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
	if m := d.one("chunk-one-1"); m.Bytes != 12 || m.Events[3].Detail() != "12 bytes" {
		t.Errorf("%d bytes, %q", m.Bytes, m.Events[3].Detail())
	}
	file := &gateway.FileReceived{ReceivingEndpointID: endpoint, MessageIDs: []string{"chunk-one-1", "chunk-two-2"}, Filename: "whole.bin", Size: 24}
	d.Event(file)
	tell(subscriber.ProgressJoined, file, 0)
	m := d.one("chunk-one-1")
	if m.State != "joined to a file; no route has begun with it; not confirmed yet" || m.Bytes != 24 || m.Filename != "whole.bin" {
		t.Errorf("%+v", m)
	}
	testkit.Equal(t, steps(m), []journal.Step{
		journal.StepReceived, journal.StepHeld, journal.StepUnclaimed, journal.StepFetched, journal.StepUntaken, journal.StepReceived, journal.StepJoined,
	})
}

// A trace tells which routes never saw a message, and why.
func TestUnseen(t *testing.T) {
	takes := func(topic string) func(gateway.EventType, string) bool {
		return func(event gateway.EventType, messageType string) bool {
			return subscriber.Takes(topic, event, messageType)
		}
	}
	d := newDiary(t, journal.Config{Routes: func() []journal.Route {
		return []journal.Route{{"farm", "all", takes(subscriber.AllData)}, {"later", "all", takes(subscriber.AllData)}, {"pictures", "img:png", takes("img:png")}}
	}})
	d.Event(received("message-1", "", ""))
	d.observe(router.EventFiltered, routed("message-1", ""))
	testkit.Equal(t, d.one("message-1").Unseen, []journal.Unseen{{Route: "later", Why: "has not begun with the message"}, {Route: "pictures", Why: "takes img:png"}})
	msg := message.NewMessage("of-a-broker", nil)
	msg.SetContext(msgctx.With(t.Context(), msgctx.Value{Delivery: "nats/FARM/1"}))
	d.observe(router.EventStarted, msg)
	if m := d.one("of-a-broker"); m.Unseen != nil {
		t.Errorf("%+v of a message that is not from the gateway", m.Unseen)
	}
	for i := range 300 {
		d.Event(received(fmt.Sprint("of-many-", i), "", "many.zip"))
	}
	trace := d.Trace("many.zip", journal.Only{}, 10_000)
	for i, m := range trace.Messages {
		if wanted := i >= 100; wanted != (m.Unseen != nil) { // for all there may be no room
			t.Errorf("%d of %d: %v", i, len(trace.Messages), m.Unseen)
		}
	}
	testkit.Equal(t, len(trace.Messages), 300)
}

// One message that fails for ever does not push out the others.
func TestRetriesBecomeRare(t *testing.T) {
	d := newDiary(t, journal.Config{})
	msg := routed("message-1", "")
	for i := range 100_000 {
		d.observe(router.EventRetry, msg, func(e *router.Event) { e.Attempt = i + 1 })
	}
	if n := d.Stats().Entries; n > 20 {
		t.Errorf("100,000 retries made %d entries", n)
	}
}

// MaxBytes alone says how much is kept: more of it keeps more, however many and small the entries are.
func TestMaxBytesKeepsMore(t *testing.T) {
	const all = 250_000
	kept := 0
	for _, maxBytes := range []int{1 << 20, 2 << 20, 64 << 20} {
		d := newDiary(t, journal.Config{MaxBytes: maxBytes})
		for range all {
			d.Event(&gateway.MessageReceived{ID: "m"})
		}
		stats := d.Stats()
		if stats.Entries <= kept || stats.Bytes > maxBytes {
			t.Errorf("of %d bytes: %+v, and of fewer bytes %d entries", maxBytes, stats, kept)
		}
		kept = stats.Entries
	}
	if kept != all {
		t.Errorf("%d of %d entries are kept, although there is room", kept, all)
	}
}

// The bounds hold, whatever comes, and what the journal says about itself is true.
func TestBounds(t *testing.T) {
	for name, cfg := range map[string]journal.Config{
		"bytes": {MaxBytes: 64 << 10, MaxAge: 24 * time.Hour},
		"age":   {MaxBytes: 1 << 30, MaxAge: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDiary(t, cfg)
			for i := range 5000 {
				d.now = d.now.Add(100 * time.Millisecond)
				d.Event(received(fmt.Sprintf("message-%05d", i), "", strings.Repeat("name ", rand.IntN(2000))))
				if stats := d.Stats(); stats.Bytes > cfg.MaxBytes+8<<10 {
					t.Fatalf("after %d: %+v", i, stats)
				}
			}
			trace := d.Trace("", journal.Only{}, 5000)
			since := trace.Since
			for _, m := range trace.Messages {
				if m.Events[0].Time.Before(d.now.Add(-cfg.MaxAge)) {
					t.Fatalf("kept since %v", m.Events[0].Time)
				}
			}
			// All of what came after Since is there.
			if want := int(d.now.Sub(since) / (100 * time.Millisecond)); name != "age" && len(trace.Messages) < want {
				t.Errorf("%d messages, want the last %d", len(trace.Messages), want)
			}
			if len(trace.Messages) < 100 && name != "bytes" || len(trace.Messages) == 0 {
				t.Errorf("only %d messages", len(trace.Messages))
			}
			d.now = d.now.Add(25 * time.Hour)
			d.Prune()
			if stats := d.Stats(); stats.Entries != 0 || stats.Bytes != 0 {
				t.Errorf("a day later: %+v", stats)
			}
		})
	}
}

// What a sender chose is kept as it came, as far as it is kept, and cannot move a terminal's cursor.
func TestHostileTexts(t *testing.T) {
	d := newDiary(t, journal.Config{})
	hostile := "\x1b[2J\x00\xff\u202e" + strings.Repeat("ä", 4000)
	d.Event(&gateway.MessageReceived{ID: "message-1", MessageType: hostile, Filename: hostile, ReceivingEndpointID: endpoint, AppMessageID: hostile})
	d.observe(router.EventReturned, routed("message-1", ""), func(e *router.Event) { e.Err, e.Text = errors.New("x"), hostile })
	m := d.one("message-1")
	if !strings.HasPrefix(hostile, m.Filename) || len(m.Filename) > 512 || len(m.Filename) < 500 {
		t.Errorf("%d bytes of the filename", len(m.Filename))
	}
	if detail := m.Events[1].Detail(); strings.ContainsAny(detail, "\x1b\x00\u202e") {
		t.Errorf("the detail is %q", detail)
	}
	ids := make([]string, 10_000)
	for i := range ids {
		ids[i] = fmt.Sprintf("many-%08d", i)
	}
	d.Event(&gateway.FileReceived{ReceivingEndpointID: endpoint, MessageIDs: ids, Filename: "many.bin"})
	if m := d.one("many.bin"); len(m.MessageIDs) < 1000 || m.MessageIDs[len(m.MessageIDs)-1] != ids[len(m.MessageIDs)-1] {
		t.Errorf("%d messages of a file", len(m.MessageIDs))
	}
}

// A limit shows the newest ones and says how many there are besides.
func TestLimit(t *testing.T) {
	d := newDiary(t, journal.Config{})
	for i := range 30 {
		d.now = d.now.Add(time.Second)
		d.Event(received(fmt.Sprintf("message-%02d", i), "", "a.zip"))
	}
	trace := d.Trace("a.zip", journal.Only{}, 5)
	if len(trace.Messages) != 5 || trace.More != 25 || trace.Messages[0].MessageIDs[0] != "message-29" || trace.Messages[4].MessageIDs[0] != "message-25" {
		t.Errorf("%+v", trace)
	}
}

func TestOff(t *testing.T) {
	j, err := journal.New(journal.Config{MaxAge: -1})
	if j != nil || err != nil {
		t.Fatal(j, err)
	}
	j.Event(received("1", "", ""))
	j.Confirmed("", []gateway.MessageConfirmation{{}})
	j.Rejected("", gateway.MessageConfirmation{}, nil)
	j.Undeliverable(received("1", "", ""), nil)
	j.Prune()
	seen := 0
	j.Observer(router.ObserverFunc(func(router.Event) { seen++ })).Observe(router.Event{})
	if got := j.Trace("1", journal.Only{}, 1); len(got.Messages) != 0 || seen != 1 || j.Stats() != (journal.Stats{}) {
		t.Error(got, seen)
	}
	if _, err := journal.New(journal.Config{MaxBytes: -1}); !errors.Is(err, journal.ErrConfig) {
		t.Error(err)
	}
}

// Writers and readers do not disturb each other (with the race detector).
func TestConcurrentUse(t *testing.T) {
	j := testkit.Must(journal.New(journal.Config{MaxBytes: 256 << 10}))(t)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 3000 {
				id := fmt.Sprintf("message-%d-%d", w, i)
				j.Event(received(id, "", "a.zip"))
				j.Observer(nil).Observe(router.Event{Kind: router.EventDelivered, Message: routed(id, ""), Context: context.Background()})
			}
		})
	}
	for range 20 {
		for _, m := range j.Trace("a.zip", journal.Only{}, 50).Messages {
			if m.Filename != "a.zip" || len(m.Events) > 2 {
				t.Errorf("%+v", m)
			}
		}
	}
	wg.Wait()
}

// What each event may cost.
func TestAllocations(t *testing.T) {
	j := testkit.Must(journal.New(journal.Config{}))(t)
	event, msg := received("message-1", "context", "a.zip"), routed("message-1", "context")
	o := j.Observer(nil)
	confirmation := []gateway.MessageConfirmation{{EndpointID: endpoint, MessageID: "message-1"}}
	for name, f := range map[string]func(){
		"received":  func() { j.Event(event) },
		"delivered": func() { o.Observe(router.Event{Kind: router.EventDelivered, Message: msg, Context: msg.Context()}) },
		"confirmed": func() { j.Confirmed("tenant", confirmation) },
	} {
		if n := testing.AllocsPerRun(2000, f); n > 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// A tenant and an endpoint select messages, whatever is looked for.
func TestTraceOnly(t *testing.T) {
	d := newDiary(t, journal.Config{})
	for i := range 12 {
		event := received(fmt.Sprintf("11111111-aaaa-4000-8000-%012d", i), fmt.Sprint("context-", i), fmt.Sprintf("Field %d.zip", i))
		event.TenantID, event.ReceivingEndpointID = fmt.Sprint("tenant-", i%3), fmt.Sprint("endpoint-", i%4)
		d.Event(event)
		d.Confirmed(event.TenantID, []gateway.MessageConfirmation{{EndpointID: event.ReceivingEndpointID, MessageID: event.ID}})
	}
	for _, tt := range []struct {
		query string
		only  journal.Only
		want  int
	}{
		{"", journal.Only{}, 12},
		{"", journal.Only{Tenant: "tenant-1"}, 4},
		{"field", journal.Only{Tenant: "TENANT-1"}, 4},
		{"", journal.Only{Tenant: "tenant-1", Endpoint: "endpoint-3"}, 1},
		{"", journal.Only{Endpoint: "endpoint-3"}, 3},
		{"field 7", journal.Only{Tenant: "tenant-1"}, 1},
		{"field 7", journal.Only{Tenant: "tenant-2"}, 0},
		{"", journal.Only{Tenant: "tenant"}, 0},
	} {
		trace := d.Trace(tt.query, tt.only, 20)
		if len(trace.Messages) != tt.want {
			t.Errorf("%q of %+v: %d messages, want %d", tt.query, tt.only, len(trace.Messages), tt.want)
		}
	}
	if trace := d.Trace("", journal.Only{Tenant: "tenant-1"}, 3); len(trace.Messages) != 3 || trace.More != 1 {
		t.Errorf("%d messages and %d more, want 3 and 1", len(trace.Messages), trace.More)
	}
}

func BenchmarkJournal(b *testing.B) {
	j := testkit.Must(journal.New(journal.Config{}))(b)
	event, msg := received("11111111-aaaa-4000-8000-000000000001", "22222222-bbbb-4000-8000-000000000002", "TaskData 7.zip"), routed("11111111-aaaa-4000-8000-000000000001", "22222222-bbbb-4000-8000-000000000002")
	o := j.Observer(nil)
	for name, f := range map[string]func(){
		"Received": func() { j.Event(event) },
		"Stored": func() {
			o.Observe(router.Event{Route: "farm", Kind: router.EventStored, Message: msg, Context: msg.Context(), Receipt: sinks.Receipt{Stream: "FARM", Subject: "farm.task", Sequence: 1}})
		},
		"Delivered": func() {
			o.Observe(router.Event{Route: "farm", Kind: router.EventDelivered, Message: msg, Context: msg.Context()})
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}
