package publisher_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks"
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
	testkit.NoError(t, f.publisher(f.config()).Publish(typeJSON, messages...))
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

// What became of each of three messages when the second one fails, or the first, and of which class the
// error is; the gateway's own error is found in it.
func TestOutcomes(t *testing.T) {
	const sent, unknown, notSent = publisher.Sent, publisher.Unknown, publisher.NotSent
	all := []publisher.Outcome{sent, sent, sent}
	second, refused, none := []publisher.Outcome{sent, unknown, notSent}, []publisher.Outcome{sent, notSent, notSent}, []publisher.Outcome{notSent, notSent, notSent}
	page, html := []byte("<html>default backend</html>"), "text/html"
	errMarshal := errors.New("unmarshalable")
	for name, test := range map[string]struct {
		fault    gatewaytest.Fault
		payload  string   // of the second message
		metadata []string // of the second message
		marshal  error
		outcomes []publisher.Outcome
		kind     error // of package sinks; nil: none
		cause    error
		requests int
	}{
		"400":                {fault: gatewaytest.Fault{Status: 400}, outcomes: refused, kind: sinks.ErrRejected, cause: gateway.ErrBadRequest, requests: 2},
		"403":                {fault: gatewaytest.Fault{Status: 403}, outcomes: refused, kind: sinks.ErrRejected, cause: gateway.ErrForbidden, requests: 2},
		"403 for everybody":  {fault: gatewaytest.Fault{Status: 403}, outcomes: []publisher.Outcome{unknown, notSent, notSent}, kind: sinks.ErrUnavailable, cause: gateway.ErrForbidden, requests: 1},
		"404":                {fault: gatewaytest.Fault{Status: 404}, outcomes: second, kind: sinks.ErrUnavailable, cause: gateway.ErrIntermediary, requests: 6},
		"400 as a page":      {fault: gatewaytest.Fault{Status: 400, Body: page, ContentType: html}, outcomes: second, kind: sinks.ErrUnavailable, cause: gateway.ErrIntermediary, requests: 6},
		"413":                {fault: gatewaytest.Fault{Status: 413}, outcomes: refused, kind: sinks.ErrRejected, cause: gateway.ErrTooLarge, requests: 2},
		"401":                {fault: gatewaytest.Fault{Status: 401}, outcomes: refused, kind: sinks.ErrUnavailable, cause: gateway.ErrUnauthorized, requests: 3},
		"429":                {fault: gatewaytest.Fault{Status: 429}, outcomes: second, kind: sinks.ErrUnavailable, cause: gateway.ErrRateLimited, requests: 6},
		"500":                {fault: gatewaytest.Fault{Status: 500}, outcomes: second, kind: sinks.ErrUnavailable, cause: gateway.ErrUnavailable, requests: 6},
		"refused connection": {fault: gatewaytest.Fault{Refuse: true}, outcomes: second, kind: sinks.ErrUnavailable, cause: gateway.ErrUnavailable, requests: 6},
		"a page, twice":      {fault: gatewaytest.Fault{Status: 200, Body: page, ContentType: html, Times: 2}, outcomes: all, requests: 5},
		"answer lost, twice": {fault: gatewaytest.Fault{DropAnswer: true, Times: 2}, outcomes: all, requests: 5},
		"nobody reachable":   {metadata: []string{gateway.KeyDirectRecipients, someID}, outcomes: refused, kind: sinks.ErrRejected, cause: gateway.ErrNoRecipients, requests: 2},
		"some reachable": {
			metadata: []string{gateway.KeyDirectRecipients, someID + ",other"}, kind: sinks.ErrRejected, cause: gateway.ErrPartialDelivery, requests: 2,
			outcomes: []publisher.Outcome{sent, publisher.PartiallyDelivered, notSent},
		},
		"invalid":              {metadata: []string{gateway.KeyTenantID, "x"}, outcomes: none, kind: sinks.ErrRejected, cause: gateway.ErrInvalid},
		"too large to send":    {payload: strings.Repeat("x", 1001), outcomes: none, kind: sinks.ErrRejected, cause: gateway.ErrTooLarge},
		"no marshaling":        {payload: "unmarshalable", marshal: errMarshal, outcomes: none, kind: sinks.ErrRejected, cause: errMarshal},
		"expired":              {metadata: claimed("expired"), outcomes: none, kind: sinks.ErrUnavailable, cause: gateway.ErrPayloadExpired},
		"claim check gives up": {metadata: claimed("slow"), outcomes: none, kind: sinks.ErrUnavailable, cause: sinks.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			client := f.server.ClientConfig()
			client.MaxPayloadSize, client.RateLimit = 1000, gateway.RateLimitConfig{MinRate: 1000, Pause: time.Millisecond}
			cfg := f.config()
			cfg.Client = f.newClient(client)
			cfg.ClaimCheck = claimCheckFunc(func(_ context.Context, reference string) (io.ReadCloser, int64, error) {
				if reference == "slow" { // its own time is over, not that of the message
					return nil, 0, context.DeadlineExceeded
				}
				return nil, 0, gateway.ErrPayloadExpired
			})
			if test.marshal != nil {
				cfg.Marshaler = marshalerFunc(func(_ string, msg *message.Message) ([]byte, error) {
					if string(msg.Payload) == test.payload {
						return nil, test.marshal
					}
					return msg.Payload, nil
				})
			}
			index := 1
			if test.outcomes[0] == unknown {
				index = 0
			}
			if test.fault.Status != 0 || test.fault.Refuse || test.fault.DropAnswer {
				test.fault.Skip = index
				f.server.Inject(gatewaytest.OpSendMessage, test.fault)
			}
			messages := []*message.Message{newMessage("1"), newMessage(test.payload, test.metadata...), newMessage("3")}
			if list, ok := messages[1].Metadata[gateway.KeyDirectRecipients]; ok {
				messages[1].Metadata.Set(gateway.KeyDirectRecipients, strings.Replace(list, "other", f.other.ID, 1))
			}
			err := f.publisher(cfg).Publish(typeJSON, messages...)
			if got := f.server.Stats(gatewaytest.OpSendMessage).Requests; got != test.requests {
				t.Errorf("%d requests, want %d", got, test.requests)
			}
			if test.kind == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var typed *sinks.Error
			if !errors.As(err, &typed) || typed.Kind != test.kind || typed.Sink != "gateway" || typed.Topic != typeJSON || !errors.Is(err, test.cause) {
				t.Fatalf("got %v, want kind %v for %v", err, test.kind, test.cause)
			}
			e := publishError(t, err)
			if !slices.Equal(e.Outcomes, test.outcomes) || e.Index != index || e.UUID != messages[index].UUID {
				t.Errorf("message %d (%s), %v; want %d, %v", e.Index, e.UUID, e.Outcomes, index, test.outcomes)
			}
			var answer *gateway.Error
			if test.requests > 0 && !errors.As(err, &answer) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %#v", err)
			}
			if want := fmt.Sprintf("%d of 3", index+1); !strings.Contains(err.Error(), messages[index].UUID) || !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not name the message", err)
			}
		})
	}
}

// The error names the recipients, of many the first, and says so of what is published.
func TestErrorSaysToWhom(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	many := make([]string, 5)
	for i := range many {
		many[i] = uuid.NewString()
	}
	for recipients, want := range map[string]string{
		"":                       " to the subscribers)",
		many[0]:                  " to " + many[0] + ")",
		strings.Join(many, ","):  " to " + strings.Join(many[:3], ", ") + ", 2 other endpoints)",
		many[0] + "," + "secret": "1 of 1, " + typeJSON + ")", // it broke a rule
	} {
		msg := newMessage("1")
		if recipients != "" {
			msg.Metadata.Set(gateway.KeyDirectRecipients, recipients)
		}
		pub := f.publisher(f.config())
		for how, publish := range map[string]func() error{
			"Publish": func() error { return pub.Publish(typeJSON, msg) },
			"PublishAsync": func() error {
				publication, err := pub.PublishAsync(typeJSON, msg)
				if err == nil {
					_, err = publication.Wait(t.Context())
				}
				return err
			},
		} {
			f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 400, Times: 1})
			if err := publish(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not say %q", how, err, want)
			}
		}
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
				want, index, arrived = []publisher.Outcome{publisher.PartiallyDelivered, publisher.Sent, publisher.NotSent}, 2, 2
			}
			if !slices.Equal(e.Outcomes, want) || e.Index != index || f.entries() != arrived {
				t.Errorf("message %d, %v, %d arrived; want %d, %v, %d", e.Index, e.Outcomes, f.entries(), index, want, arrived)
			}
			if mode == publisher.PartialDeliveryIsSent {
				testkit.NoError(t, pub.Publish(typeJSON, first))
			}
		})
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
	testkit.NoError(t, f.publisher(cfg).Publish(typeJSON, msg))
	req := <-requests
	if len(req.Payload) != 32<<20 || &req.Payload[0] != &msg.Payload[0] {
		t.Error("the client got a copy of the payload")
	}
	if got := f.server.Ledger()[0].PayloadSHA256; got != sha256.Sum256(msg.Payload) {
		t.Error("the payload that arrived is not the one that was sent")
	}
}
