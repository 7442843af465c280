package identitytest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

var (
	programs = flag.Int("programs", 400, "how many random programs are run in memory")
	seed     = flag.Uint64("seed", 1, "the seed of the first program")
)

// partSize is the size of the parts of large payloads, below which none is a chunk.
const partSize = 64

// refused begins payloads that the sink refuses for good.
const refused = "refused"

var errKilled = errors.New("killed")

// sent is a message that the gateway has for an endpoint, or a broker at a place.
type sent struct {
	id, endpoint, context, kind, filename string // the IDs of a file, sorted
	file                                  bool
	place                                 string // empty if it comes from the gateway
	payload                               []byte
}

// stored is a message that a sink has.
type stored struct {
	topic string
	copy  bool // a reader knows it by its name
	*message.Message
}

// of reports whether a message is the one that was sent, or was made of it.
func (s *sent) of(meta message.Metadata) bool {
	if s.endpoint != meta[gateway.KeyReceivingEndpointID] {
		return false
	}
	if s.file {
		ids := strings.Split(meta[gateway.KeyMessageIDs], ",")
		slices.Sort(ids)
		return s.id == strings.Join(ids, ",")
	}
	return s.id == meta[gateway.KeyMessageID] && meta[gateway.KeyMessageIDs] == ""
}

// What became of a delivery.
const (
	notAcked outcome = iota // and nobody knows how far it came
	acked                   // or killed between the commit and the ack
	absorbed                // the subscriber knows that it has it
)

type outcome int

// fault is what goes wrong when messages are delivered.
type fault struct {
	kill int  // where the program is killed, one of the kill… constants; 0: it is not
	skip int  // so many times it comes to that place unharmed
	lose bool // the store misses the commits
}

// Where a program is killed.
const (
	killBefore = iota + 1 // the sink has not stored it
	killStored            // the sink has stored it
	killCommit            // the sink has acknowledged it, the store has not committed it
	killAck               // the store has committed it
	killPoints
)

func (f fault) String() string {
	where := [...]string{"no kill", "kill before it is stored", "kill when it is stored", "kill before the commit", "kill after the commit"}[f.kill]
	if f.skip > 0 {
		where += fmt.Sprintf(" of the message after %d others", f.skip)
	}
	if f.lose {
		where += ", lose the commit"
	}
	return where
}

// world is what a program runs in.
type world interface {
	// start starts the program, and returns the messages that were delivered again by that,
	// as endpoint and ID.
	start() []string
	running() bool
	stop()
	router() *router.Router
	// arm says what is to go wrong with what is sent or delivered from now on.
	arm(f fault)
	// send sends a group of messages to one endpoint, or under the same ID to both, and returns
	// what is delivered of it.
	send(group []*sent, both bool) []*sent
	// again delivers a message again.
	again(s *sent)
	// await waits until the messages, which were sent, are delivered. After a kill the program
	// does not run.
	await(group []*sent) []outcome
	// loseAcks has n acknowledgments of the sink lost.
	loseAcks(n int)
	// out returns what the sink has, as a reader knows it.
	out() []*stored
}

// queue is the poison queue.
type queue struct {
	router.PoisonStore
	keep bool // a replay is killed before it deletes
}

func (q *queue) Delete(ctx context.Context, id string) error {
	if q.keep {
		return errKilled
	}
	return q.PoisonStore.Delete(ctx, id)
}

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
	world   world
	queue   *queue
	topic   string
	mode    int
	version int
	rejects bool // the filter
	sends   bool // the route leads to the gateway, whose receivers know copies by payload, sender and recipients
	starts  int
	// together says that groups of messages are sent together, and to several endpoints.
	together bool
	log      []string
}

// route is the route under test.
func (m *mill) route(from message.Subscriber, to sinks.Sink) router.Route {
	return router.Route{
		Name: "farm", From: from, Topic: "ALL_DATA", To: to,
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			made, err := m.transform(msg)
			if m.sends {
				made = m.address(msg, made)
			}
			return made, err
		},
		Filter:    func(*message.Message) (bool, error) { return !m.rejects, nil },
		TopicFunc: func(*message.Message) (string, error) { return m.topic, nil },
	}
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
		return []*message.Message{m.made(msg, v+" header", "header "+v), m.made(msg, "refused", refused+" "+v)}, nil
	}
	return []*message.Message{msg}, nil
}

// expected is what the current transform makes of a message: topics, kinds and payloads, and how often.
func (m *mill) expected(s *sent) map[string]int {
	made := m.makes(s)
	if m.sends { // equal parts for the same recipients are one
		for key := range made {
			made[key] = 1
		}
	}
	return made
}

func (m *mill) makes(s *sent) map[string]int {
	v, t := strconv.Itoa(m.version), m.topic+"|"
	switch m.mode {
	case splits:
		return map[string]int{t + v + " header|header " + v: 1, t + "part|part " + v: 2, t + "whole|" + string(s.payload): 1}
	case tags:
		return map[string]int{t + v + "|" + string(s.payload): 1}
	case writes:
		return map[string]int{t + "text|text " + v: 1}
	case clocks:
		return map[string]int{t + clock: 1}
	case passes:
		return map[string]int{t + "|" + string(s.payload): 1}
	}
	return nil
}

// clock ends the keys of messages with the time, which stands for any of them.
const clock = "clock|"

// isClock reports whether a key, with or without the number of a replay, is one of those.
func isClock(key string) bool { return strings.HasSuffix(key, "|"+clock) }

func (m *mill) records() (list []router.Poisoned) {
	for p, err := range m.queue.Messages(context.Background()) {
		if err != nil {
			m.t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// history is what the oracle knows of one message.
type history struct {
	*sent
	handled bool           // it was acked as handled, and the store knows
	acked   bool           // once
	most    map[string]int // how often the sink may have what was made of it
	least   map[string]int // and has to
	vague   bool           // it was dropped as a repetition, or poisoned again: nobody can tell
	records map[int]int    // how often the record of a count was made
}

// oracle is the ledger.
type oracle struct {
	m       *mill
	all     []*history
	drop    map[string]int // contents that are handled, by the start in which they were
	out     []*stored      // what the sink has
	records []router.Poisoned
}

func (o *oracle) content(s *sent) string {
	return strings.Join([]string{s.endpoint, s.context, s.kind, s.filename, string(s.payload)}, "|")
}

// small reports whether a sender's repetition of the message can be told.
func small(s *sent) bool { return len(s.payload) < partSize && !s.file }

// alike reports whether all payloads under the context ID are equal, as far as the gateway sent
// them.
func (o *oracle) alike(s *sent) bool {
	for _, h := range o.all {
		if h.place == "" && !h.file && h.endpoint == s.endpoint && h.context == s.context && !bytes.Equal(h.payload, s.payload) {
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
		if isClock(key) {
			h.most[key]++ // another one each time
			continue
		}
		key = fmt.Sprint(replay, " ", key)
		h.most[key] = max(h.most[key], n)
	}
	if o.m.mode == halves {
		v := strconv.Itoa(o.m.version)
		h.most[fmt.Sprint(replay, " ", o.m.topic, "|", v, " header|header ", v)] = 1
	}
}

// look takes in what there is.
func (o *oracle) look() {
	o.out, o.records = o.m.world.out(), o.m.records()
}

// seen is how much there is of a message.
type seen struct{ out, copies, records int }

func (o *oracle) seen(h *history) (n seen) {
	for _, s := range o.out {
		if h.of(s.Metadata) {
			n.out++
			if s.copy {
				n.copies++
			}
		}
	}
	for _, r := range o.records {
		if h.of(r.Message.Metadata) {
			n.records++
		}
	}
	return n
}

func (o *oracle) logf(format string, args ...any) {
	o.m.log = append(o.m.log, fmt.Sprintf(format, args...))
}

// up starts the program if it does not run. What it gets again by that is delivered.
func (o *oracle) up() (redelivered []string) {
	if o.m.world.running() {
		return nil
	}
	before := map[*history]seen{}
	for _, h := range o.all {
		before[h] = o.seen(h)
	}
	o.m.starts++
	redelivered = o.m.world.start()
	o.logf("started, %d messages are delivered again", len(redelivered))
	o.look()
	for _, h := range o.all {
		if slices.Contains(redelivered, h.endpoint+" "+h.id) {
			o.judge(h, fault{}, before[h], acked)
		}
	}
	return redelivered
}

// send sends messages and has them delivered.
func (o *oracle) send(f fault, group ...*sent) {
	o.up()
	// Messages of several endpoints are handled at the same time: a kill would hit any of them.
	both := o.m.together && f.kill == 0 && o.m.rand.IntN(4) == 0
	o.logf("send %v, both %v, %v", group, both, f)
	o.m.world.arm(f)
	var list []*history
	for _, s := range o.m.world.send(group, both) {
		list = append(list, o.add(s))
	}
	o.await(f, make([]seen, len(list)), list...)
}

func (o *oracle) add(s *sent) *history {
	h := &history{sent: s, most: map[string]int{}, least: map[string]int{}, records: map[int]int{}}
	o.all = append(o.all, h)
	return h
}

// await waits for deliveries and says what has to be there after that.
func (o *oracle) await(f fault, before []seen, list ...*history) {
	var group []*sent
	for _, h := range list {
		group = append(group, h.sent)
	}
	outcomes := o.m.world.await(group)
	o.look()
	for i, h := range list {
		o.judge(h, f, before[i], outcomes[i])
	}
}

// again delivers a message again, to a program that was started again if it is to be killed,
// together with one that is new if there is one.
func (o *oracle) again(f fault, restart bool, h *history, marker *sent) {
	if restart {
		o.m.world.stop()
	}
	if slices.Contains(o.up(), h.endpoint+" "+h.id) {
		return
	}
	o.logf("deliver %v again, %v", h.sent, f)
	o.m.world.arm(f)
	list, before := []*history{h}, []seen{o.seen(h), {}}
	o.m.world.again(h.sent)
	if marker != nil {
		o.logf("and send %v", marker)
		list = append(list, o.add(o.m.world.send([]*sent{marker}, false)[0]))
	}
	o.await(f, before[:len(list)], list...)
}

// judge judges a delivery.
func (o *oracle) judge(h *history, f fault, before seen, result outcome) {
	m := o.m
	after := o.seen(h)
	grown := after.out > before.out || after.records > before.records
	_, repetition := o.drop[o.content(h.sent)]
	repetition = repetition && h.place == "" && !h.file // a place has one message only
	// What was seen under the context ID is forgotten at a restart.
	mayDrop := repetition && small(h.sent) && (o.alike(h.sent) || m.starts > 1)
	h.acked = h.acked || result == acked
	switch {
	case result == absorbed:
		if grown {
			o.failf("%v was absorbed, and made something", h.sent)
		}
		return
	case h.vague:
		o.made(h, 0, false)
		return
	case h.handled:
		if grown {
			o.failf("%v was handled, and made something when it came again", h.sent)
		}
		return
	case repetition && small(h.sent) && o.alike(h.sent) && result == acked && !m.rejects && f.kill == 0 && grown:
		o.failf("%v is a repetition of what was handled, and made something", h.sent)
	case result == notAcked:
		if after.records > before.records { // the queue's ack was lost
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
		h.handled = h.records[1] == 0 && !f.lose
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
		if f.lose && f.kill == 0 {
			break // the next delivery makes another one
		}
	}
	o.made(h, 0, true)
	if !f.lose {
		h.handled = true
		if small(h.sent) && h.place == "" {
			o.drop[o.content(h.sent)] = m.starts
		}
	}
}

// record looks for a record that has just been made: it has to be there if it is the first with its count.
func (o *oracle) record(h *history, count int) {
	n := 0
	for _, r := range o.records {
		if h.of(r.Message.Metadata) && r.Count == count {
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
	o.up()
	if len(o.records) == 0 {
		return
	}
	m.world.arm(fault{})
	r := o.records[m.rand.IntN(len(o.records))]
	h := o.all[slices.IndexFunc(o.all, func(h *history) bool { return h.of(r.Message.Metadata) })]
	count := r.Count
	before := len(o.out)
	want := map[string]int{} // what was there, and what this replay makes for the first time
	for key, n := range m.expected(h.sent) {
		want[key] = o.count(h, key) + n - h.most[fmt.Sprint(count, " ", key)]
	}
	o.logf("replay record %d of %v, kill %v", count, h.sent, kill)
	m.queue.keep = kill
	report, err := m.world.router().Replay(context.Background(), m.queue, router.PoisonSelection{IDs: []string{r.ID}})
	m.queue.keep = false
	_, getErr := m.queue.Get(context.Background(), r.ID)
	there := getErr == nil
	o.look()
	switch {
	case h.vague:
		o.made(h, count, false)
	case h.handled:
		if len(o.out) != before || report.Duplicates != report.Sent && err == nil {
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
			if m.mode != clocks && !m.sends && o.count(h, key) < n { // a receiver takes it for the attempt before
				o.failf("a replay of %v left %d of %q, want %d", h.sent, o.count(h, key), key, n)
			}
		}
		if len(o.out) == before && m.mode != drops {
			o.failf("a replay of %v stored nothing", h.sent)
		}
		h.handled = true
		if small(h.sent) && h.place == "" {
			o.drop[o.content(h.sent)] = m.starts
		}
	}
	if err == nil && there {
		o.failf("a replay of %v left its record", h.sent)
	}
}

// count counts what is stored of a message.
func (o *oracle) count(h *history, key string) (n int) {
	for _, s := range o.out {
		what := s.topic + "|" + s.Metadata["kind"] + "|"
		if h.of(s.Metadata) && !s.copy && (what+string(s.Payload) == key || isClock(key) && what == key) {
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
			if _, of, ok := strings.Cut(key, " "); ok && !isClock(key) {
				key = of
			}
			most[key] += n
		}
		total := 0
		for key, n := range most {
			got := o.count(h, key)
			total += got
			if got > n {
				o.failf("%v: %d of %q are stored, want %d at most", h.sent, got, key, n)
			}
		}
		if n := o.seen(h); n.out-n.copies != total {
			o.failf("%v: %d messages are stored of it, of which nothing makes %d", h.sent, n.out-n.copies, n.out-n.copies-total)
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
		if !t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run(t, *seed+uint64(i), func(m *mill) world { return newMemory(m) })
			})
		}) {
			t.Fatalf("run it alone with -seed %s -programs 1", name)
		}
	}
}

// run runs one program in a world, and returns its ledger.
func run(t *testing.T, seed uint64, in func(*mill) world) *oracle {
	random := rand.New(rand.NewPCG(seed, 0))
	m := &mill{t: t, rand: random, topic: "out"}
	m.world = in(m)
	_, alone := m.world.(*memory)
	m.together = !alone
	o := &oracle{m: m, drop: map[string]int{}}
	o.look()
	o.up()
	defer m.world.stop()
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	faulty := func(n int) (f fault) {
		if random.IntN(n) == 0 {
			f.kill, f.skip = 1+random.IntN(killPoints-1), max(0, random.IntN(6)-2)
		}
		f.lose = random.IntN(n) == 0
		return f
	}
	place := func() string { return pick("", "", fmt.Sprint("nats STREAM ", len(o.all))) }
	if !alone {
		place = func() string { return "" } // its source is the gateway
	}
	for range 5 + random.IntN(20) {
		switch op := random.IntN(13); op {
		case 0, 1, 2: // something new, or not so new
			o.send(faulty(8), &sent{
				endpoint: pick("e", "f"), context: pick("1", "2", "3"), kind: pick("shp", "json"), filename: pick("", "a.zip"),
				payload: []byte(pick("a", "b", "c")), place: place(),
			})
		case 3: // a repetition
			if len(o.all) > 0 {
				s := *o.all[random.IntN(len(o.all))].sent
				if s.file {
					break
				}
				if s.place != "" { // stored again, which is another place
					s.place = fmt.Sprint("nats STREAM ", len(o.all))
				}
				o.send(faulty(8), &s)
			}
		case 4: // a large payload in equal chunks
			contextID := fmt.Sprint("large ", len(o.all))
			var group []*sent
			for range 2 + random.IntN(2) {
				group = append(group, &sent{endpoint: "e", context: contextID, kind: "shp", payload: make([]byte, partSize)})
			}
			group = append(group, &sent{endpoint: "e", context: contextID, kind: "shp", payload: []byte("rest")})
			if !alone {
				o.send(faulty(8), group...)
				break
			}
			for _, s := range group {
				o.send(faulty(8), s)
			}
		case 5, 6: // a redelivery, perhaps with a kill, a lost commit or lost acks
			if len(o.all) > 0 {
				h, f := o.all[random.IntN(len(o.all))], faulty(3)
				restart := !alone && (f.kill != 0 || random.IntN(2) == 0)
				var marker *sent
				if !alone && !restart {
					marker = &sent{endpoint: h.endpoint, context: fmt.Sprint("marker ", len(o.all)), kind: "json", payload: []byte("marker")}
				}
				o.again(f, restart, h, marker)
			}
		case 7:
			n := random.IntN(3)
			m.world.loseAcks(n)
			o.logf("%d acks are lost", n)
		case 8:
			m.version += random.IntN(2)
			if random.IntN(2) == 0 {
				m.mode = random.IntN(modes)
			}
			m.topic = pick("out", "out", "out", "other")
			o.logf("transform %d, version %d, topic %s", m.mode, m.version, m.topic)
		case 9:
			m.rejects = random.IntN(3) == 0
			o.logf("the filter rejects: %v", m.rejects)
		case 10:
			m.world.loseAcks(0)
			o.replay(random.IntN(3) == 0)
		case 11: // the operator drops a record
			if len(o.records) > 0 {
				r := o.records[random.IntN(len(o.records))]
				o.logf("drop the record %d of %s", r.Count, r.Message.Metadata[gateway.KeyMessageID])
				testkit.NoError(t, m.queue.Delete(context.Background(), r.ID))
				o.look()
			}
		case 12: // a restart
			o.logf("stop")
			m.world.stop()
			o.up()
		}
		o.check()
	}
	return o
}
