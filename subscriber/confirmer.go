package subscriber

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/reminders"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/subscriber/internal/core"
	"github.com/agrimill/agrimill/subscriber/internal/lease"
)

// confirmation is one message that was acked by everyone and is to be confirmed.
type confirmation struct {
	core.Confirmation
	endpoint string
	message  string
}

// confirmer sends confirmations in batches: one tenant a request, by count, by
// age, and on close. A confirmation that was added is kept until the service
// accepted it, said that it never will, or the confirmer is closed. Which go when
// is up to confirmQueue; the confirmer sends them, and looks tenants up.
type confirmer struct {
	client  Client
	cfg     ConfirmConfig
	tenants TenantResolver
	logger  watermill.LoggerAdapter
	hooks   Hooks
	stats   *counters
	heard   heard // when the gateway last answered
	// done is called with the confirmations that need no more work, confirmed or rejected.
	done func(batch []confirmation)

	// ctx ends when there is nothing left to do on close, when close gives up, or with a term; requests and waits end
	// with it.
	ctx    context.Context
	cancel context.CancelFunc

	waiting atomic.Int64 // expected, in the queue, without a tenant, or in a request

	mu         sync.Mutex
	queue      *confirmQueue
	timer      *time.Timer    // runs pump when something becomes due
	unassigned []confirmation // whose tenant is not known
	lookingUp  bool
	unlisted   time.Time // since when tenants are looked up in vain; zero: they are not
	// lookupFails says that the latest lookup failed.
	lookupFails bool
	closing     bool
	// clientClosed says that the last answer was that the client is closed.
	clientClosed bool
	wg           sync.WaitGroup
}

func newConfirmer(within context.Context, cfg Config, logger watermill.LoggerAdapter, stats *counters, done func([]confirmation)) *confirmer {
	ctx, cancel := context.WithCancel(within)
	return &confirmer{
		client: cfg.Client, cfg: cfg.Confirm, tenants: cfg.Tenants, logger: logger, hooks: cfg.Hooks, stats: stats,
		done: done, ctx: lease.Guard(ctx), cancel: cancel, queue: newConfirmQueue(cfg.Confirm),
	}
}

// expect counts n confirmations that add is about to bring: they wait as soon as nobody has their messages.
func (c *confirmer) expect(n int) { c.waiting.Add(int64(n)) }

// add queues confirmations that are expected. tenant may be empty; it is then looked up for
// each endpoint. It does not block.
func (c *confirmer) add(tenant string, items ...confirmation) {
	if tenant == "" {
		c.assign(items, false)
		return
	}
	now, key := time.Now(), lower(tenant)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue.add(now, key, tenant, items...) {
		c.pump()
	}
}

// assign queues confirmations under the tenants of their endpoints. Those whose tenant is
// not known wait for a lookup, or are dropped after one: there is no tenant to confirm them for. It returns how
// many are not known.
func (c *confirmer) assign(items []confirmation, listed bool) int {
	tenants := make([]string, len(items))
	for i, item := range items { // not under the lock: a resolver is code of the application
		tenants[i] = c.tenantOf(item.endpoint)
	}
	var unknown []confirmation
	c.mu.Lock()
	now := time.Now()
	for i, item := range items {
		if tenants[i] == "" {
			unknown = append(unknown, item)
		} else {
			c.queue.add(now, lower(tenants[i]), tenants[i], item)
		}
	}
	if !listed {
		c.unassigned = append(c.unassigned, unknown...)
	}
	if len(c.unassigned) > 0 && !c.lookingUp && c.ctx.Err() == nil {
		c.lookingUp, c.unlisted = true, now
		// Ends when every tenant is known, or with c.ctx; close waits for it.
		c.wg.Go(c.lookUp)
	}
	c.pump()
	c.mu.Unlock()
	if listed {
		for _, item := range unknown {
			c.reject("", []confirmation{item}, errTenantUnknown)
		}
	}
	return len(unknown)
}

// pump sends what is due. c.mu is held.
func (c *confirmer) pump() {
	if c.ctx.Err() != nil {
		return
	}
	now := time.Now()
	for {
		b := c.queue.next(now)
		if b == nil {
			break
		}
		ctx, cancel := context.WithTimeout(gateway.SingleAttempt(c.ctx), b.timeout)
		// Ends with the answer, or with ctx; close waits for it.
		c.wg.Go(func() {
			defer cancel()
			c.send(lease.Guard(ctx), b)
		})
	}
	c.stopTimer()
	if at := c.queue.wake(now); !at.IsZero() {
		c.timer = time.AfterFunc(at.Sub(now), c.wake)
	}
}

// stopTimer stops the timer, if there is one. c.mu is held.
func (c *confirmer) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// wake sends what has become due.
func (c *confirmer) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pump()
}

// send makes one request. What failed is queued again: the queue decides when it is worth
// another request, and what may go in the meantime.
func (c *confirmer) send(ctx context.Context, b *confirmBatch) {
	tenant, wire := b.t.tenant, make([]gateway.MessageConfirmation, len(b.items))
	for i, item := range b.items {
		wire[i] = gateway.MessageConfirmation{MessageID: item.message, EndpointID: item.endpoint}
	}
	if c.ctx.Err() != nil {
		return
	}
	stoppoint.At(stoppoint.Confirm)
	c.stats.confirmRequests.Add(1)
	err := c.client.ConfirmMessages(ctx, tenant, wire)
	c.heard.note(err)
	if err != nil && c.ctx.Err() != nil {
		return
	}
	answer := classifyConfirmation(err)
	if answer == answerFailed || answer == answerTimeout || answer == answerForbidden {
		c.stats.confirmFailures.Add(1)
	}
	c.mu.Lock()
	confirmed, rejected, report := c.queue.answered(time.Now(), b, answer, err)
	c.noteClosed(err)
	c.pump()
	c.mu.Unlock()

	c.report(report)
	switch {
	case len(confirmed) > 0:
		c.stats.confirmed.Add(int64(len(confirmed)))
		if c.hooks.Confirmed != nil {
			c.hooks.Confirmed(tenant, wire)
		}
		c.finish(confirmed)
	case len(rejected) > 0 && errors.Is(err, gateway.ErrInvalid) && c.tenantOf(rejected[0].endpoint) != tenant:
		c.assign(rejected, false) // no request can name the tenant of the event, which may be any text
	case len(rejected) > 0:
		c.reject(tenant, rejected, err)
	}
}

// classifyConfirmation says what an answer means for the confirmations of its request.
func classifyConfirmation(err error) confirmAnswer {
	var e *gateway.Error
	switch {
	case err == nil:
		return answerOK
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return answerTimeout
	case gateway.Refused(err) && (errors.Is(err, gateway.ErrForbidden) || errors.Is(err, gateway.ErrNotFound)):
		return answerRefused
	case gateway.Refused(err):
		return answerInvalid
	case errors.Is(err, gateway.ErrForbidden) && !errors.Is(err, gateway.ErrIntermediary):
		return answerForbidden
	case errors.As(err, &e) && e.StatusCode == http.StatusRequestEntityTooLarge:
		return answerTooLarge // no matter who refused it, a smaller request may pass
	}
	return answerFailed
}

func (c *confirmer) report(r *waitReport) {
	switch {
	case r == nil:
	case r.recovered:
		c.logger.Info("Confirmations for the tenant succeed again", watermill.LogFields{
			"tenant_id": r.tenant, "lasted": r.lasted.Round(time.Second), "count": r.count,
		})
	default:
		c.logger.Error("Confirmations for the tenant fail; they are kept and retried", r.err,
			reminders.Fields(r.lasted, r.err).Add(watermill.LogFields{"tenant_id": r.tenant, "count": r.count}))
	}
}

// finish ends the work on items.
func (c *confirmer) finish(items []confirmation) {
	c.done(items)
	if c.waiting.Add(-int64(len(items))) == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.endIfDone()
	}
}

// noteClosed records whether the client is closed. c.mu is held.
func (c *confirmer) noteClosed(err error) {
	c.clientClosed = errors.Is(err, gateway.ErrClosed)
	c.endIfDone()
}

// endIfDone ends the confirmer while it closes, if nothing waits any longer or nothing can be confirmed. c.mu is held.
func (c *confirmer) endIfDone() {
	if c.closing && (c.clientClosed || c.waiting.Load() == 0) {
		c.cancel()
	}
}

func (c *confirmer) reject(tenant string, items []confirmation, err error) {
	c.stats.rejected.Add(int64(len(items)))
	c.logger.Error("Confirmations were rejected and dropped; the service may redeliver these messages", err, watermill.LogFields{
		"tenant_id": tenant, "count": len(items), "first_message_id": items[0].message, "first_endpoint_id": items[0].endpoint,
	})
	if c.hooks.ConfirmationRejected != nil {
		for _, item := range items {
			c.hooks.ConfirmationRejected(tenant, gateway.MessageConfirmation{MessageID: item.message, EndpointID: item.endpoint}, err)
		}
	}
	c.finish(items)
}

// errTenantUnknown means that no authorized tenant has the endpoint.
var errTenantUnknown = errors.New("no authorized tenant has this endpoint")

// lookUp resolves the tenants of endpoints whose events did not name one, until none is
// unknown. Confirmations that a fresh list does not resolve are logged and dropped.
func (c *confirmer) lookUp() {
	policy := backoff.Policy{Initial: c.cfg.Retry.Initial, Max: c.cfg.Retry.Max}
	var outage reminders.Log
	for attempt := 0; ; attempt++ {
		c.mu.Lock()
		items := c.unassigned
		if len(items) == 0 || c.ctx.Err() != nil {
			c.lookingUp, c.lookupFails, c.unlisted = false, false, time.Time{}
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()

		err := c.tenants.Sync(gateway.SingleAttempt(c.ctx)) // it is tried again here
		c.mu.Lock()
		c.noteClosed(err)
		// Those that came during the request may be newer than the list.
		items, c.unassigned = c.unassigned[:len(items):len(items)], c.unassigned[len(items):]
		waiting := len(c.unassigned)
		if c.lookupFails = err != nil; err == nil {
			c.unlisted = time.Now()
		}
		c.mu.Unlock()
		waiting += c.assign(items, err == nil) // some may have become known by events
		if err == nil {
			attempt = -1
			if lasted := outage.Over(); lasted > 0 {
				c.logger.Info("Listing tenants succeeds again", watermill.LogFields{"lasted": lasted.Round(time.Second)})
			}
			continue
		}
		c.stats.confirmFailures.Add(1)
		if attempt == 0 {
			c.logger.Info("Listing tenants failed; confirmations whose events name no tenant wait", watermill.LogFields{"count": waiting, "err": err})
		}
		if lasted, due := outage.Failed(); due && isAnswer(err) {
			c.logger.Error("Listing tenants still fails; confirmations whose events name no tenant wait", err,
				reminders.Fields(lasted, err).Add(watermill.LogFields{"count": waiting}))
		}
		_ = policy.Wait(c.ctx, attempt) // the loop sees that c.ctx has ended
	}
}

// tenantOf returns the tenant of an endpoint, empty if it is not known. It calls code of the
// application.
func (c *confirmer) tenantOf(endpoint string) string {
	if tenant, ok := c.tenants.TenantOf(endpoint); ok {
		return tenant
	}
	return ""
}

// pending returns how many confirmations wait, and since when the oldest does.
func (c *confirmer) pending() (n int, oldest time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unassigned) > 0 {
		oldest = c.unlisted
	}
	c.queue.all(func(b *confirmBatch) { oldest = earlier(oldest, b.since) })
	return int(c.waiting.Load()), oldest
}

// waits returns the tenants whose confirmations fail, and one without a name for all that
// cannot be looked up.
func (c *confirmer) waits() []Wait {
	c.mu.Lock()
	defer c.mu.Unlock()
	waits := c.queue.waits()
	if n := len(c.unassigned); n > 0 && c.lookupFails {
		waits = append(waits, Wait{Count: n, Since: c.unlisted})
	}
	return waits
}

// close sends what waits, without waiting for batches to fill, until sending ends,
// or at once when the client is closed. It returns how many confirmations the service
// did not accept. Hooks that still run are waited for until ctx ends.
func (c *confirmer) close(ctx, sending context.Context) int {
	c.mu.Lock()
	c.closing = true
	c.queue.drain(time.Now())
	c.endIfDone()
	c.pump()
	c.mu.Unlock()
	select {
	case <-c.ctx.Done():
	case <-sending.Done():
	}
	c.mu.Lock() // any caller that missed the end of c.ctx has started its request by now
	c.cancel()
	c.stopTimer()
	c.mu.Unlock()
	waitUntil(ctx, ended(&c.wg))
	return int(c.waiting.Load())
}
