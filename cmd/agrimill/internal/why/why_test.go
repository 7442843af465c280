package why_test

import (
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
	"github.com/agrimill/agrimill/gateway"
)

const (
	tenant  = "3f1d0c52-8a3c-4d5e-9b1a-6c2f7e9d4b10"
	ours    = "a0000000-0000-4000-8000-000000000001"
	tractor = "b0000000-0000-4000-8000-000000000002"
	png     = "img:png"
)

// facts are those of a chain that is whole; a test breaks one link of it.
func facts() why.Facts {
	return why.Facts{
		Tenants: []gateway.TenantInfo{{ID: strings.ToUpper(tenant), Endpoints: []gateway.TenantEndpointInfo{
			{
				ID: ours, ExternalID: "urn:farm:" + tenant, Name: "ours", OwnedByYourApplication: true,
				Capabilities:    gateway.TenantEndpointCapabilities{CanReceive: []string{png}},
				RoutedEndpoints: &gateway.RoutedEndpoints{CanReceiveFrom: gateway.EndpointRouteMap{tractor: {png}}},
			},
			{ID: tractor, ExternalID: "urn:tractor:7", Name: "Tractor 7", Capabilities: gateway.TenantEndpointCapabilities{CanSend: []string{png}}},
		}}},
		Declared: []why.Declared{{ExternalID: "urn:farm:{tenant}", Subscriptions: []string{png}}},
		Routes:   []why.Route{route("pictures", png, "")},
		Stream:   why.Link{State: why.StateOK, Detail: "open"},
	}
}

// route takes a type, or all, and refuses by a key.
func route(name, topic, refuses string) why.Route {
	return why.Route{
		Name: name, Topic: topic,
		Takes:   func(t string) bool { return topic == "all" || t == topic },
		Refuses: func(string, string, string) string { return refuses },
	}
}

// mine is this application's endpoint.
func mine(f *why.Facts) *gateway.TenantEndpointInfo { return &f.Tenants[0].Endpoints[0] }

// Each link that breaks is the one that is named, the ones after it that need it are not
// checked, and the others are.
func TestWalk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		breaks  func(f *why.Facts)
		from    string
		missing string
		states  string // o, m, u and - for each link
		text    string // of the missing link, or else of the last one
	}{
		{"whole", func(*why.Facts) {}, "", "", "ooooooo", "taken by pictures"},
		{"from an ID", func(*why.Facts) {}, strings.ToUpper(tractor), "", "ooooooo", "taken by pictures"},
		{"from an external ID", func(*why.Facts) {}, "urn:tractor:7", "", "ooooooo", "taken by pictures"},
		{"from a name", func(*why.Facts) {}, "tractor 7", "", "ooooooo", "taken by pictures"},

		{"unauthorized", func(f *why.Facts) { f.Tenants = nil }, "", why.LinkAuthorization, "m----oo", "has not authorized"},
		{"gateway away", func(f *why.Facts) { f.Tenants, f.TenantsErr = nil, "no route to host" }, "", "", "u----oo", "taken by pictures"},
		{"no endpoint", func(f *why.Facts) { f.Tenants[0].Endpoints = []gateway.TenantEndpointInfo{} }, "", why.LinkEndpoint, "om---oo", "no endpoint"},
		{"only theirs", func(f *why.Facts) { mine(f).OwnedByYourApplication = false }, "", why.LinkEndpoint, "om---oo", "no endpoint"},
		{"list unreadable", func(f *why.Facts) { f.Tenants[0].Endpoints = nil }, "", "", "ou---oo", "taken by pictures"},
		{"capability", func(f *why.Facts) { mine(f).Capabilities.CanReceive = []string{"img:jpeg"} }, "", why.LinkCapability, "oomo-oo", "none of this application's endpoints"},
		{"capability in other case", func(f *why.Facts) { mine(f).Capabilities.CanReceive = []string{"IMG:PNG"} }, "", why.LinkCapability, "oomo-oo", "one can receive IMG:PNG"},
		{"subscription", func(f *why.Facts) { f.Declared[0].Subscriptions = nil }, "", why.LinkSubscription, "ooomooo", "not subscribed"},
		{"subscription of another tenant's", func(f *why.Facts) { f.Declared[0].Tenant = ours }, "", "", "ooouooo", "taken by pictures"},
		{"not declared", func(f *why.Facts) { f.Declared = nil }, "", "", "ooouooo", "taken by pictures"},
		{"no route", func(f *why.Facts) { mine(f).RoutedEndpoints.CanReceiveFrom = nil }, "", why.LinkGatewayRoute, "oooomoo", `no route leads from "Tractor 7"`},
		{"route for another type", func(f *why.Facts) { mine(f).RoutedEndpoints.CanReceiveFrom[tractor] = []string{"img:jpeg"} }, "", why.LinkGatewayRoute, "oooomoo", "no route leads"},
		{"route untold", func(f *why.Facts) { mine(f).RoutedEndpoints = nil }, "", "", "oooouoo", "taken by pictures"},
		{"sender cannot", func(f *why.Facts) {
			mine(f).RoutedEndpoints.CanReceiveFrom = nil
			f.Tenants[0].Endpoints[1].Capabilities.CanSend = nil
		}, "Tractor 7", why.LinkGatewayRoute, "oooomoo", `"Tractor 7" (` + tractor + `) cannot send the type`},
		{"nobody sends it", func(f *why.Facts) {
			mine(f).RoutedEndpoints.CanReceiveFrom = nil
			f.Tenants[0].Endpoints[1].Capabilities.CanSend = nil
		}, "", why.LinkGatewayRoute, "oooomoo", "no other endpoint"},
		{"sender unknown", func(*why.Facts) {}, "Tractor 8", why.LinkGatewayRoute, "oooomoo", "cannot see such a sender"},
		{"route from another one only", func(f *why.Facts) {
			f.Tenants[0].Endpoints = append(f.Tenants[0].Endpoints, gateway.TenantEndpointInfo{ID: ours[:35] + "9", Name: "Drone", Capabilities: f.Tenants[0].Endpoints[1].Capabilities})
		}, "Drone", why.LinkGatewayRoute, "oooomoo", `no route leads from "Drone"`},
		{"stream", func(f *why.Facts) { f.Stream = why.Link{State: why.StateMissing, Detail: "disconnected"} }, "", why.LinkStream, "ooooomo", "disconnected"},
		{"no local route", func(f *why.Facts) { f.Routes = nil }, "", why.LinkRoute, "oooooom", "no route receives from the gateway"},
		{"local route for others", func(f *why.Facts) { f.Routes[0] = route("zips", "zip", "") }, "", why.LinkRoute, "oooooom", "zips: zip"},
		{"filter", func(f *why.Facts) { f.Routes[0] = route("zips", "all", "type") }, "", why.LinkRoute, "oooooom", "zips (filter.type)"},
		{"one of two filters", func(f *why.Facts) { f.Routes = append(f.Routes, route("zips", "all", "type")) }, "", "", "ooooooo", "taken by pictures"},
		{"outage", func(f *why.Facts) { f.Routes[0].Waits = "broker down" }, "", why.LinkRoute, "oooooom", "broker down"},
		{"depends", func(f *why.Facts) { f.Routes[0].Depends = []string{"filename", "expr"} }, "", "", "ooooooo", "pictures if filter.filename and filter.expr matches"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := facts()
			c.breaks(&f)
			answer := why.Walk(why.Question{Tenant: tenant, Type: png, From: c.from}, f)
			var states strings.Builder
			text := ""
			for _, link := range answer.Links {
				states.WriteString(map[why.State]string{why.StateOK: "o", why.StateMissing: "m", why.StateUnknown: "u", why.StateUnchecked: "-"}[link.State])
				if link.Name == answer.Missing || answer.Missing == "" {
					text = link.Detail
				}
			}
			if answer.Missing != c.missing || states.String() != c.states || !strings.Contains(text, c.text) {
				t.Errorf("missing %q, states %s, %q, want %q, %s, %q\n%+v", answer.Missing, &states, text, c.missing, c.states, c.text, answer.Links)
			}
		})
	}
}

// An endpoint that the filter refuses is told when each of them is refused.
func TestFilterOfEndpoints(t *testing.T) {
	t.Parallel()
	f := facts()
	second := *mine(&f)
	second.ID = ours[:35] + "2"
	f.Tenants[0].Endpoints = append(f.Tenants[0].Endpoints, second)
	f.Routes[0].Refuses = func(_, _, endpoint string) string {
		if endpoint == ours {
			return "endpoint"
		}
		return ""
	}
	if answer := why.Walk(why.Question{Tenant: tenant, Type: png}, f); answer.Missing != "" {
		t.Errorf("%+v", answer)
	}
	f.Routes[0].Refuses = func(_, _, endpoint string) string { return "endpoint" }
	if answer := why.Walk(why.Question{Tenant: tenant, Type: png}, f); answer.Missing != why.LinkRoute {
		t.Errorf("%+v", answer)
	}
}
