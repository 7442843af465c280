package subscriber

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
)

var _ message.Subscriber = (*Subscriber)(nil)

// Subscriber delivers the events of the gateway as Watermill messages. All
// subscriptions of one Subscriber share one event stream. Its methods are safe
// for concurrent use.
type Subscriber struct {
	cfg        Config
	logger     watermill.LoggerAdapter
	confirmer  *confirmer
	quarantine *quarantine   // nil when there is none
	observer   eventObserver // nil when nobody wants every event
	fileTypes  map[string]bool
	stats      counters

	// ctx ends when Close has drained; everything that is not a delivery ends
	// with it.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	closeOnce sync.Once
	closeErr  error

	// mu guards what follows. No user code and no request runs under it.
	mu            sync.Mutex
	closed        bool
	subscriptions []*subscription
	running       bool               // the stream loop runs
	stopRun       context.CancelFunc // ends it
	holds         int                // calls of Hold that were not released
	reconnect     func()             // ends the current connection; nil when there is none
	streamState   StreamState

	table        *table
	filesDone    *fileSet
	hold         *fileHold
	first, last  *delivery // open deliveries in the order of arrival
	inFlight     int
	bytes        int64
	freed        chan struct{} // closed when there may be room again; nil when nobody waits
	recalled     bool          // the connection was given up: no more messages are taken from it
	skipping     bool          // none is taken from it either, only fresh payload URIs
	untakenKinds map[untakenKind]int
	refreshing   map[messageKey][]*refreshWait // who waits for a fresh payload URI
	fetchQueue   []*delivery
	fetchers     int
	evictedKeys  map[string]struct{} // order keys that take nothing until the next connect
}

// New returns a Subscriber. It does not connect: the stream is opened with the
// first subscription. A nil logger is silent. The error tells everything that
// is wrong with the configuration.
func New(cfg Config, logger watermill.LoggerAdapter) (*Subscriber, error) {
	cfg.setDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Subscriber{
		cfg: cfg, logger: logger, ctx: ctx, cancel: cancel,
		fileTypes:    make(map[string]bool, len(cfg.Files)),
		table:        newTable(cfg.RecentConfirmed, cfg.RecentFor),
		filesDone:    newFileSet(cfg.RecentConfirmed/16+1, cfg.RecentFor),
		hold:         newFileHold(),
		untakenKinds: make(map[untakenKind]int),
		evictedKeys:  make(map[string]struct{}),
		refreshing:   make(map[messageKey][]*refreshWait),
	}
	for _, t := range cfg.Files {
		s.fileTypes[t] = true
	}
	s.observer, _ = cfg.Tenants.(eventObserver)
	s.confirmer = newConfirmer(cfg, logger, s.onConfirmed, s.onRoom)
	if cfg.Quarantine.Publisher != nil {
		s.quarantine = newQuarantine(cfg.Quarantine, logger, s.confirmQuarantined, s.recall)
	}
	return s, nil
}

// Subscribe delivers the events that topic names (see [AllData] and
// [Everything]) on the returned channel, which is not buffered. Every message
// has to be acked or nacked. The first subscription opens the event stream;
// Subscribe does not wait for that.
//
// When ctx ends, nothing more is delivered, messages that were taken may still
// be acked, for Config.DrainTimeout, and then the channel is closed. The same
// happens on Close, and when the service refuses the stream for good (an
// answer of status 4xx other than 401, 408 and 429), which Stats tells.
//
// The context of a message carries the values of ctx. It ends when the message
// was acked or nacked, or when the drain time is over; not when ctx ends, so
// that a handler can finish its work during a graceful shutdown.
//
// It returns [ErrClosed] after Close.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic == "" {
		return nil, errors.New("subscriber: topic is empty: use AllData, Everything, an event type or a message type")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	sub := newSubscription(ctx, topic)
	s.subscriptions = append(s.subscriptions, sub)
	// Ends when ctx ends or stop is closed, and the deliveries have ended.
	s.wg.Go(func() { s.runSubscription(ctx, sub) })
	s.startRun()
	s.recallUntaken(topic)
	return sub.out, nil
}

// Hold keeps the event stream from being opened until release is called, so
// that several subscriptions can be made before the first event comes: an
// event is delivered only to the subscriptions that exist when it arrives.
// Release is idempotent. A stream that is open already stays open.
func (s *Subscriber) Hold() (release func()) {
	s.mu.Lock()
	s.holds++
	s.mu.Unlock()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.holds--
		s.startRun()
	})
}

// startRun starts the stream loop when there is somebody to read for. s.mu is held.
func (s *Subscriber) startRun() {
	if s.running || s.closed || s.holds > 0 || !s.hasTakers() {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.running, s.stopRun = true, cancel
	// Ends with ctx: when the last subscription stops, or on Close.
	s.wg.Go(func() {
		s.run(ctx)
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running = false
		s.startRun()
	})
}

// hasTakers reports whether a subscription still takes events. s.mu is held.
func (s *Subscriber) hasTakers() bool {
	for _, sub := range s.subscriptions {
		if !sub.stopped {
			return true
		}
	}
	return false
}

// recallUntaken makes the service send again what nobody took before a
// subscription to topic existed. s.mu is held.
func (s *Subscriber) recallUntaken(topic string) {
	recall := false
	for kind := range s.untakenKinds {
		if topicTakes(topic, kind.event, kind.messageType) || kind.messageType == "" {
			delete(s.untakenKinds, kind)
			recall = true
		}
	}
	if recall {
		s.recallLocked()
	}
}

func (s *Subscriber) removeSubscription(sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.subscriptions {
		if other == sub {
			s.subscriptions = append(s.subscriptions[:i:i], s.subscriptions[i+1:]...)
			return
		}
	}
}

// onConfirmed is told what the confirmer has settled.
func (s *Subscriber) onConfirmed(batch []confirmation) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range batch {
		s.table.confirmed(batch[i].entry, now)
	}
}

// onRoom is told that the confirmation backlog has become smaller.
func (s *Subscriber) onRoom() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeRoom()
}

// Close stops reading the stream, waits until the messages that handlers hold
// are acked or nacked, at most for Config.DrainTimeout, sends the confirmations
// that wait, and closes the output channels; all that within
// Config.CloseTimeout. What was not acked stays unconfirmed and comes again
// with the next connection; how many that are is logged.
//
// Close is idempotent and may be called from several goroutines: all wait for
// the same end. The error is an [*UnconfirmedError] when acked messages could
// not be confirmed.
func (s *Subscriber) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Subscriber) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.CloseTimeout)
	defer cancel()
	drain, stopDrain := context.WithTimeout(ctx, s.cfg.DrainTimeout)
	defer stopDrain()
	s.mu.Lock()
	s.closed = true
	subs := append([]*subscription(nil), s.subscriptions...)
	stopRun := s.stopRun
	s.mu.Unlock()
	if stopRun != nil {
		stopRun()
	}
	for _, sub := range subs {
		s.stopSubscription(sub)
	}
	for _, sub := range subs {
		sub.deliveries.Wait()
	}
	s.cancel()
	s.wg.Wait()
	if s.quarantine != nil {
		if left := s.quarantine.close(drain); left > 0 {
			s.logger.Info("Events could not be put into the quarantine; they stay with the service", watermill.LogFields{"count": left})
		}
	}

	unconfirmed := s.confirmer.close(ctx)
	stats := s.Stats()
	s.logger.Info("Subscriber closed", watermill.LogFields{
		"confirmed": stats.Confirmed, "unacked": stats.Abandoned, "held": stats.HeldNow, "unconfirmed": unconfirmed,
	})
	if unconfirmed > 0 {
		return &UnconfirmedError{Count: unconfirmed}
	}
	return nil
}

// undeliverable reports an event that cannot be delivered.
func (s *Subscriber) undeliverable(event gateway.Event, err error) {
	s.logger.Error("A message cannot be delivered and stays unconfirmed", err, eventFields(event))
	if s.cfg.Hooks.Undeliverable != nil {
		s.cfg.Hooks.Undeliverable(event, err)
	}
}

// eventFields are the IDs of an event for logs: never its payload, nor the URI.
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
