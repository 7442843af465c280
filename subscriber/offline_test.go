package subscriber_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
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

// offlineGateway is a gateway with its payload host whose connections are in memory, so that its time can
// be that of a synctest bubble. Each new stream brings what is not confirmed, with fresh payload addresses.
type offlineGateway struct {
	*testing.T
	client   *gateway.Client
	log      *testkit.Log
	tenantOf func(endpoint int) (tenant string) // in the events of messages; nil for the first one
	payload  func(w http.ResponseWriter, r *http.Request, p offlinePayload)
	answer   func(w http.ResponseWriter) (taken bool) // to confirmations, in place of 202
	opens    func(r *http.Request) (opened bool)      // a stream, or answers 504; nil: it does
	mu       sync.Mutex
	events   []offlineEvent
	added    chan struct{} // closed with the next event
	cut      chan struct{} // ends a stream
	streams  int
	requests map[int]int // for payloads, by status
}

// offlineEvent is an event, with the messages that confirm it.
type offlineEvent struct {
	messages  []string
	write     func(stream int) string
	confirmed map[string]bool
}

// offlinePayload is what a payload address tells: of what, and when it was sent.
type offlinePayload struct {
	of     string
	stream int
	sent   time.Time
}

// pipes is a listener whose connections are made in memory.
type pipes struct {
	accept chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accept:
		return conn, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.accept <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

// newOfflineGateway is to be called in the bubble. payload answers requests for payloads.
func newOfflineGateway(t *testing.T, payload func(w http.ResponseWriter, r *http.Request, p offlinePayload)) *offlineGateway {
	t.Helper()
	g := &offlineGateway{T: t, payload: payload, log: testkit.NewLog(), added: make(chan struct{}), cut: make(chan struct{}), requests: map[int]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"token","token_type":"Bearer","expires_in":360000}`))
	})
	mux.HandleFunc("GET /events", g.stream)
	mux.HandleFunc("POST /confirmations", g.confirm)
	mux.HandleFunc("GET /tenants", g.tenants)
	mux.HandleFunc("GET /payloads/{of}/{stream}/{sent}", g.download)
	listener := &pipes{accept: make(chan net.Conn)}
	listener.closed, listener.close = context.WithCancel(context.Background())
	server := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	served := make(chan struct{})
	go func() { // ends with Close
		defer close(served)
		_ = server.Serve(listener)
	}()
	transport := &http.Transport{DialContext: listener.dial}
	g.client = testkit.Must(gateway.New(gateway.Config{
		BaseURL: "http://gateway.example", TokenURL: "http://gateway.example/token", ClientID: "id", ClientSecret: "secret",
		Retry: gateway.RetryConfig{MaxAttempts: 1}, Transport: transport,
	}))(t)
	t.Cleanup(func() {
		_ = g.client.Close()
		transport.CloseIdleConnections()
		_ = server.Close()
		<-served
	})
	return g
}

// stream sends what is not confirmed, and then what comes.
func (g *offlineGateway) stream(w http.ResponseWriter, r *http.Request) {
	if g.opens != nil && !g.opens(r) {
		w.WriteHeader(http.StatusGatewayTimeout)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	g.mu.Lock()
	g.streams++
	stream := g.streams
	g.mu.Unlock()
	for next := 0; ; {
		var text strings.Builder
		g.mu.Lock()
		for ; next < len(g.events); next++ {
			if e := &g.events[next]; len(e.confirmed) < len(e.messages) {
				text.WriteString(e.write(stream))
			}
		}
		added := g.added
		g.mu.Unlock()
		if text.Len() == 0 {
			text.WriteString(":\n\n") // the stream is alive
		}
		if _, err := w.Write([]byte(text.String())); err != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-g.cut:
			return
		case <-added:
		case <-time.After(5 * time.Second):
		}
	}
}

func (g *offlineGateway) confirm(w http.ResponseWriter, r *http.Request) {
	var list struct {
		Confirmations []struct {
			Message string `json:"message_id"`
		} `json:"confirmations"`
	}
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
		g.Error(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.answer != nil && !g.answer(w) {
		return
	}
	for _, c := range list.Confirmations {
		for i := range g.events {
			for _, id := range g.events[i].messages {
				if id == c.Message {
					g.events[i].confirmed[id] = true
				}
			}
		}
	}
	if g.answer == nil {
		w.WriteHeader(http.StatusAccepted)
	}
}

// tenants lists the tenant, with the first endpoints.
func (g *offlineGateway) tenants(w http.ResponseWriter, _ *http.Request) {
	var endpoints []map[string]any
	for i := range 3 {
		endpoints = append(endpoints, map[string]any{
			"id": offlineID(offlineEndpointID, i), "name": "endpoint", "endpoint_type": "cloud_software", "application_id": offlineID(offlineTenantID, 1),
			"tenant_id": offlineID(offlineTenantID, 0), "owned_by_your_application": true, "capabilities": map[string]any{"can_send": []string{}, "can_receive": []string{}},
		})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"tenants": []any{map[string]any{"tenant_id": offlineID(offlineTenantID, 0), "endpoints": endpoints}}})
}

// raw sends an event as it is, which some messages confirm, once.
func (g *offlineGateway) raw(text string, messages ...string) {
	sent := false
	g.add(offlineEvent{messages: append([]string{"never"}, messages...), confirmed: map[string]bool{}, write: func(int) string {
		if sent {
			return ""
		}
		sent = true
		return text
	}})
}

// statusRecorder remembers the status of an answer.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (s *statusRecorder) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (g *offlineGateway) download(w http.ResponseWriter, r *http.Request) {
	sent, err := strconv.ParseInt(r.PathValue("sent"), 10, 64)
	stream, err2 := strconv.Atoi(r.PathValue("stream"))
	if err != nil || err2 != nil {
		g.Error(r.URL.Path)
	}
	recorder := &statusRecorder{w, http.StatusOK}
	g.payload(recorder, r, offlinePayload{r.PathValue("of"), stream, time.Unix(0, sent)})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests[recorder.status]++
}

// offlineID is the n-th ID of a kind.
func offlineID(kind byte, n int) string {
	return fmt.Sprintf("%08x-2222-4333-8444-5555555555%02x", n, kind)
}

const (
	offlineMessageID byte = iota
	offlineEndpointID
	offlineContextID
	offlineTenantID
)

// message sends a message with this number to an endpoint. A nil payload is not embedded.
func (g *offlineGateway) message(n, endpoint, context int, messageType string, payload []byte) {
	id, tenant := offlineID(offlineMessageID, n), offlineID(offlineTenantID, 0)
	if g.tenantOf != nil {
		tenant = g.tenantOf(endpoint)
	}
	g.add(offlineEvent{messages: []string{id}, confirmed: map[string]bool{}, write: func(stream int) string {
		event := map[string]any{
			"event_type": gateway.EventMessageReceived, "id": id, "app_message_id": offlineID(offlineContextID, context), "message_type": messageType,
			"sent_at": "2026-01-01T00:00:00Z", "receiving_endpoint_id": offlineID(offlineEndpointID, endpoint),
		}
		if tenant != "" {
			event["tenant_id"] = tenant
		}
		return offlineText(event, payload, n, stream)
	}})
}

// file sends the file that some messages carried, which is not embedded.
func (g *offlineGateway) file(n, endpoint int, messageType string, size int, messages ...int) {
	g.addFile(n, endpoint, messageType, size, nil, messages)
}

// fileOf sends the file that some messages carried, embedded.
func (g *offlineGateway) fileOf(n, endpoint int, messageType string, payload []byte, messages ...int) {
	g.addFile(n, endpoint, messageType, len(payload), payload, messages)
}

func (g *offlineGateway) addFile(n, endpoint int, messageType string, size int, payload []byte, messages []int) {
	var ids []string
	for _, m := range messages {
		ids = append(ids, offlineID(offlineMessageID, m))
	}
	g.add(offlineEvent{messages: ids, confirmed: map[string]bool{}, write: func(stream int) string {
		return offlineText(map[string]any{
			"event_type": gateway.EventFileReceived, "message_ids": ids, "size": size, "message_type": messageType,
			"receiving_endpoint_id": offlineID(offlineEndpointID, endpoint), "tenant_id": offlineID(offlineTenantID, 0),
		}, payload, n, stream)
	}})
}

func offlineText(event map[string]any, payload []byte, n, stream int) string {
	if payload != nil {
		event["payload"] = base64.StdEncoding.EncodeToString(payload)
	} else {
		event["payload_uri"] = fmt.Sprintf("http://payloads.example/payloads/%d/%d/%d", n, stream, time.Now().UnixNano())
	}
	data, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("event: %s\ndata: %s\n\n", event["event_type"], data)
}

func (g *offlineGateway) add(e offlineEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events = append(g.events, e)
	close(g.added)
	g.added = make(chan struct{})
}

// unconfirmed returns how many messages are not confirmed.
func (g *offlineGateway) unconfirmed() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.events {
		n += len(e.messages) - len(e.confirmed)
	}
	return n
}

// subscribe subscribes with the defaults, but for what cfg says.
func (g *offlineGateway) subscribe(cfg subscriber.Config) (*subscriber.Subscriber, <-chan *message.Message) {
	g.Helper()
	return g.subscribeTo(cfg, subscriber.AllData)
}

func (g *offlineGateway) subscribeTo(cfg subscriber.Config, topic string) (*subscriber.Subscriber, <-chan *message.Message) {
	g.Helper()
	cfg.Client = g.client
	sub := testkit.Must(subscriber.New(cfg, g.log))(g)
	g.Cleanup(func() { _ = sub.Close() })
	messages := testkit.Must(sub.Subscribe(g.Context(), topic))(g)
	time.Sleep(2 * time.Second)
	synctest.Wait()
	return sub, messages
}
