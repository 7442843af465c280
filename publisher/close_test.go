package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/oauth2"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks"
)

// goPublish publishes in the background, one message a call.
func goPublish(pub *publisher.Publisher, messages ...*message.Message) <-chan error {
	done := make(chan error, len(messages))
	for _, msg := range messages {
		go func() { done <- pub.Publish(typeJSON, msg) }()
	}
	return done
}

func newMessages(n int) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = newMessage(fmt.Sprint(i))
	}
	return out
}

// A message that waits for its next attempt keeps no other from being sent.
func TestWaitingForTheNextAttemptTakesNoSlot(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	client := f.server.ClientConfig()
	client.Retry.InitialBackoff, client.Retry.MaxBackoff = time.Hour, time.Hour
	cfg := f.config()
	own := testkit.Must(gateway.New(client))(t)
	defer func() { _ = own.Close() }()
	cfg.Client, cfg.MaxRequests, cfg.CloseTimeout = own, 1, time.Millisecond
	pub := f.publisher(cfg)
	f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Times: 1})
	first := testkit.Must(pub.PublishAsync(typeJSON, newMessage("first")))(t)
	f.waitRequests(1)
	if err := testkit.Receive(t, "the second", goPublish(pub, newMessage("second"))); err != nil {
		t.Errorf("%v, while the first one waits", err)
	}
	testkit.NoError(t, pub.Close())
	if _, err := first.Wait(t.Context()); !errors.Is(err, publisher.ErrClosed) || f.entries() != 1 {
		t.Errorf("the first: %v, with %d messages sent", err, f.entries())
	}
}

// counted counts the requests in progress.
type counted struct {
	http.RoundTripper
	now, most atomic.Int64
}

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.most.Store(max(c.most.Load(), c.now.Add(1)))
	defer c.now.Add(-1)
	return c.RoundTripper.RoundTrip(r)
}

// A message that is sent again holds a slot during each attempt.
func TestEachAttemptTakesASlot(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	requests := &counted{RoundTripper: &http.Transport{DisableKeepAlives: true}}
	client := f.server.ClientConfig()
	client.Transports.Calls = requests
	cfg := f.config()
	cfg.Client, cfg.MaxRequests = f.newClient(client), 1
	pub := f.publisher(cfg)
	f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Times: 20})
	done := goPublish(pub, newMessages(10)...)
	for range 10 {
		_ = testkit.Receive(t, "an answer", done) // some fail for good after five attempts
	}
	if requests.most.Load() != 1 {
		t.Errorf("%d requests at a time", requests.most.Load())
	}
}

func TestMaxRequests(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	const limit, calls = 3, 10
	cfg := f.config()
	cfg.MaxRequests = limit
	client := &gauge{Client: f.client}
	cfg.Client = client
	pub := f.publisher(cfg)
	hang := f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Hang: true})
	defer hang.Lift()
	done := goPublish(pub, newMessages(calls)...)
	f.waitFor("the first requests", func() bool { return hang.Hits() >= limit })

	// A message that waits for a place can give up; it was not sent.
	giveUp := func(what string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		msg := newMessage("impatient")
		msg.SetContext(ctx)
		client.checked.Store(&cancel) // just before it waits
		if err := testkit.Receive(t, what, goPublish(pub, msg)); err != context.Canceled {
			t.Errorf("%s: %v", what, err)
		}
	}
	giveUp("the end of a call that waits for a place")

	if got := hang.Hits(); got != limit {
		t.Errorf("%d requests at a time, want %d", got, limit)
	}
	hang.Lift()
	for range calls {
		testkit.NoError(t, testkit.Receive(t, "the end of a call", done))
	}
	giveUp("the end of a call that finds a place")
	if got := f.entries(); got != calls {
		t.Errorf("%d messages arrived, want %d", got, calls)
	}
	if got := client.most.Load(); got != limit {
		t.Errorf("up to %d messages were under way at a time, want %d", got, limit)
	}
}

// gauge counts how many calls are under way at a time.
type gauge struct {
	publisher.Client
	now, most atomic.Int64
	checked   atomic.Pointer[context.CancelFunc] // called when a message has been checked
}

func (g *gauge) ValidateMessage(req gateway.SendMessageRequest) error {
	if cancel := g.checked.Load(); cancel != nil {
		(*cancel)()
	}
	return g.Client.ValidateMessage(req)
}

func (g *gauge) SendMessage(ctx context.Context, req gateway.SendMessageRequest) error {
	now := g.now.Add(1)
	defer g.now.Add(-1)
	for {
		most := g.most.Load()
		if now <= most || g.most.CompareAndSwap(most, now) {
			return g.Client.SendMessage(ctx, req)
		}
	}
}

func TestCloseWaitsForWhatIsUnderWay(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.MaxRequests = 2
	pub := f.publisher(cfg)
	hang := f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Hang: true})
	defer hang.Lift()
	done := goPublish(pub, newMessages(2)...)
	f.waitRequests(2)

	closed := make(chan error, 3)
	for range 3 { // concurrently
		go func() { closed <- pub.Close() }()
	}
	// Close refuses from the moment it is called; there is nothing to wait on
	// for that but the refusal itself.
	refused := func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // a call that is not refused must not wait for a place
		msg := newMessage("late")
		msg.SetContext(ctx)
		return errors.Is(pub.Publish(typeJSON, msg), publisher.ErrClosed)
	}
	deadline := time.Now().Add(testkit.Patience)
	for !refused() {
		if time.Now().After(deadline) {
			t.Fatal("Publish works after Close")
		}
	}
	select {
	case err := <-closed:
		t.Errorf("Close did not wait: %v", err)
	case err := <-done:
		t.Errorf("Close ended a call: %v", err)
	default:
	}
	hang.Lift()
	for range 2 {
		testkit.NoError(t, testkit.Receive(t, "the end of a call", done))
	}
	for range 3 {
		testkit.NoError(t, testkit.Receive(t, "the end of Close", closed))
	}
	if err := pub.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	if err := pub.Publish(typeJSON, newMessage("late")); !errors.Is(err, publisher.ErrClosed) || !errors.Is(err, gateway.ErrClosed) {
		t.Errorf("Publish after Close: %v", err)
	}
	if err := pub.Publish(typeJSON); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("Publish of nothing after Close: %v", err)
	}
	if got := f.entries(); got != 2 {
		t.Errorf("%d messages arrived, want 2", got)
	}
}

// Close does not wait longer than its time, whatever a call waits for.
func TestCloseCancelsAfterItsTimeout(t *testing.T) {
	const notSent, failed = publisher.NotSent, publisher.Unknown
	for name, test := range map[string]struct {
		metadata []string // of the first message
		outcomes []publisher.Outcome
	}{
		"an answer":                   {nil, []publisher.Outcome{failed, notSent}},
		"a claim check":               {append(claimed("r"), gateway.KeyPayloadSize, "1"), []publisher.Outcome{failed, notSent}},
		"a claim check, for its size": {claimed("r"), []publisher.Outcome{notSent, notSent}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			hanging := make(chan struct{}, 10)
			hang := f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Hang: true, Match: func(*http.Request) bool {
				hanging <- struct{}{}
				return true
			}})
			defer hang.Lift()
			cfg := f.config()
			cfg.MaxRequests, cfg.CloseTimeout = 1, 20*time.Millisecond
			cfg.ClaimCheck = claimCheckFunc(func(ctx context.Context, _ string) (io.ReadCloser, int64, error) {
				hanging <- struct{}{}
				<-ctx.Done()
				return nil, 0, ctx.Err()
			})
			pub := f.publisher(cfg)
			first := newMessage("", test.metadata...)
			under := make(chan error, 1)
			go func() { under <- pub.Publish(typeJSON, first, newMessage("2")) }()
			testkit.Receive(t, "the wait", hanging)
			queued := goPublish(pub, newMessage("waits for a place, or an answer"))
			testkit.NoError(t, pub.Close())
			err := testkit.Receive(t, "the call under way", under)
			if !errors.Is(err, publisher.ErrClosed) || !errors.Is(err, sinks.ErrClosed) || errors.Is(err, context.Canceled) {
				t.Errorf("under way: %v", err)
			}
			if e := publishError(t, err); !slices.Equal(e.Outcomes, test.outcomes) {
				t.Errorf("under way: %v", e.Outcomes)
			}
			testkit.ErrorIs(t, testkit.Receive(t, "the queued call", queued), publisher.ErrClosed)
		})
	}
}

type tokenSourceFunc func() (*oauth2.Token, error)

func (f tokenSourceFunc) Token() (*oauth2.Token, error) { return f() }

// A call that ends while it waits for a token has sent nothing, and says so.
func TestWaitForATokenSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, gatewaytest.Config{InMemory: true})
		give := make(chan struct{})
		defer close(give)
		client := f.server.ClientConfig()
		client.TokenURL, client.ClientID, client.ClientSecret = "", "", ""
		client.TokenSource = tokenSourceFunc(func() (*oauth2.Token, error) {
			<-give
			return nil, errors.ErrUnsupported
		})
		client.TokenTimeout = time.Hour
		cfg := f.config()
		cfg.Client = f.newClient(client)
		pub := f.publisher(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		msg := newMessage("canceled")
		msg.SetContext(ctx)
		canceled, closed := goPublish(pub, msg), goPublish(pub, newMessage("closed"))
		synctest.Wait()
		cancel()
		if err := <-canceled; err != context.Canceled {
			t.Errorf("canceled: %v", err)
		}
		testkit.NoError(t, pub.Close())
		err := <-closed
		if e := publishError(t, err); !errors.Is(err, publisher.ErrClosed) || e.Outcomes[0] != publisher.NotSent {
			t.Errorf("closed: %v, %v", e.Outcomes, err)
		}
		if n := f.server.Stats(gatewaytest.OpSendMessage).Requests; n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// A message for which there was no token, however often one was asked for, was not sent; an error says why, whatever ends the wait.
func TestNoTokenSendsNothing(t *testing.T) {
	for name, attempts := range map[string]int{"attempts": 4, "deadline": gateway.UnlimitedAttempts} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{InMemory: true})
			client := f.server.ClientConfig()
			client.TokenURL, client.ClientID, client.ClientSecret = "", "", ""
			client.TokenSource = tokenSourceFunc(func() (*oauth2.Token, error) { return nil, errors.New("the vault is sealed") })
			client.Retry.MaxAttempts = attempts
			cfg := f.config()
			cfg.Client = f.newClient(client)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			msg := newMessage("canceled")
			msg.SetContext(ctx)
			err := f.publisher(cfg).Publish(typeJSON, msg)
			if e := publishError(t, err); e.Outcomes[0] != publisher.NotSent || !strings.Contains(err.Error(), "no access token") {
				t.Errorf("%v, %v", e.Outcomes, err)
			}
			if _, sink := errors.AsType[*sinks.Error](err); sink != (ctx.Err() == nil) || errors.Is(err, context.DeadlineExceeded) == sink {
				t.Errorf("%v", err)
			}
		})
	}
}

// panicking is a Marshaler that panics.
type panicking struct{}

func (panicking) Marshal(string, *message.Message) ([]byte, error) { panic("no message") }

// A call whose Marshaler has panicked is over for Close.
func TestCloseAfterAMarshalerPanicked(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.Marshaler = panicking{}
	pub := f.publisher(cfg)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic does not reach the caller")
			}
		}()
		_, _ = pub.PublishAsync(typeJSON, newMessage("one"))
	}()
	closed := make(chan error, 1)
	go func() { closed <- pub.Close() }()
	if err := testkit.Receive(t, "the end of Close", closed); err != nil {
		t.Error(err)
	}
}
