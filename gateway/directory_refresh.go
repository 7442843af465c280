package gateway

import (
	"context"
	"maps"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/wakeup"
)

// Bounds of [Directory.KeepFresh].
const (
	refreshConcurrency    = 4
	refreshTimeout        = 10 * time.Second
	initialRefreshBackoff = time.Second
	maxRefreshBackoff     = 5 * time.Minute
)

// endpointLister lists the endpoints of one tenant. [*Client] is one.
type endpointLister interface {
	TenantEndpoints(ctx context.Context, tenantID string) (TenantInfo, error)
}

// staleTenant is a tenant whose list has to be fetched. It is guarded by Directory.mu. It is pending again when an event
// of the tenant comes while its list is fetched: that list may be older than the event.
type staleTenant struct {
	id string
	job
}

// markStale causes the list of the tenant to be fetched. d.mu is held.
func (d *Directory) markStale(tenantID string) {
	s := d.stale[fold(tenantID)]
	if s == nil {
		s = &staleTenant{id: tenantID}
		d.stale[fold(tenantID)] = s
	}
	s.pending, s.failures, s.due = true, 0, time.Time{}
	wakeup.Token(d.wake)
}

// KeepFresh fetches the endpoints of each tenant whose list an ENDPOINTS_LIST_CHANGED left out, several at a time,
// and retries with increasing backoff; until then, the tenant keeps what was known, and the others do not wait. It
// blocks until ctx ends and may run more than once at a time. A Subscriber whose Config.Tenants is the Directory runs
// it as long as its stream is needed.
//
// Failed, if not nil, is called after each failed attempt, possibly concurrently and without a lock held.
func (d *Directory) KeepFresh(ctx context.Context, failed func(tenantID string, err error)) {
	// If another KeepFresh is running, leave to it what this one was woken for.
	defer wakeup.Token(d.wake)
	runDue(ctx, refreshConcurrency, d.wake, func(now time.Time) (func(), time.Duration) {
		d.mu.Lock()
		s, found, wait := beginNext(maps.Values(d.stale), now)
		d.mu.Unlock()
		if !found {
			return nil, wait
		}
		return func() {
			if err := d.refresh(ctx, s); err != nil && ctx.Err() == nil && failed != nil {
				failed(s.id, err)
			}
		}, 0
	})
}

// refresh makes one attempt for a tenant that is marked busy.
func (d *Directory) refresh(ctx context.Context, s *staleTenant) error {
	// A call that hangs must not keep its slot from the others.
	attempt, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	var info TenantInfo
	var err error
	lister, one := d.lister.(endpointLister)
	if one {
		info, err = lister.TenantEndpoints(attempt, s.id)
	} else {
		err = d.Sync(attempt) // on success it refreshes all of them
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	s.busy = false
	if d.stale[fold(s.id)] != s {
		return nil // events or a Sync have provided the list in the meantime
	}
	defer wakeup.Token(d.wake)
	if err == nil && one && !s.pending {
		delete(d.stale, fold(s.id))
		d.replaceList(s.id, info.Endpoints, info.Unreadable)
		return nil
	}
	s.pending = true
	if err != nil && ctx.Err() == nil { // otherwise it is no failure of the tenant
		policy := backoff.Policy{Initial: initialRefreshBackoff, Max: maxRefreshBackoff}
		s.due = time.Now().Add(policy.Delay(s.failures))
		s.failures++
	}
	return err
}
