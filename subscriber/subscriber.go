package subscriber

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/reminders"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/subscriber/internal/core"
	"github.com/agrimill/agrimill/subscriber/internal/lease"
)

var _ message.Subscriber = (*Subscriber)(nil)

// Subscriber delivers the gateway's events as Watermill messages. All
// subscriptions of a Subscriber share one event stream. Its methods are safe
// for concurrent use.
type Subscriber struct {
	cfg        Config
	logger     watermill.LoggerAdapter
	confirmer  *confirmer
	quarantine *quarantine // nil if not configured
	stats      *counters
	holder     *holder // nil without a lease, and in a worker

	// ctx is canceled once Close has drained, and ends with the term of a worker; everything except deliveries ends
	// with it.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	closeOnce sync.Once
	closeErr  error

	// mu guards the fields below. No user code and no request runs while it is held.
	mu            sync.Mutex
	closed        bool
	subscriptions []*subscription
	loop          loop
	seen          seen
	core          *core.Core
	clock         clock
	freed         wakeup.Signal // there may be room
	payloads      payloads
}

// payloads are those that are not embedded in their events.
type payloads struct {
	downloads *downloadQueue
	stale     map[*delivery]time.Time // since when their handlers wait for fresh URIs
	gone      goneMessages
}

// start is what the stream waits for before it is opened first.
type start struct {
	holds    int       // reasons not to open it yet
	from     time.Time // when the first subscription began to wait for others
	at       time.Time // when it may be opened; see Config.StartAfter
	notReady sync.Once // it was logged that it takes long
}

// loop is what opens the stream again and again.
type loop struct {
	start      start
	running    bool
	stop       context.CancelFunc // nil before it runs first
	reconnect  func()             // ends the current connection; nil if there is none
	recalled   bool               // nothing more is taken from that
	draining   bool               // it was ended for good, and what is being read is taken
	connection connection
	stream     *gateway.EventStream // the latest one; nil before the first
	failure    error                // see Subscriber.Err
	outage     reminders.Log        // of the stream
}

// New returns a Subscriber. It does not connect: the stream is opened once the
// subscriptions are made, see [Config.StartAfter]. A nil logger discards all output. The error lists every mistake in
// the configuration.
func New(cfg Config, logger watermill.LoggerAdapter) (*Subscriber, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	logger = warnlog.Or(logger)
	// A problem with one event may affect every event that follows.
	logger = warnlog.Limit(logger, warnlog.PerMessage)
	s := newSubscriber(context.Background(), cfg, logger, new(counters))
	if cfg.Lease != nil {
		s.holder = s.newHolder(time.Now)
	}
	return s, nil
}

// newSubscriber returns a Subscriber with a valid configuration, in which nothing starts once within has ended.
func newSubscriber(within context.Context, cfg Config, logger watermill.LoggerAdapter, stats *counters) *Subscriber {
	ctx, cancel := context.WithCancel(within)
	s := &Subscriber{
		cfg: cfg, logger: logger, ctx: lease.Guard(ctx), cancel: cancel, stats: stats,
		clock:    clock{began: time.Now().Add(-1)}, // a time of zero is none
		seen:     seen{make(kindCounts), make(kindCounts), make(map[string]int)},
		payloads: payloads{downloads: newDownloadQueue(cfg.Payload), stale: make(map[*delivery]time.Time)},
	}
	s.loop.connection.cfg = &s.cfg
	s.payloads.gone.hosts = make(map[string]struct{})
	s.payloads.gone.known, _ = simplelru.NewLRU[core.ID, struct{}](maxGone, nil) // it fails without a size
	s.core = core.New(core.Config{
		MaxInFlight: cfg.MaxInFlight, MaxBytes: cfg.MaxInFlightBytes, MaxUnconfirmed: cfg.Confirm.MaxBacklog, MaxUnsynced: cfg.Confirm.MaxUnsynced, Ordered: cfg.Order == OrderByKey,
		Recent: cfg.RecentConfirmed, RecentFor: cfg.RecentFor, Hold: cfg.FileHold, HoldWhole: cfg.WholeFileHold, MaxHeld: cfg.MaxHeld,
		FileTaken:   len(cfg.EventTypes) == 0 || slices.Contains(cfg.EventTypes, gateway.EventFileReceived),
		Quarantines: cfg.Unmatched == UnmatchedQuarantine, Names: make(tenantNames).of,
	})
	s.confirmer = newConfirmer(within, s)
	if cfg.Quarantine.Publisher != nil {
		s.quarantine = newQuarantine(cfg.Quarantine, logger, stats)
	}
	return s
}

// Subscribe delivers the events selected by topic (see [AllData] and
// [Everything]) on the returned channel, which is unbuffered. Every message
// must be acked or nacked. The bytes of its payload are shared with other subscriptions
// and with redeliveries: replace them, do not write to them. The event stream is opened
// after the last of several subscriptions, see [Config.StartAfter]; Subscribe does not wait for that.
//
// When ctx ends, delivery stops. Messages already received from the channel can
// still be acked for up to Config.DrainTimeout; then the channel is closed. The
// same happens on Close, and after Config.StreamRefusedFor, see [Subscriber.Err]; a later Subscribe tries again.
//
// A message is confirmed when every subscription that takes it has acked it. What a
// subscription has not acked when it ends is left with the service. If others go on, a
// reconnect brings it again, at most one every four seconds, to all that take it then and
// have not acked it; if they all have, it is confirmed. What a subscription acked and another
// one left also comes to its successor, as a copy: end subscriptions that belong together
// at the same time, or by Close.
//
// The context of a message carries the values of ctx. It ends when the message
// is acked or nacked, or when the drain timeout expires, and not with ctx, so that a
// handler can finish its work during a shutdown.
//
// Subscribe returns [ErrClosed] after Close.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic == "" {
		return nil, fmt.Errorf("%w: empty topic: use that of all data, that of everything, an event type or a message type", ErrConfig)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	asked := msgctx.SubscriptionOf(ctx)
	own := *asked
	if asked.IsTo(s) {
		asked.Given = s.cfg.Unmarshaler == nil // each delivery has metadata of its own
	} else {
		own.Handler = nil
	}
	ctx = msgctx.WithSubscription(ctx, &own)
	if s.holder != nil {
		out := s.holder.subscribe(ctx, topic)
		s.awaitOthers(ctx)
		s.startRun()
		return out, nil
	}
	out := make(chan *message.Message)
	s.addSubscription(ctx, topic, out, func() { close(out) })
	return out, nil
}

// addSubscription adds a subscription that sends to out and calls ended when it no longer does. s.mu is held.
func (s *Subscriber) addSubscription(ctx context.Context, topic string, out chan *message.Message, ended func()) {
	sub := s.newSubscription(ctx, topic, out, ended)
	s.subscriptions = append(s.subscriptions, sub)
	s.awaitOthers(ctx)
	s.catchUp(sub)
	// Ends after ctx ends or stop is closed, once the deliveries have ended.
	s.wg.Go(func() { s.runSubscription(ctx, sub) })
	s.startRun()
	s.wakeBy(s.core.NextWake())
}

// maxStartAfters is for how many times Config.StartAfter the stream waits at most, while subscriptions are made again
// and again.
const maxStartAfters = 10

// readyReported is after how long it is logged that the stream waits for Config.Ready.
const readyReported = time.Minute

// awaitOthers keeps the event stream from being opened before the other subscriptions are made: until
// the Router of the one with ctx or Config.Ready says so, or else for Config.StartAfter. One that ends before keeps
// nobody waiting. s.mu is held.
func (s *Subscriber) awaitOthers(ctx context.Context) {
	start := cmp.Or(msgctx.SubscriptionOf(ctx).Start, s.cfg.Ready)
	if start == nil {
		now := time.Now()
		if now.After(s.loop.start.at) { // nobody waits yet
			s.loop.start.from = now
		}
		if now.Sub(s.loop.start.from)/(maxStartAfters-1) < s.cfg.StartAfter {
			s.loop.start.at = now.Add(s.cfg.StartAfter)
		}
		return
	}
	if wakeup.Raised(start) {
		return
	}
	s.loop.start.holds++
	// Ends when start is closed, with ctx, or on Close.
	s.wg.Go(func() {
		late := time.AfterFunc(readyReported, func() {
			s.loop.start.notReady.Do(func() { // for all subscriptions
				s.logger.Error("the event stream is not opened: not all subscriptions are made", errNotReady, nil)
			})
		})
		defer late.Stop()
		select {
		case <-start:
		case <-ctx.Done():
		case <-s.ctx.Done():
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.loop.start.holds--
		s.startRun()
	})
}

// errNotReady is what is logged while the stream waits for the subscriptions.
var errNotReady = errors.New("subscriber: for 1 minute nothing has told that all subscriptions are made, or not all routes of the Router have subscribed; tell it once they are")

// startRun starts the stream loop if any subscription needs it. s.mu is held.
func (s *Subscriber) startRun() {
	if time.Until(s.loop.start.at) > 0 && !s.loop.running && !s.closed {
		s.wakeAt(s.loop.start.at)
		return
	}
	if s.loop.running || s.closed || s.loop.start.holds > 0 || s.ctx.Err() != nil {
		return
	}
	if s.holder != nil {
		s.holder.start()
		return
	}
	if !s.hasTakers() {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.loop.running, s.loop.stop, s.loop.failure = true, cancel, nil
	s.loop.connection.start()
	// Ends with ctx: when the last subscription stops, or on Close.
	s.wg.Go(func() {
		s.run(ctx)
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.loop.running = false
		s.startRun()
	})
	// Ends with ctx.
	s.wg.Go(func() { s.watchWaits(ctx) })
	if term := lease.Of(ctx); term != nil && s.cfg.StreamDownFor > 0 {
		// Ends with ctx.
		s.wg.Go(func() { s.watchStream(ctx, term) })
	}
	if d, ok := s.cfg.Tenants.(directory); ok {
		// Ends with ctx.
		s.wg.Go(func() {
			d.KeepFresh(ctx, func(tenant string, err error) {
				s.logger.Error("listing the endpoints of a tenant failed; retrying", err, watermill.LogFields{"tenant_id": tenant})
			})
		})
	}
}

// hasTakers reports whether any subscription still accepts events. s.mu is held.
func (s *Subscriber) hasTakers() bool {
	return slices.ContainsFunc(s.subscriptions, func(sub *subscription) bool { return !sub.ending() })
}

// Close stops reading the stream, waits up to Config.DrainTimeout for the
// messages held by handlers to be acked or nacked, sends the pending
// confirmations, and closes the output channels, all within
// Config.CloseTimeout. Messages that were not acked stay unconfirmed and are
// redelivered on the next connection; their number is logged.
//
// Close waits, within that time, for hooks that are running: called from
// a hook, it takes most of that time. Close the client after it: with a closed client
// nothing can be confirmed anymore.
//
// Close is idempotent and safe for concurrent use: all callers wait for the same
// shutdown. It returns an [*UnconfirmedError] if acked messages could not be
// confirmed.
func (s *Subscriber) Close() error { return s.CloseWithin(s.cfg.CloseTimeout) }

// CloseWithin is [Subscriber.Close] within limit instead of Config.CloseTimeout, for a caller who has more or less
// time left than was known before. With a limit of 0 or less it waits for nothing. The limit of the first call of
// either counts.
func (s *Subscriber) CloseWithin(limit time.Duration) error {
	s.closeOnce.Do(func() {
		closing := s.close
		if s.holder != nil {
			s.mu.Lock()
			s.closed = true // nobody subscribes any longer
			s.mu.Unlock()
			s.cancel()
			s.wg.Wait() // for what waits for a start
			closing = s.holder.close
		}
		if unconfirmed := closing(limit); unconfirmed > 0 {
			s.closeErr = &UnconfirmedError{Count: unconfirmed}
		}
	})
	return s.closeErr
}

// close is CloseWithin without a lease, and at the end of a term.
func (s *Subscriber) close(limit time.Duration) (unconfirmed int) {
	began, draining := time.Now(), min(s.cfg.DrainTimeout, limit)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	// Application code, such as a hook, may never return. Wait for it only until
	// the acked messages need the remaining time.
	patience, stopWaiting := context.WithTimeout(ctx, draining+(limit-draining)/2)
	defer stopWaiting()
	s.mu.Lock()
	s.closed = true
	stopRun := s.loop.stop
	s.mu.Unlock()
	if stopRun != nil {
		stopRun()
	}
	subs := s.stopAll()
	if q := s.quarantine; q != nil && q.sub != nil { // no other one is made any longer
		s.stopSubscription(q.sub)
		subs = append(subs, q.sub)
	}
	delivered := make(chan struct{})
	ended := make(chan struct{})
	go func() { // ends with the last goroutine of the subscriber
		for _, sub := range subs {
			<-sub.drained.Done()
		}
		close(delivered)
		s.wg.Wait()
		close(ended)
	}()
	waitUntil(patience, delivered)
	s.cancel()
	if !waitUntil(patience, ended) {
		s.logger.Error("close gave up waiting", errStillRunning, nil)
	}

	// Aborted requests need a moment to return.
	sending, stopSending := context.WithTimeout(ctx, limit-min(time.Second, limit/10)-time.Since(began))
	defer stopSending()
	unconfirmed = s.confirmer.close(ctx, sending)
	if lease.Of(s.ctx).Err() == nil { // else only a term has ended
		stats := s.Stats()
		s.logger.Info("subscriber closed", watermill.LogFields{
			"confirmed": stats.Confirmed, "abandoned": stats.Abandoned, "held": stats.HeldNow,
			"held_confirmations": stats.HeldConfirmations, "unsynced_confirmations": stats.UnsyncedConfirmations, "unconfirmed": unconfirmed,
		})
	}
	return unconfirmed
}

// waitUntil waits for done until ctx ends and reports whether done was closed.
func waitUntil(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	return wakeup.Raised(done)
}

// undeliverable reports an event that cannot be delivered.
func (s *Subscriber) undeliverable(event gateway.Event, err error) {
	s.logger.Error("message cannot be delivered; it stays unconfirmed", err, eventFields(event))
	if s.cfg.Hooks.Undeliverable != nil {
		s.cfg.Hooks.Undeliverable(event, err)
	}
}

// progress tells the hook.
func (s *Subscriber) progress(kind ProgressKind, event gateway.Event, bytes int64) {
	if s.cfg.Hooks.Progress != nil {
		s.cfg.Hooks.Progress(Progress{Kind: kind, Event: event, Bytes: bytes})
	}
}

// eventFields returns the log fields that identify an event. They never include its
// payload or payload URI.
func eventFields(event gateway.Event) watermill.LogFields {
	fields := watermill.LogFields{"event_type": string(event.Type())}
	switch e := event.(type) {
	case *gateway.MessageReceived:
		fields["message_id"], fields["endpoint_id"], fields["message_type"] = e.ID, e.ReceivingEndpointID, e.MessageType
	case *gateway.FileReceived:
		fields["message_ids"], fields["endpoint_id"], fields["message_type"] = len(e.MessageIDs), e.ReceivingEndpointID, e.MessageType
	}
	return fields
}
