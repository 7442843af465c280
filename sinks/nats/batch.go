package nats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// batchFlow is after how many messages the server acknowledges those of a batch. Every message
	// is: then none at the end of a batch waits for others, and more does not make it faster.
	batchFlow = 1
	// batchIdle is how long a batch stays open without messages. The server forgets it after 10 s,
	// or what its operator set, and tells nobody.
	batchIdle = time.Second
	// batchPause is how long no batch is begun after one was broken: what breaks each of them must
	// not fail every message once before it is published plainly.
	batchPause = time.Second
	// maxSuspects is how many messages are remembered that may have been sent.
	maxSuspects = 1 << 16
)

// Operations of a message in a batch.
const (
	batchStart = iota
	batchAppend
	_        // the message ends the batch
	batchEnd // nothing is stored
)

// codeUnknownBatch is the error of a message of a batch that the server does not have, or not any
// more.
const codeUnknownBatch jetstream.ErrorCode = 10208

var (
	errBroken  = errors.New("the batch was broken before it was known to be stored")
	errHalted  = errors.New("a message before it has failed")
	errNoBatch = errors.New("the server has ended the batch")
)

// batches is the protocol of batched ingest. The messages of a batch are numbered; the server
// stores them in the order of the numbers, and nothing behind one that is missing or was refused.
// Its acknowledgements each cover everything up to a number.
//
// Whatever is not as it should be breaks the batch: nothing in it counts as stored that was not
// acknowledged before, and the next message begins another one. Of what was in it, some may be
// stored all the same, or be about to be. A server with replicas takes a copy of that in another
// batch for stored although it can still lose it, and only a plain publish is answered correctly.
// So batches remembers what may have been sent, until it is known to be stored.
//
// It is a state machine without goroutine or clock, safe for concurrent use.
type batches struct {
	prefix string        // of the reply subjects
	stream string        // that has to answer
	max    int           // how many messages may wait
	room   chan struct{} // holds a token after something has changed for add or quiet

	mu        sync.Mutex
	id        string    // of the open batch; empty: none
	flights   []*flight // of the open batch, without those that are known to be stored
	first     uint64    // the number of flights[0]
	last      uint64    // the latest number
	written   time.Time // when it was given
	progress  time.Time // when something was last acknowledged
	subject   string    // of the latest message
	breaks    uint64    // how many batches were broken
	resolving int       // how many of them have messages that nobody was told about yet
	pause     time.Time // no batch until then
	suspects  suspects
}

// newBatches makes one for a stream that recognizes copies for so long.
func newBatches(prefix, stream string, most int, window time.Duration) *batches {
	return &batches{prefix: prefix, stream: stream, max: most, room: make(chan struct{}, 1), suspects: suspects{window: window}}
}

// subscription is what the reply subjects match.
func (b *batches) subscription() string { return b.prefix + ">" }

// poke has add and quiet tried again.
func (b *batches) poke() {
	select {
	case b.room <- struct{}{}:
	default:
	}
}

// place decides how a message that gets its place now will be published: plainly, alone in the order
// of its key, or in a batch. The number is that of breaks, for add.
func (b *batches) place(id string, now time.Time) (alone bool, breaks uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return now.Before(b.pause) || b.suspects.has(id, now), b.breaks
}

// quiet reports whether everybody was told about the batches that are broken, and overdue whether
// one was broken since a message got its place: it must not be published then. When not quiet, the
// caller has to wait for a token of room.
func (b *batches) quiet(breaks uint64) (quiet, overdue bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.resolving == 0, breaks != b.breaks
}

// add puts f into the open batch, or into a new one, and gives its message a reply subject. Without
// room, or when it is not quiet or f is overdue, it returns false; then the caller has to wait for a
// token of room.
func (b *batches) add(f *flight, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.flights) >= b.max || b.resolving > 0 || f.breaks != b.breaks {
		return false
	}
	op := batchAppend
	if b.id == "" {
		b.id, b.first, b.last, op = strings.TrimPrefix(natsgo.NewInbox(), natsgo.InboxPrefix), 1, 0, batchStart
	}
	b.last++
	if len(b.flights) == 0 {
		b.first, b.progress = b.last, now
	}
	b.flights = append(b.flights, f)
	f.sent, b.written, b.subject = now, now, f.subject
	f.reply = b.reply(b.last, op)
	return true
}

// reply is the subject for answers to a message of the open batch. b.mu is held.
func (b *batches) reply(number uint64, op int) string {
	var room [160]byte
	s := append(append(room[:0], b.prefix...), b.id...)
	s = append(strconv.AppendInt(append(s, '.'), batchFlow, 10), ".fail."...)
	s = append(strconv.AppendUint(s, number, 10), '.')
	s = strconv.AppendInt(s, int64(op), 10)
	return string(append(s, ".$FI"...))
}

// end ends the batch if nothing was added since a time and everything in it is stored. It returns
// what tells the server; nil if the batch goes on, or there is none.
func (b *batches) end(before time.Time) *natsgo.Msg {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.id == "" || len(b.flights) > 0 || b.written.After(before) {
		return nil
	}
	msg := &natsgo.Msg{Subject: b.subject, Reply: b.reply(b.last+1, batchEnd)}
	b.id = ""
	return msg
}

// broken is what became of a batch that was broken.
type broken struct {
	refused *flight // nil: it is not known which message was
	cause   error
	flights []*flight // all that were in it, in their order, refused among them
}

// snap breaks the open batch. The caller tells about what was in it, and calls told. b.mu is held.
func (b *batches) snap(now time.Time, refused *flight, cause error) *broken {
	if b.id == "" {
		return nil
	}
	all := &broken{refused, cause, b.flights}
	for _, f := range all.flights {
		b.suspects.add(f.id, now)
	}
	b.id, b.flights = "", nil
	b.breaks++
	b.resolving++
	b.pause = now.Add(batchPause)
	return all
}

// snapped is snap for whoever does not know which message is to blame; nil without an open batch.
func (b *batches) snapped(now time.Time, cause error) *broken {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.snap(now, nil, cause)
}

// unsent breaks the batch because f, the latest in it, could not be written; nil if it was broken
// before.
func (b *batches) unsent(f *flight, now time.Time, cause error) *broken {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.flights); n == 0 || b.flights[n-1] != f {
		return nil
	}
	return b.snap(now, f, cause)
}

// told says that everybody was told about what was in a broken batch.
func (b *batches) told() {
	b.mu.Lock()
	b.resolving--
	b.mu.Unlock()
	b.poke()
}

// expire breaks the batch when nothing was acknowledged since a time and something waits for it. It
// returns when there was progress, or now if nothing waits.
func (b *batches) expire(before, now time.Time) (*broken, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(b.flights) == 0:
		return nil, now
	case b.progress.Before(before):
		return b.snap(now, nil, errNoAck), now
	}
	return nil, b.progress
}

// sent notes that a message was sent plainly, and perhaps not stored.
func (b *batches) sent(id string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.suspects.add(id, now)
}

// stored notes that a message that was published plainly is stored.
func (b *batches) stored(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.suspects.remove(id)
}

// batchAnswer is anything that a server may answer to a message of a batch.
type batchAnswer struct {
	Type   string              `json:"type"`
	Seq    uint64              `json:"seq"`
	Error  *jetstream.APIError `json:"error"`
	Stream string              `json:"stream"`
	Batch  string              `json:"batch"`
	Count  uint64              `json:"count"`
}

// answered takes in an answer. It appends what is known to be stored now to stored, and returns what
// the answer has broken, or nil.
func (b *batches) answered(answer *natsgo.Msg, now time.Time, stored []*flight) ([]*flight, *broken) {
	id, number, ok := b.parse(answer.Subject)
	if !ok {
		return stored, nil
	}
	upTo, usual := usualBatchAck(answer.Data)
	var said batchAnswer
	var failed error
	switch {
	case usual:
	case len(answer.Data) == 0 && answer.Header.Get("Status") == "503":
		failed = jetstream.ErrNoStreamResponse
	default:
		if err := json.Unmarshal(answer.Data, &said); err != nil {
			failed = fmt.Errorf("%w: %w", errBadAnswer, err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case id != b.id: // of a former one
		return stored, nil
	case failed != nil:
		return stored, b.snap(now, nil, failed)
	case usual || said.Type == "ack":
		if !usual {
			upTo = said.Seq
		}
		return b.acknowledged(upTo, now, stored)
	case said.Type == "err" && said.Error != nil:
		return stored, b.refusal(said.Seq, now, said.Error)
	case said.Type != "":
		return stored, b.snap(now, nil, fmt.Errorf("%w (%.16q)", errBroken, said.Type))
	case said.Error != nil && said.Error.ErrorCode == codeUnknownBatch:
		return stored, b.snap(now, nil, said.Error)
	case said.Error != nil:
		return stored, b.refusal(number, now, said.Error)
	case said.Batch != b.id:
		return stored, b.snap(now, nil, errBadAnswer)
	case said.Stream != b.stream:
		return stored, b.snap(now, nil, fmt.Errorf("acknowledged by stream %.64q instead of %s", said.Stream, b.stream))
	}
	// The server has ended the batch: it has said why, if that was not lost.
	stored, gone := b.acknowledged(said.Count, now, stored)
	if gone == nil {
		gone = b.snap(now, nil, errNoBatch)
	}
	return stored, gone
}

// parse returns the batch and the number that an answer is for.
func (b *batches) parse(subject string) (id string, number uint64, ok bool) {
	rest, found := strings.CutPrefix(subject, b.prefix)
	if !found {
		return "", 0, false
	}
	id, rest, _ = strings.Cut(rest, ".")
	_, rest, _ = strings.Cut(rest, ".") // the flow
	_, rest, _ = strings.Cut(rest, ".") // what happens at a gap
	text, _, found := strings.Cut(rest, ".")
	number, err := strconv.ParseUint(text, 10, 64)
	return id, number, found && err == nil && id != ""
}

// acknowledged takes in that everything up to a number is stored. b.mu is held.
func (b *batches) acknowledged(upTo uint64, now time.Time, stored []*flight) ([]*flight, *broken) {
	if upTo > b.last {
		return stored, b.snap(now, nil, errBadAnswer) // it was not sent
	}
	if len(b.flights) == 0 || upTo < b.first {
		return stored, nil
	}
	n := int(upTo - b.first + 1)
	stored = append(stored, b.flights[:n]...)
	clear(b.flights[:n])
	b.flights = b.flights[n:]
	b.first += uint64(n)
	b.progress = now
	b.poke()
	return stored, nil
}

// refusal takes in that the server has refused a message. b.mu is held.
func (b *batches) refusal(number uint64, now time.Time, cause error) *broken {
	if number < b.first || number > b.last {
		return b.snap(now, nil, errBadAnswer)
	}
	return b.snap(now, b.flights[number-b.first], cause)
}

var (
	beforeBatchSequence = []byte(`{"type":"ack","seq":`)
	behindBatchSequence = []byte(`,"msgs":1}`)
)

// usualBatchAck returns the number of an acknowledgement that looks as they all do.
func usualBatchAck(data []byte) (uint64, bool) {
	digits, found := bytes.CutPrefix(data, beforeBatchSequence)
	digits, whole := bytes.CutSuffix(digits, behindBatchSequence)
	if !found || !whole || len(digits) == 0 || len(digits) > 18 || digits[0] == '0' && len(digits) > 1 {
		return 0, false
	}
	n := uint64(0)
	for _, digit := range digits {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		n = n*10 + uint64(digit-'0')
	}
	return n, true
}

// suspects are the IDs of messages that may have been sent, and are not known to be stored. One that
// has no ID is not recognized, and stored again.
type suspects struct {
	window time.Duration // how long an ID counts
	since  map[string]time.Time
	order  []suspect // the oldest first; also those that were removed or added again
	all    time.Time // there were too many: everything is suspect until then
}

type suspect struct {
	id    string
	since time.Time
}

func (s *suspects) has(id string, now time.Time) bool {
	if now.Before(s.all) {
		return true
	}
	since, has := s.since[id]
	return has && now.Sub(since) <= s.window
}

func (s *suspects) add(id string, now time.Time) {
	if id == "" {
		return
	}
	s.forget(now)
	if len(s.since) >= maxSuspects {
		s.all, s.since, s.order = now.Add(s.window), nil, nil
	}
	if len(s.order) >= 2*len(s.since)+1024 {
		s.order = slices.DeleteFunc(s.order, func(o suspect) bool { return !s.since[o.id].Equal(o.since) })
	}
	if s.since == nil {
		s.since = make(map[string]time.Time)
	}
	if s.since[id].Equal(now) {
		return
	}
	s.since[id] = now
	s.order = append(s.order, suspect{id, now})
}

// forget drops what the server has forgotten.
func (s *suspects) forget(now time.Time) {
	n := 0
	for ; n < len(s.order) && now.Sub(s.order[n].since) > s.window; n++ {
		if o := s.order[n]; s.since[o.id].Equal(o.since) {
			delete(s.since, o.id)
		}
	}
	s.order = s.order[n:]
}

func (s *suspects) remove(id string) {
	delete(s.since, id)
	if len(s.since) == 0 {
		s.order = nil
	}
}
