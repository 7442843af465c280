package kvbucket_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/devicestore"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// Stores that are made before their server say that there is none, and work as soon as it is there.
func TestBeforeTheServer(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	s.Stop()
	conn := testkit.Must(nats.Connection{URL: s.URL(), RetryOnFailedConnect: true}.Connect("test"))(t)
	t.Cleanup(conn.Close)
	log := testkit.NewLog()
	dedup := testkit.Must(kvstore.New(t.Context(), kvstore.Config{Conn: conn, Logger: log}))(t)
	t.Cleanup(func() { _ = dedup.Close() })
	lease := testkit.Must(kvlease.New(t.Context(), kvlease.Config{Conn: conn}))(t)
	t.Cleanup(func() { _ = lease.Close() })
	devices := testkit.Must(devicestore.New(t.Context(), devicestore.Config{Conn: conn}))(t)
	uses := map[string]func() error{
		"Reserve": func() error {
			got, err := dedup.Reserve(t.Context(), router.Claim{Keys: router.Keys{Delivery: router.KeyOf("scope", "1")}}, time.Minute)
			if err == nil && got.State != router.Reserved {
				t.Errorf("reserved: %+v", got)
			}
			return err
		},
		"Put": func() error {
			return devices.Put(t.Context(), "teamset", farm.DeviceDescription{Payload: []byte("device"), Sent: time.Now()})
		},
	}
	for what, health := range map[string]func(context.Context) error{"dedup": dedup.Health, "lease": lease.Health, "devices": devices.Health} {
		uses[what] = func() error { return health(t.Context()) }
	}
	for what, use := range uses {
		if err := use(); !errors.Is(err, sinks.ErrNotConnected) || router.ClassOf(err) != router.ClassOutage {
			t.Errorf("%s without a server: %v", what, err)
		}
	}
	s.Restart()
	natstest.AwaitReconnect(t, conn)
	for what, use := range uses {
		testkit.EventuallyNil(t, use)
		t.Log(what, "works")
	}
	if lines := log.Lines(); len(lines) > 0 {
		t.Errorf("the dedup store warns:\n%v", log)
	}
}
