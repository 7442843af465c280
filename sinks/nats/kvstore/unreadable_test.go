package kvstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats/kvstore"
)

// What an entry costs that nobody can read: its message waits for one lease, and the log names the key. Nothing is
// taken for handled, nor handled at once, and other messages are not concerned.
func TestUnreadableEntries(t *testing.T) {
	server := natstest.Start(t)
	conn := connect(t, server.URL())
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		value string
		state router.ReserveState // at first
		taken bool                // after a lease
		said  bool
	}{
		"a commit":                {"c", router.Committed, false, false},
		"a reservation of nobody": {"r", router.Busy, true, true},
		"a reservation":           {`r{"session":"s","store":"another","lease":1}`, router.Busy, false, false},
		"a reservation and more":  {`r{"session":"s","store":"another","lease":1,"new":[1]}`, router.Busy, false, false},
		"nothing":                 {"", router.Busy, true, true},
		"cut off":                 {`r{"session":"s","sto`, router.Busy, true, true},
		"a bad value in it":       {`r{"session":"s","store":"another","lease":"long"}`, router.Busy, true, true},
		"null":                    {"rnull", router.Busy, true, true},
		"another object":          {`r{"a":1}`, router.Busy, true, true},
		"a list":                  {"r[]", router.Busy, true, true},
		"an unknown kind":         {"x", router.Busy, true, true},
		"a commit and more":       {"committed", router.Busy, true, true},
		"what is no text":         {"\xff\x00\x01", router.Busy, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := testkit.NewLog()
			config := kvstore.Config{Conn: conn, Bucket: strings.ReplaceAll(name, " ", "_"), SessionTTL: time.Minute, Logger: log}
			store := open(t, config)
			bucket, err := js.KeyValue(t.Context(), config.Bucket)
			if err != nil {
				t.Fatal(err)
			}
			claim := deliveryOf("odd")
			if _, err := bucket.Put(t.Context(), claim.Keys.Delivery.String(), []byte(test.value)); err != nil {
				t.Fatal(err)
			}
			const lease = time.Second // the shortest
			got, err := store.Reserve(t.Context(), claim, lease)
			if err != nil || got.State != test.state {
				t.Fatalf("got state %d, %v, want %d", got.State, err, test.state)
			}
			if said := strings.Contains(log.String(), claim.Keys.Delivery.String()); said != test.said {
				t.Errorf("the log names the key: %v, want %v\n%s", said, test.said, log)
			}
			if other, err := store.Reserve(t.Context(), deliveryOf("other"), time.Minute); err != nil || other.State != router.Reserved {
				t.Errorf("another message: state %d, %v, want a reservation", other.State, err)
			}
			if !test.taken {
				return
			}
			testkit.Eventually(t, "it is taken over", func() bool {
				got, err = store.Reserve(t.Context(), claim, lease)
				return err == nil && got.State == router.Reserved
			})
			if err := store.Commit(t.Context(), claim, got.Token, time.Hour); err != nil {
				t.Fatal(err)
			}
			if got, err := open(t, config).Reserve(t.Context(), claim, lease); err != nil || got.State != router.Committed {
				t.Errorf("then: state %d, %v, want committed", got.State, err)
			}
		})
	}
}

// A session record that nobody can read is that of a process that lives: what it reserved is busy, not an error.
func TestUnreadableSession(t *testing.T) {
	server := natstest.Start(t)
	conn := connect(t, server.URL())
	log := testkit.NewLog()
	store := open(t, kvstore.Config{Conn: conn, SessionTTL: time.Minute, Logger: log})
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := js.KeyValue(t.Context(), kvstore.DefaultBucket)
	if err != nil {
		t.Fatal(err)
	}
	claim := deliveryOf("held")
	for key, value := range map[string]string{"session.other": "{", claim.Keys.Delivery.String(): `r{"session":"s","store":"other","lease":60000000000}`} {
		if _, err := bucket.Put(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := store.Reserve(t.Context(), claim, time.Minute)
	if err != nil || got.State != router.Busy || got.Holder.Session != "s" {
		t.Errorf("got %+v, %v, want it to be busy", got, err)
	}
	if !strings.Contains(log.String(), "session.other") {
		t.Errorf("the log does not name the record:\n%s", log)
	}
}
