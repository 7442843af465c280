package subscriber_test

import (
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// A proxy with a limit for bodies lets smaller batches through.
func TestBatchesThatAProxyFindsTooLargeAreHalved(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{
		Match:  func(r *http.Request) bool { return r.ContentLength > 500 },
		Status: 413, Body: []byte("<html>413</html>"), ContentType: "text/html",
	})
	cfg := f.config()
	cfg.Confirm.MaxAge, cfg.Confirm.MaxBatch = time.Hour, 32
	cfg.Order = subscriber.Unordered
	sub, messages := f.receive(cfg)
	f.sendN(32)
	f.ackN(messages, 32)
	f.waitConfirmed(32)
	if got := sub.Stats(); got.Rejected != 0 {
		t.Errorf("%d rejected", got.Rejected)
	}
}

// When the service itself refuses the stream for long enough, that is final, and it
// is told why.
func TestRefusedStreamEndsSubscriptions(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]error{400: gateway.ErrBadRequest, 403: gateway.ErrForbidden} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			refusal := f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: status})
			cfg := f.config()
			cfg.StreamRefusedFor = 300 * time.Millisecond
			sub := f.subscriber(cfg)
			began := time.Now()
			messages := f.subscribe(sub, subscriber.AllData)
			testkit.Eventually(f, "the refusal is reported", func() bool { return !sub.Stats().Stream.RefusedSince.IsZero() })
			state := sub.Stats().Stream
			err := sub.Err()
			if got := state.EndsAt.Sub(state.RefusedSince); got != cfg.StreamRefusedFor || err != nil && time.Now().Before(state.EndsAt) {
				t.Errorf("ends after %v, %v", got, err)
			}
			select {
			case _, open := <-messages:
				if open {
					t.Fatal("a message came")
				}
			case <-time.After(testkit.Patience):
				t.Fatal("the channel was not closed")
			}
			if took := time.Since(began); took < cfg.StreamRefusedFor {
				t.Errorf("ended after %v", took)
			}
			if stats := sub.Stats(); !errors.Is(stats.Stream.LastError, want) || stats.Stream.Connected {
				t.Errorf("stream state = %+v", stats.Stream)
			}
			if err := sub.Err(); !errors.Is(err, want) || !errors.Is(err, subscriber.ErrStreamRefused) {
				t.Errorf("Err returns %v", err)
			}
			// Once the cause is gone, a new subscription works.
			refusal.Lift()
			f.sendN(1)
			f.ackN(f.subscribe(sub, subscriber.AllData), 1)
			f.waitConfirmed(1)
			if state := sub.Stats().Stream; sub.Err() != nil || !state.RefusedSince.IsZero() || !state.EndsAt.IsZero() {
				t.Errorf("%v, %+v", sub.Err(), state)
			}
		})
	}
}

// errorBook keeps the errors that are logged, and when.
type errorBook struct {
	watermill.NopLogger
	began time.Time
	mu    sync.Mutex
	lines []errorLine
}

type errorLine struct {
	text   string
	after  time.Duration
	fields watermill.LogFields
}

func newErrorBook() *errorBook { return &errorBook{began: time.Now()} }

func (b *errorBook) Error(text string, _ error, fields watermill.LogFields) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, errorLine{text, time.Since(b.began), fields})
}

func (b *errorBook) With(watermill.LogFields) watermill.LoggerAdapter { return b }

// check compares the lines with a text with the times at which they were due, which
// are those of the next attempt.
func (b *errorBook) check(t *testing.T, text string, due ...time.Duration) {
	t.Helper()
	b.mu.Lock()
	lines := slices.Clone(b.lines)
	b.mu.Unlock()
	lines = slices.DeleteFunc(lines, func(l errorLine) bool { return l.text != text })
	if len(lines) != len(due) {
		t.Fatalf("told %d times, want %d: %+v", len(lines), len(due), lines)
	}
	for i, l := range lines {
		if l.after < due[i] || l.after > due[i]+40*time.Second {
			t.Errorf("told after %v, want %v", l.after, due[i])
		}
		if l.fields["status"] != 404 || l.fields["content_type"] != "text/html" || l.fields["lasted"] == nil {
			t.Errorf("fields %v", l.fields)
		}
	}
}

// A stream that something else refuses is an outage for as long as it takes, and not
// a silent one. One that the service refuses ends after five minutes.
func TestStreamRefusedByAnIngressForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, gatewaytest.Config{InMemory: true})
		ingress := f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: 404, Body: []byte("<html>"), ContentType: "text/html"})
		book := newErrorBook()
		sub := testkit.Must(subscriber.New(subscriber.Config{Client: f.client}, book))(t)
		messages := f.subscribe(sub, subscriber.AllData)
		time.Sleep(100 * time.Minute)
		for _, status := range []int{403, 503, 400} { // each for less than 5 minutes
			fault := f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: status})
			ingress.Lift()
			time.Sleep(4 * time.Minute)
			ingress = fault
		}
		last := f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: 404, Body: []byte("<html>"), ContentType: "text/html"})
		ingress.Lift()
		time.Sleep(38 * time.Minute)
		select {
		case <-messages:
			t.Error("the subscription has ended")
		default:
		}
		if state := sub.Stats().Stream; sub.Err() != nil || !state.RefusedSince.IsZero() || !errors.Is(state.LastError, gateway.ErrIntermediary) {
			t.Errorf("%v, %+v", sub.Err(), state)
		}
		book.check(t, "event stream still cannot be opened; retrying", time.Minute, 5*time.Minute, time.Hour, 2*time.Hour)
		f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: 403})
		last.Lift()
		refused := time.Now()
		<-messages
		if after := time.Since(refused); after < 5*time.Minute || after > 6*time.Minute || !errors.Is(sub.Err(), subscriber.ErrStreamRefused) {
			t.Errorf("ended after %v: %v", after, sub.Err())
		}
		testkit.NoError(t, sub.Close())
	})
}

// Confirmations that something else refuses are kept, and it is not silent about it.
func TestConfirmationsRefusedByAnIngressForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, gatewaytest.Config{InMemory: true})
		ingress := f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 404, Body: []byte("<html>"), ContentType: "text/html"})
		book := newErrorBook()
		sub := testkit.Must(subscriber.New(subscriber.Config{Client: f.client, StartAfter: -1}, book))(t)
		messages := f.subscribe(sub, subscriber.AllData)
		f.sendN(1)
		f.ackN(messages, 1)
		time.Sleep(80 * time.Minute)
		if s := sub.Stats(); s.Confirmed != 0 || s.Rejected != 0 || s.PendingConfirmations != 1 {
			t.Errorf("%+v", s)
		}
		book.check(t, "confirmations for the tenant fail; they are kept and retried", 10*time.Second, time.Minute, 5*time.Minute, time.Hour)
		ingress.Lift()
		time.Sleep(20 * time.Minute)
		if s := sub.Stats(); s.Confirmed == 0 || s.Rejected != 0 {
			t.Errorf("%+v", s)
		}
		testkit.NoError(t, sub.Close())
	})
}
