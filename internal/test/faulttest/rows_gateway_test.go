//go:build faults

package faulttest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// Tokens expire in mid-session: one refresh each, no busy loop.
func TestRow04TokenExpires(t *testing.T) {
	protocols(t, worldConfig{gateway: gatewaytest.Config{InlineLimit: 1000}}, func(t *testing.T, w *world) {
		const expiries = 10
		w.start(undisturbed, func(p *parts) { p.Gateway.TokenTimeout = testkit.Patience }) // a slow answer is no expiry
		for i := range expiries {
			w.sendSize(messages/expiries/2, 2000) // by address
			w.send(messages / expiries / 2)
			w.gateway.ExpireTokens()
			if i%3 == 0 {
				w.gateway.CutStreams()
			}
			w.pause(50 * time.Millisecond)
		}
		w.settle(expectation{})
		if got := w.gateway.Stats(gatewaytest.OpToken).Requests; got > 1+expiries {
			t.Errorf("%d token requests for %d expiries", got, expiries)
		}
	})
}

// The token endpoint fails in five ways while no token is valid. The stream that
// is open continues, confirmations wait.
func TestRow05TokenEndpointDown(t *testing.T) {
	protocols(t, worldConfig{}, func(t *testing.T, w *world) {
		p := w.start(undisturbed)
		w.send(messages / 10)
		w.waitConfirmed()
		for name, f := range map[string]gatewaytest.Fault{
			"refused":      {Refuse: true},
			"500":          {Status: 500},
			"hangs":        {Hang: true},
			"bad JSON":     {Body: []byte(`{"access_token":`)},
			"HTML":         {Body: []byte(`<html></html>`), ContentType: "text/html"},
			"expires_in 0": {Body: []byte(`{"access_token":"` + w.gateway.IssueToken(w.gateway.Application()) + `","token_type":"bearer","expires_in":0}`)},
		} {
			const fault = 700 * time.Millisecond
			before, began := w.gateway.Stats(gatewaytest.OpToken).Requests, time.Now()
			i := w.gateway.Inject(gatewaytest.OpToken, f)
			w.gateway.ExpireTokens()
			w.flow(messages*3/20, fault)
			i.Lift()
			w.waitConfirmed()
			calls := w.gateway.Stats(gatewaytest.OpToken).Requests - before
			t.Logf("%s: %d token requests", name, calls)
			// In that time of steps that grow from 10 to 200 ms, for four senders of
			// confirmations; a busy loop makes thousands.
			if calls > 100*int(1+time.Since(began)/fault) {
				t.Errorf("%s: %d token requests", name, calls)
			}
		}
		w.judge(expectation{})
		if got := p.sub.Stats().Stream.Connects; got != 1 {
			t.Errorf("the open stream did not go on: %d connects", got)
		}
	})
}

// Storms of 429 with every kind of Retry-After.
func TestRow06TooManyRequests(t *testing.T) {
	protocols(t, worldConfig{gateway: gatewaytest.Config{InlineLimit: 1000}}, func(t *testing.T, w *world) {
		w.start()
		var injected []*gatewaytest.Injection
		for _, after := range []string{"", "0", "1", "-5", "99999999999999999999", "soon", time.Now().Add(time.Second).UTC().Format(http.TimeFormat), "Thu, 01 Jan 1970 00:00:00 GMT"} {
			header := http.Header{}
			if after != "" {
				header.Set("Retry-After", after)
			}
			for _, op := range []gatewaytest.Operation{gatewaytest.OpEvents, gatewaytest.OpConfirm} {
				injected = append(injected, w.gateway.Inject(op, gatewaytest.Fault{Status: 429, Header: header, Times: 2}))
			}
		}
		before := w.gateway.Stats(gatewaytest.OpAny).Requests
		began := time.Now()
		for i := range 5 {
			w.sendSize(messages/10, 1500)
			w.send(messages / 10)
			if i < 3 {
				w.gateway.CutStreams()
			}
			w.pause(300 * time.Millisecond)
		}
		w.settle(expectation{})
		hits := 0
		for _, i := range injected {
			hits += i.Hits()
		}
		requests := w.gateway.Stats(gatewaytest.OpAny).Requests - before
		t.Logf("%d requests in %v, %d answered 429", requests, time.Since(began).Round(time.Millisecond), hits)
		if hits < 16 {
			t.Errorf("only %d answers were 429", hits)
		}
	})
}

// Confirmations fail for a while. They wait, intake pauses, nothing is dropped.
func TestRow07ConfirmationsFail(t *testing.T) {
	const backlog, inFlight = 100, 100
	t.Parallel()
	for name, f := range map[string]gatewaytest.Fault{"503": {Status: 503}, "hang": {Hang: true}, "refused": {Refuse: true}} {
		t.Run(name, func(t *testing.T) {
			protocols(t, worldConfig{}, func(t *testing.T, w *world) {
				p := w.start(func(p *parts) {
					p.Subscriber.MaxInFlight, p.Subscriber.Confirm.MaxBacklog = inFlight, backlog
					p.Gateway.RequestTimeout = 300 * time.Millisecond
				})
				i := w.gateway.Inject(gatewaytest.OpConfirm, f)
				w.send(messages)
				testkit.Eventually(w, "the backlog is full", func() bool { return p.sub.Stats().PendingConfirmations >= backlog })
				w.during(2*time.Second, "the backlog is bounded", func() bool {
					return p.sub.Stats().PendingConfirmations <= backlog+inFlight
				})
				i.Lift()
				w.settle(expectation{})
			})
		})
	}
}

// The gateway takes confirmations, and its answers are lost.
func TestRow08ConfirmationAnswerLost(t *testing.T) {
	protocols(t, worldConfig{}, func(t *testing.T, w *world) {
		lost := w.gateway.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{DropAnswer: true, Times: 10})
		w.start()
		w.flow(messages, 500*time.Millisecond)
		w.waitConfirmed()
		testkit.Eventually(w, "all losses happened, and were made up for", func() bool { return lost.Hits() == 10 && w.oracle.twice() > 0 })
		w.judge(expectation{})
	})
}

// A batch of confirmations has pairs that the gateway does not take any more: an
// endpoint was deleted, and one tenant is forbidden. All others are confirmed.
func TestRow09ConfirmationPartlyBad(t *testing.T) {
	protocols(t, worldConfig{gateway: gatewaytest.Config{StrictConfirmations: true}}, func(t *testing.T, w *world) {
		types := []string{messageType}
		deleted := w.gateway.AddEndpoint(gatewaytest.EndpointConfig{Receive: types, Subscribe: types})
		tenant := w.gateway.AddTenant()
		w.gateway.Authorize(w.gateway.Application(), tenant)
		other := w.gateway.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Send: types})
		forbidden := w.gateway.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Receive: types, Subscribe: types})
		no := w.gateway.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 403, Match: func(r *http.Request) bool {
			return r.Header.Get("x-router-tenant-id") == tenant
		}})
		hang := w.gateway.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Hang: true})
		var rejected atomic.Int64
		p := w.start(func(p *parts) {
			p.Subscriber.Hooks.ConfirmationRejected = func(string, gateway.MessageConfirmation, error) { rejected.Add(1) }
		})
		w.send(messages / 10)
		for range messages / 10 {
			w.sendRequest(gatewaytest.SendRequest{From: other.ID, MessageType: messageType, Payload: w.bytes(20)})
		}
		testkit.Eventually(w, "all are stored", func() bool { return p.health().Delivered == uint64(len(w.gateway.Ledger())) })
		w.gateway.DeleteEndpointByUser(deleted.ID)
		hang.Lift()
		w.send(messages / 10)
		good := func(e gatewaytest.LedgerEntry) bool {
			return e.EndpointID != deleted.ID && e.EndpointID != forbidden.ID
		}
		w.waitFor(good)
		testkit.Eventually(w, "the others were given up", func() bool { return rejected.Load() >= int64(messages/10) })
		v := w.judge(expectation{unknown: true, open: func(e gatewaytest.LedgerEntry) bool { return !good(e) }})
		calls := p.sub.Stats().ConfirmRequests
		t.Logf("%d requests, %d confirmations given up", calls, rejected.Load())
		if no.Hits() == 0 || v.sent == 0 {
			t.Error("no request was forbidden: nothing is shown")
		}
		if calls > 1000 {
			t.Errorf("%d requests for %d messages", calls, v.sent)
		}
	})
}

// Confirmed messages come again for a while, to this process and to the next.
func TestRow10RedeliveredAfterConfirmation(t *testing.T) {
	protocols(t, worldConfig{gateway: gatewaytest.Config{ConfirmationLag: time.Hour}}, func(t *testing.T, w *world) {
		p := w.start()
		w.send(messages)
		w.waitConfirmed()
		// What comes again while its confirmation is unanswered is not confirmed twice.
		testkit.Eventually(w, "the service's answers arrived", func() bool { return p.sub.Stats().PendingConfirmations == 0 })
		w.gateway.CutStreams()
		testkit.Eventually(w, "everything came again", func() bool { return p.sub.Stats().Joined >= int64(messages) })
		testkit.Eventually(w, "and was confirmed again", func() bool { return w.oracle.twice() == messages })
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		second := w.start() // which remembers nothing
		testkit.Eventually(w, "everything came once more", func() bool { return second.sub.Stats().Confirmed >= int64(messages) })
		w.gateway.Advance(2 * time.Hour)
		w.gateway.CutStreams()
		w.send(10)
		if v := w.settle(expectation{}); v.duplicates != 0 {
			t.Errorf("%d raw duplicates within the window", v.duplicates)
		}
	})
}

// The service's clock jumps, and senders' clocks are anywhere.
func TestRow23ClockSkew(t *testing.T) {
	protocols(t, worldConfig{gateway: gatewaytest.Config{InlineLimit: 1000, TokenLifetime: 10 * time.Minute}}, func(t *testing.T, w *world) {
		w.start()
		sent := []time.Time{{}, time.Unix(0, 0), time.Date(1970, 1, 1, 0, 0, 1, 0, time.FixedZone("", 14*3600)), time.Date(2999, 12, 31, 23, 59, 59, 0, time.UTC)}
		for _, jump := range []time.Duration{time.Hour, -2 * time.Hour, 2 * time.Hour, -time.Hour, 24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
			for i := range messages / 7 {
				size := 20
				if i%10 == 0 {
					size = 1500
				}
				w.sendRequest(gatewaytest.SendRequest{MessageType: messageType, Payload: w.bytes(size), SentAt: sent[i%len(sent)]})
			}
			w.gateway.Advance(jump)
			w.gateway.CutStreams()
			w.pause(100 * time.Millisecond)
		}
		w.settle(expectation{})
		if got := w.gateway.Stats(gatewaytest.OpToken).Requests; got > 30 {
			t.Errorf("%d token requests", got)
		}
	})
}

// Endpoints are deleted and an authorization is revoked with messages in flight.
// The other tenant does not notice.
func TestRow32EndpointAndAuthorizationGone(t *testing.T) {
	protocols(t, worldConfig{}, func(t *testing.T, w *world) {
		types := []string{messageType}
		tenant := w.gateway.AddTenant()
		w.gateway.Authorize(w.gateway.Application(), tenant)
		other := w.gateway.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Send: types})
		for range 3 {
			w.gateway.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Receive: types, Subscribe: types})
		}
		gone := w.gateway.AddEndpoint(gatewaytest.EndpointConfig{Receive: types, Subscribe: types})
		slow := w.gateway.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Delay: 100 * time.Millisecond})
		// What is refused is retried for five minutes by default: the tenant may come back.
		p := w.start(func(p *parts) { p.Subscriber.Confirm.RefusedFor = 2 * time.Second })
		for i := range messages / 5 {
			w.send(1)
			if i < messages/10 {
				w.sendRequest(gatewaytest.SendRequest{From: other.ID, MessageType: messageType, Payload: w.bytes(20)})
			}
			switch i {
			case messages / 12:
				w.gateway.DeleteEndpointByUser(gone.ID)
			case messages / 10:
				w.gateway.Revoke(w.gateway.Application(), tenant, "endpoints:manage")
			}
		}
		slow.Lift()
		left := func(e gatewaytest.LedgerEntry) bool { return e.EndpointID == gone.ID || e.TenantID == tenant }
		w.waitFor(func(e gatewaytest.LedgerEntry) bool { return !left(e) })
		testkit.Eventually(w, "nothing waits", func() bool { s := p.sub.Stats(); return s.PendingConfirmations == 0 && s.InFlight == 0 })
		w.judge(expectation{unknown: true, open: left})
	})
}

// The way to the gateway: a proxy that slices and delays, a resolver that fails,
// a certificate that is not to be trusted.
func TestRow34Network(t *testing.T) {
	t.Parallel()
	single := func(name string, cfg worldConfig, row func(t *testing.T, w *world)) {
		t.Run(name, func(t *testing.T) { inWorld(t, cfg, row) })
	}
	t.Run("sliced and slow over TLS", func(t *testing.T) {
		protocols(t, worldConfig{gateway: gatewaytest.Config{TLS: true}}, func(t *testing.T, w *world) {
			proxy := w.toxiproxy(strings.TrimPrefix(w.gateway.BaseURL(), "https://"))
			proxy.add(`{"name":"slices","type":"slicer","attributes":{"average_size":700,"size_variation":500,"delay":100}}`)
			proxy.add(`{"name":"slow","type":"latency","attributes":{"latency":20,"jitter":20}}`)
			proxy.add(`{"name":"narrow","type":"bandwidth","attributes":{"rate":2000}}`)
			w.start(func(p *parts) { p.Gateway.BaseURL = "https://" + proxy.address() })
			w.send(messages / 2)
			w.pause(300 * time.Millisecond)
			proxy.cut()
			w.send(messages / 2)
			w.settle(expectation{})
		})
	})
	single("GOAWAY", worldConfig{protocol: http2, gateway: gatewaytest.Config{InlineLimit: 1000}}, func(t *testing.T, w *world) {
		// The server makes a GOAWAY of it: what is open continues, what is new needs a
		// new connection.
		away := w.gateway.Inject(gatewaytest.OpAny, gatewaytest.Fault{Header: http.Header{"Connection": {"close"}}, Times: messages / 20})
		p := w.start(undisturbed, func(p *parts) { p.Gateway.RequestTimeout = testkit.Patience }) // only a GOAWAY can fail one
		w.sendSize(messages/10, 1500)
		w.flow(messages*9/10, time.Second)
		w.settle(expectation{})
		if s := p.sub.Stats(); away.Hits() < messages/20 || s.ConfirmFailures > 20 {
			t.Errorf("%d connections were ended, and %d confirmations failed", away.Hits(), s.ConfirmFailures)
		}
	})
	single("resolver fails", worldConfig{}, func(t *testing.T, w *world) {
		var broken atomic.Bool
		broken.Store(true)
		transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if broken.Load() {
				return nil, &net.DNSError{Err: "server misbehaving", Name: "gateway", IsTemporary: true}
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}}
		t.Cleanup(transport.CloseIdleConnections)
		p := w.start(func(p *parts) { p.Gateway.Transport = transport })
		w.send(messages)
		testkit.Eventually(w, "the failure is told", func() bool { return p.sub.Stats().Stream.LastError != nil })
		w.pause(time.Second)
		broken.Store(false)
		w.settle(expectation{})
	})
	single("certificate of nobody", worldConfig{gateway: gatewaytest.Config{TLS: true}}, func(t *testing.T, w *world) {
		w.send(messages)
		p := w.start(func(p *parts) { p.Gateway.TLS = nil })
		w.during(500*time.Millisecond, "nothing arrives", func() bool { return p.sub.Stats().Received == 0 })
		testkit.Eventually(w, "the certificate is to blame", func() bool { return errors.Is(p.sub.Stats().Stream.LastError, gateway.ErrCertificate) })
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		w.start()
		w.settle(expectation{})
	})
}

// Redirects: the token goes nowhere else, private addresses are refused.
func TestRow29Redirects(t *testing.T) {
	protocols(t, worldConfig{gateway: gatewaytest.Config{InlineLimit: 1000}}, func(t *testing.T, w *world) {
		var requests, leaks atomic.Int64
		elsewhere := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" {
				leaks.Add(1)
			}
			http.Error(rw, "no", http.StatusNotFound)
		}))
		scheme := "http"
		if w.http2 {
			scheme = "https"
			elsewhere.StartTLS()
		} else {
			elsewhere.Start()
		}
		t.Cleanup(elsewhere.Close)
		for _, to := range []string{elsewhere.URL + "/x", scheme + "://169.254.169.254/latest/meta-data", scheme + "://127.0.0.1:1/", "file:///etc/passwd", "//", scheme + "://[::1]:9/"} {
			for _, status := range []int{301, 302, 307, 308} {
				for _, op := range []gatewaytest.Operation{gatewaytest.OpPayload, gatewaytest.OpEvents, gatewaytest.OpConfirm} {
					w.gateway.Inject(op, gatewaytest.Fault{Status: status, Header: http.Header{"Location": {to}}, Times: 1, Skip: w.rng.IntN(3)})
				}
			}
		}
		p := w.start(func(p *parts) {
			p.Subscriber.Reconnect = subscriber.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond}
			if w.http2 { // its certificate is not what keeps it out
				p.Gateway.TLS.RootCAs.AddCert(elsewhere.Certificate())
			}
		})
		w.sendSize(messages/10, 1500)
		for range 40 {
			w.send(messages / 50)
			w.gateway.CutStreams()
			w.pause(20 * time.Millisecond)
		}
		w.send(messages / 10)
		w.settle(expectation{})
		if leaks.Load() > 0 || requests.Load() > 0 {
			t.Errorf("the other host got %d requests, %d with credentials", requests.Load(), leaks.Load())
		}
		if n := w.gateway.Stats(gatewaytest.OpPayload).WithAuthorization; n > 0 {
			t.Errorf("%d payload requests carried the token", n)
		}
		t.Logf("%d connects", p.sub.Stats().Stream.Connects)
	})
}

// waitFor waits until all entries that count are confirmed.
func (w *world) waitFor(counts func(gatewaytest.LedgerEntry) bool) {
	w.Helper()
	testkit.Eventually(w, "all that count are confirmed", func() bool {
		return !slices.ContainsFunc(w.gateway.Ledger(), func(e gatewaytest.LedgerEntry) bool { return counts(e) && !e.Confirmed() })
	})
}

// twice is how many messages were confirmed more than once.
func (o *oracle) twice() int {
	n := 0
	for _, e := range o.gateway.Ledger() {
		if len(e.Confirmations) > 1 {
			n++
		}
	}
	return n
}
