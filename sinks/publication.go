package sinks

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
)

// Receipt says where a message is stored, as far as the sink knows. Zero fields are
// unknown, and so is all of it after an error.
type Receipt struct {
	// Stream, Subject and Sequence are the place in JetStream. Sequences begin with 1.
	Stream, Subject string
	Sequence        uint64
	// Topic, Partition and Offset are the place in Kafka. Partition and Offset are
	// known when Topic is there: both begin with 0.
	Topic     string
	Partition int32
	Offset    int64
	// Key is that of the object with the payload.
	Key string
	// ID is the one by which receivers recognize copies of the message: the context ID
	// of the gateway.
	ID string
	// Duplicate says that the message had been stored before, under the same
	// [gateway.KeyDedupID], and that the receipt is that of the first copy.
	Duplicate bool
}

// Publication is a message on its way to storage. The sink that makes it resolves it
// exactly once. The zero value is one that is not resolved; it must not be copied. Its
// methods are safe for concurrent use.
type Publication struct {
	mu       sync.Mutex
	resolved bool
	receipt  Receipt
	err      error
	done     chan struct{}          // nil until somebody asks for it
	first    func(Receipt, error)   // that Then was given
	then     []func(Receipt, error) // and the others
}

// Done returns a channel that is closed when the publication is resolved.
func (p *Publication) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done = make(chan struct{})
		if p.resolved {
			close(p.done)
		}
	}
	return p.done
}

// Result waits until the publication is resolved. It returns nil when the message is
// stored as durably as the sink's Describe says, else an error as from
// [Sink].Publish.
func (p *Publication) Result() (Receipt, error) {
	<-p.Done()
	return p.receipt, p.err // not written any more
}

// Wait is Result that returns at the latest when ctx ends, with the error of ctx. The
// publication continues then.
func (p *Publication) Wait(ctx context.Context) (Receipt, error) {
	select {
	case <-p.Done():
		return p.Result()
	case <-ctx.Done():
		return Receipt{}, ctx.Err()
	}
}

// Then has f called with the result once it is there, at once if it is. f runs in the
// goroutine of the sink that resolves the publication, which serves all others as
// well: it must not block, nor call the sink.
func (p *Publication) Then(f func(Receipt, error)) {
	p.mu.Lock()
	resolved := p.resolved
	switch {
	case resolved:
	case p.first == nil:
		p.first = f
	default:
		p.then = append(p.then, f)
	}
	p.mu.Unlock()
	if resolved {
		f(p.receipt, p.err)
	}
}

// Resolve is for sinks: it sets the result, and reports whether it did. Only the first
// call does. What Then was given has been called before Done is closed.
func (p *Publication) Resolve(receipt Receipt, err error) bool {
	p.mu.Lock()
	if p.resolved {
		p.mu.Unlock()
		return false
	}
	p.resolved, p.receipt, p.err = true, receipt, err
	first, then, done := p.first, p.then, p.done
	p.first, p.then = nil, nil
	p.mu.Unlock()
	if first != nil {
		first(receipt, err)
	}
	for _, f := range then {
		f(receipt, err)
	}
	if done != nil {
		close(done)
	}
	return true
}

// Await is the second half of Publish, for sinks whose first half is PublishAsync: it
// waits until all publications, which are those of the first of messages in their order, are resolved, so that no error is returned while
// another message of the call is on its way, or until the context of one of messages
// ends. It returns the first error of a publication, else err, which is what kept the
// remaining messages from being published.
func Await(messages []*message.Message, publications []*Publication, err error) error {
	ended, stop := msgctx.FirstEnd(messages)
	defer stop()
	var failed error
	for i, p := range publications {
		select {
		case <-p.Done():
		case <-ended.Done():
			return endOf(messages)
		}
		receipt, err := p.Result()
		if err == nil {
			ReportStored(messages[i], receipt)
		} else if failed == nil {
			failed = err
		}
	}
	if failed == nil {
		failed = err
	}
	return failed
}

// ReportStored is for sinks: their Publish calls it before it returns, with each message that is stored
// and its receipt, and so tells a router whose [router.Observer] wants to know where. [Await] does
// it for them. Of a message that no router published,
// nobody is told.
//
// [router.Observer]: https://pkg.go.dev/github.com/agrimill/agrimill/router#Observer
func ReportStored(msg *message.Message, receipt Receipt) {
	if told, ok := msg.Context().Value(msgctx.ReceiptsKey{}).(interface {
		Stored(*message.Message, Receipt)
	}); ok {
		told.Stored(msg, receipt)
	}
}

// endOf returns the error of the first context of the messages that has ended.
func endOf(messages []*message.Message) error {
	for _, msg := range messages {
		if err := msg.Context().Err(); err != nil {
			return err
		}
	}
	return nil
}
