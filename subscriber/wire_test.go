package subscriber_test

import (
	"fmt"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
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
