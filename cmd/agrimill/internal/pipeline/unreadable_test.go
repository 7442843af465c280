package pipeline_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
)

// waitSays waits until a check fails with a text.
func (b *agrimill) waitSays(check, text string) {
	b.w.Helper()
	var got admin.Check
	testkit.Eventually(b.w, fmt.Sprintf("the check %q fails and has %q", check, text), func() bool {
		for _, got = range b.Ready(b.w.Context()) {
			if got.Name == check && !got.OK && strings.Contains(got.Message, text) {
				return true
			}
		}
		return false
	})
	if got.Since.IsZero() {
		b.w.Errorf("%s does not say since when: %+v", check, got)
	}
}

// route returns the state of a route.
func (b *agrimill) route(name string) admin.Route {
	b.w.Helper()
	for _, r := range b.Snapshot().Routes {
		if r.Name == name {
			return r
		}
	}
	b.w.Fatalf("there is no route %s", name)
	return admin.Route{}
}

// What NATS answers to wrong credentials is in all that needs NATS, whether it was refused from the beginning or came to it.
func TestNATSRefusesTheCredentials(t *testing.T) {
	t.Parallel()
	const says = "Authorization Violation"
	refuse := func(o *server.Options) { o.Authorization = "another" }
	for name, began := range map[string]bool{"from the beginning": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			w := newWorld(t)
			own := natstest.Start(t)
			text := strings.ReplaceAll(w.head()+w.natsSink()+allRoute+w.outRoute(), w.proxy.URL(), own.URL()) +
				fmt.Sprintf("ha: {nats_kv: {url: %q, connect_timeout: 1s}, ttl: 5s}\ndedup: {nats_kv: {url: %[1]q, connect_timeout: 1s}}\n", own.URL())
			if !began {
				own.Restart(refuse)
			}
			b := w.start(text)
			if began {
				b.waitRole("holder")
				testkit.Eventually(t, "the store works", func() bool { return b.check("dedup").OK })
				own.Restart(refuse)
			}
			for _, check := range []string{"sink farm", "dedup", "lease"} {
				b.waitSays(check, says)
			}
			testkit.Eventually(t, "the status says it", func() bool {
				s := b.Snapshot()
				return strings.Contains(s.Dedup.Error, says) && strings.Contains(s.Lease.Error, says) && strings.Contains(s.Sinks[0].Error, says)
			})
		})
	}
}
