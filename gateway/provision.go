package gateway

import (
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
)

// Defaults of [ProvisionerConfig].
const (
	DefaultProvisionConcurrency = 4
	DefaultProvisionMinBackoff  = time.Second
	DefaultProvisionMaxBackoff  = 5 * time.Minute
)

// TenantPlaceholder stands for the tenant's ID in [ProvisionerConfig.ExternalID].
const TenantPlaceholder = "{tenant}"

// ProvisionClient is what a [Provisioner] needs of a client. [*Client] is one.
type ProvisionClient interface {
	TenantLister
	PutEndpoint(ctx context.Context, tenantID, externalID string, req PutEndpointRequest) (Endpoint, bool, error)
	DeleteEndpoint(ctx context.Context, tenantID, externalID string) error
}

// ProvisionerConfig configures a [Provisioner]. It is passed by value and never
// changed.
type ProvisionerConfig struct {
	// Client makes the calls. Required.
	Client ProvisionClient
	// ExternalID is the external ID of the endpoint. Every [TenantPlaceholder]
	// in it is replaced by the tenant's ID; it may do without one, for external
	// IDs of different tenants have nothing to do with each other. Required.
	ExternalID string
	// Endpoint is what every endpoint is made from. An empty EndpointType means
	// [EndpointTypeCloudSoftware]. Required.
	Endpoint PutEndpointRequest
	// Customize, when set, changes the request for one tenant, for example its
	// name. It gets a copy that is its own. It is called from several goroutines
	// at once.
	Customize func(tenantID string, req *PutEndpointRequest)
	// Recreate makes an endpoint anew that was deleted by somebody else: by the
	// user or by other means. Default false: what the user deletes stays deleted
	// until the tenant authorizes the application again or the program starts
	// anew.
	Recreate bool

	// Concurrency is the most calls at a time. Zero means
	// [DefaultProvisionConcurrency].
	Concurrency int
	// MinBackoff is the first wait after a failure that may pass, doubled with
	// every further one up to MaxBackoff, with jitter. The client has retried by
	// itself before. Zero means [DefaultProvisionMinBackoff].
	MinBackoff time.Duration
	// MaxBackoff is the longest wait. Zero means [DefaultProvisionMaxBackoff].
	MaxBackoff time.Duration

	// OnResult, when set, is told the result of every attempt. It is called from
	// several goroutines at once, never under a lock.
	OnResult func(ProvisionResult)
	// Logger may be nil, which is silent.
	Logger *slog.Logger
}

func (c *ProvisionerConfig) setDefaults() {
	if c.Endpoint.EndpointType == "" {
		c.Endpoint.EndpointType = EndpointTypeCloudSoftware
	}
	if c.Concurrency == 0 {
		c.Concurrency = DefaultProvisionConcurrency
	}
	if c.MinBackoff == 0 {
		c.MinBackoff = DefaultProvisionMinBackoff
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = max(DefaultProvisionMaxBackoff, c.MinBackoff)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Endpoint = cloneRequest(c.Endpoint)
}

// Validate reports the first field that is missing or out of range. It matches
// [ErrInvalid]. What Customize makes of a request is validated with the call.
func (c ProvisionerConfig) Validate() error {
	c.setDefaults()
	if c.Client == nil {
		return invalid("Client", "is required")
	}
	if err := ValidateExternalID(expandExternalID(c.ExternalID, "00000000-0000-0000-0000-000000000000")); err != nil {
		return err
	}
	if err := c.Endpoint.Validate(); err != nil {
		return err
	}
	switch {
	case c.Concurrency < 0:
		return invalid("Concurrency", "must not be negative")
	case c.MinBackoff < 0:
		return invalid("MinBackoff", "must not be negative")
	case c.MaxBackoff < c.MinBackoff:
		return invalid("MaxBackoff", "must not be less than MinBackoff")
	}
	return nil
}

// ProvisionResult is the result of one attempt in one tenant.
type ProvisionResult struct {
	TenantID   string
	ExternalID string
	// Endpoint is the endpoint when Err is nil.
	Endpoint Endpoint
	// Created tells a new endpoint from one that was reconfigured.
	Created bool
	// Err is why the attempt failed.
	Err error
	// Retry says that a failed attempt is made again, by [Provisioner.Run].
	Retry bool
}

// ProvisionError is the failure in one tenant.
type ProvisionError struct {
	TenantID   string
	ExternalID string
	Err        error
}

// Error names the tenant, the external ID and the cause.
func (e *ProvisionError) Error() string {
	return fmt.Sprintf("gateway: provision %s in tenant %s: %v", e.ExternalID, e.TenantID, e.Err)
}

// Unwrap returns the cause.
func (e *ProvisionError) Unwrap() error { return e.Err }

// Provisioner sees to it that the application has an endpoint in every tenant
// that authorized it for [ScopeEndpointsManage]. [Provisioner.Ensure] does so
// for all tenants there are, [Provisioner.HandleEvent] says when there is more
// to do, and [Provisioner.Run] does that. All methods are safe for concurrent
// use.
type Provisioner struct {
	cfg   ProvisionerConfig
	retry backoff.Policy
	wake  chan struct{}

	mu       sync.Mutex
	tenants  map[string]*provisionTenant // by lower-case ID
	listings int                         // counts calls of Ensure
}

// provisionTenant is what is known and to be done in one tenant.
type provisionTenant struct {
	id         string
	since      int    // the count of listings when the tenant came
	endpointID string // as of the last success, empty after a deletion
	done       bool   // there was a success
	removed    bool   // the application has deleted it and wants it no more

	pending  bool // an attempt is to be made, at due
	due      time.Time
	failures int
	busy     bool // an attempt is under way
}

// NewProvisioner makes a provisioner. The error matches [ErrInvalid].
func NewProvisioner(cfg ProvisionerConfig) (*Provisioner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	return &Provisioner{
		cfg:     cfg,
		retry:   backoff.Policy{Min: cfg.MinBackoff, Max: cfg.MaxBackoff},
		wake:    make(chan struct{}, 1),
		tenants: map[string]*provisionTenant{},
	}, nil
}

// Ensure lists the authorized tenants and creates or reconfigures the endpoint
// in each, several at a time. Call it at start, and after a reconnect of the
// event stream, since events may have been missed: tenants in which this
// Provisioner has made the endpoint already are then left alone, unless it is
// gone and Recreate is set. (An authorization that was revoked and given again
// in between cannot be told from a deletion by the user.)
//
// It blocks until each tenant has had one attempt. The error is that of the
// listing, or the errors.Join of one [*ProvisionError] for each tenant that
// failed. Failures that may pass are left to [Provisioner.Run] besides.
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
			p.giveBack(work[i:])
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

// compare takes in a listing and returns the tenants to work on, marked busy.
func (p *Provisioner) compare(list []TenantInfo, listing int) []*provisionTenant {
	p.mu.Lock()
	defer p.mu.Unlock()
	listed := make(map[string]struct{}, len(list))
	var work []*provisionTenant
	for _, info := range list {
		listed[fold(info.TenantID)] = struct{}{}
		t := p.tenant(info.TenantID)
		there := slices.ContainsFunc(info.Endpoints, func(e TenantEndpointInfo) bool { return sameID(e.ID, t.endpointID) })
		if t.done && (there || t.removed || !p.cfg.Recreate) && !t.pending {
			continue
		}
		if t.busy {
			continue // and will be as new as this listing
		}
		t.busy, t.pending = true, false
		work = append(work, t)
	}
	maps.DeleteFunc(p.tenants, func(id string, t *provisionTenant) bool {
		// A tenant that came after the listing was asked for may be missing in it.
		_, ok := listed[id]
		return !ok && t.since < listing
	})
	return work
}

// giveBack leaves tenants that nothing was done in to Run.
func (p *Provisioner) giveBack(work []*provisionTenant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range work {
		t.busy = false
		p.enqueue(t, time.Time{})
	}
}

// HandleEvent takes in an event. It never blocks for long and does no work:
// that is left to [Provisioner.Run]. It may be given every event of a stream, in
// the order of the stream.
//
//   - AUTHORIZATION_ADDED for [ScopeEndpointsManage]: the endpoint is made.
//   - AUTHORIZATION_REVOKED for that scope: the tenant is forgotten, so that the
//     ENDPOINT_DELETED events that follow are not taken for the user's work.
//   - ENDPOINT_DELETED of an endpoint that was made here, unless
//     [Provisioner.Remove] did it: made again if Recreate is set.
func (p *Provisioner) HandleEvent(event Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *AuthorizationAdded:
		if e.Scope == ScopeEndpointsManage {
			t := p.tenant(e.Tenant.TenantID)
			t.removed, t.failures = false, 0
			p.enqueue(t, time.Time{})
		}
	case *AuthorizationRevoked:
		if e.Scope == ScopeEndpointsManage {
			delete(p.tenants, fold(e.TenantID))
		}
	case *EndpointDeleted:
		for _, t := range p.tenants {
			// While a call is under way the ID may not be known yet; then one more
			// call than needed does no harm.
			unknown := t.busy && e.ExternalID == expandExternalID(p.cfg.ExternalID, t.id)
			if !unknown && (t.endpointID == "" || !sameID(t.endpointID, e.ID)) {
				continue
			}
			t.endpointID = ""
			if p.cfg.Recreate && !t.removed {
				t.failures = 0
				p.enqueue(t, time.Time{})
			}
		}
	}
}

// Remove deletes the endpoint in a tenant and does not make it again until the
// tenant authorizes the application anew or the program starts anew. An endpoint
// that is not there is no error. An attempt that is under way may win.
func (p *Provisioner) Remove(ctx context.Context, tenantID string) error {
	p.mu.Lock()
	t := p.tenant(tenantID)
	t.removed, t.done, t.pending = true, true, false
	p.mu.Unlock()
	externalID := expandExternalID(p.cfg.ExternalID, tenantID)
	err := p.cfg.Client.DeleteEndpoint(ctx, tenantID, externalID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return &ProvisionError{TenantID: tenantID, ExternalID: externalID, Err: err}
	}
	return nil
}

// Run does what events ask for, and tries again what has failed for a reason
// that may pass. It blocks until ctx ends, waits for the calls under way, which
// end with ctx, and returns nil. Run it once at a time.
func (p *Provisioner) Run(ctx context.Context) error {
	slots := make(chan struct{}, p.cfg.Concurrency)
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		t, wait := p.next(time.Now())
		if t != nil {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				p.giveBack([]*provisionTenant{t})
				return nil
			}
			wg.Go(func() { // ends with its call, which ends with ctx
				defer func() { <-slots }()
				_ = p.attempt(ctx, t) // told by attempt itself
			})
			continue
		}
		// The longest wait is of no account: more work wakes.
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-timer.C:
		}
	}
	return nil
}

// next returns a tenant that is due, marked busy, or how long to wait.
func (p *Provisioner) next(now time.Time) (*provisionTenant, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := time.Hour
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

// tenant returns the tenant, which is made when it is not there.
func (p *Provisioner) tenant(id string) *provisionTenant {
	t := p.tenants[fold(id)]
	if t == nil {
		t = &provisionTenant{id: id, since: p.listings}
		p.tenants[fold(id)] = t
	}
	return t
}

// enqueue asks for an attempt at due. The set of tenants is the queue, so it
// cannot grow beyond them.
func (p *Provisioner) enqueue(t *provisionTenant, due time.Time) {
	t.pending, t.due = true, due
	select {
	case p.wake <- struct{}{}:
	default:
	}
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
	p.settle(t, result)
	p.report(ctx, result)
	if result.Err != nil {
		return &ProvisionError{TenantID: result.TenantID, ExternalID: result.ExternalID, Err: result.Err}
	}
	return nil
}

func (p *Provisioner) settle(t *provisionTenant, result ProvisionResult) {
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

// provisionMayPass tells failures that are worth another attempt from those
// that only a change on one side can end: a request that breaks a rule, and a
// tenant that has withdrawn its authorization. Credentials that are refused may
// be put right on the other side.
func provisionMayPass(err error) bool {
	for _, permanent := range []error{ErrInvalid, ErrBadRequest, ErrForbidden, ErrNotFound, ErrTooLarge, ErrClosed} {
		if errors.Is(err, permanent) {
			return false
		}
	}
	return true
}

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
