package router_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/poisonqueue"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// brokerSink is a broker that stores each name once in a topic.
type brokerSink struct {
	*memorySink
	lost atomic.Int64 // so many acks are lost: the broker has the message, and Publish fails
}

func newBroker() *brokerSink { return &brokerSink{memorySink: newSink(nil)} }

func (b *brokerSink) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		id := msg.Metadata[gateway.KeyDedupID]
		if id == "" || !slices.ContainsFunc(b.all(), func(m storedMessage) bool {
			return m.topic == topic && m.msg.Metadata[gateway.KeyDedupID] == id
		}) {
			if err := b.memorySink.Publish(topic, msg); err != nil {
				return err
			}
		}
		if topic == "out" && b.lost.Add(-1) >= 0 {
			return down
		}
	}
	return nil
}

func (b *brokerSink) payloads() (list []string) {
	for _, m := range b.all() {
		list = append(list, string(m.msg.Payload))
	}
	return list
}

// A clock in what a handler makes, and new UUIDs, make no new message of a publish that is
// tried again, in place or when the message comes again from its subscriber.
func TestWhatWasMadeIsKeptUntilItIsStored(t *testing.T) {
	for name, test := range map[string]struct {
		lost    int64 // acks
		size    int   // of what is made
		patient bool
		want    int
	}{
		"in place":                          {lost: 3, want: 2},
		"put off":                           {lost: 5, patient: true, want: 2},
		"put off, large, but not so large":  {lost: 5, size: 60 << 10, patient: true, want: 2},
		"put off, and too large to be kept": {lost: 5, size: 80 << 10, patient: true, want: 7}, // each with its clock
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				from, to := newSource(), newBroker()
				to.lost.Store(test.lost)
				var times, sentAts []string
				route := farmRoute(from, to)
				route.Transform = func(msg *message.Message) ([]*message.Message, error) {
					if msg.UUID != "1" {
						return []*message.Message{msg}, nil
					}
					time.Sleep(time.Millisecond)
					clock := time.Now().String()
					times = append(times, clock)
					out := message.NewMessage(watermill.NewUUID(), append([]byte(clock), bytes.Repeat([]byte("x"), test.size)...))
					out.Metadata["made-at"] = clock
					out.Metadata["Traceparent"] = watermill.NewUUID()
					second := message.NewMessage(watermill.NewUUID(), []byte("second"))
					return []*message.Message{out, second}, nil
				}
				route.TopicFunc = func(msg *message.Message) (string, error) {
					return map[bool]string{false: "out", true: "of others"}[string(msg.Payload) == "other"], nil
				}
				to.fail = func(topic string, msg *message.Message) error {
					if topic != "out" {
						return nil
					}
					sentAts = append(sentAts, msgctx.SentAt(msg.Context()).String())
					if id, ok := router.DedupID(msg.Context()); !ok || id == "" {
						t.Error("the message does not know its delivery")
					}
					return nil
				}
				r := start(t, router.Config{Poison: newSink(nil)}, route)
				if test.patient {
					stop := passSomething(from)
					if n := deliverPatiently(t, from, farmMessage("1", "e", "c", "p")); n < 2 {
						t.Errorf("delivered %d times, want more: it was not put off", n)
					}
					stop()
				} else {
					msg := farmMessage("1", "e", "c", "p")
					from.messages <- msg
					synctest.Wait()
					time.Sleep(time.Hour)
					wantAck(t, msg)
				}
				r.wantStop(t)
				got := 0
				for _, m := range to.all() {
					if m.topic == "out" {
						got++
					}
				}
				if got != test.want {
					t.Errorf("%d messages stored, want %d; made %d times", got, test.want, len(times))
				}
				if test.want == 2 && len(times) != 1 {
					t.Errorf("the handler was asked %d times, want 1", len(times))
				}
				for _, at := range sentAts {
					if at != sentAts[0] {
						t.Errorf("sent at %s, and at first at %s", at, sentAts[0])
					}
				}
			})
		})
	}
}

// What the sink has taken of what a handler has made is not published again with the rest, neither in place nor when
// the message comes again from its subscriber.
func TestWhatIsStoredIsNotPublishedAgain(t *testing.T) {
	for _, patient := range []bool{false, true} {
		t.Run(map[bool]string{false: "in place", true: "put off"}[patient], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failures := 5
				from, to := newSource(), newSink(func(topic string, _ *message.Message) error {
					if topic == "second" && failures > 0 {
						failures--
						return down
					}
					return nil
				})
				route := farmRoute(from, to)
				route.Transform = func(msg *message.Message) ([]*message.Message, error) {
					if msg.UUID != "1" {
						return []*message.Message{msg}, nil
					}
					return []*message.Message{message.NewMessage("", []byte("first")), message.NewMessage("", []byte("second"))}, nil
				}
				route.TopicFunc = func(msg *message.Message) (string, error) { return string(msg.Payload), nil }
				r := start(t, router.Config{Poison: newSink(nil)}, route)
				msg := farmMessage("1", "e", "c", "p")
				if patient {
					stop := passSomething(from)
					deliverPatiently(t, from, msg)
					stop()
				} else {
					from.deliver(t, msg)
				}
				r.wantStop(t)
				stored := map[string]int{}
				for _, m := range to.all() {
					stored[m.topic]++
				}
				if stored["first"] != 1 || stored["second"] != 1 || failures != 0 {
					t.Errorf("stored %v after %d of 5 failures, want each once", stored, 5-failures)
				}
			})
		})
	}
}

// passSomething has other messages pass until stop is called: then one that waits does so with its subscriber.
func passSomething(from *source) (stop func()) {
	passing, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 2; ; i++ {
			select {
			case <-time.After(50 * time.Millisecond):
			case <-passing:
				return
			}
			id := strconv.Itoa(i)
			from.messages <- farmMessage(id, "e"+id, id, "other")
		}
	}()
	return func() {
		close(passing)
		<-done
	}
}

// deliverPatiently delivers a message until it is acked, as a subscriber does that keeps what
// is to be kept, and returns how often.
func deliverPatiently(t *testing.T, from *source, msg *message.Message) int {
	t.Helper()
	var kept any
	for n := 1; ; n++ {
		again := msg.Copy()
		nack := &msgctx.Nack{}
		if kept != nil {
			nack.Keep(kept)
		}
		ctx, cancel := context.WithCancel(msgctx.With(t.Context(), msgctx.Value{Nack: nack}))
		again.SetContext(ctx)
		from.messages <- again
		acked := verdict(t, again) == "ack"
		cancel()
		if acked {
			return n
		}
		kept = nack.Kept()
		time.Sleep(nack.Delay())
	}
}

// What a route makes has a name by what it is: the same for each delivery of a message,
// another one for another message, topic, payload, metadata or replay, and for each of
// several that are equal.
func TestNamesOfWhatIsMade(t *testing.T) {
	out := func(payload string, metadata ...string) *message.Message {
		m := message.NewMessage(watermill.NewUUID(), []byte(payload))
		for i := 0; i < len(metadata); i += 2 {
			m.Metadata[metadata[i]] = metadata[i+1]
		}
		return m
	}
	names := func(t *testing.T, topic string, received *message.Message, made ...*message.Message) (list []string) {
		t.Helper()
		from, to, poison := newSource(), newSink(nil), newSink(nil)
		route := farmRoute(from, to)
		route.TopicFunc = func(*message.Message) (string, error) { return topic, nil }
		if made != nil {
			route.Transform = func(*message.Message) ([]*message.Message, error) { return made, nil }
		}
		r := start(t, router.Config{Poison: poison}, route)
		from.deliver(t, received)
		r.wantStop(t)
		poison.wantStored(t, 0)
		for _, m := range to.all() {
			list = append(list, m.msg.Metadata[gateway.KeyDedupID])
		}
		return list
	}
	received := func() *message.Message { return farmMessage("1", "e", "c", "payload") }
	base := names(t, "out", received(), out("x", "kind", "a"))[0]
	again := received()
	again.Metadata["X-Retry"] = "another header of the delivery"
	for name, got := range map[string]string{
		"another delivery":              names(t, "out", again, out("x", "kind", "a"))[0],
		"what was received is no news":  names(t, "out", received(), out("x", "kind", "a", "x-router-tenant-id", "tenant-1"))[0],
		"neither is where it is traced": names(t, "out", received(), out("x", "kind", "a", "traceparent", "00-1", "Tracestate", "x"))[0],
		"nor the ID of a source":        names(t, "out", received(), out("x", "kind", "a", gateway.KeyDedupID, "x"))[0],
	} {
		if got != base {
			t.Errorf("%s: %s, want %s", name, got, base)
		}
	}
	other, replayed := farmMessage("2", "e", "c", "payload"), received()
	replayed.Metadata[router.KeyPoisonCount] = "1"
	equals := names(t, "out", received(), out("x", "kind", "a"), out("x", "kind", "a"), out("x", "kind", "a"))[1:]
	all := map[string]string{base: "the base"}
	for name, list := range map[string][]string{
		"another message": names(t, "out", other, out("x", "kind", "a")),
		"another topic":   names(t, "out 2", received(), out("x", "kind", "a")),
		"another payload": names(t, "out", received(), out("y", "kind", "a")),
		"no payload":      names(t, "out", received(), out("", "kind", "a")),
		"other metadata":  names(t, "out", received(), out("x", "kind", "b")),
		"no metadata":     names(t, "out", received(), out("x")),
		"more metadata":   names(t, "out", received(), out("x", "kind", "a", "b", "c")),
		"passed on":       names(t, "out", received()),
		"replayed":        names(t, "out", replayed, out("x", "kind", "a")),
		"equals":          equals,
	} {
		for i, got := range list {
			if was, ok := all[got]; ok || got == "" || len(got) != 32 {
				t.Errorf("%s (%d) has the name %q of %s", name, i, got, was)
			}
			all[got] = name
		}
	}
	shared := out("x", "kind", "a")
	testkit.Equal(t, names(t, "out", received(), shared, shared), []string{base, equals[0]})
}

// Several messages that share one map of metadata, or are one, are stored as several.
func TestSeveralMessagesWithOneMap(t *testing.T) {
	from, to := newSource(), newBroker()
	route := farmRoute(from, to)
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		one := &message.Message{Payload: []byte("1"), Metadata: msg.Metadata}
		two := &message.Message{Payload: []byte("2"), Metadata: msg.Metadata}
		return []*message.Message{one, two, two}, nil
	}
	start(t, router.Config{Poison: newSink(nil)}, route)
	msg := farmMessage("1", "e", "c", "p")
	from.deliver(t, msg)
	testkit.Equal(t, to.payloads(), []string{"1", "2", "2"})
}

// A record whose transform was repaired is stored as the repaired one makes it, although the
// first attempt left something in the sink; and a replay that was killed before it could take
// the record off is recognized by the sink when the next one makes the same.
func TestReplayIsNoOldAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, from, to := &poisonqueue.Queue{}, newSource(), newBroker()
		var repaired atomic.Bool
		route := farmRoute(from, to)
		route.TopicFunc = func(*message.Message) (string, error) { return "out", nil }
		route.Transform = func(*message.Message) ([]*message.Message, error) {
			if repaired.Load() {
				return []*message.Message{message.NewMessage("", []byte("whole"))}, nil
			}
			return []*message.Message{message.NewMessage("", []byte("header")), message.NewMessage("", []byte("hopeless"))}, nil
		}
		to.fail = func(_ string, msg *message.Message) error {
			if string(msg.Payload) == "hopeless" {
				return sinks.NewError("broker", "out", sinks.ErrRejected, nil)
			}
			return nil
		}
		r := start(t, router.Config{Poison: q}, route)
		from.deliver(t, farmMessage("1", "e", "c", "p"))
		testkit.Equal(t, to.payloads(), []string{"header"})
		r.wantStop(t)

		repaired.Store(true)
		for _, queue := range []*poisonqueue.Queue{q.Copy(), q} { // the first one is killed: the record stays, and nothing is remembered
			r := build(t, router.Config{Poison: q}, route)
			testkit.Equal(t, replayAll(t, r, queue), router.ReplayReport{Sent: 1})
			testkit.Equal(t, to.payloads(), []string{"header", "whole"})
			testkit.NoError(t, r.Close())
		}
	})
}

// Equal records are several also when their messages have no IDs.
func TestEqualRecordsWithoutIDsAreReplayedAsSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, to := &poisonqueue.Queue{}, newBroker()
		testkit.NoError(t, q.Publish(router.DefaultPoisonTopic, poisonRecord("", 0), poisonRecord("", 1)))
		again := q.Copy()
		r := build(t, router.Config{Poison: q}, farmRoute(newSource(), to))
		for i, queue := range []*poisonqueue.Queue{q, again} { // the second one is what a killed replay left
			testkit.Equal(t, replayAll(t, r, queue), router.ReplayReport{Sent: 2, Duplicates: 2 * i})
			testkit.Equal(t, to.payloads(), []string{"p", "p"})
		}
		testkit.NoError(t, r.Close())
	})
}

// A record has one name however often it is stored: a message that is poisoned again because it
// was redelivered is the same record, and what a sender has sent again, a replay and another
// route make other ones. Without a name for the delivery nothing is the same.
func TestNamesOfRecords(t *testing.T) {
	record := func(t *testing.T, route string, msg *message.Message) string {
		t.Helper()
		from, poison := newSource(), newSink(nil)
		rt := farmRoute(from, newSink(nil))
		rt.Name = route
		rt.Transform = func(*message.Message) ([]*message.Message, error) { return nil, router.Permanent(errors.New("broken")) }
		r := start(t, router.Config{Poison: poison}, rt)
		from.deliver(t, msg)
		r.wantStop(t)
		return poison.all()[0].msg.Metadata[gateway.KeyDedupID]
	}
	first := record(t, "farm", farmMessage("1", "e", "c", "p"))
	if again := record(t, "farm", farmMessage("1", "e", "c", "p")); first == "" || again != first {
		t.Errorf("a redelivery is %q, was %q", again, first)
	}
	seen := map[string]string{first: "the first"}
	for name, id := range map[string]string{
		"a repetition":  record(t, "farm", farmMessage("2", "e", "c", "p")),
		"another route": record(t, "other", farmMessage("1", "e", "c", "p")),
		"replayed once": record(t, "farm", poisonedTimes(1)),
		"and twice":     record(t, "farm", poisonedTimes(2)),
	} {
		if was, ok := seen[id]; ok || id == "" {
			t.Errorf("%s is %q like %s", name, id, was)
		}
		seen[id] = name
	}
	if id := record(t, "farm", farmMessage("", "e", "c", "p")); id != "" {
		t.Errorf("a record of a message without ID has the name %q: a repetition would be lost", id)
	}
}

func poisonedTimes(n int) *message.Message {
	msg := farmMessage("1", "e", "c", "p")
	msg.Metadata[router.KeyPoisonCount] = strconv.Itoa(n)
	return msg
}

// Messages that a handler gives the UUID of the received one, or one UUID, are still several to
// who tells messages by it; the first one keeps it.
func TestSeveralMessagesHaveSeveralUUIDs(t *testing.T) {
	var uuids [2][]string
	for i := range uuids {
		from, to := newSource(), newSink(nil)
		route := farmRoute(from, to)
		route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			parts := []*message.Message{msg, msg.Copy(), msg.Copy(), message.NewMessage("own", nil), message.NewMessage("own", nil)}
			parts[1].Payload = []byte("2")
			return parts, nil
		}
		r := start(t, router.Config{Poison: newSink(nil)}, route)
		msg := farmMessage("1", "e", "c", "p")
		from.deliver(t, msg)
		r.wantStop(t)
		for _, m := range to.all() {
			uuids[i] = append(uuids[i], m.msg.UUID)
		}
	}
	got := uuids[0]
	if len(got) != 5 || got[0] != "1" || got[3] != "own" || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 5 {
		t.Errorf("UUIDs %q, want five, of which the first ones keep theirs", got)
	}
	testkit.Equal(t, uuids[1], got) // in another delivery
}
