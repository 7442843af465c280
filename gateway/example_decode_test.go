package gateway_test

import (
	"errors"
	"fmt"

	"github.com/agrimill/agrimill/gateway"
)

func ExampleDecodeEvent() {
	data := []byte(`{
		"event_type": "MESSAGE_RECEIVED",
		"id": "2a0b8a2e-6f0e-4b39-a1ea-0123456789ab",
		"app_message_id": "load 17",
		"message_type": "img:jpeg",
		"sent_at": "2026-11-20T12:34:56Z",
		"payload": "aGVsbG8=",
		"receiving_endpoint_id": "7d4b2f60-1111-4222-8333-444455556666"
	}`)
	event, err := gateway.DecodeEvent("MESSAGE_RECEIVED", data)
	if err != nil {
		fmt.Println(err)
		return
	}
	switch e := event.(type) {
	case *gateway.MessageReceived:
		fmt.Printf("%s of %s: %s\n", e.MessageType, e.SentAt, e.Payload)
	case *gateway.UnknownEvent:
		fmt.Println("an event of a type to come:", e.EventType)
	}
	// Output:
	// img:jpeg of 2026-11-20 12:34:56 +0000 UTC: hello
}

// The error says what is wrong with an event without quoting it, and the IDs are there
// when they could be read, so that the event can be put aside and confirmed.
func ExampleDecodeError() {
	data := []byte(`{
		"event_type": "MESSAGE_RECEIVED",
		"id": "2a0b8a2e-6f0e-4b39-a1ea-0123456789ab",
		"app_message_id": "load 17",
		"message_type": "img:jpeg",
		"sent_at": "yesterday",
		"payload": "aGVsbG8=",
		"receiving_endpoint_id": "7d4b2f60-1111-4222-8333-444455556666"
	}`)
	_, err := gateway.DecodeEvent("MESSAGE_RECEIVED", data)
	fmt.Println(err)
	var bad *gateway.DecodeError
	if errors.As(err, &bad) {
		fmt.Println("to confirm:", bad.MessageIDs, "at", bad.EndpointID)
	}
	// Output:
	// gateway: decode MESSAGE_RECEIVED: sent_at is not an ISO 8601 date-time
	// to confirm: [2a0b8a2e-6f0e-4b39-a1ea-0123456789ab] at 7d4b2f60-1111-4222-8333-444455556666
}
