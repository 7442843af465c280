package identitytest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// These programs are about several subscriptions of one subscriber, which end and start again, and about what
// is confirmed meanwhile. What is confirmed, and what comes again, is judged by the ledger of the office alone.

const (
	officeTenant = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
	// wholeType is the type that is delivered as whole files.
	wholeType = "whole"
)

func officeID(n int) string { return fmt.Sprintf("6f0e3a0c-3a5e-4a6c-9b57-%012x", n) }

// unit is what a subscription gets: a message, or a file.
type unit struct {
	name     string // endpoint and IDs, as key gives them
	ids      []string
	endpoint string
	kind     string
	event    gateway.EventType
	text     string
	whole    bool // its file stands for it: it is never delivered,
	loose    bool // unless nobody has taken files for a while

	file      *unit         // of which it is a part
	sent      bool          // a stream has had it
	known     bool          // one of this process
	delivered bool          // to a subscription, once
	acked     bool          // by one
	refused   bool          // by one, in this process
	stored    bool          // in the quarantine, because everybody has refused it
	kept      bool          // what all subscriptions have left when they ended: it has to be acked again
	due       []*subscribed // who is to have it, and goes on
	left      []*subscribed // who ended without an ack since it came last
}

// subscribed is one subscription, from its beginning to its end.
type subscribed struct {
	name, topic string
	begun       int // counts the subscriptions
	end         context.CancelFunc
	done        chan struct{}

	mode  int // what its handler does
	held  []heldUnit
	got   map[*unit]bool
	acked map[*unit]bool
	// refused is what it got last time and did not want.
	refused map[*unit]bool
}

// answered reports whether it has handled or refused u.
func (s *subscribed) answered(u *unit) bool { return s.acked[u] || s.refused[u] }

type heldUnit struct {
	*message.Message
	of *unit
}

// What a handler does.
const (
	acks = iota
	holds
	nacks
	refuses
)

// office is a gateway in memory, and the ledger: it knows who has acked what.
type office struct {
	t    *testing.T
	rand *rand.Rand
	// unmatched says what happens to what everybody has refused.
	unmatched subscriber.Unmatched

	mu        sync.Mutex
	log       []string
	units     []*unit
	byName    map[string]*unit
	confirmed map[string]bool
	stream    *officeStream
	slots     []*subscribed
	next      int
	failed    bool
}

func (o *office) logf(format string, args ...any) {
	o.log = append(o.log, fmt.Sprintf("%8v  ", time.Since(bubbleStart).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// bubbleStart is when each bubble of package synctest begins.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// failLocked says what was wrong, once.
func (o *office) failLocked(format string, args ...any) {
	if !o.failed {
		o.failed = true
		o.t.Errorf("%s\n%s", strings.Join(o.log, "\n"), fmt.Sprintf(format, args...))
	}
}

// RoundTrip answers a request.
func (o *office) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int, kind string, body io.ReadCloser) (*http.Response, error) {
		return &http.Response{
			StatusCode: status, Status: http.StatusText(status), ProtoMajor: 1, ProtoMinor: 1, Request: r,
			Header: http.Header{"Content-Type": {kind}}, Body: body, ContentLength: -1,
		}, nil
	}
	text := func(status int, s string) (*http.Response, error) {
		return answer(status, "application/json", io.NopCloser(strings.NewReader(s)))
	}
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		_ = r.Body.Close()
	}
	switch r.URL.Path {
	case "/token":
		return text(http.StatusOK, `{"access_token":"token","token_type":"Bearer","expires_in":360000}`)
	case "/events":
		return answer(http.StatusOK, "text/event-stream", o.open(r.Context()))
	case "/confirmations":
		var list struct {
			Confirmations []struct {
				Message string `json:"message_id"`
			} `json:"confirmations"`
		}
		if err := json.Unmarshal(body, &list); err != nil {
			return nil, err
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, c := range list.Confirmations {
			o.confirmLocked(c.Message)
		}
		return text(http.StatusAccepted, "")
	}
	return text(http.StatusNotFound, "")
}

// officeStream is an open stream.
type officeStream struct {
	ctx   context.Context
	mu    sync.Mutex
	data  []byte
	over  bool
	fresh chan struct{}
}

func (s *officeStream) write(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data = append(s.data, text...)
	s.signalLocked()
}

func (s *officeStream) signalLocked() {
	close(s.fresh)
	s.fresh = make(chan struct{})
}

func (s *officeStream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.signalLocked()
	return nil
}

func (s *officeStream) Read(p []byte) (int, error) {
	for {
		s.mu.Lock()
		n, over, fresh := copy(p, s.data), s.over, s.fresh
		s.data = s.data[n:]
		s.mu.Unlock()
		switch {
		case over:
			return 0, io.ErrUnexpectedEOF
		case n > 0:
			return n, nil
		}
		select {
		case <-fresh:
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
}

// open opens a stream, which begins with what is not confirmed.
func (o *office) open(ctx context.Context) io.ReadCloser {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stream = &officeStream{ctx: ctx, fresh: make(chan struct{})}
	n := 0
	for _, u := range o.units {
		if u.sent && o.unconfirmedLocked(u) {
			o.emitLocked(u)
			n++
		}
	}
	o.logf("a stream is opened with %d units", n)
	return o.stream
}

func (o *office) unconfirmedLocked(u *unit) bool {
	return slices.ContainsFunc(u.ids, func(id string) bool { return !o.confirmed[id] })
}

// emitLocked puts a unit on the stream: it is due to all who take it.
func (o *office) emitLocked(u *unit) {
	u.sent = true
	if o.stream == nil {
		return
	}
	for _, s := range o.slots { // who begins later has it if it gets it
		if s != nil && !u.whole && !u.known && subscriber.Takes(s.topic, u.event, u.kind) {
			u.due = append(u.due, s)
		}
	}
	if u.known && !u.kept && o.takenLocked(u) { // it is up to those who go on
		u.left = nil
	}
	u.known = true
	u.loose = u.loose || !o.takesFilesLocked()
	o.stream.write(u.text)
}

// takenLocked reports whether there is who takes it.
func (o *office) takenLocked(u *unit) bool {
	return slices.ContainsFunc(o.slots, func(s *subscribed) bool { return s != nil && subscriber.Takes(s.topic, u.event, u.kind) })
}

func (o *office) takesFilesLocked() bool {
	return o.takenLocked(&unit{event: gateway.EventFileReceived, kind: wholeType})
}

// wantedLocked reports whether somebody has acked u, or what it is part of or made of, or whether
// what everybody refused may be confirmed.
func (o *office) wantedLocked(u *unit) bool {
	if u.acked || u.refused && (o.unmatched == subscriber.UnmatchedConfirm || u.stored) {
		return true
	}
	if !u.refused {
		return false
	}
	if u.event == gateway.EventMessageReceived {
		return u.file != nil && (u.file.acked || u.file.stored)
	}
	return !slices.ContainsFunc(o.units, func(part *unit) bool { return part.file == u && !part.acked && !part.stored })
}

// Publish is that of the quarantine.
func (o *office) Publish(_ string, messages ...*message.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, msg := range messages {
		ids := strings.Split(msg.Metadata[subscriber.KeyQuarantineMessageIDs], ",")
		for _, u := range o.units {
			if !slices.Equal(u.ids, ids) || string(u.event) != msg.Metadata[subscriber.KeyQuarantineEventType] {
				continue
			}
			o.logf("%s is quarantined", u.name)
			u.stored = true
			for _, s := range u.due {
				if s.got[u] && !s.refused[u] {
					o.failLocked("%s is quarantined, and %s has not refused it", u.name, s.name)
				}
			}
		}
	}
	return nil
}

// Close is that of the quarantine.
func (o *office) Close() error { return nil }

// confirmLocked judges a confirmation.
func (o *office) confirmLocked(id string) {
	if !o.confirmed[id] {
		o.logf("%s is confirmed", id[24:])
	}
	o.confirmed[id] = true
	for _, u := range o.units {
		if !u.sent || !slices.Contains(u.ids, id) {
			continue
		}
		gone := u.event == gateway.EventFileReceived && !o.unconfirmedLocked(u)
		if u.event == gateway.EventFileReceived && !o.takenLocked(u) {
			continue // those who are left get all of it in parts
		}
		switch {
		case u.delivered && !o.wantedLocked(u) && u.event == gateway.EventMessageReceived:
			o.failLocked("%s is confirmed by %s, and nobody has acked it", u.name, id[24:])
		case gone && !o.wantedLocked(u) && len(u.due) > 0:
			o.failLocked("%s never comes again, and nobody has acked it", u.name)
		case u.kept:
			o.failLocked("%s is confirmed by %s, and who left it when all ended has not got it", u.name, id[24:])
		case u.whole:
			continue
		}
		for _, s := range u.due {
			if !s.answered(u) && (gone || u.event == gateway.EventMessageReceived) {
				o.failLocked("%s is confirmed by %s, and %s has not acked it", u.name, id[24:], s.name)
			}
		}
	}
}

// send sends one message, or the parts of a payload, and returns its file.
func (o *office) send(kind, endpoint string, parts []string, numbered bool) (file *unit) {
	contextID := officeID(1<<20 + o.next)
	f := &unit{endpoint: endpoint, kind: kind, event: gateway.EventFileReceived}
	whole := strings.Join(parts, "")
	for i, payload := range parts {
		o.next++
		id, of := officeID(o.next), contextID
		if numbered {
			of += "-" + strconv.Itoa(i)
		}
		f.ids = append(f.ids, id)
		o.addLocked(&unit{
			ids: []string{id}, endpoint: endpoint, kind: kind, event: gateway.EventMessageReceived, whole: kind == wholeType && len(parts) > 1, file: f,
		}, map[string]any{"id": id, "app_message_id": of, "sent_at": "2026-01-01T00:00:00Z", "payload": []byte(payload)})
	}
	if len(parts) == 1 {
		o.units[len(o.units)-1].file = nil
		return nil
	}
	o.addLocked(f, map[string]any{"size": len(whole), "message_ids": f.ids, "payload": []byte(whole)})
	return f
}

func (o *office) addLocked(u *unit, fields map[string]any) {
	fields["event_type"], fields["receiving_endpoint_id"], fields["message_type"], fields["tenant_id"] = u.event, u.endpoint, u.kind, officeTenant
	data := testkit.Must(json.Marshal(fields))(o.t)
	ids := slices.Clone(u.ids)
	slices.Sort(ids)
	u.name = u.endpoint + " " + strings.Join(ids, ",")
	if u.event == gateway.EventFileReceived {
		u.name = "file " + u.name
	}
	u.text = fmt.Sprintf("event: %s\ndata: %s\n\n", u.event, data)
	o.units = append(o.units, u)
	o.byName[u.name] = u
}

// take is what a subscription does with a message.
func (o *office) take(s *subscribed, msg *message.Message) {
	name := key(msg.Metadata)
	if msg.Metadata[gateway.KeyEventType] == string(gateway.EventFileReceived) {
		name = "file " + name
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	u := o.byName[name]
	switch {
	case u == nil:
		o.failLocked("%s got %s, which nobody has sent", s.name, name)
		return
	case s.acked[u]:
		o.failLocked("%s got %s again, which it has acked", s.name, name)
	case u.whole && !u.loose:
		o.failLocked("%s got %s, which is a part of a file", s.name, name)
	}
	u.delivered, s.got[u] = true, true
	delete(s.refused, u)
	if u.event == gateway.EventMessageReceived && !slices.Contains(u.due, s) && slices.Contains(o.slots, s) {
		u.due = append(u.due, s)
	}
	switch s.mode {
	case acks:
		o.ackLocked(s, heldUnit{msg, u})
	case holds:
		o.logf("%s holds %s", s.name, name)
		s.held = append(s.held, heldUnit{msg, u})
	case nacks:
		msg.Nack()
	case refuses:
		if !subscriber.Refuse(msg) {
			o.failLocked("%s cannot refuse %s", s.name, name)
		}
		if msg.Ack() {
			o.logf("%s refuses %s", s.name, name)
			s.refused[u], u.refused, u.kept, u.left = true, true, false, nil
		}
	}
}

func (o *office) ackLocked(s *subscribed, h heldUnit) {
	if h.Ack() {
		o.logf("%s acks %s", s.name, h.of.name)
		s.acked[h.of], h.of.acked, h.of.kept, h.of.left = true, true, false, nil
	}
}

// begin makes a subscription.
func (o *office) begin(sub *subscriber.Subscriber, slot int, topic string, mode int) {
	ctx, cancel := context.WithCancel(context.Background())
	o.mu.Lock()
	o.next++
	s := &subscribed{
		name: fmt.Sprintf("subscription %d of %s", o.next, topic), topic: topic, begun: o.next,
		end: cancel, done: make(chan struct{}), mode: mode, got: map[*unit]bool{}, acked: map[*unit]bool{}, refused: map[*unit]bool{},
	}
	o.logf("%s begins with mode %d", s.name, mode)
	o.slots[slot] = s
	o.mu.Unlock()
	messages := testkit.Must(sub.Subscribe(ctx, topic))(o.t)
	go func() { // ends with the subscription
		defer close(s.done)
		for msg := range messages {
			o.take(s, msg)
		}
	}()
	synctest.Wait()
}

// finish ends a subscription.
func (o *office) finish(slot int) {
	o.mu.Lock()
	s := o.slots[slot]
	o.logf("%s ends", s.name)
	o.slots[slot] = nil
	others := slices.ContainsFunc(o.slots, func(s *subscribed) bool { return s != nil })
	for _, u := range o.units {
		if u.event == gateway.EventMessageReceived && s.got[u] && !s.answered(u) {
			u.left = append(u.left, s)
		}
		if !others && len(u.left) > 0 && o.unconfirmedLocked(u) {
			u.kept = true // until somebody acks it
		}
	}
	if !o.takesFilesLocked() {
		for _, u := range o.units {
			u.loose = true
		}
	}
	s.mode = nacks
	held := s.held
	s.held = nil
	for _, u := range o.units {
		u.due = slices.DeleteFunc(u.due, func(d *subscribed) bool { return d == s })
	}
	if !others {
		for _, u := range o.units {
			onItsWay := u.acked || u.refused || u.file != nil && (u.file.acked || u.file.refused) || u.event == gateway.EventFileReceived
			u.due, u.known = nil, u.known && onItsWay && !u.kept // then its confirmation may be
		}
	}
	o.mu.Unlock()
	s.end()
	for _, h := range held {
		h.Nack()
	}
	<-s.done
	synctest.Wait()
}

// TestSubscriptionPrograms runs random programs of subscriptions, a fifth of -programs; see also -seed.
func TestSubscriptionPrograms(t *testing.T) {
	t.Parallel()
	for i := range max(1, *programs/5) {
		name := strconv.FormatUint(*seed+uint64(i), 10)
		if !t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { subscriptionProgram(t, *seed+uint64(i), false) })
		}) {
			t.Fatalf("run it alone with -seed %s -programs 1", name)
		}
	}
}

// TestRefusalPrograms runs the same programs, a tenth of -programs, with handlers that refuse.
func TestRefusalPrograms(t *testing.T) {
	t.Parallel()
	for i := range max(1, *programs/10) {
		name := strconv.FormatUint(*seed+uint64(i), 10)
		if !t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { subscriptionProgram(t, *seed+uint64(i), true) })
		}) {
			t.Fatalf("run it alone with -seed %s -programs 1", name)
		}
	}
}

// TestPartGivenUpAlone is the program that found a part of a file that was given up alone, and was never
// confirmed: seeds are far between that do.
func TestPartGivenUpAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { subscriptionProgram(t, 10497, false) })
}

func subscriptionProgram(t *testing.T, seed uint64, refusing bool) {
	random := rand.New(rand.NewPCG(seed, 1))
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	o := &office{t: t, rand: random, byName: map[string]*unit{}, confirmed: map[string]bool{}, slots: make([]*subscribed, 3)}
	config := subscriber.Config{
		Files: []string{wholeType}, ChunkSize: partSize, RecentFor: 1000 * time.Hour, RecentConfirmed: 1000,
		MaxInFlight: []int{1, 3, 1000}[random.IntN(3)], Order: []subscriber.Order{subscriber.OrderByKey, subscriber.Unordered}[random.IntN(2)],
		Nack: subscriber.Backoff{Initial: 100 * time.Millisecond, Max: time.Second},
	}
	also := rand.New(rand.NewPCG(seed, 2)) // leaves the rest of the program as it is
	if refusing {
		o.unmatched = []subscriber.Unmatched{subscriber.UnmatchedConfirm, subscriber.UnmatchedQuarantine}[also.IntN(2)]
		config.Unmatched, config.Quarantine.Publisher = o.unmatched, o
	}
	o.logf("in flight %d, order %v, unmatched %v", config.MaxInFlight, config.Order, o.unmatched)
	var sub *subscriber.Subscriber
	var client *gateway.Client
	topics := []string{
		pick(subscriber.AllData, string(gateway.EventMessageReceived), string(gateway.EventFileReceived)),
		pick(subscriber.AllData, string(gateway.EventMessageReceived), string(gateway.EventFileReceived)), pick("shp", subscriber.AllData),
	}
	mode := func() int {
		m := []int{acks, acks, holds, nacks}[random.IntN(4)]
		if refusing && also.IntN(3) == 0 {
			m = refuses
		}
		return m
	}
	start := func() {
		client = testkit.Must(gateway.New(gateway.Config{
			BaseURL: "https://gateway.example", TokenURL: "https://gateway.example/token", ClientID: "id", ClientSecret: "secret", Transport: o,
		}))(t)
		ready := make(chan struct{})
		config.Client, config.Ready = client, ready
		sub = testkit.Must(subscriber.New(config, nil))(t)
		first := random.IntN(len(topics))
		for i, topic := range topics {
			if i == first || random.IntN(3) > 0 {
				o.begin(sub, i, topic, mode())
			}
		}
		close(ready)
		synctest.Wait()
	}
	stop := func() {
		o.mu.Lock()
		o.logf("the process ends")
		o.mu.Unlock()
		_ = sub.Close() // what is not acked is left
		_ = client.Close()
		o.mu.Lock()
		for _, u := range o.units {
			u.due, u.left, u.known, u.delivered, u.kept, u.refused = nil, nil, false, false, false, false
		}
		clear(o.slots)
		o.stream = nil
		o.mu.Unlock()
		synctest.Wait()
	}
	start()
	defer func() { stop() }()
	var files []*unit // that have not come yet
	come := func() {
		o.mu.Lock()
		for _, f := range files {
			o.logf("%s comes", f.name)
			o.emitLocked(f)
		}
		o.mu.Unlock()
		files = nil
		synctest.Wait()
	}
	for range 5 + random.IntN(20) {
		slot := random.IntN(len(o.slots))
		s := o.slots[slot]
		switch op := random.IntN(12); op {
		case 0, 1, 2: // something is sent
			parts := []string{"small"}
			kind := pick("shp", "shp", wholeType)
			large := strings.Repeat("x", partSize)
			switch random.IntN(3) {
			case 0:
				parts = []string{large, large, "rest"}
			case 1:
				if kind == wholeType {
					parts = []string{"a", "b", "c"}
				}
			}
			o.mu.Lock()
			first := len(o.units)
			f := o.send(kind, officeID(1<<30+random.IntN(2)), parts, random.IntN(2) == 0)
			o.logf("%s in %d parts is sent", kind, len(parts))
			for _, u := range o.units[first:] {
				if u != f {
					o.emitLocked(u)
				}
			}
			late := f != nil && kind == wholeType && random.IntN(2) == 0
			if f != nil && !late {
				o.emitLocked(f)
			}
			o.mu.Unlock()
			synctest.Wait()
			if late {
				files = append(files, f)
				time.Sleep(time.Duration(random.IntN(30)) * time.Second)
				come()
			}
		case 3, 4: // a handler does something else
			if s != nil {
				o.mu.Lock()
				s.mode = mode()
				o.logf("%s has mode %d", s.name, s.mode)
				held := s.held
				if s.mode != holds {
					s.held = nil
					for _, h := range held {
						if s.mode == acks {
							o.ackLocked(s, h)
						} else {
							h.Nack()
						}
					}
				}
				o.mu.Unlock()
			}
		case 5, 6: // it ends, or begins again
			if s != nil {
				o.finish(slot)
			} else {
				o.begin(sub, slot, topics[slot], mode())
			}
		case 7, 8:
			time.Sleep(time.Duration(random.IntN(15_000)) * time.Millisecond)
		case 9: // the stream is cut
			o.mu.Lock()
			o.logf("the stream is cut")
			stream := o.stream
			o.stream = nil
			o.mu.Unlock()
			if stream != nil {
				_ = stream.Close()
			}
			time.Sleep(time.Minute)
		case 10:
			if random.IntN(3) == 0 {
				stop()
				start()
			}
		case 11:
			synctest.Wait()
		}
		synctest.Wait()
		if o.failed {
			return
		}
	}
	// Those that are left have to get on alone.
	if !slices.ContainsFunc(o.slots, func(s *subscribed) bool { return s != nil }) {
		o.begin(sub, 0, topics[0], acks)
	}
	o.mu.Lock()
	o.logf("all handlers ack")
	for _, s := range o.slots {
		if s != nil {
			s.mode = acks
			for _, h := range s.held {
				o.ackLocked(s, h)
			}
			s.held = nil
		}
	}
	o.mu.Unlock()
	if config.MaxInFlight == 1000 { // nothing is left for want of room: no other stream has to bring it again
		time.Sleep(time.Minute)
		synctest.Wait()
		o.mu.Lock()
		for _, u := range o.units {
			if u.known && u.acked && u.file == nil && len(u.ids) == 1 && !u.loose && o.takenLocked(u) && !o.confirmed[u.ids[0]] {
				o.failLocked("%s is not confirmed, and everybody has acked it", u.name)
			}
		}
		o.mu.Unlock()
	}
	time.Sleep(5 * time.Minute)
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, u := range o.units {
		for _, s := range u.due {
			if !s.answered(u) && !u.whole {
				o.failLocked("%s has not got %s", s.name, u.name)
			}
		}
		for _, id := range u.ids {
			free := true
			for _, other := range o.units {
				if slices.Contains(other.ids, id) && !o.takenLocked(other) {
					free = false
				}
			}
			if free && o.takenLocked(u) && !o.confirmed[id] {
				o.failLocked("%s is not confirmed, and everybody has acked it: %s", id[24:], u.name)
			}
		}
	}
}
