package nats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func batchFlight(id string) *flight {
	f := &flight{subject: "agrimill.topic", ctx: context.Background()}
	if id != "" {
		f.id = id
	}
	return f
}

// batchFixture has messages 1 to 5 in an open batch, their IDs their numbers.
type batchFixture struct {
	*batches
	t       *testing.T
	now     time.Time
	flights []*flight // flights[0] is message 1
}

func newBatchFixture(t *testing.T) *batchFixture {
	t.Helper()
	x := &batchFixture{batches: newBatches("_INBOX.x.", "S", 100, 10*time.Minute), t: t, now: time.Unix(1000, 0)}
	for i := range 5 {
		x.add(strconv.Itoa(i + 1))
	}
	return x
}

func (x *batchFixture) add(id string) *flight {
	x.t.Helper()
	f := batchFlight(id)
	_, f.breaks = x.place(id, x.now)
	if !x.batches.add(f, x.now) {
		x.t.Fatalf("no room for %s", id)
	}
	x.flights = append(x.flights, f)
	return f
}

// answer takes in an answer to a message, and returns the numbers of what is stored then.
func (x *batchFixture) answer(n int, data string) (stored []int, gone *broken) {
	x.t.Helper()
	data = strings.ReplaceAll(data, "ID", x.id)
	flights, gone := x.answered(&natsgo.Msg{Subject: x.flights[n-1].reply, Data: []byte(data)}, x.now, nil)
	return x.numbers(flights), gone
}

func (x *batchFixture) numbers(flights []*flight) (numbers []int) {
	for _, f := range flights {
		numbers = append(numbers, slices.Index(x.flights, f)+1)
	}
	return numbers
}

// The subjects for answers are those that the server asks for.
func TestBatchSubjects(t *testing.T) {
	t.Parallel()
	x := newBatchFixture(t)
	for i, want := range []string{"1.fail.1.0.$FI", "1.fail.2.1.$FI", "1.fail.3.1.$FI"} {
		if got := x.flights[i].reply; got != "_INBOX.x."+x.id+"."+want {
			t.Errorf("message %d has the reply subject %s", i+1, got)
		}
	}
	if len(x.id) > 64 || strings.Contains(x.id, ".") {
		t.Errorf("the server does not take the ID %q", x.id)
	}
	if end := x.end(x.now); end != nil {
		t.Errorf("ended with messages in it: %v", end)
	}
	id := x.id
	if stored, gone := x.answer(5, `{"type":"ack","seq":5,"msgs":1}`); len(stored) != 5 || gone != nil {
		t.Errorf("stored %v, %v", stored, gone)
	}
	if end := x.end(x.now.Add(-time.Second)); end != nil {
		t.Errorf("ended too early: %v", end)
	}
	end := x.end(x.now)
	if end == nil || end.Reply != "_INBOX.x."+id+".1.fail.6.3.$FI" || end.Subject != "agrimill.topic" || len(end.Data) > 0 {
		t.Errorf("ended by %+v", end)
	}
	if f := x.add("6"); !strings.HasSuffix(f.reply, ".1.fail.1.0.$FI") || strings.Contains(f.reply, id) {
		t.Errorf("the next batch begins with %s", f.reply)
	}
}

// What the server says, and what is stored and lost then.
func TestBatchAnswers(t *testing.T) {
	t.Parallel()
	const all = 5
	for name, c := range map[string]struct {
		n       int // what is answered
		data    string
		header  natsgo.Header
		stored  []int
		lost    int // how many; 0: the batch goes on
		refused int
		code    jetstream.ErrorCode
		cause   error
	}{
		"taken":                 {n: 1, data: `{"type":"ack","seq":0,"msgs":1}`},
		"some":                  {n: 3, data: `{"type":"ack","seq":3,"msgs":1}`, stored: []int{1, 2, 3}},
		"some, in other words":  {n: 3, data: `{"msgs": 1, "type": "ack", "seq": 2}`, stored: []int{1, 2}},
		"all":                   {n: 5, data: `{"type":"ack","seq":5,"msgs":1}`, stored: []int{1, 2, 3, 4, 5}},
		"more than was sent":    {n: 5, data: `{"type":"ack","seq":6,"msgs":1}`, lost: all, cause: errBadAnswer},
		"refused":               {n: 3, data: `{"type":"err","seq":3,"error":{"code":400,"err_code":10054}}`, lost: all, refused: 3, code: 10054},
		"refused, none of it":   {n: 3, data: `{"type":"err","seq":9,"error":{"code":400,"err_code":10054}}`, lost: all, cause: errBadAnswer},
		"refused at once":       {n: 1, data: `{"error":{"code":400,"err_code":10054},"stream":"S","seq":0}`, lost: all, refused: 1, code: 10054},
		"gap":                   {n: 4, data: `{"type":"gap","last_seq":3,"seq":4}`, lost: all, cause: errBroken},
		"unknown":               {n: 4, data: `{"error":{"code":400,"err_code":10208},"stream":"S","seq":0}`, lost: all, code: 10208},
		"no stream":             {n: 1, header: natsgo.Header{"Status": {"503"}}, lost: all, cause: jetstream.ErrNoStreamResponse},
		"ended by the server":   {n: 2, data: `{"stream":"S","seq":77,"batch":"ID","count":2}`, stored: []int{1, 2}, lost: 3, cause: errNoBatch},
		"ended, all of it":      {n: 5, data: `{"stream":"S","seq":77,"batch":"ID","count":5}`, stored: []int{1, 2, 3, 4, 5}, lost: -1, cause: errNoBatch},
		"ended, too much of it": {n: 2, data: `{"stream":"S","seq":77,"batch":"ID","count":7}`, lost: all, cause: errBadAnswer},
		"another batch":         {n: 2, data: `{"stream":"S","seq":77,"batch":"x","count":2}`, lost: all, cause: errBadAnswer},
		"a plain answer":        {n: 2, data: `{"stream":"S","seq":77}`, lost: all, cause: errBadAnswer},
		"another stream":        {n: 2, data: `{"stream":"T","seq":77,"batch":"ID","count":2}`, lost: all},
		"nothing":               {n: 2, lost: all, cause: errBadAnswer},
		"no JSON":               {n: 2, data: `{"type":"ack","seq":2,"msgs":1`, lost: all, cause: errBadAnswer},
		"an error without one":  {n: 2, data: `{"type":"err","seq":2}`, lost: all, cause: errBroken},
		"a negative number":     {n: 2, data: `{"type":"ack","seq":-2,"msgs":1}`, lost: all, cause: errBadAnswer},
		"a large number":        {n: 2, data: `{"type":"ack","seq":18446744073709551615,"msgs":1}`, lost: all, cause: errBadAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			x := newBatchFixture(t)
			data := strings.ReplaceAll(c.data, "ID", x.id)
			flights, gone := x.answered(&natsgo.Msg{Subject: x.flights[c.n-1].reply, Data: []byte(data), Header: c.header}, x.now, nil)
			if stored := x.numbers(flights); !slices.Equal(stored, c.stored) {
				t.Errorf("stored %v, want %v", stored, c.stored)
			}
			if c.lost == 0 {
				if gone != nil {
					t.Errorf("broken: %+v", gone)
				}
				return
			}
			if gone == nil {
				t.Fatal("not broken")
			}
			if got := x.numbers(gone.flights); len(got) != max(c.lost, 0) || len(got) > 0 && got[len(got)-1] != 5 {
				t.Errorf("lost %v, want the last %d", got, c.lost)
			}
			if got := slices.Index(x.flights, gone.refused) + 1; got != c.refused {
				t.Errorf("refused %d, want %d", got, c.refused)
			}
			var apiError *jetstream.APIError
			if errors.As(gone.cause, &apiError) != (c.code != 0) || c.code != 0 && apiError.ErrorCode != c.code || c.cause != nil && !errors.Is(gone.cause, c.cause) {
				t.Errorf("the cause is %v", gone.cause)
			}
		})
	}
}

// After a batch was broken, what was in it goes plainly until it is known to be stored; what got its
// place before nobody was told does not go at all; and nothing goes before everybody was told.
func TestBatchBroken(t *testing.T) {
	t.Parallel()
	x := newBatchFixture(t)
	x.answer(2, `{"type":"ack","seq":2,"msgs":1}`)
	late := batchFlight("6")
	_, late.breaks = x.place("6", x.now)
	gone := x.snapped(x.now, errNoAck)
	if got := x.numbers(gone.flights); !slices.Equal(got, []int{3, 4, 5}) {
		t.Errorf("lost %v", got)
	}
	if again := x.snapped(x.now, errNoAck); again != nil {
		t.Errorf("broken twice: %+v", again)
	}
	if quiet, overdue := x.quiet(late.breaks); quiet || !overdue || x.batches.add(late, x.now) {
		t.Errorf("quiet: %v, overdue: %v", quiet, overdue)
	}
	next := batchFlight("7")
	if alone, breaks := x.place("7", x.now); !alone {
		t.Error("another batch would be begun at once")
	} else {
		next.breaks = breaks
	}
	if x.batches.add(next, x.now) {
		t.Error("added before everybody was told")
	}
	x.told()
	select {
	case <-x.room:
	default:
		t.Error("nobody is woken")
	}
	if quiet, overdue := x.quiet(next.breaks); !quiet || overdue {
		t.Errorf("quiet: %v, overdue: %v", quiet, overdue)
	}
	// An answer that comes late is for nobody.
	if stored, gone := x.answer(5, `{"type":"ack","seq":5,"msgs":1}`); stored != nil || gone != nil {
		t.Errorf("stored %v, %+v", stored, gone)
	}
	x.now = x.now.Add(batchPause)
	want := func(when string, want map[string]bool) {
		t.Helper()
		for id, want := range want {
			if got, _ := x.place(id, x.now); got != want {
				t.Errorf("%s, %q goes alone: %v", when, id, got)
			}
		}
	}
	want("after the pause", map[string]bool{"1": false, "2": false, "3": true, "4": true, "5": true, "6": false, "": false})
	x.stored("3")
	x.sent("7", x.now)
	want("when one is stored", map[string]bool{"3": false, "4": true, "7": true})
	x.now = x.now.Add(10 * time.Minute)
	want("when the server has forgotten", map[string]bool{"4": false, "7": true})
}

func TestBatchTooManySuspects(t *testing.T) {
	t.Parallel()
	s := suspects{window: time.Minute}
	now := time.Unix(1000, 0)
	for i := range maxSuspects {
		s.add(strconv.Itoa(i), now)
	}
	if s.has("other", now) || !s.has("0", now) {
		t.Error("one is suspect that was not sent, or the other way round")
	}
	s.add("more", now)
	for _, id := range []string{"0", "more", "other"} {
		if !s.has(id, now.Add(time.Minute-1)) {
			t.Errorf("%s is not suspect", id)
		}
	}
	if s.has("other", now.Add(time.Minute)) {
		t.Error("suspect for ever")
	}
	// One message that is tried again and again takes no room.
	for i := range 100_000 {
		s.add("again", now.Add(time.Duration(i/2)))
	}
	if len(s.order) > 5000 {
		t.Errorf("%d entries for one message", len(s.order))
	}
}

func TestBatchSilence(t *testing.T) {
	t.Parallel()
	x := newBatchFixture(t)
	timeout := 10 * time.Second
	x.now = x.now.Add(8 * time.Second)
	x.answer(1, `{"type":"ack","seq":1,"msgs":1}`)
	x.now = x.now.Add(9 * time.Second)
	if gone, progress := x.expire(x.now.Add(-timeout), x.now); gone != nil || !progress.Equal(x.now.Add(-9*time.Second)) {
		t.Errorf("broken although something was stored: %+v, %v", gone, progress)
	}
	x.now = x.now.Add(1001 * time.Millisecond)
	gone, _ := x.expire(x.now.Add(-timeout), x.now)
	if gone == nil || len(gone.flights) != 4 || !errors.Is(gone.cause, errNoAck) {
		t.Errorf("after the time-out: %+v", gone)
	}
	if gone, progress := x.expire(x.now.Add(-timeout), x.now); gone != nil || !progress.Equal(x.now) {
		t.Errorf("without a batch: %+v, %v", gone, progress)
	}
}

func TestBatchUnsent(t *testing.T) {
	t.Parallel()
	x := newBatchFixture(t)
	if gone := x.unsent(x.flights[3], x.now, natsgo.ErrDisconnected); gone != nil {
		t.Errorf("one that is not the latest: %+v", gone)
	}
	gone := x.unsent(x.flights[4], x.now, natsgo.ErrDisconnected)
	if gone == nil || gone.refused != x.flights[4] || len(gone.flights) != 5 {
		t.Errorf("broken: %+v", gone)
	}
	if gone := x.unsent(x.flights[4], x.now, natsgo.ErrDisconnected); gone != nil {
		t.Errorf("broken twice: %+v", gone)
	}
}

func TestBatchRoom(t *testing.T) {
	t.Parallel()
	b := newBatches("_INBOX.x.", "S", 2, time.Minute)
	var flights []*flight
	for range 3 {
		flights = append(flights, batchFlight(""))
	}
	now := time.Unix(1000, 0)
	if !b.add(flights[0], now) || !b.add(flights[1], now) || b.add(flights[2], now) {
		t.Fatal("there is not room for two")
	}
	b.answered(&natsgo.Msg{Subject: flights[0].reply, Data: []byte(`{"type":"ack","seq":1,"msgs":1}`)}, now, nil)
	select {
	case <-b.room:
	default:
		t.Error("not woken")
	}
	if !b.add(flights[2], now) {
		t.Error("no room")
	}
}

// What got its place before a batch was broken goes into no other batch, also once everybody was told:
// one before it may be what is missing.
func TestBatchOverdue(t *testing.T) {
	t.Parallel()
	x := newBatchFixture(t)
	late := batchFlight("late")
	_, late.breaks = x.place("late", x.now)
	x.snapped(x.now, natsgo.ErrDisconnected)
	if quiet, overdue := x.quiet(late.breaks); quiet || !overdue || x.batches.add(late, x.now) {
		t.Errorf("before everybody was told: quiet %t, overdue %t, or added", quiet, overdue)
	}
	x.told()
	x.now = x.now.Add(time.Hour) // long after the pause
	if quiet, overdue := x.quiet(late.breaks); !quiet || !overdue || x.batches.add(late, x.now) {
		t.Errorf("afterward: quiet %t, overdue %t, or added", quiet, overdue)
	}
	x.add("new")
}

// A server that stores what comes in its order, refuses some, and loses some, as random programs
// have it: nothing counts as stored that is not, nothing is stored behind a hole, every message
// gets one result, and what is sent twice is not in a batch the second time.
func TestBatchPrograms(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		testBatchProgram(t, seed)
	}
}

func testBatchProgram(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	b := newBatches("_INBOX.x.", "S", 1+rng.IntN(20), time.Hour)
	now := time.Unix(1000, 0)
	type sent struct {
		f   *flight
		n   uint64
		bid string
	}
	var (
		wire     []sent // not yet with the server
		answers  []*natsgo.Msg
		server   string // its batch; empty: none
		stored   = map[*flight]bool{}
		settled  = map[*flight]bool{}
		next     uint64 // what the server expects
		waiting  []*flight
		batched  = map[string]bool{}
		nextID   int
		failedID []string
	)
	say := func(s sent, data string) {
		answers = append(answers, &natsgo.Msg{Subject: s.f.reply, Data: []byte(data)})
	}
	tell := func(gone *broken) {
		if gone == nil {
			return
		}
		for _, f := range gone.flights {
			if settled[f] {
				t.Fatalf("seed %d: two results", seed)
			}
			settled[f] = true
			failedID = append(failedID, f.id)
		}
		b.told()
	}
	for range 500 {
		now = now.Add(time.Duration(rng.IntN(300)) * time.Millisecond)
		switch rng.IntN(8) {
		case 0, 1, 2: // a message
			id := ""
			if len(failedID) > 0 && rng.IntN(2) == 0 {
				id, failedID = failedID[0], failedID[1:]
			} else {
				nextID++
				id = strconv.Itoa(nextID)
			}
			f := batchFlight(id)
			var alone bool
			if alone, f.breaks = b.place(id, now); alone {
				b.sent(id, now)
				if rng.IntN(2) == 0 {
					b.stored(id)
				} else {
					failedID = append(failedID, id)
				}
				delete(batched, id)
				continue
			}
			if batched[id] {
				t.Fatalf("seed %d: %s is in a batch twice", seed, id)
			}
			if !b.add(f, now) {
				continue
			}
			batched[id] = true
			waiting = append(waiting, f)
			bid, n, ok := b.parse(f.reply)
			if !ok {
				t.Fatal(f.reply)
			}
			wire = append(wire, sent{f, n, bid})
		case 3, 4, 5: // the server takes one
			if len(wire) == 0 {
				continue
			}
			s := wire[0]
			wire = wire[1:]
			if s.n == 1 {
				server, next = s.bid, 1
				say(s, `{"type":"ack","seq":0,"msgs":1}`)
			}
			switch {
			case s.bid != server:
				say(s, `{"error":{"err_code":10208},"stream":"S","seq":0}`)
			case s.n != next:
				say(s, fmt.Sprintf(`{"type":"gap","last_seq":%d,"seq":%d}`, next, s.n))
				say(s, fmt.Sprintf(`{"stream":"S","seq":9,"batch":%q,"count":%d}`, server, next-1))
				server = ""
			case rng.IntN(30) == 0:
				say(s, fmt.Sprintf(`{"type":"err","seq":%d,"error":{"err_code":10054}}`, s.n))
			case rng.IntN(30) == 0: // it is lost
			default:
				stored[s.f] = true
				next++
				say(s, fmt.Sprintf(`{"type":"ack","seq":%d,"msgs":1}`, s.n))
			}
			if rng.IntN(100) == 0 {
				server = "" // restarted
			}
		case 6: // an answer comes, or is lost
			for range rng.IntN(5) {
				if len(answers) == 0 {
					break
				}
				answer := answers[0]
				answers = answers[1:]
				if rng.IntN(20) == 0 {
					continue
				}
				done, gone := b.answered(answer, now, nil)
				for _, f := range done {
					if settled[f] || !stored[f] {
						t.Fatalf("seed %d: counts as stored, and is not, or twice", seed)
					}
					settled[f] = true
				}
				tell(gone)
			}
		case 7:
			if rng.IntN(5) == 0 {
				gone, _ := b.expire(now.Add(-2*time.Second), now)
				tell(gone)
			}
			b.end(now.Add(-batchIdle))
		}
	}
	tell(b.snapped(now, errClosed))
	for _, f := range waiting {
		if !settled[f] {
			t.Fatalf("seed %d: a message has no result", seed)
		}
	}
}

// Whatever a server answers, each message has at most one result, and none is stored that comes behind
// one that is not.
func FuzzBatchAnswers(f *testing.F) {
	f.Add(uint8(2), `{"type":"ack","seq":3,"msgs":1}`, `{"type":"err","seq":4,"error":{"err_code":10054}}`)
	f.Add(uint8(0), `{"type":"gap","last_seq":3,"seq":4}`, `{"stream":"S","seq":77,"batch":"ID","count":2}`)
	f.Add(uint8(5), `{"type":"ack","seq":18446744073709551615,"msgs":1}`, `{"type":"ack","seq":-1,"msgs":65536}`)
	f.Add(uint8(1), `{"error":{"code":400,"err_code":10208}}`, ``)
	f.Add(uint8(9), `{"type":"ack","seq":00,"msgs":1}`, "\x00")
	f.Fuzz(func(t *testing.T, n uint8, one, two string) {
		x := newBatchFixture(t)
		replies := []string{"_INBOX.x.", "_INBOX.x." + x.id, "_INBOX.x." + x.id + ".1.fail.99.1.$FI", "_INBOX.x..1.fail.1.1.$FI", one}
		for _, f := range x.flights {
			replies = append(replies, f.reply)
		}
		id, upTo := x.id, 0
		var gone *broken
		for _, data := range []string{one, two} {
			stored, now := x.answered(&natsgo.Msg{Subject: replies[int(n)%len(replies)], Data: []byte(strings.ReplaceAll(data, "ID", id))}, x.now, nil)
			for _, number := range x.numbers(stored) {
				if upTo++; number != upTo || gone != nil {
					t.Fatalf("%d is stored, want %d at most, broken: %v", number, upTo, gone)
				}
			}
			if now != nil {
				if gone != nil {
					t.Fatal("broken twice")
				}
				gone = now
			}
		}
		if gone == nil {
			gone = x.snapped(x.now, errClosed)
		}
		if got := upTo + len(gone.flights); got != 5 {
			t.Fatalf("%d results of 5", got)
		}
		if gone.refused != nil && !slices.Contains(gone.flights, gone.refused) {
			t.Fatal("refused, and not in the batch")
		}
	})
}
