package nats

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/keyqueue"
	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks/nats"
)

// consumerPolicy is how often to look up a consumer that is gone, and to ask a server that
// does not answer.
var consumerPolicy = backoff.Policy{Initial: 100 * time.Millisecond, Max: 10 * time.Second}

const (
	// firstNackDelay is how long a message waits that was nacked once.
	firstNackDelay = 100 * time.Millisecond
	// aheadFactor is how many times MaxInFlight messages are held.
	aheadFactor = 4
	// maxAhead is how many bytes of payloads are held, give or take one request.
	maxAhead = 64 << 20
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
	conn        *natsgo.Conn
	last        uint64    // number of the last delivery by the server
	reconnects  uint64    // as of the last loss
	suspect     bool      // a request has failed since
	lost        time.Time // when deliveries were found lost; zero: none
	broken      time.Time // when the first of them were
	shared      bool      // somebody else reads the consumer
	collecting  bool      // see begin
	gaps        gaps
	deleted     int64 // since deletedLine let one pass
	deletedLine ratelog.Line

	mu    sync.Mutex
	open  map[place]*delivery // from receipt until the ack or nak is sent
	left  []*delivery         // of these, what is to be sent back because the subscription ends
	acked map[place]bool      // latest ones
	ring  []place             // of acked, the oldest at next
	next  int
}

// place is where a message is in a stream. A recreated stream counts from one again; the
// timestamp makes the difference.
type place struct {
	sequence uint64
	stored   int64
}

// delivery is a message that the server has delivered.
type delivery struct {
	stream string
	place  place
	raw    received // the latest delivery; guarded by subscription.mu
	acked  bool     // but the server could not be told yet; guarded by subscription.mu
}

func newSubscription(ctx context.Context, s *Subscriber, subject string) *subscription {
	sub := &subscription{
		Subscriber: s, subject: subject, out: make(chan *message.Message), deletedLine: ratelog.Line{Burst: 1},
		open: make(map[place]*delivery), acked: make(map[place]bool),
	}
	sub.intake, sub.stopIntake = context.WithCancel(ctx)
	sub.work, sub.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	sub.queue = keyqueue.New(keyqueue.Config[*delivery]{
		Out: sub.out, MaxOpen: s.config.MaxInFlight,
		Retry:   backoff.Policy{Initial: min(firstNackDelay, s.config.MaxNackDelay), Max: s.config.MaxNackDelay},
		Message: sub.message, Name: deliveryName, Stored: storedAt, Done: sub.ack, Left: sub.leave,
	})
	return sub
}

// run delivers until intake ends.
func (s *subscription) run(consumer jetstream.Consumer) {
	defer close(s.out)
	delivered := make(chan struct{})
	go func() { // ends with intake and work
		defer close(delivered)
		s.queue.Deliver(s.intake, s.work)
	}()
	for consumer != nil {
		stop := s.keepAlive(consumer.CachedInfo().Config)
		err := s.pull(consumer)
		if s.intake.Err() != nil {
			defer stop()
			break
		}
		s.logger.Info("NATS consumer is gone; looking it up again", watermill.LogFields{"error": err.Error()})
		consumer = s.again()
		stop()
	}
	s.stopIntake()
	late := time.Now().Add(s.config.CloseTimeout)
	timer := time.AfterFunc(s.config.CloseTimeout, s.giveUp)
	defer timer.Stop()
	var last received
	for ended := false; !ended; {
		ended = isClosedWithin(delivered, sendBackEvery)
		if sent := s.sendBack(ended); sent != nil {
			last = sent
		}
	}
	if last != nil && s.conn.IsConnected() {
		// The server handles what was sent back beside requests: one of the next subscription, which may follow
		// at once, would get newer messages first.
		_ = last.Settle(max(time.Until(late), settlePatience))
	}
	s.giveUp()
	s.report() // the last chance for acks; what the server does not get is redelivered
}

// again finds or creates the consumer, retrying until that succeeds; nil if intake ends.
func (s *subscription) again() jetstream.Consumer {
	for n := 0; ; n++ {
		if consumerPolicy.Wait(s.intake, n) != nil {
			return nil
		}
		consumer, err := s.consumer(s.intake, s.subject)
		if err == nil {
			s.logger.Info("NATS consumer is available again", nil)
			s.state.Reads()
			s.forget()
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

// forget: who acked what is gone with the consumer.
func (s *subscription) forget() {
	s.last, s.suspect = 0, false
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.acked)
	s.ring, s.next = nil, 0
}

// pull takes messages from the consumer, as many as there is room for, until intake ends or
// the consumer is gone.
func (s *subscription) pull(consumer jetstream.Consumer) error {
	conn, err := s.connect(s.intake)
	if err != nil {
		return err
	}
	s.conn = conn
	s.report() // acks that could not be sent while the consumer was gone
	connected := conn.StatusChanged(natsgo.CONNECTED)
	defer conn.RemoveStatusListener(connected)
	begun, failures := false, 0
	for {
		var n int
		var err error
		switch {
		case !begun:
			err = s.begin(consumer, s.fetchNow(consumer, connected))
			begun = err == nil
		case !s.lost.IsZero():
			err = s.recover(consumer, s.fetchNow(consumer, connected))
		default:
			if room := s.waitForRoom(); room > 0 {
				n, _, err = s.fetch(consumer, room, true, connected)
			}
		}
		if n > 0 || err == nil {
			failures = 0
			s.state.Reads()
		}
		switch {
		case s.intake.Err() != nil:
			return s.intake.Err()
		case err == nil:
			continue
		case errors.Is(err, jetstream.ErrConsumerDeleted), errors.Is(err, jetstream.ErrConsumerNotFound),
			errors.Is(err, natsgo.ErrNoResponders) && conn.IsConnected():
			return err
		}
		// An outage, or a consumer without a server: what was on its way is lost, and comes
		// again.
		s.suspect = true
		if errors.Is(err, errReconnected) {
			s.report() // acks that could not be sent
			continue
		}
		s.state.Fails(s.unavailable(nats.Explain(conn, s.config.Domain, err)))
		timer := time.NewTimer(consumerPolicy.Delay(failures))
		select {
		case <-timer.C:
		case <-connected:
			s.report() // as above
		case <-s.intake.Done():
		}
		timer.Stop()
		failures++
	}
}

// fetchFunc takes up to n messages that are there, as [subscription.fetch].
type fetchFunc func(n int) (got int, anew bool, err error)

func (s *subscription) fetchNow(consumer jetstream.Consumer, connected <-chan natsgo.Status) fetchFunc {
	return func(n int) (int, bool, error) { return s.fetch(consumer, n, false, connected) }
}

// begin collects what is sent back, before it hands out anything. The server redelivers that in the
// order in which it hears of it, and what it could not deliver before; others of the same keys
// may follow. If somebody else has a request open, it goes to either of us.
func (s *subscription) begin(consumer jetstream.Consumer, fetch fetchFunc) error {
	info, err := s.info(consumer)
	if err != nil {
		return err
	}
	s.gaps = gaps{at: info.Delivered, whole: func() bool { return s.readsAll(info.Stream) }}
	window := s.config.MaxInFlight * aheadFactor
	late := time.Now().Add(beginning)
	for s.collecting = info.NumAckPending > 0 && info.NumWaiting == 0; s.collecting; {
		held, _ := s.queue.Held()
		missing := s.missing(info)
		if s.collecting = missing > 0 && held < window && !s.shared && time.Now().Before(late); !s.collecting {
			break
		}
		if _, _, err := fetch(min(missing, window-held)); err != nil {
			return err
		}
		if err := backoff.Sleep(s.intake, between); err != nil {
			return err
		}
		if info, err = s.info(consumer); err != nil {
			return err
		}
	}
	if s.lost.IsZero() {
		s.queue.Release()
	}
	return nil
}

// recover gets deliveries that were lost. The server redelivers them when their time is over,
// before anything new. A server that is late is waited for as long as it says that more is
// unacknowledged than is known here, within limits. If others read the consumer, that says nothing.
func (s *subscription) recover(consumer jetstream.Consumer, fetch fetchFunc) error {
	wait, _ := waits(consumer.CachedInfo().Config)
	for {
		lost := s.lost
		if err := backoff.Sleep(s.intake, time.Until(lost.Add(wait+lostMargin))); err != nil {
			return err
		}
		n := max(1, s.config.MaxInFlight*aheadFactor/2)
		got, anew, err := fetch(n)
		switch {
		case err != nil:
			return err
		case s.lost != lost: // again
		case anew || got < n:
			if !s.shared && time.Since(lost) < lostFactor*wait && s.misses(consumer) {
				if err := backoff.Sleep(s.intake, lostMargin/5); err != nil {
					return err
				}
				break
			}
			s.lost = time.Time{}
			s.queue.Release()
			return nil
		}
	}
}

// misses reports whether something is missing, or the server does not say.
func (s *subscription) misses(consumer jetstream.Consumer) bool {
	info, err := s.info(consumer)
	return err != nil || s.missing(info) > 0
}

// missing is how many messages more the server waits for the ack of than are held here, or
// were sent back for a while.
func (s *subscription) missing(info *jetstream.ConsumerInfo) int {
	s.mu.Lock()
	held := len(s.open)
	s.mu.Unlock()
	return info.NumAckPending - held - s.queue.Away()
}

func (s *subscription) info(consumer jetstream.Consumer) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(s.intake, s.config.ConnectTimeout)
	defer cancel()
	return consumer.Info(ctx)
}

// errReconnected ends a request when there is another connection: its answers went to the
// one before.
var errReconnected = errors.New("reconnected")

// fetch takes up to n messages: those that are there, or with wait also what comes after
// them. It returns how many came, and whether one was delivered for the first time.
func (s *subscription) fetch(consumer jetstream.Consumer, n int, wait bool, connected <-chan natsgo.Status) (got int, anew bool, err error) {
	info := consumer.CachedInfo()
	if most := info.Config.MaxRequestBatch; most > 0 {
		n = min(n, most)
	}
	r, err := newRequest(s.conn, s.config.Domain, info, n, wait, s.heartbeat)
	if err != nil {
		return 0, false, err
	}
	defer func() {
		rest, first := r.end(s.receive, s.intake.Err() != nil, s.config.flushTimeout())
		got, anew = got+rest, anew || first
	}()
	patience := 2 * s.heartbeat
	if !wait {
		patience = answerWait // the server says that there are no more, but not always
	}
	silence := time.NewTimer(patience)
	defer silence.Stop()
	known := s.lost
	for !r.done() && s.lost == known { // to recover what is found lost comes first
		select {
		case msg := <-r.messages:
			silence.Reset(patience)
			raw, err := r.read(msg)
			if err != nil {
				return got, anew, err
			}
			s.state.Reads() // the server knows the request
			if raw != nil {
				got++
				anew = s.receive(raw) || anew
			}
		case <-silence.C:
			if !wait {
				return got, anew, nil
			}
			return got, anew, jetstream.ErrNoHeartbeat
		case <-connected:
			return got, anew, errReconnected
		case <-s.intake.Done():
			return got, anew, s.intake.Err()
		}
	}
	return got, anew, nil
}

// waitForRoom returns how many messages may be requested; 0 when intake has ended.
func (s *subscription) waitForRoom() int {
	window := s.config.MaxInFlight * aheadFactor
	timer := time.NewTimer(refill)
	defer timer.Stop()
	late := false
	for {
		held, bytes := s.queue.Held()
		room := window - held
		switch {
		case bytes >= maxAhead:
			room = 0
		case held > 0:
			room = min(room, int((maxAhead-bytes)*int64(held)/max(bytes, 1))+1)
		}
		if room >= (window+3)/4 || late && room > 0 {
			return room
		}
		if late && s.sendAway(window) {
			continue
		}
		if late {
			late = false
			timer.Reset(refill)
		}
		select {
		case <-s.queue.Freed():
		case <-timer.C:
			late = true
		case <-s.intake.Done():
			return 0
		}
	}
}

// sendAway makes room by what stalled keys have too much of; false if there is nothing.
func (s *subscription) sendAway(window int) bool {
	wait := s.config.AckWait
	patience := time.Duration(alonePatience)
	if s.shared { // somebody else may get them
		patience = sharedPatience
	}
	away := s.queue.SendAway(max(1, window/shares), min(stalled, wait), time.Now().Add(patience*wait))
	for _, d := range away {
		s.drop(d, wait)
	}
	if len(away) > 0 {
		s.logger.Info("a key is stalled; messages behind it go back to NATS for a while, so that others pass",
			watermill.LogFields{"messages": len(away)})
	}
	return len(away) > 0
}

// receive takes a message that the server has delivered, and reports whether for the first
// time.
func (s *subscription) receive(raw received) (first bool) {
	meta, err := raw.Metadata()
	if err != nil {
		s.logger.Error("Message cannot be read; it will be redelivered", err, nil)
		return false
	}
	if s.last > 0 && meta.Sequence.Consumer > s.last+1 {
		// Deliveries went to somebody else, or were lost with a connection; nobody knows of
		// which keys. The server delivers what was lost before anything new, once its time is
		// over.
		switch reconnects := s.conn.Stats().Reconnects; {
		case s.suspect || reconnects != s.reconnects:
			s.reconnects = reconnects
			s.lost = time.Now()
			s.broken = s.lost
		case !s.lost.IsZero() && !s.shared && time.Since(s.broken) < lostFactor*s.config.AckWait:
			s.lost = time.Now() // the server had not heard of the end of the connection before
		default:
			s.shared = true
		}
	}
	s.suspect, s.last = false, max(s.last, meta.Sequence.Consumer)
	first = meta.NumDelivered == 1
	if gone := s.gaps.see(meta.Sequence, first); gone > 0 {
		s.tellDeleted(meta, gone)
	}

	d := &delivery{stream: meta.Stream, place: place{meta.Sequence.Stream, meta.Timestamp.UnixNano()}, raw: raw}
	s.mu.Lock()
	held, done := s.open[d.place], s.acked[d.place]
	switch {
	case held != nil:
		held.raw = raw
		done = held.acked
	case !done:
		s.open[d.place] = d
	}
	s.mu.Unlock()
	switch {
	case done:
		_ = raw.Ack() // the ack before came too late
	case held == nil:
		// A redelivery waits as well: the server repeats at once what it could not deliver, and
		// what was lost before that only when its time is over.
		if !s.queue.Add(s.key(raw), d.place.sequence, len(raw.Data()), s.collecting || !s.lost.IsZero(), d) {
			s.leave(d)
		}
	}
	return first
}

// gaps finds messages that were deleted unread, by the numbers of a stream that is read as a whole.
type gaps struct {
	at    jetstream.SequenceInfo // of the latest delivery
	whole func() bool            // whether the consumer reads all of the stream; nil: it does not
	known bool                   // whole has said yes
}

// see returns how many messages are missing before a delivery, at least.
func (g *gaps) see(number jetstream.SequencePair, first bool) int64 {
	if !first { // it has a number of the consumer, and its stream's is known
		g.at.Consumer++
		return 0
	}
	gone := int64(number.Stream-g.at.Stream) - int64(number.Consumer-g.at.Consumer)
	g.at.Stream, g.at.Consumer = max(g.at.Stream, number.Stream), max(g.at.Consumer, number.Consumer)
	if gone <= 0 || g.whole == nil {
		return 0
	}
	if !g.known && !g.whole() {
		g.whole = nil
		return 0
	}
	g.known = true
	return gone
}

// tellDeleted says it once a minute: a stream that keeps the latest message of a subject only has many gaps.
func (s *subscription) tellDeleted(meta *jetstream.MsgMetadata, gone int64) {
	s.deleted += gone
	if _, ok := s.deletedLine.Next(); ok {
		warnlog.Warn(s.logger, "NATS messages were deleted before they were delivered",
			watermill.LogFields{"stream": meta.Stream, "before": meta.Sequence.Stream, "deleted": s.deleted})
		s.deleted = 0
	}
}

// readsAll reports whether the subject has everything that is stored in the stream; false if the server does not say.
func (s *subscription) readsAll(stream string) bool {
	if s.subject == ">" {
		return true
	}
	js, err := nats.JetStream(s.conn, s.config.Domain)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(s.intake, s.config.ConnectTimeout)
	defer cancel()
	info, err := js.Stream(ctx, stream)
	if err != nil {
		return false
	}
	have := info.CachedInfo().Config
	return len(have.Sources) == 0 && len(have.Subjects) > 0 && !slices.ContainsFunc(have.Subjects, func(subject string) bool { return !covers(s.subject, subject) })
}

func (s *subscription) key(raw received) string {
	if s.config.KeyHeader != "" {
		if key := raw.Headers().Get(s.config.KeyHeader); key != "" {
			return key
		}
	}
	return raw.Subject()
}

// ack acknowledges a message. Without a connection that fails and is retried.
func (s *subscription) ack(d *delivery) {
	s.mu.Lock()
	d.acked = true
	raw := d.raw
	s.mu.Unlock()
	if raw.Ack() == nil {
		s.remember(d)
	}
}

// remember takes note of a message whose ack is sent.
func (s *subscription) remember(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, d.place)
	s.acked[d.place] = true
	if len(s.ring) < remembered {
		s.ring = append(s.ring, d.place)
		return
	}
	delete(s.acked, s.ring[s.next])
	s.ring[s.next] = d.place
	s.next = (s.next + 1) % remembered
}

// isClosedWithin waits until c is closed, for at most d.
func isClosedWithin(c <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}

// leave takes note of a message that is to be sent back.
func (s *subscription) leave(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, d)
}

// sendBack returns what is left to the server, which redelivers it in the order in which it
// comes back: that of the stream, and of a key when nothing of it is handled any more, unless all
// is to go. It returns the last one; nil if there was none. Nothing comes again to this subscription, because it has no request any more.
func (s *subscription) sendBack(all bool) (last received) {
	s.mu.Lock()
	handled := make(map[string]bool)
	if !all {
		left := make(map[*delivery]bool, len(s.left))
		for _, d := range s.left {
			left[d] = true
		}
		for _, d := range s.open {
			if !left[d] {
				handled[s.key(d.raw)] = true
			}
		}
	}
	var now, later []*delivery
	for _, d := range s.left {
		if handled[s.key(d.raw)] {
			later = append(later, d)
		} else {
			now = append(now, d)
		}
	}
	s.left = later
	s.mu.Unlock()
	slices.SortFunc(now, func(a, b *delivery) int { return cmp.Compare(a.place.sequence, b.place.sequence) })
	for _, d := range now {
		last = s.drop(d, 0)
	}
	return last
}

// drop returns a message to the server, which redelivers it after the delay, or, if it does
// not hear of it, after AckWait.
func (s *subscription) drop(d *delivery, delay time.Duration) received {
	s.mu.Lock()
	delete(s.open, d.place)
	raw := d.raw
	s.mu.Unlock()
	if delay > 0 {
		_ = raw.NakWithDelay(delay)
	} else {
		_ = raw.Nak()
	}
	return raw
}

// keepAlive reports on what is held, three times in the shortest wait of the server, until stop is called.
func (s *subscription) keepAlive(config jetstream.ConsumerConfig) (stop func()) {
	_, shortest := waits(config)
	ticker := time.NewTicker(max(shortest/3, time.Millisecond))
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(stopped)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				s.report()
			case <-ended:
				return
			}
		}
	}()
	return func() {
		close(ended)
		<-stopped
	}
}

// report tells the server that what is held is in progress, and sends acks that could not be
// sent.
func (s *subscription) report() {
	type held struct {
		*delivery
		raw   received
		acked bool
	}
	s.mu.Lock()
	all := make([]held, 0, len(s.open))
	for _, d := range s.open {
		all = append(all, held{d, d.raw, d.acked})
	}
	s.mu.Unlock()
	for _, h := range all {
		switch {
		case !h.acked:
			_ = h.raw.InProgress()
		case h.raw.Ack() == nil:
			s.remember(h.delivery)
		}
	}
}

// message makes a message of a delivery. Its UUID is the same for every delivery.
func (s *subscription) message(d *delivery) (*message.Message, error) {
	s.mu.Lock()
	raw := d.raw
	s.mu.Unlock()
	err := raw.HeaderError()
	var msg *message.Message
	if err == nil {
		msg, err = s.config.Unmarshaler.Unmarshal(&natsgo.Msg{Subject: raw.Subject(), Header: raw.Headers(), Data: raw.Data()})
	}
	if err != nil {
		s.logger.Error("Message cannot be read; it will be tried again", err,
			watermill.LogFields{"stream": d.stream, "sequence": d.place.sequence, "subject": raw.Subject()})
		return nil, err
	}
	if msg.UUID != "" {
		return msg, nil
	}
	meta, err := raw.Metadata()
	if err != nil {
		return nil, err
	}
	msg.UUID = derivedUUID(meta.Stream, meta.Sequence.Stream, meta.Timestamp)
	return msg, nil
}

// deliveryName names a message by its place, the same for every delivery. The time it was
// stored distinguishes a recreated stream, and another server, from the one before.
func deliveryName(d *delivery) string {
	return placeName(d.stream, d.place.sequence, d.place.stored)
}

// placeName names a place in a stream; stored is in nanoseconds.
func placeName(stream string, sequence uint64, stored int64) string {
	return fmt.Sprintf("nats %s %d %d", stream, sequence, stored)
}

// storedAt is when the server stored a message.
func storedAt(d *delivery) time.Time { return time.Unix(0, d.place.stored) }

// derivedUUID is the UUID of a message that has none.
func derivedUUID(stream string, sequence uint64, stored time.Time) string {
	name := fmt.Sprintf("%s %d %d", stream, sequence, stored.UnixNano())
	return uuid.NewHash(sha256.New(), streamNamespace(), []byte(name), 8).String()
}

// streamNamespace is the namespace of derived UUIDs.
func streamNamespace() uuid.UUID { return uuid.MustParse("4a2e55f8-29d3-4bd9-8d2f-1a2f1f9d1c53") }
