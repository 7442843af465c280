package gateway_test

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// lister answers the listings of a directory as a test wants.
type lister struct {
	mu        sync.Mutex
	tenants   []gateway.TenantInfo
	endpoints func(ctx context.Context, tenantID string) (gateway.TenantInfo, error)
	asked     []string
	during    func() // called by ListAuthorizedTenants
}

func (l *lister) ListAuthorizedTenants(context.Context) ([]gateway.TenantInfo, error) {
	if l.during != nil {
		l.during()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tenants, nil
}

func (l *lister) TenantEndpoints(ctx context.Context, tenantID string) (gateway.TenantInfo, error) {
	l.mu.Lock()
	l.asked = append(l.asked, tenantID)
	answer := l.endpoints
	l.mu.Unlock()
	return answer(ctx, tenantID)
}

func (l *lister) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.asked)
}

func listOf(tenant string, ids ...string) gateway.TenantInfo {
	info := gateway.TenantInfo{ID: tenant, Endpoints: []gateway.TenantEndpointInfo{}}
	for _, id := range ids {
		info.Endpoints = append(info.Endpoints, gateway.TenantEndpointInfo{ID: id, TenantID: tenant, OwnedByYourApplication: true})
	}
	return info
}

// keepFresh runs until the test function ends.
func keepFresh(t *testing.T, d *gateway.Directory, failed func(string, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		d.KeepFresh(ctx, failed)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func idsIn(d *gateway.Directory, tenant string) []string {
	ids := []string{}
	for _, e := range d.Mine(tenant) {
		ids = append(ids, e.ID)
	}
	return ids
}

func wantIDs(t *testing.T, d *gateway.Directory, tenant string, want ...string) {
	t.Helper()
	if got := idsIn(d, tenant); !reflect.DeepEqual(got, append([]string{}, want...)) {
		t.Errorf("tenant %.4s has %q, want %q", tenant, got, want)
	}
}

// An ENDPOINTS_LIST_CHANGED without a list empties nothing: it is asked for, again
// and again while that fails, and a tenant that cannot be asked holds up no other.
func TestDirectoryAsksForAListThatAnEventLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lister{tenants: []gateway.TenantInfo{listOf(tenantA, idOne), listOf(tenantB, idTwo)}}
		for n := range 5 {
			l.tenants = append(l.tenants, listOf(hanging(n)))
		}
		failures := 0
		l.endpoints = func(ctx context.Context, tenant string) (gateway.TenantInfo, error) {
			switch tenant {
			case tenantA:
				return listOf(tenantA, idOne, idThree), nil
			case tenantB:
				if failures++; failures < 3 {
					return gateway.TenantInfo{}, errors.New("unavailable")
				}
				return listOf(tenantB), nil
			}
			<-ctx.Done()
			return gateway.TenantInfo{}, ctx.Err()
		}
		d := gateway.NewDirectory(l)
		testkit.NoError(t, d.Sync(t.Context()))
		var mu sync.Mutex
		told := map[string]int{}
		keepFresh(t, d, func(tenant string, _ error) {
			mu.Lock()
			defer mu.Unlock()
			told[tenant]++
		})
		// More that hang than there may be calls at a time.
		for n := range 5 {
			d.HandleEvent(&gateway.EndpointsListChanged{TenantID: hanging(n)})
		}
		synctest.Wait()
		d.HandleEvent(&gateway.EndpointsListChanged{TenantID: tenantA})
		d.HandleEvent(&gateway.EndpointsListChanged{TenantID: tenantB})
		wantIDs(t, d, tenantA, idOne)
		wantIDs(t, d, tenantB, idTwo)
		time.Sleep(2 * time.Minute)
		wantIDs(t, d, tenantA, idOne, idThree)
		wantIDs(t, d, tenantB)
		mu.Lock()
		defer mu.Unlock()
		if told[tenantB] != 2 || told[tenantA] != 0 || told[hanging(0)] == 0 {
			t.Errorf("failures told: %v", told)
		}
	})
}

func hanging(n int) string { return "cccccccc-0000-4000-8000-00000000000" + string(rune('0'+n)) }

// What events tell while the list is asked for is newer than the answer.
func TestDirectoryListThatIsOlderThanAnEvent(t *testing.T) {
	for name, test := range map[string]struct {
		event gateway.Event
		want  []string
		calls int
	}{
		"a list":             {&gateway.EndpointsListChanged{TenantID: tenantA, Endpoints: listOf(tenantA, idThree).Endpoints}, []string{idThree}, 1},
		"none once more":     {&gateway.EndpointsListChanged{TenantID: tenantA}, []string{idTwo}, 2},
		"a deletion":         {&gateway.EndpointDeleted{ID: idOne}, []string{idTwo}, 2},
		"an authorization":   {&gateway.AuthorizationAdded{Tenant: listOf(tenantA, idThree), Scope: gateway.ScopeEndpointsManage}, []string{idThree}, 1},
		"a revocation":       {&gateway.AuthorizationRevoked{TenantID: tenantA, Scope: gateway.ScopeEndpointsManage}, nil, 1},
		"an event elsewhere": {&gateway.EndpointsListChanged{TenantID: tenantB, Endpoints: listOf(tenantB).Endpoints}, []string{idOne}, 1},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			answer := make(chan gateway.TenantInfo)
			l := &lister{tenants: []gateway.TenantInfo{listOf(tenantA, idOne, idTwo), listOf(tenantB)}}
			l.endpoints = func(ctx context.Context, _ string) (gateway.TenantInfo, error) {
				select {
				case info := <-answer:
					return info, nil
				case <-ctx.Done():
					return gateway.TenantInfo{}, ctx.Err()
				}
			}
			d := gateway.NewDirectory(l)
			testkit.NoError(t, d.Sync(t.Context()))
			keepFresh(t, d, nil)
			d.HandleEvent(&gateway.EndpointsListChanged{TenantID: tenantA})
			synctest.Wait()
			d.HandleEvent(test.event)
			answer <- listOf(tenantA, idOne)
			synctest.Wait()
			if test.calls == 2 {
				answer <- listOf(tenantA, idTwo)
				synctest.Wait()
			}
			wantIDs(t, d, tenantA, test.want...)
			if l.count() != test.calls {
				t.Errorf("asked %d times, want %d", l.count(), test.calls)
			}
		})
	}
}

// A Sync brings every list. One that an event leaves out during it is newer.
func TestDirectorySyncSettlesWhatIsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lister{tenants: []gateway.TenantInfo{listOf(tenantA, idOne)}}
		l.endpoints = func(context.Context, string) (gateway.TenantInfo, error) { return listOf(tenantA, idTwo), nil }
		d := gateway.NewDirectory(l)
		d.HandleEvent(&gateway.EndpointsListChanged{TenantID: tenantA})
		testkit.NoError(t, d.Sync(t.Context()))
		keepFresh(t, d, nil)
		synctest.Wait()
		if wantIDs(t, d, tenantA, idOne); l.count() != 0 {
			t.Errorf("asked for %q after a Sync", l.asked)
		}
		l.during = func() { d.HandleEvent(&gateway.EndpointsListChanged{TenantID: tenantA}) }
		testkit.NoError(t, d.Sync(t.Context()))
		synctest.Wait()
		wantIDs(t, d, tenantA, idTwo)
	})
}

// Those that wait for a Sync share the next one, which is newer than what any of them knows.
func TestDirectorySyncIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		l := &lister{during: func() {
			calls++
			time.Sleep(time.Second)
		}}
		d := gateway.NewDirectory(l)
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				time.Sleep(time.Duration(i))
				if err := d.Sync(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if calls != 2 {
			t.Errorf("%d calls, want the first one and one for the others", calls)
		}
		if testkit.NoError(t, d.Sync(t.Context())); calls != 3 {
			t.Errorf("%d calls, want one more for a later Sync", calls)
		}
	})
}

// Events that arrive between the moment the service made up its answer and the moment the answer is here
// are newer than it, and must survive it, whatever their owner does with them afterwards.
func TestDirectorySyncKeepsNewerEvents(t *testing.T) {
	const manage = gateway.ScopeEndpointsManage
	const idFour = "44444444-0000-4000-8000-000000000004"
	joined, other := hanging(0), hanging(1)
	l := &lister{tenants: []gateway.TenantInfo{listOf(tenantA, idOne, idTwo), listOf(tenantB)}}
	d := gateway.NewDirectory(l)
	added, changed := listOf(other, idFour), listOf(joined, idThree)
	l.during = func() {
		for _, event := range []gateway.Event{
			&gateway.EndpointDeleted{ID: idOne},
			&gateway.AuthorizationAdded{Tenant: listOf(joined), Scope: manage},
			&gateway.AuthorizationAdded{Tenant: added, Scope: manage},
			&gateway.EndpointsListChanged{TenantID: joined, Endpoints: changed.Endpoints},
			&gateway.AuthorizationRevoked{TenantID: tenantB, Scope: manage},
		} {
			d.HandleEvent(event)
			reflect.ValueOf(event).Elem().SetZero()
		}
		added.Endpoints[0].ID, changed.Endpoints[0].ID = "spoilt", "spoilt"
	}
	testkit.NoError(t, d.Sync(t.Context()))
	wantIDs(t, d, tenantA, idTwo)
	wantIDs(t, d, joined, idThree)
	wantIDs(t, d, other, idFour)
	if d.Scopes(tenantB) != nil || !d.Authorized(tenantA, manage) || !d.Authorized(joined, manage) {
		t.Errorf("got %+v", d.Tenants())
	}
}

// What is listed and cannot be read is still there: it keeps its tenant, and what
// was known of it.
func TestDirectoryKeepsWhatCannotBeRead(t *testing.T) {
	l := &lister{tenants: []gateway.TenantInfo{listOf(tenantA, idOne, idTwo), listOf(tenantB, idThree)}}
	d := gateway.NewDirectory(l)
	sync := func(tenants ...gateway.TenantInfo) {
		t.Helper()
		l.tenants = tenants
		testkit.NoError(t, d.Sync(t.Context()))
	}
	sync(l.tenants...)
	const unknown = "44444444-0000-4000-8000-000000000004"
	leftOut := func(id string) *gateway.EntryError {
		return &gateway.EntryError{Field: "x", Reason: "is missing", EndpointID: id}
	}
	a := listOf(tenantA, idOne)
	a.Unreadable = []*gateway.EntryError{leftOut(idTwo), leftOut(unknown), leftOut("")}
	sync(a, gateway.TenantInfo{ID: tenantB, Unreadable: []*gateway.EntryError{leftOut("")}})
	wantIDs(t, d, tenantA, idOne, idTwo)
	wantIDs(t, d, tenantB, idThree)
	if tenant, ok := d.TenantOf(unknown); !ok || tenant != tenantA {
		t.Errorf("the tenant of an endpoint that cannot be read is %q", tenant)
	}
	if _, ok := d.Endpoint(unknown); ok {
		t.Error("an endpoint of which nothing is known")
	}
	d.HandleEvent(&gateway.EndpointDeleted{ID: unknown})
	if _, ok := d.TenantOf(unknown); ok {
		t.Error("a deleted endpoint has a tenant")
	}
	d.HandleEvent(&gateway.EndpointsListChanged{TenantID: tenantA, Endpoints: a.Endpoints, Unreadable: a.Unreadable[:1]})
	wantIDs(t, d, tenantA, idOne, idTwo)
	sync(listOf(tenantA, idOne), listOf(tenantB))
	wantIDs(t, d, tenantA, idOne)
	wantIDs(t, d, tenantB)
	if _, ok := d.TenantOf(idTwo); ok {
		t.Error("an endpoint that is no longer listed has a tenant")
	}
}
