package identitytest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

var (
	programs = flag.Int("programs", 1000, "how many random programs are run")
	seed     = flag.Uint64("seed", 1, "the seed of the first program")
)

// partSize is the size of the parts of large payloads, below which none is a chunk.
const partSize = 64

// sent is a message that the gateway has for an endpoint, or a broker at a place.
type sent struct {
	id, endpoint, context, kind, filename string
	place                                 string // empty if it comes from the gateway
	payload                               []byte
}

// broker is a sink that stores each ID once in a topic, for ever.
type broker struct {
	mu     sync.Mutex
	ids    map[string]bool
	stored map[string][]*message.Message // by topic
	next   int
	nacks  int           // so many acks are lost
	hang   chan struct{} // closed when a publish hangs after it has stored the message; nil: none is to hang
	reject string        // payloads with this prefix are refused
}

func (b *broker) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := m.Context().Err(); err != nil {
			return err
		}
		b.mu.Lock()
		id := m.Metadata[sinks.KeyDedupID]
		switch {
		case b.reject != "" && strings.HasPrefix(string(m.Payload), b.reject):
			b.mu.Unlock()
			return sinks.NewError("broker", topic, sinks.ErrRejected, nil)
		case id == "" || !b.ids[topic+" "+id]:
			b.ids[topic+" "+id] = true
			kept := m.Copy()
			b.next++
			kept.Metadata["place"] = strconv.Itoa(b.next)
			b.stored[topic] = append(b.stored[topic], kept)
		}
		hang := b.hang
		b.hang = nil
		lost := b.nacks > 0
		b.nacks -= min(b.nacks, 1)
		b.mu.Unlock()
		if hang != nil {
			close(hang)
			<-m.Context().Done()
			return m.Context().Err()
		}
		if lost {
			return sinks.NewError("broker", topic, sinks.ErrUnavailable, nil)
		}
	}
	return nil
}

func (b *broker) PublishAsync(topic string, m *message.Message) (*sinks.Publication, error) {
	p := &sinks.Publication{}
	p.Resolve(sinks.Receipt{}, b.Publish(topic, m))
	return p, nil
}
func (b *broker) Describe() sinks.Description        { return sinks.Description{Name: "broker"} }
func (b *broker) TopicSegment(value string) string   { return sinks.DefaultSegments.Escape(value) }
func (b *broker) Health(context.Context) error       { return nil }
func (b *broker) Close() error                       { return nil }
func (b *broker) in(topic string) []*message.Message { return slices.Clone(b.stored[topic]) }

// queue is the poison queue in the broker.
type queue struct {
	*broker
	keep bool // a replay is killed before it deletes
}

var errKilled = errors.New("killed")

func (q *queue) Messages(context.Context) iter.Seq2[router.Poisoned, error] {
	return func(yield func(router.Poisoned, error) bool) {
		for _, m := range q.in("poison") {
			if !yield(q.poisoned(m), nil) {
				return
			}
		}
	}
}

func (q *queue) poisoned(m *message.Message) router.Poisoned {
	p, _ := router.ParsePoisoned(m.Copy())
	p.ID = m.Metadata["place"]
	return p
}

func (q *queue) Get(_ context.Context, id string) (router.Poisoned, error) {
	for _, m := range q.in("poison") {
		if m.Metadata["place"] == id {
			return q.poisoned(m), nil
		}
	}
	return router.Poisoned{}, router.ErrNotInQueue
}

func (q *queue) Delete(_ context.Context, id string) error {
	if q.keep {
		return errKilled
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stored["poison"] = slices.DeleteFunc(q.stored["poison"], func(m *message.Message) bool { return m.Metadata["place"] == id })
	return nil
}

// lossyStore is the dedup store, which outlives the process, and may miss a commit.
type lossyStore struct {
	router.DedupStore
	lose bool
}

func (s *lossyStore) Commit(ctx context.Context, c router.Claim, token router.Token, ttl time.Duration) error {
	if s.lose {
		_ = s.Release(ctx, c, token)
		return errKilled
	}
	return s.DedupStore.Commit(ctx, c, token, ttl)
}

// source delivers what it is given.
type source struct{ messages chan *message.Message }

func (s source) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			select {
			case m := <-s.messages:
				out <- m
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
func (source) Close() error { return nil }

// The modes of the transform.
const (
	passes = iota
	splits // into a header, two equal parts, and the payload
	tags   // the version is in the metadata alone
	writes // the version is in the payload alone
	clocks // writes the time
	drops  // returns nothing, and has handled it
	fails  // every time
	halves // the second message is refused by the sink
	modes
)

// mill is the program under test, which is killed and started again.
type mill struct {
	t       *testing.T
	rand    *rand.Rand
	store   *lossyStore
	broker  *broker
	queue   *queue
	mode    int
	version int
	rejects bool // the filter
	starts  int

	from   source
	router *router.Router
	stop   func()
	log    []string
}

const route = "farm"

func (m *mill) start() {
	m.starts++
	m.from = source{make(chan *message.Message)}
	r, err := router.New(router.Config{
		Poison: m.broker, Retry: router.RetrySettings{InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
		Dedup: router.DedupSettings{Store: struct{ router.DedupStore }{m.store}, NeverChunkBelow: partSize, TTL: 1000 * time.Hour},
	}, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := r.Add(router.Route{
		Name: route, From: m.from, Topic: "in", To: m.broker, Transform: m.transform,
		Filter:    func(*message.Message) bool { return !m.rejects },
		TopicFunc: func(*message.Message) (string, error) { return "out", nil },
	}); err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		_ = r.Run(ctx)
	}()
	<-r.Running()
	m.router, m.stop = r, func() { cancel(); <-done }
}

func (m *mill) made(msg *message.Message, kind, payload string) *message.Message {
	out := msg.Copy()
	out.UUID = watermill.NewUUID()
	out.Metadata["kind"] = kind
	out.Payload = []byte(payload)
	return out
}

func (m *mill) transform(msg *message.Message) ([]*message.Message, error) {
	v := strconv.Itoa(m.version)
	switch m.mode {
	case splits:
		return []*message.Message{
			m.made(msg, v+" header", "header "+v), m.made(msg, "part", "part "+v), m.made(msg, "part", "part "+v), m.made(msg, "whole", string(msg.Payload)),
		}, nil
	case tags:
		return []*message.Message{m.made(msg, v, string(msg.Payload))}, nil
	case writes:
		return []*message.Message{m.made(msg, "text", "text "+v)}, nil
	case clocks:
		time.Sleep(time.Millisecond)
		return []*message.Message{m.made(msg, "clock", time.Now().String())}, nil
	case drops:
		return nil, nil
	case fails:
		return nil, router.Permanent(errors.New("broken"))
	case halves:
		return []*message.Message{m.made(msg, v+" header", "header "+v), m.made(msg, "refused", "refused "+v)}, nil
	}
	return []*message.Message{msg}, nil
}

// expected is what the current transform makes of a message: kinds and payloads, and how often.
func (m *mill) expected(s *sent) map[string]int {
	v := strconv.Itoa(m.version)
	switch m.mode {
	case splits:
		return map[string]int{v + " header|header " + v: 1, "part|part " + v: 2, "whole|" + string(s.payload): 1}
	case tags:
		return map[string]int{v + "|" + string(s.payload): 1}
	case writes:
		return map[string]int{"text|text " + v: 1}
	case clocks:
		return map[string]int{"clock|": 1}
	case passes:
		return map[string]int{"|" + string(s.payload): 1}
	}
	return nil
}

// deliver delivers a message once, and reports whether it was acked.
func (m *mill) deliver(s *sent, kill bool) (acked bool) {
	msg := message.NewMessage(s.endpoint+" "+s.id, bytes.Clone(s.payload))
	for key, value := range map[string]string{
		gateway.KeyEventType: string(gateway.EventMessageReceived), gateway.KeyMessageID: s.id,
		gateway.KeyReceivingEndpointID: s.endpoint, gateway.KeyContextID: s.context,
		gateway.KeyMessageType: s.kind, gateway.KeyFilename: s.filename,
	} {
		msg.Metadata[key] = value
	}
	base := context.Background()
	if s.place != "" {
		base = msgctx.With(base, msgctx.Value{Delivery: s.place})
		msg.SetContext(base)
	}
	if !kill {
		m.from.messages <- msg
		select {
		case <-msg.Acked():
			return true
		case <-msg.Nacked():
			return false
		}
	}
	hang := make(chan struct{})
	m.broker.hang = hang
	ctx, cancel := context.WithCancel(base)
	msg.SetContext(ctx)
	m.from.messages <- msg
	select {
	case <-hang:
		cancel()
		<-msg.Nacked()
	case <-msg.Acked(): // it did not come to the sink
		acked = true
	}
	cancel()
	m.broker.hang = nil
	m.stop()
	m.start()
	return acked
}

// history is what the oracle knows of one message.
type history struct {
	*sent
	handled bool           // it was acked as handled, and the store knows
	most    map[string]int // how often the sink may have what was made of it
	least   map[string]int // and has to
	vague   bool           // it was dropped as a repetition, or poisoned again: nobody can tell
	records map[int]int    // how often the record of a count was made
}

// oracle is the ledger.
type oracle struct {
	m    *mill
	all  []*history
	drop map[string]int // contents that are handled, by the start in which they were
}

func (o *oracle) content(s *sent) string {
	return strings.Join([]string{s.endpoint, s.context, s.kind, s.filename, string(s.payload)}, "|")
}

// alike reports whether all payloads under the context ID are equal, as far as the gateway sent
// them.
func (o *oracle) alike(s *sent) bool {
	for _, h := range o.all {
		if h.place == "" && h.endpoint == s.endpoint && h.context == s.context && !bytes.Equal(h.payload, s.payload) {
			return false
		}
	}
	return true
}

// made counts what the transform makes in the delivery, or in a replay: it may be there, or has to be.
func (o *oracle) made(h *history, replay int, must bool) {
	for key, n := range o.m.expected(h.sent) {
		if must {
			h.least[key] = max(h.least[key], n)
		}
		if key == "clock|" {
			h.most[key]++ // another one each time
			continue
		}
		key = fmt.Sprint(replay, " ", key)
		h.most[key] = max(h.most[key], n)
	}
	if o.m.mode == halves {
		v := strconv.Itoa(o.m.version)
		h.most[fmt.Sprint(replay, " ", v, " header|header ", v)] = 1
	}
}

// deliver delivers a message and says what has to be there after that.
func (o *oracle) deliver(h *history, kill, lose bool) {
	m := o.m
	before, inQueue := len(m.broker.in("out")), len(m.broker.in("poison"))
	m.store.lose = lose
	acked := m.deliver(h.sent, kill)
	m.store.lose = false
	after, queued := len(m.broker.in("out")), len(m.broker.in("poison"))
	grown := after > before || queued > inQueue
	_, repetition := o.drop[o.content(h.sent)]
	repetition = repetition && h.place == "" // a place has one message only
	small := len(h.payload) < partSize
	// What was seen under the context ID is forgotten at a restart.
	mayDrop := repetition && small && (o.alike(h.sent) || m.starts > 1)
	switch {
	case h.vague:
		o.made(h, 0, false)
		return
	case h.handled:
		if grown {
			o.failf("%v was handled, and made something when it came again", h.sent)
		}
		return
	case repetition && small && o.alike(h.sent) && acked && !m.rejects && !kill && grown:
		o.failf("%v is a repetition of what was handled, and made something", h.sent)
	case !acked:
		if queued > inQueue { // the queue's ack was lost
			h.records[1]++
		}
		if !m.rejects {
			o.made(h, 0, false)
		}
		return
	case m.rejects:
		if grown {
			o.failf("%v was filtered, and made something", h.sent)
		}
		h.vague = mayDrop // before the filter was asked
		return
	}
	if !grown && mayDrop {
		h.handled = h.records[1] == 0 && !lose
		h.vague = !h.handled
		return
	}
	switch m.mode {
	case fails, halves:
		o.made(h, 0, false)
		h.records[1]++
		o.record(h, 1)
		return
	case clocks:
		if lose && !kill {
			break // the next delivery makes another one
		}
	}
	o.made(h, 0, true)
	if !lose {
		h.handled = true
		if small && h.place == "" {
			o.drop[o.content(h.sent)] = m.starts
		}
	}
}

// record looks for a record that has just been made: it has to be there if it is the first with its count.
func (o *oracle) record(h *history, count int) {
	n := 0
	for _, r := range o.m.broker.in("poison") {
		if r.Metadata[gateway.KeyMessageID] == h.id && r.Metadata[gateway.KeyReceivingEndpointID] == h.endpoint &&
			r.Metadata[router.KeyPoisonCount] == strconv.Itoa(count) {
			n++
		}
	}
	if n > 1 || n == 0 && h.records[count] == 1 {
		o.failf("%d records of %v with count %d, made %d times", n, h.sent, count, h.records[count])
	}
}

// replay replays one record, and kills the replay before it deletes it if it is to.
func (o *oracle) replay(kill bool) {
	m := o.m
	records := m.broker.in("poison")
	if len(records) == 0 {
		return
	}
	r := records[m.rand.IntN(len(records))]
	i := slices.IndexFunc(o.all, func(h *history) bool {
		return h.id == r.Metadata[gateway.KeyMessageID] && h.endpoint == r.Metadata[gateway.KeyReceivingEndpointID]
	})
	h := o.all[i]
	count, err := strconv.Atoi(r.Metadata[router.KeyPoisonCount])
	if err != nil {
		m.t.Fatal(err)
	}
	before := len(m.broker.in("out"))
	want := map[string]int{} // what was there, and what this replay makes for the first time
	for key, n := range m.expected(h.sent) {
		want[key] = o.count(h, key) + n - h.most[fmt.Sprint(count, " ", key)]
	}
	m.queue.keep = kill
	report, err := m.router.ReplaySelected(context.Background(), m.queue, router.PoisonSelection{IDs: []string{r.Metadata["place"]}})
	m.queue.keep = false
	_, getErr := m.queue.Get(context.Background(), r.Metadata["place"])
	there := getErr == nil
	switch {
	case h.vague:
		o.made(h, count, false)
	case h.handled:
		if len(m.broker.in("out")) != before || report.Duplicates != report.Sent && err == nil {
			o.failf("a replay of %v, which was handled, made something: %+v, %v", h.sent, report, err)
		}
	case m.rejects:
		if !errors.Is(err, router.ErrFiltered) || !there {
			o.failf("a replay of %v, which the filter rejects: %+v, %v, kept %v", h.sent, report, err, there)
		}
	case m.mode == fails || m.mode == halves:
		o.made(h, count, false)
		h.records[count+1]++
		o.record(h, count+1)
	default:
		if report.Duplicates > 0 || report.Sent != 1 && !kill {
			o.failf("a replay of %v: %+v, %v", h.sent, report, err)
		}
		o.made(h, count, true)
		for key, n := range want {
			if m.mode != clocks && o.count(h, key) < n {
				o.failf("a replay of %v left %d of %q, want %d", h.sent, o.count(h, key), key, n)
			}
		}
		if len(m.broker.in("out")) == before && m.mode != drops {
			o.failf("a replay of %v stored nothing", h.sent)
		}
		h.handled = true
		if len(h.payload) < partSize && h.place == "" {
			o.drop[o.content(h.sent)] = m.starts
		}
	}
	if err == nil && there {
		o.failf("a replay of %v left its record", h.sent)
	}
}

// count counts what is stored of a message.
func (o *oracle) count(h *history, key string) (n int) {
	for _, s := range o.m.broker.in("out") {
		if s.Metadata[gateway.KeyMessageID] == h.id && s.Metadata[gateway.KeyReceivingEndpointID] == h.endpoint &&
			(s.Metadata["kind"]+"|"+string(s.Payload) == key || key == "clock|" && s.Metadata["kind"] == "clock") {
			n++
		}
	}
	return n
}

// check compares what is stored with what has to be, and may be.
func (o *oracle) check() {
	for _, h := range o.all {
		for key, n := range h.least {
			if got := o.count(h, key); got < n {
				o.failf("%v: %d of %q are stored, want %d", h.sent, got, key, n)
			}
		}
		most := map[string]int{}
		for key, n := range h.most {
			if _, of, ok := strings.Cut(key, " "); ok && key != "clock|" {
				key = of
			}
			most[key] += n
		}
		for key, n := range most {
			if got := o.count(h, key); got > n {
				o.failf("%v: %d of %q are stored, want %d at most", h.sent, got, key, n)
			}
		}
	}
}

func (o *oracle) failf(format string, args ...any) {
	o.m.t.Helper()
	o.m.t.Fatalf("%s\n%s", strings.Join(o.m.log, "\n"), fmt.Sprintf(format, args...))
}

func (s *sent) String() string {
	return fmt.Sprintf("%s/%s %s (context %s, %s %s, %d bytes %.8q)", s.endpoint, s.id, s.place, s.context, s.kind, s.filename, len(s.payload), s.payload)
}

// TestRandomPrograms runs random programs; see the flags -programs and -seed.
func TestRandomPrograms(t *testing.T) {
	t.Parallel()
	n := *programs
	for i := range n {
		name := strconv.FormatUint(*seed+uint64(i), 10)
		if !t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { run(t, *seed+uint64(i)) }) }) {
			t.Fatalf("run it alone with -seed %s -programs 1", name)
		}
	}
}

func run(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	memory, err := router.NewMemoryStore(router.MemoryStoreConfig{})
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{ids: map[string]bool{}, stored: map[string][]*message.Message{}, reject: "refused"}
	m := &mill{t: t, rand: random, store: &lossyStore{DedupStore: memory}, broker: b, queue: &queue{broker: b}}
	o := &oracle{m: m, drop: map[string]int{}}
	m.start()
	defer func() { m.stop() }()
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	send := func(s *sent) {
		s.id = strconv.Itoa(len(o.all) + 1)
		if random.IntN(8) == 0 && len(o.all) > 0 { // IDs are those of an endpoint
			id := o.all[len(o.all)-1].id
			if !slices.ContainsFunc(o.all, func(h *history) bool { return h.id == id && h.endpoint == s.endpoint }) {
				s.id = id
			}
		}
		h := &history{sent: s, most: map[string]int{}, least: map[string]int{}, records: map[int]int{}}
		o.all = append(o.all, h)
		kill, lose := random.IntN(8) == 0, random.IntN(8) == 0
		m.log = append(m.log, fmt.Sprintf("send %v, kill %v, lose the commit %v", s, kill, lose))
		o.deliver(h, kill, lose)
	}
	for range 5 + random.IntN(20) {
		switch op := random.IntN(12); op {
		case 0, 1, 2: // something new, or not so new
			send(&sent{
				endpoint: pick("e", "f"), context: pick("1", "2", "3"), kind: pick("shp", "json"), filename: pick("", "a.zip"),
				payload: []byte(pick("a", "b", "c")), place: pick("", "", fmt.Sprint("nats STREAM ", len(o.all))),
			})
		case 3: // a repetition
			if len(o.all) > 0 {
				s := *o.all[random.IntN(len(o.all))].sent
				if s.place != "" { // stored again, which is another place
					s.place = fmt.Sprint("nats STREAM ", len(o.all))
				}
				send(&s)
			}
		case 4: // a large payload in equal chunks
			contextID := fmt.Sprint("large ", len(o.all))
			for range 2 + random.IntN(2) {
				send(&sent{endpoint: "e", context: contextID, kind: "shp", payload: make([]byte, partSize)})
			}
			send(&sent{endpoint: "e", context: contextID, kind: "shp", payload: []byte("rest")})
		case 5, 6: // a redelivery, perhaps with a kill, a lost commit or lost acks
			if len(o.all) > 0 {
				h := o.all[random.IntN(len(o.all))]
				kill, lose := random.IntN(3) == 0, random.IntN(3) == 0
				m.log = append(m.log, fmt.Sprintf("deliver %v again, kill %v, lose the commit %v", h.sent, kill, lose))
				o.deliver(h, kill, lose)
			}
		case 7:
			m.broker.nacks = random.IntN(3)
			m.log = append(m.log, fmt.Sprintf("%d acks are lost", m.broker.nacks))
		case 8:
			m.version += random.IntN(2)
			if random.IntN(2) == 0 {
				m.mode = random.IntN(modes)
			}
			m.log = append(m.log, fmt.Sprintf("transform %d, version %d", m.mode, m.version))
		case 9:
			m.rejects = random.IntN(3) == 0
			m.log = append(m.log, fmt.Sprintf("the filter rejects: %v", m.rejects))
		case 10:
			kill := random.IntN(3) == 0
			m.log = append(m.log, fmt.Sprintf("replay, kill %v", kill))
			m.broker.nacks = 0
			o.replay(kill)
		case 11: // the operator drops a record
			if records := b.in("poison"); len(records) > 0 {
				r := records[random.IntN(len(records))]
				m.log = append(m.log, "drop the record of "+r.Metadata[gateway.KeyMessageID])
				if err := m.queue.Delete(context.Background(), r.Metadata["place"]); err != nil {
					t.Fatal(err)
				}
			}
		}
		o.check()
	}
}
