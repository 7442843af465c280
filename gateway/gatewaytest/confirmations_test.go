package gatewaytest_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestUnknownConfirmations(t *testing.T) {
	for _, strict := range []bool{false, true} {
		s, c := start(t, gatewaytest.Config{StrictConfirmations: strict})
		sender, receiver := pairOf(s)
		want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK)
		good := gateway.MessageConfirmation{MessageID: s.Ledger()[0].MessageID, EndpointID: receiver.ID}
		bad := gateway.MessageConfirmation{MessageID: good.MessageID, EndpointID: sender.ID}
		r := c.confirm(good, bad)
		if strict {
			wantMessage(t, r, http.StatusBadRequest, bad.EndpointID)
		} else {
			want(t, r, http.StatusAccepted)
		}
		if confirmed := s.Ledger()[0].Confirmed(); confirmed == strict {
			t.Errorf("strict %v: confirmed %v", strict, confirmed)
		}
		if n := s.UnknownConfirmations(); n != 1 {
			t.Errorf("%d unknown", n)
		}
	}
}

func TestConfirmTwice(t *testing.T) {
	s, c := start(t, gatewaytest.Config{StrictConfirmations: true})
	sender, receiver := pairOf(s)
	want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK)
	pair := gateway.MessageConfirmation{MessageID: strings.ToUpper(s.Ledger()[0].MessageID), EndpointID: receiver.ID}
	want(t, c.confirm(pair), http.StatusAccepted)
	want(t, c.confirm(pair, pair), http.StatusAccepted)
	e := s.Ledger()[0]
	if len(e.Confirmations) != 3 || e.ConfirmationSeqs[0] >= e.ConfirmationSeqs[1] {
		t.Errorf("entry %+v", e)
	}
	testkit.NoError(t, s.WaitConfirmed(testContext(t), 1))
}

func TestOnConfirm(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	var mu sync.Mutex
	var seen []gatewaytest.LedgerEntry
	s.OnConfirm(func(e gatewaytest.LedgerEntry) {
		_ = s.Ledger() // hooks run without the lock
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, e)
	})
	sender, receiver := pairOf(s)
	want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK)
	want(t, c.confirm(gateway.MessageConfirmation{MessageID: s.Ledger()[0].MessageID, EndpointID: receiver.ID}), http.StatusAccepted)
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 1 || !seen[0].Confirmed() || seen[0].Delivered() {
		t.Errorf("seen %+v", seen)
	}
}

func TestWait(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, _ := pairOf(s)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	testkit.ErrorIs(t, s.WaitConfirmed(ctx, 1), context.Canceled)
	woken := make(chan error, 1)
	go func() {
		woken <- s.Wait(testContext(t), func(entries []gatewaytest.LedgerEntry) bool { return len(entries) == 2 })
	}()
	want(t, c.post(sender.ID, []byte("1"), nil), http.StatusOK)
	want(t, c.post(sender.ID, []byte("2"), nil), http.StatusOK)
	testkit.NoError(t, <-woken)
	go func() { woken <- s.WaitConfirmed(testContext(t), 1) }()
	s.Close()
	testkit.ErrorIs(t, <-woken, gatewaytest.ErrClosed)
}

// What is confirmed and not stored is lost; what is open is not; and a test without messages shows nothing.
func TestNoLoss(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	tb := &fakeTB{TB: t}
	nothing := func(gatewaytest.LedgerEntry) bool { return false }
	s.NoLoss(tb, nothing)
	if tb.failures != 1 {
		t.Errorf("%d failures with nothing sent, want 1", tb.failures)
	}
	sender := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{typeA}})
	receiver := s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{typeA}, Subscribe: []string{typeA}})
	for _, name := range []string{"open.zip", "confirmed.zip"} {
		testkit.Must(s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeA, Filename: name, Payload: []byte(name)}))(t)
	}
	s.NoLoss(t, nothing) // both are open
	entry := s.Ledger()[1]
	want(t, c.confirm(gateway.MessageConfirmation{MessageID: entry.MessageID, EndpointID: receiver.ID}), http.StatusAccepted)
	s.NoLoss(t, func(e gatewaytest.LedgerEntry) bool { return e.Filename == "confirmed.zip" })
	s.NoLoss(tb, nothing)
	if tb.failures != 2 || !strings.Contains(tb.last, "1 of 2") || !strings.Contains(tb.last, entry.MessageID) || !strings.Contains(tb.last, `"confirmed.zip"`) {
		t.Errorf("%d failures, the last one %q", tb.failures, tb.last)
	}
}
