package nats

import (
	"context"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/sinks"
)

// flight is one message on its way.
type flight struct {
	sinks.Publication
	topic string
	msg   *natsgo.Msg
	ctx   context.Context
	start time.Time
}

// pending knows the messages that were handed to nats.go and are not resolved. One
// publication for each is cheaper than the two channels that nats.go's future would
// make.
type pending struct {
	mu      sync.Mutex
	flights map[*natsgo.Msg]*flight
}

// add adds f, before it is sent.
func (p *pending) add(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flights == nil {
		p.flights = make(map[*natsgo.Msg]*flight)
	}
	p.flights[f.msg] = f
}

// take removes the flight of msg, nil when that was done already: a message that could
// not be sent may be reported as lost with its connection as well.
func (p *pending) take(msg *natsgo.Msg) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flights[msg]
	delete(p.flights, msg)
	return f
}

// takeAll removes all flights.
func (p *pending) takeAll() []*flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*flight, 0, len(p.flights))
	for _, f := range p.flights {
		all = append(all, f)
	}
	clear(p.flights)
	return all
}
