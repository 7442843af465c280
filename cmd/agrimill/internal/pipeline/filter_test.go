package pipeline

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

func TestFilter(t *testing.T) {
	const tenant, endpoint = "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0001", "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0002"
	msg := message.NewMessage("1", nil)
	msg.Metadata = message.Metadata{
		gateway.KeyMessageType: "iso:11783:-10:taskdata:zip", gateway.KeyTenantID: tenant,
		gateway.KeyReceivingEndpointID: endpoint, gateway.KeyFilename: "Field [7]/north.ZIP",
	}
	for name, test := range map[string]struct {
		filter config.Filter
		want   bool
	}{
		"type":              {config.Filter{Type: []string{"iso:*"}}, true},
		"one of":            {config.Filter{Type: []string{"img:*", "iso:*:zip"}}, true},
		"question mark":     {config.Filter{Type: []string{"iso:1178?:-10:taskdata:zip"}}, true},
		"whole":             {config.Filter{Type: []string{"iso:"}}, false},
		"case of a type":    {config.Filter{Type: []string{"ISO:*"}}, false},
		"filename":          {config.Filter{Filename: []string{"*.zip"}}, true},
		"brackets":          {config.Filter{Filename: []string{"field [7]*"}}, true},
		"dot is no joker":   {config.Filter{Filename: []string{"*.z.p"}}, false},
		"star for nothing":  {config.Filter{Filename: []string{"*field [7]/north.zip*"}}, true},
		"tenant":            {config.Filter{Tenant: []string{"6D1A2D18-0d5d-4c3c-9a5f-8d8d6b8a0001"}}, true},
		"endpoint":          {config.Filter{Endpoint: []string{endpoint}}, true},
		"another endpoint":  {config.Filter{Endpoint: []string{tenant}}, false},
		"all of them":       {config.Filter{Type: []string{"iso:*"}, Endpoint: []string{endpoint}, Filename: []string{"*.ZIP"}}, true},
		"all of them but 1": {config.Filter{Type: []string{"iso:*"}, Tenant: []string{endpoint}}, false},
		"nothing like it":   {config.Filter{Type: []string{"\xff*"}}, false},
	} {
		if got, err := new(names).newFilter(test.filter, nil)(msg); got != test.want || err != nil {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
	if new(names).newFilter(config.Filter{}, nil) != nil {
		t.Error("an empty filter is one")
	}
	// On the way to the gateway, the sender and its tenant count: the message's own, or the route's.
	filter := new(names).newFilter(config.Filter{Tenant: []string{tenant}, Endpoint: []string{endpoint}}, &publisher.Config{TenantID: tenant, EndpointID: endpoint})
	out := message.NewMessage("1", nil)
	if ok, err := filter(out); !ok || err != nil {
		t.Errorf("the sender of the route does not count: %v", err)
	}
	out.Metadata[gateway.KeyEndpointID] = tenant
	if ok, err := filter(out); ok || err != nil {
		t.Errorf("the sender of the message does not count: %v", err)
	}
}

// listed is a list of tenants.
type listed []gateway.TenantInfo

func (l listed) ListAuthorizedTenants(context.Context) ([]gateway.TenantInfo, error) { return l, nil }

// An external ID selects its endpoint in each tenant; what cannot be told yet is an outage, and never a no.
func TestFilterByExternalID(t *testing.T) {
	const (
		tenant, other           = "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0001", "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0002"
		farm, mill, farm2, late = "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0011", "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0012", "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0013", "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0014"
		nameless, foreign       = "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0015", "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0016"
	)
	directory := gateway.NewDirectory(listed{
		{ID: tenant, Endpoints: []gateway.TenantEndpointInfo{
			{ID: foreign, ExternalID: "urn:example:farm", TenantID: tenant}, {ID: foreign, ExternalID: "urn:example:two", TenantID: tenant}, {ID: other, ExternalID: "urn:example:two", TenantID: tenant},
			{ID: farm, ExternalID: "urn:example:farm", TenantID: tenant, OwnedByYourApplication: true}, {ID: mill, ExternalID: "urn:example:mill:" + tenant, TenantID: tenant}, {ID: nameless, TenantID: tenant},
		}},
		{ID: other, Endpoints: []gateway.TenantEndpointInfo{{ID: farm2, ExternalID: "urn:example:farm", TenantID: other}}},
	})
	testkit.NoError(t, directory.Sync(t.Context()))
	lacking := 0
	n := newNames(directory, func(found bool) {
		if !found {
			lacking++
		}
	})
	list := func(ids ...string) []string { return ids }
	for name, test := range map[string]struct {
		list             []string
		tenant, endpoint string
		want, waits      bool
	}{
		"its ID":                              {list("urn:example:late", strings.ToUpper(farm)), tenant, farm, true, false},
		"its external ID":                     {list("urn:example:farm"), tenant, strings.ToUpper(farm), true, false},
		"in another tenant":                   {list("urn:example:farm"), "", farm2, true, false},
		"with the tenant":                     {list("urn:example:mill:{tenant}"), tenant, mill, true, false},
		"another one":                         {list("urn:example:farm", mill), other, nameless, false, false},
		"another one, not yet":                {list("urn:example:late"), tenant, farm, false, false},
		"nobody":                              {list("urn:example:late"), tenant, "", false, false},
		"no endpoint":                         {list("urn:example:late"), tenant, "late", false, false},
		"not yet known":                       {list("urn:example:late"), tenant, late, false, true},
		"perhaps the nameless":                {list("urn:example:late"), tenant, nameless, false, true},
		"sender of the route":                 {list("urn:example:farm"), tenant, "urn:example:farm", true, false},
		"sender of the route, ID":             {list(farm), tenant, "urn:example:farm", true, false},
		"sender of the route, no":             {list(mill, "urn:example:late"), tenant, "urn:example:farm", false, false},
		"sender of the route, late":           {list(farm), tenant, "urn:example:late", false, true},
		"sender of the route, as it is there": {list("urn:example:mill:" + tenant), tenant, "urn:example:mill:{tenant}", true, false},
		"sender of the route, another case":   {list("urn:example:FARM"), tenant, "urn:example:farm", false, false},
		"sender of the route, no tenant":      {list(farm), "", "urn:example:farm", true, false}, // the publisher refuses it
		"one of two other applications":       {list(foreign), tenant, "urn:example:two", false, true},
		"case of the tenant":                  {list(mill), strings.ToUpper(tenant), "urn:example:mill:{tenant}", true, false},
	} {
		lacking = 0
		got, err := n.newFilter(config.Filter{Endpoint: test.list}, nil)(received(test.tenant, test.endpoint))
		if got != test.want || (err != nil) != test.waits || err != nil && router.ClassOf(err) != router.ClassOutage || (lacking > 0) != test.waits {
			t.Errorf("%s: %t, %v, %d requests for a list", name, got, err, lacking)
		}
	}
	// What waits says what may be done about it.
	_, err := n.newFilter(config.Filter{Endpoint: list("urn:example:late")}, nil)(received(tenant, late))
	for _, says := range []string{late, tenant, "urn:example:late", "filter.endpoint", "filter.tenant", "create it"} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("the reason of the wait does not say %s: %v", says, err)
		}
	}
	// What a deleted endpoint still had to receive is not refused.
	directory.HandleEvent(&gateway.EndpointDeleted{ID: farm})
	if ok, err := n.newFilter(config.Filter{Endpoint: list("urn:example:farm")}, nil)(received(tenant, farm)); !ok || err != nil {
		t.Errorf("deleted: %t, %v", ok, err)
	}
	// Without a gateway nobody knows.
	if _, err := new(names).newFilter(config.Filter{Endpoint: list("urn:example:farm")}, nil)(received(tenant, farm)); router.ClassOf(err) != router.ClassPermanent {
		t.Errorf("without a gateway: %v", err)
	}
}

func received(tenant, endpoint string) *message.Message {
	msg := message.NewMessage("1", nil)
	msg.Metadata = message.Metadata{gateway.KeyTenantID: tenant, gateway.KeyReceivingEndpointID: endpoint}
	return msg
}

// refusing is a gateway that refuses every message, and counts what it is asked for.
type refusing struct {
	sinks.Sink
	list  []gateway.TenantInfo
	lists int
}

func (*refusing) Publish(string, ...*message.Message) error {
	return &gateway.Error{StatusCode: 403, ErrorResponse: true}
}

func (r *refusing) ListAuthorizedTenants(context.Context) ([]gateway.TenantInfo, error) {
	r.lists++
	return r.list, nil
}

// Refusals do not ask for the list of tenants again and again, and a new endpoint in the place of another one is found nevertheless.
func TestRefusedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tenant, one, two = "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0001", "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0011", "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0012"
		has := func(id string) []gateway.TenantInfo {
			return []gateway.TenantInfo{{ID: tenant, Endpoints: []gateway.TenantEndpointInfo{{ID: id, ExternalID: "urn:example:farm", TenantID: tenant}}}}
		}
		gate := &refusing{list: has(one)}
		n := newNames(gateway.NewDirectory(gate), func(bool) {})
		testkit.NoError(t, n.list(t.Context()))
		sink := n.addressed(&publisher.Config{TenantID: tenant, EndpointID: "urn:example:farm"}, nil)
		sink.Sink = gate
		refused := func(lists int, want router.Class) {
			t.Helper()
			gate.lists = 0
			for range 100 {
				if err := sink.Publish("t", message.NewMessage("1", nil)); router.ClassOf(err) != want {
					t.Fatalf("%v, want %v", err, want)
				}
				if want == router.ClassOutage {
					break
				}
			}
			if gate.lists != lists {
				t.Errorf("%d requests for the list, want %d", gate.lists, lists)
			}
		}
		refused(1, router.ClassPermanent)
		refused(0, router.ClassPermanent)
		gate.list = has(two)
		time.Sleep(listedAgainAfter)
		refused(1, router.ClassOutage)
		refused(1, router.ClassPermanent)
	})
}
