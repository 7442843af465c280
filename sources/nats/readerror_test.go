package nats_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sources/nats"
)

// A subscription that can read nothing says why, and since when, and reads on when that is over.
func TestReadError(t *testing.T) {
	t.Parallel()
	forbid := func(subjects ...string) func(*server.Options) {
		return func(o *server.Options) {
			o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: subjects}}}}
			o.NoAuthUser = "u"
		}
	}
	allow := func(o *server.Options) { o.Users, o.NoAuthUser, o.Authorization = nil, "", "" }
	for name, test := range map[string]struct {
		fail, end func(f *field)
		says      string
	}{
		"the stream is deleted": {
			func(f *field) {
				testkit.EventuallyNil(f, func() error { return f.js.DeleteStream(f.Context(), "FIELD") })
			},
			(*field).createStream, "stream not found",
		},
		"the server is away": {
			func(f *field) { f.server.Stop() }, func(f *field) { f.server.Restart() }, "disconnected",
		},
		"the server refuses the credentials": {
			func(f *field) { f.server.Restart(func(o *server.Options) { o.Authorization = "another" }) },
			func(f *field) { f.server.Restart(allow) }, "Authorization Violation",
		},
		"the server does not permit it any longer": {
			func(f *field) { f.server.Restart(forbid("$JS.API.CONSUMER.>")) },
			func(f *field) { f.server.Restart(allow) }, "Permissions Violation",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newField(t)
			s := f.subscriber()
			nats.SetHeartbeat(s, time.Second) // it waits for two of them
			if since, err := s.ReadError(); err != nil || !since.IsZero() {
				t.Errorf("before Subscribe: since %v: %v", since, err)
			}
			messages := f.subscribe(s)
			f.put(0, 1)
			f.next(messages).Ack()
			if _, err := s.ReadError(); err != nil {
				t.Errorf("while it reads: %v", err)
			}
			began := time.Now()
			test.fail(f)
			testkit.Eventually(t, "it says "+test.says, func() bool {
				_, err := s.ReadError()
				return err != nil && strings.Contains(strings.ToLower(err.Error()), strings.ToLower(test.says))
			})
			if since, err := s.ReadError(); since.Before(began) || time.Since(since) < 0 {
				t.Errorf("since %v, want after %v: %v", since, began, err)
			}
			test.end(f)
			testkit.EventuallyNil(t, func() error { _, err := s.ReadError(); return err })
		})
	}
}

// A subscription that may wait begins before its server is there, and before the stream is. One that never finds them ends with
// its context.
func TestSubscribeBeforeTheServer(t *testing.T) {
	t.Parallel()
	f := newField(t)
	testkit.NoError(t, f.js.DeleteStream(t.Context(), "FIELD"))
	f.server.Stop()
	waits := func(c *nats.Config) { c.RetryOnFailedConnect, c.ConnectTimeout = true, time.Second }
	s, never := f.subscriber(waits), f.subscriber(waits)
	messages := f.subscribe(s)
	ctx, cancel := context.WithCancel(t.Context())
	none := testkit.Must(never.Subscribe(ctx, fieldSubject))(t)
	cancel()
	testkit.Ends(t, "the subscription", func() {
		for range none {
			t.Error("got a message")
		}
	})
	says := func(err error, text string) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint("ReadError says ", err, " and ", text), func() bool {
			_, got := s.ReadError()
			return errors.Is(got, sinks.ErrUnavailable) && errors.Is(got, err) && strings.HasPrefix(got.Error(), "source nats, consumer ") && strings.HasSuffix(got.Error(), text)
		})
	}
	says(natsgo.ErrDisconnected, ": unavailable: nats: server is disconnected")
	f.restart()
	says(jetstream.ErrStreamNotFound, "; there are no streams")
	f.createStream()
	f.put(0, 1)
	f.next(messages).Ack()
	if _, err := s.ReadError(); err != nil {
		t.Errorf("while it reads: %v", err)
	}
}
