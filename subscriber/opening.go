package subscriber

import (
	"context"
	"sync"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/subscriber/internal/lease"
)

// headGrace is how long to wait for the response head before treating the stream
// as one whose head arrives with the first event.
const headGrace = time.Second

// openStream requests the event stream and returns when the response head arrives.
// That may be as late as the first event, so after headGrace a requested stream
// counts as open. The stream lives as long as connection, which cancel ends.
func (s *Subscriber) openStream(ctx, connection context.Context, cancel func()) (*gateway.EventStream, error) {
	var head sync.Mutex // held while one of the two below tells that the stream is open
	answered, open := false, false
	late := time.AfterFunc(time.Hour, func() {
		head.Lock()
		defer head.Unlock()
		if !answered {
			open = true
			s.opened(ctx, cancel, true)
		}
	})
	late.Stop()
	stream, err := s.cfg.Client.ReceiveEvents(lease.Guard(connection), gateway.ReceiveEventsRequest{
		Types: s.cfg.EventTypes, AwaitingHead: func() { late.Reset(headGrace) },
	})
	late.Stop()
	head.Lock()
	answered = true
	head.Unlock()
	switch {
	case err != nil && connection.Err() != nil && ctx.Err() == nil:
		return nil, gateway.ErrClosed // recalled
	case err != nil:
		return nil, err
	case open:
		s.headArrived(stream)
	default:
		s.opened(ctx, func() { _ = stream.Close() }, false)
	}
	return stream, nil
}

// opened performs the work due when a stream opens; reconnect ends the stream.
func (s *Subscriber) opened(ctx context.Context, reconnect func(), awaitingHead bool) {
	s.setConnected(reconnect, awaitingHead)
	if awaitingHead {
		s.logger.Info("event stream open; awaiting response head", nil)
	} else {
		s.logger.Info("event stream connected", nil)
	}
	if s.cfg.Hooks.Connected != nil {
		s.cfg.Hooks.Connected()
	}
	if _, is := s.cfg.Tenants.(directory); !is {
		return
	}
	// What changed while the stream was down was not seen. Ends with the request, which ends with ctx.
	s.wg.Go(func() {
		if err := s.cfg.Tenants.Sync(ctx); err != nil && ctx.Err() == nil {
			s.logger.Error("synchronizing the tenant directory failed", err, nil)
		}
	})
}

// headArrived is called when a stream that was awaiting its head has been answered.
func (s *Subscriber) headArrived(stream *gateway.EventStream) {
	s.logger.Info("event stream connected", nil)
	s.mu.Lock()
	defer s.unlock()
	s.core.Connected(s.now())
	s.loop.connection.headArrived(time.Now())
	s.loop.outage.Over()
	s.loop.reconnect = func() { _ = stream.Close() }
	if s.loop.recalled { // recalled while the head was awaited
		s.loop.reconnect()
	}
}
