package nats_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

// A consumer that somebody changes while it is read is looked up again: one that would lose messages is not read until it is what it
// was, and one that waits says so.
func TestConsumerIsChanged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(have *jetstream.ConsumerConfig)
		reason string // of ReadError; empty: it is read on
		line   string
	}{
		"leaves out payloads": {func(have *jetstream.ConsumerConfig) { have.HeadersOnly = true }, "delivers headers only", "message came without its payload"},
		"gives up":            {func(have *jetstream.ConsumerConfig) { have.MaxDeliver = 1 }, "max_deliver 1", "consumer unavailable"},
		"reads others":        {func(have *jetstream.ConsumerConfig) { have.FilterSubject = "field.other" }, "reads field.other", "consumer unavailable"},
		"waits":               {func(*jetstream.ConsumerConfig) {}, "", "paused until"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *field) {
				log := testkit.NewLog()
				config := nats.Config{Connection: f.via, SubjectPrefix: sinknats.NoSubjectPrefix, Durable: "out", CloseTimeout: time.Second}
				s := testkit.Must(nats.New(config, log))(f)
				defer s.Close()
				messages := f.subscribe(s)
				f.put(0, 1)
				f.next(messages).Ack()
				before := f.config()
				changed := before
				c.change(&changed)
				testkit.Must(f.js.UpdateConsumer(f.Context(), "FIELD", changed))(f)
				if c.reason == "" {
					testkit.Must(f.js.PauseConsumer(f.Context(), "FIELD", "out", time.Now().Add(2*time.Minute)))(f)
				}
				if changed.HeadersOnly {
					f.put(1, 1)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if _, err := s.ReadError(); (err == nil) != (c.reason == "") || err != nil && !strings.Contains(err.Error(), c.reason) {
					t.Errorf("the subscription says %v", err)
				}
				testkit.Contains(t, log.String(), c.line)
				testkit.Must(f.js.UpdateConsumer(f.Context(), "FIELD", before))(f)
				if !changed.HeadersOnly {
					f.put(1, 1)
				}
				msg := f.next(messages)
				if string(msg.Payload) != "1" {
					t.Errorf("got %q", msg.Payload)
				}
				msg.Ack()
				testkit.Must(s.ReadError())(t)
			})
		})
	}
}

// An account that may read and not acknowledge gets everything again and again: the log says why.
func TestAcksAreRefused(t *testing.T) {
	t.Parallel()
	f := &field{T: t, server: natstest.Start(t, func(o *server.Options) {
		mayRead := &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>"}}}
		o.Users = []*server.User{{Username: "mill", Password: "x", Permissions: mayRead}, {Username: "other", Password: "x"}}
	})}
	_, f.js = natstest.Client(t, f.server.URL(), natsgo.UserInfo("other", "x"))
	f.createStream()
	log := testkit.NewLog()
	messages := f.subscribe(f.logged(log, func(c *nats.Config) { c.User, c.Password = "mill", "x" }))
	f.put(0, 1)
	f.next(messages).Ack()
	testkit.Eventually(t, "the log says it", func() bool {
		return strings.Contains(log.String(), `ERROR NATS connection error`) && strings.Contains(log.String(), `Permissions Violation for Publish to "$JS.ACK.FIELD.out`)
	})
}
