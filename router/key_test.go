package router_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/routertest"
	"github.com/agrimill/agrimill/subscriber"
)

func defaultKeys(t *testing.T, scope string, msg *message.Message) router.Keys {
	t.Helper()
	keys := testkit.Must(router.DefaultKeys(scope, msg))(t)
	return keys
}

// changed returns a message that differs from the usual one.
func changed(change func(*message.Message)) *message.Message {
	m := farmMessage("1", "endpoint", "context", "payload")
	m.Metadata[gateway.KeyMessageType] = "img:png"
	change(m)
	return m
}

func with(key, value string) *message.Message {
	return changed(func(m *message.Message) { m.Metadata[key] = value })
}

func TestDefaultKeys(t *testing.T) {
	base := defaultKeys(t, "route", changed(func(*message.Message) {}))
	if base.Delivery == (router.Key{}) || base.Content == (router.Key{}) || base.Delivery == base.Content {
		t.Fatalf("keys %v", base)
	}
	for name, tt := range map[string]struct {
		msg               *message.Message
		delivery, content bool // the same key
	}{
		"delivered again":   {changed(func(m *message.Message) { m.UUID = "another" }), true, true},
		"received later":    {with(gateway.KeyReceivedTimestamp, "2026-01-01T00:00:00Z"), true, true},
		"sender repeats it": {with(gateway.KeyMessageID, "2"), false, true},
		// A message ID is the service's: whatever it says of the message, it is the same one.
		"other context":    {with(gateway.KeyContextID, "context2"), true, false},
		"other payload":    {changed(func(m *message.Message) { m.Payload = []byte("payload2") }), true, false},
		"other type":       {with(gateway.KeyMessageType, "img:jpeg"), true, false},
		"other filename":   {with(gateway.KeyFilename, "b.png"), true, false},
		"other teamset":    {with(gateway.KeyTeamsetContextID, "t"), true, false},
		"other sender":     {with(gateway.KeyEndpointID, "sender"), true, false},
		"other recipients": {with(gateway.KeyDirectRecipients, "r"), true, false},
		"claim check":      {with(gateway.KeyPayloadSHA256, "aa"), true, false},
		"other endpoint":   {with(gateway.KeyReceivingEndpointID, "endpoint2"), false, false},
		"made of it":       {with(gateway.KeyDedupID, "1"), false, false},
		"other event":      {with(gateway.KeyEventType, string(gateway.EventEndpointDeleted)), false, false},
		"moved border": {changed(func(m *message.Message) {
			m.Metadata[gateway.KeyReceivingEndpointID] = "endpointc"
			m.Metadata[gateway.KeyContextID] = "ontext"
		}), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			keys := defaultKeys(t, "route", tt.msg)
			if same := keys.Delivery == base.Delivery; same != tt.delivery {
				t.Errorf("the same delivery key: %v, want %v", same, tt.delivery)
			}
			if same := keys.Content == base.Content; same != tt.content {
				t.Errorf("the same content key: %v, want %v", same, tt.content)
			}
		})
	}
	other := defaultKeys(t, "another route", changed(func(*message.Message) {}))
	if other.Delivery == base.Delivery || other.Content == base.Content {
		t.Error("two routes share a key")
	}
}

// What may be equal to another message has no content key.
// What a route made of one message is several messages for the next one, also if a subscriber delivers them that knows
// nothing of their places, or a handler has handed them on that got them from a source. Each is recognized.
func TestWhatARouteMadeOfOneMessage(t *testing.T) {
	for _, key := range []string{gateway.KeyDedupID, gateway.KeyReceivedDedupID} {
		var parts []*message.Message
		for _, id := range []string{"1", "2", "1"} {
			part := with(key, id)
			part.Payload = []byte("part " + id)
			parts = append(parts, part)
		}
		got, err := routertest.Deliver(t.Context(), router.Config{}, router.Route{}, parts...)
		if err != nil || len(got.Published) != 2 || got.Health.Duplicates != 1 {
			t.Errorf("%s: %d published, %d duplicates, %v; want 2 and 1", key, len(got.Published), got.Health.Duplicates, err)
		}
	}
}

func TestNoContentKey(t *testing.T) {
	for name, msg := range map[string]*message.Message{
		"may be a chunk": changed(func(m *message.Message) { m.Payload = make([]byte, router.DefaultNeverChunkBelow) }),
		"may be a chunk, in a claim check": changed(func(m *message.Message) {
			m.Metadata[gateway.KeyPayloadMode], m.Metadata[gateway.KeyPayloadSHA256] = gateway.PayloadModeClaimCheck, "aa"
			m.Metadata[gateway.KeyPayloadSize] = fmt.Sprint(router.DefaultNeverChunkBelow)
		}),
		"unknown size": changed(func(m *message.Message) {
			m.Metadata[gateway.KeyPayloadMode], m.Metadata[gateway.KeyPayloadSHA256] = gateway.PayloadModeClaimCheck, "aa"
		}),
		"lazy":       with(gateway.KeyPayloadMode, gateway.PayloadModeLazy),
		"no context": with(gateway.KeyContextID, ""),
		"file": changed(func(m *message.Message) {
			m.Metadata[gateway.KeyEventType], m.Metadata[gateway.KeyMessageIDs] = string(gateway.EventFileReceived), "1,2"
		}),
	} {
		t.Run(name, func(t *testing.T) {
			if keys := defaultKeys(t, "route", msg); keys.Content != (router.Key{}) || keys.Delivery == (router.Key{}) {
				t.Errorf("keys %v", keys)
			}
		})
	}
	small := changed(func(m *message.Message) { m.Payload = make([]byte, router.DefaultNeverChunkBelow-1) })
	if keys := defaultKeys(t, "route", small); keys.Content == (router.Key{}) {
		t.Error("a payload that is never a chunk has no content key")
	}
}

func fileMessage(ids string, size int) *message.Message {
	m := farmMessage("", "endpoint", "", "")
	m.Payload = make([]byte, size)
	delete(m.Metadata, gateway.KeyMessageID)
	m.Metadata[gateway.KeyEventType] = string(gateway.EventFileReceived)
	m.Metadata[gateway.KeyMessageIDs] = ids
	return m
}

func TestDefaultKeysWithoutIdentity(t *testing.T) {
	event := message.NewMessage("1", []byte("{}"))
	event.Metadata[gateway.KeyEventType] = string(gateway.EventAuthorizationAdded)
	noIDs := farmMessage("", "endpoint", "", "p")
	delete(noIDs.Metadata, gateway.KeyMessageID)
	own := message.NewMessage("1", []byte("p"))
	own.Metadata[gateway.KeyContextID] = "c"
	for _, msg := range []*message.Message{event, noIDs, own} {
		if keys := defaultKeys(t, "route", msg); keys != (router.Keys{}) {
			t.Errorf("keys %v", keys)
		}
	}
	// Without a message ID the content is all there is, however large it is.
	delete(noIDs.Metadata, gateway.KeyMessageID)
	noIDs.Metadata[gateway.KeyContextID] = "c"
	noIDs.Payload = make([]byte, 1<<20)
	if keys := defaultKeys(t, "route", noIDs); keys.Delivery != (router.Key{}) || keys.Content == (router.Key{}) {
		t.Errorf("keys %v", keys)
	}
}

func newKeyFunc(t *testing.T, config router.KeysConfig) func(*message.Message) router.Keys {
	t.Helper()
	keys := testkit.Must(router.NewKeyFunc(config))(t)
	return func(msg *message.Message) router.Keys {
		got := testkit.Must(keys("route", msg))(t)
		return got
	}
}

// Of what differs under a context ID, a bounded number is remembered.
func TestSiblingsAreBounded(t *testing.T) {
	part := func(i int, context, payload string) *message.Message {
		return farmMessage(fmt.Sprint(i), "endpoint", context, payload)
	}
	keys := newKeyFunc(t, router.KeysConfig{})
	keys(part(0, "c", "a"))
	for i := range 2 << 14 {
		keys(part(i, fmt.Sprint(i), "p"))
	}
	if got := keys(part(1, "c", "b")); got.Content == (router.Key{}) {
		t.Error("the oldest context ID is still remembered")
	}
}

// A file with small parts shows that chunks are smaller than was configured.
func TestFilesLowerNeverChunkBelow(t *testing.T) {
	keys := newKeyFunc(t, router.KeysConfig{NeverChunkBelow: 1000})
	content := func(id string, size int) bool {
		m := farmMessage(id, "endpoint", "context "+id, strings.Repeat("x", size))
		return keys(m).Content != (router.Key{})
	}
	if !content("a", 999) {
		t.Fatal("999 bytes are never a chunk")
	}
	keys(fileMessage("only one", 10)) // has no siblings
	keys(fileMessage("1,2", 10_000))  // larger
	if !content("b", 999) {
		t.Error("raised or lowered for nothing")
	}
	keys(fileMessage("1,2,3", 900)) // 300, or more and a rest
	if content("c", 300) || !content("d", 299) {
		t.Error("not lowered to 300")
	}
	keys(fileMessage("1,2", 10_000))
	if content("e", 300) {
		t.Error("raised again")
	}
}

// A payload whose chunks have equal bytes (a blank raster): every chunk is a message of its own.
func TestEqualChunksAreKept(t *testing.T) {
	const messageType = "app:test:raster"
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}, Subscribe: []string{messageType}})
	sub, client := subscribeTo(t, server, subscriber.Config{})
	to := newSink(nil)
	start(t, router.Config{Poison: newSink(nil)}, router.Route{Name: "farm", From: sub, Topic: subscriber.AllData, To: to})
	pub := testkit.Must(publisher.New(publisher.Config{Client: client, TenantID: sender.TenantID, EndpointID: sender.ID}, nil))(t)
	msg := message.NewMessage("c0ffee00-0000-4000-8000-000000000000", bytes.Repeat([]byte{0}, 3<<20))
	testkit.NoError(t, pub.Publish(messageType, msg))
	testkit.Eventually(t, "everything is confirmed", func() bool {
		ledger := server.Ledger()
		for _, e := range ledger {
			if !e.Confirmed() {
				return false
			}
		}
		return len(ledger) >= 3
	})
	stored := map[string]bool{}
	for _, m := range to.all() {
		stored[m.msg.Metadata[gateway.KeyMessageID]] = true
	}
	for _, e := range server.Ledger() {
		if !stored[e.MessageID] {
			t.Errorf("chunk %s is confirmed and not stored", e.MessageID)
		}
	}
}

// What the filter rejected was not handled: when it wants it the next time, it gets it. What
// a transform dropped was.
func TestFilteredIsNotRemembered(t *testing.T) {
	for name, remembered := range map[string]bool{"filter": false, "transform": true} {
		t.Run(name, func(t *testing.T) {
			to, from, wanted := newSink(nil), newSource(), false
			route := router.Route{Name: "farm", From: from, Topic: "all", To: to, ToTopic: "out"}
			switch name {
			case "filter":
				route.Filter = func(*message.Message) (bool, error) { return wanted, nil }
			case "transform":
				route.Transform = func(msg *message.Message) ([]*message.Message, error) {
					if !wanted {
						return nil, nil
					}
					return []*message.Message{msg}, nil
				}
			}
			start(t, router.Config{Poison: newSink(nil)}, route)
			for range 2 {
				msg := farmMessage("1", "endpoint", "context", "payload")
				from.deliver(t, msg)
				wanted = true // the message was acked: nobody reads it now
			}
			if got := len(to.all()) == 0; got != remembered {
				t.Errorf("remembered: %v, want %v", got, remembered)
			}
		})
	}
}

// A file is named by its messages, however they are listed and whether or not its context ID
// is known.
func TestDefaultKeysOfFiles(t *testing.T) {
	key := func(m *message.Message) router.Key { return defaultKeys(t, "route", m).Delivery }
	known := fileMessage("b,a,c", 1)
	known.Metadata[gateway.KeyContextID] = "context"
	lazy := fileMessage("a,b,c", 0)
	lazy.Metadata[gateway.KeyPayloadMode] = gateway.PayloadModeLazy
	for _, same := range []*message.Message{fileMessage("c, a,b", 1), known, lazy} {
		if got, want := key(same), key(fileMessage("a,b,c", 1)); got != want {
			t.Errorf("key = %v, want %v", got, want)
		}
	}
	for _, other := range []string{"a,b", "ab,c", "abc", "a"} {
		if key(fileMessage(other, 1)) == key(fileMessage("a,b,c", 1)) {
			t.Errorf("%s and a,b,c have the same key", other)
		}
	}
}
