package gateway_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// Whatever comes over the stream, the event after it arrives.
func TestHostileEventsDoNotStopTheStream(t *testing.T) {
	const limit = 1 << 20
	s := gatewaytest.New(t, gatewaytest.Config{KeepAlive: gatewaytest.NoKeepAlive})
	cfg := s.ClientConfig()
	cfg.MaxEventSize = limit
	client := newClient(t, cfg)
	ctx := testContext(t)
	stream, err := client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	if err := s.WaitStreams(ctx, 1); err != nil {
		t.Fatal(err)
	}

	const (
		malformed = "malformed"
		unknown   = "unknown"
		tooLarge  = "too large"
		nothing   = "nothing"
		message   = "message"
	)
	good := func(more string) string {
		return `{"event_type":"MESSAGE_RECEIVED","id":"` + idOne + `","receiving_endpoint_id":"` + idTwo +
			`","app_message_id":"a","message_type":"t","sent_at":"2026-11-20T12:00:00Z"` + more + `}`
	}
	named := func(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }
	received := func(data string) string { return named("MESSAGE_RECEIVED", data) }
	for i, tt := range []struct{ raw, want string }{
		{received(good(`,"payload":"aGVsbG8="`)), message},
		{received(good(`,"payload":"aGVsbG8=","brand_new":{"a":[1,{"b":null}]}`)), message},
		{strings.ReplaceAll(received(good(`,"payload":""`)), "\n", "\r\n"), message},
		{"data: " + good(`,"payload":""`) + "\n\n", message}, // event_type decides
		{received(good("")), malformed},
		{received(good(`,"payload":"aGVsbG8=","payload_uri":"https://h/"`)), malformed},
		{received(good(`,"payload":"","payload_uri":"https://h/"`)), message},
		{named("MESSAGE_RECEIVED ", good(`,"payload":""`)), message},
		{received(good(`,"payload":"?"`)), malformed},
		{received(good(`,"payload":"","id":7`)), malformed},
		{received("{"), malformed},
		{received("\x00"), malformed},
		{received(`"\ud800"`), malformed},
		{received(strings.Repeat("[", 500_000)), malformed},
		{received(good(`,"payload":"","deep":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000))), malformed},
		{named("FILE_RECEIVED", good(`,"payload":""`)), malformed},
		{named("SOMETHING_NEW", `{"event_type":"SOMETHING_NEW"}`), unknown},
		{named("SOMETHING_NEW", "not JSON"), unknown},
		{received(good(`,"payload":"` + strings.Repeat("AAAA", limit/4-100) + `"`)), message},
		{received(good(`,"payload":"` + strings.Repeat("AAAA", limit/2) + `"`)), tooLarge},
		{": " + strings.Repeat("comment", limit) + "\n\n", nothing},
		{"retry: 17\n\nid: 4\n\nevent: no data\n\n\xEF\xBB\xBFdata: not the start of the stream\n\n", nothing},
	} {
		marker := fmt.Sprintf("MARKER_%d", i)
		if n := s.EmitRaw(s.Application(), []byte(tt.raw+named(marker, "{}"))); n != 1 {
			t.Fatalf("emitted on %d streams", n)
		}
		got := nothing
		for {
			raw, err := stream.Next()
			if errors.Is(err, gateway.ErrEventTooLarge) {
				got = tooLarge
				continue
			}
			if err != nil {
				t.Fatalf("%d: the stream has ended: %v", i, err)
			}
			if raw.Type == gateway.EventType(marker) {
				break
			}
			event, err := gateway.DecodeEvent(raw.Type, raw.Data)
			var bad *gateway.DecodeError
			switch event.(type) {
			case *gateway.MessageReceived:
				got = message
			case *gateway.UnknownEvent:
				got = unknown
			case nil:
				if !errors.As(err, &bad) {
					t.Fatalf("%d: got error %v, want a DecodeError", i, err)
				}
				got = malformed
			}
		}
		if got != tt.want {
			t.Errorf("%d: got %s, want %s: %.200q", i, got, tt.want, tt.raw)
		}
	}
}
