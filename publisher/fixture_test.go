package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
)

// A service that answers before it has read the request lets its connection linger for half a second.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

const (
	typeJSON = "app:test:json"
)

// fixture is a gateway with a sender, a receiver that subscribes and one that
// does not, and a record of the headers of every POST /messages.
type fixture struct {
	*testing.T
	server                  *gatewaytest.Server
	client                  *gateway.Client
	sender, receiver, other gateway.Endpoint

	mu       sync.Mutex
	recorded []http.Header
}

func newFixture(t *testing.T, cfg gatewaytest.Config) *fixture {
	t.Helper()
	server := gatewaytest.New(t, cfg)
	types := []string{typeJSON}
	f := &fixture{
		T: t, server: server,
		sender:   server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: types}),
		receiver: server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: types, Subscribe: types}),
		other:    server.AddEndpoint(gatewaytest.EndpointConfig{Name: "other", Receive: types}),
	}
	server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Match: func(r *http.Request) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.recorded = append(f.recorded, r.Header.Clone())
		return false
	}})
	f.client = f.newClient(server.ClientConfig())
	return f
}

func (f *fixture) newClient(cfg gateway.Config) *gateway.Client {
	f.Helper()
	cfg.Retry.InitialBackoff, cfg.Retry.MaxBackoff = time.Millisecond, 5*time.Millisecond
	client := testkit.Must(gateway.New(cfg))(f)
	f.Cleanup(func() { _ = client.Close() })
	return client
}

// config addresses the default tenant from the sender.
func (f *fixture) config() publisher.Config {
	return publisher.Config{Client: f.client, TenantID: f.server.Tenant(), EndpointID: f.sender.ID}
}

func (f *fixture) publisher(cfg publisher.Config) *publisher.Publisher {
	f.Helper()
	pub := testkit.Must(publisher.New(cfg, nil))(f)
	f.Cleanup(func() { _ = pub.Close() })
	return pub
}

// headers are those of the requests so far, in the order of their arrival.
func (f *fixture) headers() []http.Header {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]http.Header(nil), f.recorded...)
}

// sent are the service's own headers of the only request so far.
func (f *fixture) sent() map[string]string {
	f.Helper()
	all := f.headers()
	if len(all) != 1 {
		f.Fatalf("%d requests, want one", len(all))
	}
	return routerHeaders(all[0])
}

// routerHeaders are the headers that the specification names, by metadata key.
func routerHeaders(h http.Header) map[string]string {
	out := map[string]string{}
	for name, values := range h {
		if key := strings.ToLower(name); strings.HasPrefix(key, "x-router-") {
			out[key] = strings.Join(values, " | ")
		}
	}
	return out
}

// entries is the number of messages at all receivers.
func (f *fixture) entries() int { return len(f.server.Ledger()) }

// waitRequests waits until the service was asked n times.
func (f *fixture) waitRequests(n int) {
	f.Helper()
	f.waitFor(fmt.Sprintf("%d requests", n), func() bool {
		return f.server.Stats(gatewaytest.OpSendMessage).Requests >= n
	})
}

// waitFor waits for something that the service sees happen.
func (f *fixture) waitFor(what string, cond func() bool) {
	f.Helper()
	ctx := testkit.Context(f)
	if err := f.server.Wait(ctx, func([]gatewaytest.LedgerEntry) bool { return cond() }); err != nil {
		f.Fatalf("%s did not come: %v", what, err)
	}
}

// newMessage has a UUID for its UUID; pairs are keys and values.
func newMessage(payload string, pairs ...string) *message.Message {
	msg := message.NewMessage(uuid.NewString(), []byte(payload))
	for i := 0; i < len(pairs); i += 2 {
		msg.Metadata.Set(pairs[i], pairs[i+1])
	}
	return msg
}

func publishError(t *testing.T, err error) *publisher.PublishError {
	t.Helper()
	var e *publisher.PublishError
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a *PublishError", err)
	}
	return e
}

type marshalerFunc func(topic string, msg *message.Message) ([]byte, error)

func (f marshalerFunc) Marshal(topic string, msg *message.Message) ([]byte, error) {
	return f(topic, msg)
}

type claimCheckFunc func(ctx context.Context, reference string) (io.ReadCloser, int64, error)

func (f claimCheckFunc) Open(ctx context.Context, reference string) (io.ReadCloser, int64, error) {
	return f(ctx, reference)
}

// claimed is the metadata of a message whose payload is in a claim check.
func claimed(reference string) []string {
	return []string{gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck, gateway.KeyPayloadReference, reference}
}
