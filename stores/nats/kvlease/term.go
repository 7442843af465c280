package kvlease

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/stores/nats/internal/kvbucket"
	"github.com/agrimill/agrimill/subscriber"
)

// record is the value of the key.
type record struct {
	Epoch uint64 `json:"epoch"`
	// Holder is who wrote it; Released says that nobody has the lease.
	Holder   string `json:"holder"`
	Released bool   `json:"released,omitempty"`
	// Instance is the name of the holder for people; empty: it does not say.
	Instance string `json:"instance,omitempty"`
	// Writes counts what was written in the term, so that no two records are the same.
	Writes uint64 `json:"writes"`
	// TTL is how long the holder has the lease from a renewal on. It may be another one than that of
	// who reads it: settings change in one process after the other. 0: it does not say.
	TTL time.Duration `json:"ttl,omitempty"`
}

func (r record) encode() []byte {
	text, _ := json.Marshal(r) // such values cannot fail
	return text
}

func decode(value []byte) (r record, err error) {
	err = json.Unmarshal(value, &r)
	switch {
	case err != nil:
	case r.Holder == "":
		err = errors.New("no holder")
	case r.TTL < 0 || r.TTL > maxTTL:
		err = fmt.Errorf("a TTL of %d ns", int64(r.TTL))
	}
	return r, err
}

// maxTTL is above any TTL that makes sense, and far below what cannot be added to a time.
const maxTTL = 7 * 24 * time.Hour

// sight is what Acquire has seen last of the record of another process, and when first. Since the
// holder sent what is there before it could be seen, its time is over a TTL later at the latest.
type sight struct {
	created  time.Time // of the bucket
	revision uint64    // 0: the record is missing
	value    []byte
	since    time.Time // zero: nothing was seen yet
	back     bool      // the server has lost a later record, whose holder may not have heard of it
}

func (s sight) same(other sight) bool {
	return !s.since.IsZero() && s.created.Equal(other.created) && s.revision == other.revision && bytes.Equal(s.value, other.value)
}

// Acquire implements [subscriber.Lease].
func (l *Lease) Acquire(ctx context.Context) (subscriber.LeaseTerm, error) {
	l.mu.Lock()
	l.seen = sight{} // others may have had it since it was last looked at
	l.mu.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		term, wait, err := l.try(ctx)
		switch {
		case term != nil:
			l.tellAway(nil)
			return term, nil
		case errors.Is(err, ErrClosed):
			return nil, err
		case ctx.Err() == nil:
			l.tellAway(err)
		}
		select {
		case <-time.After(min(wait, lookEvery)):
		case <-l.closed:
		case <-ctx.Done():
		}
	}
}

// tellAway logs when Acquire cannot reach the bucket, and when it can again.
func (l *Lease) tellAway(err error) {
	l.mu.Lock()
	before := l.away
	if l.away = err != nil; l.away {
		l.holder = ""
	}
	l.mu.Unlock()
	switch {
	case err != nil && !before:
		warnlog.Warn(l.logger, "the lease cannot be looked at; retrying", watermill.LogFields{"error": err.Error()})
	case err == nil && before:
		l.logger.Info("the lease can be looked at again", nil)
	}
}

// try acquires the lease if it is free. If not, it returns how long it is not free at least.
func (l *Lease) try(ctx context.Context) (*Term, time.Duration, error) {
	var term *Term
	var wait time.Duration
	err := l.do(ctx, func(ctx context.Context, b *kvbucket.Bucket) error {
		seen, r, err := l.look(ctx, b)
		if err != nil {
			return err
		}
		if wait = l.wait(seen, r); wait > 0 {
			return nil
		}
		if seen.revision == 0 {
			// It is gone, and its bucket may be another one than a moment ago.
			replaced, err := l.bucket.Replaced(ctx, b)
			if err != nil || replaced {
				wait = l.config.TTL
				return err
			}
		}
		next, err := l.take(ctx, b, seen.revision)
		if kvbucket.IsConflict(err) {
			return nil // somebody was faster; look again
		}
		term = next
		return err
	})
	if err != nil {
		return nil, l.config.TTL, err
	}
	return term, wait, nil
}

// look reads the record.
func (l *Lease) look(ctx context.Context, b *kvbucket.Bucket) (sight, record, error) {
	seen := sight{created: b.Created}
	entry, err := b.Get(ctx, l.config.Name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return seen, record{}, nil
	}
	if err != nil {
		return sight{}, record{}, err
	}
	seen.revision, seen.value = entry.Revision(), entry.Value()
	r, err := decode(seen.value)
	if err != nil { // whoever wrote that: it counts as a holder until it does not change
		warnlog.Limited(&l.odd, l.logger, "the record of the lease cannot be read; it counts as that of a holder until it has not changed for the TTL",
			watermill.LogFields{"revision": seen.revision, "error": err.Error()})
		return seen, record{}, nil
	}
	return seen, r, nil
}

// wait returns how long the lease is not free at least.
func (l *Lease) wait(seen sight, r record) time.Duration {
	now := time.Now() // after the answer has come
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch, l.holder = max(l.epoch, r.Epoch), ""
	if !r.Released {
		l.holder = r.Instance
	}
	if !l.seen.same(seen) {
		seen.back = seen.revision < l.seen.revision && seen.created.Equal(l.seen.created)
		l.seen = seen
		l.seen.since = now
	}
	// A record that is missing, or lost, may be that of the holder that was seen last.
	if !l.seen.back && (r.TTL > 0 || seen.revision > 0) {
		l.theirs = r.TTL
	}
	if !l.seen.back && (r.Released || r.Holder == l.id) { // only a term that is over, or an answer that did not come
		return 0
	}
	ttl := max(l.config.TTL, l.theirs)
	return max(0, l.seen.since.Add(ttl+ttl/slack).Sub(now))
}

// take writes the record of a new term in the place of a revision.
func (l *Lease) take(ctx context.Context, b *kvbucket.Bucket, revision uint64) (*Term, error) {
	l.mu.Lock()
	l.epoch++
	t := &Term{lease: l, record: record{Epoch: l.epoch, Holder: l.id, Instance: l.config.Instance, Writes: 1, TTL: l.config.TTL}, lost: make(chan struct{})}
	l.mu.Unlock()
	sent := time.Now()
	written, err := l.bucket.Write(ctx, b, l.config.Name, t.record.encode(), revision, 0)
	if err != nil {
		return nil, err
	}
	t.revision, t.renewed = written, sent
	l.mu.Lock()
	last := l.last
	l.last, l.holder = t, l.config.Instance
	l.mu.Unlock()
	if last != nil {
		last.end()
	}
	return t, nil
}

// Term is a [subscriber.LeaseTerm].
type Term struct {
	lease *Lease
	lost  chan struct{}

	mu       sync.Mutex
	record   record
	revision uint64
	renewed  time.Time
	over     bool
}

var _ subscriber.LeaseTerm = (*Term)(nil)

// Epoch implements [subscriber.LeaseTerm].
func (t *Term) Epoch() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.record.Epoch
}

// Renewed implements [subscriber.LeaseTerm].
func (t *Term) Renewed() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.renewed
}

// Lost implements [subscriber.LeaseTerm].
func (t *Term) Lost() <-chan struct{} { return t.lost }

// Renew implements [subscriber.LeaseTerm].
func (t *Term) Renew(ctx context.Context) error { return t.update(ctx, false) }

// Release implements [subscriber.LeaseTerm].
func (t *Term) Release(ctx context.Context) error {
	err := t.update(ctx, true)
	if errors.Is(err, subscriber.ErrLeaseLost) {
		return nil
	}
	return err
}

// update writes the record once more.
func (t *Term) update(ctx context.Context, release bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	t.record.Writes++ // also if the answer does not come
	next, revision, over := t.record, t.revision, t.over
	t.mu.Unlock()
	if over {
		return subscriber.ErrLeaseLost
	}
	next.Released = release
	l := t.lease
	var sent time.Time
	err := l.do(ctx, func(ctx context.Context, b *kvbucket.Bucket) error {
		for {
			sent = time.Now()
			stoppoint.At(stoppoint.Renew)
			written, err := l.bucket.Write(ctx, b, l.config.Name, next.encode(), revision, 0)
			if !kvbucket.IsConflict(err) {
				revision = written
				return err
			}
			seen, found, err := l.look(ctx, b)
			switch {
			case err != nil:
				return err
			case found.Holder == l.id && found.Epoch == next.Epoch && !found.Released && seen.revision != revision:
				revision = seen.revision // a renewal whose answer did not come back
			case seen.revision == 0 && revision != 0 && !release && time.Since(t.Renewed()) < l.config.TTL:
				revision = 0 // somebody removed it, and nobody has the lease yet
			default:
				return subscriber.ErrLeaseLost
			}
		}
	})
	if err != nil {
		if errors.Is(err, subscriber.ErrLeaseLost) {
			t.end()
		}
		return err
	}
	t.mu.Lock()
	t.revision = revision
	if !release {
		t.renewed = sent
	}
	t.mu.Unlock()
	if release {
		t.end()
	}
	return nil
}

// end ends the term for good.
func (t *Term) end() {
	t.lease.mu.Lock()
	if t.lease.last == t {
		t.lease.holder = ""
	}
	t.lease.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.over = true
		close(t.lost)
	}
}
