package subscriber

import (
	"encoding/binary"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/agrimill/agrimill/gateway"
)

// setClock returns now as it is after the machine's clock was set forward by d: the
// monotonic reading is the same. It knows how package time keeps both.
func setClock(t *testing.T, now time.Time, d time.Duration) time.Time {
	t.Helper()
	set := now
	wall := (*uint64)(unsafe.Pointer(&set))
	*wall += uint64(d/time.Second) << 30
	if set.Sub(now) != 0 || set.Round(0).Sub(now.Round(0)) != d {
		t.Fatal("package time keeps its readings in another way")
	}
	return set
}

// ledgerWorld is a ledger in virtual time.
type ledgerWorld struct {
	*testing.T
	l   *ledger
	now time.Time
}

func newLedgerWorld(t *testing.T, maxHeld int) *ledgerWorld {
	l := newLedger(Config{RecentConfirmed: 100, RecentFor: time.Hour, MaxHeld: maxHeld})
	return &ledgerWorld{T: t, l: l, now: l.began}
}

func (w *ledgerWorld) key(id int) messageKey {
	var k messageKey
	k[0] = 1 // the endpoint
	binary.BigEndian.PutUint64(k[16:], uint64(id))
	return k
}

// message opens the message id.
func (w *ledgerWorld) message(id int) *delivery {
	d := &delivery{tenant: "t", event: &gateway.MessageReceived{ID: strconv.Itoa(id)}}
	d.key1[0] = w.key(id)
	d.keys = d.key1[:]
	w.l.open(d)
	return d
}

// file opens the file of the messages ids.
func (w *ledgerWorld) file(ids ...int) *delivery {
	d := &delivery{tenant: "t", event: &gateway.FileReceived{}}
	for _, id := range ids {
		d.keys, d.messages = append(d.keys, w.key(id)), append(d.messages, strconv.Itoa(id))
	}
	d.file = newFileKey(d.keys)
	w.l.open(d)
	return d
}

// close returns the messages that are confirmed when d is closed.
func (w *ledgerWorld) close(d *delivery, v verdict, maybeChunk bool) []string {
	w.l.close(w.now, d, v, maybeChunk)
	return messagesOf(d.confirm)
}

// due returns the messages that are confirmed after d.
func (w *ledgerWorld) due(d time.Duration) []string {
	w.now = w.now.Add(d)
	_, items := w.l.due(w.now)
	return messagesOf(items)
}

func messagesOf(items []confirmation) []string {
	ids := []string{}
	for _, item := range items {
		ids = append(ids, item.message)
	}
	return ids
}

func (w *ledgerWorld) want(what string, got []string, want ...string) {
	w.Helper()
	if !slices.Equal(got, want) {
		w.Errorf("%s: confirmed %v, want %v", what, got, want)
	}
}

func TestLedgerHoldsTheConfirmationsOfChunks(t *testing.T) {
	w := newLedgerWorld(t, 100)
	w.want("a chunk", w.close(w.message(1), verdictAcked, true))
	w.want("a message", w.close(w.message(2), verdictAcked, false), "2")
	w.want("too early", w.due(fileWait-1))
	w.want("no file came", w.due(1), "1")
	w.close(w.message(3), verdictAcked, true)
	file := w.file(3, 4) // 4 was never seen here
	w.want("claimed", w.due(time.Hour))
	w.want("the file", w.close(file, verdictAcked, false), "3", "4")
	if w.l.waiting.n != 0 || !w.l.wake(w.now).IsZero() {
		t.Errorf("%d wait", w.l.waiting.n)
	}
}

func TestLedgerClockOfChunksStandsStill(t *testing.T) {
	w := newLedgerWorld(t, 100)
	w.close(w.message(1), verdictAcked, true)
	w.due(fileWait - 1)
	w.l.pause(w.now) // intake waits for room
	w.want("no room", w.due(time.Hour))
	if at := w.l.wake(w.now); !at.IsZero() {
		t.Errorf("due at %v", at)
	}
	w.l.resume(w.now, false)
	w.want("room", w.due(1), "1")
	w.close(w.message(2), verdictAcked, true)
	w.due(fileWait - 1)
	w.l.pause(w.now) // no stream
	w.due(time.Hour)
	w.l.resume(w.now, true)
	w.want("a new stream", w.due(fileWait-1))
	w.want("no file came", w.due(1), "2")
}

func TestLedgerReleasesTheOldestChunks(t *testing.T) {
	w := newLedgerWorld(t, 2)
	for id := range 3 {
		w.close(w.message(id), verdictAcked, true)
	}
	w.want("one is too many", w.due(0), "0")
	file := w.file(1, 2)
	for id := range 1000 {
		w.close(w.message(id+10), verdictAcked, true)
		w.due(0)
	}
	if got := len(w.l.waiting.items); got > 5 || w.l.waiting.n != 2 || w.l.waiting.released != 999 {
		t.Errorf("%d items, %d wait, %d released", got, w.l.waiting.n, w.l.waiting.released)
	}
	w.want("the file", w.close(file, verdictAcked, false), "1", "2")
}

func TestLedgerFileConfirmsAllButWhatIsOpenOrWasGivenUp(t *testing.T) {
	w := newLedgerWorld(t, 100)
	open := w.message(1)
	w.want("given up", w.close(w.message(2), verdictLeft, false))
	file := w.file(1, 2, 3)
	w.want("the file", w.close(file, verdictAcked, false), "3")
	w.want("the message that was open", w.close(open, verdictAcked, true))
	again := w.message(2)
	w.want("the message that was given up", w.close(again, verdictAcked, false), "2")

	// Given up while the file is open, and acked when it comes again.
	given := w.message(4)
	file = w.file(4, 5)
	w.want("given up", w.close(given, verdictLeft, false))
	if w.l.joins(w.key(4)) || !w.l.joins(w.key(5)) {
		t.Error("what was given up is joined to its file, or what was not is not")
	}
	again = w.message(4)
	w.want("the file", w.close(file, verdictAcked, false), "5")
	w.want("acked in the end", w.close(again, verdictAcked, false), "4")
}

func TestLedgerLeftFileIsNotConfirmedByItsChunks(t *testing.T) {
	w := newLedgerWorld(t, 100)
	w.close(w.message(1), verdictAcked, true)
	open := w.message(2)
	file := &delivery{keys: []messageKey{w.key(1), w.key(2), w.key(3)}}
	file.file = newFileKey(file.keys)
	w.l.leaveNew(w.now, file)
	w.want("a chunk that was open", w.close(open, verdictAcked, false))
	w.want("later", w.due(time.Hour))
	// All comes again.
	w.want("the file", w.close(w.file(1, 2, 3), verdictAcked, false), "1", "2", "3")
}

// Who has acked a message is remembered until it is confirmed: its file may be left.
func TestLedgerKnowsWhoAckedUntilItIsConfirmed(t *testing.T) {
	sub := &subscription{}
	acked := func(w *ledgerWorld, id int) *delivery {
		d := w.message(id)
		d.acked = []*subscription{sub}
		return d
	}
	known := func(w *ledgerWorld, what string, want ...int) {
		t.Helper()
		for _, id := range want {
			d := &delivery{keys: []messageKey{w.key(id)}}
			if d.key1[0] = w.key(id); !slices.Equal(w.l.acked(d), []*subscription{sub}) {
				t.Errorf("%s: it is not known who acked %d", what, id)
			}
		}
		if len(w.l.ackedBy) != len(want) {
			t.Errorf("%s: %d are remembered, want %d", what, len(w.l.ackedBy), len(want))
		}
	}
	w := newLedgerWorld(t, 100)
	w.close(acked(w, 1), verdictAcked, false)
	known(w, "confirmed at once")
	w.close(acked(w, 1), verdictAcked, true)
	known(w, "waits for its file", 1)
	file := w.file(1, 2)
	w.close(acked(w, 2), verdictAcked, false)
	known(w, "its file is open", 1, 2)
	w.close(file, verdictLeft, false)
	known(w, "its file was left", 1, 2)
	file = w.file(1, 2)
	file.acked = []*subscription{sub}
	w.want("the file", w.close(file, verdictAcked, false), "1", "2")
	known(w, "its file is confirmed")
	w.close(acked(w, 3), verdictAcked, true)
	w.want("no file came", w.due(fileWait), "3")
	known(w, "no file came")
	// Of what waits, there is as much as is remembered of others.
	for id := range 1000 {
		w.close(acked(w, 10+id), verdictAcked, true)
	}
	if got := len(w.l.ackedBy); got > w.l.leftRing.size {
		t.Errorf("%d are remembered", got)
	}
}

// What comes behind its file, which was left on this connection, is not confirmed before that
// comes again.
func TestLedgerPartsBehindALeftFileWait(t *testing.T) {
	w := newLedgerWorld(t, 100)
	file := &delivery{keys: []messageKey{w.key(1), w.key(2)}}
	file.file = newFileKey(file.keys)
	w.l.leaveNew(w.now, file)
	w.want("a part", w.close(w.message(1), verdictAcked, true))
	w.want("later", w.due(time.Hour))
	slow := w.message(2)
	w.now = w.now.Add(time.Second)
	w.l.resume(w.now, true) // a new connection
	again := w.file(1, 2)
	w.want("the file", w.close(again, verdictAcked, false), "1")
	w.want("a part that was open meanwhile", w.close(slow, verdictAcked, false), "2")

	w.l.leaveNew(w.now, file)
	w.l.resume(w.now.Add(time.Second), true)
	w.want("on a later connection", w.close(w.message(1), verdictAcked, false), "1")
}

func TestLedgerForgetsTheOldestThatWereLeft(t *testing.T) {
	w := newLedgerWorld(t, 100)
	sub := &subscription{}
	for id := range 1000 {
		d := w.message(id)
		d.acked = []*subscription{sub}
		w.close(d, verdictLeft, false)
		w.close(w.message(id), verdictLeft, false)
	}
	if w.l.index.Len() != 100 || len(w.l.ackedBy) != 100 || len(w.l.entries) > 110 {
		t.Errorf("%d messages, the acks of %d, in %d entries", w.l.index.Len(), len(w.l.ackedBy), len(w.l.entries))
	}
	w.l.forgetSubscription(sub)
	if len(w.l.ackedBy) != 0 {
		t.Error("the acks of a subscription that ended are remembered")
	}
}

func TestFamilies(t *testing.T) {
	var w ledgerWorld
	const id = "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1c001"
	for _, c := range []struct {
		first, second string
		several       bool
	}{
		{id, id, true},
		{id + "-0", id + "-12", true},
		{id, id + "-0", true},
		{"job-1", "job-2", false},
		{id, "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1c002", false},
	} {
		var s families
		first, second := newFamily(w.key(1), c.first), newFamily(w.key(2), c.second)
		s.add(first, w.key(1))
		s.add(first, w.key(1)) // redelivered
		if s.several(first) {
			t.Errorf("%s: a redelivery is another message", c.first)
		}
		s.add(second, w.key(2))
		if got := s.several(first); got != c.several {
			t.Errorf("%s and %s: several %v", c.first, c.second, got)
		}
	}
}

// A clock that is set forward or back does not make the subscriber forget what was
// confirmed a short while ago, nor remember it for longer.
func TestConfirmedMessagesAreRememberedWhileTheClockIsSet(t *testing.T) {
	const keep = 10 * time.Minute
	for _, jump := range []time.Duration{365 * 24 * time.Hour, 0} {
		table := newLedger(Config{RecentConfirmed: 10, RecentFor: keep})
		now := time.Now()
		key := newMessageKey("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222")
		table.confirmed(table.confirming(key), now)
		if got := table.state(key, setClock(t, now, jump)); got != stateConfirmed {
			t.Errorf("forgotten when the clock was set by %v: state %d", jump, got)
		}
		if got := table.state(key, setClock(t, now.Add(keep), jump)); got != stateConfirmed {
			t.Errorf("forgotten too early: state %d", got)
		}
		if got := table.state(key, setClock(t, now.Add(keep+1), jump)); got != 0 {
			t.Errorf("remembered too long: state %d", got)
		}
	}
}
