package publisher_test

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	someTime = "2026-05-04T03:02:01.000000009Z"
	someID   = "7d9f4a9e-4d5e-4b6e-9f39-111111111111"
)

func TestEveryKeyBecomesItsHeader(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	pub := f.publisher(publisher.Config{
		Client: f.client, TenantID: someID, EndpointID: someID, DirectRecipients: []string{someID}, TeamsetContextID: "default",
	})
	// The metadata wins over the defaults of the configuration.
	msg := newMessage("payload",
		gateway.KeyTenantID, f.server.Tenant(),
		gateway.KeyEndpointID, f.sender.ID,
		gateway.KeyMessageType, typeJSON,
		gateway.KeyDirectRecipients, " "+f.other.ID+" ,, "+f.receiver.ID,
		gateway.KeyIsPublish, "true",
		gateway.KeyContextID, someID,
		gateway.KeySentTimestamp, "2026-05-04T05:02:01.000000009+02:00",
		gateway.KeyTeamsetContextID, "Gespann 7",
		gateway.KeyFilename, "Äcker — 農場.zip",
		"free", "metadata", "X-Router-Unknown", "value", "Authorization", "Bearer mine", gateway.KeyDedupID, "dedup",
		gateway.KeyEventType, "MESSAGE_RECEIVED", gateway.KeyMessageID, "m", gateway.KeyReceivingEndpointID, "r", gateway.KeyPayloadSize, "99",
	)
	testkit.NoError(t, pub.Publish(typeJSON, msg))
	want := map[string]string{
		gateway.KeyTenantID:         f.server.Tenant(),
		gateway.KeyEndpointID:       f.sender.ID,
		gateway.KeyMessageType:      typeJSON,
		gateway.KeyDirectRecipients: f.other.ID + "," + f.receiver.ID,
		gateway.KeyIsPublish:        "true",
		gateway.KeyContextID:        pub.ContextID(typeJSON, msg), // not the received one
		gateway.KeySentTimestamp:    someTime,
		gateway.KeyTeamsetContextID: "Gespann 7",
		gateway.KeyFilename:         "Äcker — 農場.zip",
	}
	if want[gateway.KeyContextID] == someID {
		t.Error("the received context ID is sent")
	}
	if got := f.sent(); !maps.Equal(got, want) {
		t.Errorf("headers\n%v, want\n%v", got, want)
	}
	h := f.headers()[0]
	if h.Get("Free") != "" || strings.Contains(h.Get("Authorization"), "mine") {
		t.Errorf("free metadata became headers: %v", h)
	}
	entries := f.server.Ledger()
	if len(entries) != 2 || entries[0].Filename != "Äcker — 農場.zip" || entries[0].ContextID != want[gateway.KeyContextID] || entries[0].PayloadSize != 7 {
		t.Errorf("arrived: %+v", entries)
	}
}

func TestWhatIsAbsentComesFromTheConfiguration(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.DirectRecipients = []string{f.other.ID}
	cfg.TeamsetContextID = "team"
	pub := f.publisher(cfg)
	before := time.Now().Add(-time.Millisecond)
	msg := message.NewMessage(uuid.NewString(), []byte("payload"))
	msg.Metadata = nil // as a literal message has it
	testkit.NoError(t, pub.Publish(typeJSON, msg))
	got := f.sent()
	at, err := time.Parse(time.RFC3339Nano, got[gateway.KeySentTimestamp])
	if err != nil || at.Before(before) || at.After(time.Now()) {
		t.Errorf("sent timestamp %q (%v), want now", got[gateway.KeySentTimestamp], err)
	}
	delete(got, gateway.KeySentTimestamp)
	want := map[string]string{
		gateway.KeyTenantID:         f.server.Tenant(),
		gateway.KeyEndpointID:       f.sender.ID,
		gateway.KeyMessageType:      typeJSON,
		gateway.KeyDirectRecipients: f.other.ID,
		gateway.KeyIsPublish:        "false",
		gateway.KeyContextID:        msg.UUID,
		gateway.KeyTeamsetContextID: "team",
	}
	if !maps.Equal(got, want) {
		t.Errorf("headers\n%v, want\n%v", got, want)
	}
}

func TestIsPublishDefaults(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	pub := f.publisher(f.config())
	for name, test := range map[string]struct {
		metadata  []string
		want      string
		receivers int
	}{
		"nothing said":             {nil, "true", 1},
		"empty":                    {[]string{gateway.KeyIsPublish, ""}, "true", 1},
		"recipients":               {[]string{gateway.KeyDirectRecipients, f.other.ID}, "false", 1},
		"recipients and publish":   {[]string{gateway.KeyDirectRecipients, f.other.ID, gateway.KeyIsPublish, "TRUE"}, "true", 2},
		"recipients, not publish":  {[]string{gateway.KeyDirectRecipients, f.other.ID, gateway.KeyIsPublish, "false"}, "false", 1},
		"publish, said explicitly": {[]string{gateway.KeyIsPublish, "true"}, "true", 1},
	} {
		t.Run(name, func(t *testing.T) {
			before, requests := f.entries(), len(f.headers())
			testkit.NoError(t, pub.Publish(typeJSON, newMessage("payload", test.metadata...)))
			if got := f.headers()[requests].Get(gateway.KeyIsPublish); got != test.want {
				t.Errorf("is-publish %q, want %q", got, test.want)
			}
			if got := f.entries() - before; got != test.receivers {
				t.Errorf("%d receivers, want %d", got, test.receivers)
			}
		})
	}
}

func TestContextID(t *testing.T) {
	const legacy = "machine 7/job 12"
	isNew := func(string) bool { return true }
	is := func(want string) func(string) bool { return func(got string) bool { return got == want } }
	for name, test := range map[string]struct {
		uuid     string
		metadata []string
		want     func(string) bool
		// stable: publishing the message again sends the same.
		stable bool
	}{
		"metadata":               {uuid.NewString(), []string{gateway.KeyContextID, someID, gateway.KeyDedupID, "d"}, is(someID), true},
		"UUID":                   {someID, []string{gateway.KeyDedupID, "d"}, is(someID), true},
		"UUID in capitals":       {strings.ToUpper(someID), nil, is(someID), true},
		"UUID without hyphens":   {strings.ReplaceAll(someID, "-", ""), nil, is(someID), true},
		"zero UUID":              {uuid.Nil.String(), nil, isNew, false},
		"ULID":                   {"01ARZ3NDEKTSV4RRFFQ69G5FAV", nil, is("b9c09717-71f4-84a3-b874-2a69ab18952f"), true},
		"ULID and dedup ID":      {"01ARZ3NDEKTSV4RRFFQ69G5FAV", []string{gateway.KeyDedupID, "endpoint context digest"}, isNew, true},
		"no UUID, dedup ID":      {"", []string{gateway.KeyDedupID, "endpoint context digest"}, isNew, true},
		"no UUID":                {"", nil, isNew, false},
		"received from a legacy": {someID, []string{gateway.KeyContextID, legacy, gateway.KeyEventType, "MESSAGE_RECEIVED"}, isNew, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			pub := f.publisher(f.config())
			original := message.NewMessage(test.uuid, []byte("payload"))
			for i := 0; i < len(test.metadata); i += 2 {
				original.Metadata.Set(test.metadata[i], test.metadata[i+1])
			}
			// The service takes the message at the third attempt of the second call.
			f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Times: 7})
			if err := pub.Publish(typeJSON, original); err == nil {
				t.Fatal("published while the service was down")
			}
			for _, msg := range []*message.Message{original, original.Copy()} {
				testkit.NoError(t, pub.Publish(typeJSON, msg))
			}
			all := f.headers()
			if len(all) != 9 {
				t.Fatalf("%d requests, want 9", len(all))
			}
			id, at := all[0].Get(gateway.KeyContextID), all[0].Get(gateway.KeySentTimestamp)
			if uuid.Validate(id) != nil || !test.want(id) {
				t.Errorf("context ID %q", id)
			}
			for i, h := range all[:5] {
				if h.Get(gateway.KeyContextID) != id || h.Get(gateway.KeySentTimestamp) != at {
					t.Errorf("attempt %d: context ID %s and time %s, were %s and %s", i, h.Get(gateway.KeyContextID), h.Get(gateway.KeySentTimestamp), id, at)
				}
			}
			for i, h := range []http.Header{all[7], all[8]} {
				if got := h.Get(gateway.KeyContextID); (got == id) != test.stable {
					t.Errorf("call %d has context ID %s, the first had %s; want the same: %v", i+2, got, id, test.stable)
				}
			}
			if got := pub.ContextID(typeJSON, original); (got == id) != test.stable {
				t.Errorf("ContextID = %s, sent was %s", got, id)
			}
		})
	}
}

// One message may go to several topics, or through several publishers, at once.
func TestConcurrentPublishOfOneMessage(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.Marshaler = publisher.EnvelopeMarshaler{}
	pubs := []*publisher.Publisher{f.publisher(f.config()), f.publisher(cfg)}
	msg := newMessage("payload", "key", "value")
	var wg sync.WaitGroup
	for range 20 {
		for _, pub := range pubs {
			wg.Go(func() {
				if err := pub.Publish(typeJSON, msg); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if want := (message.Metadata{"key": "value"}); !maps.Equal(msg.Metadata, want) {
		t.Errorf("the caller's metadata became %v", msg.Metadata)
	}
	for _, h := range f.headers() {
		if got := h.Get(gateway.KeyContextID); got != msg.UUID {
			t.Errorf("context ID %s, want %s", got, msg.UUID)
		}
	}
}

// A Marshaler sees what is sent.
func TestMarshalerSeesContextIDAndTime(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	var seen message.Metadata
	cfg.Marshaler = marshalerFunc(func(_ string, msg *message.Message) ([]byte, error) {
		seen = msg.Metadata
		return msg.Payload, nil
	})
	testkit.NoError(t, f.publisher(cfg).Publish(typeJSON, message.NewMessage("no UUID", []byte("payload"))))
	sent := f.sent()
	for _, key := range []string{gateway.KeyContextID, gateway.KeySentTimestamp} {
		if seen.Get(key) == "" || seen.Get(key) != sent[key] {
			t.Errorf("the Marshaler saw %q as %s, sent was %q", seen.Get(key), key, sent[key])
		}
	}
}

func TestDerivedContextIDsDiffer(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	// Two topics under one dedup ID are two messages; so are two IDs.
	pub := f.publisher(f.config())
	seen := map[string]string{}
	for _, c := range [][2]string{{"a", "bc"}, {"ab", "c"}, {"a", "b"}, {"", "abc"}, {"z", "bc"}} {
		msg := message.NewMessage("", nil)
		msg.Metadata.Set(gateway.KeyDedupID, c[1])
		id := pub.ContextID(c[0], msg)
		if other, ok := seen[id]; ok {
			t.Errorf("%q has the context ID of %s", c, other)
		}
		seen[id] = c[0] + "/" + c[1]
		if parsed, err := uuid.Parse(id); err != nil || parsed.Version() != 8 {
			t.Errorf("%q is not a UUID of version 8", id)
		}
	}
}

// A message that a subscriber of this process delivered, in any mode, can be sent on without a claim check
// of the publisher's own.
func TestReceivedMessageIsSentOn(t *testing.T) {
	for name, payload := range map[string]subscriber.PayloadConfig{
		"in the message": {},
		"lazy":           {Mode: subscriber.PayloadLazy},
		"claim check":    {Mode: subscriber.PayloadClaimCheck, ClaimCheck: newStore(t), ClaimCheckFrom: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			sub := testkit.Must(subscriber.New(subscriber.Config{Client: f.client, Payload: payload, FileHold: subscriber.NoFileHold}, nil))(t)
			t.Cleanup(func() { _ = sub.Close() })
			messages := testkit.Must(sub.Subscribe(t.Context(), subscriber.AllData))(t)
			types := []string{typeJSON}
			relay := f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "relay", Send: types, Receive: types})
			cfg := f.config()
			cfg.TenantID, cfg.EndpointID = "", "" // the tenant came with the message
			pub := f.publisher(cfg)
			for _, contextID := range []string{someID, "a legacy sender's"} {
				_, err := f.server.Send(gatewaytest.SendRequest{
					From: f.sender.ID, Recipients: []string{relay.ID}, MessageType: typeJSON, ContextID: contextID, Filename: "a.zip", TeamsetContextID: "team",
					Payload: bytes.Repeat([]byte("payload "), 50_000), // of unknown size to the event
				})
				if err != nil {
					t.Fatal(err)
				}
				msg := testkit.Receive(t, "the message", messages)
				if (msg.Metadata.Get(gateway.KeyPayloadMode) == "") != (name == "in the message") {
					t.Fatalf("got %v", msg.Metadata)
				}
				msg.Metadata.Set(gateway.KeyEndpointID, relay.ID)
				msg.Metadata.Set(gateway.KeyDirectRecipients, f.other.ID)
				testkit.NoError(t, pub.Publish(msg.Metadata.Get(gateway.KeyMessageType), msg))
				msg.Ack()
				entries := f.server.Ledger()
				in, out := entries[len(entries)-2], entries[len(entries)-1]
				if out.SenderID != relay.ID || out.EndpointID != f.other.ID || out.MessageType != in.MessageType ||
					out.Filename != in.Filename || out.TeamsetContextID != in.TeamsetContextID || out.PayloadSHA256 != in.PayloadSHA256 {
					t.Errorf("sent on as %+v", out)
				}
				if out.ContextID == in.ContextID || uuid.Validate(out.ContextID) != nil {
					t.Errorf("context ID %q, came as %q", out.ContextID, in.ContextID)
				}
			}
		})
	}
}

// A context ID names a payload. That of a received message, which handlers copy with the rest
// of the metadata, names neither what a handler makes nor what is sent by or to others; what is
// sent is the same each time.
func TestReceivedContextIDIsNotSentWithSomethingElse(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	pub := f.publisher(f.config())
	enveloped := f.config()
	enveloped.Marshaler = publisher.EnvelopeMarshaler{}
	made := func(payload string, metadata ...string) *message.Message {
		msg := newMessage(payload, append([]string{
			gateway.KeyEventType, string(gateway.EventMessageReceived), gateway.KeyContextID, someID,
			gateway.KeyReceivingEndpointID, "r", gateway.KeyMessageID, "m", gateway.KeyMessageType, typeJSON,
		}, metadata...)...)
		return msg
	}
	seen := map[string]string{someID: "the received one"}
	for name, msg := range map[string]*message.Message{
		"one payload":      made("1"),
		"another payload":  made("2"),
		"no payload":       made(""),
		"another sender":   made("1", gateway.KeyEndpointID, f.other.ID),
		"a recipient":      made("1", gateway.KeyDirectRecipients, f.receiver.ID),
		"another":          made("1", gateway.KeyDirectRecipients, f.other.ID),
		"both":             made("1", gateway.KeyDirectRecipients, f.other.ID+","+f.receiver.ID),
		"another received": made("1", gateway.KeyContextID, "a legacy sender's"),
		"another filename": made("1", gateway.KeyFilename, "a.json"),
		"another teamset":  made("1", gateway.KeyTeamsetContextID, "team"),
		"elsewhere":        made("", gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck, gateway.KeyPayloadReference, "x"),
		"also":             made("", gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck, gateway.KeyPayloadReference, "y"),
		"with a digest":    made("", gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck, gateway.KeyPayloadSHA256, strings.Repeat("a", 64)),
	} {
		id := pub.ContextID(typeJSON, msg)
		if was, ok := seen[id]; ok || uuid.Validate(id) != nil {
			t.Errorf("%s: %s, like %s", name, id, was)
		}
		seen[id] = name
		again := msg.Copy()
		again.UUID = uuid.NewString() // as handlers give it in each attempt
		if got := pub.ContextID(typeJSON, again); got != id {
			t.Errorf("%s: %s the second time, was %s", name, got, id)
		}
	}
	if a, b := pub.ContextID(typeJSON, made("1", gateway.KeyDirectRecipients, f.other.ID+","+f.receiver.ID)),
		pub.ContextID(typeJSON, made("1", gateway.KeyDirectRecipients, f.receiver.ID+" , "+f.other.ID)); a != b {
		t.Errorf("the order of the recipients makes %s of %s", b, a)
	}
	if id := pub.ContextID("app:other", made("1", gateway.KeyMessageType, "app:other")); seen[id] != "" {
		t.Errorf("another type: %s, like %s", id, seen[id])
	}
	// The envelope has the UUID, so it is another payload.
	own := f.publisher(enveloped)
	if a, b := own.ContextID(typeJSON, made("1")), own.ContextID(typeJSON, made("1")); a == b {
		t.Error("two envelopes have one context ID")
	}

	for _, payload := range []string{"out 1", "out 2"} {
		testkit.NoError(t, pub.Publish(typeJSON, made(payload)))
	}
	contexts := map[string]bool{}
	for _, e := range f.server.Ledger() {
		contexts[e.ContextID] = true
	}
	if len(contexts) != 2 || contexts[someID] {
		t.Errorf("two payloads went out under %v", contexts)
	}
}

// In Watermill's Router, the topic of a handler is the type of what it returns, also of a message that was received as another. A header
// that Watermill's cqrs writes, too, stops nothing.
func TestTopicOfAHandlerIsTheMessageType(t *testing.T) {
	for name, received := range map[string]string{"with another type": "app:received", "without a type": ""} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			pub := f.publisher(f.config())
			in := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
			r := testkit.Must(message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}))(t)
			r.AddHandler("answer", "in", in, typeJSON, pub, message.PassthroughHandler)
			done := make(chan error, 1)
			go func() { done <- r.Run(t.Context()) }()
			msg := newMessage("payload", gateway.KeyMessageType, received, gateway.KeyEventType, string(gateway.EventMessageReceived), "name", "north field")
			testkit.NoError(t, in.Publish("in", msg))
			f.waitFor("the message", func() bool { return len(f.headers()) == 1 })
			if got := f.sent()[gateway.KeyMessageType]; got != typeJSON {
				t.Errorf("sent as %q, want %q", got, typeJSON)
			}
			testkit.NoError(t, errors.Join(r.Close(), testkit.Receive(t, "the end", done)))
		})
	}
}

// What another program may have written into the metadata, and what is sent for it.
func TestMetadataOfOthers(t *testing.T) {
	now := "now"
	for name, test := range map[string]struct {
		key, value string
		sent       string // empty: no header
	}{
		"basic form":      {gateway.KeySentTimestamp, "20260301T101500Z", "2026-03-01T10:15:00Z"},
		"zero":            {gateway.KeySentTimestamp, "0001-01-01T00:00:00Z", now},
		"empty time":      {gateway.KeySentTimestamp, "", now},
		"empty file name": {gateway.KeyFilename, "", ""},
		"empty teamset":   {gateway.KeyTeamsetContextID, "", ""},
		"empty type":      {gateway.KeyMessageType, "", typeJSON},
		"unknown key":     {"x-router-color", "red", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			testkit.NoError(t, f.publisher(f.config()).Publish(typeJSON, newMessage("payload", test.key, test.value)))
			got := f.sent()[test.key]
			if test.sent == now {
				if at, err := time.Parse(time.RFC3339Nano, got); err != nil || time.Since(at) > time.Hour {
					t.Errorf("sent %q, want now", got)
				}
			} else if got != test.sent {
				t.Errorf("sent %q, want %q", got, test.sent)
			}
		})
	}
}
