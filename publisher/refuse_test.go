package publisher_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
)

// Everything that is found before sending names key and rule, keeps the value
// to itself, and keeps the whole call from being sent.
func TestProblemsAreFoundBeforeSending(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.ClaimCheck = claimCheckFunc(func(context.Context, string) (io.ReadCloser, int64, error) {
		return io.NopCloser(strings.NewReader("")), -1, nil // it knows no size
	})
	pub := f.publisher(cfg)
	bare := f.publisher(publisher.Config{Client: f.client})
	enveloped := f.publisher(publisher.Config{Client: f.client, TenantID: f.server.Tenant(), EndpointID: f.sender.ID, Marshaler: publisher.EnvelopeMarshaler{}})
	long := strings.Repeat("x", 10_000)
	claim := claimed("r")
	for name, test := range map[string]struct {
		pub      *publisher.Publisher
		topic    string
		payload  string
		metadata []string
		key      string
		rule     string
	}{
		"no tenant":                  {pub: bare, metadata: []string{gateway.KeyEndpointID, someID}, key: gateway.KeyTenantID, rule: "required"},
		"tenant":                     {metadata: []string{gateway.KeyTenantID, "secret"}, key: gateway.KeyTenantID, rule: "UUID"},
		"no sender":                  {pub: bare, metadata: []string{gateway.KeyTenantID, someID}, key: gateway.KeyEndpointID, rule: "required"},
		"sender":                     {metadata: []string{gateway.KeyEndpointID, "secret"}, key: gateway.KeyEndpointID, rule: "UUID"},
		"no message type":            {topic: "-", key: gateway.KeyMessageType, rule: "required"},
		"message type from topic":    {topic: long, key: gateway.KeyMessageType, rule: "at most 100 characters"},
		"another message type":       {metadata: []string{gateway.KeyMessageType, "secret"}, key: gateway.KeyMessageType, rule: "one type"},
		"message type":               {topic: "-", metadata: []string{gateway.KeyMessageType, "a\r\nX-Injected: 1"}, key: gateway.KeyMessageType, rule: "control characters"},
		"recipient":                  {metadata: []string{gateway.KeyDirectRecipients, f.other.ID + ",secret"}, key: gateway.KeyDirectRecipients, rule: "UUID"},
		"recipient injects":          {metadata: []string{gateway.KeyDirectRecipients, f.other.ID + "\r\nX-Injected: 1"}, key: gateway.KeyDirectRecipients, rule: "UUID"},
		"no recipients":              {metadata: []string{gateway.KeyDirectRecipients, ""}, key: gateway.KeyDirectRecipients, rule: "at least one"},
		"is publish":                 {metadata: []string{gateway.KeyIsPublish, "secret"}, key: gateway.KeyIsPublish, rule: "true or false"},
		"to nobody":                  {metadata: []string{gateway.KeyIsPublish, "false"}, key: gateway.KeyIsPublish, rule: "nobody could receive"},
		"context ID":                 {metadata: []string{gateway.KeyContextID, "secret"}, key: gateway.KeyContextID, rule: "UUID"},
		"timestamp":                  {metadata: []string{gateway.KeySentTimestamp, "secret"}, key: gateway.KeySentTimestamp, rule: "ISO 8601"},
		"timestamp injects":          {metadata: []string{gateway.KeySentTimestamp, "2026-05-04T03:02:01Z\r\nX-Injected: 1"}, key: gateway.KeySentTimestamp, rule: "ISO 8601"},
		"year":                       {metadata: []string{gateway.KeySentTimestamp, "9999-12-31T23:59:59-10:00"}, key: gateway.KeySentTimestamp, rule: "years"},
		"teamset CR":                 {metadata: []string{gateway.KeyTeamsetContextID, "a\rb"}, key: gateway.KeyTeamsetContextID, rule: "control characters"},
		"filename LF":                {metadata: []string{gateway.KeyFilename, "a\nX-Injected: 1"}, key: gateway.KeyFilename, rule: "control characters"},
		"filename of 10 kB":          {metadata: []string{gateway.KeyFilename, long}, key: gateway.KeyFilename, rule: "at most 100 characters"},
		"filename with outer spaces": {metadata: []string{gateway.KeyFilename, " secret"}, key: gateway.KeyFilename, rule: "space"},
		"payload mode":               {payload: "-", metadata: []string{gateway.KeyPayloadMode, "secret"}, key: gateway.KeyPayloadMode, rule: "must be"},
		"two payloads":               {metadata: claim, key: gateway.KeyPayloadMode, rule: "carries its payload"},
		"marshaler and claim check":  {pub: enveloped, payload: "-", metadata: claim, key: gateway.KeyPayloadMode, rule: "Marshaler"},
		"no claim check":             {pub: f.publisher(f.config()), payload: "-", metadata: claim, key: gateway.KeyPayloadMode, rule: "without a claim check"},
		"lazy from elsewhere":        {payload: "-", metadata: []string{gateway.KeyPayloadMode, gateway.PayloadModeLazy}, key: gateway.KeyPayloadMode, rule: "still at the service"},
		"no reference":               {payload: "-", metadata: claim[:2], key: gateway.KeyPayloadReference, rule: "required"},
		"size":                       {payload: "-", metadata: append([]string{gateway.KeyPayloadSize, "secret"}, claim...), key: gateway.KeyPayloadSize, rule: "bytes"},
		"size above the limit":       {payload: "-", metadata: append([]string{gateway.KeyPayloadSize, "268435457"}, claim...), key: gateway.KeyPayloadSize, rule: "at most 268435456 bytes"},
		"size unavailable":           {payload: "-", metadata: claim, key: gateway.KeyPayloadSize, rule: "required"},
		"digest":                     {payload: "-", metadata: append([]string{gateway.KeyPayloadSize, "1", gateway.KeyPayloadSHA256, "secret"}, claim...), key: gateway.KeyPayloadSHA256, rule: "SHA-256"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.pub == nil {
				test.pub = pub
			}
			topic := typeJSON
			switch test.topic {
			case "":
			case "-":
				topic = ""
			default:
				topic = test.topic
			}
			bad := newMessage("payload", test.metadata...)
			if test.payload == "-" {
				bad.Payload = nil
			}
			good := newMessage("payload", gateway.KeyTenantID, f.server.Tenant(), gateway.KeyEndpointID, f.sender.ID)
			if topic == "" {
				good.Metadata.Set(gateway.KeyMessageType, typeJSON)
			}
			messages := []*message.Message{good, bad, good.Copy()}
			if topic == long {
				messages[0] = bad // none has another
			}
			err := test.pub.Publish(topic, messages...)
			testkit.ErrorIs(t, err, gateway.ErrInvalid)
			e := publishError(t, err)
			if want := slices.Index(messages, bad); e.Index != want || e.UUID != bad.UUID || len(e.Outcomes) != 3 {
				t.Errorf("message %d (%s), %v; want the bad one", e.Index, e.UUID, e.Outcomes)
			}
			for i, o := range e.Outcomes {
				if o != publisher.NotSent {
					t.Errorf("message %d was %v", i, o)
				}
			}
			var named *publisher.MetadataError
			if !errors.As(err, &named) || named.Key != test.key {
				t.Fatalf("%v does not name %s", err, test.key)
			}
			if text := err.Error(); !strings.Contains(text, test.key) || !strings.Contains(text, test.rule) {
				t.Errorf("%q does not tell key %s and rule %q", text, test.key, test.rule)
			} else if strings.Contains(text, "secret") || strings.Contains(text, "X-Injected") || strings.Contains(text, "xxx") {
				t.Errorf("%q tells the value", text)
			}
		})
	}
	if got := f.server.Stats(gatewaytest.OpSendMessage).Requests; got != 0 {
		t.Errorf("%d requests were made, want none", got)
	}
}

func TestNilMessageIsRefused(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	err := f.publisher(f.config()).Publish(typeJSON, newMessage("payload"), nil)
	if e := publishError(t, err); !errors.Is(err, gateway.ErrInvalid) || e.Index != 1 || f.entries() > 0 {
		t.Errorf("got %v", err)
	}
}

func TestConfigErrors(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	_, err := publisher.New(publisher.Config{
		Client: f.client, TenantID: "x", EndpointID: "x", DirectRecipients: []string{someID, "x"}, TeamsetContextID: "a\nb",
		MaxRequests: -1, CloseTimeout: -1, PartialDelivery: 7,
	}, nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"TenantID", "EndpointID", "DirectRecipients[1]", "TeamsetContextID", "MaxRequests", "CloseTimeout", "PartialDelivery"} {
		testkit.Contains(t, err.Error(), field)
	}
	if _, err := publisher.New(publisher.Config{}, nil); err == nil || !strings.Contains(err.Error(), "Client") {
		t.Errorf("without a client: %v", err)
	}
}
