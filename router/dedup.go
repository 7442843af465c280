package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/warnlog"
)

// Defaults of [DedupSettings].
const (
	DefaultDedupTTL   = 24 * time.Hour
	defaultDedupLease = time.Minute
)

// forever is as long as a store has to count to. From the largest durations on, times are before the present.
const forever = 100 * 365 * 24 * time.Hour

// storeTimeout bounds Commit and Release, which go on when the message's context has ended.
const storeTimeout = 5 * time.Second

// ErrReserved says that another copy of the message is being handled right now; see
// reservedError. [Retry] comes back to it soon and without limit; it never counts as a
// failure and never opens or closes an outage. Without Retry the message is returned.
var ErrReserved = decide(errors.New("a copy of the message is being handled"), ClassOutage)

// DedupSettings say what is remembered and for how long: what a [Router] leaves to its
// user. The zero value is ready for use.
type DedupSettings struct {
	// Store remembers the keys. Nil means a [MemoryStore] with its defaults, one per Router. A Router closes its Store, if
	// it has a method Close: one that several share, or that outlives them, has to be given to them behind a type without it.
	Store DedupStore `yaml:"-"`
	// KeyFunc gives the keys. Nil means a [NewKeyFunc] for each route; [NoKeys] turns
	// deduplication off.
	KeyFunc KeyFunc `yaml:"-"`
	// NeverChunkBelow is the size in bytes that all chunks of a payload have at least, the last one aside. A smaller
	// payload that a sender repeats under the same context ID is recognized; larger ones are kept, because chunks may
	// be equal and none may be lost. Lower it if the service makes smaller chunks. 0 means 512 KiB; negative is an
	// error. A KeyFunc of one's own does not use it.
	NeverChunkBelow int64 `yaml:"-"`
	// Owner is who reserves keys, for others who share the Store. Without a Session it
	// gets one of its own, in a Router the same one for all routes.
	Owner Owner `yaml:",inline"`
	// TTL is how long a handled message is remembered. 0 means
	// [DefaultDedupTTL]; negative is an error.
	TTL time.Duration `yaml:"ttl"`
	// Lease is how long a reservation stands whose holder never comes back. All stores of this module notice earlier that
	// its process is gone. It has to be longer than one attempt of the handler, or a copy that arrives meanwhile is
	// handled too. 0 means 1 minute; negative is an error.
	Lease time.Duration `yaml:"lease"`
}

// DedupConfig configures a [Dedup] that is constructed alone. The zero value is ready
// for use.
type DedupConfig struct {
	// DedupSettings are the same as in [Config.Dedup].
	DedupSettings
	// Scope keeps apart the handlers that share a store, and has to be the same in all processes that share the work. A
	// Router sets it to the route's name; empty means the name of Watermill's handler. Where a middleware further out has taken
	// that away, with the message's context, what one handler has handled is remembered for it alone, and for this process.
	Scope string
	// Observer gets the duplicates. Nil means nobody.
	Observer Observer
}

// WithDefaults returns the settings with its defaults filled in.
func (c DedupSettings) WithDefaults() DedupSettings {
	c.NeverChunkBelow = cmp.Or(c.NeverChunkBelow, defaultNeverChunkBelow)
	c.TTL = min(cmp.Or(c.TTL, DefaultDedupTTL), forever)
	c.Lease = min(cmp.Or(c.Lease, defaultDedupLease), forever)
	return c
}

// ownStore returns the settings with a store and a session.
func (c DedupSettings) ownStore() DedupSettings {
	if c.Store == nil {
		c.Store, _ = NewMemoryStore(MemoryStoreConfig{}) // which is valid
	}
	c.Owner.Session = cmp.Or(c.Owner.Session, uuid.NewString())
	return c
}

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c DedupSettings) Validate() error {
	var e validate.Errors
	validate.NotNegative(&e, "NeverChunkBelow", c.NeverChunkBelow)
	validate.NotNegative(&e, "TTL", c.TTL)
	validate.NotNegative(&e, "Lease", c.Lease)
	return e.Err(ErrConfig)
}

// Dedup is the middleware that recognizes messages that were handled before. It reserves the keys, calls the handler, and
// commits the keys when the handler succeeded or releases them when it did not; if it returned messages, when the message is
// acked or nacked, since Watermill's Router publishes them first. So a message whose handling failed is never taken for a
// duplicate, and neither is one that a route's Filter rejected.
//
// A duplicate returns without error: it is acknowledged. A copy that comes while the first one is being handled fails
// with [ErrReserved]: nobody knows yet whether it will be a duplicate. The handler finds the delivery key with [DedupID].
type Dedup struct {
	config        DedupConfig
	logger        watermill.LoggerAdapter
	waits         waits
	maybeRepeated atomic.Uint64 // messages that were handled with Keys.MaybeRepeated
	// forgotten counts messages that could not be remembered: with a full disk, every one.
	forgotten ratelog.Line

	uses      atomic.Int32    // of Middleware
	holders   sync.Map        // of holder
	life      *lifecycle.Life // of what records
	mu        sync.Mutex
	survived  []Keys // of what was handled and survives a power cut since; they are yet to be recorded
	recording int    // how many goroutines do that
}

// maxRecording is how many goroutines record what has survived: stores share a sync among those that commit at the same time.
const maxRecording = 16

// recorder is a [Dedup] to whom the subscriber tells what survives a power cut. A record that outlived what the broker has
// lost would have its message dropped when it comes again.
type recorder Dedup

// Record implements [msgctx.Recorder].
func (r *recorder) Record(keys [2][16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.survived = append(r.survived, Keys{Delivery: keys[0], Content: keys[1]})
	if life := r.life; r.recording < maxRecording && life.Enter() {
		r.recording++
		go (*Dedup)(r).record(life) // ends when all is recorded
	}
}

func (d *Dedup) record(life *lifecycle.Life) {
	defer life.Leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.survived) > 0 {
		last := len(d.survived) - 1
		keys := d.survived[last]
		d.survived = d.survived[:last]
		d.mu.Unlock()
		d.commit(context.Background(), d.config.Scope, keys, Token{}, nil)
		d.mu.Lock()
	}
	d.survived = nil
	d.recording--
}

// recorded waits until limit for what is being recorded. Then nothing more is, unless the store goes on: the subscriber may go
// on as well, and tell later what has survived.
func (d *Dedup) recorded(limit <-chan struct{}, goesOn bool) {
	d.mu.Lock()
	life := d.life
	if goesOn {
		d.life = lifecycle.New()
	}
	d.mu.Unlock()
	life.Close(func() {
		select {
		case <-life.Idle():
		case <-limit:
		}
	})
}

// NewDedup returns the middleware, or an error that matches [ErrConfig]. A nil
// logger is silent.
func NewDedup(config DedupConfig, logger watermill.LoggerAdapter) (*Dedup, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.DedupSettings = config.WithDefaults().ownStore()
	if config.KeyFunc == nil {
		var err error
		if config.KeyFunc, err = NewKeyFunc(KeysConfig{NeverChunkBelow: config.NeverChunkBelow}); err != nil {
			return nil, err
		}
	}
	logger = warnlog.Or(logger)
	return &Dedup{config: config, logger: logger, waits: waits{logger: logger}, life: lifecycle.New()}, nil
}

// storeError is a failure of the store, a panic included.
func storeError(op string, err error) error {
	return decide(fmt.Errorf("dedup store: %s: %w", op, err), ClassOutage)
}

type dedupIDKey struct{}

// dedupID is the key of a message, and whether it names the delivery.
type dedupID struct {
	key   Key
	named bool
}

func dedupIDOf(ctx context.Context) (dedupID, bool) {
	if d, ok := ctx.Value(deliveryKey{}).(*delivery); ok && d.key != (Key{}) {
		return d.dedupID, true
	}
	id, ok := ctx.Value(dedupIDKey{}).(dedupID)
	return id, ok
}

// holder is a message as it was received, and the key that is reserved for it.
type holder struct {
	msg *message.Message
	key Key
}

// recordKey names a record of the poison queue whose message has no delivery key: two
// records are not one, however equal they are.
func recordKey(scope, id string, msg *message.Message, content Key) Key {
	meta := msg.Metadata
	return KeyOf("record", scope, id, content.String(), meta[KeyPoisonRoute], meta[KeyPoisonCount], meta[KeyPoisonFirst], meta[KeyPoisonLast])
}

// DedupID returns the delivery key of a message under [Dedup], in hexadecimal, its content key if it has no other one, and
// false if it has none. A handler that publishes by itself makes [gateway.KeyDedupID] of it and of what it
// publishes: several messages need different ones, and so does each replay. A [Router] names what its routes publish.
//
// [gateway.KeyDedupID]: https://pkg.go.dev/github.com/agrimill/agrimill/gateway#KeyDedupID
func DedupID(ctx context.Context) (string, bool) {
	id, ok := dedupIDOf(ctx)
	if !ok {
		return "", false
	}
	return id.key.String(), true
}

// claimed is a message whose keys are reserved while it is handled.
type claimed struct {
	*Dedup
	ctx   context.Context
	msg   *message.Message
	del   *delivery // nil in another Router
	scope string
	dedupID
	keys  Keys // are recorded once it is handled
	held  Keys // are reserved: of a replay its ID alone, as two records are not one, however equal they are
	token Token

	holder any // nil in the Dedup that a Router has made, which is in a chain once
}

// Middleware is the message.HandlerMiddleware.
func (d *Dedup) Middleware(h message.HandlerFunc) message.HandlerFunc {
	d.uses.Add(1)
	nameless := uuid.NewString()
	return func(msg *message.Message) ([]*message.Message, error) {
		c := claimed{Dedup: d, ctx: msg.Context(), msg: msg, del: deliveryOf(msg), scope: d.config.Scope}
		if c.scope == "" {
			c.scope = message.HandlerNameFromCtx(c.ctx)
		}
		if c.scope == "" && d.uses.Load() > 1 { // nothing may be dropped that another handler has handled
			c.scope = nameless
		}
		keys, err := d.config.KeyFunc(c.scope, msg)
		if err != nil {
			return nil, fmt.Errorf("dedup key: %w", err)
		}
		if keys.Valid() != nil {
			return h(msg)
		}
		replayed := c.del != nil && c.del.replay != nil
		if replayed && keys.Delivery == (Key{}) {
			keys.Delivery = recordKey(c.scope, c.del.replay.record, msg, keys.Content)
		}
		c.dedupID = dedupID{keys.Delivery, true}
		if keys.Delivery == (Key{}) {
			c.dedupID = dedupID{keys.Content, false}
		}
		c.keys, c.held = keys, keys
		if replayed {
			c.held = Keys{Delivery: c.key}
		}
		if c.del == nil {
			c.holder = holder{msg, c.key}
		} else if c.del.route.dedup != d {
			c.holder = holder{c.del.received, c.key}
		}
		if c.holder != nil {
			// Added to a Router and to its handler, or called again before the ack, by Duplicator or Retry further out: it would
			// wait without end for its own reservation.
			if _, again := d.holders.Load(c.holder); again {
				return c.call(h)
			}
		}
		if mine, err := c.reserve(); !mine {
			return nil, err
		}
		return c.handle(h)
	}
}

// reserve reports whether the caller is to handle the message; else it was handled, which is recorded, or err says why
// it cannot be handled now.
func (c *claimed) reserve() (mine bool, err error) {
	stoppoint.At(stoppoint.Reserve)
	var reserved Reservation
	err = guarded(func() (err error) {
		reserved, err = c.config.Store.Reserve(c.ctx, Claim{c.held, c.config.Owner}, c.config.Lease)
		return err
	})
	if err != nil {
		return false, storeError("reserve", err)
	}
	if reserved.State != Reserved && reserved.State != Committed {
		return false, c.waits.busy(c.scope, c.key, reserved)
	}
	c.waits.over(c.scope, c.key)
	if reserved.State == Reserved {
		c.token = reserved.Token
		return true, nil
	}
	if c.del != nil {
		c.del.duplicate = true
	}
	if own := (Keys{Delivery: c.keys.Delivery}); reserved.Key == ContentKey && own.Valid() == nil {
		// The content key may tell nothing any more when it is redelivered.
		c.commit(c.ctx, c.scope, own, Token{}, c.msg)
	}
	observe(c.config.Observer, Event{Route: c.scope, Kind: EventDuplicate, Context: c.ctx, Message: c.msg})
	return false, nil
}

// handle calls h and settles the claim.
func (c *claimed) handle(h message.HandlerFunc) (out []*message.Message, err error) {
	del := c.del
	if c.holder != nil {
		c.holders.Store(c.holder, nil)
	}
	// In a defer, so that a panic releases the key too.
	done := false
	defer func() {
		if done && del == nil && len(out) > 0 {
			later := *c
			go func() { later.settle(later.acked()) }() // Watermill's Router has yet to publish it
			return
		}
		c.settle(done)
	}()
	out, err = c.call(h)
	// What a filter rejects was not handled: the filter may want it next time.
	done = err == nil && (del == nil || !del.rejected)
	return out, err
}

// call calls h with the ID for [DedupID].
func (c *claimed) call(h message.HandlerFunc) ([]*message.Message, error) {
	if c.del != nil {
		c.del.dedupID = c.dedupID
	} else {
		c.msg.SetContext(context.WithValue(c.ctx, dedupIDKey{}, c.dedupID))
		defer c.msg.SetContext(c.ctx)
	}
	return h(c.msg)
}

// acked waits for the ack or nack. A copy that a middleware further out has handed on gets none: it is waited for until the
// reservation ends, from the end of the context on, which a timeout or a shutdown may end before the ack. That of a copy that
// message.Message.Copy has made never ends.
func (c *claimed) acked() bool {
	if ended := c.ctx.Done(); ended != nil {
		select {
		case <-c.msg.Acked():
			return true
		case <-c.msg.Nacked():
			return false
		case <-ended:
		}
	}
	timer := time.NewTimer(c.config.Lease)
	defer timer.Stop()
	select {
	case <-c.msg.Acked():
		return true
	case <-c.msg.Nacked():
	case <-timer.C:
	}
	return false
}

// settle records that the message was handled, or releases what is reserved.
func (c *claimed) settle(done bool) {
	if c.holder != nil {
		c.holders.Delete(c.holder)
	}
	if done && c.keys.MaybeRepeated {
		c.maybeRepeated.Add(1)
	}
	if done && c.del.horizon() == nil {
		c.commit(c.ctx, c.scope, c.keys, c.token, c.msg)
		return
	}
	c.release()
	if done {
		c.del.records = append(c.del.records, msgctx.Record{Into: (*recorder)(c.Dedup), Keys: [...][16]byte{c.keys.Delivery, c.keys.Content}})
	}
}

// commit never fails the message: it is handled, and handling it again because
// the store is down would make the duplicate that the store is there to prevent.
func (d *Dedup) commit(ctx context.Context, scope string, keys Keys, token Token, msg *message.Message) {
	stoppoint.At(stoppoint.Commit)
	ctx, cancel := d.storeContext(ctx)
	defer cancel()
	if err := guarded(func() error { return d.config.Store.Commit(ctx, Claim{keys, d.config.Owner}, token, d.config.TTL) }); err != nil {
		err = storeError("commit", err)
		text := RedactError(err, msg)
		fields := watermill.LogFields{"route": scope}
		if msg != nil {
			fields["message_uuid"] = msg.UUID
		}
		if suppressed, ok := d.forgotten.Next(); ok {
			d.logger.Error("handled message could not be recorded; a copy may be handled again", redacted(text), warnlog.Counted(fields, suppressed))
		}
		observe(d.config.Observer, Event{Route: scope, Kind: EventDedupFailed, Class: ClassOutage, Context: ctx, Message: msg, Err: err, Text: text})
		return
	}
	if suppressed, ok := d.forgotten.Over(); ok {
		d.logger.Info("handled messages are recorded again", warnlog.Counted(watermill.LogFields{"route": scope}, suppressed))
	}
}

// release leaves the rest to the lease when the store is down.
func (c *claimed) release() {
	ctx, cancel := c.storeContext(c.ctx)
	defer cancel()
	if err := guarded(func() error { return c.config.Store.Release(ctx, Claim{c.held, c.config.Owner}, c.token) }); err != nil {
		c.logger.Debug("reservation not released; it expires with its lease", watermill.LogFields{
			"message_uuid": c.msg.UUID, "error": RedactError(err, c.msg),
		})
	}
}

// guarded makes an error of a panic.
func guarded(call func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	return call()
}

// storeContext outlives the message's context: what is known has to be written
// down during a shutdown too.
func (d *Dedup) storeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := d.config.Store.(*MemoryStore); ok {
		return ctx, func() {} // does not wait for anything
	}
	return context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
}
