package kvstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// barnyard is a store in a bubble, with others who write to its bucket what they like.
type barnyard struct {
	*process
	bucket jetstream.KeyValue
}

func inBarnyard(t *testing.T, test func(*testing.T, barnyard)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		b := barnyard{process: newProcess(t, server, mill)}
		js := testkit.Must(natstest.JetStream(connect(t, server)))(t)
		b.bucket = testkit.Must(js.KeyValue(t.Context(), kvstore.DefaultBucket))(t)
		test(t, b)
	})
}

func (b barnyard) put(key, value string) {
	b.t.Helper()
	testkit.Must(b.bucket.PutString(b.t.Context(), key, value))(b.t)
}

// ask reserves for a second, the shortest lease.
func (b barnyard) ask(claim router.Claim, want router.ReserveState) router.Token {
	b.t.Helper()
	got, err := b.Reserve(b.t.Context(), claim, time.Second)
	if err != nil || got.State != want {
		b.t.Errorf("got state %d, %v, want %d", got.State, err, want)
	}
	return got.Token
}

func (b barnyard) wantLog(text string, said bool) {
	b.t.Helper()
	if got := strings.Contains(b.log.String(), text); got != said {
		b.t.Errorf("the log has %s: %v, want %v\n%s", text, got, said, b.log)
	}
}

// What an entry costs that nobody can read: its message waits for one lease, and the log names the key. Nothing is
// taken for handled, nor handled at once, and other messages are not concerned.
func TestUnreadableEntries(t *testing.T) {
	for name, test := range map[string]struct {
		value string
		state router.ReserveState // at first
		odd   bool                // it is said, and taken over after a lease
	}{
		"a commit":                {"c", router.Committed, false},
		"a reservation":           {`r{"session":"s","store":"another","lease":1}`, router.Busy, false},
		"a reservation and more":  {`r{"session":"s","store":"another","lease":1,"new":[1]}`, router.Busy, false},
		"a reservation of nobody": {"r", router.Busy, true},
		"without its kind":        {`{"session":"s","store":"another","lease":1}`, router.Busy, true},
		"nothing":                 {"", router.Busy, true},
		"cut off":                 {`r{"session":"s","sto`, router.Busy, true},
		"a bad value in it":       {`r{"session":"s","store":"another","lease":"long"}`, router.Busy, true},
		"null":                    {"rnull", router.Busy, true},
		"another object":          {`r{"a":1}`, router.Busy, true},
		"a list":                  {"r[]", router.Busy, true},
		"an unknown kind":         {"x", router.Busy, true},
		"a commit and more":       {"committed", router.Busy, true},
		"what is no text":         {"\xff\x00\x01", router.Busy, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBarnyard(t, func(t *testing.T, b barnyard) {
				claim := b.claim("odd")
				key := claim.Keys.Delivery.String()
				b.put(key, test.value)
				b.ask(claim, test.state)
				b.wantLog(key, test.odd)
				b.ask(b.claim("other"), router.Reserved)
				if !test.odd {
					return
				}
				time.Sleep(time.Second - time.Nanosecond)
				b.ask(claim, router.Busy)
				time.Sleep(time.Nanosecond)
				token := b.ask(claim, router.Reserved)
				testkit.NoError(t, b.Commit(t.Context(), claim, token, time.Hour))
				b.ask(claim, router.Committed)
			})
		})
	}
}

// Another entry that cannot be read has a lease of its own.
func TestUnreadableEntryIsReplaced(t *testing.T) {
	inBarnyard(t, func(_ *testing.T, b barnyard) {
		claim := b.claim("odd")
		b.put(claim.Keys.Delivery.String(), "one")
		b.ask(claim, router.Busy)
		time.Sleep(time.Second - time.Nanosecond)
		b.put(claim.Keys.Delivery.String(), "another")
		b.ask(claim, router.Busy)
		time.Sleep(time.Second - time.Nanosecond)
		b.ask(claim, router.Busy)
		time.Sleep(time.Nanosecond)
		b.ask(claim, router.Reserved)
	})
}

// Whoever cannot get its other key, or was not told that it got this one, leaves what cannot be read as it is.
func TestUnreadableEntryIsKept(t *testing.T) {
	inBarnyard(t, func(t *testing.T, b barnyard) {
		held, odd, late := router.KeyOf("held"), router.KeyOf("odd"), router.KeyOf("late")
		b.want("held", router.Reserved)
		b.put(odd.String(), "odd")
		for range 2 {
			b.ask(router.Claim{Keys: router.Keys{Delivery: held, Content: odd}, Owner: mill}, router.Busy)
			time.Sleep(time.Hour / 4)
		}
		b.proxy.LoseReplies()
		if _, err := b.Reserve(t.Context(), b.claim("late"), time.Hour); err == nil {
			t.Error("reserved without an answer")
		}
		b.proxy.Hang() // it is released when the server answers
		b.put(late.String(), "odd")
		b.proxy.Cut()
		b.proxy.Resume()
		time.Sleep(time.Minute)
		for _, key := range []router.Key{odd, late} {
			if entry, err := b.bucket.Get(t.Context(), key.String()); err != nil || string(entry.Value()) != "odd" {
				t.Errorf("got %v, %v, want the entry as it was", entry, err)
			}
		}
	})
}

// A session record that nobody can read is that of a process that lives: what it reserved is busy, not an error.
func TestUnreadableSession(t *testing.T) {
	for _, record := range []string{"{", `{"ended":true,"by":7}`} {
		t.Run(record, func(t *testing.T) {
			inBarnyard(t, func(t *testing.T, b barnyard) {
				claim := b.claim("held")
				b.put("session.other", record)
				b.put(claim.Keys.Delivery.String(), `r{"session":"s","store":"other","lease":60000000000}`)
				got, err := b.Reserve(t.Context(), claim, time.Minute)
				if err != nil || got.State != router.Busy || got.Holder.Session != "s" {
					t.Errorf("got %+v, %v, want it to be busy", got, err)
				}
				b.wantLog("session.other", true)
			})
		})
	}
}
