package testkit

import (
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Publisher is a Watermill publisher that keeps copies of what it publishes.
type Publisher struct {
	mu     sync.Mutex
	topics map[string][]*message.Message
	err    error
}

// Publish implements message.Publisher.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	if p.topics == nil {
		p.topics = make(map[string][]*message.Message)
	}
	for _, msg := range messages {
		kept := msg.Copy()
		kept.Payload = slices.Clone(msg.Payload)
		p.topics[topic] = append(p.topics[topic], kept)
	}
	return nil
}

// Close implements message.Publisher. It does nothing.
func (*Publisher) Close() error { return nil }

// Fail makes Publish return err and keep nothing; nil ends that.
func (p *Publisher) Fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// Messages returns what was published to a topic, in order.
func (p *Publisher) Messages(topic string) []*message.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.topics[topic])
}
