package router_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

var pipelinedSeeds = flag.Int("pipelined", 4, "random runs of TestPipelinedPrograms")

// lossySink stores messages of several keys one behind the other, each a moment after it got its
// place, as a broker in another place does. Some are refused, some are stored without an answer
// that says so, and some are lost while what is behind them is stored. It checks what it is given.
type lossySink struct {
	t    *testing.T
	wait func() time.Duration
	fate func(key string, n, attempt int) fate

	queue   chan place
	workers sync.WaitGroup
	closed  sync.Once

	mu       sync.Mutex
	attempts map[string]int
	stored   map[string][]storedCopy // by key, in the order of storing
	failed   map[string]map[int]bool // told, and not published again
	late     map[string]int          // published since then behind what failed
}

// fate is what becomes of one attempt.
type fate int

const (
	fateStored  fate = iota
	fateLost         // not stored, and it is known
	fateUntold       // stored, and the answer is lost
	fateRefused      // for good
	fateDown         // it does not even get a place
)

type place struct {
	key         string
	n, attempt  int
	overtaken   string
	fate        fate
	publication *sinks.Publication
}

type storedCopy struct {
	n         int
	overtaken bool
}

func newLossySink(t *testing.T, wait func() time.Duration, what func(key string, n, attempt int) fate) *lossySink {
	s := &lossySink{
		t: t, wait: wait, fate: what, queue: make(chan place, 1000),
		attempts: map[string]int{}, stored: map[string][]storedCopy{}, failed: map[string]map[int]bool{}, late: map[string]int{},
	}
	s.workers.Go(s.work) // ends with Close
	return s
}

func (s *lossySink) Describe() sinks.Description {
	return sinks.Description{Name: "lossy", Ordered: true, Pipelined: true}
}
func (*lossySink) CheckTopic(string) error { return nil }

func (s *lossySink) TopicSegment(v string) string { return sinks.DefaultSegments.Escape(v) }
func (s *lossySink) Health(context.Context) error { return nil }

func (s *lossySink) Close() error {
	s.closed.Do(func() { close(s.queue) })
	s.workers.Wait()
	return nil
}

func (s *lossySink) Publish(topic string, messages ...*message.Message) error {
	s.t.Errorf("%d messages were published without a place", len(messages))
	return errors.New("not wanted")
}

func (s *lossySink) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	key := msg.Metadata[gateway.KeyReceivingEndpointID]
	n, err := strconv.Atoi(string(msg.Payload))
	if err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := fmt.Sprint(key, "/", n)
	s.attempts[id]++
	failed := s.failed[key]
	for other := range failed {
		if other >= n {
			continue
		}
		// Of those behind it, one may have been on its way here when it was told.
		if s.late[key]++; s.late[key] > 1 {
			s.t.Errorf("message %d of a key was published after it was told that %d had failed", n, other)
		}
		break
	}
	what := s.fate(key, n, s.attempts[id])
	if what == fateDown {
		s.fail(key, n)
		return nil, sinks.NewError("lossy", topic, sinks.ErrUnavailable, nil)
	}
	delete(failed, n)
	p := &sinks.Publication{}
	s.queue <- place{key: key, n: n, attempt: s.attempts[id], overtaken: msg.Metadata[sinks.KeyOvertaken], fate: what, publication: p}
	return p, nil
}

// fail notes that n has to come again. s.mu is held.
func (s *lossySink) fail(key string, n int) {
	if s.failed[key] == nil {
		s.failed[key] = map[int]bool{}
	}
	s.failed[key][n] = true
	s.late[key] = 0
}

func (s *lossySink) work() {
	for p := range s.queue {
		<-time.After(s.wait())
		var err error
		s.mu.Lock()
		switch p.fate {
		case fateStored, fateUntold:
			s.stored[p.key] = append(s.stored[p.key], storedCopy{p.n, p.overtaken != ""})
		}
		switch p.fate {
		case fateLost, fateUntold:
			err = sinks.NewError("lossy", "topic", sinks.ErrUnavailable, nil)
		case fateRefused:
			err = sinks.NewError("lossy", "topic", sinks.ErrRejected, nil)
		}
		s.mu.Unlock()
		p.publication.Resolve(sinks.Receipt{}, err)
		s.mu.Lock()
		if (p.fate == fateLost || p.fate == fateUntold) && s.attempts[fmt.Sprint(p.key, "/", p.n)] == p.attempt {
			s.fail(p.key, p.n) // from now on it is known
		}
		s.mu.Unlock()
	}
}

// check returns how many messages are stored for the first time behind a later one of their
// key; all of them have to say so, unless the process that knew of it has ended.
func (s *lossySink) check(n int, refused map[string]bool, restarted bool) (overtakings int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, copies := range s.stored {
		seen := map[int]bool{}
		latest := -1
		for _, c := range copies {
			if !seen[c.n] && c.n < latest {
				overtakings++
				if !c.overtaken && !restarted { // nobody knows of it any longer
					s.t.Errorf("message %d is stored behind %d, and does not tell", c.n, latest)
				}
			}
			seen[c.n] = true
			latest = max(latest, c.n)
		}
		for i := range n {
			if seen[i] == refused[fmt.Sprint(key, "/", i)] {
				s.t.Errorf("message %d of a key: stored %v, refused %v", i, seen[i], !seen[i])
			}
		}
	}
	return overtakings
}

// run sends n messages to each of several receivers, through a route into the sink, until all are
// confirmed.
func (s *lossySink) run(keys, n int, refused map[string]bool, restart bool) subscriber.Stats {
	t := s.t
	t.Helper()
	const messageType = "app:test:json"
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	var receivers []string
	numbers := map[[sha256.Size]byte]int{}
	for i := range n {
		numbers[sha256.Sum256([]byte(strconv.Itoa(i)))] = i
	}
	for i := range keys {
		e := server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint("receiver ", i), Receive: []string{messageType}})
		receivers = append(receivers, e.ID)
	}
	server.OnConfirm(func(e gatewaytest.LedgerEntry) {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := numbers[e.SHA256]
		if refused[fmt.Sprint(e.EndpointID, "/", i)] {
			return
		}
		if !slices.ContainsFunc(s.stored[e.EndpointID], func(c storedCopy) bool { return c.n == i }) {
			t.Errorf("message %d was confirmed before it was stored", i)
		}
	})
	for i := range n {
		for _, receiver := range receivers {
			testkit.Must(server.Send(gatewaytest.SendRequest{
				From: sender.ID, MessageType: messageType, Payload: []byte(strconv.Itoa(i)), Recipients: []string{receiver},
			}))(t)
		}
	}
	poison := newSink(nil)
	store := newStore(t, 0)
	var stats subscriber.Stats
	for range 2 {
		sub, client := subscribeTo(t, server, subscriber.Config{MaxInFlight: 32})
		r := start(t, router.Config{Poison: poison, Retry: fastRetry, Dedup: router.DedupSettings{Store: store}}, router.Route{
			Name: "farm", From: sub, Topic: subscriber.AllData, To: shared{s},
		})
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		want := n * keys
		if restart {
			want /= 2
		}
		err := server.WaitConfirmed(ctx, want)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		now := sub.Stats()
		stats.Overtaken += now.Overtaken
		testkit.NoError(t, errors.Join(r.stop(), client.Close()))
		if !restart {
			break
		}
		restart = false
	}
	for id, is := range refused {
		if !is {
			delete(refused, id)
		}
	}
	poison.wantStored(t, len(refused))
	testkit.NoError(t, s.Close())
	return stats
}

// shared is a sink that outlives its router.
type shared struct{ sinks.Sink }

func (shared) Close() error { return nil }

// Whatever fails on the way to a sink that takes several messages of a key at once: nothing is
// lost, nothing is confirmed early, what was overtaken says so, and what failed comes again in its
// order.
func TestPipelinedPrograms(t *testing.T) {
	t.Parallel()
	for seed := range *pipelinedSeeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(uint64(seed), 15))
			keys, n := 1+random.IntN(4), 50+random.IntN(100)
			often := []int{0, 3, 10, 40}[random.IntN(4)]
			var mu sync.Mutex
			untold := map[string]bool{}
			refused := map[string]bool{}
			sink := newLossySink(t, func() time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(random.IntN(200)) * time.Microsecond
			}, func(key string, n, attempt int) fate {
				mu.Lock()
				defer mu.Unlock()
				id := fmt.Sprint(key, "/", n)
				if refused[id] {
					return fateRefused
				}
				if attempt > 3 || random.IntN(100) >= often {
					return fateStored
				}
				what := []fate{fateLost, fateUntold, fateRefused, fateDown}[random.IntN(4)]
				if what == fateRefused && untold[id] {
					return fateStored
				}
				refused[id] = what == fateRefused
				untold[id] = untold[id] || what == fateUntold
				return what
			})
			restart := random.IntN(3) == 0
			stats := sink.run(keys, n, refused, restart)
			overtakings := sink.check(n, refused, restart)
			if often == 0 && (overtakings > 0 || stats.Overtaken > 0) {
				t.Errorf("%d messages out of order, %d overtaken, without a failure", overtakings, stats.Overtaken)
			}
			if !restart && int64(overtakings) > stats.Overtaken {
				t.Errorf("%d messages were overtaken, and %d counted", overtakings, stats.Overtaken)
			}
			t.Logf("%d keys, %d messages, restart %v: %d overtaken, %d counted, %d poisoned", keys, n, restart, overtakings, stats.Overtaken, len(refused))
		})
	}
}

// What a pipelined route refuses is quarantined like that of others, and the order of the rest does not
// suffer.
func TestPipelinedRefusals(t *testing.T) {
	t.Parallel()
	const (
		n           = 100
		messageType = "app:test:json"
	)
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}})
	for i := range n {
		testkit.Must(server.Send(gatewaytest.SendRequest{
			From: sender.ID, MessageType: messageType, Payload: []byte(strconv.Itoa(i)), Recipients: []string{receiver.ID},
		}))(t)
	}
	client := testkit.Must(gateway.New(server.ClientConfig()))(t)
	quarantine := newSink(nil)
	sub := testkit.Must(subscriber.New(subscriber.Config{
		Client: client, Unmatched: subscriber.UnmatchedQuarantine, Quarantine: subscriber.QuarantineConfig{Publisher: quarantine},
	}, nil))(t)
	sink := newLossySink(t, func() time.Duration { return 100 * time.Microsecond }, func(_ string, n, attempt int) fate {
		if n%10 == 5 && attempt == 1 {
			return fateLost
		}
		return fateStored
	})
	r := start(t, router.Config{Poison: newSink(nil), Retry: fastRetry}, router.Route{
		Name: "farm", From: sub, Topic: subscriber.AllData, To: shared{sink},
		Filter: func(msg *message.Message) (bool, error) { return msg.Payload[len(msg.Payload)-1] != '7', nil },
	})
	testkit.Eventually(t, "all are confirmed", func() bool { return sub.Stats().Confirmed >= n })
	testkit.NoError(t, errors.Join(r.stop(), client.Close(), sink.Close()))
	if got := len(quarantine.all()); got != n/10 {
		t.Errorf("%d are in the quarantine, want %d", got, n/10)
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for _, c := range sink.stored[receiver.ID] {
		if c.n%10 == 7 {
			t.Errorf("message %d was refused, and is stored", c.n)
		}
	}
}

// Of what was made of a message, a part has its place behind one that fails, and the rest has not:
// the one that failed may be stored behind that part, and says so.
func TestPipelinedPart(t *testing.T) {
	t.Parallel()
	const messageType = "app:test:json"
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}})
	for _, payload := range []string{"0", "2"} {
		testkit.Must(server.Send(gatewaytest.SendRequest{
			From: sender.ID, MessageType: messageType, Payload: []byte(payload), Recipients: []string{receiver.ID},
		}))(t)
	}
	tried := make(chan struct{}) // 3, for the first time
	sink := newLossySink(t, func() time.Duration { <-tried; return 0 }, func(_ string, n, attempt int) fate {
		switch {
		case n == 0 && attempt == 1:
			return fateLost
		case n == 3 && attempt == 1:
			close(tried)
			return fateDown
		}
		return fateStored
	})
	sub, client := subscribeTo(t, server, subscriber.Config{})
	r := start(t, router.Config{Poison: newSink(nil), Retry: fastRetry}, router.Route{
		Name: "farm", From: sub, Topic: subscriber.AllData, To: shared{sink},
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			n, err := strconv.Atoi(string(msg.Payload))
			second := msg.Copy()
			second.Payload = []byte(strconv.Itoa(n + 1))
			return []*message.Message{msg, second}, err
		},
	})
	testkit.NoError(t, server.WaitConfirmed(testkit.Context(t), 2))
	testkit.NoError(t, errors.Join(r.stop(), client.Close(), sink.Close()))
	if overtakings := sink.check(4, map[string]bool{}, false); overtakings != 1 {
		t.Errorf("%d messages were overtaken, want 1", overtakings)
	}
}
