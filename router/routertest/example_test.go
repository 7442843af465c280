package routertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/routertest"
)

// A message goes in, and what the route makes of it comes out.
func ExampleDeliver() {
	route := router.Route{
		Filter: func(msg *message.Message) (bool, error) { return len(msg.Payload) > 0, nil },
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			if string(msg.Payload) == "?" {
				return nil, router.Permanent(errors.New("cannot be read"))
			}
			msg.Payload = []byte("a note of " + string(msg.Payload))
			return []*message.Message{msg}, nil
		},
		ToTopic: "notes.{tenant}",
	}
	var in []*message.Message
	for _, payload := range []string{"a field", "?", ""} {
		msg := message.NewMessage("1", []byte(payload))
		msg.Metadata.Set(gateway.KeyTenantID, "north")
		in = append(in, msg)
	}
	got, err := routertest.Deliver(context.Background(), router.Config{}, route, in...)
	fmt.Println(err, got.Published[0].Topic, string(got.Published[0].Message.Payload))
	fmt.Println(got.Poisoned[0].Message.Metadata.Get(router.KeyPoisonReason), got.Health.Filtered)
	// Output:
	// <nil> notes.north a note of a field
	// cannot be read 1
}

// In a bubble an outage of three hours is over at once.
func ExampleDeliver_outage() {
	test := func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			up := time.Now().Add(3 * time.Hour)
			got, err := routertest.Deliver(t.Context(), router.Config{}, router.Route{
				Transform: func(msg *message.Message) ([]*message.Message, error) {
					if time.Now().Before(up) {
						return nil, router.Outage(errors.New("the database is away"))
					}
					return []*message.Message{msg}, nil
				},
			}, message.NewMessage("1", nil))
			if err != nil || len(got.Published) != 1 || len(got.Poisoned) != 0 || time.Now().Before(up) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	_ = test
}
