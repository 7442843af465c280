package subscriber_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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

// ingressAnswers are what an ingress without a backend, a firewall or a portal say.
func ingressAnswers() map[string]gatewaytest.Fault {
	page := gatewaytest.Fault{Body: []byte("<html>default backend</html>"), ContentType: "text/html"}
	faults := map[string]gatewaytest.Fault{"404 with a message": {Status: 404, Message: "no Route matched with those values"}}
	for _, status := range []int{200, 400, 403, 404, 405, 409, 413} {
		fault := page
		fault.Status = status
		faults[fmt.Sprint(status, " as a page")] = fault
	}
	return faults
}

// Whatever is answered in place of the service while it is being deployed, the
// subscription goes on when it is back.
func TestIngressAnswersDoNotEndTheSubscription(t *testing.T) {
	for name, fault := range ingressAnswers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, gatewaytest.Config{InMemory: true})
				sub := f.subscriber(f.config())
				messages := f.subscribe(sub, subscriber.AllData)
				testkit.Eventually(f, "connected", func() bool { return f.server.Streams() == 1 })
				ingress := f.server.Inject(gatewaytest.OpEvents, fault)
				f.server.CutStreams()
				testkit.Eventually(f, "refused several times", func() bool { return ingress.Hits() >= 5 })
				if sub.Stats().Stream.Connected || sub.Err() != nil {
					t.Errorf("%+v, %v", sub.Stats().Stream, sub.Err())
				}
				ingress.Lift()
				f.sendN(3)
				f.ackN(messages, 3)
				f.waitConfirmed(3)
			})
		})
	}
}

// ... and no confirmation is lost.
func TestIngressAnswersDropNoConfirmations(t *testing.T) {
	faults := ingressAnswers()
	faults["403 with a message"] = gatewaytest.Fault{Status: 403}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, gatewaytest.Config{InMemory: true})
				ingress := f.server.Inject(gatewaytest.OpConfirm, fault)
				sub := f.subscriber(f.config())
				messages := f.subscribe(sub, subscriber.AllData)
				f.sendN(20)
				f.ackN(messages, 20)
				testkit.Eventually(f, "refused several times", func() bool { return ingress.Hits() >= 10 })
				if s := sub.Stats(); s.Rejected != 0 || s.PendingConfirmations != 20 {
					t.Errorf("%d rejected, %d pending", s.Rejected, s.PendingConfirmations)
				}
				ingress.Lift()
				f.waitConfirmed(20)
				if got := sub.Stats(); got.Rejected != 0 || got.Stream.Connects != 1 {
					t.Errorf("%d rejected, %d connects", got.Rejected, got.Stream.Connects)
				}
			})
		})
	}
}

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
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, subscriber.AllData)
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
			var refused *subscriber.StreamRefusedError
			if err := sub.Err(); !errors.Is(err, want) || !errors.Is(err, subscriber.ErrStreamRefused) || !errors.As(err, &refused) ||
				refused.Lasted < cfg.StreamRefusedFor || !refused.Since.Equal(state.RefusedSince) {
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

// offlineService is a client whose requests a handler answers without a network, so
// that time can be that of a synctest bubble.
func offlineService(t *testing.T, h http.Handler) *gateway.Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"token"}`))
	})
	mux.Handle("/", h)
	client := testkit.Must(gateway.New(gateway.Config{
		BaseURL: "https://gateway.example", TokenURL: "https://gateway.example/token", ClientID: "id", ClientSecret: "secret",
		Transport: handlerTransport{mux},
	}))(t)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

type handlerTransport struct{ http.Handler }

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return w.Result(), r.Context().Err()
}

func answerPage(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte("<html>"))
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
// a silent one.
func TestStreamRefusedByAnIngressForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := newErrorBook()
		client := offlineService(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			switch after := time.Since(book.began); {
			case after > 100*time.Minute && after < 104*time.Minute:
				w.WriteHeader(http.StatusForbidden) // not for 5 minutes
			case after > 104*time.Minute && after < 105*time.Minute:
				w.WriteHeader(http.StatusServiceUnavailable)
			case after > 105*time.Minute && after < 109*time.Minute:
				w.WriteHeader(http.StatusBadRequest)
			default:
				answerPage(w, http.StatusNotFound)
			}
		}))
		sub := testkit.Must(subscriber.New(subscriber.Config{Client: client}, book))(t)
		messages := testkit.Must(sub.Subscribe(t.Context(), subscriber.AllData))(t)
		time.Sleep(150 * time.Minute)
		select {
		case <-messages:
			t.Error("the subscription has ended")
		default:
		}
		if state := sub.Stats().Stream; sub.Err() != nil || !state.RefusedSince.IsZero() || !errors.Is(state.LastError, gateway.ErrIntermediary) {
			t.Errorf("%v, %+v", sub.Err(), state)
		}
		book.check(t, "event stream still cannot be opened; retrying", time.Minute, 5*time.Minute, time.Hour, 2*time.Hour)
		testkit.NoError(t, sub.Close())
	})
}

// The time counts from the first refusal, and by default there are five minutes.
func TestStreamRefusedForFiveMinutes(t *testing.T) {
	for name, never := range map[string]bool{"default": false, "never": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				client := offlineService(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if time.Since(began) < 20*time.Minute {
						w.WriteHeader(http.StatusBadGateway)
					} else {
						w.WriteHeader(http.StatusForbidden)
					}
				}))
				cfg := subscriber.Config{Client: client}
				if never {
					cfg.StreamRefusedFor = subscriber.NeverRefused
				}
				sub := testkit.Must(subscriber.New(cfg, nil))(t)
				messages := testkit.Must(sub.Subscribe(t.Context(), subscriber.AllData))(t)
				select {
				case <-messages:
					if after := time.Since(began); never || after < 25*time.Minute || after > 26*time.Minute {
						t.Errorf("ended after %v", after)
					}
				case <-time.After(24 * time.Hour):
					if state := sub.Stats().Stream; !never || state.RefusedSince.IsZero() || !state.EndsAt.IsZero() {
						t.Errorf("%+v", state)
					}
				}
				if err := sub.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Confirmations that something else refuses are kept, and it is not silent about it.
func TestConfirmationsRefusedByAnIngressForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := newErrorBook()
		mux := http.NewServeMux()
		mux.HandleFunc("GET /events", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "event: MESSAGE_RECEIVED\ndata: {\"event_type\":\"MESSAGE_RECEIVED\",\"id\":\"6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a001\","+
				"\"app_message_id\":\"a\",\"message_type\":%q,\"sent_at\":\"2026-01-01T00:00:00Z\",\"payload\":\"eA==\","+
				"\"receiving_endpoint_id\":\"6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a002\",\"tenant_id\":\"6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a003\"}\n\n", typeJSON)
		})
		mux.HandleFunc("POST /confirmations", func(w http.ResponseWriter, _ *http.Request) {
			if time.Since(book.began) < 90*time.Minute {
				answerPage(w, http.StatusNotFound)
			} else {
				w.WriteHeader(http.StatusAccepted)
			}
		})
		// Every stream ends at once: at the default, there would be 20,000 of them.
		sub := testkit.Must(subscriber.New(subscriber.Config{
			Client: offlineService(t, mux), Reconnect: subscriber.Backoff{Initial: time.Minute, Max: time.Minute},
		}, book))(t)
		messages := testkit.Must(sub.Subscribe(t.Context(), subscriber.AllData))(t)
		(<-messages).Ack()
		time.Sleep(80 * time.Minute)
		if s := sub.Stats(); s.Confirmed != 0 || s.Rejected != 0 || s.PendingConfirmations != 1 {
			t.Errorf("%+v", s)
		}
		book.check(t, "confirmations for the tenant fail; they are kept and retried", 10*time.Second, time.Minute, 5*time.Minute, time.Hour)
		time.Sleep(20 * time.Minute)
		if s := sub.Stats(); s.Confirmed == 0 || s.Rejected != 0 {
			t.Errorf("%+v", s)
		}
		testkit.NoError(t, sub.Close())
	})
}
