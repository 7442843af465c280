package nats

import (
	"context"
	"sync"

	natsgo "github.com/nats-io/nats.go"
)

// request is one call of Publish. The fields below the line are guarded by
// pending.mu until done is closed.
type request struct {
	messages []*natsgo.Msg
	contexts []context.Context
	done     chan struct{} // closed when every message is settled
	// ----
	left int   // messages that are not settled
	err  error // of the first message that failed
}

// pending knows the messages that were handed to nats.go and are not settled. One
// channel for each call is cheaper than the two that the future of each message
// would make.
type pending struct {
	mu       sync.Mutex
	requests map[*natsgo.Msg]*request
}

// add adds the messages of r, before the first of them is sent.
func (p *pending) add(r *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.requests == nil {
		p.requests = make(map[*natsgo.Msg]*request)
	}
	r.left = len(r.messages)
	for _, msg := range r.messages {
		p.requests[msg] = r
	}
}

// settle records that msg is acknowledged, or why it is not. Only the first call
// for a message counts: one that could not be sent may be reported as lost with its
// connection as well.
func (p *pending) settle(msg *natsgo.Msg, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.requests[msg]
	if r == nil {
		return
	}
	delete(p.requests, msg)
	if r.err == nil {
		r.err = err
	}
	if r.left--; r.left == 0 {
		close(r.done)
	}
}
