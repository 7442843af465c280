package subscriber_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// memoryService is a service without sockets, so that it can run under synctest. It sends what it is told to on each
// event stream, or not even a head.
type memoryService struct {
	events       chan string
	headless     bool
	hangsConfirm bool
}

func (s *memoryService) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}
	answer := func(status int, contentType string, body io.ReadCloser) *http.Response {
		return &http.Response{StatusCode: status, Request: r, Header: http.Header{"Content-Type": {contentType}}, Body: body}
	}
	text := func(status int, body string) *http.Response {
		return answer(status, "application/json", io.NopCloser(strings.NewReader(body)))
	}
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/token"):
		return text(http.StatusOK, `{"access_token":"token","token_type":"Bearer","expires_in":36000}`), nil
	case strings.HasSuffix(path, "/events") && s.headless, strings.HasSuffix(path, "/confirmations") && s.hangsConfirm:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case strings.HasSuffix(path, "/events"):
		body, to := io.Pipe()
		go func() { // ends with the request
			for {
				select {
				case <-r.Context().Done():
					_ = to.CloseWithError(r.Context().Err())
					return
				case event := <-s.events:
					_, _ = io.WriteString(to, event)
				}
			}
		}()
		return answer(http.StatusOK, "text/event-stream", body), nil
	case strings.HasSuffix(path, "/confirmations"):
		return answer(http.StatusNoContent, "", http.NoBody), nil
	}
	return text(http.StatusOK, "[]"), nil
}

// hangingStore stores nothing until it is left.
type hangingStore struct{ leave <-chan struct{} }

func (s hangingStore) Publish(string, ...*message.Message) error { <-s.leave; return nil }

func (hangingStore) Close() error { return nil }

// Whatever hangs, Close ends within its time, and at once if nothing of it is needed.
func TestCloseEndsInItsTime(t *testing.T) {
	const closeTimeout, drainTimeout = 30 * time.Second, 20 * time.Second
	const received = "event: MESSAGE_RECEIVED\ndata: " +
		`{"event_type":"MESSAGE_RECEIVED","id":"11111111-1111-4111-8111-111111111111","app_message_id":"x","sent_at":"2026-01-01T00:00:00Z",` +
		`"message_type":"img:png","receiving_endpoint_id":"22222222-2222-4222-8222-222222222222","tenant_id":"33333333-3333-4333-8333-333333333333","payload":"YQ=="}` + "\n\n"
	for name, test := range map[string]struct {
		hang   func(s *memoryService, cfg *subscriber.Config, leave <-chan struct{})
		events []string
		acks   bool
		atMost time.Duration
		left   int // unconfirmed
	}{
		"nothing":           {events: []string{received}, acks: true, atMost: time.Second},
		"the stream's head": {hang: func(s *memoryService, _ *subscriber.Config, _ <-chan struct{}) { s.headless = true }, atMost: time.Second},
		"the handler":       {events: []string{received}, atMost: drainTimeout},
		"a confirmation": {
			hang:   func(s *memoryService, _ *subscriber.Config, _ <-chan struct{}) { s.hangsConfirm = true },
			events: []string{received}, acks: true, atMost: closeTimeout, left: 1,
		},
		"a hook": {
			hang: func(_ *memoryService, cfg *subscriber.Config, leave <-chan struct{}) {
				cfg.Hooks.Event = func(gateway.Event) { <-leave }
			},
			events: []string{received}, atMost: closeTimeout,
		},
		"a hook of a confirmation": {
			hang: func(_ *memoryService, cfg *subscriber.Config, leave <-chan struct{}) {
				cfg.Hooks.Confirmed = func(string, []gateway.MessageConfirmation) { <-leave }
			},
			events: []string{received}, acks: true, atMost: closeTimeout, left: 1,
		},
		"the quarantine": {
			hang: func(_ *memoryService, cfg *subscriber.Config, leave <-chan struct{}) {
				cfg.Quarantine.Publisher = hangingStore{leave}
			},
			events: []string{"data: broken\n\n"}, atMost: closeTimeout,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := &memoryService{events: make(chan string)}
				leave := make(chan struct{})
				cfg := subscriber.Config{
					Client: newMemoryClient(t, service), StartAfter: -1, CloseTimeout: closeTimeout, DrainTimeout: drainTimeout,
					Confirm: subscriber.ConfirmConfig{MaxAge: time.Hour}, // Close sends it
				}
				if test.hang != nil {
					test.hang(service, &cfg, leave)
				}
				sub, err := subscriber.New(cfg, nil)
				if err != nil {
					t.Fatal(err)
				}
				messages := testkit.Must(sub.Subscribe(context.Background(), subscriber.AllData))(t)
				for _, event := range test.events {
					service.events <- event
				}
				synctest.Wait()
				if test.acks {
					(<-messages).Ack()
					synctest.Wait()
				} else if name == "the handler" {
					<-messages // and never acks it
				}
				began := time.Now()
				err = sub.Close()
				if took := time.Since(began); took > test.atMost {
					t.Errorf("Close took %v, want at most %v", took, test.atMost)
				}
				if got, want := fmt.Sprint(err), fmt.Sprint(map[bool]error{true: &subscriber.UnconfirmedError{Count: test.left}}[test.left > 0]); got != want {
					t.Errorf("Close = %v, want %v", got, want)
				}
				close(leave)
			})
		})
	}
}

// Close may be called from a hook, whose end it cannot wait for.
func TestCloseFromAHookEndsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 30 * time.Second
		service := &memoryService{events: make(chan string)}
		took := make(chan time.Duration, 1)
		var sub *subscriber.Subscriber
		sub = testkit.Must(subscriber.New(subscriber.Config{
			Client: newMemoryClient(t, service), StartAfter: -1, CloseTimeout: timeout,
			Hooks: subscriber.Hooks{Connected: func() {
				began := time.Now()
				if err := sub.Close(); err != nil {
					t.Errorf("Close = %v", err)
				}
				took <- time.Since(began)
			}},
		}, nil))(t)
		messages := testkit.Must(sub.Subscribe(context.Background(), subscriber.AllData))(t)
		if got := <-took; got > timeout {
			t.Errorf("Close took %v, want at most %v", got, timeout)
		}
		if _, open := <-messages; open {
			t.Error("a message came")
		}
	})
}

// newMemoryClient returns a client of a service.
func newMemoryClient(t *testing.T, service http.RoundTripper) *gateway.Client {
	t.Helper()
	client := testkit.Must(gateway.New(gateway.Config{
		BaseURL: "https://gateway.test", TokenURL: "https://gateway.test/token", ClientID: "id", ClientSecret: "secret", Transport: service,
	}))(t)
	t.Cleanup(func() { _ = client.Close() })
	return client
}
