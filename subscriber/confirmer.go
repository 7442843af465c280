package subscriber

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
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
	s     *Subscriber
	heard heard // when the gateway last answered

	// ctx ends when there is nothing left to do on close, when close gives up, or with a term; requests and waits end
	// with it.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// Subscriber.mu guards the fields below.
	queue        *confirmQueue
	waiting      int  // in the queue, in a request, or about to be reported
	clientClosed bool // the last answer said so
}

func newConfirmer(within context.Context, s *Subscriber) *confirmer {
	ctx, cancel := context.WithCancel(within)
	return &confirmer{s: s, ctx: lease.Guard(ctx), cancel: cancel, queue: newConfirmQueue(s.cfg.Confirm)}
}

// add queues a confirmation. Without a tenant it is that of its endpoint, see lookUp. It reports whether to pump.
// Subscriber.mu is held.
func (c *confirmer) add(now time.Time, tenant string, item confirmation) (pump bool) {
	c.waiting++
	return c.queue.add(now, strings.ToLower(tenant), tenant, item)
}

// assign queues confirmations under the tenants of their endpoints. Those whose tenant is
// not known are queued under one without a name. If the tenants were listed for them, they are dropped:
// there is no tenant to confirm them for.
func (c *confirmer) assign(items []confirmation, listed bool) {
	tenants := make([]string, len(items))
	for i, item := range items { // not under the lock: a resolver is code of the application
		tenants[i] = c.tenantOf(item.endpoint)
	}
	var unknown []confirmation
	c.s.mu.Lock()
	now := time.Now()
	for i, tenant := range tenants {
		if tenant == "" && listed {
			unknown = append(unknown, items[i])
		} else {
			c.queue.add(now, strings.ToLower(tenant), tenant, items[i])
		}
	}
	c.pump(now)
	c.s.mu.Unlock()
	if len(unknown) > 0 {
		c.reject("", unknown, errTenantUnknown)
	}
}

// pump sends what is due. Subscriber.mu is held.
func (c *confirmer) pump(now time.Time) {
	if c.ctx.Err() != nil {
		return
	}
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
	c.s.wakeAt(c.queue.wake(now))
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
	c.s.stats.confirmRequests.Add(1)
	err := c.s.cfg.Client.ConfirmMessages(ctx, tenant, wire)
	c.heard.note(err)
	confirmed, rejected := c.answered(b, classifyConfirmation(err), err)
	switch {
	case len(confirmed) > 0:
		c.s.stats.confirmed.Add(int64(len(confirmed)))
		if c.s.cfg.Hooks.Confirmed != nil {
			c.s.cfg.Hooks.Confirmed(tenant, wire)
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
		err = c.s.cfg.Tenants.Sync(ctx)
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
	c.s.mu.Lock()
	if err != nil && c.ctx.Err() != nil {
		c.s.mu.Unlock()
		return nil, nil
	}
	now := time.Now()
	confirmed, rejected, report := c.queue.answered(now, b, answer, err)
	c.clientClosed = errors.Is(err, gateway.ErrClosed)
	c.endIfDone()
	c.pump(now)
	c.s.mu.Unlock()
	if answer == answerFailed || answer == answerTimeout || answer == answerForbidden {
		c.s.stats.confirmFailures.Add(1)
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
	case errors.As(err, &e) && e.StatusCode == http.StatusRequestEntityTooLarge:
		return answerTooLarge // no matter who refused it, a smaller request may pass
	case gateway.Refused(err) && errors.Is(err, gateway.ErrForbidden):
		return answerRefused
	case gateway.Refused(err):
		return answerInvalid
	case errors.Is(err, gateway.ErrForbidden) && !errors.Is(err, gateway.ErrIntermediary):
		return answerForbidden
	}
	return answerFailed
}

func (c *confirmer) report(w *Wait) {
	lasted := time.Since(w.Since).Round(time.Second)
	fields := reminders.Fields(lasted, w.Err).Add(watermill.LogFields{"tenant_id": w.What, "count": w.Count})
	switch listing := w.What == ""; {
	case w.Err == nil && listing:
		c.s.logger.Info("listing tenants succeeds again", fields)
	case w.Err == nil:
		c.s.logger.Info("confirmations for the tenant succeed again", fields)
	case listing:
		c.s.logger.Error("listing tenants fails; confirmations whose events name no tenant wait", w.Err, fields)
	default:
		c.s.logger.Error("confirmations for the tenant fail; they are kept and retried", w.Err, fields)
	}
}

// finish ends the work on items.
func (c *confirmer) finish(items []confirmation) {
	c.s.mu.Lock()
	defer c.s.unlock()
	now := c.s.now()
	for i := range items {
		c.s.core.Confirmed(now, items[i].Confirmation)
	}
	c.waiting -= len(items)
	c.endIfDone()
}

// endIfDone ends the confirmer while it closes, if nothing waits any longer or nothing can be confirmed. Subscriber.mu
// is held.
func (c *confirmer) endIfDone() {
	if c.queue.closing && (c.clientClosed || c.waiting == 0) {
		c.cancel()
	}
}

func (c *confirmer) reject(tenant string, items []confirmation, err error) {
	c.s.stats.rejected.Add(int64(len(items)))
	c.s.logger.Error("confirmations were rejected and dropped; the service may redeliver these messages", err, watermill.LogFields{
		"tenant_id": tenant, "count": len(items), "first_message_id": items[0].message, "first_endpoint_id": items[0].endpoint,
	})
	if c.s.cfg.Hooks.ConfirmationRejected != nil {
		for _, item := range items {
			c.s.cfg.Hooks.ConfirmationRejected(tenant, gateway.MessageConfirmation{MessageID: item.message, EndpointID: item.endpoint}, err)
		}
	}
	c.finish(items)
}

// errTenantUnknown means that no authorized tenant has the endpoint.
var errTenantUnknown = errors.New("no authorized tenant has this endpoint")

// tenantOf returns the tenant of an endpoint, empty if it is not known. It calls code of the
// application.
func (c *confirmer) tenantOf(endpoint string) string {
	if tenant, ok := c.s.cfg.Tenants.TenantOf(endpoint); ok {
		return tenant
	}
	return ""
}

// close sends what waits, without waiting for batches to fill, until sending ends,
// or at once when the client is closed. It returns how many confirmations the service
// did not accept. Hooks that still run are waited for until ctx ends.
func (c *confirmer) close(ctx, sending context.Context) int {
	c.s.mu.Lock()
	now := time.Now()
	c.queue.drain(now)
	c.endIfDone()
	c.pump(now)
	c.s.mu.Unlock()
	select {
	case <-c.ctx.Done():
	case <-sending.Done():
	}
	c.s.mu.Lock() // any caller that missed the end of c.ctx has started its request by now
	c.cancel()
	if c.s.clock.timer != nil {
		c.s.clock.timer.Stop()
	}
	c.s.mu.Unlock()
	waitUntil(ctx, lifecycle.Ended(&c.wg))
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.waiting
}
