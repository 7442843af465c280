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

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/wakeup"
)

// Defaults of [ProvisionerConfig].
const (
	defaultProvisionConcurrency    = 4
	defaultProvisionInitialBackoff = time.Second
	defaultProvisionMaxBackoff     = 5 * time.Minute
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
	// ExternalID is the external ID of the endpoint. Every [TenantPlaceholder]
	// in it is replaced by the tenant's ID; it may have none, because the external
	// IDs of different tenants are independent of each other. Required.
	ExternalID string
	// Endpoint is the template for every endpoint. An empty EndpointType means
	// [EndpointTypeCloudSoftware]. Required.
	Endpoint PutEndpointRequest
	// Customize, if set, modifies the request for one tenant, for example its
	// name. It receives its own copy of the request. It is called
	// concurrently.
	Customize func(tenantID string, req *PutEndpointRequest)
	// Recreate makes the provisioner recreate an endpoint that the user, or the
	// application, deleted. Default false: what was deleted stays deleted
	// until the tenant authorizes the application again or the program is
	// restarted.
	Recreate bool

	// Concurrency is the maximum number of concurrent calls. Zero means
	// 4.
	Concurrency int
	// InitialBackoff is the first wait after a temporary failure, doubled with
	// each further one up to MaxBackoff, with jitter. The client's own retries
	// come before that. Zero means 1 second.
	InitialBackoff time.Duration
	// MaxBackoff is the longest wait. Zero means 5 minutes.
	MaxBackoff time.Duration

	// OnResult, if set, is called with the result of every attempt. It is called
	// concurrently, never under a lock.
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
	var rule *ValidationError
	if errors.As(ValidateExternalID(expandExternalID(c.ExternalID, "00000000-0000-0000-0000-000000000000")), &rule) {
		e.AddCause(rule, "ExternalID", "%s", rule.Rule)
	}
	e.Join("Endpoint", c.Endpoint.Validate())
	validate.NotNegative(&e, "Concurrency", c.Concurrency)
	validate.NotNegative(&e, "InitialBackoff", c.InitialBackoff)
	e.Check(c.MaxBackoff >= c.InitialBackoff, "MaxBackoff", "must not be less than %s", validate.Field("InitialBackoff"))
	return e.Err(ErrConfig)
}

// ProvisionResult is the result of one attempt in one tenant.
type ProvisionResult struct {
	TenantID   string
	ExternalID string
	// Endpoint is the endpoint if Err is nil.
	Endpoint Endpoint
	// Created is true for a new endpoint, false for one that was reconfigured.
	Created bool
	// Err is why the attempt failed.
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

// Provisioner ensures that the application has an endpoint in every tenant
// that authorized it for [ScopeEndpointsManage]. [Provisioner.Ensure] does so
// for all current tenants, [Provisioner.HandleEvent] queues the work that events
// require, and [Provisioner.Run] performs it. All methods are safe for concurrent
// use.
type Provisioner struct {
	cfg   ProvisionerConfig
	retry backoff.Policy
	wake  chan struct{}

	mu       sync.Mutex
	tenants  map[string]*provisionTenant // by lower-case ID
	listings int                         // counts calls of Ensure
}

// provisionTenant is the state of one tenant.
type provisionTenant struct {
	id         string
	since      int    // the number of listings when the tenant was added
	endpointID string // of the last success; empty after a deletion
	done       bool   // an attempt has succeeded

	pending  bool // an attempt is due at due
	due      time.Time
	failures int
	busy     bool // an attempt is in progress
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

// Ensure lists the authorized tenants and creates or reconfigures the endpoint
// in each, several at a time. Call it at start, and after a reconnect of the
// event stream, since events may have been missed. Tenants in which this
// Provisioner has already provisioned the endpoint are left alone, unless it is
// gone and Recreate is set. (An authorization that was revoked and granted again
// in between cannot be distinguished from a deletion by the user.)
//
// It blocks until there has been one attempt in each tenant. The error is that of the
// listing, or the errors.Join of one [*ProvisionError] for each tenant that
// failed. Temporary failures are also retried by [Provisioner.Run].
func (p *Provisioner) Ensure(ctx context.Context) error {
	p.mu.Lock()
	p.listings++
	listing := p.listings
	p.mu.Unlock()
	list, err := p.cfg.Client.ListAuthorizedTenants(ctx)
	if err != nil {
		return err
	}
	work := p.compare(list, listing)
	slots := make(chan struct{}, p.cfg.Concurrency)
	errs := make([]error, len(work))
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, t := range work {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			p.requeue(work[i:])
			wg.Wait()
			return ctx.Err()
		}
		wg.Go(func() { // ends with its call, which ends with ctx
			defer func() { <-slots }()
			errs[i] = p.attempt(ctx, t)
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// compare processes a listing and returns the tenants to work on, marked busy.
func (p *Provisioner) compare(list []TenantInfo, listing int) []*provisionTenant {
	p.mu.Lock()
	defer p.mu.Unlock()
	listed := make(map[string]struct{}, len(list))
	var work []*provisionTenant
	for _, info := range list {
		listed[fold(info.ID)] = struct{}{}
		t := p.tenant(info.ID)
		there := !info.listReadable() ||
			slices.ContainsFunc(info.Endpoints, func(e TenantEndpointInfo) bool { return sameID(e.ID, t.endpointID) }) ||
			slices.ContainsFunc(info.Unreadable, func(e *EntryError) bool { return sameID(e.EndpointID, t.endpointID) })
		if t.done && (there || !p.cfg.Recreate) && !t.pending {
			continue
		}
		if t.busy {
			continue // the attempt in progress is as recent as this listing
		}
		t.busy, t.pending = true, false
		work = append(work, t)
	}
	maps.DeleteFunc(p.tenants, func(id string, t *provisionTenant) bool {
		// A tenant added after the listing was requested may be missing from it.
		_, ok := listed[id]
		return !ok && t.since < listing
	})
	return work
}

// requeue leaves tenants that have not been worked on to Run.
func (p *Provisioner) requeue(work []*provisionTenant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range work {
		t.busy = false
		p.enqueue(t, time.Time{})
	}
}

// HandleEvent processes an event. It never blocks for long and only queues work
// for [Provisioner.Run]. It accepts every event of a stream, in
// stream order.
//
//   - AUTHORIZATION_ADDED for [ScopeEndpointsManage]: the endpoint is provisioned.
//   - AUTHORIZATION_REVOKED for that scope: the tenant is forgotten, so that the
//     ENDPOINT_DELETED events that follow are not mistaken for deletions by the user.
//   - ENDPOINT_DELETED of an endpoint that was provisioned here: it is recreated if
//     Recreate is set.
func (p *Provisioner) HandleEvent(event Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *AuthorizationAdded:
		if e.Scope == ScopeEndpointsManage {
			t := p.tenant(e.Tenant.ID)
			t.failures = 0
			p.enqueue(t, time.Time{})
		}
	case *AuthorizationRevoked:
		if e.Scope == ScopeEndpointsManage {
			delete(p.tenants, fold(e.TenantID))
		}
	case *EndpointDeleted:
		for _, t := range p.tenants {
			// The ID may not be known yet while a call is in progress; an unnecessary
			// extra call is harmless.
			unknown := t.busy && e.ExternalID == expandExternalID(p.cfg.ExternalID, t.id)
			if !unknown && (t.endpointID == "" || !sameID(t.endpointID, e.ID)) {
				continue
			}
			t.endpointID = ""
			if p.cfg.Recreate {
				t.failures = 0
				p.enqueue(t, time.Time{})
			}
		}
	}
}

// Run performs the work required by events, and retries temporary failures. It
// blocks until ctx ends, waits for the calls in progress, which
// end with ctx, and returns nil. Only one Run may be active at a time.
func (p *Provisioner) Run(ctx context.Context) error {
	runDue(ctx, p.cfg.Concurrency, p.wake, func(now time.Time) (func(), time.Duration) {
		t, wait := p.next(now)
		if t == nil {
			return nil, wait
		}
		return func() { _ = p.attempt(ctx, t) }, 0 // reported by attempt
	})
	return nil
}

// next returns a tenant that is due, marked busy, or how long to wait.
func (p *Provisioner) next(now time.Time) (*provisionTenant, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := time.Hour // arbitrary: new work wakes the loop
	for _, t := range p.tenants {
		if !t.pending || t.busy {
			continue
		}
		if left := t.due.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		t.busy, t.pending = true, false
		return t, 0
	}
	return nil, wait
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

// enqueue schedules an attempt. The set of tenants is the queue, so it
// cannot outgrow them.
func (p *Provisioner) enqueue(t *provisionTenant, due time.Time) {
	t.pending, t.due = true, due
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
	p.finish(t, result)
	p.report(ctx, result)
	if result.Err != nil {
		return &ProvisionError{TenantID: result.TenantID, ExternalID: result.ExternalID, Err: result.Err}
	}
	return nil
}

// finish records the result of an attempt.
func (p *Provisioner) finish(t *provisionTenant, result ProvisionResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.busy = false
	switch {
	case result.Err == nil:
		t.done, t.failures, t.endpointID = true, 0, result.Endpoint.ID
	case result.Retry && !t.pending:
		p.enqueue(t, time.Now().Add(p.retry.Delay(t.failures)))
		t.failures++
	}
	if t.pending {
		p.enqueue(t, t.due)
	}
}

// provisionMayPass reports whether a failure is worth another attempt. It is not if
// only a change on either side can resolve it: an invalid request, or a
// tenant that has withdrawn its authorization while others have not. Refused
// credentials may be fixed by the service.
func provisionMayPass(err error) bool { return !Refused(err) && !errors.Is(err, ErrClosed) }

func (p *Provisioner) report(ctx context.Context, result ProvisionResult) {
	attrs := []any{"tenant", result.TenantID, "external_id", result.ExternalID}
	switch {
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
