package httpfuzz

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
)

// wire hands connections on and keeps what the client says.
type wire struct {
	net.Listener
	mu   sync.Mutex
	said []byte
}

func newWire(tb testing.TB, target string) *wire {
	tb.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(tb)
	w := &wire{Listener: l}
	ctx, cancel := context.WithCancel(context.Background())
	var open sync.WaitGroup
	open.Go(func() { // ends with the listener
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			end := context.AfterFunc(ctx, func() { _, _ = client.Close(), server.Close() })
			open.Go(func() { // ends with the connection
				_, _ = io.Copy(server, io.TeeReader(client, w))
				_ = server.Close()
			})
			open.Go(func() { // ends with the connection
				_, _ = io.Copy(client, server)
				_ = client.Close()
				end()
			})
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		cancel()
		open.Wait()
	})
	return w
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, p...)
	return len(p), nil
}

func (w *wire) take() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := w.said
	w.said = nil
	return said
}

// FuzzHTTPSend sends messages with hostile metadata. What goes over the wire is one
// request with these headers and no other, or none at all.
func FuzzHTTPSend(f *testing.F) {
	for _, value := range []string{
		"file.zip", "a\r\nX-Evil: 1", "a\r\n\r\nGET /evil HTTP/1.1\r\nHost: x\r\n\r\n", "a\nb", "a\x00b", "größe 麦 💾", " padded ", "\ttab", "a\u2028b", "\xff\xfe", "", "\u0085",
		strings.Repeat("x", 101), ": ", "a: b", "=?utf-8?B?YQ==?=", "\x7f", "\"quoted\"",
	} {
		f.Add(value, value, value, "x-router-evil", value, []byte("payload"))
		f.Add("file", "team", "app:test:json", value, "value", []byte("GET /evil HTTP/1.1\r\n\r\n"))
	}
	server := gatewaytest.New(f, gatewaytest.Config{})
	const kind = "app:test:json"
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{kind}})
	w := newWire(f, strings.TrimPrefix(server.BaseURL(), "http://"))
	cfg := server.ClientConfig()
	cfg.BaseURL = "http://" + w.Addr().String()
	cfg.Retry.MaxAttempts = 1
	client := testkit.Must(gateway.New(cfg))(f)
	f.Cleanup(func() { _ = client.Close() })
	pub := testkit.Must(publisher.New(publisher.Config{Client: client, TenantID: server.Tenant(), EndpointID: sender.ID}, nil))(f)
	f.Cleanup(func() { _ = pub.Close() })
	f.Fuzz(func(t *testing.T, filename, team, messageType, key, value string, payload []byte) {
		msg := message.NewMessage(uuid.NewString(), payload)
		msg.Metadata = message.Metadata{key: value, gateway.KeyFilename: filename, gateway.KeyTeamsetContextID: team}
		err := pub.Publish(messageType, msg)
		said := w.take()
		if len(said) == 0 {
			if err == nil {
				t.Error("nothing was sent, and that is no error")
			}
			return
		}
		if errors.Is(err, gateway.ErrInvalid) {
			t.Errorf("invalid, and sent: %v", err)
		}
		reader := bufio.NewReader(bytes.NewReader(said))
		r, err := http.ReadRequest(reader)
		if err != nil {
			t.Fatalf("%q is no request: %v", said, err)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(body, payload) {
			t.Errorf("the body is %q, %v; want %q", body, err, payload)
		}
		if rest, _ := io.ReadAll(reader); len(rest) > 0 {
			t.Errorf("behind the request there is %q", rest)
		}
		for name, want := range map[string]string{gateway.KeyFilename: filename, gateway.KeyTeamsetContextID: team, gateway.KeyMessageType: messageType} {
			name = http.CanonicalHeaderKey(name)
			if http.CanonicalHeaderKey(key) == name {
				continue // it was given twice
			}
			if got := r.Header[name]; len(got) > 1 || strings.Join(got, "") != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		for name, values := range r.Header {
			known := strings.HasPrefix(name, "X-Router-") || map[string]bool{
				"Authorization": true, "Content-Length": true, "Content-Type": true, "User-Agent": true, "Accept": true, "Accept-Encoding": true,
			}[name]
			if !known || len(values) != 1 || name == "X-Router-Evil" {
				t.Errorf("header %s: %q", name, values)
			}
		}
		if r.Method != http.MethodPost || r.URL.Path != "/messages" || len(r.Header["Authorization"]) != 1 {
			t.Errorf("%s %s", r.Method, r.URL)
		}
	})
}
