//go:build faults

package faulttest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

// burst sends n messages of the sick tenant at once.
func burst(n int) func(*partialWorld) func() {
	return func(w *partialWorld) func() {
		for range n {
			w.sendAs(0)
		}
		return func() {}
	}
}

// hangOnSick lets the handlers of the sick tenant's messages hang during a fault.
func hangOnSick(w *partialWorld, p *parts) {
	p.Route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		if fault := w.faultNow(); w.hit(fault != nil && w.isSick(msg)) {
			<-fault
		}
		return []*message.Message{msg}, nil
	}
}

// countStored counts what is stored in place of what is confirmed.
func countStored(w *partialWorld, p *parts) {
	p.below(func(to sinks.Sink, topic string, messages ...*message.Message) error {
		err := to.Publish(topic, messages...)
		if err == nil {
			for _, msg := range messages {
				w.counts(msg.Metadata[gateway.KeyMessageID])
			}
		}
		return err
	})
}

// nackAll is a second subscription: it nacks everything during a fault, and acks it otherwise.
func nackAll(w *partialWorld, p *pipeline) {
	messages := testkit.Must(p.sub.Subscribe(w.Context(), messageType))(w)
	go func() { // ends with the subscription
		for msg := range messages {
			if w.hit(w.faultNow() != nil) {
				msg.Nack()
			} else {
				msg.Ack()
			}
		}
	}()
}

// refusedLookup knows which tenant an endpoint belongs to, but not that of the sick one during a
// fault, when it cannot ask for it either.
type refusedLookup struct{ w *partialWorld }

func (l *refusedLookup) TenantOf(endpointID string) (string, bool) {
	tenant := l.w.tenantOf[strings.ToLower(endpointID)]
	if l.w.faultNow() != nil && tenant == l.w.sick() {
		return "", false
	}
	return tenant, tenant != ""
}

func (l *refusedLookup) Sync(context.Context) error {
	if l.w.hit(l.w.faultNow() != nil) {
		return errors.New("refused")
	}
	return nil
}

// watchFirstPayloads notes the addresses with which the payloads of the sick tenant came first.
func watchFirstPayloads(w *partialWorld, p *parts) {
	var seen sync.Map
	p.Subscriber.Hooks.Event = func(event gateway.Event) {
		if e, ok := event.(*gateway.MessageReceived); ok && strings.EqualFold(e.TenantID, w.sick()) {
			if _, again := seen.LoadOrStore(e.ID, true); !again {
				w.noteSickPath(e.PayloadURI)
			}
		}
	}
}

// comesAndGoes is a second subscription that acks everything. During a fault it keeps what it gets, and
// ends with that and is made again, all the time.
func comesAndGoes(w *partialWorld, p *pipeline) {
	go func() { // ends with the subscriber
		for w.Context().Err() == nil {
			ctx, end := context.WithCancel(w.Context())
			messages, err := p.sub.Subscribe(ctx, messageType)
			if err != nil {
				end()
				return // it is closed
			}
			var kept []*message.Message
			over := time.After(200 * time.Millisecond)
			for goesOn := true; goesOn; {
				select {
				case msg, ok := <-messages:
					switch {
					case !ok:
						goesOn = false
					case w.faultNow() == nil:
						msg.Ack()
					default:
						kept = append(kept, msg)
					}
				case <-over:
					if goesOn = !w.hit(w.faultNow() != nil) && len(kept) == 0; goesOn {
						over = time.After(200 * time.Millisecond)
					}
				}
			}
			end()
			for _, msg := range kept {
				msg.Nack()
			}
			for range messages { // until it has ended
			}
		}
	}()
}

// withoutEffect answers the confirmations of the sick tenant with 202 and does nothing. After it, the
// service delivers again what is unconfirmed.
func withoutEffect(w *partialWorld) func() {
	end := inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusAccepted})(w)
	return func() {
		end()
		w.gateway.RedeliverUnconfirmed()
	}
}

// defaultRateLimit is as applications configure it: with the short pauses of the other rows nobody would
// notice them.
func defaultRateLimit(_ *partialWorld, p *parts) { p.Gateway.RateLimit = gateway.RateLimitConfig{} }

func subscriberRows() []partialRow {
	return []partialRow{
		{
			name: "P21 one of two subscriptions nacks everything", everybody: true, stored: true, begin: nackAll,
			change: countStored,
		},
		{name: "P22 handlers hang on many keys of one tenant", strike: burst(40), change: hangOnSick},
		{
			name: "P23 the tenant of one tenant's endpoints cannot be looked up", strike: burst(40),
			gateway: gatewaytest.Config{OmitOptionalFields: true},
			change:  func(w *partialWorld, p *parts) { p.Subscriber.Tenants = &refusedLookup{w} },
		},
		{
			name: "P24 payload addresses of one tenant have expired when they arrive", size: 2000,
			gateway: gatewaytest.Config{InlineLimit: 1000}, change: watchFirstPayloads,
			strike: payloads(40, gatewaytest.Fault{Status: http.StatusForbidden}),
		},
		{
			name: "P25 confirmations of one tenant answer 429", change: defaultRateLimit,
			strike: inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusTooManyRequests}),
		},
		{
			name: "P26 confirmations of one tenant wait for a file that never comes", recovery: 10 * time.Second,
			change: func(_ *partialWorld, p *parts) { p.Subscriber.ChunkSize = 1000 },
			sizeOf: func(w *partialWorld, tenant int) int {
				if w.hit(tenant == 0 && w.faultNow() != nil) {
					return 2000
				}
				return 1
			},
			strike: burst(40),
		},
		{name: "P27 the deduplication bucket vanishes again and again", everybody: true, change: sharedStore, strike: bucketVanishes},
		{name: "P28 the sink hangs on one tenant's topic without end", change: hangingTopic, strike: burst(40)},
		{
			name: "P29 handlers hang on a thousand keys of one tenant, in order by key", sick: 4, atLeast: 1000,
			change: func(w *partialWorld, p *parts) {
				p.Subscriber.MaxInFlight = 40
				byMessage(p)
				hangOnSick(w, p)
			},
		},
	}
}

// severalRows are partial faults of several tenants, or of more than what there is room for.
func severalRows() []partialRow {
	return []partialRow{
		{
			name: "P38 confirmations of two of five tenants answer 429 from the same moment on", sickTenants: 2, change: defaultRateLimit,
			strike: inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusTooManyRequests}),
		},
		heldBeyondCap(), fileComesLater(),
	}
}

// heldBeyondCap: more confirmations wait for files that never come than are held.
func heldBeyondCap() partialRow {
	const most = 20
	return partialRow{
		name: "P39 more confirmations wait for files that never come than are held", recovery: 10 * time.Second, sick: 4, strike: burst(100),
		change: func(_ *partialWorld, p *parts) { p.Subscriber.ChunkSize, p.Subscriber.MaxHeld = 1000, most },
		sizeOf: func(w *partialWorld, tenant int) int {
			if w.hit(tenant == 0 && w.faultNow() != nil) {
				return 2000
			}
			return 1
		},
		after: func(w *partialWorld, p *pipeline) {
			if s := p.sub.Stats(); s.ReleasedConfirmations == 0 {
				w.Errorf("none was sent before its time, %d are held", s.HeldConfirmations)
			}
		},
	}
}

// accountingRows are partial faults of which only the accounts of the subscriber tell.
func accountingRows() []partialRow {
	return []partialRow{
		{name: "P36 confirmations of one tenant answer 202 without effect", strike: withoutEffect},
		{
			name: "P37 one of two subscriptions ends without an ack and is made again, all the time", everybody: true, stored: true, begin: comesAndGoes,
			change: countStored,
		},
	}
}
