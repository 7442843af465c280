package subscriber_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
	"github.com/agrimill/agrimill/subscriber/leasetest"
)

// process is a Subscriber with a lease, as one of several processes has it.
type process struct {
	*subscriber.Subscriber
	lease    *leasetest.MemoryLease
	messages <-chan *message.Message
}

func (f *fixture) process(store *leasetest.Memory, change ...func(*subscriber.Config)) *process {
	f.Helper()
	p := f.idleProcess(store, change...)
	p.messages = f.subscribe(p.Subscriber, subscriber.AllData)
	return p
}

// idleProcess is a process without subscriptions.
func (f *fixture) idleProcess(store *leasetest.Memory, change ...func(*subscriber.Config)) *process {
	f.Helper()
	p := &process{lease: store.Lease()}
	cfg := f.config()
	cfg.Client, cfg.Lease = f.newClient(f.server.ClientConfig()), p.lease
	for _, change := range change {
		change(&cfg)
	}
	p.Subscriber = f.subscriber(cfg)
	return p
}

func (p *process) role() subscriber.LeaseRole { return p.Stats().Lease.Role }

func (f *fixture) waitRole(p *process, role subscriber.LeaseRole) {
	f.Helper()
	testkit.Eventually(f, "the role is "+role.String(), func() bool { return p.role() == role })
}

// Only the holder has a stream. When it is closed, what is open is finished and confirmed, and
// the standby goes on at once with the rest.
func TestTheHolderHandsOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	store := leasetest.NewMemory(time.Hour) // without the release nobody gets it
	a := f.process(store, func(c *subscriber.Config) { c.DrainTimeout = testkit.Patience })
	f.waitRole(a, subscriber.LeaseHolder)
	b := f.process(store)
	f.sendN(10)
	f.ackN(a.messages, 9)
	last := f.next(a.messages)
	f.nothing(b.messages)
	if got := f.server.Streams(); got != 1 {
		t.Errorf("%d streams, want that of the holder", got)
	}
	closed := make(chan error, 1)
	go func() { closed <- a.Close() }()
	f.sendN(5)
	last.Ack()
	if err := <-closed; err != nil {
		t.Errorf("Close = %v", err)
	}
	if _, open := <-a.messages; open {
		t.Error("the channel of the former holder is open")
	}
	f.ackN(b.messages, 5)
	f.waitConfirmed(15)
	for _, e := range f.server.Ledger() {
		if len(e.Confirmations) != 1 {
			t.Errorf("%d confirmations of a message", len(e.Confirmations))
		}
	}
	if got := b.Stats().Lease; got.Role != subscriber.LeaseHolder || got.Epoch != 2 {
		t.Errorf("%v of epoch %d, want the holder of 2", got.Role, got.Epoch)
	}
}

// While holders come and go by every way there is, under load, everything is confirmed, and no
// message before a process that had the lease has acked it.
func TestHoldersComeAndGo(t *testing.T) {
	synctest.Test(t, testHoldersComeAndGo)
}

func testHoldersComeAndGo(t *testing.T) {
	const count, changes = 600, 6
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	var mu sync.Mutex
	acked := map[string]bool{}
	early := 0
	f.server.OnConfirm(func(e gatewaytest.LedgerEntry) {
		mu.Lock()
		defer mu.Unlock()
		if !acked[e.MessageID] {
			early++
		}
	})
	store := leasetest.NewMemory(300 * time.Millisecond)
	var handling sync.WaitGroup
	start := func() *process {
		p := f.process(store)
		handling.Go(func() {
			for msg := range p.messages {
				mu.Lock()
				acked[msg.Metadata[gateway.KeyMessageID]] = true
				mu.Unlock()
				msg.Ack()
			}
		})
		return p
	}
	pair := []*process{start(), start()}
	for n := range changes {
		for i := range count / changes {
			f.send(typeJSON, []byte(strconv.Itoa(n*count+i)), f.receiver)
		}
		var holder int
		testkit.Eventually(t, "one is the holder", func() bool {
			for i, p := range pair {
				if p.role() == subscriber.LeaseHolder {
					holder = i
					return true
				}
			}
			return false
		})
		switch other := pair[1-holder]; n % 3 {
		case 0: // stopped
			_ = pair[holder].Close() // what it has not confirmed comes again
			pair[holder] = start()   // which may get the lease before the other one does
		case 1: // cut off
			heal := pair[holder].lease.Cut()
			f.waitRole(other, subscriber.LeaseHolder)
			heal()
		case 2: // the gateway is away for it
			f.server.CutStreams()
		}
	}
	f.waitConfirmed(count)
	for _, p := range pair {
		f.close(p.Subscriber)
	}
	handling.Wait()
	mu.Lock()
	defer mu.Unlock()
	if early > 0 {
		t.Errorf("%d were confirmed before they were acked", early)
	}
}

// When the service has refused the stream for too long, the subscriptions end as without a lease,
// and another process may try. A later subscription wants the lease again.
func TestTheStreamOfTheHolderIsRefused(t *testing.T) {
	synctest.Test(t, testTheStreamOfTheHolderIsRefused)
}

func testTheStreamOfTheHolderIsRefused(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	refusal := f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: 403, Message: "no"})
	store := leasetest.NewMemory(time.Hour)
	a := f.process(store, func(cfg *subscriber.Config) { cfg.StreamRefusedFor = 50 * time.Millisecond })
	if _, open := <-a.messages; open {
		t.Fatal("a message came")
	}
	testkit.ErrorIs(t, a.Err(), subscriber.ErrStreamRefused)
	refusal.Lift()
	b := f.process(store)
	f.waitRole(b, subscriber.LeaseHolder)
	f.waitRole(a, subscriber.LeaseNone)
	again := f.subscribe(a.Subscriber, subscriber.AllData)
	f.waitRole(a, subscriber.LeaseStandby)
	if err := a.Err(); err != nil {
		t.Errorf("Err = %v, want nil", err)
	}
	f.close(b.Subscriber)
	f.sendN(1)
	f.ackN(again, 1)
	f.waitConfirmed(1)
}

// A holder that cannot open the stream, or to which the gateway says nothing any longer, gives the lease up
// for one that can, and with it whatever it has in hand, also if the connection stays. It wants it again later.
func TestTheHolderDoesNotReachTheGateway(t *testing.T) {
	for name, fault := range map[string]struct {
		events gatewaytest.Fault // for streams of the holder from then on
		cut    bool              // its stream ends
		silent bool              // nothing else is answered, either
	}{
		"the stream cannot be opened":             {gatewaytest.Fault{Status: 503}, true, false},
		"the stream is open":                      {silent: true},
		"the stream is opened and sends nothing":  {gatewaytest.Fault{HangAfter: gatewaytest.AfterHeader}, true, true},
		"the request for the stream is swallowed": {gatewaytest.Fault{Hang: true}, true, true},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{InMemory: true})
			store := leasetest.NewMemory(time.Second)
			of := func(name string) func(*subscriber.Config) {
				return func(cfg *subscriber.Config) {
					client := f.server.ClientConfig()
					client.UserAgent = name
					cfg.Client, cfg.StreamDownFor = f.newClient(client), 400*time.Millisecond
				}
			}
			a := f.process(store, of("a"))
			f.waitRole(a, subscriber.LeaseHolder)
			f.sendN(2)
			open := f.next(a.messages)
			fromA := func(r *http.Request) bool { return r.UserAgent() == "a" }
			if fault.cut {
				fault.events.Match = fromA
				f.server.Inject(gatewaytest.OpEvents, fault.events)
			}
			if fault.silent {
				f.server.Inject(gatewaytest.OpAny, gatewaytest.Fault{Hang: true, Match: fromA})
			}
			b := f.process(store, of("b"))
			if fault.cut {
				f.server.CutStreams()
			}
			<-open.Context().Done()
			open.Ack()
			f.ackN(b.messages, 2)
			f.waitConfirmed(2)
			if got := a.Stats(); got.Lease.Role != subscriber.LeaseStandby || got.Lease.GivenUp != 1 || got.Lease.Lost != 0 || got.Confirmed != 0 {
				t.Errorf("%+v, %d confirmed; want it to have given up once", got.Lease, got.Confirmed)
			}
			if got := b.Stats().Lease; got.Role != subscriber.LeaseHolder || got.Epoch != 2 {
				t.Errorf("%v of epoch %d, want the holder of 2", got.Role, got.Epoch)
			}
			f.close(b.Subscriber)
			testkit.Eventually(t, "it gives up again, alone as it is", func() bool { return a.Stats().Lease.GivenUp >= 2 })
			f.server.LiftAll()
			f.sendN(1)
			f.ackN(a.messages, 1)
			f.waitConfirmed(3)
		})
	}
}

// The lease is kept while the service refuses the stream, while it sends no head, while there is
// nothing to send, whatever it answers when it is asked and without a token to ask with, and with
// KeepLease.
func TestTheLeaseIsKept(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		downs  time.Duration
		lasts  time.Duration
		head   gatewaytest.StreamHead
		alive  time.Duration     // how often the service sends a comment
		asked  gatewaytest.Fault // what becomes of a question for the tenants
		token  time.Duration     // how long one lasts; there is no other one
	}{
		"refused":           {status: 403, downs: 50 * time.Millisecond, lasts: 2 * time.Second},
		"by setting":        {status: 503, downs: subscriber.KeepLease, lasts: time.Second},
		"no head":           {downs: 2 * time.Second, lasts: 5 * time.Second, head: gatewaytest.HeadWithFirstEvent},
		"quiet":             {downs: 500 * time.Millisecond, lasts: 3 * time.Second},
		"quiet and failing": {downs: 500 * time.Millisecond, lasts: 3 * time.Second, asked: gatewaytest.Fault{Status: 500}},
		"quiet, no token":   {downs: 500 * time.Millisecond, lasts: 3 * time.Second, token: 2 * time.Second},
		"kept alive":        {downs: 500 * time.Millisecond, lasts: 3 * time.Second, alive: 100 * time.Millisecond, asked: gatewaytest.Fault{Hang: true}},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{InMemory: true, StreamHead: test.head, KeepAlive: test.alive, TokenLifetime: test.token})
			f.server.Inject(gatewaytest.OpListTenants, test.asked)
			lift := func() {}
			if test.status != 0 {
				lift = f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: test.status}).Lift
			}
			store := leasetest.NewMemory(time.Minute)
			a := f.process(store, func(cfg *subscriber.Config) { cfg.StreamDownFor = test.downs })
			f.waitRole(a, subscriber.LeaseHolder)
			if test.token != 0 {
				testkit.Eventually(t, "the stream is open", func() bool { return a.Stats().Stream.Connected })
				lift = f.server.Inject(gatewaytest.OpToken, gatewaytest.Fault{Status: 503}).Lift
			}
			<-time.After(test.lasts) // the time is what this is about
			if got := a.Stats().Lease; got.Role != subscriber.LeaseHolder || got.GivenUp != 0 || got.Changes != 2 {
				t.Errorf("%+v, want the holder", got)
			}
			lift()
			f.sendN(1)
			f.ackN(a.messages, 1)
			f.waitConfirmed(1)
		})
	}
}

// Watermill's suite finds nothing that a lease changes.
func TestUniversalSuiteWithALease(t *testing.T) {
	t.Parallel()
	m := &multiverse{byID: map[string]*universe{}, lease: func() subscriber.Lease { return leasetest.NewMemory(time.Minute).Lease() }}
	features := features()
	features.ForceShort = !*universal
	tests.TestPubSub(t, features, m.pubSub, nil)
}

// Two processes with one lease: the second one goes on when the first is gone.
func ExampleConfig_lease() {
	s, send := startService(gatewaytest.Config{})
	defer s.Close()
	store := leasetest.NewMemory(5 * time.Second) // kvlease.New(ctx, kvlease.Config{Conn: conn})
	start := func() (*subscriber.Subscriber, <-chan *message.Message) {
		sub, err := subscriber.New(subscriber.Config{Client: s.Client(), Lease: store.Lease()}, nil)
		if err != nil {
			panic(err)
		}
		messages, err := sub.Subscribe(context.Background(), "img:png")
		if err != nil {
			panic(err)
		}
		return sub, messages
	}
	a, messagesOfA := start()
	send("img:png", "first")
	msg := <-messagesOfA
	fmt.Println("a:", string(msg.Payload), a.Stats().Lease.Role)
	b, messagesOfB := start()
	msg.Ack()
	_ = a.Close() // confirms it, and releases the lease
	send("img:png", "second")
	msg = <-messagesOfB
	fmt.Println("b:", string(msg.Payload), b.Stats().Lease.Role)
	msg.Ack()
	_ = b.Close()
	fmt.Println("confirmed:", confirmed(s))
	// Output:
	// a: first holder
	// b: second holder
	// confirmed: 2
}
