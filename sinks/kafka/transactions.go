package kafka

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/stoppoint"
)

// partitionsStaleAfter is how old what is known of a topic's partitions may be. The other producers of
// sarama look as often by themselves.
const partitionsStaleAfter = 10 * time.Minute

// errAborted is the cause of ErrUnavailable for messages of a transaction that was aborted because of others.
var errAborted = errors.New("the transaction was aborted")

// errOver is why a transaction is aborted whose senders have all stopped waiting.
var errOver = errors.New("nobody waits for the transaction")

// transactions store the messages of each partition in transactions of their own, so that one that cannot be
// written to, and a message that is refused, are nobody else's concern.
type transactions struct {
	sink *Sink

	mu      sync.Mutex
	writers map[place]*transactor
	running sync.WaitGroup
}

// place is a partition.
type place struct {
	topic     string
	partition int32
}

// splitter chooses the partitions of a topic.
type splitter struct {
	partitions []int32

	mu     sync.Mutex // a partitioner of sarama is for one goroutine
	choose sarama.Partitioner
}

// partition chooses one for a message: of all, since one that cannot be written to now may have been chosen by the
// process before, which is to be fenced off there. A message that may go to any partition goes to that of its ID.
func (s *splitter) partition(d *delivery) (int32, error) {
	if len(s.partitions) == 0 {
		return 0, sarama.ErrLeaderNotAvailable
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.id != "" && !s.consistent(&d.record) {
		h := fnv.New32a()
		_, _ = h.Write([]byte(d.id)) // never fails
		return s.partitions[h.Sum32()%uint32(len(s.partitions))], nil
	}
	choice, err := s.choose.Partition(&d.record, int32(len(s.partitions)))
	if err != nil {
		return 0, err
	}
	if choice < 0 || int(choice) >= len(s.partitions) {
		return 0, sarama.ErrInvalidPartition
	}
	return s.partitions[choice], nil
}

// consistent reports whether a message goes to the partition that the partitioner chooses, and to no other one.
func (s *splitter) consistent(record *sarama.ProducerMessage) bool {
	if c, ok := s.choose.(sarama.DynamicConsistencyPartitioner); ok {
		return c.MessageRequiresConsistency(record)
	}
	return s.choose.RequiresConsistency()
}

// add gives a message its place behind all others of its partition.
func (t *transactions) add(d *delivery) error {
	partition, err := d.known.split.partition(d)
	if err != nil {
		return err
	}
	if time.Since(d.known.looked) > partitionsStaleAfter {
		t.sink.forget(d.known)
	}
	d.record.Partition = partition
	w := t.writer(place{d.record.Topic, partition})
	w.waiting.add(&t.running, w.store, d)
	return nil
}

func (t *transactions) writer(at place) *transactor {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.writers[at]
	if w == nil {
		w = &transactor{sink: t.sink, id: fmt.Sprintf("%s/%s/%d", t.sink.config.TransactionalID, at.topic, at.partition)}
		t.writers[at] = w
	}
	return w
}

// close waits for all messages under way. Nobody may be adding any.
func (t *transactions) close() {
	t.running.Wait()
	for _, w := range t.writers {
		w.reset()
	}
}

// transactor stores the messages of one partition, all that are there at a time in one transaction.
type transactor struct {
	sink    *Sink
	id      string // transactional ID
	waiting backlog[*delivery]
	results backlog[result] // told by themselves: a sender that takes long over its result keeps no other one waiting

	// Of the one that stores.
	dialer *dialer // of the producer
	client sarama.Client
	async  sarama.AsyncProducer // nil: none
	limits producerKey
}

// backlog is what waits to be worked off, in its order. While there is anything, a goroutine does.
type backlog[T any] struct {
	mu    sync.Mutex
	items []T
	busy  bool
}

// add puts items behind the others. work is called with all that are there, until nothing is.
func (b *backlog[T]) add(running *sync.WaitGroup, work func([]T), items ...T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.items = append(b.items, items...)
	if b.busy {
		return
	}
	b.busy = true
	running.Go(func() {
		for items := b.take(); items != nil; items = b.take() {
			work(items)
		}
	})
}

func (b *backlog[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items, b.busy = nil, items != nil
	return items
}

// store stores messages, which are all in the same lane. Those of a transaction fit into one batch: sarama must not have
// much more to send when one of them fails, see send.
func (t *transactor) store(batch []*delivery) {
	limits := batch[0].known.lane.limits
	for len(batch) > 0 {
		n, size := 1, batch[0].size
		for n < len(batch) && !limits.alone && size+batch[n].size < limits.limit {
			size += batch[n].size
			n++
		}
		t.transact(batch[:n:n])
		batch = batch[n:]
	}
}

// transact stores messages in one transaction, and tells their senders how it went.
func (t *transactor) transact(batch []*delivery) {
	// Whoever is not allowed to store anything any more fences nobody off.
	if batch = t.wanted(batch); len(batch) == 0 {
		return
	}
	limits := batch[0].known.lane.limits
	if t.async != nil && (t.limits != limits || t.dialer.isShut()) {
		t.reset()
	}
	if t.dialer == nil {
		t.dialer = newDialer(t.sink.dialer.ctx, t.sink.config.ConnectTimeout)
	}
	// When nobody waits any more, it is over, however long sarama would go on.
	end := time.AfterFunc(time.Until(latest(batch)), t.dialer.shut)
	defer end.Stop()
	if err := t.open(limits); err != nil {
		t.reset()
		t.tell(batch, nil, err)
		return
	}
	// Looked at once more now that there is a producer: whose context has not ended yet, for instance because it
	// holds a lease, has one from before its end, which the next holder's fences off.
	if batch = t.wanted(batch); len(batch) == 0 {
		return
	}
	stoppoint.At(stoppoint.Write)
	failed, err := t.send(batch)
	if err == nil && !slices.ContainsFunc(batch, (*delivery).waits) {
		err = errOver
	}
	aborts := err != nil
	if !aborts {
		err = t.async.CommitTxn()
	}
	t.tell(batch, failed, err)
	if aborts {
		_ = t.async.AbortTxn() // otherwise the next producer does, or the brokers when its time is over
	}
	if err != nil {
		t.reset()
	}
}

// latest returns when the last sender stops waiting.
func latest(batch []*delivery) (at time.Time) {
	for _, d := range batch {
		if d.deadline.After(at) {
			at = d.deadline
		}
	}
	return at
}

// waits reports whether the sender of a message still waits for it.
func (d *delivery) waits() bool { return d.ctx.Err() == nil && time.Now().Before(d.deadline) }

// wanted returns the messages whose senders wait for them. The others are not sent.
func (t *transactor) wanted(batch []*delivery) []*delivery {
	wanted := batch[:0]
	for _, d := range batch {
		if !d.waits() {
			t.sink.drop(d)
			continue
		}
		wanted = append(wanted, d)
	}
	return wanted
}

// open makes a producer, if there is none. From then on, what another one with the same ID sends is refused, and
// what it has not committed is aborted.
func (t *transactor) open(limits producerKey) error {
	if t.async != nil {
		return nil
	}
	config := t.sink.config.sarama(t.dialer)
	config.Producer.Transaction.ID = t.id
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.MaxMessageBytes = limits.limit
	// sarama tries a message again whose transaction has failed already, which nothing will mend.
	var made atomic.Pointer[sarama.AsyncProducer]
	pause := config.Producer.Retry.BackoffFunc
	config.Producer.Retry.BackoffFunc = func(retries, limit int) time.Duration {
		if p := made.Load(); p != nil && (*p).TxnStatus()&sarama.ProducerTxnFlagInError != 0 {
			return 0
		}
		if pause == nil {
			return config.Producer.Retry.Backoff
		}
		return pause(retries, limit)
	}
	client, err := sarama.NewClient(t.sink.config.Brokers, config)
	if err != nil {
		return err
	}
	err = t.awaitCoordinator(client)
	var async sarama.AsyncProducer
	if err == nil {
		async, err = sarama.NewAsyncProducerFromClient(client)
	}
	if err != nil {
		_ = client.Close()
		return err
	}
	made.Store(&async)
	t.client, t.async, t.limits = client, async, limits
	return nil
}

// awaitCoordinator waits until the brokers name the coordinator of the transactions, or nobody waits any more. sarama
// would sleep for two seconds each time that there is none, as in a cluster that has had no transactions, and
// nothing could end that.
func (t *transactor) awaitCoordinator(client sarama.Client) error {
	request := &sarama.FindCoordinatorRequest{Version: 1, CoordinatorKey: t.id, CoordinatorType: sarama.CoordinatorTransaction}
	for {
		broker := client.LeastLoadedBroker()
		if broker == nil {
			return sarama.ErrOutOfBrokers
		}
		_ = broker.Open(client.Config()) // an error shows below
		response, err := broker.FindCoordinator(request)
		if err != nil {
			_ = broker.Close()
			return nil // sarama asks others, and again
		}
		if response.Err != sarama.ErrConsumerCoordinatorNotAvailable {
			return nil // likewise
		}
		if backoff.Sleep(t.dialer.ctx, pauseBetweenLooks) != nil {
			return response.Err
		}
	}
}

// reset closes the producer. Nothing may be under way.
func (t *transactor) reset() {
	if t.async != nil {
		_ = t.async.Close()
		_ = t.client.Close()
	}
	if t.dialer != nil {
		t.dialer.shut()
	}
	t.dialer, t.client, t.async = nil, nil, nil
}

// send begins a transaction and waits for the results of all messages that it has sent. It returns the errors of those
// that have one of their own, and the first of them. After that one it sends no more: sarama notes the error of each
// one that it gets after it, where others read that without a lock.
func (t *transactor) send(batch []*delivery) (failed map[*delivery]error, first error) {
	if err := t.async.BeginTxn(); err != nil {
		return nil, err
	}
	for sent, done := 0, 0; done < sent || sent < len(batch) && first == nil; {
		var input chan<- *sarama.ProducerMessage
		var next *sarama.ProducerMessage
		if sent < len(batch) && first == nil {
			input, next = t.async.Input(), &batch[sent].record
		}
		select {
		case input <- next:
			sent++
		case <-t.async.Successes():
			done++
		case f := <-t.async.Errors():
			done++
			switch {
			case first == nil:
				failed, first = map[*delivery]error{}, f.Err
			case errors.Is(f.Err, sarama.ErrTransactionNotReady):
				continue // because of the first one
			}
			failed[f.Msg.Metadata.(*delivery)] = f.Err
		}
	}
	return failed, first
}

// tell tells the senders how it went: err is nil if the transaction is committed.
func (t *transactor) tell(batch []*delivery, failed map[*delivery]error, err error) {
	results := make([]result, len(batch))
	for i, d := range batch {
		own := failed[d]
		switch {
		case own != nil:
			own = t.fenced(own)
		case len(failed) > 0:
			own = fmt.Errorf("%w: %v", errAborted, err) //nolint:errorlint // the error is another message's
		default:
			own = t.fenced(err)
		}
		results[i] = result{&d.record, own}
	}
	t.results.add(&t.sink.transactions.running, func(results []result) {
		for _, r := range results {
			if errors.Is(r.err, errOver) {
				t.sink.drop(r.record.Metadata.(*delivery))
				continue
			}
			t.sink.finish(r.record, r.err)
		}
	}, results...)
}

// fenced says more about the error of a producer that another one has fenced off.
func (t *transactor) fenced(err error) error {
	switch kafkaError(err) {
	case sarama.ErrProducerFenced, sarama.ErrInvalidProducerEpoch:
		t.sink.warn("another producer has the same transactional ID and has fenced this one off, which is expected after a change of the holder of a lease and during a reload; otherwise, give each process an ID of its own", nil)
		return fmt.Errorf("fenced off by another producer with the transactional ID %s: %w", t.id, err)
	}
	return err
}
