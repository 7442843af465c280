package subscriber

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
)

const (
	testTTL       = 5 * time.Second
	leaseRenewals = 3 // in it
)

// scriptedLease grants what the test says. Its store is asked at the times that the test counts.
type scriptedLease struct {
	grants chan LeaseTerm
	failed chan error
}

func (l *scriptedLease) TTL() time.Duration { return testTTL }

func (l *scriptedLease) Acquire(ctx context.Context) (LeaseTerm, error) {
	select {
	case term := <-l.grants:
		return term, nil
	case err := <-l.failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type scriptedTerm struct {
	epoch    uint64
	release  func(ctx context.Context) error // what comes of Release; nil: it succeeds
	renewed  time.Time
	lost     chan struct{}
	answer   func(ctx context.Context) error // of Renew; nil: it succeeds
	renewals int
	released bool
}

func newScriptedTerm(epoch uint64) *scriptedTerm {
	return &scriptedTerm{epoch: epoch, renewed: time.Now(), lost: make(chan struct{})}
}

func (s *scriptedTerm) Epoch() uint64         { return s.epoch }
func (s *scriptedTerm) Renewed() time.Time    { return s.renewed }
func (s *scriptedTerm) Lost() <-chan struct{} { return s.lost }

func (s *scriptedTerm) Renew(ctx context.Context) error {
	s.renewals++
	sent := time.Now()
	if s.answer != nil {
		if err := s.answer(ctx); err != nil {
			return err
		}
	}
	s.renewed = sent
	return nil
}

func (s *scriptedTerm) Release(ctx context.Context) error {
	if s.release != nil {
		if err := s.release(ctx); err != nil {
			return err
		}
	}
	s.released = true
	return nil
}

// leaseWorld is a Subscriber with a lease that the test grants.
type leaseWorld struct {
	*testing.T
	*Subscriber
	lease    *scriptedLease
	client   *silentClient
	messages <-chan *message.Message
	jump     *atomic.Int64 // of the wall clock
	open     *message.Message
}

func newLeaseWorld(t *testing.T, cfg Config) *leaseWorld {
	t.Helper()
	w := &leaseWorld{T: t, lease: &scriptedLease{grants: make(chan LeaseTerm), failed: make(chan error)}, client: &silentClient{}, jump: &atomic.Int64{}}
	if cfg.Client == nil {
		cfg.Client = w.client // its stream is never open
	}
	cfg.Lease, cfg.StreamDownFor = w.lease, cmp.Or(cfg.StreamDownFor, KeepLease)
	cfg.StartAfter, cfg.DrainTimeout, cfg.CloseTimeout = -1, 2*time.Second, 4*time.Second
	w.Subscriber = testkit.Must(New(cfg, nil))(t)
	w.holder = w.newHolder(func() time.Time { return time.Now().Add(time.Duration(w.jump.Load())) })
	t.Cleanup(func() { _ = w.Close() })
	w.messages = testkit.Must(w.Subscribe(t.Context(), AllData))(t)
	synctest.Wait()
	return w
}

// grant begins a term.
func (w *leaseWorld) grant(epoch uint64) *scriptedTerm {
	w.Helper()
	term := newScriptedTerm(epoch)
	w.lease.grants <- term
	synctest.Wait()
	return term
}

// arrive lets a message arrive on the stream of a worker.
func (w *leaseWorld) arrive(worker *Subscriber, number int) {
	w.Helper()
	worker.intake(w.Context(), &gateway.MessageReceived{
		ID: fmt.Sprintf("%08x-2222-4333-8444-555555555555", number), AppMessageID: strconv.Itoa(number),
		ReceivingEndpointID: fmt.Sprintf("%08x-7777-4888-8999-aaaaaaaaaaaa", number),
		TenantID:            "tenant", MessageType: "type", Payload: []byte("small"),
	}, 0)
	synctest.Wait()
}

// next returns the next message; nil if none comes.
func (w *leaseWorld) next() *message.Message {
	synctest.Wait()
	select {
	case msg := <-w.messages:
		return msg
	default:
		return nil
	}
}

// state checks the state that Stats tells.
func (w *leaseWorld) state(role LeaseRole, epoch uint64, changes, lost int64) {
	w.Helper()
	synctest.Wait()
	if got := w.Stats().Lease; got.Role != role || got.Epoch != epoch || got.Changes != changes || got.Lost != lost {
		w.Errorf("%v of epoch %d after %d changes, %d lost; want %v of %d after %d, %d lost",
			got.Role, got.Epoch, got.Changes, got.Lost, role, epoch, changes, lost)
	}
}

// none checks that no message is there to be received.
func (w *leaseWorld) none() {
	w.Helper()
	synctest.Wait()
	select {
	case msg, open := <-w.messages:
		w.Errorf("%v, %v came, want nothing", msg, open)
	default:
	}
}

// A lease is renewed three times in its TTL, again and again.
func TestLeaseIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaseWorld(t, Config{})
		w.state(LeaseStandby, 0, 1, 0)
		began := time.Now()
		term := w.grant(7)
		w.state(LeaseHolder, 7, 2, 0)
		if got := w.Stats().Lease; !got.Until.Equal(began.Add(testTTL)) || !got.Since.Equal(began) {
			t.Errorf("since %v, until %v; want %v and %v later", got.Since, got.Until, began, testTTL)
		}
		time.Sleep(time.Minute)
		w.state(LeaseHolder, 7, 2, 0)
		if want := int(time.Minute / testTTL * leaseRenewals); term.renewals != want && term.renewals != want-1 {
			t.Errorf("%d renewals in a minute, want %d", term.renewals, want)
		}
		if err := w.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
		if !term.released {
			t.Error("the lease is not released")
		}
		w.state(LeaseNone, 7, 3, 0)
	})
}

// Without a renewal the term ends at its time, and not before. Nothing is handed out or confirmed
// from then on, also what was acked before; the context of what is open ends.
func TestLeaseIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaseWorld(t, Config{Confirm: ConfirmConfig{MaxAge: time.Minute}})
		began := time.Now()
		errAway := errors.New("the store is away")
		term := newScriptedTerm(1)
		term.answer = func(context.Context) error { return errAway }
		w.lease.grants <- term
		synctest.Wait()
		worker := w.working()
		for i := range 3 {
			w.arrive(worker, i)
		}
		acked, open := <-w.messages, <-w.messages // the third one waits for a reader
		acked.Ack()
		time.Sleep(testTTL - time.Nanosecond)
		w.state(LeaseHolder, 1, 2, 0)
		if err := open.Context().Err(); err != nil {
			t.Errorf("Err = %v before the end of the term", err)
		}
		if term.renewals < leaseRenewals+1 {
			t.Errorf("%d renewals were tried", term.renewals)
		}
		<-open.Context().Done()
		if got := time.Since(began); got != testTTL {
			t.Errorf("the term ended after %v, want %v", got, testTTL)
		}
		w.state(LeaseStandby, 1, 3, 1)
		if got := w.Stats(); !errors.Is(got.Lease.LastError, errAway) || !got.Lease.Until.IsZero() || got.Received != 3 {
			t.Errorf("%+v, %d received", got.Lease, got.Received)
		}
		open.Ack()
		w.arrive(worker, 4)
		w.none()
		time.Sleep(time.Hour)
		if got := w.client.confirmed.Load(); got != 0 {
			t.Errorf("%d are confirmed, want none", got)
		}
		if term.released {
			t.Error("a term that was over was released")
		}

		// With the lease it goes on, and takes everything as new.
		w.grant(2)
		w.state(LeaseHolder, 2, 4, 1)
		w.arrive(w.working(), 0)
		w.arrive(w.working(), 1)
		(<-w.messages).Ack()
		(<-w.messages).Ack()
		if err := w.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
		if got := w.client.confirmed.Load(); got != 2 {
			t.Errorf("%d are confirmed, want 2", got)
		}
		if got := w.Stats(); got.Received != 5 || got.Delivered != 4 {
			t.Errorf("%d received, %d delivered in all terms; want 5 and 4", got.Received, got.Delivered)
		}
	})
}

// Whatever ends a term, nothing of it goes on.
func TestLeaseIsLost(t *testing.T) {
	answers := func(answer func(context.Context) error) func(*scriptedTerm) {
		return func(term *scriptedTerm) { term.answer = answer }
	}
	for name, tt := range map[string]struct {
		before func(term *scriptedTerm)
		after  func(w *leaseWorld, term *scriptedTerm)
	}{
		"the store says so":  {after: func(_ *leaseWorld, term *scriptedTerm) { close(term.lost) }},
		"the wall clock":     {after: func(w *leaseWorld, _ *scriptedTerm) { w.jump.Store(int64(time.Hour)) }},
		"a renewal says so":  {before: answers(func(context.Context) error { return ErrLeaseLost })},
		"renewals hang":      {before: answers(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })},
		"renewals come late": {before: answers(func(context.Context) error { time.Sleep(2 * testTTL); return nil })},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			w := newLeaseWorld(t, Config{})
			term := newScriptedTerm(1)
			if tt.before != nil {
				tt.before(term)
			}
			w.lease.grants <- term
			synctest.Wait()
			w.arrive(w.working(), 1)
			open := <-w.messages
			if tt.after != nil {
				tt.after(w, term)
			}
			time.Sleep(3 * testTTL)
			w.state(LeaseStandby, 1, 3, 1)
			if open.Context().Err() == nil {
				t.Error("the context of an open message has not ended")
			}
			open.Ack()
			time.Sleep(time.Minute)
			if got := w.client.confirmed.Load(); got != 0 {
				t.Errorf("%d are confirmed, want none", got)
			}
		})
	}
}

// A process that was stopped looks at the clock before its timers have fired: whatever would be the
// next step of a message, it does not start.
func TestNothingStartsAfterTheTerm(t *testing.T) {
	steps := map[string]struct {
		config Config
		before func(w *leaseWorld)
		step   func(w *leaseWorld) // it starts something
	}{
		"intake": {
			step: func(w *leaseWorld) { w.arrive(w.working(), 1) },
		},
		"handing out": {
			before: func(w *leaseWorld) { w.arrive(w.working(), 1); w.arrive(w.working(), 1|1<<28); w.open = w.next() },
			step: func(w *leaseWorld) {
				w.open.Nack() // it is delivered again, or the other one
				time.Sleep(time.Second)
				w.next()
			},
		},
		"a confirmation at once": {
			config: Config{Confirm: ConfirmConfig{MaxBatch: 1}},
			before: func(w *leaseWorld) { w.arrive(w.working(), 1); w.open = w.next() },
			step:   func(w *leaseWorld) { w.open.Ack() },
		},
		"a confirmation that waits for its batch": {
			config: Config{Confirm: ConfirmConfig{MaxAge: time.Second}},
			before: func(w *leaseWorld) { w.arrive(w.working(), 1); w.next().Ack() },
			step: func(w *leaseWorld) {
				worker := w.working()
				worker.mu.Lock()
				worker.confirmer.queue.drain(time.Now())
				worker.confirmer.pump(time.Now())
				worker.mu.Unlock()
			},
		},
		"a confirmation that was about to be sent": {
			config: Config{Confirm: ConfirmConfig{MaxAge: time.Second}},
			before: func(w *leaseWorld) { w.arrive(w.working(), 1); w.next().Ack() },
			step: func(w *leaseWorld) {
				worker := w.working()
				worker.mu.Lock()
				worker.confirmer.queue.drain(time.Now())
				f := worker.confirmer.queue.next(time.Now())
				worker.mu.Unlock()
				worker.confirmer.send(w.Context(), f)
			},
		},
		"the quarantine": {
			step: func(w *leaseWorld) {
				w.working().quarantineEvent(w.Context(), newMalformed(gateway.RawEvent{}, errors.New("it is no JSON")), false)
			},
		},
	}
	for name, tt := range steps {
		for over, want := range map[bool]bool{false: true, true: false} {
			testkit.RunBubble(t, fmt.Sprint(name, ", over: ", over), func(t *testing.T) {
				var stored atomic.Int32
				tt.config.Quarantine.Publisher = countingPublisher{&stored}
				w := newLeaseWorld(t, tt.config)
				w.grant(1)
				if tt.before != nil {
					tt.before(w)
				}
				synctest.Wait()
				worker := w.working()
				count := func() int64 {
					s := worker.Stats()
					return s.Received + s.Delivered + w.client.confirmed.Load() + int64(stored.Load())
				}
				before := count()
				if over {
					w.jump.Store(int64(time.Hour))
				}
				tt.step(w)
				synctest.Wait()
				if got := count() > before; got != want {
					t.Errorf("started: %v, want %v", got, want)
				}
			})
		}
	}
}

// A request for the stream, or to confirm, may wait in the client, for a token say. What it waits with
// looks at the clock.
func TestContextsOfRequestsLookAtTheClock(t *testing.T) {
	for _, name := range []string{"stream", "confirmation"} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			client := &patientClient{asked: make(chan context.Context)}
			w := newLeaseWorld(t, Config{Client: client, Confirm: ConfirmConfig{MaxBatch: 1}})
			w.grant(1)
			ctx := <-client.asked
			if name == "confirmation" {
				w.arrive(w.working(), 1)
				w.next().Ack()
				ctx = <-client.asked
			}
			if ctx.Err() != nil {
				t.Errorf("%v in the term", ctx.Err())
			}
			w.jump.Store(int64(time.Hour))
			if ctx.Err() == nil {
				t.Error("the context does not look at the clock")
			}
		})
	}
}

// patientClient tells of its requests, and waits.
type patientClient struct {
	silentClient
	asked chan context.Context
}

func (c *patientClient) ReceiveEvents(ctx context.Context, _ gateway.ReceiveEventsRequest) (*gateway.EventStream, error) {
	return nil, c.wait(ctx)
}

func (c *patientClient) ConfirmMessages(ctx context.Context, _ string, _ []gateway.MessageConfirmation) error {
	return c.wait(ctx)
}

func (c *patientClient) wait(ctx context.Context) error {
	select {
	case c.asked <- ctx:
	case <-ctx.Done():
	}
	<-ctx.Done()
	return ctx.Err()
}

// A handler that looks at the context of its message after the end of the term sees it, also before
// any timer has fired.
func TestContextsOfMessagesLookAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaseWorld(t, Config{})
		pipelined := testkit.Must(w.Subscribe(msgctx.WithSubscription(t.Context(), &msgctx.Subscription{Pipelines: true}), AllData))(t)
		w.grant(1)
		w.arrive(w.working(), 1)
		messages := map[string]*message.Message{"plain": w.next(), "pipelined": <-pipelined}
		for name, msg := range messages {
			if nack := msgctx.NackOf(msg.Context()); msg.Context().Err() != nil || !nack.Leased {
				t.Errorf("%s: %v, leased: %v; want neither an error nor a message without a lease", name, msg.Context().Err(), nack.Leased)
			}
		}
		w.jump.Store(int64(time.Hour))
		for name, msg := range messages {
			if msg.Context().Err() == nil {
				t.Errorf("%s: the context does not look at the clock", name)
			}
		}
	})
}

// countingPublisher counts what it is given.
type countingPublisher struct{ count *atomic.Int32 }

func (p countingPublisher) Publish(_ string, messages ...*message.Message) error {
	p.count.Add(int32(len(messages)))
	return nil
}

func (countingPublisher) Close() error { return nil }

// A term that has passed before Acquire returns does nothing.
func TestLeaseIsAcquiredTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Int32
		w := newLeaseWorld(t, Config{Hooks: Hooks{Holding: func(context.Context, uint64) { held.Add(1) }}})
		term := newScriptedTerm(1)
		time.Sleep(testTTL) // the process was stopped, say
		w.lease.grants <- term
		w.state(LeaseStandby, 1, 3, 1)
		if got := w.client.streams.Load(); got != 0 || held.Load() != 0 || term.renewals != 0 {
			t.Errorf("%d streams, %d renewals, %d hooks; want none", got, term.renewals, held.Load())
		}
	})
}

// A lease that is lost during Close ends what is open, and Close says what was not confirmed.
func TestLeaseIsLostDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaseWorld(t, Config{})
		term := w.grant(1)
		w.arrive(w.working(), 1)
		open := <-w.messages
		closed := make(chan error)
		began := time.Now()
		go func() { closed <- w.Close() }()
		time.Sleep(time.Second)
		close(term.lost)
		if err := <-closed; err != nil {
			t.Errorf("Close = %v", err)
		}
		if got := time.Since(began); got != time.Second {
			t.Errorf("Close took %v, want no longer than the lease, 1s", got)
		}
		open.Ack()
		if got := w.client.confirmed.Load(); got != 0 || term.released {
			t.Errorf("%d confirmed, released: %v; want 0, false", got, term.released)
		}
	})
}

// Holding runs while the lease is held, and the lease is released after it has returned.
func TestHolding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type call struct {
			ctx   context.Context
			epoch uint64
		}
		calls, leave := make(chan call, 1), make(chan struct{})
		w := newLeaseWorld(t, Config{Hooks: Hooks{Holding: func(ctx context.Context, epoch uint64) {
			calls <- call{ctx, epoch}
			<-ctx.Done()
			<-leave
		}}})
		first := w.grant(3)
		held := <-calls
		if held.epoch != 3 || held.ctx.Err() != nil {
			t.Errorf("epoch %d, %v; want 3", held.epoch, held.ctx.Err())
		}
		w.jump.Store(int64(time.Hour))
		if held.ctx.Err() == nil {
			t.Error("the context does not look at the clock")
		}
		<-held.ctx.Done()
		w.jump.Store(0)
		leave <- struct{}{}
		if first.released {
			t.Error("a term that was over was released")
		}
		second := w.grant(4)
		if held = <-calls; held.epoch != 4 {
			t.Errorf("epoch %d, want 4", held.epoch)
		}
		closed := make(chan error)
		go func() { closed <- w.Close() }()
		<-held.ctx.Done()
		time.Sleep(time.Second)
		if second.released {
			t.Error("released while Holding runs")
		}
		close(leave)
		if err := <-closed; err != nil || !second.released {
			t.Errorf("Close = %v, released: %v", err, second.released)
		}
	})
}

// Nobody wants the lease before somebody subscribes and nobody holds the stream. A later
// subscription joins, and one that ends leaves the others alone.
func TestSubscriptionsWithALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := &scriptedLease{grants: make(chan LeaseTerm), failed: make(chan error)}
		client := &silentClient{}
		ready := make(chan struct{})
		sub := testkit.Must(New(Config{Client: client, Lease: lease, Ready: ready, StreamDownFor: KeepLease, CloseTimeout: 3 * time.Second}, nil))(t)
		defer func() { _ = sub.Close() }()
		w := &leaseWorld{T: t, Subscriber: sub, lease: lease, client: client}
		w.state(LeaseNone, 0, 0, 0)
		ctx, cancel := context.WithCancel(t.Context())
		first := testkit.Must(sub.Subscribe(ctx, AllData))(t)
		w.state(LeaseNone, 0, 0, 0)
		close(ready)
		w.state(LeaseStandby, 0, 1, 0)
		w.grant(1)
		second := testkit.Must(sub.Subscribe(t.Context(), AllData))(t)
		w.arrive(w.working(), 1)
		(<-first).Ack()
		(<-second).Ack()
		cancel()
		if _, open := <-first; open {
			t.Error("the channel is open although the subscription has ended")
		}
		w.arrive(w.working(), 2)
		(<-second).Ack()
		time.Sleep(time.Minute)
		w.state(LeaseHolder, 1, 2, 0)
		if got := client.confirmed.Load(); got != 2 {
			t.Errorf("%d confirmed, want 2", got)
		}
	})
}

// After Drain nothing is taken in any longer, nor is there another term.
func TestDrainWithALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaseWorld(t, Config{})
		term := w.grant(1)
		w.arrive(w.working(), 1)
		open := w.next()
		drained := make(chan struct{})
		go func() {
			w.Drain(t.Context())
			close(drained)
		}()
		time.Sleep(time.Second)
		select {
		case <-drained:
			t.Error("Drain returned while a message was open")
		default:
		}
		open.Ack()
		<-drained
		testkit.Must(w.Subscribe(t.Context(), AllData))(t)
		time.Sleep(time.Minute)
		if got := w.client.streams.Load(); got != 1 {
			t.Errorf("%d streams were opened, want 1", got)
		}
		w.state(LeaseHolder, 1, 2, 0)
		close(term.lost)
		w.state(LeaseNone, 1, 3, 1)
		if got := w.client.confirmed.Load(); got != 1 {
			t.Errorf("%d are confirmed, want 1", got)
		}
	})
}

// Acquire that fails is tried again.
func TestLeaseCannotBeAcquired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaseWorld(t, Config{})
		errBroken := errors.New("no such bucket")
		for range 3 {
			w.lease.failed <- errBroken
			synctest.Wait()
			if got := w.Stats().Lease.LastError; !errors.Is(got, errBroken) {
				t.Errorf("LastError = %v, want %v", got, errBroken)
			}
		}
		w.grant(1)
		w.state(LeaseHolder, 1, 2, 0)
		if got := w.Stats().Lease.LastError; got != nil {
			t.Errorf("LastError = %v, want nil", got)
		}
	})
}

// A standby ends at once.
func TestCloseOfAStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaseWorld(t, Config{})
		began := time.Now()
		if err := w.Close(); err != nil || time.Since(began) > 0 {
			t.Errorf("Close = %v after %v", err, time.Since(began))
		}
		if _, open := <-w.messages; open {
			t.Error("the channel is open after Close")
		}
		w.state(LeaseNone, 0, 2, 0)
	})
}

// askedClient has a stream that is open and quiet, and answers questions as the test says.
type askedClient struct {
	silentClient
	answer atomic.Pointer[error] // nil: none comes
	asked  atomic.Int64
}

func (c *askedClient) ListAuthorizedTenants(ctx context.Context) ([]gateway.TenantInfo, error) {
	c.asked.Add(1)
	if err := c.answer.Load(); err != nil {
		return nil, *err
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A lease that is given up is released also when the store takes a while, since nobody waits for that: else
// the next one would have to wait for the rest of its time. It is wanted again a TTL later.
func TestLeaseIsGivenUpToASlowStore(t *testing.T) {
	for name, test := range map[string]struct {
		takes    time.Duration
		released bool
	}{"slow": {testTTL - time.Second, true}, "gone": {time.Hour, false}} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			w := newLeaseWorld(t, Config{Client: &askedClient{}, StreamDownFor: time.Second})
			term := newScriptedTerm(1)
			term.release = func(ctx context.Context) error { return backoff.Sleep(ctx, test.takes) }
			w.lease.grants <- term
			time.Sleep(2 * testTTL)
			w.state(LeaseStandby, 1, 3, 0)
			if got := w.Stats().Lease.GivenUp; got != 1 || term.released != test.released {
				t.Errorf("given up %d times, released: %v; want 1, %v", got, term.released, test.released)
			}
			select {
			case w.lease.grants <- newScriptedTerm(2):
				t.Error("it is wanted again within its TTL")
			default:
			}
			time.Sleep(testTTL)
			w.grant(3)
			w.state(LeaseHolder, 3, 4, 0)
		})
	}
}

// While there is no access token nothing can be asked, so a quiet stream is no reason to give the
// lease up, unless it is down. Once there is one, an answer is due.
func TestLeaseWithoutAToken(t *testing.T) {
	const patience = 10 * time.Second
	noToken := error(&gateway.Error{Op: "list tenants", Err: gateway.ErrToken})
	refused := error(&gateway.Error{Op: "list tenants", Err: errors.New("connection refused")})
	for name, test := range map[string]struct {
		answer *error
		down   bool // the stream
		kept   bool
	}{
		"no token":                      {answer: &noToken, kept: true},
		"no token and no stream":        {answer: &noToken, down: true},
		"the gateway cannot be reached": {answer: &refused},
		"no answer":                     {},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			client := &askedClient{}
			client.answer.Store(test.answer)
			w := newLeaseWorld(t, Config{Client: client, StreamDownFor: patience})
			w.grant(1)
			worker := w.working()
			worker.mu.Lock()
			worker.loop.connection.opened(time.Now(), false)
			if test.down {
				_, _ = worker.loop.connection.ended(time.Now(), streamEnd{err: noToken})
			}
			worker.mu.Unlock()
			time.Sleep(2 * patience)
			if got := w.Stats().Lease; (got.Role == LeaseHolder) != test.kept || client.asked.Load() == 0 {
				t.Errorf("%v after %d questions, want the lease to be kept: %v", got.Role, client.asked.Load(), test.kept)
			}
			if !test.kept {
				return
			}
			time.Sleep(10 * patience)
			w.state(LeaseHolder, 1, 2, 0)
			client.answer.Store(nil)
			time.Sleep(2 * patience)
			w.state(LeaseStandby, 1, 3, 0)
		})
	}
}
