package gatewaytest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

const (
	noRecipients    = "No recipients for this sender and info type"
	partialDelivery = "Recipient is not allowed from this sender"
)

// receivers are the names of the endpoints that have got something since the
// ledger had `from` entries, sorted.
func receivers(s *gatewaytest.Server, from int, names map[string]string) string {
	var list []string
	for _, e := range s.Ledger()[from:] {
		list = append(list, names[e.EndpointID])
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func TestRouting(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	other := s.AddApplication(gatewaytest.ApplicationConfig{})
	s.Authorize(other, s.Tenant())
	second := s.AddTenant()
	s.Authorize(other, second)
	only := []string{typeA}
	sender := s.AddEndpoint(gatewaytest.EndpointConfig{Send: only, Receive: only, Subscribe: only})
	subscriber := s.AddEndpoint(gatewaytest.EndpointConfig{App: other, Receive: only, Subscribe: only})
	silent := s.AddEndpoint(gatewaytest.EndpointConfig{Receive: only})
	incapable := s.AddEndpoint(gatewaytest.EndpointConfig{Send: only, Subscribe: only})
	unrouted := s.AddEndpoint(gatewaytest.EndpointConfig{App: other, Receive: only, Subscribe: only})
	elsewhere := s.AddEndpoint(gatewaytest.EndpointConfig{App: other, Tenant: second, Receive: only, Subscribe: only})
	s.SetRoute(sender.ID, unrouted.ID, false)
	names := map[string]string{
		sender.ID: "sender", subscriber.ID: "subscriber", silent.ID: "silent", incapable.ID: "incapable",
		unrouted.ID: "unrouted", elsewhere.ID: "elsewhere",
	}
	nobody := uuid.NewString()

	for _, test := range []struct {
		name    string
		publish string
		direct  []string
		status  int
		message string
		got     string
	}{
		{"published: subscribers that can receive and have a route", "true", nil, 200, "", "subscriber"},
		{"direct needs no subscription", "false", []string{silent.ID}, 200, "", "silent"},
		{"direct and published together", "true", []string{silent.ID}, 200, "", "silent subscriber"},
		{"direct and subscribed gets it once", "true", []string{subscriber.ID}, 200, "", "subscriber"},
		{"no capability", "false", []string{incapable.ID}, 400, noRecipients, ""},
		{"no route", "false", []string{unrouted.ID}, 400, noRecipients, ""},
		{"other tenant", "false", []string{elsewhere.ID}, 400, noRecipients, ""},
		{"unknown endpoint", "false", []string{nobody}, 400, noRecipients, ""},
		{"itself", "false", []string{sender.ID}, 400, noRecipients, ""},
		{"nobody named", "false", nil, 400, noRecipients, ""},
		{"partial", "false", []string{silent.ID, unrouted.ID, subscriber.ID}, 400, partialDelivery, "silent subscriber"},
		{"partial and published", "true", []string{silent.ID, nobody}, 400, partialDelivery, "silent subscriber"},
		{"published, but no direct recipient reachable: nothing delivered", "true", []string{nobody}, 400, noRecipients, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := len(s.Ledger())
			r := c.post(sender.ID, []byte("x"), map[string]string{
				gateway.KeyIsPublish: test.publish, gateway.KeyDirectRecipients: strings.Join(test.direct, ","),
			})
			want(t, r, test.status)
			if r.message() != test.message {
				t.Errorf("message %q, want %q", r.message(), test.message)
			}
			if got := receivers(s, before, names); got != test.got {
				t.Errorf("delivered to %q, want %q", got, test.got)
			}
		})
	}
}

func TestSetRoute(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, receiver := pairOf(s)
	direct := func(messageType string) int {
		return c.post(sender.ID, []byte("x"), map[string]string{
			gateway.KeyIsPublish: "false", gateway.KeyDirectRecipients: receiver.ID, gateway.KeyMessageType: messageType,
		}).status
	}
	l := c.listen("")
	routes := func() string {
		e := l.next(gateway.EventEndpointsListChanged)
		for _, item := range e.data["endpoints"].([]any) {
			info := item.(map[string]any)
			if info["id"] != sender.ID {
				continue
			}
			to, _ := info["routed_endpoints"].(map[string]any)["can_send_to"].(map[string]any)
			var list []string
			types, _ := to[receiver.ID].([]any)
			for _, messageType := range types {
				list = append(list, messageType.(string))
			}
			return strings.Join(list, " ")
		}
		t.Fatal("the sender is not in the list")
		return ""
	}
	for _, test := range []struct {
		open   bool
		types  []string
		routes string
		a, b   int
	}{
		{false, []string{typeB}, typeA, 200, 400},
		{false, nil, "", 400, 400},
		{true, []string{typeB}, typeB, 400, 200},
		{true, nil, typeB + " " + typeA, 200, 200},
	} {
		s.SetRoute(sender.ID, receiver.ID, test.open, test.types...)
		if got := routes(); got != test.routes {
			t.Errorf("routes %q, want %q", got, test.routes)
		}
		if a, b := direct(typeA), direct(typeB); a != test.a || b != test.b {
			t.Errorf("%+v: %d %d", test, a, b)
		}
		for range 2 {
			if test.a == 200 && test.b == 200 {
				l.next(gateway.EventMessageReceived)
			}
		}
		if test.a != test.b {
			l.next(gateway.EventMessageReceived)
		}
	}
	s.SetRoute(sender.ID, receiver.ID, true) // no change, no event
	l.nothingBefore(s, c.app)
}
