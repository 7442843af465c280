package kvstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/stores/nats/internal/kvbucket"
)

const (
	// markerTTL is how long the server keeps the traces of deleted keys.
	markerTTL = time.Minute
	// leaseStep is the resolution of the server's clock for keys; leases are
	// rounded up to it.
	leaseStep = time.Second
	// maxUnsent bounds how much is remembered that could not be recorded or released.
	maxUnsent = 1 << 16
)

// The values of keys. That of a reservation is followed by JSON.
var (
	valueReserved  = []byte("r")
	valueCommitted = []byte("c")
)

// reservation is who has reserved a key, and for how long since the entry was made.
type reservation struct {
	Instance string `json:"instance,omitempty"`
	Session  string `json:"session,omitempty"`
	// Store is the ID of the store's session; never empty.
	Store string `json:"store,omitempty"`
	// Nameless says that another process has the same Instance.
	Nameless bool          `json:"nameless,omitempty"`
	Lease    time.Duration `json:"lease"`
}

// reserved returns the value of a reserved key.
func (s *Store) reserved(owner router.Owner, lease time.Duration) ([]byte, error) {
	id, nameless := s.session.now()
	data, err := json.Marshal(reservation{Instance: owner.Instance, Session: owner.Session, Store: id, Nameless: nameless, Lease: lease})
	return append(slices.Clone(valueReserved), data...), err
}

// hold is a claim whose keys a caller has reserved, or is about to.
type hold struct {
	owner router.Owner
	until time.Time
	token router.Token     // zero until it is reserved
	in    *kvbucket.Bucket // where it is reserved
}

// pendingWrite is a commit or release to retry: it did not reach the server, or the answer
// did not come back.
type pendingWrite struct {
	claim  router.Claim
	token  router.Token
	commit bool
	until  time.Time        // when a commit no longer matters
	in     *kvbucket.Bucket // where the token is valid
}

// Reserve implements [router.DedupStore]. The lease is rounded up to a second. The keys
// are reserved one after the other, so that two processes with a key in common may both
// find it busy once.
func (s *Store) Reserve(ctx context.Context, claim router.Claim, lease time.Duration) (router.Reservation, error) {
	ctx, leave, err := s.enter(ctx, claim)
	if err != nil {
		return router.Reservation{}, err
	}
	defer leave()
	lease = max(leaseStep, (lease+leaseStep-1)/leaseStep*leaseStep)
	h, local := s.hold(claim, lease)
	if local.State == router.Committed {
		return local, nil
	}
	got, err := s.reserve(ctx, claim, lease, h, local)
	if err != nil || got.State != router.Reserved {
		s.drop(claim, h)
		return got, err
	}
	s.mu.Lock()
	h.token = got.Token
	s.mu.Unlock()
	return got, nil
}

// hold notes that the keys of a claim are about to be reserved. If one of them is held, it
// returns no hold, and who holds it; if one of them was committed and could not be
// recorded, that.
func (s *Store) hold(claim router.Claim, lease time.Duration) (*hold, router.Reservation) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var busy router.Reservation
	for kind, key := range claim.Keys.All() {
		if st, ok := s.unsent[key]; ok && st.commit && now.Before(st.until) {
			return nil, router.Reservation{State: router.Committed, Key: kind}
		}
		if h := s.held[key]; h != nil && now.Before(h.until) && busy.State == 0 {
			busy = router.Reservation{State: router.Busy, Key: kind, Holder: h.owner, Until: h.until}
		}
	}
	if busy.State != 0 {
		return nil, busy
	}
	h := &hold{owner: claim.Owner, until: now.Add(lease), in: s.bucket.Latest()}
	for _, key := range claim.Keys.All() {
		s.held[key] = h
	}
	return h, busy
}

// drop ends a hold.
func (s *Store) drop(claim router.Claim, h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range claim.Keys.All() {
		if h != nil && s.held[key] == h {
			delete(s.held, key)
		}
	}
}

// finish ends the hold of a token and returns it, or nil if there is none.
func (s *Store) finish(claim router.Claim, token router.Token) (h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range claim.Keys.All() {
		if at := s.held[key]; at != nil && token != (router.Token{}) && at.token == token {
			delete(s.held, key)
			h = at
		}
	}
	return h
}

// reserve is Reserve once it is known who holds the keys in this process: h, or somebody
// else, who is in busy.
func (s *Store) reserve(ctx context.Context, claim router.Claim, lease time.Duration, h *hold, busy router.Reservation) (router.Reservation, error) {
	if h != nil {
		if err := s.keepSession(ctx); err != nil {
			return router.Reservation{}, err
		}
	}
	local := busy.Key
	var token router.Token
	for kind, key := range claim.Keys.All() {
		one, err := s.reserveKey(ctx, claim.Owner, key, lease, busy.State == 0)
		if err != nil {
			if h != nil {
				// Perhaps it was stored, and the answer is late.
				s.later(pendingWrite{claim: claim, token: token, in: h.in})
			}
			return router.Reservation{}, err
		}
		one.Key = kind
		switch {
		case one.State == router.Reserved:
			token[kind-1] = one.Token[0]
		case one.State == router.Committed:
			s.giveUp(ctx, claim, token, h)
			return one, nil
		case one.State == router.Busy && (busy.State == 0 || kind == router.DeliveryKey && local != kind):
			busy = one
		}
	}
	if busy.State != 0 {
		s.giveUp(ctx, claim, token, h)
		return busy, nil
	}
	return router.Reservation{State: router.Reserved, Token: token}, nil
}

// reserveKey is Reserve for one key. Unless take, it only looks at it, and returns no
// state if the key is free.
func (s *Store) reserveKey(ctx context.Context, owner router.Owner, key router.Key, lease time.Duration, take bool) (got router.Reservation, err error) {
	err = s.bucket.Do(ctx, func(ctx context.Context, b *kvbucket.Bucket) error {
		value, err := s.reserved(owner, lease)
		if err != nil {
			return err
		}
		if take {
			revision, err := s.bucket.Write(ctx, b, key.String(), value, 0, lease)
			if !kvbucket.IsConflict(err) {
				got = router.Reservation{State: router.Reserved, Token: router.Token{revision}}
				return err
			}
		}
		entry, err := b.Get(ctx, key.String())
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			got = router.Reservation{}
			if take {
				got.State = router.Busy // it was there a moment ago; the next try gets it
			}
			return nil
		case err != nil:
			return err
		case bytes.Equal(entry.Value(), valueCommitted):
			got = router.Reservation{State: router.Committed}
			return nil
		}
		var r reservation
		got = router.Reservation{State: router.Busy}
		switch err := r.decode(entry.Value()); {
		case err != nil:
			if seen := s.seeOdd(key.String(), entry); !take || time.Since(seen) < lease {
				return nil
			}
		default:
			got.Holder = router.Owner{Instance: r.Instance, Session: r.Session}
			got.Until = entry.Created().Add(r.Lease)
			if !take {
				return nil
			}
			if gone, err := s.gone(ctx, b, owner, r, entry.Revision()); err != nil || !gone {
				return err
			}
		}
		revision, err := s.bucket.Write(ctx, b, key.String(), value, entry.Revision(), lease)
		switch {
		case kvbucket.IsConflict(err): // somebody was faster
			return nil
		case err == nil:
			got = router.Reservation{State: router.Reserved, Token: router.Token{revision}}
		}
		return err
	})
	if err != nil {
		return router.Reservation{}, err
	}
	return got, nil
}

// decode reads the value of a reserved key.
func (r *reservation) decode(value []byte) error {
	data, reserved := bytes.CutPrefix(value, valueReserved)
	if !reserved {
		return errUnreadable
	}
	if err := json.Unmarshal(data, r); err != nil {
		return err
	}
	if r.Store == "" { // null, or an object of somebody else
		return errUnreadable
	}
	return nil
}

var errUnreadable = errors.New("not a reservation")

// sight is an entry that cannot be read, and when it was seen first.
type sight struct {
	revision uint64
	since    time.Time
}

// seeOdd logs an entry that cannot be read and returns since when it has been there at least, by this process's clock.
func (s *Store) seeOdd(key string, entry jetstream.KeyValueEntry) time.Time {
	s.mu.Lock()
	seen, known := s.odd[key]
	if !known || seen.revision != entry.Revision() {
		if !known && len(s.odd) >= maxUnsent {
			clear(s.odd) // whoever asks again is noted again
		}
		seen = sight{entry.Revision(), time.Now()}
		s.odd[key] = seen
	}
	s.mu.Unlock()
	warnlog.Limited(&s.oddLine, s.logger, "an entry of the dedup bucket cannot be read; its message waits as if somebody handled it, for one lease",
		watermill.LogFields{"key": key, "revision": entry.Revision(), "bytes": len(entry.Value())})
	return seen.since
}

// giveUp releases the key that Reserve has got before it could not get the other one,
// also when ctx has ended.
func (s *Store) giveUp(ctx context.Context, claim router.Claim, token router.Token, h *hold) {
	if h != nil && token != (router.Token{}) {
		_ = s.release(context.WithoutCancel(ctx), pendingWrite{claim: claim, token: token, in: h.in})
	}
}

// Commit implements [router.DedupStore]. How long the message is remembered is
// the bucket's TTL. The keys are written one after the other, the delivery key first. If that fails,
// this Store recognizes the message from now on nevertheless, and writes the keys when it can.
func (s *Store) Commit(ctx context.Context, claim router.Claim, token router.Token, ttl time.Duration) error {
	ctx, leave, err := s.enter(ctx, claim)
	if err != nil {
		return err
	}
	defer leave()
	st := pendingWrite{claim: claim, token: token, commit: true, until: time.Now().Add(ttl)}
	if err = s.commit(ctx, st); err != nil {
		st.token = router.Token{} // a takeover is logged only once
		s.later(st)
	}
	s.finish(claim, token)
	return err
}

func (s *Store) commit(ctx context.Context, st pendingWrite) error {
	for kind, key := range st.claim.Keys.All() {
		err := s.bucket.Do(ctx, func(ctx context.Context, b *kvbucket.Bucket) error {
			if revision := st.token[kind-1]; revision != 0 {
				_, err := s.bucket.Write(ctx, b, key.String(), valueCommitted, revision, 0)
				if !kvbucket.IsConflict(err) {
					return err
				}
				if _, err := b.Get(ctx, key.String()); err == nil {
					warnlog.Limited(&s.lost, s.logger, "a message was handled after its reservation had ended and others had taken over; it may be there twice",
						watermill.LogFields{"key": st.claim.Keys.Delivery.String(), "instance": st.claim.Owner.Instance})
				}
			}
			// The message is handled, whoever has the reservation now.
			_, err := b.Put(ctx, key.String(), valueCommitted)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Release implements [router.DedupStore].
func (s *Store) Release(ctx context.Context, claim router.Claim, token router.Token) error {
	ctx, leave, err := s.enter(ctx, claim)
	if err != nil {
		return err
	}
	defer leave()
	st := pendingWrite{claim: claim, token: token, in: s.bucket.Latest()}
	if h := s.finish(claim, token); h != nil {
		st.in = h.in
	}
	return s.release(ctx, st)
}

// release releases what the token holds. What cannot be released now is released later.
func (s *Store) release(ctx context.Context, st pendingWrite) error {
	var errs []error
	for kind, key := range st.claim.Keys.All() {
		// Without a revision it would be deleted whatever it is.
		if revision := st.token[kind-1]; revision != 0 {
			errs = append(errs, s.purge(ctx, key, revision, st.in))
		}
	}
	err := errors.Join(errs...)
	if err != nil {
		s.later(st)
	}
	return err
}

// purge deletes a reservation if it is still the one with that revision. Revisions begin
// anew in a bucket that was created again; there, and with revision 0, it is deleted if
// it is ours and nobody holds it.
func (s *Store) purge(ctx context.Context, key router.Key, revision uint64, in *kvbucket.Bucket) error {
	return s.bucket.Do(ctx, func(ctx context.Context, b *kvbucket.Bucket) error {
		if revision == 0 || b != in {
			entry, err := b.Get(ctx, key.String())
			if errors.Is(err, jetstream.ErrKeyNotFound) {
				return nil
			}
			var r reservation
			if err != nil || json.Unmarshal(bytes.TrimPrefix(entry.Value(), valueReserved), &r) != nil || !s.session.is(r.Store) {
				return err
			}
			s.mu.Lock()
			held := s.held[key] != nil
			s.mu.Unlock()
			if held {
				return nil
			}
			revision = entry.Revision()
		}
		err := b.Purge(ctx, key.String(), jetstream.LastRevision(revision), jetstream.PurgeTTL(markerTTL))
		if kvbucket.IsConflict(err) {
			return nil // the reservation is no longer ours
		}
		return err
	})
}

// later queues a commit or release for a retry. A commit outranks a release.
func (s *Store) later(st pendingWrite) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range st.claim.Keys.All() {
		old, known := s.unsent[key]
		if old.commit && !st.commit || !known && len(s.unsent) >= maxUnsent {
			continue
		}
		s.unsent[key] = st
	}
}

// retryUnsent retries what is queued, in any order, until something fails again.
func (s *Store) retryUnsent(ctx context.Context) error {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.unsent))
	s.mu.Unlock()
	for _, st := range all {
		var err error
		switch {
		case st.commit && time.Now().Before(st.until):
			err = s.commit(ctx, st)
		case !st.commit:
			for kind, key := range st.claim.Keys.All() {
				err = errors.Join(err, s.purge(ctx, key, st.token[kind-1], st.in))
			}
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		for _, key := range st.claim.Keys.All() {
			if s.unsent[key] == st {
				delete(s.unsent, key)
			}
		}
		s.mu.Unlock()
	}
	return nil
}
