package subscriber_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// The message of a lifecycle event carries the JSON of the event, whether this version knows its
// type or not.
func TestLifecycleMessagesCarryTheEventAsReceived(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub := f.subscriber(f.config())
	tenant := f.server.Tenant()
	list := f.server.Application().ID // any UUID
	for name, fields := range map[gateway.EventType]string{
		gateway.EventEndpointDeleted:      fmt.Sprintf(`"id":%q,"external_id":"urn:farm:9","new":{"a":[1]}`, list),
		gateway.EventEndpointsListChanged: fmt.Sprintf(`"tenant_id":%q,"endpoints":[]`, tenant),
		gateway.EventAuthorizationAdded:   fmt.Sprintf(`"tenant":{"tenant_id":%q,"endpoints":[]},"scope":"endpoints:manage"`, tenant),
		gateway.EventAuthorizationRevoked: fmt.Sprintf(`"tenant_id":%q,"scope":"other"`, tenant),
		"SOMETHING_NEW":                   `"x":1`,
	} {
		messages := f.subscribe(sub, string(name))
		testkit.Eventually(f, "connected", func() bool { return sub.Stats().Stream.Connected })
		f.emit(name, fields)
		msg := f.next(messages)
		if want := fmt.Sprintf("{\"event_type\":%q,%s}", name, fields); string(msg.Payload) != want {
			t.Errorf("%s: got %s, want %s", name, msg.Payload, want)
		}
		event, err := gateway.DecodeEvent(gateway.EventType(msg.Metadata.Get(gateway.KeyEventType)), msg.Payload)
		if err != nil || event.Type() != name {
			t.Errorf("%s: got %+v, %v from the payload", name, event, err)
		}
		msg.Ack()
	}
}

// What decorates a message does not keep it from being delivered: a field that cannot be read is
// left out, and counted.
func TestUnreadableOptionalFieldsAreLeftOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub := f.subscriber(f.config())
	messages := f.subscribe(sub, typeJSON)
	testkit.Eventually(f, "connected", func() bool { return sub.Stats().Stream.Connected })
	for _, tt := range []struct {
		field      string
		key        string // of the metadata that is missing
		unreadable int64
	}{
		{`"received_at":"soon"`, gateway.KeyReceivedTimestamp, 1},
		{`"received_at":""`, gateway.KeyReceivedTimestamp, 0},
		{`"filename":[],"teamset_context_id":{}`, gateway.KeyFilename, 2},
	} {
		before := sub.Stats()
		f.emit(gateway.EventMessageReceived, fmt.Sprintf(`"id":%q,"app_message_id":"a","message_type":%q,"sent_at":"2026-03-01T09:05Z","receiving_endpoint_id":%q,"payload":"eA==",%s`,
			uuid.NewString(), typeJSON, f.receiver.ID, tt.field))
		msg := f.next(messages)
		if value, ok := msg.Metadata[tt.key]; ok || string(msg.Payload) != "x" || msg.Metadata.Get(gateway.KeySentTimestamp) != "2026-03-01T09:05:00Z" {
			t.Errorf("%s: got %q, %v, %s", tt.field, value, msg.Metadata, msg.Payload)
		}
		msg.Ack()
		after := sub.Stats()
		if got := after.Unreadable - before.Unreadable; got != tt.unreadable || after.Malformed != 0 {
			t.Errorf("%s: got %d unreadable, %d malformed, want %d, 0", tt.field, got, after.Malformed, tt.unreadable)
		}
	}
}

// A file whose payload is not as long as it says is not delivered but goes to the quarantine, as
// received.
func TestFileWithAnotherSizeGoesToTheQuarantine(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	store := &shelf{}
	cfg := f.config()
	cfg.Quarantine = subscriber.QuarantineConfig{Publisher: store}
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, subscriber.AllData)
	testkit.Eventually(f, "connected", func() bool { return sub.Stats().Stream.Connected })
	data := fmt.Sprintf(`"receiving_endpoint_id":%q,"message_type":%q,"size":7,"message_ids":[%q],"payload":"eA=="`, f.receiver.ID, typeFile, uuid.NewString())
	f.emit(gateway.EventFileReceived, data)
	testkit.Eventually(f, "stored", func() bool { return len(store.all()) == 1 })
	record := store.all()[0]
	var got, want any
	testkit.NoError(t, json.Unmarshal(record.Payload, &got))
	testkit.NoError(t, json.Unmarshal([]byte(`{"event_type":"FILE_RECEIVED",`+data+`}`), &want))
	if reason := record.Metadata.Get(subscriber.KeyQuarantineReason); !strings.Contains(reason, "size is not the length of payload") || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v because of %q, want %v", got, reason, want)
	}
	f.nothing(messages)
	if n := sub.Stats().Confirmed; n != 0 {
		t.Errorf("got %d confirmations, want none", n)
	}
}
