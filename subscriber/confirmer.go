package subscriber

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
)

// confirmation is one message that was acked by everyone and is to be confirmed.
type confirmation struct {
	entry    entryRef
	endpoint string
	message  string
}

// confirmer sends confirmations in batches: one tenant a request, by count, by
// age, and on close. A confirmation that was added is kept until the service
// took it, said that it never will, or the confirmer is closed.
type confirmer struct {
	client  Client
	cfg     ConfirmConfig
	tenants TenantResolver
	logger  watermill.LoggerAdapter
	hooks   Hooks
	// done is told which confirmations need no more work, confirmed or rejected.
	done func(batch []confirmation)
	// room is called after the backlog has become smaller.
	room func()

	// ctx ends when Close gives up; requests and waits end with it.
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	open    map[string]*tenantBatch // batches that still grow, by tenant
	ready   []*tenantBatch          // full or old enough, oldest first
	sending int                     // running send loops
	waiting atomic.Int64            // in open, ready, or under way
	closing bool
	idle    chan struct{} // closed when waiting falls to zero while closing
	wg      sync.WaitGroup

	confirmed atomic.Int64
	rejected  atomic.Int64
	requests  atomic.Int64
	failures  atomic.Int64
	oldest    map[*tenantBatch]time.Time
}

// tenantBatch is what goes into one request.
type tenantBatch struct {
	tenant string
	items  []confirmation
	timer  *time.Timer
}

func newConfirmer(cfg Config, logger watermill.LoggerAdapter, done func([]confirmation), room func()) *confirmer {
	ctx, cancel := context.WithCancel(context.Background())
	return &confirmer{
		client: cfg.Client, cfg: cfg.Confirm, tenants: cfg.Tenants, logger: logger, hooks: cfg.Hooks,
		done: done, room: room, ctx: ctx, cancel: cancel,
		open:   make(map[string]*tenantBatch),
		oldest: make(map[*tenantBatch]time.Time),
		idle:   make(chan struct{}),
	}
}

// add queues the confirmations. tenant may be empty; it is then looked up for
// each endpoint when the batch is sent. It does not block.
func (c *confirmer) add(tenant string, items ...confirmation) {
	c.expect(len(items))
	c.addExpected(tenant, items...)
}

// expect counts n confirmations as waiting, before addExpected brings them: what is no
// longer in flight has to be in the backlog at once, or both caps miss it.
func (c *confirmer) expect(n int) { c.waiting.Add(int64(n)) }

// addExpected is add for confirmations that are counted.
func (c *confirmer) addExpected(tenant string, items ...confirmation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, item := range items {
		b := c.open[tenant]
		if b == nil {
			b = &tenantBatch{tenant: tenant, items: make([]confirmation, 0, min(c.cfg.MaxBatch, 128))}
			c.open[tenant] = b
			c.oldest[b] = time.Now()
			if !c.closing {
				b.timer = time.AfterFunc(c.cfg.MaxAge, func() { c.flush(b) })
			}
		}
		b.items = append(b.items, item)
		if len(b.items) >= c.cfg.MaxBatch {
			c.markReady(b)
		}
	}
	if c.closing {
		c.flushAll()
	}
}

// flush makes b ready when it is still growing.
func (c *confirmer) flush(b *tenantBatch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[b.tenant] == b {
		c.markReady(b)
	}
}

// flushAll makes every growing batch ready. c.mu is held.
func (c *confirmer) flushAll() {
	for _, b := range c.open {
		c.markReady(b)
	}
}

// markReady hands b to the send loops. c.mu is held.
func (c *confirmer) markReady(b *tenantBatch) {
	if b.timer != nil {
		b.timer.Stop()
	}
	delete(c.open, b.tenant)
	c.ready = append(c.ready, b)
	if c.sending < c.cfg.MaxRequests {
		c.sending++
		// The loop ends when nothing is ready; close waits for it.
		c.wg.Go(c.sendLoop)
	}
}

// sendLoop sends ready batches until there are none.
func (c *confirmer) sendLoop() {
	for {
		c.mu.Lock()
		if len(c.ready) == 0 || c.ctx.Err() != nil {
			// Falling out and the check are one step under the lock, so a batch
			// that becomes ready now starts a loop of its own.
			c.sending--
			c.mu.Unlock()
			return
		}
		b := c.ready[0]
		c.ready[0] = nil
		c.ready = c.ready[1:]
		c.mu.Unlock()

		c.sendBatch(b)
	}
}

// sendBatch sends b until every item of it is settled or the confirmer gives up.
func (c *confirmer) sendBatch(b *tenantBatch) {
	left := len(b.items)
	settle := func(items []confirmation) {
		left -= len(items)
		c.done(items)
		c.waiting.Add(-int64(len(items)))
		c.room()
	}
	if b.tenant != "" {
		c.send(b.tenant, b.items, settle)
	} else {
		c.sendUnassigned(b.items, settle)
	}
	c.mu.Lock()
	delete(c.oldest, b)
	c.signalIdle()
	c.mu.Unlock()
}

// signalIdle wakes close when nothing is left. c.mu is held.
func (c *confirmer) signalIdle() {
	if c.closing && c.waiting.Load() == 0 {
		select {
		case <-c.idle:
		default:
			close(c.idle)
		}
	}
}

// send confirms items of one tenant. When the service refuses a request of
// several as a whole (400), it is split in two until the bad ones are found.
func (c *confirmer) send(tenant string, items []confirmation, settle func([]confirmation)) {
	wire := make([]gateway.MessageConfirmation, len(items))
	for i, item := range items {
		wire[i] = gateway.MessageConfirmation{MessageID: item.message, EndpointID: item.endpoint}
	}
	policy := backoff.Policy{Min: c.cfg.Retry.Min, Max: c.cfg.Retry.Max}
	for attempt := 0; ; attempt++ {
		c.requests.Add(1)
		err := c.client.ConfirmMessages(c.ctx, tenant, wire)
		if err == nil {
			c.confirmed.Add(int64(len(items)))
			if c.hooks.Confirmed != nil {
				c.hooks.Confirmed(tenant, wire)
			}
			settle(items)
			return
		}
		if c.ctx.Err() != nil {
			return
		}
		if refusesConfirmation(err) {
			if len(items) > 1 && !errors.Is(err, gateway.ErrForbidden) {
				half := len(items) / 2
				c.send(tenant, items[:half], settle)
				c.send(tenant, items[half:], settle)
				return
			}
			c.reject(tenant, wire, err)
			settle(items)
			return
		}
		c.failures.Add(1)
		if attempt == 0 {
			c.logger.Info("Confirmations could not be sent and are kept; trying again", watermill.LogFields{
				"tenant_id": tenant, "count": len(items), "err": err,
			})
		}
		if policy.Wait(c.ctx, attempt) != nil {
			return
		}
	}
}

// refusesConfirmation reports whether err is the service's final word on what
// was sent. Everything else (5xx, 429, network, token) is an outage.
func refusesConfirmation(err error) bool {
	return errors.Is(err, gateway.ErrBadRequest) || errors.Is(err, gateway.ErrInvalid) ||
		errors.Is(err, gateway.ErrForbidden) || errors.Is(err, gateway.ErrNotFound) ||
		errors.Is(err, gateway.ErrTooLarge)
}

func (c *confirmer) reject(tenant string, wire []gateway.MessageConfirmation, err error) {
	c.rejected.Add(int64(len(wire)))
	c.logger.Error("Confirmations were refused and are dropped; the service may deliver these messages again", err, watermill.LogFields{
		"tenant_id": tenant, "count": len(wire), "first_message_id": wire[0].MessageID, "first_endpoint_id": wire[0].EndpointID,
	})
	if c.hooks.ConfirmationRejected != nil {
		for _, w := range wire {
			c.hooks.ConfirmationRejected(tenant, w, err)
		}
	}
}

// errTenantUnknown says that no authorized tenant has the endpoint.
var errTenantUnknown = errors.New("no authorized tenant has this endpoint")

// sendUnassigned confirms items whose events did not name a tenant: the
// endpoint tells which. What the directory does not know after a refresh is
// dropped with a report: nobody can be asked to confirm it.
func (c *confirmer) sendUnassigned(items []confirmation, settle func([]confirmation)) {
	policy := backoff.Policy{Min: c.cfg.Retry.Min, Max: c.cfg.Retry.Max}
	for attempt := 0; ; attempt++ {
		byTenant := make(map[string][]confirmation)
		var unknown []confirmation
		for _, item := range items {
			if tenant, ok := c.tenants.TenantOf(item.endpoint); ok {
				byTenant[tenant] = append(byTenant[tenant], item)
			} else {
				unknown = append(unknown, item)
			}
		}
		for tenant, known := range byTenant {
			c.send(tenant, known, settle)
		}
		if len(unknown) == 0 || c.ctx.Err() != nil {
			return
		}
		items = unknown
		if attempt > 0 {
			// The listing is fresh and does not have them.
			for _, item := range items {
				c.reject("", []gateway.MessageConfirmation{{MessageID: item.message, EndpointID: item.endpoint}}, errTenantUnknown)
			}
			settle(items)
			return
		}
		for retry := 0; ; retry++ {
			err := c.tenants.Sync(c.ctx)
			if err == nil {
				break
			}
			c.failures.Add(1)
			if retry == 0 {
				c.logger.Info("Tenants could not be listed; confirmations wait", watermill.LogFields{"count": len(items), "err": err})
			}
			if policy.Wait(c.ctx, retry) != nil {
				return
			}
		}
	}
}

// full reports whether intake has to pause.
func (c *confirmer) full() bool { return c.waiting.Load() >= int64(c.cfg.MaxBacklog) }

// pending returns how many confirmations wait, and since when the oldest does.
func (c *confirmer) pending() (n int, oldest time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.oldest {
		if oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	return int(c.waiting.Load()), oldest
}

// close sends what waits, without waiting for batches to fill, until ctx ends.
// It returns how many confirmations were not taken by the service.
func (c *confirmer) close(ctx context.Context) int {
	c.mu.Lock()
	c.closing = true
	c.flushAll()
	c.signalIdle()
	c.mu.Unlock()
	select {
	case <-c.idle:
	case <-ctx.Done():
	}
	c.cancel()
	c.wg.Wait()
	return int(c.waiting.Load())
}
