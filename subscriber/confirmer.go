package subscriber

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/lifecycle"
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

	waiting atomic.Int64 // expected, in the queue, or in a request

	mu           sync.Mutex
	queue        *confirmQueue
	timer        *time.Timer // runs pump when something becomes due
	closing      bool
	clientClosed bool // the last answer said so
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

// add queues confirmations that are expected. tenant may be empty; it is then that of
// each endpoint. It does not block.
func (c *confirmer) add(tenant string, items ...confirmation) {
	if tenant == "" {
		c.assign(items, false)
		return
	}
	now, key := time.Now(), strings.ToLower(tenant)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue.add(now, key, tenant, items...) {
		c.pump()
	}
}

// assign queues confirmations under the tenants of their endpoints. Those whose tenant is
// not known are queued under one without a name, see lookUp. If the tenants were listed for them, they are dropped:
// there is no tenant to confirm them for.
func (c *confirmer) assign(items []confirmation, listed bool) {
	tenants := make([]string, len(items))
	for i, item := range items { // not under the lock: a resolver is code of the application
		tenants[i] = c.tenantOf(item.endpoint)
	}
	var unknown []confirmation
	c.mu.Lock()
	now := time.Now()
	for i, tenant := range tenants {
		if tenant == "" && listed {
			unknown = append(unknown, items[i])
		} else {
			c.queue.add(now, strings.ToLower(tenant), tenant, items[i])
		}
	}
	c.pump()
	c.mu.Unlock()
	if len(unknown) > 0 {
		c.reject("", unknown, errTenantUnknown)
	}
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
		ctx, cancel := context.WithTimeout(gateway.SingleAttempt(c.ctx), b.t.patience)
		// Ends with the answer, or with ctx; close waits for it.
		c.wg.Go(func() {
			defer cancel()
			c.send(lease.Guard(ctx), b)
		})
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	if at := c.queue.wake(now); !at.IsZero() {
		c.timer = time.AfterFunc(at.Sub(now), c.wake)
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
	if c.ctx.Err() != nil {
		return
	}
	tenant := b.t.tenant
	if tenant == "" {
		c.lookUp(ctx, b)
		return
	}
	wire := make([]gateway.MessageConfirmation, len(b.items))
	for i, item := range b.items {
		wire[i] = gateway.MessageConfirmation{MessageID: item.message, EndpointID: item.endpoint}
	}
	stoppoint.At(stoppoint.Confirm)
	c.stats.confirmRequests.Add(1)
	err := c.client.ConfirmMessages(ctx, tenant, wire)
	c.heard.note(err)
	confirmed, rejected := c.answered(b, classifyConfirmation(err), err)
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

// lookUp queues confirmations whose events did not name a tenant under the tenants of their endpoints, which are listed if
// one of them is not known.
func (c *confirmer) lookUp(ctx context.Context, b *confirmBatch) {
	var err error
	unknown := slices.ContainsFunc(b.items, func(item confirmation) bool { return c.tenantOf(item.endpoint) == "" })
	if unknown {
		err = c.tenants.Sync(ctx)
	}
	answer := classifyConfirmation(err)
	if answer != answerOK && answer != answerTimeout {
		answer = answerFailed // whatever it says, it is not about the confirmations
	}
	items, _ := c.answered(b, answer, err)
	c.assign(items, unknown)
}

// answered takes in the answer to the request of b, and returns what needs no request like it any longer.
func (c *confirmer) answered(b *confirmBatch, answer confirmAnswer, err error) (confirmed, rejected []confirmation) {
	c.mu.Lock()
	if err != nil && c.ctx.Err() != nil {
		c.mu.Unlock()
		return nil, nil
	}
	confirmed, rejected, report := c.queue.answered(time.Now(), b, answer, err)
	c.clientClosed = errors.Is(err, gateway.ErrClosed)
	c.endIfDone()
	c.pump()
	c.mu.Unlock()
	if answer == answerFailed || answer == answerTimeout || answer == answerForbidden {
		c.stats.confirmFailures.Add(1)
	}
	if report != nil {
		c.report(report)
	}
	return confirmed, rejected
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

func (c *confirmer) report(w *Wait) {
	lasted := time.Since(w.Since).Round(time.Second)
	fields := reminders.Fields(lasted, w.Err).Add(watermill.LogFields{"tenant_id": w.What, "count": w.Count})
	switch listing := w.What == ""; {
	case w.Err == nil && listing:
		c.logger.Info("listing tenants succeeds again", fields)
	case w.Err == nil:
		c.logger.Info("confirmations for the tenant succeed again", fields)
	case listing:
		c.logger.Error("listing tenants fails; confirmations whose events name no tenant wait", w.Err, fields)
	default:
		c.logger.Error("confirmations for the tenant fail; they are kept and retried", w.Err, fields)
	}
}

// finish ends the work on items.
func (c *confirmer) finish(items []confirmation) {
	c.done(items)
	c.waiting.Add(-int64(len(items)))
	c.mu.Lock()
	defer c.mu.Unlock()
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
	c.logger.Error("confirmations were rejected and dropped; the service may redeliver these messages", err, watermill.LogFields{
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

// tenantOf returns the tenant of an endpoint, empty if it is not known. It calls code of the
// application.
func (c *confirmer) tenantOf(endpoint string) string {
	if tenant, ok := c.tenants.TenantOf(endpoint); ok {
		return tenant
	}
	return ""
}

// pending returns how many confirmations wait, since when the oldest does, and the tenants whose confirmations fail, with one
// without a name for all that cannot be looked up.
func (c *confirmer) pending() (n int, oldest time.Time, failing []Wait) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue.all(func(b *confirmBatch) { oldest = earlier(oldest, b.since) })
	return int(c.waiting.Load()), oldest, c.queue.waits()
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
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	waitUntil(ctx, lifecycle.Ended(&c.wg))
	return int(c.waiting.Load())
}
