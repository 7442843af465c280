package nats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func newFlight() *flight {
	return &flight{subject: "agrimill.topic", ctx: context.Background()}
}

// Random programs beside a list of what waits.
func TestAcksPrograms(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		most := 1 + rng.IntN(8)
		a := newAcks("_INBOX.x.", most)
		now, timeout := time.Unix(1000, 0), 10*time.Second
		var waiting []*flight
		replies := map[*flight]string{}
		drop := func(f *flight) {
			waiting = slices.DeleteFunc(waiting, func(other *flight) bool { return other == f })
		}
		for range 300 {
			now = now.Add(time.Duration(rng.IntN(2000)) * time.Millisecond)
			switch rng.IntN(5) {
			case 0, 1:
				f := newFlight()
				_, ok := a.add(f, now)
				if ok != (len(waiting) < most) {
					t.Fatalf("seed %d: add = %v with %d of %d", seed, ok, len(waiting), most)
				}
				if ok {
					waiting, replies[f] = append(waiting, f), f.reply
				}
			case 2:
				if len(waiting) == 0 {
					continue
				}
				f := waiting[rng.IntN(len(waiting))]
				answer := &natsgo.Msg{Subject: replies[f], Data: fmt.Appendf(nil, `{"stream":"S","seq":%d}`, rng.Uint64N(1e15)+1)}
				if got, _, err := a.answered(answer); got != f || err != nil {
					t.Fatalf("seed %d: answered = %p, %v; want %p", seed, got, err, f)
				}
				if got, _, _ := a.answered(answer); got != nil {
					t.Fatalf("seed %d: the answer counts twice", seed)
				}
				drop(f)
			case 3:
				expired, oldest := a.expire(now.Add(-timeout), now)
				var want []*flight
				for _, f := range waiting {
					if now.Sub(f.sent) > timeout {
						want = append(want, f)
					}
				}
				if !slices.Equal(expired, want) {
					t.Fatalf("seed %d: %d expired, want %d", seed, len(expired), len(want))
				}
				for _, f := range want {
					drop(f)
				}
				wantOldest := now
				if len(waiting) > 0 {
					wantOldest = waiting[0].sent
				}
				if !oldest.Equal(wantOldest) {
					t.Fatalf("seed %d: oldest = %v, want %v", seed, oldest, wantOldest)
				}
			case 4:
				if rng.IntN(10) == 0 {
					if all := a.takeAll(); !slices.Equal(all, waiting) {
						t.Fatalf("seed %d: %d taken, want %d", seed, len(all), len(waiting))
					}
					waiting = nil
				}
			}
		}
	}
}

// Whoever found no room is woken by whatever makes some, not by what made some before.
func TestAcksRoom(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(a *acks, id uint64){
		"taken":     func(a *acks, id uint64) { a.take(id) },
		"all taken": func(a *acks, _ uint64) { a.takeAll() },
		"expired":   func(a *acks, _ uint64) { a.expire(time.Unix(5, 0), time.Unix(5, 0)) },
		"answered": func(a *acks, id uint64) {
			_, _, _ = a.answered(&natsgo.Msg{Subject: a.prefix + strconv.FormatUint(id, 36), Data: []byte(`{}`)}) // what matters is that it makes room
		},
	} {
		a := newAcks("_INBOX.x.", 1)
		first, _ := a.add(newFlight(), time.Unix(1, 0))
		a.take(first)
		id, _ := a.add(newFlight(), time.Unix(1, 0))
		if _, ok := a.add(newFlight(), time.Unix(2, 0)); ok {
			t.Errorf("%s: there is room for two", name)
		}
		select {
		case <-a.room:
			t.Errorf("%s: woken without room", name)
		default:
		}
		free(a, id)
		select {
		case <-a.room:
		default:
			t.Errorf("%s: not woken", name)
		}
		if _, ok := a.add(newFlight(), time.Unix(2, 0)); !ok {
			t.Errorf("%s: no room", name)
		}
	}
}

// What the answer says must not depend on the answers before it.
func TestAcksDecode(t *testing.T) {
	t.Parallel()
	tooMany := &jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum messages exceeded"}
	answers := []struct {
		data string
		want jetstream.PubAck
		err  error
	}{
		{`{"stream":"S","seq":1}`, jetstream.PubAck{Stream: "S", Sequence: 1}, nil},
		{`{"stream":"S","seq":22}`, jetstream.PubAck{Stream: "S", Sequence: 22}, nil},
		{`{"stream":"S","seq":18446744073709551615}`, jetstream.PubAck{Stream: "S", Sequence: 1<<64 - 1}, nil},
		{`{"stream":"S","seq":9,"duplicate": true}`, jetstream.PubAck{Stream: "S", Sequence: 9, Duplicate: true}, nil},
		{`{"stream":"S", "seq":7}`, jetstream.PubAck{Stream: "S", Sequence: 7}, nil},
		{`{"stream":"S","domain":"D","seq":8}`, jetstream.PubAck{Stream: "S", Domain: "D", Sequence: 8}, nil},
		{`{"stream":"S2","seq":3}`, jetstream.PubAck{Stream: "S2", Sequence: 3}, nil},
		{`{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}`, jetstream.PubAck{}, tooMany},
		{`{"stream":"S","seq":0}`, jetstream.PubAck{}, errBadAnswer},
		{`{"stream":"S","seq":}`, jetstream.PubAck{}, errBadAnswer},
		{`{"stream":"S","seq":007}`, jetstream.PubAck{}, errBadAnswer},
		{`{"stream":"S","seq":-7}`, jetstream.PubAck{}, errBadAnswer},
		{`{"stream":"S","seq":99999999999999999999}`, jetstream.PubAck{}, errBadAnswer},
		{`{"stream":"S","seq":7`, jetstream.PubAck{}, errBadAnswer},
		{`{"seq":7}`, jetstream.PubAck{}, errBadAnswer},
		{`+OK`, jetstream.PubAck{}, errBadAnswer},
		{``, jetstream.PubAck{}, errBadAnswer},
	}
	check := func(a *acks, n int) {
		answer := answers[n]
		got, err := a.decode([]byte(answer.data))
		if got != answer.want || !errors.Is(err, answer.err) {
			t.Errorf("decode(%s) = %+v, %v; want %+v, %v", answer.data, got, err, answer.want, answer.err)
		}
	}
	for first := range answers {
		for second := range answers {
			a := newAcks("_INBOX.x.", 1)
			check(a, first)
			check(a, second)
			check(a, first)
		}
	}
}

// Anybody who may publish to the inbox can answer.
func FuzzAcksAnswered(f *testing.F) {
	for _, seed := range []string{`{"stream":"S","seq":1}`, `{"stream":"S","seq":12,"duplicate": true}`, `{"error":{"code":503}}`, ``} {
		f.Add("1", []byte(seed), []byte(`{"stream":"S","seq":5}`))
	}
	f.Fuzz(func(t *testing.T, number string, first, second []byte) {
		a := newAcks("_INBOX.x.", 1)
		if _, ok := a.add(newFlight(), time.Unix(1, 0)); !ok {
			t.Fatal("no room")
		}
		_, _ = a.decode(first) // may be learned
		flight, got, err := a.answered(&natsgo.Msg{Subject: a.prefix + number, Data: second})
		if flight == nil {
			return
		}
		fresh := newAcks("_INBOX.x.", 1)
		want, wantErr := fresh.decode(second)
		if got != want || (err == nil) != (wantErr == nil) {
			t.Errorf("%q after %q = %+v, %v; want %+v, %v", second, first, got, err, want, wantErr)
		}
	})
}
