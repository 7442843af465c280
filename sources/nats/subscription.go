package nats

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/keyqueue"
	"github.com/agrimill/agrimill/internal/ratelog"
)

// consumerPolicy is how often to look up a consumer that is gone, and to ask a server that
// does not answer.
var consumerPolicy = backoff.Policy{Initial: 100 * time.Millisecond, Max: 10 * time.Second}

const (
	// firstNackDelay is how long a message waits that was nacked once.
	firstNackDelay = 100 * time.Millisecond
	// aheadFactor is how many times MaxInFlight messages are held.
	aheadFactor = 4
	// maxAhead is how many bytes of messages are held, give or take one request.
	maxAhead = 64 << 20
	// maxRequest is how many bytes one request brings at most, if no message is larger than those of the request before, and unless one
	// message has more: half of what a server has to write to a client (max_pending) before it cuts that off. (With max_bytes the
	// server would repeat messages out of order.)
	maxRequest = 32 << 20
	// stalled is after what time without an ack a key is, unless AckWait is less, and shares
	// is how many of them fit. What they have too much of goes away for AckWait.
	stalled = 10 * time.Second
	shares  = 16
	// alonePatience and sharedPatience are for how many times AckWait what is behind it waits for
	// that to come back. A lost connection and the recovery from it may be between.
	alonePatience  = 20
	sharedPatience = 3
	// refill is how long to wait until there is room for a quarter of what can be held, before
	// less than that is requested.
	refill = 50 * time.Millisecond
	// lostMargin is for how much longer than the server's wait a lost delivery is waited for,
	// and lostFactor for how many of its waits at most.
	lostMargin = 500 * time.Millisecond
	lostFactor = 3
	// beginning is for how long at most a subscription collects, before it delivers, what others
	// have sent back, and between how often it asks.
	beginning = time.Second
	between   = 10 * time.Millisecond
	// sendBackEvery is how often, while a subscription ends, what nothing holds up any more is
	// sent back.
	sendBackEvery = 50 * time.Millisecond
	// settlePatience is for how long at least the end of a subscription waits for the server to have taken it back.
	settlePatience = 2 * time.Second
	// lookEvery is how often the consumer is looked at while it is read.
	lookEvery = 10 * time.Second
	// remembered is of how many messages it is known that they were acked, should the
	// server redeliver one before it has the ack.
	remembered = 8192
)

// subscription is one call of Subscribe. Only the queue sends to out, and run closes it.
type subscription struct {
	*Subscriber
	subject string
	out     chan *message.Message
	queue   *keyqueue.Queue[*delivery]

	intake     context.Context // ends when no more messages are to be taken
	stopIntake context.CancelFunc
	work       context.Context // ends when messages that were taken are abandoned
	giveUp     context.CancelFunc

	// Used by run only.
	losses
	conn        *natsgo.Conn
	changed     <-chan struct{} // see watch
	collecting  bool            // see begin
	largest     int64           // in bytes, of what came with the latest request; 0: nothing did
	gaps        gaps
	deleted     int64 // since deletedLine let one pass
	deletedLine ratelog.Line

	taken
}

func newSubscription(ctx context.Context, s *Subscriber, subject string) *subscription {
	sub := &subscription{
		Subscriber: s, subject: subject, out: make(chan *message.Message), deletedLine: ratelog.Line{Burst: 1},
		taken: newTaken(),
	}
	sub.intake, sub.stopIntake = context.WithCancel(ctx)
	sub.work, sub.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	sub.queue = keyqueue.New(keyqueue.Config[*delivery]{
		Out: sub.out, MaxOpen: s.config.MaxInFlight,
		Retry:   backoff.Policy{Initial: min(firstNackDelay, s.config.MaxNackDelay), Max: s.config.MaxNackDelay},
		Message: sub.message, Done: sub.ack, Left: sub.leave,
		Name:   func(d *delivery) string { return "nats " + d.name() },
		Stored: func(d *delivery) time.Time { return time.Unix(0, d.place.stored) },
	})
	return sub
}

// run delivers until intake ends. consumer is nil if it has yet to be found.
func (s *subscription) run(consumer jetstream.Consumer) {
	defer close(s.out)
	delivered := make(chan struct{})
	go func() { // ends with intake and work
		defer close(delivered)
		s.queue.Deliver(s.intake, s.work)
	}()
	if consumer == nil {
		consumer = s.again(time.Time{})
	}
	for consumer != nil {
		created := consumer.CachedInfo().Created
		stop := s.keepAlive(consumer.CachedInfo().Config)
		unwatch := s.watch(consumer)
		err := s.pull(consumer)
		unwatch()
		if s.intake.Err() != nil {
			defer stop()
			break
		}
		s.logger.Info("NATS consumer is gone, or another one; looking it up again", watermill.LogFields{"error": err.Error()})
		consumer = s.again(created)
		stop()
	}
	s.stopIntake()
	late := time.Now().Add(s.config.CloseTimeout)
	timer := time.AfterFunc(s.config.CloseTimeout, s.giveUp)
	defer timer.Stop()
	var last *received
	for ended := false; !ended; {
		select {
		case <-delivered:
			ended = true
		case <-time.After(sendBackEvery):
		}
		if sent := s.sendBack(ended); sent != nil {
			last = sent
		}
	}
	if last != nil && s.conn.IsConnected() {
		// The server handles what was sent back beside requests: one of the next subscription, which may follow
		// at once, would get newer messages first.
		_ = last.settle(max(time.Until(late), settlePatience))
	}
	s.giveUp()
	s.report() // the last chance for acks; what the server does not get is redelivered
}

// again finds or creates the consumer, retrying until that succeeds; nil if intake ends. The one before was made at before.
func (s *subscription) again(before time.Time) jetstream.Consumer {
	for n := 0; ; n++ {
		if consumerPolicy.Wait(s.intake, n) != nil {
			return nil
		}
		consumer, err := s.consumer(s.intake, s.subject)
		if err == nil {
			s.logger.Info("NATS consumer is available again", nil)
			s.state.Reads()
			if s.suspect = consumer.CachedInfo().Created.Equal(before); !s.suspect {
				s.losses.anew()
				s.taken.forget()
			}
			return consumer
		}
		if s.intake.Err() == nil {
			s.state.Fails(err)
		}
		if n == 0 && s.intake.Err() == nil {
			s.logger.Error("NATS consumer unavailable; retrying", err, nil)
		}
	}
}

// receive takes a message that the server has delivered, and reports whether for the first
// time.
func (s *subscription) receive(raw *received) (first bool) {
	meta, err := raw.Metadata()
	if err != nil {
		s.logger.Error("message cannot be read; it will be redelivered", err, nil)
		return false
	}
	s.largest = max(s.largest, int64(len(raw.Data)))
	s.losses.see(meta.Sequence.Consumer, s.conn.Stats().Reconnects, s.config.AckWait)
	first = meta.NumDelivered == 1
	if gone := s.gaps.see(meta.Sequence, first); gone > 0 {
		s.tellDeleted(meta, gone)
	}

	if s.leftOut(raw) {
		s.logger.Error("message came without its payload; it will be redelivered", errChanged, watermill.LogFields{"stream": meta.Stream, "sequence": meta.Sequence.Stream})
		return first
	}
	d := &delivery{stream: meta.Stream, place: place{meta.Sequence.Stream, meta.Timestamp.UnixNano()}, raw: raw}
	held, done := s.add(d)
	switch {
	case done:
		_ = raw.ack() // the ack before came too late
	case !held:
		// A redelivery waits as well: the server repeats at once what it could not deliver, and
		// what was lost before that only when its time is over.
		if !s.queue.Add(s.key(raw), d.place.sequence, raw.Size(), s.collecting || !s.lost.IsZero(), d) {
			s.leave(d)
		}
	}
	return first
}

// leftOut reports whether the consumer, which somebody has changed, leaves out payloads. Others may have stored a message that looks like it.
func (s *subscription) leftOut(raw *received) bool {
	if len(raw.Data) > 0 || raw.Header.Get(natsgo.MsgSize) == "" {
		return false
	}
	info, err := s.info(s.intake, *s.found.Load())
	return err != nil || info.Config.HeadersOnly
}

func (s *subscription) key(raw *received) string {
	if s.config.KeyHeader != "" {
		if key := raw.Header.Get(s.config.KeyHeader); key != "" {
			return key
		}
	}
	return raw.Subject
}

// ack acknowledges a message. Without a connection that fails and is retried.
func (s *subscription) ack(d *delivery) {
	if s.done(d).ack() == nil {
		s.remember(d)
	}
}

// sendBack returns what is left to the server, which redelivers it in the order in which it
// comes back: that of the stream, and of a key when nothing of it is handled any more, unless all
// is to go. It returns the last one; nil if there was none. Nothing comes again to this subscription, because it has no request any more.
func (s *subscription) sendBack(all bool) (last *received) {
	now := s.unhandled(all, s.key)
	slices.SortFunc(now, func(a, b *delivery) int { return cmp.Compare(a.place.sequence, b.place.sequence) })
	for _, d := range now {
		last = s.drop(d, 0)
	}
	return last
}

// drop returns a message to the server, which redelivers it after the delay, or, if it does
// not hear of it, after AckWait.
func (s *subscription) drop(d *delivery, delay time.Duration) *received {
	raw := s.remove(d)
	_ = raw.nak(delay)
	return raw
}

// keepAlive reports on what is held, three times in the shortest wait of the server, until stop is called.
func (s *subscription) keepAlive(config jetstream.ConsumerConfig) (stop func()) {
	_, shortest := waits(config)
	return inBackground(func(ctx context.Context) {
		for backoff.Sleep(ctx, max(shortest/3, time.Millisecond)) == nil {
			s.report()
		}
	})
}

// errChanged is why a consumer is looked up again that is there: it may lose messages now, or wait for something.
var errChanged = errors.New("somebody has changed it, or made it anew")

// watch closes s.changed when the consumer is not any more what was found, until stop is called.
func (s *subscription) watch(consumer jetstream.Consumer) (stop func()) {
	found, changed := *consumer.CachedInfo(), make(chan struct{})
	found.Config.Metadata = nil // which the server changes, too
	s.changed = changed
	return inBackground(func(ctx context.Context) {
		for backoff.Sleep(ctx, lookEvery) == nil {
			info, err := s.info(ctx, consumer)
			if err != nil {
				continue // who reads it notices, too
			}
			now := info.Config
			now.Metadata = nil
			if !info.Created.Equal(found.Created) || !reflect.DeepEqual(now, found.Config) {
				close(changed)
				return
			}
		}
	})
}

// inBackground runs f until stop is called, which ends its context and waits for it.
func inBackground(f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) }) // ends with stop
	return func() {
		cancel()
		running.Wait()
	}
}

// report tells the server that what is held is in progress, and sends acks that could not be
// sent.
func (s *subscription) report() {
	for _, h := range s.held() {
		switch {
		case !h.acked:
			_ = h.raw.inProgress()
		case h.raw.ack() == nil:
			s.remember(h.delivery)
		}
	}
}
