package gatewaytest_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The head comes with the first event, and the keep-alive does not bring it.
func TestStreamHeadWithTheFirstEvent(t *testing.T) {
	s, c := start(t, gatewaytest.Config{StreamHead: gatewaytest.HeadWithFirstEvent, KeepAlive: time.Millisecond})
	sender, _ := pairOf(s)
	head := make(chan *http.Response, 1)
	go func() {
		res, err := c.http.Do(c.request("GET", "/events?types=MESSAGE_RECEIVED", nil, nil))
		if err != nil {
			t.Error(err)
		}
		head <- res
	}()
	testkit.NoError(t, s.WaitStreams(testContext(t), 1))
	select {
	case <-head:
		t.Fatal("the head came before the first event")
	case <-time.After(100 * time.Millisecond):
	}
	want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK)
	res := <-head
	if res == nil {
		return
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("status %d, %v", res.StatusCode, res.Header)
	}
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || line != "event: MESSAGE_RECEIVED\n" {
		t.Errorf("got %q, %v", line, err)
	}
}

func TestOneStream(t *testing.T) {
	s, c := start(t, gatewaytest.Config{Streams: gatewaytest.OneStream})
	sender, _ := pairOf(s)
	first, second := c.listen(""), c.listen("")
	const n = 20
	for range n {
		testkit.Must(s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeA}))(t)
	}
	testkit.NoError(t, s.WaitDelivered(testContext(t), n))
	for _, e := range s.Ledger() {
		if len(e.Deliveries) != 1 {
			t.Errorf("%d deliveries", len(e.Deliveries))
		}
	}
	// Whoever connects after both are gone gets all that is not confirmed.
	first.close()
	second.close()
	testkit.NoError(t, s.WaitStreams(testContext(t), 0))
	l := c.listen("")
	for range n {
		l.next(gateway.EventMessageReceived)
	}
}

func TestKeepAlive(t *testing.T) {
	_, c := start(t, gatewaytest.Config{KeepAlive: time.Millisecond})
	l := c.listen("")
	if line, err := l.lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, ":") {
		t.Errorf("line %q, %v", line, err)
	}
}

func TestRedeliverUnconfirmed(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, _ := pairOf(s)
	l := c.listen("")
	want(t, c.post(sender.ID, []byte("1"), nil), http.StatusOK)
	want(t, c.post(sender.ID, []byte("2"), nil), http.StatusOK)
	one, two := l.next(gateway.EventMessageReceived), l.next(gateway.EventMessageReceived)
	want(t, c.confirm(one.pair()), http.StatusAccepted)
	for round := range 2 {
		if n := s.RedeliverUnconfirmed(); n != 1 {
			t.Fatalf("%d events again in round %d", n, round)
		}
		if e := l.next(gateway.EventMessageReceived); e.text("id") != two.text("id") {
			t.Errorf("event %s", e.raw)
		}
	}
	l.close()
	// A duplicate is not kept: a new stream gets the message once.
	l = c.listen("")
	l.next(gateway.EventMessageReceived)
	l.nothingBefore(s, c.app)
}

func TestEmitRaw(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	if n := s.EmitRaw(c.app, []byte("nobody listens")); n != 0 {
		t.Errorf("%d streams", n)
	}
	l := c.listen("?types=MESSAGE_RECEIVED")
	raw := "event: MESSAGE_RECEIVED\rdata: {\"broken\r\n\r\n\x00"
	if n := s.EmitRaw(c.app, []byte(raw)); n != 1 {
		t.Errorf("%d streams", n)
	}
	got := make([]byte, len(raw))
	if _, err := io.ReadFull(l.lines, got); err != nil || string(got) != raw {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCutStreams(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, _ := pairOf(s)
	l := c.listen("")
	want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK)
	l.next(gateway.EventMessageReceived)
	if n := s.CutStreams(); n != 1 {
		t.Errorf("%d streams", n)
	}
	if e, err := l.read(); err == nil {
		t.Errorf("event %s after the cut", e.raw)
	}
	c.listen("").next(gateway.EventMessageReceived)
}

func TestStallStreams(t *testing.T) {
	s, c := start(t, gatewaytest.Config{KeepAlive: time.Millisecond})
	sender, _ := pairOf(s)
	lift := s.StallStreams()
	l := c.listen("") // is answered with its header
	got := make(chan event)
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() {
		e, _ := l.read()
		got <- e
	})
	want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK)
	select {
	case e := <-got:
		t.Fatalf("event %s while stalled", e.raw)
	case <-time.After(50 * time.Millisecond): // an absence can only be waited for
	}
	if s.Ledger()[0].Delivered() {
		t.Error("delivered while stalled")
	}
	lift()
	lift()
	if e := <-got; e.name != string(gateway.EventMessageReceived) {
		t.Errorf("event %s", e.raw)
	}
}

// A reader that does not read holds up nobody else.
func TestSlowReader(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, receiver := pairOf(s)
	slow := c.listen("")
	fast := c.listen("")
	const n = 250 // times 60 KiB: more than any socket buffer takes
	payload := payloadOf(60 << 10)
	var reader sync.WaitGroup
	reader.Go(func() {
		for range n {
			fast.next(gateway.EventMessageReceived)
		}
	})
	for range n {
		testkit.Must(s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeA, Payload: payload}))(t)
	}
	reader.Wait()
	// The slow one still gets all of them, although they are confirmed by now.
	var all []gateway.MessageConfirmation
	for _, e := range s.Ledger() {
		all = append(all, gateway.MessageConfirmation{MessageID: e.MessageID, EndpointID: receiver.ID})
	}
	want(t, c.confirm(all...), http.StatusAccepted)
	for range n {
		slow.next(gateway.EventMessageReceived)
	}
}

// What a stream is made of, byte by byte.
func TestEventBytes(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, receiver := pairOf(s)
	l := c.listen("")
	testkit.Must(s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeA, Payload: []byte("x"), ContextID: "1\n2", Filename: "\"ü\\\u2028"}))(t)
	var lines []string
	for range 3 {
		line := testkit.Must(l.lines.ReadString('\n'))(t)
		lines = append(lines, line)
	}
	e := s.Ledger()[0]
	wantData := fmt.Sprintf(`data: {"event_type":"MESSAGE_RECEIVED","id":"%s","app_message_id":"1\n2","message_type":"%s","sent_at":"`, e.MessageID, typeA)
	if lines[0] != "event: MESSAGE_RECEIVED\n" || !strings.HasPrefix(lines[1], wantData) || lines[2] != "\n" {
		t.Errorf("%q", lines)
	}
	wantRest := fmt.Sprintf(`"payload":"eA==","receiving_endpoint_id":"%s","filename":"\"ü\\\u2028","tenant_id":"%s"}`+"\n", receiver.ID, s.Tenant())
	if !strings.HasSuffix(lines[1], wantRest) {
		t.Errorf("%q does not end with %q", lines[1], wantRest)
	}
}
