package subscriber

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/subscriber/internal/lease"
)

const (
	// streamLooks is how often in Config.StreamDownFor the stream is looked at, and
	// maxStreamDown how many times as long it is after it was in vain.
	streamLooks   = 20
	maxStreamDown = 10
	// After half of Config.StreamDownFor without an answer the gateway is asked for one, and again
	// after a quarter of it: a connection that is dead may hold the first one back.
	askAfter, askEvery = 2, 4
)

// working returns the Subscriber that works or, after Close, that did: s itself without a lease. While it waits for the
// lease it is s, too, in which nothing is open then.
func (s *Subscriber) working() *Subscriber {
	if h := s.holder; h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.worker != nil {
			return h.worker
		}
	}
	return s
}

// watchStream gives the lease up once the stream has been down, or the gateway has not answered, for too
// long, unless the service refuses the stream, which it would others, too. It returns then, or when
// ctx ends.
//
// A stream that is open proves nothing: the service may have nothing to say, or be gone without a
// word. So what counts is an answer to whatever was asked, and a byte on the stream. If there was
// none for a while, the worker asks.
func (s *Subscriber) watchStream(ctx context.Context, term *lease.Fence) {
	patience := s.cfg.StreamDownFor * time.Duration(min(1<<min(s.stats.inVain.Load(), maxStreamDown), maxStreamDown)) // the inner bound is against overflow
	tick := time.NewTicker(max(patience/streamLooks, time.Millisecond))
	defer tick.Stop()
	began := time.Now()
	up, asked, vain := began, began, int64(1)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		s.mu.Lock()
		state := s.loop.connection.stream
		s.mu.Unlock()
		heard := later(began, s.lastHeard())
		switch {
		case !state.RefusedSince.IsZero():
			up, began = now, now
			continue
		case state.Connected:
			up = now
			if !s.lastHeard().IsZero() {
				vain = 0
				s.stats.inVain.Store(0)
			}
		}
		if silent := now.Sub(heard); silent >= patience/askAfter && now.Sub(asked) >= patience/askEvery {
			asked = now
			s.wg.Go(func() { s.ask(ctx) }) // ends with ctx
		}
		down, err := now.Sub(up), state.LastError
		if silent := now.Sub(heard); silent > down && state.Connected {
			down, err = silent, errSilent
		}
		if down >= patience+headGrace { // the stream may be open, and not have said so
			s.logger.Error("the lease is given up, because the event stream cannot be opened, or the gateway does not answer; another process may be able to reach it",
				err, watermill.LogFields{"down": down.Round(time.Millisecond).String()})
			s.stats.inVain.Add(vain)
			term.End(lease.ErrGivenUp)
			return
		}
	}
}

// errSilent is logged when the lease is given up.
var errSilent = errors.New("subscriber: nothing was heard from the gateway, although it was asked")
