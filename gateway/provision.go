package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/wakeup"
)

// Defaults of [ProvisionerConfig].
const (
	defaultProvisionConcurrency    = 4
	defaultProvisionInitialBackoff = time.Second
	defaultProvisionMaxBackoff     = 5 * time.Minute
	maxListBackoff                 = 15 * time.Second // one request, on which all tenants wait
)

// TenantPlaceholder is replaced by the tenant's ID in [ProvisionerConfig.ExternalID].
const TenantPlaceholder = "{tenant}"

// ProvisionClient is what a [Provisioner] needs from a client. [*Client] implements it.
type ProvisionClient interface {
	TenantLister
	PutEndpoint(ctx context.Context, tenantID, externalID string, req PutEndpointRequest) (Endpoint, bool, error)
}

// ProvisionerConfig configures a [Provisioner]. It is passed by value and never
// modified.
type ProvisionerConfig struct {
	// Client makes the calls. Required.
	Client ProvisionClient
	// ExternalID is the external ID of the endpoint, in which every [TenantPlaceholder] is replaced by the tenant's ID; it
	// may have none. Required.
	ExternalID string
	// Endpoint is the template, by default of type [EndpointTypeCloudSoftware]. Required.
	Endpoint PutEndpointRequest
	// Customize, if set, modifies its own copy of the request for one tenant. It is called concurrently.
	Customize func(tenantID string, req *PutEndpointRequest)
	// Recreate makes the provisioner recreate an endpoint that was deleted. Default false: it stays deleted until the tenant
	// authorizes the application again or the program is restarted.
	Recreate bool

	// Concurrency is the maximum number of concurrent calls. Zero means 4.
	Concurrency int
	// InitialBackoff is the first wait after a temporary failure and the client's own retries, doubled with each further
	// one up to MaxBackoff, with jitter. Zero means 1 second.
	InitialBackoff time.Duration
	// MaxBackoff is the longest wait; for the list of tenants, at most 15 seconds. Zero means 5 minutes.
	MaxBackoff time.Duration

	// OnResult, if set, is called with each result, concurrently, never under a lock.
	OnResult func(ProvisionResult)
	// Logger may be nil, which discards all output.
	Logger *slog.Logger
}

func (c *ProvisionerConfig) setDefaults() {
	c.Endpoint.EndpointType = cmp.Or(c.Endpoint.EndpointType, EndpointTypeCloudSoftware)
	c.Concurrency = cmp.Or(c.Concurrency, defaultProvisionConcurrency)
	c.InitialBackoff = cmp.Or(c.InitialBackoff, defaultProvisionInitialBackoff)
	if c.MaxBackoff == 0 {
		c.MaxBackoff = max(defaultProvisionMaxBackoff, c.InitialBackoff)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Endpoint = cloneRequest(c.Endpoint)
}

// Validate reports every field with an invalid value; the error matches
// [ErrConfig]. The requests that Customize modifies are validated with the call.
func (c ProvisionerConfig) Validate() error {
	c.setDefaults()
	e := validate.Errors{Cause: validationCause}
	e.Check(c.Client != nil, "Client", "is required")
	if rule, ok := errors.AsType[*ValidationError](ValidateExternalID(expandExternalID(c.ExternalID, "00000000-0000-0000-0000-000000000000"))); ok {
		e.AddCause(rule, "ExternalID", "%s", rule.Rule)
	}
	e.Join("Endpoint", c.Endpoint.Validate())
	validate.NotNegative(&e, "Concurrency", c.Concurrency)
	validate.NotNegative(&e, "InitialBackoff", c.InitialBackoff)
	e.Check(c.MaxBackoff >= c.InitialBackoff, "MaxBackoff", "must not be less than %s", validate.Field("InitialBackoff"))
	return e.Err(ErrConfig)
}

// ProvisionResult is the result of one attempt in one tenant, or says that the endpoint there was deleted.
type ProvisionResult struct {
	TenantID   string
	ExternalID string
	// Endpoint is the endpoint if Err is nil.
	Endpoint Endpoint
	// Created is true for a new endpoint, false for one that was reconfigured.
	Created bool
	// Err is why the attempt failed. If it is [ErrEndpointDeleted], there was none: the endpoint stays deleted, see
	// [ProvisionerConfig.Recreate].
	Err error
	// Retry reports whether [Provisioner.Run] retries a failed attempt.
	Retry bool
}

// ProvisionError is the failure in one tenant.
type ProvisionError struct {
	TenantID   string
	ExternalID string
	Err        error
}

// Error returns the external ID, the tenant and the cause.
func (e *ProvisionError) Error() string {
	return fmt.Sprintf("gateway: provision %s in tenant %s: %v", e.ExternalID, e.TenantID, e.Err)
}

// Unwrap returns the cause.
func (e *ProvisionError) Unwrap() error { return e.Err }

// Provisioner ensures that the application has an endpoint in every tenant that authorized it for [ScopeEndpointsManage].
// [Provisioner.Run] does the work. After a reconnect of the event stream, call [Provisioner.Refresh]: events may have been
// missed. All methods are safe for concurrent use.
type Provisioner struct {
	cfg   ProvisionerConfig
	retry backoff.Policy
	wake  chan struct{}

	mu       sync.Mutex
	tenants  map[string]*provisionTenant // by lower-case ID
	listings int                         // counts the requests for the list
	listing  job                         // the list that Run requests
}

// provisionTenant is the state of one tenant.
type provisionTenant struct {
	id         string
	since      int    // the number of listings when the tenant was added
	endpointID string // of the last success; empty after a deletion
	deletedID  string // of the last deletion
	changed    int    // the number of listings at the last success or deletion
	done       bool   // an attempt has succeeded
	job
}

// NewProvisioner returns a Provisioner. The error matches [ErrInvalid].
func NewProvisioner(cfg ProvisionerConfig) (*Provisioner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	return &Provisioner{
		cfg:     cfg,
		retry:   backoff.Policy{Initial: cfg.InitialBackoff, Max: cfg.MaxBackoff},
		wake:    make(chan struct{}, 1),
		tenants: map[string]*provisionTenant{},
	}, nil
}

// Ensure does at once what [Provisioner.Run] does at its start: it lists the authorized tenants and creates or reconfigures
// the endpoint in each, several at a time. Tenants in which this Provisioner has already provisioned the endpoint are left
// alone, unless it is gone and Recreate is set. (An authorization that was revoked and granted again in between cannot be
// distinguished from a deletion by the user.)
//
// It blocks until there has been one attempt in each tenant. The error is that of the listing, or the errors.Join of one
// [*ProvisionError] for each tenant that failed. Temporary failures are also retried by Run.
func (p *Provisioner) Ensure(ctx context.Context) error {
	work, err := p.list(ctx)
	if err != nil {
		return err
	}
	errs := make([]error, len(work))
	var calls errgroup.Group
	calls.SetLimit(p.cfg.Concurrency)
	for i, t := range work {
		if ctx.Err() != nil {
			p.requeue(work[i:])
			break
		}
		calls.Go(func() error { // ends with its call, which ends with ctx
			errs[i] = p.attempt(ctx, t)
			return nil
		})
	}
	_ = calls.Wait() // each tenant has its own error
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// list requests the list of tenants and returns those to work on, marked busy.
func (p *Provisioner) list(ctx context.Context) ([]*provisionTenant, error) {
	p.mu.Lock()
	p.listings++
	listing := p.listings
	p.mu.Unlock()
	list, err := p.cfg.Client.ListAuthorizedTenants(ctx)
	if err != nil {
		return nil, err
	}
	work, deleted := p.compare(list, listing)
	p.report(ctx, deleted...)
	return work, nil
}

// compare processes a listing and returns the tenants to work on, marked busy, and those in which the endpoint was deleted.
func (p *Provisioner) compare(list []TenantInfo, listing int) (work []*provisionTenant, deleted []ProvisionResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	listed := make(map[string]struct{}, len(list))
	for _, info := range list {
		listed[fold(info.ID)] = struct{}{}
		t := p.tenant(info.ID)
		there := !info.listReadable() ||
			slices.ContainsFunc(info.Endpoints, func(e TenantEndpointInfo) bool { return sameID(e.ID, t.endpointID) }) ||
			slices.ContainsFunc(info.Unreadable, func(e *EntryError) bool { return sameID(e.EndpointID, t.endpointID) })
		older := listing <= t.changed
		switch {
		case t.busy: // the attempt in progress is as recent as this listing
		case !t.done, t.pending, !there && p.cfg.Recreate, !older && p.madeAgain(t, info.Endpoints):
			t.begin()
			work = append(work, t)
		case !there && !older && t.endpointID != "" && len(info.Unreadable) == 0:
			deleted = append(deleted, p.lose(t))
		}
	}
	maps.DeleteFunc(p.tenants, func(id string, t *provisionTenant) bool {
		// A tenant added after the listing was requested may be missing from it.
		_, ok := listed[id]
		return !ok && t.since < listing
	})
	return work, deleted
}

// lose takes in that somebody else deleted the endpoint of t. p.mu is held.
func (p *Provisioner) lose(t *provisionTenant) ProvisionResult {
	t.endpointID, t.changed = "", p.listings
	return ProvisionResult{TenantID: t.id, ExternalID: expandExternalID(p.cfg.ExternalID, t.id), Err: ErrEndpointDeleted}
}

// madeAgain reports whether a list has another endpoint in place of that of t, which was deleted. p.mu is held.
func (p *Provisioner) madeAgain(t *provisionTenant, list []TenantEndpointInfo) bool {
	return t.done && !t.busy && slices.ContainsFunc(list, func(e TenantEndpointInfo) bool {
		return e.OwnedByYourApplication && e.ExternalID == expandExternalID(p.cfg.ExternalID, t.id) && !sameID(e.ID, t.endpointID)
	})
}

// requeue leaves tenants that have not been worked on to Run.
func (p *Provisioner) requeue(work []*provisionTenant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range work {
		t.busy = false
		p.enqueue(&t.job, time.Time{})
	}
}

// Refresh makes [Provisioner.Run] list the tenants again. It does not block.
func (p *Provisioner) Refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listing.failures = 0
	p.enqueue(&p.listing, time.Time{})
}

// HandleEvent processes an event. It never blocks for long and only queues work for [Provisioner.Run]. It accepts every
// event of a stream, in stream order.
//
//   - AUTHORIZATION_ADDED for [ScopeEndpointsManage]: the endpoint is provisioned.
//   - AUTHORIZATION_REVOKED for that scope: the tenant is forgotten, so that the ENDPOINT_DELETED events that follow are
//     not mistaken for deletions by the user.
//   - ENDPOINT_DELETED of an endpoint that was provisioned here: it is recreated if Recreate is set, and else reported.
//   - ENDPOINTS_LIST_CHANGED: an endpoint that was deleted, and that somebody else made again, is reconfigured.
func (p *Provisioner) HandleEvent(event Event) {
	p.report(context.Background(), p.handle(event)...)
}

// handle processes an event and returns those tenants in which the endpoint was deleted.
func (p *Provisioner) handle(event Event) (deleted []ProvisionResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *AuthorizationAdded:
		if e.Scope == ScopeEndpointsManage {
			t := p.tenant(e.Tenant.ID)
			t.failures = 0
			p.enqueue(&t.job, time.Time{})
		}
	case *AuthorizationRevoked:
		if e.Scope == ScopeEndpointsManage {
			delete(p.tenants, fold(e.TenantID))
		}
	case *EndpointDeleted:
		for _, t := range p.tenants {
			// The ID may not be known yet while a call is in progress.
			unknown := t.busy && e.ExternalID == expandExternalID(p.cfg.ExternalID, t.id)
			if !unknown && (t.endpointID == "" || !sameID(t.endpointID, e.ID)) {
				continue
			}
			t.deletedID = e.ID
			lost := p.lose(t)
			switch {
			case p.cfg.Recreate:
				t.failures = 0
				p.enqueue(&t.job, time.Time{})
			case !t.busy:
				deleted = append(deleted, lost)
			}
		}
	case *EndpointsListChanged:
		// Only after a deletion: a list that never has the ID that calls return would lead to a call with each event.
		if t := p.tenants[fold(e.TenantID)]; t != nil && t.endpointID == "" && p.madeAgain(t, e.Endpoints) {
			p.enqueue(&t.job, time.Time{})
		}
	}
	return deleted
}

// Run lists the authorized tenants and provisions the endpoint in each, performs the work required by events, and
// retries what has failed for now. It blocks until ctx ends, waits for the calls in progress, which end with it, and
// returns nil. Only one Run may be active at a time.
func (p *Provisioner) Run(ctx context.Context) error {
	p.Refresh()
	runDue(ctx, p.cfg.Concurrency, p.wake, func(now time.Time) (func(), time.Duration) { return p.next(ctx, now) })
	return nil
}

// next returns a call that is due, marked busy, or how long to wait: the list first.
func (p *Provisioner) next(ctx context.Context, now time.Time) (call func(), wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, found, wait := beginNext(slices.Values([]*job{&p.listing}), now)
	if found {
		return func() { p.refresh(ctx) }, 0
	}
	t, found, left := beginNext(maps.Values(p.tenants), now)
	if !found {
		return nil, min(wait, left)
	}
	return func() { _ = p.attempt(ctx, t) }, 0 // reported by attempt
}

// refresh lists the tenants and queues the work in them.
func (p *Provisioner) refresh(ctx context.Context) {
	work, err := p.list(ctx)
	p.requeue(work)
	p.mu.Lock()
	first := p.listing.failures == 0
	p.finish(&p.listing, err != nil, err != nil, maxListBackoff)
	p.mu.Unlock()
	if err != nil && first && ctx.Err() == nil {
		p.cfg.Logger.WarnContext(ctx, "gateway: tenants not listed, so no endpoints provisioned; retrying", "error", err)
	}
}

// tenant returns the tenant, creating it if necessary.
func (p *Provisioner) tenant(id string) *provisionTenant {
	t := p.tenants[fold(id)]
	if t == nil {
		t = &provisionTenant{id: id, since: p.listings}
		p.tenants[fold(id)] = t
	}
	return t
}

// enqueue schedules a call. p.mu is held.
func (p *Provisioner) enqueue(j *job, due time.Time) {
	j.pending, j.due = true, due
	wakeup.Token(p.wake)
}

// attempt makes one call for a tenant that is marked busy.
func (p *Provisioner) attempt(ctx context.Context, t *provisionTenant) error {
	result := ProvisionResult{TenantID: t.id, ExternalID: expandExternalID(p.cfg.ExternalID, t.id)}
	req := cloneRequest(p.cfg.Endpoint)
	if p.cfg.Customize != nil {
		p.cfg.Customize(t.id, &req)
	}
	result.Endpoint, result.Created, result.Err = p.cfg.Client.PutEndpoint(ctx, t.id, result.ExternalID, req)
	result.Retry = result.Err != nil && provisionMayPass(result.Err)
	results := []ProvisionResult{result}
	p.mu.Lock()
	if result.Err == nil {
		t.done, t.endpointID, t.changed = true, result.Endpoint.ID, p.listings
		if sameID(t.endpointID, t.deletedID) && !p.cfg.Recreate { // before the answer came
			results = append(results, p.lose(t))
		}
	}
	p.finish(&t.job, result.Err != nil, result.Retry, p.cfg.MaxBackoff)
	p.mu.Unlock()
	p.report(ctx, results...)
	if result.Err != nil {
		return &ProvisionError{TenantID: result.TenantID, ExternalID: result.ExternalID, Err: result.Err}
	}
	return nil
}

// finish records how a call has ended. The next attempt comes after at most maxBackoff. p.mu is held.
func (p *Provisioner) finish(j *job, failed, retry bool, maxBackoff time.Duration) {
	j.busy = false
	switch {
	case !failed:
		j.failures = 0
	case retry && !j.pending:
		p.enqueue(j, time.Now().Add(min(p.retry.Delay(j.failures), maxBackoff)))
		j.failures++
	}
	if j.pending {
		wakeup.Token(p.wake)
	}
}

// provisionMayPass reports whether a failure is worth another attempt: refused credentials may be fixed by the service, an
// invalid request or a tenant that alone has withdrawn its authorization may not.
func provisionMayPass(err error) bool { return !Refused(err) && !errors.Is(err, ErrClosed) }

func (p *Provisioner) report(ctx context.Context, results ...ProvisionResult) {
	for _, result := range results {
		p.reportOne(ctx, result)
	}
}

func (p *Provisioner) reportOne(ctx context.Context, result ProvisionResult) {
	attrs := []any{"tenant", result.TenantID, "external_id", result.ExternalID}
	switch {
	case errors.Is(result.Err, ErrEndpointDeleted):
		p.cfg.Logger.WarnContext(ctx, "gateway: somebody else deleted the endpoint, which receives nothing any longer", attrs...)
	case result.Err != nil:
		p.cfg.Logger.WarnContext(ctx, "gateway: endpoint not provisioned", append(attrs, "retry", result.Retry, "error", result.Err)...)
	default:
		p.cfg.Logger.InfoContext(ctx, "gateway: endpoint provisioned", append(attrs, "endpoint", result.Endpoint.ID, "created", result.Created)...)
	}
	if p.cfg.OnResult != nil {
		p.cfg.OnResult(result)
	}
}

func expandExternalID(template, tenantID string) string {
	return strings.ReplaceAll(template, TenantPlaceholder, tenantID)
}

func cloneRequest(r PutEndpointRequest) PutEndpointRequest {
	r.Capabilities = slices.Clone(r.Capabilities)
	r.Subscriptions = slices.Clone(r.Subscriptions)
	return r
}
