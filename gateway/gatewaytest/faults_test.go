package gatewaytest_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestFaultStatus(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	for _, status := range []int{400, 401, 403, 404, 413, 429, 500, 502, 503, 504} {
		injection := s.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: status, Times: 1})
		r := want(t, c.do("GET", "/tenants", nil, nil), status)
		text := http.StatusText(status)
		if status == http.StatusTooManyRequests {
			text = "rate limit exceeded"
		}
		if r.message() != text || r.header.Get("Retry-After") != "" {
			t.Errorf("%d: %s %v", status, r.body, r.header)
		}
		want(t, c.do("GET", "/tenants", nil, nil), http.StatusOK)
		if injection.Hits() != 1 {
			t.Errorf("%d hits", injection.Hits())
		}
		injection.Lift()
	}
}

func TestFaultSkipTimesLift(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	statuses := func(n int) (list []int) {
		for range n {
			list = append(list, c.do("GET", "/tenants", nil, nil).status/100)
		}
		return list
	}
	injection := s.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503, Skip: 1, Times: 2})
	if got := statuses(5); got[0] != 2 || got[1] != 5 || got[2] != 5 || got[3] != 2 || got[4] != 2 {
		t.Errorf("statuses %v", got)
	}
	injection.Lift()
	injection = s.Inject(gatewaytest.OpAny, gatewaytest.Fault{Status: 503})
	if got := statuses(3); got[0] != 5 || got[1] != 5 || got[2] != 5 {
		t.Errorf("statuses %v", got)
	}
	injection.Lift()
	injection.Lift()
	if got := statuses(1); got[0] != 2 {
		t.Errorf("statuses %v", got)
	}
	s.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503})
	s.LiftAll()
	if got := statuses(1); got[0] != 2 {
		t.Errorf("statuses %v", got)
	}
	if stats := s.Stats(gatewaytest.OpListTenants); stats.Requests != 10 || stats.Status[503] != 5 || stats.Status[200] != 5 {
		t.Errorf("stats %+v", stats)
	}
}

// The work is done, the answer is lost.
func TestFaultDropAnswer(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, receiver := pairOf(s)
	s.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{DropAnswer: true, Times: 1})
	if _, err := c.send(c.request("POST", "/messages", []byte("x"), c.messageHeaders(sender.ID, nil))); err == nil {
		t.Fatal("there was an answer")
	}
	if len(s.Ledger()) != 1 {
		t.Fatal("the work was not done")
	}
	s.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 500, AfterWork: true, Times: 1})
	want(t, c.confirm(gateway.MessageConfirmation{MessageID: s.Ledger()[0].MessageID, EndpointID: receiver.ID}), http.StatusInternalServerError)
	if !s.Ledger()[0].Confirmed() {
		t.Error("the work was not done")
	}
}

func TestFaultRefuse(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, _ := pairOf(s)
	for _, style := range []gatewaytest.CutStyle{gatewaytest.CutClose, gatewaytest.CutReset, gatewaytest.CutClean} {
		injection := s.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Refuse: true, Cut: style})
		if r, err := c.send(c.request("POST", "/messages", []byte("x"), c.messageHeaders(sender.ID, nil))); err == nil {
			t.Errorf("style %d: status %d", style, r.status)
		}
		injection.Lift()
	}
	if len(s.Ledger()) != 0 {
		t.Error("the work was done")
	}
}

// An event stream cut at every offset: what arrives is a prefix of the stream.
func TestFaultCutStream(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, _ := pairOf(s)
	want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK)
	read := func(n int64, style gatewaytest.CutStyle) (int, error) {
		t.Helper()
		injection := s.Inject(gatewaytest.OpEvents, gatewaytest.Fault{CutAfter: n, Cut: style})
		defer injection.Lift()
		r := want(t, c.do("GET", "/events", nil, nil), http.StatusOK)
		return len(r.body), r.err
	}
	for n := int64(1); n < 300; n += 23 {
		if got, err := read(n, gatewaytest.CutClose); int64(got) != n || err == nil {
			t.Errorf("cut after %d: %d bytes, %v", n, got, err)
		}
		if got, err := read(n, gatewaytest.CutClean); int64(got) != n || err != nil {
			t.Errorf("clean cut after %d: %d bytes, %v", n, got, err)
		}
	}
	if got, err := read(gatewaytest.AfterHeader, gatewaytest.CutClose); got != 0 || err == nil {
		t.Errorf("cut after the header: %d bytes, %v", got, err)
	}
	if _, err := read(100, gatewaytest.CutReset); err == nil {
		t.Error("reset: no error")
	}
}

func TestFaultCutPayload(t *testing.T) {
	s, c, payload, uri := remote(t, gatewaytest.Config{})
	s.Inject(gatewaytest.OpPayload, gatewaytest.Fault{CutAfter: 1234, Times: 1})
	if r := c.fetch(uri, nil); len(r.body) != 1234 || r.err == nil {
		t.Errorf("%d bytes, %v", len(r.body), r.err)
	}
	injection := s.Inject(gatewaytest.OpPayload, gatewaytest.Fault{HangAfter: 1000})
	type result struct {
		reply
		err error
	}
	done := make(chan result, 1)
	request := c.request("GET", uri, nil, map[string]string{"Authorization": ""})
	go func() {
		r, err := c.send(request)
		done <- result{r, err}
	}()
	testkit.NoError(t, s.Wait(testContext(t), func([]gatewaytest.LedgerEntry) bool { return injection.Hits() > 0 }))
	injection.Lift()
	if r := <-done; r.err != nil || len(r.body) != len(payload) {
		t.Errorf("%d bytes, %v", len(r.body), r.err)
	}
	s.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: http.StatusFound, Body: []byte{}, Header: http.Header{"Location": {uri}}, Times: 1})
	if r := want(t, c.fetch(uri, nil), http.StatusOK); len(r.body) != len(payload) {
		t.Errorf("%d bytes after the redirect", len(r.body))
	}
}

func TestFaultSlow(t *testing.T) {
	s, c, payload, uri := remote(t, gatewaytest.Config{})
	s.Inject(gatewaytest.OpPayload, gatewaytest.Fault{BytesPerSecond: 20_000, Times: 1}) // 3 000 bytes in steps of 1 000
	before := time.Now()
	if r := c.fetch(uri, nil); len(r.body) != len(payload) || time.Since(before) < 100*time.Millisecond {
		t.Errorf("%d bytes in %v", len(r.body), time.Since(before))
	}
}
