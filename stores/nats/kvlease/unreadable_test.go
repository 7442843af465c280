package kvlease_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
)

// A record that cannot be read, or says what cannot be, is that of a holder for one TTL, is named once, and then taken over.
func TestUnreadableRecord(t *testing.T) {
	for name, test := range map[string]struct{ value, says string }{
		"of a holder":      {`{"epoch":3,"holder":"h","writes":1,"ttl":1000000000}`, ""},
		"an unknown field": {`{"epoch":3,"holder":"h","writes":1,"new":[]}`, ""},
		"no ttl":           {`{"epoch":3,"holder":"h","writes":1}`, ""},
		"ttl below zero":   {`{"epoch":3,"holder":"h","writes":1,"ttl":-1}`, "a TTL of -1 ns"},
		"ttl of centuries": {`{"epoch":3,"holder":"h","writes":1,"ttl":9223372036854775807}`, "a TTL of 9223372036854775807 ns"},
		"ttl of a kind":    {`{"epoch":3,"holder":"h","writes":1,"ttl":"5s"}`, "cannot be read"},
		"no holder":        {`{"epoch":3}`, "no holder"},
		"null":             {`null`, "no holder"},
		"cut off":          {`{"epoch":3,"hol`, "cannot be read"},
		"nothing":          {``, "cannot be read"},
		"no text":          {"\xff\x00", "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
				js := testkit.Must(natstest.JetStream(connect(t, server)))(t)
				log := testkit.NewLog()
				config := kvlease.Config{Conn: connect(t, server), TTL: ttl, Logger: log}
				lease := open(t, config)
				bucket := testkit.Must(js.KeyValue(t.Context(), kvlease.DefaultBucket))(t)
				before := time.Now()
				testkit.Must(bucket.PutString(t.Context(), kvlease.DefaultName, test.value))(t)
				term := testkit.Must(lease.Acquire(t.Context()))(t)
				if waited := term.Renewed().Sub(before); waited < ttl || waited > ttl+ttl/5 {
					t.Errorf("it was taken over after %v, want a little more than the TTL of %v", waited, ttl)
				}
				lines := 0
				for _, text := range log.Texts() {
					if strings.Contains(text, "record of the lease") {
						lines++
						testkit.Contains(t, text, test.says)
					}
				}
				if want := min(1, len(test.says)); lines != want {
					t.Errorf("got %d lines about the record, want %d:\n%s", lines, want, log)
				}
				testkit.NoError(t, term.Release(t.Context()))
			})
		})
	}
}
