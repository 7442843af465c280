package publisher_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/publisher"
)

func TestOrderWithinACall(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	// The first attempt of every third request fails: a message that is
	// repeated must not be overtaken.
	n := 0
	f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 503, Match: func(*http.Request) bool {
		n++ // requests of one call come one at a time
		return n%3 == 0
	}})
	var messages []*message.Message
	for i := range 20 {
		messages = append(messages, newMessage(fmt.Sprint(i)))
	}
	if err := f.publisher(f.config()).Publish(typeJSON, messages...); err != nil {
		t.Fatal(err)
	}
	entries := f.server.Ledger()
	if len(entries) != 20 {
		t.Fatalf("%d messages arrived, want 20", len(entries))
	}
	for i, e := range entries {
		if e.SHA256 != sha256.Sum256(messages[i].Payload) || e.ContextID != messages[i].UUID {
			t.Errorf("place %d has another message", i)
		}
	}
}

func TestNothingToPublish(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	if err := f.publisher(f.config()).Publish(typeJSON); err != nil {
		t.Error(err)
	}
}

func TestOutcomes(t *testing.T) {
	const (
		notSent = publisher.NotSent
		sent    = publisher.Sent
		partial = publisher.PartiallyDelivered
		failed  = publisher.Failed
	)
	all := []error{
		gateway.ErrInvalid, gateway.ErrNoRecipients, gateway.ErrPartialDelivery, gateway.ErrBadRequest, gateway.ErrUnauthorized,
		gateway.ErrForbidden, gateway.ErrNotFound, gateway.ErrTooLarge, gateway.ErrRateLimited, gateway.ErrUnavailable,
		gateway.ErrIntermediary,
	}
	page := []byte("<html>default backend</html>")
	for name, test := range map[string]struct {
		fault     gatewaytest.Fault
		recipient string
		outcomes  []publisher.Outcome
		matches   []error
		requests  int
	}{
		"400":              {fault: gatewaytest.Fault{Status: 400}, outcomes: []publisher.Outcome{sent, failed, notSent}, matches: []error{gateway.ErrBadRequest}, requests: 2},
		"403":              {fault: gatewaytest.Fault{Status: 403}, outcomes: []publisher.Outcome{sent, failed, notSent}, matches: []error{gateway.ErrForbidden}, requests: 2},
		"404":              {fault: gatewaytest.Fault{Status: 404}, outcomes: []publisher.Outcome{sent, failed, notSent}, matches: []error{gateway.ErrIntermediary, gateway.ErrUnavailable}, requests: 6},
		"400 as a page":    {fault: gatewaytest.Fault{Status: 400, Body: page, ContentType: "text/html"}, outcomes: []publisher.Outcome{sent, failed, notSent}, matches: []error{gateway.ErrIntermediary, gateway.ErrUnavailable}, requests: 6},
		"200 as a page":    {fault: gatewaytest.Fault{Status: 200, Body: page, ContentType: "text/html", Times: 2}, outcomes: nil, requests: 5},
		"413":              {fault: gatewaytest.Fault{Status: 413}, outcomes: []publisher.Outcome{sent, failed, notSent}, matches: []error{gateway.ErrTooLarge}, requests: 2},
		"401 for good":     {fault: gatewaytest.Fault{Status: 401}, outcomes: []publisher.Outcome{sent, failed, notSent}, matches: []error{gateway.ErrUnauthorized}, requests: 3},
		"429 for good":     {fault: gatewaytest.Fault{Status: 429}, outcomes: []publisher.Outcome{sent, failed, notSent}, matches: []error{gateway.ErrRateLimited}, requests: 6},
		"500 for good":     {fault: gatewaytest.Fault{Status: 500}, outcomes: []publisher.Outcome{sent, failed, notSent}, matches: []error{gateway.ErrUnavailable}, requests: 6},
		"refused for good": {fault: gatewaytest.Fault{Refuse: true}, outcomes: []publisher.Outcome{sent, failed, notSent}, matches: []error{gateway.ErrUnavailable}, requests: 6},
		"500 twice":        {fault: gatewaytest.Fault{Status: 500, Times: 2}, outcomes: nil, requests: 5},
		"429 twice":        {fault: gatewaytest.Fault{Status: 429, Times: 2}, outcomes: nil, requests: 5},
		"answer lost":      {fault: gatewaytest.Fault{DropAnswer: true, Times: 2}, outcomes: nil, requests: 5},
		"nobody reachable": {recipient: someID, outcomes: []publisher.Outcome{sent, failed, notSent}, matches: []error{gateway.ErrNoRecipients, gateway.ErrBadRequest}, requests: 2},
		"some reachable":   {recipient: "both", outcomes: []publisher.Outcome{sent, partial, notSent}, matches: []error{gateway.ErrPartialDelivery, gateway.ErrBadRequest}, requests: 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			client := f.server.ClientConfig()
			client.RateLimit = gateway.RateLimitConfig{MinRate: 1000, Pause: time.Millisecond}
			cfg := f.config()
			cfg.Client = f.newClient(client)
			if test.fault.Status != 0 || test.fault.Refuse || test.fault.DropAnswer {
				test.fault.Skip = 1
				f.server.Inject(gatewaytest.OpSendMessage, test.fault)
			}
			messages := []*message.Message{newMessage("1"), newMessage("2"), newMessage("3")}
			switch test.recipient {
			case "":
			case "both":
				messages[1].Metadata.Set(gateway.KeyDirectRecipients, someID+","+f.other.ID)
			default:
				messages[1].Metadata.Set(gateway.KeyDirectRecipients, test.recipient)
			}
			err := f.publisher(cfg).Publish(typeJSON, messages...)
			if got := f.server.Stats(gatewaytest.OpSendMessage).Requests; got != test.requests {
				t.Errorf("%d requests, want %d", got, test.requests)
			}
			if test.outcomes == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			e := publishError(t, err)
			if !slices.Equal(e.Outcomes, test.outcomes) || e.Index != 1 || e.UUID != messages[1].UUID {
				t.Errorf("message %d (%s), %v; want %v", e.Index, e.UUID, e.Outcomes, test.outcomes)
			}
			for _, sentinel := range all {
				if want := slices.Contains(test.matches, sentinel); errors.Is(err, sentinel) != want {
					t.Errorf("%v matches %v: %v", err, sentinel, !want)
				}
			}
			var answer *gateway.Error
			if !errors.As(err, &answer) {
				t.Errorf("%v has no *gateway.Error", err)
			}
			if !strings.Contains(err.Error(), messages[1].UUID) || !strings.Contains(err.Error(), "2 of 3") {
				t.Errorf("%q does not name the message", err)
			}
		})
	}
}

func TestPartialDelivery(t *testing.T) {
	for name, mode := range map[string]publisher.PartialDelivery{"is an error": publisher.PartialDeliveryIsError, "is sent": publisher.PartialDeliveryIsSent} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			var hooked []string
			cfg := f.config()
			cfg.PartialDelivery = mode
			cfg.OnPartialDelivery = func(msg *message.Message, err error) {
				if !errors.Is(err, gateway.ErrPartialDelivery) {
					t.Errorf("the hook got %v", err)
				}
				hooked = append(hooked, msg.UUID)
			}
			pub := f.publisher(cfg)
			first := newMessage("1", gateway.KeyDirectRecipients, f.other.ID+","+someID)
			second := newMessage("2")
			bad := newMessage("3", gateway.KeyDirectRecipients, someID)
			err := pub.Publish(typeJSON, first, second, bad)
			if !slices.Equal(hooked, []string{first.UUID}) {
				t.Errorf("the hook was called for %q, want the first message once", hooked)
			}
			e := publishError(t, err)
			want, index, arrived := []publisher.Outcome{publisher.PartiallyDelivered, publisher.NotSent, publisher.NotSent}, 0, 1
			if mode == publisher.PartialDeliveryIsSent {
				want, index, arrived = []publisher.Outcome{publisher.PartiallyDelivered, publisher.Sent, publisher.Failed}, 2, 2
			}
			if !slices.Equal(e.Outcomes, want) || e.Index != index || f.entries() != arrived {
				t.Errorf("message %d, %v, %d arrived; want %d, %v, %d", e.Index, e.Outcomes, f.entries(), index, want, arrived)
			}
			if mode == publisher.PartialDeliveryIsSent {
				if err := pub.Publish(typeJSON, first); err != nil {
					t.Errorf("alone: %v", err)
				}
			}
		})
	}
}

func TestEndOfTheMessagesContext(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	hang := f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Hang: true})
	defer hang.Lift()
	pub := f.publisher(f.config())

	ctx, cancel := context.WithCancel(t.Context())
	msg := newMessage("payload")
	msg.SetContext(ctx)
	done := make(chan error, 1)
	go func() { done <- pub.Publish(typeJSON, msg, newMessage("next")) }()
	f.waitRequests(1)
	cancel()
	err := wait(t, "the end of Publish", done)
	if err != context.Canceled {
		t.Errorf("canceled: %v", err)
	}

	// Already over: nothing is sent, although there is a free place.
	for range 20 {
		err = pub.Publish(typeJSON, msg)
		if err != context.Canceled {
			t.Errorf("canceled before: %v", err)
		}
	}
	if got := f.server.Stats(gatewaytest.OpSendMessage).Requests; got != 1 {
		t.Errorf("%d requests, want one", got)
	}
}

func TestRetriesEndWithTheMessagesContext(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	client := f.server.ClientConfig()
	client.Retry.MaxAttempts = gateway.UnlimitedAttempts
	cfg := f.config()
	cfg.Client = f.newClient(client)
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 503, Match: func(*http.Request) bool {
		if n++; n == 7 { // more than the default attempts
			cancel()
		}
		return true
	}})
	msg := newMessage("payload")
	msg.SetContext(ctx)
	if err := f.publisher(cfg).Publish(typeJSON, msg); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestEmptyPayload(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	pub := f.publisher(f.config())
	none := newMessage("")
	none.Payload = nil
	if err := pub.Publish(typeJSON, newMessage(""), none); err != nil {
		t.Fatal(err)
	}
	if entries := f.server.Ledger(); len(entries) != 2 || entries[0].PayloadSize != 0 || entries[1].PayloadSize != 0 {
		t.Errorf("arrived: %+v", entries)
	}
}

// recordingClient sees what the publisher hands to the client.
type recordingClient struct {
	publisher.Client
	requests chan gateway.SendMessageRequest
}

func (c recordingClient) SendMessage(ctx context.Context, req gateway.SendMessageRequest) error {
	c.requests <- req
	return c.Client.SendMessage(ctx, req)
}

func TestPayloadIsNotCopied(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	requests := make(chan gateway.SendMessageRequest, 1)
	cfg.Client = recordingClient{f.client, requests}
	msg := newMessage("")
	msg.Payload = bytes.Repeat([]byte("payload "), 4<<20)
	if err := f.publisher(cfg).Publish(typeJSON, msg); err != nil {
		t.Fatal(err)
	}
	req := <-requests
	if len(req.Payload) != 32<<20 || &req.Payload[0] != &msg.Payload[0] {
		t.Error("the client got a copy of the payload")
	}
	if got := f.server.Ledger()[0].PayloadSHA256; got != sha256.Sum256(msg.Payload) {
		t.Error("the payload that arrived is not the one that was sent")
	}
}
