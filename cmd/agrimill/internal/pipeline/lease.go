package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/internal/readstate"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/subscriber"
)

// ErrStandby is matched by the error of Replay while this instance does not have the lease: the
// one that has it replays.
var ErrStandby = errors.New("this instance does not hold the lease: another one works, and replays")

const leaseCheck = "lease"

// lease is the lease of a configuration with ha. It is opened when NATS can be reached.
type lease struct {
	*opening.Later[*kvlease.Lease]
	ttl    time.Duration
	target string
	opened chan struct{} // closed when it is
}

var _ subscriber.Lease = (*lease)(nil)

func (p *Pipeline) newLease(cfg *config.HA) *lease {
	if cfg == nil {
		return nil
	}
	logger := p.libraryLogger(p.logger.With("part", "lease"))
	instance, how := cmp.Or(p.owner.Instance, p.options.Name), config.Opening{Client: "agrimill lease", Logger: logger}
	attempt := func(ctx context.Context) (*kvlease.Lease, func() error, error) { return cfg.Open(ctx, instance, how) }
	return &lease{
		Later: opening.NewLater(attempt, logger), ttl: cfg.TTL,
		target: config.Hosts(cfg.NATSKV.URL) + " " + cfg.LeaseConfig().WithDefaults().Bucket, opened: make(chan struct{}),
	}
}

func (l *lease) open(ctx context.Context) {
	if l != nil {
		l.Start(ctx, func(context.Context) { close(l.opened) })
	}
}

// close closes the lease. The subscriber has released it.
func (l *lease) close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	return l.Later.Close(ctx)
}

// TTL implements [subscriber.Lease].
func (l *lease) TTL() time.Duration { return l.ttl }

// Acquire implements [subscriber.Lease]. A lease that is not open yet is waited for.
func (l *lease) Acquire(ctx context.Context) (subscriber.LeaseTerm, error) {
	select {
	case <-l.opened:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	opened, err := l.Get()
	if err != nil {
		return nil, err
	}
	return opened.Acquire(ctx)
}

func (l *lease) health(ctx context.Context) error {
	opened, err := l.Get()
	if err != nil {
		return err
	}
	return opened.Health(ctx)
}

// checkLease says who this instance is, and whether it can find out who the holder is.
func (p *Pipeline) checkLease(ctx context.Context) admin.Check {
	f := found(leaseCheck, p.lease.health(ctx))
	if state := p.leaseState(p.subscriber.Stats().Lease); f.OK {
		f.Message = state.Role
		if state.Holder != "" && p.standsBy() {
			f.Message += ": " + state.Holder + " holds the lease"
		}
	}
	return f
}

func (l *lease) holder() string {
	if opened, err := l.Get(); err == nil {
		return opened.Holder()
	}
	return ""
}

func (p *Pipeline) leaseState(state subscriber.LeaseState) admin.Lease {
	if p.lease == nil {
		return admin.Lease{}
	}
	l := admin.Lease{
		Target: p.lease.target, Holder: p.lease.holder(), Role: state.Role.String(), Epoch: state.Epoch, Since: state.Since, Until: state.Until,
		Changes: state.Changes, Lost: state.Lost, GivenUp: state.GivenUp, Error: router.RedactError(state.LastError, nil),
	}
	if c, looked := p.readiness.last(leaseCheck); looked && !c.OK && l.Error == "" {
		l.Error = c.Message
	}
	return l
}

func (p *Pipeline) standsBy() bool {
	return p.lease != nil && p.subscriber.Stats().Lease.Role != subscriber.LeaseHolder
}

// turns are the times in which this instance has the lease, for work beside that of the
// subscriber. Nil without ha: then it is always its turn. All methods are safe for concurrent use.
type turns struct {
	mu      sync.Mutex
	now     *turn         // nil: it is not its turn
	changed chan struct{} // closed when now changes
}

// turn is one time, from the acquisition of the lease until its end.
type turn struct {
	// Its Err looks at the clock: it may say that the time is over before Done is closed.
	context.Context
	users sync.WaitGroup
}

func newTurns() *turns { return &turns{changed: make(chan struct{})} }

// hold is the hook Holding of the subscriber: it returns when the time is over and everything has
// ended that belongs to it.
func (t *turns) hold(ctx context.Context, _ uint64) {
	own := &turn{Context: ctx}
	t.set(own)
	<-ctx.Done()
	t.set(nil)
	own.users.Wait() // nothing enters any longer
}

func (t *turns) set(now *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = now
	close(t.changed)
	t.changed = make(chan struct{})
}

// enter returns the present turn, which then lasts until leave; nil if there is none. changed is
// closed when that changes.
func (t *turns) enter() (now *turn, leave func(), changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil {
		return nil, nil, t.changed
	}
	t.now.users.Add(1)
	return t.now, t.now.users.Done, t.changed
}

// err returns an error unless something may begin now.
func (t *turns) err() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	now := t.now
	t.mu.Unlock()
	return now.err()
}

func (t *turn) err() error {
	if t == nil || t.Err() != nil {
		return router.WithClass(ErrStandby, router.ClassRedeliver)
	}
	return nil
}

// within returns a context that ends with ctx or the turn, as the clock says. It has to be canceled.
func (t *turn) within(ctx context.Context) (context.Context, context.CancelFunc) {
	both, cancel := context.WithCancel(ctx)
	unwatch := context.AfterFunc(t.Context, cancel)
	return turnContext{both, t}, func() { unwatch(); cancel() }
}

// each calls work in each turn, with a context that ends with it, until ctx ends. Without ha it
// calls it once.
func (t *turns) each(ctx context.Context, work func(ctx context.Context, now *turn)) {
	if t == nil {
		work(ctx, nil)
		return
	}
	for ctx.Err() == nil {
		now, leave, changed := t.enter()
		if now != nil {
			both, cancel := now.within(ctx)
			work(both, now)
			cancel()
			leave()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// inTurn is the source of a route that runs on the holder only: it is subscribed to as long as
// this instance has the lease. A message belongs to the turn in which it came.
type inTurn struct {
	message.Subscriber
	logger  *slog.Logger
	turns   *turns
	running sync.WaitGroup
	// state is why the source is not subscribed to although it should be.
	state      readstate.State
	subscribed atomic.Bool
}

// Subscribe implements [message.Subscriber]. It does not wait for the lease.
func (s *inTurn) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	// Ends with ctx, once the source has let go.
	s.running.Go(func() {
		defer close(out)
		s.turns.each(ctx, func(ctx context.Context, now *turn) { s.carry(ctx, now, topic, out) })
	})
	return out, nil
}

// ReadError is why the source cannot be subscribed to, or read; see [router.Route]. Waiting for the lease is no error.
func (s *inTurn) ReadError() (since time.Time, err error) {
	if since, err = s.state.ReadError(); err != nil || !s.subscribed.Load() {
		return since, err
	}
	return s.sourceError()
}

// sourceError is why the source cannot be read, if it says so.
func (s *inTurn) sourceError() (since time.Time, err error) {
	if source, ok := s.Subscriber.(interface{ ReadError() (time.Time, error) }); ok {
		return source.ReadError()
	}
	return time.Time{}, nil
}

func (s *inTurn) carry(ctx context.Context, now *turn, topic string, out chan<- *message.Message) {
	defer s.state.Reads()
	policy, told := opening.Policy(), ""
	for n := 0; ctx.Err() == nil; n++ {
		messages, err := s.Subscriber.Subscribe(ctx, topic)
		if err == nil {
			s.state.Reads()
			s.subscribed.Store(true)
			for msg := range messages { // until the source has let go
				if now.Err() != nil {
					msg.Nack()
					continue
				}
				n, told = 0, ""
				msg.SetContext(turnContext{msg.Context(), now})
				select {
				case out <- msg:
				case <-ctx.Done():
					msg.Nack()
				}
			}
			s.subscribed.Store(false)
			err = router.ErrSubscriptionEnded
			if _, cause := s.sourceError(); cause != nil {
				err = fmt.Errorf("%w: %w", err, cause)
			}
		}
		if ctx.Err() != nil {
			return
		}
		s.state.Fails(err)
		if text := router.RedactError(err, nil); text != told {
			told = text
			s.logger.Warn("source unavailable; retrying", "error", text)
		}
		_ = policy.Wait(ctx, n) // the loop looks at ctx
	}
}

// Close implements [message.Subscriber].
func (s *inTurn) Close() error {
	err := s.Subscriber.Close()
	s.running.Wait() // the context of Subscribe has ended
	return err
}

// turnContext is the context of a message that may be handled, or of work that may be done, in one turn only.
type turnContext struct {
	context.Context
	turn *turn
}

type turnKey struct{}

// Err implements [context.Context]. It looks at the clock.
func (c turnContext) Err() error {
	if c.turn.Err() != nil {
		return context.Canceled
	}
	return c.Context.Err()
}

// Value implements [context.Context].
func (c turnContext) Value(key any) any {
	if key == (turnKey{}) {
		return c.turn
	}
	return c.Context.Value(key)
}

// fenced is the sink of a route that runs on the holder only. Nothing begins to be published
// without the lease: what came from a broker in an earlier turn goes back to it, and a replay ends.
// The route itself looks after what came from the gateway.
type fenced struct {
	sinks.Sink
	turns *turns
}

// Describe implements [sinks.Sink].
func (s *fenced) Describe() sinks.Description { return sinks.DescribeAs(s, s.Sink) }

func (s *fenced) check(msg *message.Message) error {
	ctx := msg.Context()
	if nack := msgctx.NackOf(ctx); nack != nil && nack.Leased {
		return nil
	}
	if own, ok := ctx.Value(turnKey{}).(*turn); ok {
		return own.err()
	}
	return s.turns.err()
}

// Publish implements [sinks.Sink].
func (s *fenced) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if err := s.check(msg); err != nil {
			return err
		}
	}
	return s.Sink.Publish(topic, messages...)
}

// PublishAsync implements [sinks.Sink].
func (s *fenced) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	if err := s.check(msg); err != nil {
		return nil, err
	}
	return s.Sink.PublishAsync(topic, msg)
}

// Unwrap returns the sink itself.
func (s *fenced) Unwrap() sinks.Sink { return s.Sink }
