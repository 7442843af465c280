package subscriber_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// emit sends an event of the type to the open streams.
func (f *fixture) emit(name gateway.EventType, data string) {
	f.Helper()
	f.server.EmitRaw(f.server.Application(), fmt.Appendf(nil, "event: %s\ndata: {\"event_type\":%q,%s}\n\n", name, name, data))
}

// directoryFixture is a subscriber that keeps a directory current, connected.
func directoryFixture(t *testing.T, hook func(gateway.Event)) (*fixture, *gateway.Directory) {
	t.Helper()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	directory := gateway.NewDirectory(f.client)
	cfg.Tenants, cfg.Hooks.Event = directory, hook
	sub := f.subscriber(cfg)
	_ = f.subscribe(sub, typeJSON)
	testkit.Eventually(f, "the directory is filled", func() bool { return len(directory.Mine("")) == 3 })
	return f, directory
}

// An ENDPOINTS_LIST_CHANGED with null for the list does not empty the directory:
// the tenant is asked, until it answers.
func TestListThatAnEventLeavesOutIsAskedFor(t *testing.T) {
	t.Parallel()
	f, directory := directoryFixture(t, nil)
	outage := f.server.Inject(gatewaytest.OpListEndpoints, gatewaytest.Fault{Status: http.StatusServiceUnavailable})
	f.emit(gateway.EventEndpointsListChanged, fmt.Sprintf(`"tenant_id":%q,"endpoints":null`, strings.ToUpper(f.server.Tenant())))
	testkit.Eventually(f, "the tenant is asked", func() bool { return outage.Hits() > 0 })
	if n := len(directory.Mine(f.server.Tenant())); n != 3 {
		t.Errorf("%d endpoints are left of 3", n)
	}
	// The answer is what counts.
	body := testkit.Must(json.Marshal(gateway.EndpointsListResponse{Endpoints: directory.Mine(f.server.Tenant())[:1]}))(t)
	f.server.Inject(gatewaytest.OpListEndpoints, gatewaytest.Fault{Body: body, ContentType: "application/json"})
	outage.Lift()
	testkit.Eventually(f, "the answer is taken in", func() bool { return len(directory.Mine(f.server.Tenant())) == 1 })
}

// An event without a tenant whose endpoint is written in another case, or cannot
// be read in the listing, is confirmed in the tenant that lists it.
func TestTenantIsFoundForEveryListedEndpoint(t *testing.T) {
	t.Parallel()
	for name, listing := range map[string]string{
		"in another case":     "",
		"that cannot be read": `{"tenants":[{"tenant_id":%q,"endpoints":[null,{"id":%q}]}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{OmitOptionalFields: true})
			if listing != "" {
				f.server.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{
					Body: fmt.Appendf(nil, listing, f.server.Tenant(), f.receiver.ID), ContentType: "application/json",
				})
			}
			sub := f.subscriber(f.config())
			messages := f.subscribe(sub, typeJSON)
			if listing == "" {
				testkit.Eventually(f, "connected", func() bool { return sub.Stats().Stream.Connected })
				f.emit(gateway.EventMessageReceived, fmt.Sprintf(
					`"id":"11111111-1111-4111-8111-111111111111","app_message_id":"x","sent_at":"2026-01-01T00:00:00Z","message_type":%q,"receiving_endpoint_id":%q,"payload":""`,
					typeJSON, strings.ToUpper(f.receiver.ID)))
			} else {
				f.sendN(1)
			}
			f.ackN(messages, 1)
			testkit.Eventually(f, "confirmed or rejected", func() bool { return sub.Stats().Confirmed+sub.Stats().Rejected > 0 })
			if n := sub.Stats().Rejected; n > 0 {
				t.Errorf("%d confirmations were dropped", n)
			}
		})
	}
}

// IDs that differ in case are the same endpoint and the same tenant: its messages stay
// in order, and are confirmed in one request.
func TestIDsAreComparedWithoutRegardToCase(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.Confirm.MaxBatch, cfg.Confirm.MaxAge = 2, time.Hour
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, typeJSON)
	testkit.Eventually(f, "connected", func() bool { return sub.Stats().Stream.Connected })
	for n, write := range []func(string) string{strings.ToLower, strings.ToUpper} {
		f.emit(gateway.EventMessageReceived, fmt.Sprintf(
			`"id":"11111111-1111-4111-8111-11111111111%d","app_message_id":"%[1]d","sent_at":"2026-01-01T00:00:00Z","message_type":%q,"receiving_endpoint_id":%q,"tenant_id":%q,"payload":""`,
			n, typeJSON, write(f.receiver.ID), write(f.server.Tenant())))
	}
	first := f.next(messages)
	f.nothing(messages)
	first.Ack()
	f.ackN(messages, 1)
	testkit.Eventually(f, "both are confirmed", func() bool { return sub.Stats().Confirmed == 2 })
	if n := sub.Stats().ConfirmRequests; n != 1 {
		t.Errorf("%d requests, want one for both", n)
	}
}
