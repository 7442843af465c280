package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

const (
	tenantA = "aaaaaaaa-0000-4000-8000-000000000001"
	tenantB = "bbbbbbbb-0000-4000-8000-000000000002"
	idOne   = "11111111-0000-4000-8000-000000000001"
	idTwo   = "22222222-0000-4000-8000-000000000002"
	idThree = "33333333-0000-4000-8000-000000000003"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

func newClient(t *testing.T, cfg gateway.Config) *gateway.Client {
	t.Helper()
	client := testkit.Must(gateway.New(cfg))(t)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// follow gives every event of the stream to handle, until the test ends.
func follow(t *testing.T, client *gateway.Client, handle ...func(gateway.Event)) {
	t.Helper()
	stream := testkit.Must(client.ReceiveEvents(testContext(t), gateway.ReceiveEventsRequest{}))(t)
	done := make(chan struct{})
	go func() { // ends when the stream is closed
		defer close(done)
		for {
			raw, err := stream.Next()
			if err != nil {
				return
			}
			event, err := gateway.DecodeEvent(raw.Type, raw.Data)
			if err != nil {
				t.Error(err)
				continue
			}
			for _, h := range handle {
				h(event)
			}
		}
	}()
	t.Cleanup(func() {
		_ = stream.Close()
		<-done
	})
}

func info(id, tenant string, mine bool) gateway.TenantEndpointInfo {
	return gateway.TenantEndpointInfo{
		ID: id, TenantID: tenant, Name: id[:1], EndpointType: gateway.EndpointTypeCloudSoftware, OwnedByYourApplication: mine,
		Capabilities: gateway.TenantEndpointCapabilities{CanSend: []string{"t"}, CanReceive: []string{"t"}},
	}
}

// describe writes a directory in one line: tenant[scopes]: endpoints.
func describe(d *gateway.Directory) string {
	var b strings.Builder
	for i, t := range d.Tenants() {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%.1s%v:", t.ID, d.Scopes(t.ID))
		for _, e := range t.Endpoints {
			fmt.Fprintf(&b, " %.1s", e.ID)
		}
	}
	return b.String()
}

func TestDirectoryEvents(t *testing.T) {
	const manage = gateway.ScopeEndpointsManage
	list := func(tenant string, ids ...string) gateway.Event {
		e := &gateway.EndpointsListChanged{TenantID: tenant, Endpoints: []gateway.TenantEndpointInfo{}}
		for _, id := range ids {
			e.Endpoints = append(e.Endpoints, info(id, tenant, true))
		}
		return e
	}
	added := func(tenant, scope string, ids ...string) gateway.Event {
		return &gateway.AuthorizationAdded{
			Tenant: gateway.TenantInfo{ID: tenant, Endpoints: list(tenant, ids...).(*gateway.EndpointsListChanged).Endpoints},
			Scope:  scope,
		}
	}
	revoked := func(tenant, scope string) gateway.Event {
		return &gateway.AuthorizationRevoked{TenantID: tenant, Scope: scope}
	}
	deleted := func(id string) gateway.Event { return &gateway.EndpointDeleted{ID: id, ExternalID: "urn:x:1"} }
	steps := []struct {
		event gateway.Event
		want  string
	}{
		{list(tenantA), ""}, // nobody is known by an empty list
		{revoked(tenantA, manage), ""},
		{deleted(idOne), ""},
		{added(tenantA, manage), "a[endpoints:manage]:"},
		{list(tenantA, idOne, idTwo), "a[endpoints:manage]: 1 2"},
		{list(tenantA, idThree), "a[endpoints:manage]: 3"}, // replaces
		{list(tenantA, idThree, idOne), "a[endpoints:manage]: 3 1"},
		{deleted(idThree), "a[endpoints:manage]: 1"},
		{deleted(idThree), "a[endpoints:manage]: 1"},
		{added(tenantA, "other", idOne), "a[endpoints:manage other]: 1"},
		{revoked(tenantA, "unheard of"), "a[endpoints:manage other]: 1"},
		{revoked(tenantA, manage), "a[other]: 1"}, // ENDPOINT_DELETED reports what is removed
		{deleted(idOne), "a[other]:"},
		{list(tenantB, idTwo), "a[other]:; b[endpoints:manage]: 2"}, // known by its list
		{revoked(tenantA, "other"), "b[endpoints:manage]: 2"},
		{deleted(strings.ToUpper(idTwo)), "b[endpoints:manage]:"},
		{added(strings.ToUpper(tenantB), manage, idOne), "b[endpoints:manage]: 1"},
		{list(tenantB), "b[endpoints:manage]:"},
		{&gateway.MessageReceived{}, "b[endpoints:manage]:"},
		{&gateway.UnknownEvent{}, "b[endpoints:manage]:"},
		{revoked(strings.ToUpper(tenantB), manage), ""},
	}
	d := gateway.NewDirectory(nil)
	for i, step := range steps {
		d.HandleEvent(step.event)
		if got := describe(d); got != step.want {
			t.Fatalf("step %d, %T: got %q, want %q", i, step.event, got, step.want)
		}
	}
}

func TestDirectoryQuestions(t *testing.T) {
	d := gateway.NewDirectory(nil)
	mine, foreign, blocked := info(idOne, tenantA, true), info(idTwo, tenantA, false), info(idThree, tenantA, false)
	mine.RoutedEndpoints = &gateway.RoutedEndpoints{
		CanSendTo:      gateway.EndpointRouteMap{idTwo: {"t", "u"}, idThree: {"u"}},
		CanReceiveFrom: gateway.EndpointRouteMap{strings.ToUpper(idTwo): {"t"}},
	}
	d.HandleEvent(&gateway.EndpointsListChanged{TenantID: tenantA, Endpoints: []gateway.TenantEndpointInfo{mine, foreign, blocked}})
	d.HandleEvent(&gateway.AuthorizationAdded{Tenant: gateway.TenantInfo{ID: tenantB}, Scope: "other"})

	check := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", what, got, want)
		}
	}
	check("authorized A", d.Authorized(strings.ToUpper(tenantA), gateway.ScopeEndpointsManage), true)
	check("authorized B", d.Authorized(tenantB, gateway.ScopeEndpointsManage), false)
	check("authorized B, other", d.Authorized(tenantB, "other"), true)
	check("authorized nobody", d.Authorized(idOne, "other"), false)
	check("scopes of nobody", d.Scopes(idOne), []string(nil))
	check("mine in A", d.Mine(tenantA), []gateway.TenantEndpointInfo{mine})
	check("mine in B", d.Mine(tenantB), []gateway.TenantEndpointInfo(nil))
	check("mine everywhere", d.Mine(""), []gateway.TenantEndpointInfo{mine})
	tenant, ok := d.TenantOf(strings.ToUpper(idTwo))
	check("tenant of", []any{tenant, ok}, []any{tenantA, true})
	_, ok = d.TenantOf(tenantA)
	check("tenant of nobody", ok, false)
	e, ok := d.Endpoint(strings.ToUpper(idOne))
	check("endpoint", []any{e, ok}, []any{mine, true})
	_, ok = d.Endpoint(tenantA)
	check("endpoint of nobody", ok, false)

	// A deletion takes the routes with it.
	d.HandleEvent(&gateway.EndpointDeleted{ID: idTwo})
	e, _ = d.Endpoint(idOne)
	check("routes after a deletion", e.RoutedEndpoints, &gateway.RoutedEndpoints{
		CanSendTo: gateway.EndpointRouteMap{idThree: {"u"}}, CanReceiveFrom: gateway.EndpointRouteMap{},
	})
}

func TestDirectoryAnswersBelongToTheCaller(t *testing.T) {
	d := gateway.NewDirectory(nil)
	given := info(idOne, tenantA, true)
	given.RoutedEndpoints = &gateway.RoutedEndpoints{CanSendTo: gateway.EndpointRouteMap{idTwo: {"t"}}}
	event := &gateway.EndpointsListChanged{TenantID: tenantA, Endpoints: []gateway.TenantEndpointInfo{given}}
	d.HandleEvent(event)
	spoil := func(e gateway.TenantEndpointInfo) {
		e.Capabilities.CanSend[0] = "spoilt"
		e.RoutedEndpoints.CanSendTo[idTwo][0] = "spoilt"
		e.RoutedEndpoints.CanSendTo[idThree] = []string{"t"}
	}
	spoil(event.Endpoints[0])
	spoil(d.Mine(tenantA)[0])
	spoil(d.Tenants()[0].Endpoints[0])
	e, _ := d.Endpoint(idOne)
	spoil(e)
	e, _ = d.Endpoint(idOne)
	if e.Capabilities.CanSend[0] != "t" || !reflect.DeepEqual(e.RoutedEndpoints.CanSendTo, gateway.EndpointRouteMap{idTwo: {"t"}}) {
		t.Errorf("the directory was changed from outside: %+v", e)
	}
}

// What was missed while there was no stream comes with the next Sync: new
// tenants and endpoints, and those that are gone.
func TestDirectorySyncCatchesUp(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{})
	d := gateway.NewDirectory(newClient(t, s.ClientConfig()))
	first := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"t"}})
	ctx := testContext(t)
	testkit.NoError(t, d.Sync(ctx))
	if tenant, ok := d.TenantOf(first.ID); !ok || tenant != s.Tenant() {
		t.Errorf("tenant of the first endpoint: got %q, %v", tenant, ok)
	}
	second := s.AddTenant()
	s.Authorize(s.Application(), second)
	other := s.AddEndpoint(gatewaytest.EndpointConfig{Tenant: second, Send: []string{"t"}})
	s.Revoke(s.Application(), s.Tenant(), gateway.ScopeEndpointsManage)
	testkit.NoError(t, d.Sync(ctx))
	if got, want := describe(d), fmt.Sprintf("%.1s[endpoints:manage]: %.1s", second, other.ID); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, ok := d.TenantOf(first.ID); ok {
		t.Error("the endpoint of the tenant that is gone is still there")
	}
}

func TestDirectorySyncFails(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{})
	cfg := s.ClientConfig()
	cfg.Retry.MaxAttempts = 1
	d := gateway.NewDirectory(newClient(t, cfg))
	s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"t"}})
	ctx := testContext(t)
	testkit.NoError(t, d.Sync(ctx))
	before := describe(d)
	fault := s.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: http.StatusServiceUnavailable})
	testkit.ErrorIs(t, d.Sync(ctx), gateway.ErrUnavailable)
	fault.Lift()
	if got := describe(d); got != before {
		t.Errorf("a failed Sync changed %q to %q", before, got)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	testkit.ErrorIs(t, d.Sync(canceled), context.Canceled)
}

func TestDirectoryConcurrentUse(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{})
	d := gateway.NewDirectory(newClient(t, s.ClientConfig()))
	ctx := testContext(t)
	var wg sync.WaitGroup
	run := func(f func(i int)) {
		wg.Go(func() {
			for i := range 50 {
				f(i)
			}
		})
	}
	for range 2 {
		run(func(int) {
			if err := d.Sync(ctx); err != nil {
				t.Error(err)
			}
		})
		run(func(i int) {
			d.HandleEvent(&gateway.EndpointsListChanged{TenantID: tenantA, Endpoints: []gateway.TenantEndpointInfo{info(idOne, tenantA, true)}})
			d.HandleEvent(&gateway.EndpointDeleted{ID: idOne})
			d.HandleEvent(&gateway.AuthorizationRevoked{TenantID: tenantA, Scope: gateway.ScopeEndpointsManage})
		})
		run(func(int) {
			d.Tenants()
			d.Mine("")
			d.TenantOf(idOne)
			d.Endpoint(idOne)
			d.Authorized(tenantA, "s")
		})
	}
	wg.Wait()
}
