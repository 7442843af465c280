package routertest_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/routertest"
	"github.com/agrimill/agrimill/sinks"
)

// received is a message as the subscriber of the gateway delivers it.
func received(uuid string) *message.Message {
	msg := message.NewMessage(uuid, []byte("a field"))
	msg.Metadata = message.Metadata{
		gateway.KeyEventType: string(gateway.EventMessageReceived), gateway.KeyMessageIDs: uuid, gateway.KeyReceivingEndpointID: "e",
		gateway.KeyTenantID: "north", gateway.KeyMessageType: "doc:pdf",
	}
	return msg
}

// failing is a publisher that fails until a time.
type failing struct {
	until time.Time
	err   error
	calls int
}

func (f *failing) Publish(string, ...*message.Message) error {
	if f.calls++; time.Now().Before(f.until) {
		return f.err
	}
	return nil
}

func (*failing) Close() error { return nil }

// deliver is Deliver in a bubble, which tells how long it took there.
func deliver(t *testing.T, config router.Config, route router.Route, messages ...*message.Message) (got routertest.Result, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var err error
		if got, err = routertest.Deliver(t.Context(), config, route, messages...); err != nil {
			t.Error(err)
		}
		took = time.Since(began)
	})
	return got, took
}

func TestHandlerThatFails(t *testing.T) {
	attempts := 0
	got, took := deliver(t, router.Config{}, router.Route{Name: "notes", Transform: func(msg *message.Message) ([]*message.Message, error) {
		attempts++
		return nil, errors.New("no")
	}}, received("1"))
	if attempts != 5 || len(got.Published) != 0 || len(got.Poisoned) != 1 || took == 0 {
		t.Fatalf("%d attempts in %s: %+v", attempts, took, got)
	}
	poisoned := got.Poisoned[0]
	if poisoned.Topic != router.DefaultPoisonTopic || poisoned.Message.Metadata[router.KeyPoisonRoute] != "notes" || got.Health.RetriesByClass.Handler != 4 {
		t.Errorf("%+v, %+v", poisoned, got.Health)
	}
}

// FailNow in a handler ends its goroutine: the message is returned, and nothing waits for it.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	got, _ := deliver(t, router.Config{}, router.Route{Transform: func(*message.Message) ([]*message.Message, error) {
		runtime.Goexit()
		return nil, nil
	}}, received("1"))
	if got.Health.Returned != 1 || got.Health.LastError == "" {
		t.Errorf("%+v, want one returned", got.Health)
	}
}

// A sink that is away is an outage, and what it has stored at last is in the result, once.
func TestSinkThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := &failing{until: time.Now().Add(time.Hour), err: errors.New("away")}
		got, err := routertest.Deliver(t.Context(), router.Config{}, router.Route{To: sinks.FromPublisher("away", away, sinks.PublisherConfig{})}, received("1"))
		if err != nil || len(got.Published) != 1 || got.Published[0].Topic != "north.doc:pdf" || away.calls < 2 || time.Now().Before(away.until) {
			t.Errorf("%d calls: %+v, %v", away.calls, got, err)
		}
	})
}

func TestCopy(t *testing.T) {
	got, _ := deliver(t, router.Config{}, router.Route{}, received("1"), received("1"), received("2"))
	if len(got.Published) != 2 || got.Health.Duplicates != 1 {
		t.Errorf("%+v", got)
	}
}

// The sink's rules hold: its topics and the largest message.
func TestSinkThatRefuses(t *testing.T) {
	small := sinks.FromPublisher("small", &failing{}, sinks.PublisherConfig{Description: sinks.Description{MaxMessageSize: 3}})
	got, _ := deliver(t, router.Config{}, router.Route{To: small}, received("1"))
	if len(got.Published) != 0 || len(got.Poisoned) != 1 || !strings.Contains(got.Poisoned[0].Message.Metadata[router.KeyPoisonReason], "too large") {
		t.Errorf("%+v", got)
	}
}

// Whoever does not want to wait for the end of an outage gets what there is.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		away := &failing{until: time.Now().Add(24 * time.Hour), err: errors.New("away")}
		got, err := routertest.Deliver(ctx, router.Config{Poison: away}, router.Route{Transform: func(*message.Message) ([]*message.Message, error) {
			return nil, router.Outage(errors.New("away"))
		}}, received("1"))
		if !errors.Is(err, context.DeadlineExceeded) || len(got.Poisoned) != 0 || got.Health.RetriesByClass.Outage == 0 {
			t.Errorf("%+v, %v", got, err)
		}
	})
	if _, err := routertest.Deliver(t.Context(), router.Config{CloseTimeout: -1}, router.Route{}); !errors.Is(err, router.ErrConfig) {
		t.Error(err)
	}
	if _, err := routertest.Deliver(t.Context(), router.Config{}, router.Route{ToTopic: "{nonsense}"}); !errors.Is(err, router.ErrConfig) {
		t.Error(err)
	}
}

// A source that cannot hold its acks, and a sink that does not say when it syncs, would be an outage without end.
func TestDurableRoute(t *testing.T) {
	got, took := deliver(t, router.Config{}, router.Route{Durable: router.DurableSynced}, received("1"))
	if len(got.Published) != 1 || took != 0 {
		t.Errorf("%s: %+v", took, got)
	}
}
