package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// provisioning is a provisioner on a live service, with its results.
type provisioning struct {
	*gateway.Provisioner
	server  *gatewaytest.Server
	client  *gateway.Client
	results chan gateway.ProvisionResult
}

func provisionerConfig(s *gatewaytest.Server, client gateway.ProvisionClient) gateway.ProvisionerConfig {
	app := s.Application()
	return gateway.ProvisionerConfig{
		Client:     client,
		ExternalID: "urn:example:main",
		Endpoint: gateway.PutEndpointRequest{
			Name:              "Main",
			ApplicationID:     app.ID,
			SoftwareVersionID: app.SoftwareVersionID,
			Capabilities:      []gateway.EndpointCapability{{MessageType: "img:jpeg", Direction: gateway.DirectionReceive}},
			Subscriptions:     []gateway.EndpointSubscription{{MessageType: "img:jpeg"}},
		},
		InitialBackoff: time.Millisecond,
		MaxBackoff:     5 * time.Millisecond,
	}
}

func newProvisioning(t *testing.T, change func(*gateway.ProvisionerConfig)) *provisioning {
	t.Helper()
	s := gatewaytest.New(t, gatewaytest.Config{})
	cfg := s.ClientConfig()
	cfg.Retry.MaxAttempts = 1
	p := &provisioning{server: s, client: newClient(t, cfg)}
	p.restart(t, change)
	return p
}

// restart makes a new provisioner, as a program that starts anew.
func (p *provisioning) restart(t *testing.T, change func(*gateway.ProvisionerConfig)) {
	t.Helper()
	// Room for all results of a test: none of them may block an attempt.
	results := make(chan gateway.ProvisionResult, 1000)
	p.results = results
	cfg := provisionerConfig(p.server, p.client)
	cfg.OnResult = func(r gateway.ProvisionResult) { results <- r }
	if change != nil {
		change(&cfg)
	}
	p.Provisioner = testkit.Must(gateway.NewProvisioner(cfg))(t)
}

// run runs the provisioner until the test ends.
func (p *provisioning) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (p *provisioning) result(t *testing.T) gateway.ProvisionResult {
	t.Helper()
	select {
	case r := <-p.results:
		return r
	case <-testContext(t).Done():
		t.Fatal("no attempt was made")
		return gateway.ProvisionResult{}
	}
}

func (p *provisioning) authorize(t *testing.T) (tenant string) {
	t.Helper()
	tenant = p.server.AddTenant()
	p.server.Authorize(p.server.Application(), tenant)
	return tenant
}

func (p *provisioning) ensure(t *testing.T) {
	t.Helper()
	testkit.NoError(t, p.Ensure(testContext(t)))
}

// mine returns the application's endpoints in the tenant.
func (p *provisioning) mine(tenant string) []gateway.TenantEndpointInfo {
	return slices.DeleteFunc(p.server.VisibleEndpoints(p.server.Application(), tenant),
		func(e gateway.TenantEndpointInfo) bool { return !e.OwnedByYourApplication })
}

func TestProvisionerEnsure(t *testing.T) {
	p := newProvisioning(t, func(cfg *gateway.ProvisionerConfig) {
		cfg.ExternalID = "urn:example:{tenant}:{tenant}"
		cfg.Customize = func(tenant string, req *gateway.PutEndpointRequest) {
			req.Name = "Endpoint " + tenant
			req.Capabilities[0].MessageType = "vid:mp4"
			req.Subscriptions[0].MessageType = "vid:mp4"
		}
	})
	tenants := []string{p.server.Tenant()}
	for range 9 {
		tenants = append(tenants, p.authorize(t))
	}
	p.ensure(t)
	for range tenants {
		r := p.result(t)
		if r.Err != nil || !r.Created || r.Retry || r.Endpoint.TenantID != r.TenantID || r.Endpoint.ExternalID != r.ExternalID {
			t.Errorf("got %+v, want a new endpoint", r)
		}
	}
	for _, tenant := range tenants {
		mine := p.mine(tenant)
		if len(mine) != 1 || mine[0].Name != "Endpoint "+tenant || mine[0].ExternalID != "urn:example:"+tenant+":"+tenant ||
			mine[0].EndpointType != gateway.EndpointTypeCloudSoftware || !slices.Equal(mine[0].Capabilities.CanReceive, []string{"vid:mp4"}) {
			t.Errorf("tenant %s: got %+v", tenant, mine)
		}
	}

	// Once more: all is there. And as a program that starts anew: all is
	// reconfigured, in case the template has changed.
	p.ensure(t)
	if n := p.server.Stats(gatewaytest.OpPutEndpoint).Requests; n != len(tenants) {
		t.Errorf("%d calls after Ensure again, want still %d", n, len(tenants))
	}
	p.restart(t, func(cfg *gateway.ProvisionerConfig) { cfg.ExternalID = "urn:example:{tenant}:{tenant}" })
	p.ensure(t)
	for range tenants {
		if r := p.result(t); r.Err != nil || r.Created {
			t.Errorf("got %+v, want an endpoint that was there", r)
		}
	}
	if mine := p.mine(tenants[3]); len(mine) != 1 || mine[0].Name != "Main" {
		t.Errorf("after a restart with another template: got %+v", mine)
	}
}

func TestProvisionerFollowsAuthorizations(t *testing.T) {
	p := newProvisioning(t, nil)
	p.run(t)
	p.result(t)
	follow(t, p.client, p.HandleEvent)
	tenant := p.authorize(t)
	if r := p.result(t); r.Err != nil || !r.Created || r.TenantID != tenant {
		t.Fatalf("got %+v, want a new endpoint in %s", r, tenant)
	}
	// Another scope is none of its business, and neither is losing it.
	elsewhere := p.server.AddTenant()
	p.server.AuthorizeScope(p.server.Application(), elsewhere, "other")
	p.server.AuthorizeScope(p.server.Application(), tenant, "other")
	p.server.Revoke(p.server.Application(), tenant, "other")
	// Withdrawn and given again: the endpoint is made again, once.
	p.server.Revoke(p.server.Application(), tenant, gateway.ScopeEndpointsManage)
	p.server.Authorize(p.server.Application(), tenant)
	if r := p.result(t); r.Err != nil || r.TenantID != tenant || len(p.mine(tenant)) != 1 {
		t.Fatalf("got %+v, want an endpoint in %s again", r, tenant)
	}
	last := p.authorize(t)
	if r := p.result(t); r.TenantID != last {
		t.Errorf("got %+v before the endpoint in %s", r, last)
	}
	if n := len(p.mine(elsewhere)); n != 0 {
		t.Errorf("%d endpoints in a tenant with another scope", n)
	}
}

func TestProvisionerRecreates(t *testing.T) {
	p := newProvisioning(t, func(cfg *gateway.ProvisionerConfig) { cfg.Recreate = true })
	p.run(t)
	first := p.result(t)
	follow(t, p.client, p.HandleEvent)

	p.server.DeleteEndpointByUser(first.Endpoint.ID)
	second := p.result(t)
	if second.Err != nil || !second.Created || second.TenantID != first.TenantID || second.Endpoint.ID == first.Endpoint.ID {
		t.Fatalf("got %+v, want a new endpoint", second)
	}

	// Another endpoint of the application is not of the template.
	other := p.server.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:example:other", Send: []string{"t"}})
	p.server.DeleteEndpointByUser(other.ID)
	// An authorization that is revoked takes its endpoints with it for good.
	tenant := p.authorize(t)
	if r := p.result(t); r.TenantID != tenant {
		t.Fatalf("got %+v, want an endpoint in %s", r, tenant)
	}
	p.server.Revoke(p.server.Application(), tenant, gateway.ScopeEndpointsManage)
	// What comes next shows that nothing was made for any of these.
	last := p.authorize(t)
	if r := p.result(t); r.TenantID != last {
		t.Errorf("got %+v before the endpoint in %s", r, last)
	}
}

func TestProvisionerLeavesDeletionsAlone(t *testing.T) {
	p := newProvisioning(t, nil)
	p.run(t)
	first := p.result(t)
	follow(t, p.client, p.HandleEvent)
	p.server.DeleteEndpointByUser(first.Endpoint.ID)
	p.deleted(t, first)
	next := p.authorize(t)
	if r := p.result(t); r.TenantID != next {
		t.Errorf("got %+v before the endpoint in %s", r, next)
	}
	p.ensure(t)
	if n := len(p.mine(first.TenantID)); n != 0 {
		t.Errorf("the endpoint that the user deleted is back")
	}
	p.server.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: first.ExternalID, Receive: []string{"img:jpeg"}})
	if r := p.result(t); r.Err != nil || r.Created || r.TenantID != first.TenantID {
		t.Errorf("got %+v, want the endpoint that somebody made again", r)
	}
}

// A list that has the endpoint under another ID, with each event, leads to no call.
func TestProvisionerOfAListWithAnotherID(t *testing.T) {
	p := newProvisioning(t, nil)
	p.ensure(t)
	first := p.result(t)
	p.HandleEvent(&gateway.EndpointsListChanged{TenantID: first.TenantID, Endpoints: []gateway.TenantEndpointInfo{
		{ID: uuid.NewString(), ExternalID: first.ExternalID, OwnedByYourApplication: true},
	}})
	p.ensure(t) // does what is pending
	if n := p.server.Stats(gatewaytest.OpPutEndpoint).Requests; n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

// An endpoint that was deleted while there was no stream, by whatever means, is told once, and by no older list.
func TestProvisionerTellsOfDeletions(t *testing.T) {
	p := newProvisioning(t, nil)
	p.run(t)
	first := p.result(t)
	application, tenant := p.server.Application(), first.TenantID
	p.server.Revoke(application, tenant, gateway.ScopeEndpointsManage)
	p.server.Authorize(application, tenant)
	p.Refresh()
	p.deleted(t, first)
	again := p.server.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: first.ExternalID, Receive: []string{"img:jpeg"}})
	p.Refresh()
	if r := p.result(t); r.Err != nil || r.Created || r.Endpoint.ID != again.ID {
		t.Errorf("got %+v, want %s, which somebody made again", r, again.ID)
	}
	p.server.DeleteEndpointByUser(again.ID)
	again = p.server.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: first.ExternalID, Receive: []string{"img:jpeg"}})
	p.Refresh()
	if r := p.result(t); r.Err != nil || r.Created || r.Endpoint.ID != again.ID {
		t.Errorf("got %+v, want %s, which another program made again", r, again.ID)
	}
	p.Refresh()
	next := p.authorize(t)
	p.Refresh()
	if r := p.result(t); r.TenantID != next {
		t.Errorf("got %+v before the endpoint in %s", r, next)
	}
}

func (p *provisioning) deleted(t *testing.T, first gateway.ProvisionResult) {
	t.Helper()
	if r := p.result(t); !errors.Is(r.Err, gateway.ErrEndpointDeleted) || r.Retry || r.TenantID != first.TenantID || r.ExternalID != first.ExternalID {
		t.Errorf("got %+v, want the endpoint in %s deleted", r, first.TenantID)
	}
}

// An endpoint whose entry in the listing cannot be read is still there.
func TestProvisionerDoesNotRecreateWhatCannotBeRead(t *testing.T) {
	p := newProvisioning(t, func(cfg *gateway.ProvisionerConfig) { cfg.Recreate = true })
	p.ensure(t)
	first := p.result(t)
	for name, endpoints := range map[string]string{
		"the endpoint": `[{"id":"` + first.Endpoint.ID + `","name":null}]`, "the list": `"x"`,
	} {
		i := p.server.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{
			Body: []byte(`{"tenants":[{"tenant_id":"` + first.TenantID + `","endpoints":` + endpoints + `}]}`), ContentType: "application/json",
		})
		p.ensure(t)
		i.Lift()
		select {
		case r := <-p.results:
			t.Errorf("%s cannot be read: got %+v, want no attempt", name, r)
		default:
		}
	}
}

// What happened while there was no stream is made good by Refresh.
func TestProvisionerCatchesUp(t *testing.T) {
	p := newProvisioning(t, func(cfg *gateway.ProvisionerConfig) { cfg.Recreate = true })
	p.run(t)
	first := p.result(t)
	p.server.DeleteEndpointByUser(first.Endpoint.ID)
	fresh := p.authorize(t)
	p.Refresh()
	for range 2 {
		if r := p.result(t); r.Err != nil || !r.Created {
			t.Errorf("got %+v, want a new endpoint", r)
		}
	}
	if len(p.mine(first.TenantID)) != 1 || len(p.mine(fresh)) != 1 {
		t.Error("an endpoint is missing")
	}
}

func TestProvisionerRetries(t *testing.T) {
	p := newProvisioning(t, nil)
	const failures = 4
	p.server.Inject(gatewaytest.OpPutEndpoint, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Times: failures})
	err := p.Ensure(testContext(t))
	var failed *gateway.ProvisionError
	if !errors.As(err, &failed) || failed.TenantID != p.server.Tenant() || !errors.Is(err, gateway.ErrUnavailable) {
		t.Fatalf("got error %v, want a ProvisionError for %s", err, p.server.Tenant())
	}
	p.run(t)
	for range failures {
		if r := p.result(t); r.Err == nil || !r.Retry {
			t.Errorf("got %+v, want a failure that is tried again", r)
		}
	}
	if r := p.result(t); r.Err != nil || !r.Created {
		t.Errorf("got %+v, want a new endpoint", r)
	}
}

func TestProvisionerGivesUpOnPermanentFailures(t *testing.T) {
	p := newProvisioning(t, nil)
	p.run(t)
	p.result(t) // so that a 403 is about its tenant
	follow(t, p.client, p.HandleEvent)
	for _, status := range []int{http.StatusBadRequest, http.StatusForbidden} {
		p.server.Inject(gatewaytest.OpPutEndpoint, gatewaytest.Fault{Status: status, Times: 1})
		tenant := p.authorize(t)
		if r := p.result(t); r.TenantID != tenant || r.Err == nil || r.Retry {
			t.Errorf("status %d: got %+v, want a failure that is final", status, r)
		}
	}
	last := p.authorize(t)
	if r := p.result(t); r.TenantID != last || r.Err != nil {
		t.Errorf("got %+v before the endpoint in %s", r, last)
	}
}

// A 403 before anything has succeeded may be about everybody.
func TestProvisionerTriesForbiddenAgainWhileNothingSucceeds(t *testing.T) {
	p := newProvisioning(t, nil)
	p.server.Inject(gatewaytest.OpPutEndpoint, gatewaytest.Fault{Status: http.StatusForbidden, Times: 2})
	if err := p.Ensure(testContext(t)); !errors.Is(err, gateway.ErrForbidden) {
		t.Fatalf("got error %v, want the refusal", err)
	}
	p.run(t)
	for range 2 {
		if r := p.result(t); !errors.Is(r.Err, gateway.ErrForbidden) || !r.Retry {
			t.Errorf("got %+v, want a failure that is tried again", r)
		}
	}
	if r := p.result(t); r.Err != nil || !r.Created {
		t.Errorf("got %+v, want a new endpoint", r)
	}
}

// inFlight counts the requests of PUT that are under way at once.
type inFlight struct {
	base      http.RoundTripper
	now, most atomic.Int64
}

func (f *inFlight) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodPut {
		n := f.now.Add(1)
		defer f.now.Add(-1)
		for most := f.most.Load(); n > most && !f.most.CompareAndSwap(most, n); most = f.most.Load() {
		}
	}
	return f.base.RoundTrip(req)
}

func TestProvisionerConcurrencyIsBounded(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{})
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	flight := &inFlight{base: base}
	clientConfig := s.ClientConfig()
	clientConfig.Transport = flight
	cfg := provisionerConfig(s, newClient(t, clientConfig))
	cfg.Concurrency = 3
	done := make(chan struct{}, 100)
	cfg.OnResult = func(gateway.ProvisionResult) { done <- struct{}{} }
	p := testkit.Must(gateway.NewProvisioner(cfg))(t)
	add := func(n int) {
		for range n {
			tenant := s.AddTenant()
			s.Authorize(s.Application(), tenant)
			p.HandleEvent(&gateway.AuthorizationAdded{Tenant: gateway.TenantInfo{ID: tenant}, Scope: gateway.ScopeEndpointsManage})
		}
	}
	add(20)
	testkit.NoError(t, p.Ensure(testContext(t)))
	add(20)
	ctx, cancel := context.WithCancel(testContext(t))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }() // ends with ctx
	for range 41 {                      // the default tenant is one more
		<-done
	}
	cancel()
	testkit.NoError(t, <-ended)
	if most := flight.most.Load(); most < 1 || most > 3 {
		t.Errorf("%d calls at a time, want at most 3", most)
	}
}

// Nothing that was under way when a context ended is forgotten.
func TestProvisionerContextEnds(t *testing.T) {
	p := newProvisioning(t, func(cfg *gateway.ProvisionerConfig) { cfg.Concurrency = 1 })
	p.authorize(t)
	canceled, cancel := context.WithCancel(testContext(t))
	arrived := make(chan struct{}, 1)
	hang := p.server.Inject(gatewaytest.OpPutEndpoint, gatewaytest.Fault{Hang: true, Match: func(*http.Request) bool {
		select {
		case arrived <- struct{}{}:
		default:
		}
		return true
	}})
	ensured := make(chan error, 1)
	go func() { ensured <- p.Ensure(canceled) }() // ends with its context
	<-arrived
	cancel()
	testkit.ErrorIs(t, <-ensured, context.Canceled)
	if err := p.Run(canceled); err != nil {
		t.Errorf("Run with a context that has ended: %v", err)
	}
	hang.Lift()
	p.run(t)
	made := map[string]bool{}
	for len(made) < 2 {
		if r := p.result(t); r.Err == nil {
			made[r.TenantID] = true
		}
	}
}

func TestProvisionerListingFails(t *testing.T) {
	p := newProvisioning(t, nil)
	p.server.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Times: 3})
	testkit.ErrorIs(t, p.Ensure(testContext(t)), gateway.ErrUnavailable)
	p.run(t)
	if r := p.result(t); r.Err != nil || !r.Created {
		t.Errorf("got %+v, want a new endpoint once the list is there", r)
	}
}

// provisionCalls is a client in one tenant, whose answers a test decides.
type provisionCalls struct {
	mu     sync.Mutex
	listed []time.Time // when the list was asked for
	put    int
	err    error // of the list
}

// calls returns when the list was asked for, and how many endpoints were made.
func (c *provisionCalls) calls() (listed []time.Time, put int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.listed), c.put
}

// fails sets the error of the list.
func (c *provisionCalls) fails(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func (c *provisionCalls) ListAuthorizedTenants(context.Context) ([]gateway.TenantInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listed = append(c.listed, time.Now())
	return []gateway.TenantInfo{{ID: tenantA}}, c.err
}

func (c *provisionCalls) PutEndpoint(_ context.Context, tenant, externalID string, _ gateway.PutEndpointRequest) (gateway.Endpoint, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put++
	return gateway.Endpoint{ID: idOne, TenantID: tenant, ExternalID: externalID}, true, nil
}

// runs runs a provisioner that recreates endpoints, within a bubble.
func (c *provisionCalls) runs(t *testing.T) *gateway.Provisioner {
	t.Helper()
	return runProvisioner(t, c)
}

func runProvisioner(t *testing.T, client gateway.ProvisionClient) *gateway.Provisioner {
	t.Helper()
	cfg := gateway.ProvisionerConfig{Client: client, ExternalID: "urn:example:main", Recreate: true}
	cfg.Endpoint.ApplicationID, cfg.Endpoint.SoftwareVersionID = idTwo, idThree
	p := testkit.Must(gateway.NewProvisioner(cfg))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		testkit.NoError(t, <-done)
	})
	synctest.Wait()
	return p
}

// While the list fails, it is asked for again and again, after 15 seconds at most, and at once when Refresh says so.
func TestProvisionerAsksForTheListAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &provisionCalls{err: gateway.ErrUnavailable}
		p := c.runs(t)
		time.Sleep(10 * time.Minute)
		listed, _ := c.calls()
		for i := range listed[1:] {
			if wait := listed[i+1].Sub(listed[i]); wait > 15*time.Second || i > 5 && wait < 5*time.Second {
				t.Errorf("request %d came %v after the one before", i+1, wait)
			}
		}
		asked := len(listed)
		p.Refresh()
		synctest.Wait()
		if listed, _ = c.calls(); len(listed) != asked+1 || time.Since(listed[asked]) > 0 {
			t.Error("Refresh does not ask at once")
		}
		c.fails(nil)
		time.Sleep(15 * time.Second)
		listed, put := c.calls()
		if asked = len(listed); put != 1 {
			t.Errorf("%d endpoints made once the list is there, want 1", put)
		}
		time.Sleep(time.Hour)
		if listed, _ = c.calls(); len(listed) != asked {
			t.Error("the list is asked for without a reason")
		}
		p.Refresh()
		synctest.Wait()
		if listed, _ = c.calls(); len(listed) != asked+1 {
			t.Error("Refresh does not ask for a list that has come before")
		}
	})
}

// The endpoints that a revocation removes are not taken for deletions by the user.
func TestProvisionerForgetsARevokedTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &provisionCalls{}
		p := c.runs(t)
		p.HandleEvent(&gateway.AuthorizationRevoked{TenantID: strings.ToUpper(tenantA), Scope: gateway.ScopeEndpointsManage})
		p.HandleEvent(&gateway.EndpointDeleted{ID: idOne, ExternalID: "urn:example:main"})
		synctest.Wait()
		if _, put := c.calls(); put != 1 {
			t.Errorf("%d calls, want the first one", put)
		}
	})
}

// slowTenants is a client that takes a minute to fail in all tenants but one.
type slowTenants struct {
	good   string
	served chan struct{} // closed once the good one is asked for
}

func (c *slowTenants) ListAuthorizedTenants(context.Context) (list []gateway.TenantInfo, _ error) {
	for range 400 {
		list = append(list, gateway.TenantInfo{ID: uuid.NewString()})
	}
	return list, nil
}

func (c *slowTenants) PutEndpoint(_ context.Context, tenant, _ string, _ gateway.PutEndpointRequest) (gateway.Endpoint, bool, error) {
	if tenant == c.good {
		close(c.served)
		return gateway.Endpoint{ID: idOne}, true, nil
	}
	time.Sleep(time.Minute)
	return gateway.Endpoint{}, false, gateway.ErrUnavailable
}

// However many tenants fail, and are due again, a new one is the next.
func TestProvisionerFailingTenantsHoldNoOtherUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &slowTenants{good: uuid.NewString(), served: make(chan struct{})}
		p := runProvisioner(t, c)
		time.Sleep(3 * time.Hour)
		began := time.Now()
		p.HandleEvent(&gateway.AuthorizationAdded{Tenant: gateway.TenantInfo{ID: c.good}, Scope: gateway.ScopeEndpointsManage})
		<-c.served
		if waited := time.Since(began); waited > time.Minute {
			t.Errorf("waited %v, want a minute at most", waited)
		}
	})
}

func TestProvisionerConfigValidate(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{})
	good := provisionerConfig(s, newClient(t, s.ClientConfig()))
	testkit.NoError(t, good.Validate())
	for field, change := range map[string]func(*gateway.ProvisionerConfig){
		"Client":         func(c *gateway.ProvisionerConfig) { c.Client = nil },
		"externalId":     func(c *gateway.ProvisionerConfig) { c.ExternalID = "no colon {tenant}" },
		"application_id": func(c *gateway.ProvisionerConfig) { c.Endpoint.ApplicationID = "" },
		"endpoint_type":  func(c *gateway.ProvisionerConfig) { c.Endpoint.EndpointType = "tractor" },
		"Concurrency":    func(c *gateway.ProvisionerConfig) { c.Concurrency = -1 },
		"InitialBackoff": func(c *gateway.ProvisionerConfig) { c.InitialBackoff = -1 },
		"MaxBackoff":     func(c *gateway.ProvisionerConfig) { c.InitialBackoff, c.MaxBackoff = 2, 1 },
	} {
		cfg := good
		change(&cfg)
		_, err := gateway.NewProvisioner(cfg)
		var invalid *gateway.ValidationError
		if !errors.As(err, &invalid) || !strings.EqualFold(invalid.Field, field) {
			t.Errorf("%s: got error %v", field, err)
		}
	}
}
