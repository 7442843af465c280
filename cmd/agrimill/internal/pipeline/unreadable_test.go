package pipeline_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
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

// A route whose source cannot be read is in an outage, whether it began so or came to it: the status, the probe and the log
// say why, and when it is over.
func TestSourceCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text      func(w *world) string
		fail, end func(w *world)
		says      string
	}{
		"NATS with a lease, the stream is deleted": {
			func(w *world) string {
				w.free()
				return w.outRoute() + w.ha(w.server.URL(), "ttl: 5s")
			},
			func(w *world) {
				testkit.EventuallyNil(w, func() error { return w.js.DeleteStream(w.Context(), "OUT") })
			},
			func(w *world) { w.outRoute() }, "stream not found",
		},
		"Kafka, the topic is deleted": {
			func(w *world) string {
				w.env["KAFKA"] = kafkatest.Start(w, kfake.SeedTopics(1, "reports")).Addr()
				return fmt.Sprintf("  - {name: back, from: {kafka: {brokers: %q, topics: [reports]}}, to: {gateway: {tenant: %s, type: %q, endpoint: %s}}}\n",
					w.env["KAFKA"], w.gate.Tenant(), taskData, w.sender.ID)
			},
			func(w *world) {
				conn := kafkatest.Client(w, w.env["KAFKA"])
				client := kadm.NewClient(conn)
				testkit.NoError(w, conn.ProduceSync(w.Context(), &kgo.Record{Topic: "reports", Value: []byte("report")}).FirstErr())
				testkit.Eventually(w, "the topic is read", func() (is bool) {
					for _, group := range client.FetchManyOffsets(w.Context(), testkit.Must(client.ListGroups(w.Context()))(w).Groups()...) {
						group.Fetched.Each(func(committed kadm.OffsetResponse) { is = is || committed.At > 0 })
					}
					return is
				})
				testkit.Must(client.DeleteTopics(w.Context(), "reports"))(w)
			},
			func(w *world) {
				testkit.Must(kadm.NewClient(kafkatest.Client(w, w.env["KAFKA"])).CreateTopic(w.Context(), 1, 1, nil, "reports"))(w)
			}, "does not exist",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			w := newWorld(t)
			b := w.start(w.head() + w.natsSink() + allRoute + test.text(w))
			b.waitReady()
			testkit.Eventually(t, "the source is read", func() bool { return strings.HasPrefix(name, "Kafka") || b.route("back").Backlog != nil })
			test.fail(w)
			b.waitSays("route back", test.says)
			if r := b.route("back"); r.State != router.StateOutage || !strings.Contains(r.LastError, test.says) || r.Since.IsZero() {
				t.Errorf("got %s, want an outage because of %q", w.asJSON(r), test.says)
			}
			b.logs.contains("level=WARN", "msg=problem", "kind=route", "name=back", test.says)
			test.end(w)
			b.waitReady()
			b.logs.contains("level=INFO", "problem over", "kind=route", "name=back")
		})
	}
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
