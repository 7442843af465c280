package kvstore

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/stores/nats/internal/kvbucket"
)

// renewals is how often a session is renewed in its TTL.
const renewals = 4

// sessionRecord is the value of the key of a session.
type sessionRecord struct {
	// Ended says that it was closed, or that By replaced it.
	Ended bool          `json:"ended,omitempty"`
	By    *router.Owner `json:"by,omitempty"`
}

func sessionKey(id string) string { return "session." + id }

// session is that of a store.
type session struct {
	turn chan struct{} // holds one token while the session is renewed

	mu       sync.Mutex
	ids      []string // the last one is the present one
	nameless bool     // another process uses the same instance
	revision uint64   // of its key; 0: there is none as far as we know
	renewed  time.Time
	steady   time.Time // since then it was renewed without a gap
}

func newSession() session {
	return session{turn: make(chan struct{}, 1), ids: []string{uuid.NewString()}}
}

// now returns what reservations are to be made with.
func (x *session) now() (id string, nameless bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ids[len(x.ids)-1], x.nameless
}

// is reports whether the session has or had the ID.
func (x *session) is(id string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Contains(x.ids, id)
}

// keep renews the session until Close.
func (s *Store) keep() {
	ticker := time.NewTicker(s.config.SessionTTL / renewals)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.background.Done():
			return
		}
		err := s.renew(s.background)
		if err == nil {
			err = s.retryUnsent(s.background)
		}
		if err != nil {
			s.logger.Debug("dedup session not renewed", watermill.LogFields{"error": err.Error()})
		}
		s.forgetPeers()
	}
}

// keepSession ensures that the session exists and is renewed.
func (s *Store) keepSession(ctx context.Context) error {
	s.keeping.Do(func() { s.keeper.Go(s.keep) }) // ends with Close
	s.session.mu.Lock()
	fresh := !s.session.renewed.IsZero() && time.Since(s.session.renewed) < s.config.SessionTTL/2
	s.session.mu.Unlock()
	if fresh {
		return nil
	}
	return s.renew(ctx)
}

// steady reports whether the session was renewed without a gap for so long that every
// living process had time to renew its own.
func (s *Store) steady() bool {
	s.session.mu.Lock()
	defer s.session.mu.Unlock()
	return time.Since(s.session.steady) >= s.config.SessionTTL && time.Since(s.session.renewed) < s.config.SessionTTL/2
}

// renew extends the session by its TTL from now.
func (s *Store) renew(ctx context.Context) error {
	x := &s.session
	select {
	case x.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-x.turn }()
	id, _ := x.now()
	x.mu.Lock()
	revision, last := x.revision, x.renewed
	x.mu.Unlock()

	sent := time.Now()
	gap := last.IsZero() || sent.Sub(last) > s.config.SessionTTL/2
	ctx, cancel := context.WithTimeout(ctx, s.config.SessionTTL/2)
	defer cancel()
	err := s.bucket.Do(ctx, func(ctx context.Context, b *kvbucket.Bucket) error {
		for {
			next, err := s.writeSession(ctx, b, id, revision)
			if !kvbucket.IsConflict(err) {
				revision = next
				return err
			}
			entry, record, err := s.lookAt(ctx, b, id)
			switch {
			case err != nil:
				return err
			case entry == nil: // it expired, or the bucket is another one
				revision, gap = 0, true
			case record.Ended:
				id, revision, gap = s.replaced(record), 0, true
			default: // a renewal whose answer did not come back
				revision = entry.Revision()
			}
		}
	})
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.revision, x.renewed = revision, sent
	if gap {
		x.steady = sent
	}
	return nil
}

func (s *Store) writeSession(ctx context.Context, b *kvbucket.Bucket, id string, revision uint64) (uint64, error) {
	value, err := json.Marshal(sessionRecord{})
	if err != nil {
		return 0, err
	}
	return s.bucket.Write(ctx, b, sessionKey(id), value, revision, s.config.SessionTTL)
}

// lookAt reads the record of a session; the entry is nil if there is none.
func (s *Store) lookAt(ctx context.Context, b *kvbucket.Bucket, id string) (entry jetstream.KeyValueEntry, record sessionRecord, err error) {
	entry, err = b.Get(ctx, sessionKey(id))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, record, nil
	}
	if err == nil && json.Unmarshal(entry.Value(), &record) != nil {
		s.seeOdd(sessionKey(id), entry)
		record = sessionRecord{} // it lives, until the server ends the key
	}
	return entry, record, err
}

// replaced gives the session another ID, because a process that takes itself for the
// successor of this one has ended it, and returns it.
func (s *Store) replaced(record sessionRecord) string {
	x := &s.session
	x.mu.Lock()
	x.ids = append(x.ids, uuid.NewString())
	x.nameless = true
	id := x.ids[len(x.ids)-1]
	x.mu.Unlock()
	fields := watermill.LogFields{}
	if record.By != nil {
		fields["instance"], fields["by"] = record.By.Instance, record.By.Session
	}
	s.logger.Error("another process uses the same dedup instance and has ended this one's session; give each process its own instance", nil, fields)
	return id
}

// endSession ends the session for others.
func (s *Store) endSession(ctx context.Context) error {
	id, _ := s.session.now()
	s.session.mu.Lock()
	revision := s.session.revision
	s.session.mu.Unlock()
	if revision == 0 {
		return nil
	}
	return s.bucket.Do(ctx, func(ctx context.Context, b *kvbucket.Bucket) error {
		return s.end(ctx, b, id, revision, sessionRecord{Ended: true})
	})
}

// end records that a session has ended, for as long as others may need to see it.
func (s *Store) end(ctx context.Context, b *kvbucket.Bucket, id string, revision uint64, record sessionRecord) error {
	value, err := json.Marshal(record)
	if err != nil {
		return err
	}
	_, err = s.bucket.Write(ctx, b, sessionKey(id), value, revision, max(markerTTL, s.config.SessionTTL))
	if kvbucket.IsConflict(err) {
		return nil
	}
	return err
}

// peer is the session of another store.
type peer struct {
	looked time.Time // when it was last looked at
	absent time.Time // when it was first missing; zero if it was there
	ended  bool      // it has ended for good; one that is missing may come back
	gone   uint64    // it was gone for reservations with lower revisions; 0 if it was not
	told   bool
}

// gone reports whether the session that made a reservation has ended, so that owner may
// take it over. revision is that of the reservation.
func (s *Store) gone(ctx context.Context, b *kvbucket.Bucket, owner router.Owner, r reservation, revision uint64) (bool, error) {
	if s.session.is(r.Store) {
		return true, nil // nobody holds it, or the caller would not ask
	}
	_, nameless := s.session.now()
	predecessor := r.Instance != "" && r.Instance == owner.Instance && !r.Nameless && !nameless
	s.mu.Lock()
	p := s.peers[r.Store]
	if p == nil {
		p = &peer{}
		s.peers[r.Store] = p
	}
	known, ended := revision < p.gone, p.ended
	fresh := !p.looked.IsZero() && time.Since(p.looked) < s.config.SessionTTL/16 // everything that waits for a reservation asks
	s.mu.Unlock()
	if ended || fresh && (known || !predecessor) {
		return ended || known, nil
	}
	entry, record, err := s.lookAt(ctx, b, r.Store)
	if err != nil {
		return false, err
	}
	now := time.Now()
	absent := s.looked(p, entry != nil, now)
	switch {
	case entry != nil && record.Ended:
	case predecessor:
		if entry != nil {
			if err := s.end(ctx, b, r.Store, entry.Revision(), sessionRecord{Ended: true, By: &owner}); err != nil {
				return false, err
			}
			// It may have been renewed at the same moment.
			if _, record, err := s.lookAt(ctx, b, r.Store); err != nil || !record.Ended {
				return false, err
			}
		}
	case entry != nil:
		return false, nil
	default:
		// A replica that lags behind may not have it yet. And our own session must have
		// outlived what ended the other one.
		if now.Sub(absent) < s.config.SessionTTL/renewals || !s.steady() {
			return false, nil
		}
		if err := s.renew(ctx); err != nil || !s.steady() {
			return false, err
		}
	}
	s.session.mu.Lock()
	latest := s.session.revision // a reservation that is later comes from a session that came back
	s.session.mu.Unlock()
	s.mu.Lock()
	first := !p.told
	p.gone, p.told = latest, true
	p.ended = entry != nil && (record.Ended || predecessor)
	s.mu.Unlock()
	if first {
		s.logger.Info("the dedup session of a process has ended; its reservations are taken over",
			watermill.LogFields{"instance": r.Instance, "session": r.Session})
	}
	return true, nil
}

// looked notes that the session of a peer was looked for, and returns since when it is absent.
func (s *Store) looked(p *peer, there bool, now time.Time) (absent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.looked, p.gone = now, 0
	switch {
	case there:
		p.absent = time.Time{}
	case p.absent.IsZero():
		p.absent = now
	}
	return p.absent
}

// forgetPeers forgets sessions that nobody asks about anymore.
func (s *Store) forgetPeers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.peers, func(_ string, p *peer) bool {
		return !p.looked.IsZero() && time.Since(p.looked) > 10*s.config.SessionTTL
	})
}
