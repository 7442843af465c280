package kvlease_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/subscriber"
)

// Who waits knows the name of the holder, if that says one, and nobody's once it is not known any more.
func TestHolder(t *testing.T) {
	for name, test := range map[string]struct {
		instance string
		end      func(t *testing.T, at *natstest.Server, term subscriber.LeaseTerm)
	}{
		"released": {"mill 1", func(t *testing.T, _ *natstest.Server, term subscriber.LeaseTerm) {
			testkit.NoError(t, term.Release(t.Context()))
		}},
		"the server is away":                     {"mill 1", func(_ *testing.T, at *natstest.Server, _ subscriber.LeaseTerm) { at.Stop() }},
		"an instance that does not say its name": {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			at := natstest.Start(t)
			holder := open(t, kvlease.Config{Conn: connect(t, at), TTL: 10 * ttl, Instance: test.instance})
			free(t, at)
			standby := open(t, kvlease.Config{Conn: connect(t, at), TTL: 10 * ttl, Instance: "mill 2"})
			if got := standby.Holder(); got != "" {
				t.Errorf("before Acquire: %q", got)
			}
			term := first(t, holder)
			ctx, cancel := context.WithCancel(t.Context())
			waiting := make(chan struct{})
			go func() { // ends with ctx
				defer close(waiting)
				_, _ = standby.Acquire(ctx)
			}()
			t.Cleanup(func() { cancel(); <-waiting })
			testkit.Eventually(t, "the standby has looked", func() bool { return test.instance == "" || standby.Holder() == test.instance })
			if got := holder.Holder(); got != test.instance {
				t.Errorf("the holder itself: %q", got)
			}
			if test.end == nil {
				return
			}
			test.end(t, at, term)
			if got := holder.Holder(); name == "released" && got != "" {
				t.Errorf("the former holder itself: %q", got)
			}
			testkit.Eventually(t, "the standby does not name it any longer", func() bool { return standby.Holder() != test.instance })
		})
	}
}

// What the server says about the connection is in the error, not that a request took too long.
func TestHealthSaysWhy(t *testing.T) {
	at := natstest.Start(t)
	lease := open(t, kvlease.Config{Conn: dial(t, at.URL()), TTL: 60 * ttl})
	at.Restart(func(o *server.Options) { o.Authorization = "another" })
	testkit.Eventually(t, "it says that the server refuses the credentials", func() bool {
		return errors.Is(lease.Health(t.Context()), natsgo.ErrAuthorization)
	})
}
