package router_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// page is the error of a request that an ingress answered with a page of its own.
func page(status int) error {
	return sinks.NewError("gateway", "t", sinks.ErrUnavailable, &gateway.Error{Op: "send message", StatusCode: status, ContentType: "text/html"})
}

// betweenRoute is a Retry whose handler asks fail about each message. send handles
// one, in a goroutine; its result comes with all.
type betweenRoute struct {
	retry   *router.Retry
	handler message.HandlerFunc
	results chan betweenResult
	logger  *testkit.Log
	start   time.Time
}

type betweenResult struct {
	uuid string
	err  error
	at   time.Duration
}

func newBetweenRoute(t *testing.T, fail func(uuid string, at time.Duration) error) *betweenRoute {
	logger := testkit.NewLog()
	retry := testkit.Must(router.NewRetry(router.RetryConfig{RetrySettings: router.RetrySettings{MaxAttempts: 1}}, logger))(t)
	b := &betweenRoute{retry: retry, results: make(chan betweenResult, 10_000), logger: logger, start: time.Now()}
	b.handler = retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		return nil, fail(msg.UUID, time.Since(b.start))
	})
	return b
}

func (b *betweenRoute) send(uuid string) {
	go func() {
		_, err := b.handler(message.NewMessage(uuid, nil))
		b.results <- betweenResult{uuid, err, time.Since(b.start)}
	}()
}

// run sends others, one every pause, until d has passed.
func (b *betweenRoute) run(d, pause time.Duration) {
	for i := 0; time.Since(b.start) < d; i++ {
		b.send(fmt.Sprint("other ", i))
		time.Sleep(pause)
	}
}

// all returns the results of the messages whose UUID begins with prefix.
func (b *betweenRoute) all(prefix string) (list []betweenResult) {
	synctest.Wait()
	for range len(b.results) {
		r := <-b.results
		if strings.HasPrefix(r.uuid, prefix) {
			list = append(list, r)
		} else {
			b.results <- r
		}
	}
	return list
}

// A proxy with a limit for bodies refuses one message for ever, while the others of
// the route pass.
func TestMessageThatIsRefusedInBetweenIsPoisoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBetweenRoute(t, func(uuid string, _ time.Duration) error {
			if strings.HasPrefix(uuid, "large") {
				return page(413)
			}
			return nil
		})
		b.send("large 1")
		b.run(time.Minute, 7*time.Second)
		b.send("large 2") // one does not keep the other from being given up
		b.run(10*time.Minute, 7*time.Second)
		large := b.all("large")
		if len(large) != 2 {
			t.Fatalf("large has %d elements, want 2: %+v", len(large), large)
		}
		for i, r := range large {
			sent := time.Duration(i) * time.Minute
			if r.at < sent+5*time.Minute || r.at >= sent+6*time.Minute+10*time.Second {
				t.Errorf("given up after %v, want 5 to 6 minutes", r.at-sent)
			}
			wantClass(t, r.err, router.ClassPermanent)
			testkit.ErrorIs(t, r.err, router.ErrRefusedInBetween)
			testkit.ErrorIs(t, r.err, gateway.ErrIntermediary)
			var retried *router.RetryError
			if !errors.As(r.err, &retried) || retried.Attempts < 3 {
				t.Fatalf("err = %v, want a %T after 3 attempts", r.err, retried)
			}
			if got := retried.Err.Error(); !strings.HasPrefix(got, "refused by an intermediary: ") || !strings.Contains(got, "413") {
				t.Errorf("retried after %q, want a refusal in between, with its status", got)
			}
		}
		for _, r := range b.all("other") {
			if r.err != nil {
				t.Error(r.err)
			}
		}
	})
}

// On a route with little traffic it takes until enough others have passed.
func TestMessageThatIsRefusedInBetweenOnAQuietRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBetweenRoute(t, func(uuid string, _ time.Duration) error {
			if uuid == "large" {
				return page(413)
			}
			return nil
		})
		b.send("large")
		time.Sleep(19 * time.Minute)
		if got := b.all("large"); len(got) != 0 {
			t.Errorf("all = %+v, want none: nobody else has passed", got)
		}
		b.run(time.Hour, 20*time.Minute)
		large := b.all("large")
		if len(large) != 1 {
			t.Fatalf("large has %d elements, want 1: %+v", len(large), large)
		}
		if !errors.Is(large[0].err, router.ErrRefusedInBetween) {
			t.Errorf("large[0].err = %v, want ErrRefusedInBetween", large[0].err)
		}
		if got, want := large[0].at, 38*time.Minute; got <= want {
			t.Errorf("large[0].at = %v, want more than %v", got, want)
		}
	})
}

// While nobody passes it is an outage, however long it lasts. And a deployment that
// lets some requests through and not others, before and after, is one as well.
func TestIngressOutagePoisonsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		b := newBetweenRoute(t, func(_ string, at time.Duration) error {
			odd := n.Add(1)%2 == 1
			switch {
			case at < 2*time.Minute, at > time.Hour && at < time.Hour+8*time.Minute: // rolling: every other request
				if odd {
					return page(404)
				}
				return nil
			case at < time.Hour:
				return page(404)
			}
			return nil
		})
		b.run(2*time.Hour, 5*time.Second)
		time.Sleep(time.Minute)
		all := b.all("")
		if got, want := len(all), 2*60*60/5; got != want {
			t.Errorf("len(all) = %d, want %d", got, want)
		}
		for _, r := range all {
			if r.err != nil {
				t.Fatal(r.err)
			}
		}
	})
}

// What answers for the token endpoint has not seen the message.
func TestTokenEndpointRefusedInBetweenPoisonsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBetweenRoute(t, func(uuid string, at time.Duration) error {
			if uuid == "unlucky" && at < time.Hour {
				return errors.Join(gateway.ErrToken, page(404))
			}
			return nil
		})
		b.send("unlucky")
		b.run(time.Hour+time.Minute, 7*time.Second)
		unlucky := b.all("unlucky")
		if len(unlucky) != 1 {
			t.Fatalf("unlucky has %d elements, want 1: %+v", len(unlucky), unlucky)
		}
		if unlucky[0].err != nil {
			t.Error(unlucky[0].err)
		}
	})
}

// An outage is not told once and then never again.
func TestOutageIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBetweenRoute(t, func(_ string, at time.Duration) error {
			if at < 150*time.Minute {
				return page(404)
			}
			return nil
		})
		b.send("1")
		time.Sleep(time.Second)
		lines := func() []watermill.CapturedMessage { return b.logger.Lines(watermill.ErrorLogLevel) }
		if n := len(lines()); n != 1 {
			t.Fatalf("lines() has %d elements, want 1", n)
		}
		for i, lasted := range []time.Duration{time.Minute, 5 * time.Minute, time.Hour, 2 * time.Hour} {
			time.Sleep(lasted - time.Since(b.start) - time.Second)
			if n := len(lines()); n != i+1 {
				t.Fatalf("lines() has %d elements, want %d: before %v", n, i+1, lasted)
			}
			time.Sleep(router.DefaultRetryMaxBackoff + 2*time.Second)
			if n := len(lines()); n != i+2 {
				t.Fatalf("lines() has %d elements, want %d: after %v", n, i+2, lasted)
			}
			line := lines()[i+1]
			if got, want := line.Msg, "outage continues; messages wait until it ends"; got != want {
				t.Errorf("line.Msg = %q, want %q", got, want)
			}
			if line.Fields["status"] != 404 {
				t.Errorf("status = %v, want 404", line.Fields["status"])
			}
			if got, want := line.Fields["content_type"], "text/html"; got != want {
				t.Errorf("content_type = %v, want %v", got, want)
			}
			if got := line.Fields["lasted"].(time.Duration); (got - lasted).Abs() > 31*time.Second {
				t.Errorf("lasted %v, want %v", got, lasted)
			}
		}
		time.Sleep(time.Hour)
		if got := b.all("1"); len(got) != 1 {
			t.Fatalf("all has %d elements, want 1: %+v", len(got), got)
		}
		if n := len(lines()); n != 5 {
			t.Errorf("lines() has %d elements, want 5", n)
		}
	})
}

// An ingress answers with a page of its own, or as an API of its own, while the
// gateway is being deployed: the messages are sound, and pass when it is done.
func TestIngressAnswersPoisonNothing(t *testing.T) {
	const messageType = "app:test:json"
	web := gatewaytest.Fault{Body: []byte("<html><body>default backend</body></html>"), ContentType: "text/html"}
	faults := map[string]gatewaytest.Fault{
		"404 with a message": {Status: http.StatusNotFound, Message: "no Route matched with those values"},
		"405 with a message": {Status: http.StatusMethodNotAllowed},
		"403 with a message": {Status: http.StatusForbidden},
	}
	for _, status := range []int{
		http.StatusOK, http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusConflict, http.StatusRequestEntityTooLarge,
	} {
		fault := web
		fault.Status = status
		faults[fmt.Sprint(status, " as a page")] = fault
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			server := gatewaytest.New(t, gatewaytest.Config{})
			sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
			receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}})
			ingress := server.Inject(gatewaytest.OpSendMessage, fault)
			pub := publishTo(t, server, publisher.Config{EndpointID: sender.ID, DirectRecipients: []string{receiver.ID}})
			from, poison := newSource(), newSink(nil)
			r := start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{
				Name: "to gateway", From: from, Topic: "in", To: pub, ToTopic: messageType,
			})
			const n = 20
			go func() {
				for i := range n {
					from.messages <- message.NewMessage(fmt.Sprintf("a4a2d4a9-52f4-4d6c-9f2a-6e5b6f0f3c%02d", i), []byte(`{"n":1}`))
				}
			}()
			testkit.Eventually(t, "a hit for each message", func() bool { return ingress.Hits() >= n })
			if got := r.Health()[0].State; got != router.StateOutage {
				t.Errorf("r.Health()[0].State = %q, want %q", got, router.StateOutage)
			}
			ingress.Lift()
			ctx := t.Context()
			testkit.NoError(t, server.Wait(ctx, func(ledger []gatewaytest.LedgerEntry) bool { return len(ledger) == n }))
			r.wantStop(t)
			poison.wantStored(t, 0)
		})
	}
}

// A tenant that has revoked its authorization does not hold the others up: its 403 is
// a verdict while they succeed.
func TestForbiddenIsPoisonedWhileOthersPass(t *testing.T) {
	const messageType = "app:test:json"
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	gone := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "gone", Send: []string{messageType}})
	receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}})
	server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: http.StatusForbidden, Match: func(r *http.Request) bool {
		return r.Header.Get("x-router-endpoint-id") == gone.ID
	}})
	pub := publishTo(t, server, publisher.Config{DirectRecipients: []string{receiver.ID}})
	from, poison := newSource(), newSink(nil)
	r := start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{
		Name: "to gateway", From: from, Topic: "in", To: pub, ToTopic: messageType,
	})
	send := func(endpoint string) {
		msg := message.NewMessage(watermill.NewUUID(), []byte(`{"n":1}`))
		msg.Metadata.Set(gateway.KeyEndpointID, endpoint)
		from.messages <- msg
	}
	send(gone.ID) // as long as nothing else succeeds, it waits
	testkit.Eventually(t, "an outage of the route", func() bool { return r.Health()[0].State == router.StateOutage })
	poison.wantStored(t, 0)
	send(sender.ID)
	poisoned := poison.wait(t, 1)[0]
	if got := poisoned.msg.Metadata[gateway.KeyEndpointID]; got != gone.ID {
		t.Errorf("KeyEndpointID = %q, want %q", got, gone.ID)
	}
	testkit.Contains(t, poisoned.msg.Metadata[router.KeyPoisonReason], "403")
	if n := len(server.Ledger()); n != 1 {
		t.Fatalf("server.Ledger() has %d elements, want 1", n)
	}
}
