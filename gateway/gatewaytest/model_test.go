package gatewaytest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Random sends, streams, reads and confirmations against a model: a stream gets
// what was not confirmed when it was opened, in order, and then everything that
// came after. What is confirmed before the stream comes to it may be left out.
// The feed is compacted many times meanwhile.
func TestFeedAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s, c := start(t, gatewaytest.Config{})
	sender, receiver := pairOf(s)

	m := model{t: t, confirmed: map[string]bool{}}
	for range 3000 {
		switch op := random.IntN(100); {
		case op < 50:
			ids := testkit.Must(s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeA, Payload: []byte("x")}))(t)
			m.sent(ids[0])
		case op < 55 && len(m.streams) < 4:
			m.opened(c.listen(""))
		case op < 58 && len(m.streams) > 0:
			i := random.IntN(len(m.streams))
			m.streams[i].close()
			m.streams = slices.Delete(m.streams, i, i+1)
		case op < 80 && len(m.streams) > 0:
			m.read(m.streams[random.IntN(len(m.streams))], random)
		default:
			if batch := m.confirmSome(random, receiver.ID); len(batch) > 0 {
				want(t, c.confirm(batch...), http.StatusAccepted)
			}
		}
	}
	m.opened(c.listen(""))
	s.EmitRaw(c.app, []byte("event: marker\ndata: {\"event_type\":\"marker\"}\n\n"))
	for _, st := range m.streams {
		for e := st.mustRead(); e.name != "marker"; e = st.mustRead() {
			m.check(st, e)
		}
		for _, id := range st.expected {
			if !m.confirmed[id] {
				t.Errorf("message %s is missing", id)
			}
		}
	}
}

type model struct {
	t           *testing.T
	streams     []*modelStream
	unconfirmed []string
	confirmed   map[string]bool
}

type modelStream struct {
	*listener
	expected []string // message IDs not read yet
}

func (m *model) sent(id string) {
	m.unconfirmed = append(m.unconfirmed, id)
	for _, st := range m.streams {
		st.expected = append(st.expected, id)
	}
}

func (m *model) opened(l *listener) {
	m.streams = append(m.streams, &modelStream{l, slices.Clone(m.unconfirmed)})
}

// read reads up to a message that is certain to come.
func (m *model) read(st *modelStream, random *rand.Rand) {
	var certain []string
	for _, id := range st.expected {
		if !m.confirmed[id] {
			certain = append(certain, id)
		}
	}
	if len(certain) == 0 {
		return
	}
	for target := certain[random.IntN(len(certain))]; slices.Contains(st.expected, target); {
		m.check(st, st.mustRead())
	}
}

// check takes the event off the expected ones; those before it must be confirmed.
func (m *model) check(st *modelStream, e event) {
	m.t.Helper()
	i := slices.Index(st.expected, e.text("id"))
	if i < 0 {
		m.t.Fatalf("unexpected event %s", e.raw)
	}
	for _, left := range st.expected[:i] {
		if !m.confirmed[left] {
			m.t.Fatalf("message %s came before %s", e.text("id"), left)
		}
	}
	st.expected = st.expected[i+1:]
}

func (m *model) confirmSome(random *rand.Rand, endpoint string) (batch []gateway.MessageConfirmation) {
	for n := random.IntN(10); n >= 0 && len(m.unconfirmed) > 0; n-- {
		i := random.IntN(len(m.unconfirmed))
		batch = append(batch, gateway.MessageConfirmation{MessageID: m.unconfirmed[i], EndpointID: endpoint})
		m.confirmed[m.unconfirmed[i]] = true
		m.unconfirmed = slices.Delete(m.unconfirmed, i, i+1)
	}
	return batch
}

// Senders, readers that confirm, cuts, restarts and a deletion at the same time:
// in the end everything is confirmed, nothing before it was delivered.
func TestManyAtOnce(t *testing.T) {
	s, c := start(t, gatewaytest.Config{ChunkSize: 100, InlineLimit: 150})
	sender, receiver := pairOf(s)
	const senders, messages = 4, 100 // of two chunks each
	var work sync.WaitGroup
	for n := range senders {
		work.Go(func() {
			for k := range messages {
				if _, err := s.Send(gatewaytest.SendRequest{
					From: sender.ID, MessageType: typeA, Payload: payloadOf(180), ContextID: fmt.Sprint(n, k),
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ctx, finish := context.WithCancel(testContext(t))
	defer finish()
	for range 3 {
		work.Go(func() {
			for ctx.Err() == nil {
				c.readAndConfirm(ctx)
			}
		})
	}
	work.Go(func() {
		for s.WaitStreams(ctx, 3) == nil {
			extra := s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{typeB}})
			s.SetRoute(sender.ID, extra.ID, false)
			s.DeleteEndpointByUser(extra.ID)
			s.RedeliverUnconfirmed()
			s.CutStreams()
		}
	})
	err := s.WaitConfirmed(ctx, senders*messages*2)
	finish()
	work.Wait()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range s.Ledger() {
		if e.EndpointID != receiver.ID || !e.Delivered() || e.ConfirmationSeqs[0] <= e.DeliverySeqs[0] {
			t.Fatalf("entry %+v", e)
		}
	}
}

// readAndConfirm reads one stream until it breaks and confirms what it reads.
func (c *caller) readAndConfirm(ctx context.Context) {
	res, err := c.http.Do(c.request("GET", "/events?types=MESSAGE_RECEIVED", nil, nil).WithContext(ctx))
	if err != nil {
		return // cut before the header
	}
	l := &listener{t: c.t, res: res, lines: newLineReader(res.Body), cancel: func() {}}
	defer l.close()
	for {
		e, err := l.read()
		if err != nil {
			return
		}
		body := fmt.Appendf(nil, `{"confirmations":[{"message_id":%q,"endpoint_id":%q}]}`, e.text("id"), e.text("receiving_endpoint_id"))
		r, err := c.send(c.request("POST", "/confirmations", body, map[string]string{
			"Content-Type": "application/json", gateway.KeyTenantID: c.tenant,
		}).WithContext(ctx))
		if ctx.Err() == nil && (err != nil || r.status != http.StatusAccepted) {
			c.t.Errorf("confirmation: %d, %v", r.status, err)
			return
		}
	}
}
