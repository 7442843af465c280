package endtoend

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

// The service answers 429 to a part of 256 requests that are made at once. All of them wait
// together and go on at a rate that the service takes; everything arrives once and in the order
// of its key.
func TestServiceBoundsRequestsBy429(t *testing.T) {
	natstest.Bubble(t, testServiceBoundsRequestsBy429) // however slow the machine is, all requests are made at once
}

func testServiceBoundsRequestsBy429(t *testing.T, server *natstest.Server) {
	const (
		keys, second = 256, 64 // so many keys, and so many of them with a second message
		all          = keys + second
	)
	service := gatewaytest.New(t, gatewaytest.Config{InMemory: true, RateLimit: 100, RateBurst: 60})
	sender := service.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{messageType}})
	service.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{messageType}, Subscribe: []string{messageType}})
	nearby := sinknats.Connection{Options: []natsgo.Option{natsgo.InProcessServer(server)}}
	conn := testkit.Must(natstest.Connect("", nearby.Options...))(t)
	defer conn.Close()
	js := testkit.Must(natstest.JetStream(conn))(t)
	testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out"}, MaxAge: natstest.Ever}))(t)
	number := map[[sha256.Size]byte]int{}
	for i := range all {
		msg := natsgo.NewMsg("out")
		msg.Header.Set("key", fmt.Sprint("k", i%keys))
		msg.Data = fmt.Append(nil, "message ", i)
		number[sha256.Sum256(msg.Data)] = i
		testkit.Must(js.PublishMsg(t.Context(), msg))(t)
	}

	clientConfig := service.ClientConfig()
	atOnce := &together{Transport: clientConfig.Transport.(*http.Transport), missing: keys, all: make(chan struct{})}
	atOnce.MaxIdleConnsPerHost = keys
	defer atOnce.CloseIdleConnections()
	clientConfig.Transports.Calls = atOnce
	clientConfig.Retry = gateway.RetryConfig{InitialBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}
	client := testkit.Must(gateway.New(clientConfig))(t)
	t.Cleanup(func() { _ = client.Close() })
	pub := testkit.Must(publisher.New(publisher.Config{
		Client: client, TenantID: service.Tenant(), EndpointID: sender.ID, MaxRequests: keys,
	}, nil))(t)
	source := testkit.Must(nats.New(nats.Config{Connection: nearby, SubjectPrefix: sinknats.NoSubjectPrefix, Durable: "out", KeyHeader: "key", MaxInFlight: keys}, nil))(t)
	poison := testkit.Must(sinknats.New(sinknats.Config{Connection: nearby}, nil))(t)
	r := testkit.Must(router.New(router.Config{Poison: poison}, nil))(t)
	testkit.NoError(t, r.Add(router.Route{Name: "out", From: source, Topic: "out", To: pub, ToTopic: messageType}))
	ctx, cancel := context.WithCancel(t.Context())
	run := make(chan error, 1)
	go func() { run <- r.Run(ctx) }() // ends with ctx
	waiting, stop := context.WithTimeout(t.Context(), testkit.Patience)
	defer stop()
	err := service.Wait(waiting, func(ledger []gatewaytest.LedgerEntry) bool { return len(ledger) >= all })
	cancel()
	testkit.NoError(t, <-run)
	if err != nil {
		t.Fatalf("%d of %d messages arrived: %v", len(service.Ledger()), all, err)
	}

	last := map[int]int{}
	ledger := service.Ledger()
	for _, entry := range ledger {
		i, known := number[entry.SHA256]
		key := i % keys
		if before, again := last[key]; !known || again && before >= i {
			t.Errorf("message %d (known: %t) came after message %d of its key", i, known, before)
		}
		last[key] = i
	}
	if len(ledger) != all {
		t.Errorf("%d messages arrived, want %d: one that is answered 429 is not accepted", len(ledger), all)
	}
	// Without a pause for all, every message that was refused would come back after its own
	// 10 to 100 ms, some 150 of them again and again.
	arrivals := atOnce.sent()
	rejected := service.Stats(gatewaytest.OpSendMessage).Status[http.StatusTooManyRequests]
	switch {
	case rejected > keys:
		t.Errorf("%d answers were 429, want at most %d", rejected, keys)
	case rejected < keys/2:
		t.Errorf("only %d answers were 429: the service has bounded nothing", rejected)
	}
	silence := time.Duration(0)
	for i := 1; i < len(arrivals); i++ {
		silence = max(silence, arrivals[i].Sub(arrivals[i-1]))
	}
	if silence < 100*time.Millisecond {
		t.Errorf("the longest time without requests was %v: they did not wait together", silence)
	}
	if h := r.Health()[0]; h.Poisoned != 0 {
		t.Errorf("%d messages are in the poison queue", h.Poisoned)
	}
	t.Logf("%d of %d answers were 429, longest silence %v", rejected, len(arrivals), silence)
}

// together sends the first requests only when all of them are there, and notes when each is sent.
type together struct {
	*http.Transport

	all     chan struct{} // closed once none is missing
	mu      sync.Mutex
	missing int
	at      []time.Time
}

// RoundTrip may wait for the other requests.
func (r *together) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	if r.missing--; r.missing == 0 {
		close(r.all)
	}
	r.mu.Unlock()
	select {
	case <-r.all:
	case <-req.Context().Done():
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, req.Context().Err()
	}
	r.mu.Lock()
	r.at = append(r.at, time.Now())
	r.mu.Unlock()
	return r.Transport.RoundTrip(req)
}

// sent returns when the requests were sent.
func (r *together) sent() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at)
}

// The service answers 429 to one tenant only, which its specification does not foresee: the
// messages of the other tenant go out meanwhile, through the same publisher.
func TestA429OfOneTenantDoesNotStopAnother(t *testing.T) {
	testkit.Bubble(t, testA429OfOneTenantDoesNotStopAnother)
}

func testA429OfOneTenantDoesNotStopAnother(t *testing.T) {
	service := gatewaytest.New(t, gatewaytest.Config{InMemory: true})
	types := []string{messageType}
	tenants := []string{service.Tenant(), service.AddTenant()}
	service.Authorize(service.Application(), tenants[1])
	var senders []string
	for _, tenant := range tenants {
		senders = append(senders, service.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Send: types}).ID)
		service.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Receive: types, Subscribe: types})
	}
	header := gateway.HeaderName(service.ClientConfig().ServiceName, gateway.KeyTenantID)
	refused := service.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{
		Status: http.StatusTooManyRequests, Match: func(r *http.Request) bool { return r.Header.Get(header) == tenants[0] },
	})
	cfg := service.ClientConfig()
	cfg.Retry = gateway.RetryConfig{InitialBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond}
	cfg.RateLimit = gateway.RateLimitConfig{MinRate: 100, Pause: time.Millisecond}
	client := testkit.Must(gateway.New(cfg))(t)
	t.Cleanup(func() { _ = client.Close() })
	pub := testkit.Must(publisher.New(publisher.Config{Client: client}, nil))(t)
	t.Cleanup(func() { _ = pub.Close() })
	ctx := testkit.Context(t)
	send := func(tenant int, payload string) error {
		msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
		msg.SetContext(ctx)
		msg.Metadata.Set(gateway.KeyTenantID, tenants[tenant])
		msg.Metadata.Set(gateway.KeyEndpointID, senders[tenant])
		return pub.Publish(messageType, msg)
	}
	var refusedOnes, others sync.WaitGroup
	for i := range 4 {
		refusedOnes.Go(func() { // until the service takes it
			for send(0, fmt.Sprint("refused ", i)) != nil && ctx.Err() == nil {
			}
		})
	}
	testkit.Eventually(t, "the service has refused one", func() bool { return refused.Hits() > 0 })
	const perWorker = 100
	for worker := range 4 {
		others.Go(func() {
			for i := range perWorker {
				if err := send(1, fmt.Sprint("other ", worker, " ", i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	others.Wait()
	if state := client.RateLimit(); state.Limited || state.Rejected == 0 {
		t.Errorf("%+v, want 429s of one tenant and no limit for the others", state)
	}
	if slices.ContainsFunc(service.Ledger(), func(e gatewaytest.LedgerEntry) bool { return e.TenantID == tenants[0] }) {
		t.Error("a message of the tenant that is refused arrived")
	}
	refused.Lift()
	refusedOnes.Wait()
	if got, want := len(service.Ledger()), 4+4*perWorker; got != want {
		t.Errorf("%d messages arrived, want %d", got, want)
	}
}
