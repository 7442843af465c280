//go:build faults

package faulttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/subscriber"
)

// bySick matches requests that name a sick tenant.
func (w *partialWorld) bySick(r *http.Request) bool {
	return slices.ContainsFunc(w.tenants[:w.row.sickTenants], func(tenant string) bool {
		return strings.EqualFold(r.Header.Get("X-Router-Tenant-Id"), tenant)
	})
}

// inject returns a strike that injects a fault into the requests of the sick tenants.
func inject(op gatewaytest.Operation, fault gatewaytest.Fault) func(*partialWorld) func() {
	return func(w *partialWorld) func() {
		f := fault
		f.Match = func(r *http.Request) bool { return w.hit(w.bySick(r)) }
		return w.gateway.Inject(op, f).Lift
	}
}

// some returns a strike that injects a fault into a share of all requests.
func some(share float64, op gatewaytest.Operation, fault gatewaytest.Fault) func(*partialWorld) func() {
	return func(w *partialWorld) func() {
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(1, 1))
		f := fault
		f.Match = func(*http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			return w.hit(random.Float64() < share)
		}
		return w.gateway.Inject(op, f).Lift
	}
}

// payloads returns a strike that breaks the payloads of the sick tenant, n of them at once.
func payloads(n int, fault gatewaytest.Fault) func(*partialWorld) func() {
	return func(w *partialWorld) func() {
		f := fault
		f.Match = func(r *http.Request) bool { return w.hit(w.isSickPath(r.URL.Path)) }
		lift := w.gateway.Inject(gatewaytest.OpPayload, f).Lift
		for range n {
			w.sendAs(0)
		}
		return lift
	}
}

// watchPayloads notes which payloads are the sick tenant's.
func watchPayloads(w *partialWorld, p *parts) {
	p.Subscriber.Hooks.Event = func(event gateway.Event) {
		if e, ok := event.(*gateway.MessageReceived); ok && strings.EqualFold(e.TenantID, w.sick()) {
			w.noteSickPath(e.PayloadURI)
		}
	}
}

// spoil answers requests for confirmations that contain a certain message.
type spoil struct {
	http.RoundTripper
	w *partialWorld

	mu      sync.Mutex
	message string // the first one of the sick tenant during a fault
	of      <-chan struct{}
}

func (s *spoil) RoundTrip(r *http.Request) (*http.Response, error) {
	fault := s.w.faultNow()
	if fault == nil || !strings.HasSuffix(r.URL.Path, "/confirmations") || !s.w.bySick(r) {
		return s.RoundTripper.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err := errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	var request struct {
		Confirmations []struct {
			Message string `json:"message_id"`
		} `json:"confirmations"`
	}
	if err := json.Unmarshal(body, &request); err != nil || len(request.Confirmations) == 0 {
		return nil, errors.Join(err, errors.New("no confirmations"))
	}
	s.mu.Lock()
	if s.of != fault {
		s.of, s.message = fault, request.Confirmations[0].Message
	}
	spoiled := s.w.hit(bytes.Contains(body, []byte(s.message)))
	s.mu.Unlock()
	if spoiled {
		return &http.Response{
			StatusCode: http.StatusInternalServerError, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(`{"message":"spoiled"}`)),
		}, nil
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	return s.RoundTripper.RoundTrip(r)
}

func partialRows() []partialRow {
	elsewhere := gatewaytest.Config{InlineLimit: 1000}
	confirmations := func(name string, fault gatewaytest.Fault) partialRow {
		return partialRow{name: name, strike: inject(gatewaytest.OpConfirm, fault)}
	}
	broken := func(name string, fault gatewaytest.Fault) partialRow {
		return partialRow{name: name, gateway: elsewhere, size: 2000, strike: payloads(40, fault), change: watchPayloads}
	}
	rows := []partialRow{
		confirmations("P1 confirmations of one tenant answer 500", gatewaytest.Fault{Status: 500}),
		confirmations("P2 confirmations of one tenant answer 403", gatewaytest.Fault{Status: 403}),
		confirmations("P3 confirmations of one tenant answer 404", gatewaytest.Fault{Status: 404}),
		confirmations("P4 confirmations of one tenant hang", gatewaytest.Fault{Hang: true}),
		confirmations("P5 answers to confirmations of one tenant are lost", gatewaytest.Fault{DropAnswer: true}),
		{
			name: "P6 30 percent of all confirmations hang", share: 0.5, everybody: true,
			strike: some(0.3, gatewaytest.OpConfirm, gatewaytest.Fault{Hang: true}),
		},
		{
			name: "P7 70 percent of all confirmations answer 500", share: 0.5, everybody: true,
			strike: some(0.7, gatewaytest.OpConfirm, gatewaytest.Fault{Status: 500}),
		},
		{
			name: "P8 one confirmation turns its batch into 500",
			change: func(w *partialWorld, p *parts) {
				p.Gateway.Transport = &spoil{RoundTripper: &http.Transport{TLSClientConfig: p.Gateway.TLS}, w: w}
			},
		},
		broken("P9 payloads of one tenant answer 500", gatewaytest.Fault{Status: 500}),
		broken("P10 payloads of one tenant answer 404", gatewaytest.Fault{Status: 404}),
		broken("P11 payloads of one tenant hang", gatewaytest.Fault{Hang: true}),
		broken("P12 payloads of one tenant come at one byte a second", gatewaytest.Fault{BytesPerSecond: 1}),
		broken("P13 payloads of one tenant have the wrong coding", gatewaytest.Fault{Header: http.Header{"Content-Encoding": {"gzip"}}}),
		{
			name: "P14 the handler hangs on one key",
			change: func(w *partialWorld, p *parts) {
				p.Subscriber.Order = subscriber.OrderByKey
				hangOnSick(w, p)
			},
		},
		{
			name: "P15 a stream that has gone quiet is ended again and again", everybody: true,
			strike: func(w *partialWorld) func() {
				stop, done := make(chan struct{}), make(chan struct{})
				go func() { // ends with the fault
					defer close(done)
					for {
						select {
						case <-stop:
							return
						case <-time.After(300 * time.Millisecond):
							w.hit(w.gateway.CutStreams() > 0)
						}
					}
				}()
				return func() { close(stop); <-done }
			},
		},
	}
	return slices.Concat(rows, routerRows(), subscriberRows(), pipelinedRows(), accountingRows(), severalRows())
}
