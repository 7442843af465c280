package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/readstate"
)

// Driver is who reads the stream.
type Driver int

const (
	// DriverAgrimill is the [Subscriber] of this package. It is the default.
	DriverAgrimill Driver = iota
	// DriverWatermill is the subscriber of watermill-nats, with a durable push consumer. Every
	// message is still delivered at least once, with less beside that:
	//
	//   - One message is open at a time, whatever its key, in all processes together;
	//     Config.MaxInFlight does not apply, and one that is nacked holds up all others. With a
	//     consumer made by others whose MaxAckPending is above 1, it comes again after them.
	//   - A message that is open for longer than Config.AckWait is delivered again, and what is
	//     done with the first copy then has no ack.
	//   - Only Backlog notices that the consumer was deleted, which is not made again before the next Subscribe; nobody
	//     notices that messages were deleted unread.
	DriverWatermill
)

var drivers = []string{"agrimill", "watermill"}

// String returns agrimill or watermill.
func (d Driver) String() string { return enum.Text(d, drivers) }

// UnmarshalText parses what String returns.
func (d *Driver) UnmarshalText(text []byte) error { return enum.Parse(d, text, drivers) }

// Source is a subscriber that knows how much waits for it. [Open] returns one.
type Source interface {
	message.Subscriber
	// Backlog is as [Subscriber.Backlog].
	Backlog(ctx context.Context) (int64, error)
	// ReadError is as [Subscriber.ReadError]. With [DriverWatermill] it is what the latest Backlog has found.
	ReadError() (since time.Time, err error)
}

var (
	_ Source = (*Subscriber)(nil)
	_ Source = (*stock)(nil)
)

// Open returns the subscriber that Config.Driver says, or an error that matches [ErrConfig].
// It does not connect; Subscribe does. A nil logger is silent.
func Open(config Config, logger watermill.LoggerAdapter) (Source, error) {
	if config.Driver == DriverAgrimill {
		s, err := New(config, logger)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	config, logger, err := prepare(config, logger)
	if err != nil {
		return nil, err
	}
	s := &stock{config: config, logger: logger, life: lifecycle.New()}
	s.stopped, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Format writes what it is, for every verb, and nothing of its configuration.
func (s *stock) Format(state fmt.State, _ rune) {
	_, _ = io.WriteString(state, "nats.Subscriber("+s.config.Durable+")")
}

// stock makes subscribers of watermill-nats, which connect when they are made.
type stock struct {
	config  Config
	logger  watermill.LoggerAdapter
	stopped context.Context // ends when Close begins
	stop    context.CancelFunc
	life    *lifecycle.Life // counts the subscriptions
	latest  atomic.Pointer[stockConsumer]
	choice  choice
	state   readstate.State // as of the latest Backlog
}

// stockConsumer is a consumer, and what is needed to ask about it.
type stockConsumer struct {
	durable
	consumer
}

// Subscribe implements message.Subscriber. If the server is unreachable or has no such stream,
// the error matches sinks.ErrUnavailable and Subscribe can be called again.
func (s *stock) Subscribe(ctx context.Context, subject string) (<-chan *message.Message, error) {
	if !s.life.Enter() {
		return nil, ErrClosed
	}
	intake, stopIntake := context.WithCancel(ctx)
	conn, subscriber, messages, err := s.begin(intake, subject)
	if err != nil {
		stopIntake()
		s.life.Leave()
		return nil, err
	}
	out := make(chan *message.Message)
	go func() { // ends with ctx, or on Close, within twice CloseTimeout
		defer s.life.Leave()
		defer stopIntake()
		defer context.AfterFunc(s.stopped, stopIntake)()
		s.relay(intake, subscriber.gate, messages, out)
		closed := conn.StatusChanged(natsgo.CLOSED)
		if err := subscriber.Close(); err != nil { // it begins to drain the connection
			s.logger.Info("NATS subscriber did not end well; what is open comes again", watermill.LogFields{"error": err.Error()})
			conn.Close()
		}
		timer := time.AfterFunc(s.config.CloseTimeout, conn.Close)
		defer timer.Stop()
		for !conn.IsClosed() {
			<-closed
		}
		close(out)
	}()
	return out, nil
}

// begin subscribes until intake ends.
func (s *stock) begin(intake context.Context, subject string) (*natsgo.Conn, *stockSubscriber, <-chan *message.Message, error) {
	if err := s.choice.take(intake, s.config.Durable, subject); err != nil {
		return nil, nil, nil, err
	}
	conn, subscriber, err := s.open(intake, subject)
	if err != nil {
		return nil, nil, nil, err
	}
	messages, err := subscriber.Subscribe(context.WithoutCancel(intake), subject)
	if err != nil {
		conn.Close()
		return nil, nil, nil, s.config.unavailable(err)
	}
	return conn, subscriber, messages, nil
}

// relay passes on messages until intake ends and the one that is open then is settled, or
// CloseTimeout is over.
func (s *stock) relay(intake context.Context, g *gate, messages <-chan *message.Message, out chan<- *message.Message) {
	giveUp := make(chan struct{})
	defer context.AfterFunc(intake, func() { time.AfterFunc(s.config.CloseTimeout, func() { close(giveUp) }) })()
	for open := true; open; {
		select {
		case msg := <-messages:
			ended := msg.Context().Done() // when its ack is sent
			msg.SetContext(msgctx.With(msg.Context(), g.passed()))
			select {
			case out <- msg:
			case <-intake.Done():
				msg.Nack()
			}
			select {
			case <-ended:
			case <-giveUp:
			}
		case <-intake.Done():
			open = g.close()
		}
	}
}

// gate keeps messages back once it is closed. The subscriber of watermill-nats closes its
// channel while its callback may still be about to send to it.
type gate struct {
	wmnats.Unmarshaler
	mu     sync.Mutex
	closed bool
	onWay  bool // from the Unmarshaler to the channel
	// place is that of the message on its way: the subscriber gives it another context.
	place msgctx.Value
}

// errStopped is logged by the subscriber for a message that comes again.
var errStopped = errors.New("the subscriber is being closed")

// Unmarshal implements wmnats.Unmarshaler. A message without a UUID gets the one that every
// delivery of it has.
func (g *gate) Unmarshal(raw *natsgo.Msg) (*message.Message, error) {
	if err := headerError(raw); err != nil {
		return nil, err
	}
	msg, err := g.Unmarshaler.Unmarshal(raw)
	if err != nil {
		return nil, err
	}
	meta, err := raw.Metadata()
	if err != nil {
		return nil, err
	}
	if msg.UUID == "" {
		msg.UUID = derivedUUID(meta.Stream, meta.Sequence.Stream, meta.Timestamp)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		_ = raw.Nak()
		return nil, errStopped
	}
	g.onWay = true
	g.place = msgctx.Value{Delivery: placeName(meta.Stream, meta.Sequence.Stream, meta.Timestamp.UnixNano()), Stored: meta.Timestamp}
	return msg, nil
}

// passed is told that the message came that was on its way, and returns its place.
func (g *gate) passed() msgctx.Value {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onWay = false
	return g.place
}

// close keeps back further messages, and reports whether one is still on its way.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.onWay
}

// stockSubscriber is one, with its gate.
type stockSubscriber struct {
	*wmnats.Subscriber
	gate *gate
}

// open connects, and finds or creates the consumer.
func (s *stock) open(ctx context.Context, subject string) (*natsgo.Conn, *stockSubscriber, error) {
	conn, err := connect(s.config)
	if err != nil {
		return nil, nil, err
	}
	subscriber, err := s.bind(ctx, conn, subject)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, subscriber, nil
}

func (s *stock) bind(ctx context.Context, conn *natsgo.Conn, subject string) (*stockSubscriber, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.ConnectTimeout)
	defer cancel()
	// One that the subscriber makes by itself is deleted when it is closed, and with it who
	// acked what.
	d := durable{config: s.config, logger: s.logger, conn: conn}
	p, err := d.ready(ctx, subject)
	if err != nil {
		return nil, err
	}
	s.latest.Store(&stockConsumer{d, p.consumer})
	s.state.Reads()
	var options []natsgo.JSOpt
	if s.config.Domain != "" {
		options = append(options, natsgo.Domain(s.config.Domain))
	}
	g := &gate{Unmarshaler: s.config.Unmarshaler}
	subscriber, err := wmnats.NewSubscriberWithNatsConn(conn, wmnats.SubscriberSubscriptionConfig{
		Unmarshaler: g, QueueGroupPrefix: s.config.Durable,
		AckWaitTimeout: s.config.AckWait, CloseTimeout: s.config.CloseTimeout, SubscribeTimeout: s.config.ConnectTimeout,
		NakDelay: growing{backoff.Policy{Initial: min(firstNackDelay, s.config.MaxNackDelay), Max: s.config.MaxNackDelay}},
		JetStream: wmnats.JetStreamConfig{
			DurablePrefix: s.config.Durable, ConnectOptions: options,
			SubscribeOptions: []natsgo.SubOpt{natsgo.Bind(p.stream, s.config.Durable), natsgo.ManualAck()},
		},
	}, s.logger)
	if err != nil {
		return nil, s.config.unavailable(err)
	}
	return &stockSubscriber{subscriber, g}, nil
}

// Backlog implements Source.
func (s *stock) Backlog(ctx context.Context) (int64, error) {
	latest := s.latest.Load()
	if latest == nil {
		return 0, s.config.unavailable(errors.New("not subscribed yet"))
	}
	info, err := latest.Info(ctx)
	if err != nil {
		err = latest.failed(err)
		s.state.Fails(err)
		return 0, err
	}
	s.state.Reads()
	return unacked(info.NumAckPending, info.NumPending), nil
}

// ReadError implements Source.
func (s *stock) ReadError() (since time.Time, err error) { return s.state.ReadError() }

// Close implements message.Subscriber. It returns within twice Config.CloseTimeout, and it
// returns nil.
func (s *stock) Close() error {
	s.life.Close(func() {
		s.stop()
		<-s.life.Idle()
	})
	return nil
}

// growing is how long a message waits that was nacked.
type growing struct{ backoff.Policy }

// WaitTime implements wmnats.Delay.
func (g growing) WaitTime(delivered uint64) time.Duration {
	return g.Delay(int(min(delivered, 64)) - 1)
}
