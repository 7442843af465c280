package subscriber_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
	"github.com/agrimill/agrimill/subscriber/leasetest"
)

func TestAckLeadsToConfirmation(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	_, messages := f.receive(f.config())
	sent := time.Date(2026, 5, 4, 3, 2, 1, 500_000_000, time.UTC)
	ids := f.sendRequest(gatewaytest.SendRequest{
		From: f.sender.ID, MessageType: typeJSON, Payload: []byte(`{"a":1}`), ContextID: "legacy id, no UUID",
		SentAt: sent, Filename: "Schlag Süd.json", TeamsetContextID: "team",
	})
	msg := f.next(messages)
	if string(msg.Payload) != `{"a":1}` {
		t.Errorf("payload = %q", msg.Payload)
	}
	if id, err := uuid.Parse(msg.UUID); err != nil || id.Version() != 8 || id.Variant() != uuid.RFC4122 {
		t.Errorf("UUID = %s, %v", msg.UUID, err)
	}
	want := message.Metadata{
		gateway.KeyEventType: "MESSAGE_RECEIVED", gateway.KeyMessageID: ids[0], gateway.KeyReceivingEndpointID: f.receiver.ID,
		gateway.KeyTenantID: f.server.Tenant(), gateway.KeyContextID: "legacy id, no UUID", gateway.KeyMessageType: typeJSON,
		gateway.KeySentTimestamp: "2026-05-04T03:02:01.5Z", gateway.KeyFilename: "Schlag Süd.json",
		gateway.KeyTeamsetContextID: "team", gateway.KeyPayloadSize: "7",
	}
	if msg.Metadata.Get(gateway.KeyReceivedTimestamp) == "" {
		t.Error("no received timestamp")
	}
	delete(msg.Metadata, gateway.KeyReceivedTimestamp)
	if !maps.Equal(msg.Metadata, want) {
		t.Errorf("metadata =\n%v, want\n%v", msg.Metadata, want)
	}
	if f.confirmed() != 0 {
		t.Error("confirmed before the ack")
	}
	msg.Ack()
	f.waitConfirmed(1)
	testkit.Eventually(f, "the context of the message ends after the ack", func() bool { return msg.Context().Err() != nil })
}

func TestNothingIsConfirmedBeforeEveryoneAcked(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub, release := f.held(f.config())
	all, byType, byEvent := f.subscribe(sub, subscriber.Everything), f.subscribe(sub, typeJSON), f.subscribe(sub, "MESSAGE_RECEIVED")
	other := f.subscribe(sub, typeOther)
	release()
	f.send(typeJSON, []byte("x"))
	f.next(all).Ack()
	f.next(byType).Ack()
	last := f.next(byEvent)
	f.nothing(other)
	if n := f.confirmed(); n != 0 {
		t.Fatalf("confirmed %d messages although one subscription has not acked", n)
	}
	last.Ack()
	f.waitConfirmed(1)
	if got := f.server.Stats(gatewaytest.OpEvents).Requests; got != 1 {
		t.Errorf("%d connections to /events, want one shared by all subscriptions", got)
	}
}

func TestOneOpenMessagePerKeyInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	_, messages := f.receive(f.config())
	const n = 50
	f.sendN(n, f.receiver, f.receiver2)
	open := map[string]bool{}
	next := map[string]int{}
	var held []*message.Message
	for done := 0; done < 2*n; {
		// Take a message of each key, and nothing more may come.
		for len(held) < 2 && done+len(held) < 2*n {
			msg := f.next(messages)
			key := msg.Metadata.Get(gateway.KeyReceivingEndpointID)
			if open[key] {
				t.Fatalf("a second message of endpoint %s was delivered before the first was acked", key)
			}
			if string(msg.Payload) != strconv.Itoa(next[key]) {
				t.Fatalf("endpoint %s: got payload %s, want %d", key, msg.Payload, next[key])
			}
			open[key] = true
			next[key]++
			held = append(held, msg)
		}
		for _, msg := range held {
			delete(open, msg.Metadata.Get(gateway.KeyReceivingEndpointID))
			msg.Ack()
			done++
		}
		held = held[:0]
	}
	f.waitConfirmed(2 * n)
}

func TestMaxInFlightHoldsTheStreamBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.MaxInFlight = 10
	cfg.Order = subscriber.Unordered
	sub, messages := f.receive(cfg)
	f.sendN(100)
	var held []*message.Message
	for range 10 {
		held = append(held, f.next(messages))
	}
	f.nothing(messages)
	if stats := sub.Stats(); stats.InFlight != 10 || stats.Received > 11 {
		t.Fatalf("in flight %d, read %d events; want 10 and at most one more", stats.InFlight, stats.Received)
	}
	for _, msg := range held {
		msg.Ack()
	}
	f.ackN(messages, 90)
	f.waitConfirmed(100)
	if stats := sub.Stats(); stats.InFlight != 0 || stats.InFlightBytes != 0 {
		t.Errorf("in flight %d messages, %d bytes after everything was acked", stats.InFlight, stats.InFlightBytes)
	}
}

// Messages that wait for something else leave their places to others, up to as many again,
// and keep the order of their key.
func TestMessagesThatWaitLeaveTheirPlaces(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.MaxInFlight = 2
	cfg.OrderKey = func(e gateway.Event) string { return string(e.(*gateway.MessageReceived).Payload[:1]) }
	sub, messages := f.receive(cfg)
	var wait atomic.Bool
	wait.Store(true)
	putOff := func(msg *message.Message) bool {
		if !wait.Load() || msg.Payload[0] >= '2' {
			return false
		}
		msgctx.NackOf(msg.Context()).After(50 * time.Millisecond)
		msg.Nack()
		return true
	}
	for _, payload := range []string{"0a", "1a", "0b", "2a", "3a", "2b", "3b"} {
		f.send(typeJSON, []byte(payload))
	}
	for others := 0; others < 4; {
		if msg := f.next(messages); !putOff(msg) {
			others++
			msg.Ack()
		}
	}
	f.waitConfirmed(4)
	if stats := sub.Stats(); stats.Nacked != 0 {
		t.Errorf("%d nacks, want none: nothing has failed", stats.Nacked)
	}
	wait.Store(false)
	var order []string
	for range 3 {
		msg := f.next(messages)
		if msg.Payload[0] == '0' {
			order = append(order, string(msg.Payload))
		}
		msg.Ack()
	}
	if want := []string{"0a", "0b"}; !slices.Equal(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
	f.waitConfirmed(7)
}

func TestMaxInFlightBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.MaxInFlightBytes = 50_000
	cfg.Order = subscriber.Unordered
	sub, messages := f.receive(cfg)
	for range 10 {
		f.send(typeJSON, random(20_000))
	}
	held := []*message.Message{f.next(messages), f.next(messages)}
	f.nothing(messages)
	if got := sub.Stats().InFlightBytes; got != 40_000 {
		t.Errorf("InFlightBytes = %d, want 40000", got)
	}
	for _, msg := range held {
		msg.Ack()
	}
	f.ackN(messages, 8)
	f.waitConfirmed(10)
}

func TestAPayloadAboveTheByteCapPassesAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.MaxInFlightBytes = 1000
	_, messages := f.receive(cfg)
	f.send(typeJSON, random(5000))   // embedded
	f.send(typeJSON, random(200000)) // remote
	f.send(typeJSON, random(10))
	for _, size := range []int{5000, 200000, 10} {
		msg := f.next(messages)
		if !bytes.Equal(msg.Payload, random(size)) {
			t.Fatalf("payload of %d bytes is not what was sent", size)
		}
		msg.Ack()
	}
	f.waitConfirmed(3)
}

func TestStreamCutInsideAnEvent(t *testing.T) {
	synctest.Test(t, testStreamCutInsideAnEvent)
}

func testStreamCutInsideAnEvent(t *testing.T) {
	for _, style := range []gatewaytest.CutStyle{gatewaytest.CutClose, gatewaytest.CutReset, gatewaytest.CutClean} {
		f := newFixture(t, gatewaytest.Config{InMemory: true})
		for after := int64(1); after < 500; after += 97 {
			f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{CutAfter: after, Cut: style, Times: 1})
		}
		sub, messages := f.receive(f.config())
		f.send(typeJSON, []byte("whole"))
		msg := f.next(messages)
		if string(msg.Payload) != "whole" {
			t.Fatalf("payload = %q", msg.Payload)
		}
		msg.Ack()
		f.waitConfirmed(1)
		f.nothing(messages)
		f.close(sub)
	}
}

func TestRedeliveryIsJoinedToTheOpenMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub, messages := f.receive(f.config())
	f.send(typeJSON, []byte("x"))
	msg := f.next(messages)
	for i := range 3 {
		f.server.CutStreams()
		testkit.Eventually(f, "redelivery", func() bool { return sub.Stats().Joined == int64(i+1) })
	}
	f.nothing(messages)
	msg.Ack()
	f.waitConfirmed(1)
	f.nothing(messages)
	if stats := sub.Stats(); stats.Stream.Connects < 4 || !stats.Stream.Connected {
		t.Errorf("stream state = %+v", stats.Stream)
	}
}

func TestRedeliveryAfterConfirmationIsConfirmedAgain(t *testing.T) {
	t.Parallel()
	// The service took the confirmation but delivers again: its effect lags.
	f := newFixture(t, gatewaytest.Config{ConfirmationLag: time.Hour})
	sub, messages := f.receive(f.config())
	f.sendN(3)
	f.ackN(messages, 3)
	// Else a redelivery that comes before the answer says nothing.
	testkit.Eventually(f, "the confirmations are answered", func() bool { return sub.Stats().Confirmed == 3 })
	f.server.CutStreams()
	testkit.Eventually(f, "confirmed again", func() bool {
		for _, e := range f.server.Ledger() {
			if len(e.Confirmations) < 2 {
				return false
			}
		}
		return true
	})
	f.nothing(messages)
}

func TestContextValuesReachMessages(t *testing.T) {
	t.Parallel()
	type key struct{}
	f := newFixture(t, gatewaytest.Config{})
	messages := testkit.Must(f.subscriber(f.config()).Subscribe(context.WithValue(f.Context(), key{}, "v"), subscriber.AllData))(t)
	f.sendN(1)
	if got := f.ackN(messages, 1)[0].Context().Value(key{}); got != "v" {
		t.Errorf("context value = %v, want v", got)
	}
}

func TestAllSixEventTypesAndUnknownOnes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub, release := f.held(f.config())
	everything := f.subscribe(sub, subscriber.Everything)
	data := f.subscribe(sub, subscriber.AllData)
	release()
	testkit.Eventually(f, "connected", func() bool { return f.server.Streams() == 1 })

	tenant := f.server.AddTenant()
	f.server.Authorize(f.server.Application(), tenant)
	e := f.server.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Receive: []string{typeJSON}})
	f.server.DeleteEndpointByUser(e.ID)
	f.server.Revoke(f.server.Application(), tenant, gateway.ScopeEndpointsManage)
	f.server.EmitRaw(f.server.Application(), []byte("event: SOMETHING_NEW\ndata: {\"event_type\":\"SOMETHING_NEW\",\"x\":1}\n\n"))
	f.send(typeJSON, []byte("x"))

	want := []string{"AUTHORIZATION_ADDED", "ENDPOINTS_LIST_CHANGED", "ENDPOINT_DELETED", "AUTHORIZATION_REVOKED", "SOMETHING_NEW", "MESSAGE_RECEIVED"}
	got := map[string]int{}
	for len(got) < len(want) {
		msg := f.next(everything)
		kind := msg.Metadata.Get(gateway.KeyEventType)
		got[kind]++
		// Of what is no message, the payload is the event as it came.
		if event, err := gateway.DecodeEvent(gateway.EventType(kind), msg.Payload); kind != "MESSAGE_RECEIVED" && (err != nil || string(event.Type()) != kind) {
			t.Errorf("%s: got %+v, %v from the payload", kind, event, err)
		}
		msg.Ack()
	}
	for _, kind := range want {
		if got[kind] == 0 {
			t.Errorf("no %s event; got %v", kind, got)
		}
	}
	f.next(data).Ack()
	f.waitConfirmed(1)
}

func TestMalformedEventsDoNotStopTheStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub := f.subscriber(f.config())
	messages := f.subscribe(sub, subscriber.Everything)
	testkit.Eventually(f, "connected", func() bool { return f.server.Streams() == 1 })
	hostile := []string{
		`{`, `[]`, `{"event_type":"FILE_RECEIVED"}`, `{"event_type":"MESSAGE_RECEIVED"}`,
		`{"event_type":"MESSAGE_RECEIVED","id":"no uuid","payload":"###"}`,
	}
	for _, h := range hostile {
		f.server.EmitRaw(f.server.Application(), []byte("event: MESSAGE_RECEIVED\ndata: "+h+"\n\n"))
	}
	f.send(typeJSON, []byte("good"))
	if msg := f.next(messages); string(msg.Payload) != "good" {
		t.Fatalf("payload = %q", msg.Payload)
	} else {
		msg.Ack()
	}
	if stats := sub.Stats(); stats.Malformed != int64(len(hostile)) || stats.Stream.Connects != 1 {
		t.Errorf("Malformed = %d, Connects = %d; want %d and 1", stats.Malformed, stats.Stream.Connects, len(hostile))
	}
}

// A service that sends what nobody can decode sends it all the time: the log reports
// some, which say what cannot be confirmed, and the count of the rest with a later one.
func TestMalformedEventsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	logger := testkit.NewLog()
	sub := testkit.Must(subscriber.New(f.config(), logger))(t)
	messages := f.subscribe(sub, subscriber.Everything)
	testkit.Eventually(f, "connected", func() bool { return f.server.Streams() == 1 })
	id := uuid.NewString()
	for range 500 {
		f.emit(gateway.EventMessageReceived, fmt.Sprintf(`"id":%q,"receiving_endpoint_id":%q`, id, f.receiver.ID))
	}
	f.send(typeJSON, []byte("good"))
	f.next(messages).Ack()
	testkit.NoError(t, sub.Close())
	count := func(level watermill.LogLevel) (n int) {
		for _, line := range logger.Lines(level) {
			if strings.Contains(line.Msg, "could not be decoded") {
				n++
				if line.Fields["message_id"] != id || line.Fields["endpoint_id"] != f.receiver.ID {
					t.Errorf("the line has %v", line.Fields)
				}
			}
		}
		return n
	}
	if errs, debug := count(watermill.ErrorLogLevel), count(watermill.DebugLogLevel); errs != 20 || debug != 480 {
		t.Errorf("%d errors and %d debug lines, want 20 and 480", errs, debug)
	}
}

func TestTooLargeEventIsSkippedWithoutReconnect(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: 1 << 20})
	clientConfig := f.server.ClientConfig()
	clientConfig.MaxEventSize = 100_000
	cfg := f.config()
	cfg.Client = f.newClient(clientConfig)
	sub, messages := f.receive(cfg)
	f.send(typeJSON, random(200_000))
	f.send(typeJSON, []byte("small"))
	if msg := f.next(messages); string(msg.Payload) != "small" {
		t.Fatalf("payload of %d bytes", len(msg.Payload))
	} else {
		msg.Ack()
	}
	f.waitConfirmed(1)
	if stats := sub.Stats(); stats.TooLarge != 1 || stats.Stream.Connects != 1 {
		t.Errorf("TooLarge = %d, Connects = %d; want 1 and 1", stats.TooLarge, stats.Stream.Connects)
	}
}

func TestStreamIsRetriedOnServerErrorsAndTokenExpiry(t *testing.T) {
	synctest.Test(t, testStreamIsRetriedOnServerErrorsAndTokenExpiry)
}

func testStreamIsRetriedOnServerErrorsAndTokenExpiry(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	for _, status := range []int{500, 502, 503, 504, 429, 408, 401, 401} {
		f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: status, Times: 1})
	}
	f.server.Inject(gatewaytest.OpToken, gatewaytest.Fault{Status: 503, Times: 2})
	_, messages := f.receive(f.config())
	f.sendN(1)
	f.ackN(messages, 1)
	f.server.ExpireTokens()
	f.server.CutStreams()
	f.sendN(1)
	f.ackN(messages, 1)
	f.waitConfirmed(2)
}

func TestStalledKeyGivesWayToOthers(t *testing.T) {
	synctest.Test(t, testStalledKeyGivesWayToOthers)
}

func testStalledKeyGivesWayToOthers(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	cfg := f.config()
	cfg.MaxInFlight = 20
	sub, messages := f.receive(cfg)
	f.sendN(100, f.receiver) // its first message will be nacked
	f.sendN(100, f.receiver2)
	var got []int
	healed := make(chan struct{})
	others := 0
	deadline := time.After(testkit.Patience)
	for len(got) < 100 || others < 100 {
		select {
		case msg := <-messages:
			if msg.Metadata.Get(gateway.KeyReceivingEndpointID) == f.receiver2.ID {
				if others++; others == 100 {
					close(healed) // only now is the other key handled
				}
				msg.Ack()
				continue
			}
			select {
			case <-healed:
				n, _ := strconv.Atoi(string(msg.Payload))
				got = append(got, n)
				msg.Ack()
			default:
				msg.Nack()
			}
		case <-deadline:
			t.Fatalf("got %d of the stalled key and %d of the other, want 100 and 100; %+v", len(got), others, sub.Stats())
		}
	}
	if !slices.IsSorted(got) {
		t.Errorf("the stalled key came out of order: %v", got)
	}
	f.waitConfirmed(200)
}

// noTopics is a sink that takes no topic.
type noTopics struct{ message.Publisher }

func (noTopics) CheckTopic(string) error { return errors.New("no topic") }

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	for name, change := range map[string]func(*subscriber.Config){
		"Client":           func(c *subscriber.Config) { c.Client = nil },
		"EventTypes":       func(c *subscriber.Config) { c.EventTypes = []gateway.EventType{"NOPE"} },
		"MaxInFlight":      func(c *subscriber.Config) { c.MaxInFlight = -1 },
		"MaxInFlightBytes": func(c *subscriber.Config) { c.MaxInFlightBytes = -1 },
		"Nack":             func(c *subscriber.Config) { c.Nack = subscriber.Backoff{Initial: 2, Max: 1} },
		"Order":            func(c *subscriber.Config) { c.Order = 7 },
		"Payload.Mode":     func(c *subscriber.Config) { c.Payload.Mode = 9 },
		"ClaimCheck":       func(c *subscriber.Config) { c.Payload.Mode = subscriber.PayloadClaimCheck },
		"Confirm.MaxBatch": func(c *subscriber.Config) { c.Confirm.MaxBatch = -1 },
		"Payload.Retry":    func(c *subscriber.Config) { c.Payload.Retry = subscriber.Backoff{Initial: 2, Max: 1} },
		"MaxDownloads":     func(c *subscriber.Config) { c.Payload.MaxDownloads = -1 },
		"CloseTimeout":     func(c *subscriber.Config) { c.CloseTimeout = -1 },
		"Quarantine.Topic": func(c *subscriber.Config) {
			c.Quarantine = subscriber.QuarantineConfig{Publisher: noTopics{}, Topic: "dead/letters"}
		},
		"Confirm.MaxBacklog":    func(c *subscriber.Config) { c.Confirm.MaxBacklog = -1 },
		"Quarantine.Timeout":    func(c *subscriber.Config) { c.Quarantine.Timeout = -1 },
		"Quarantine.Remember":   func(c *subscriber.Config) { c.Quarantine.Remember = -1 },
		"Quarantine.Retry":      func(c *subscriber.Config) { c.Quarantine.Retry.Max = -1 },
		"Lease":                 func(c *subscriber.Config) { c.Lease = leasetest.NewMemory(0).Lease() },
		"Unmatched must be one": func(c *subscriber.Config) { c.Unmatched = 2 },
		"Unmatched needs":       func(c *subscriber.Config) { c.Unmatched = subscriber.UnmatchedQuarantine },
	} {
		cfg := f.config()
		change(&cfg)
		if _, err := subscriber.New(cfg, nil); err == nil || !bytes.Contains([]byte(err.Error()), []byte(name)) {
			t.Errorf("%s: error = %v, want one that names it", name, err)
		}
	}
	sub := f.subscriber(f.config())
	if _, err := sub.Subscribe(t.Context(), ""); err == nil {
		t.Error("an empty topic was accepted")
	}
	f.close(sub)
	if _, err := sub.Subscribe(t.Context(), subscriber.AllData); !errors.Is(err, subscriber.ErrClosed) {
		t.Errorf("Subscribe after Close = %v, want ErrClosed", err)
	}
}

// One message for two endpoints has one message ID and two UUIDs, the same on every delivery.
func TestUUIDNamesTheDelivery(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	_, messages := f.receive(f.config())
	ids := f.sendRequest(gatewaytest.SendRequest{
		From: f.sender.ID, MessageType: typeJSON, Payload: []byte("{}"), Recipients: []string{f.receiver.ID, f.receiver2.ID},
	})
	if len(ids) != 1 {
		t.Fatalf("message IDs %v", ids)
	}
	byEndpoint := make(map[string]string)
	endpoints := make(map[string]string)
	for range 6 { // each twice nacked
		msg := f.next(messages)
		endpoint := msg.Metadata[gateway.KeyReceivingEndpointID]
		if was, again := byEndpoint[endpoint]; again && was != msg.UUID {
			t.Errorf("UUID of %s changed from %s to %s", endpoint, was, msg.UUID)
		}
		byEndpoint[endpoint], endpoints[msg.UUID] = msg.UUID, endpoint
		msg.Nack()
	}
	if len(byEndpoint) != 2 || len(endpoints) != 2 {
		t.Errorf("UUIDs by endpoint: %v", byEndpoint)
	}
}
