package httpfuzz

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// answers are hostile in their own way each.
var answers = []string{
	"", "\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[]",
	"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n[]", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n[]]",
	"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\nx",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n[]",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n2\r\n[]\r\n0\r\nTrailer: x\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x00\x00", "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1-2/3\r\n\r\nab",
	"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 9223372036854775807-9223372036854775807/*\r\n\r\nab",
	"HTTP/1.1 301 Moved\r\nLocation: http://evil.example/x\r\n\r\n", "HTTP/1.1 302 Found\r\nLocation: //evil.example\r\nSet-Cookie: a=b\r\n\r\n",
	"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://169.254.169.254/latest\r\n\r\n", "HTTP/1.1 308 Permanent Redirect\r\nLocation: /again\r\n\r\n",
	"HTTP/1.1 303 See Other\r\nLocation: http://user:pass@evil.example:1\r\n\r\n", "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n",
	"HTTP/1.1 302 Found\r\nLocation: http://[::ffff:127.0.0.1]:1/\r\n\r\n", "HTTP/1.1 302 Found\r\nLocation: :\r\n\r\n", "HTTP/1.1 302 Found\r\n\r\n",
	"HTTP/1.1 429 Too Many\r\nRetry-After: 99999999999999999999\r\n\r\n", "HTTP/1.1 503 Down\r\nRetry-After: Fri, 31 Dec 9999 23:59:59 GMT\r\n\r\n",
	"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n[]", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
	"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"\x00\"\r\n\r\n", "HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\n\r\n{\"message\":\"\\u0000\\r\\n\"}",
	"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n", "HTTP/1.1 999 ?\r\n\r\n", "HTTP/9.9 200 OK\r\n\r\n", "ICY 200 OK\r\n\r\n",
	"HTTP/1.1 200 OK\r\n: x\r\n\r\n", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 413 Large\r\n\r\n",
}

const goodTenants = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"tenants\":[]}"

// FuzzHTTPAnswer answers each call of the service with raw bytes. The call ends, by
// an error or not, and the next one, with a good answer, succeeds.
func FuzzHTTPAnswer(f *testing.F) {
	for op := range byte(4) {
		for _, answer := range answers {
			f.Add(op, []byte(answer))
		}
	}
	h := newHosts(f)
	id := uuid.NewString()
	f.Fuzz(func(t *testing.T, op byte, answer []byte) {
		client := h.client(t)
		ctx := testkit.Context(t)
		h.service.say(answer)
		err := call(ctx, client, op, id)
		if ctx.Err() != nil {
			t.Fatalf("it did not end: %v", err)
		}
		h.clean(t, err)
		for _, r := range h.service.take() {
			if got := r.Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+token {
				t.Errorf("Authorization %q", got)
			}
		}
		h.service.say([]byte(goodTenants))
		if _, err := client.ListAuthorizedTenants(ctx); err != nil {
			t.Errorf("the next call fails: %v", err)
		}
	})
}

// call makes one call and gives its error.
func call(ctx context.Context, client *gateway.Client, op byte, id string) error {
	switch op % 4 {
	case 0:
		_, err := client.ListAuthorizedTenants(ctx)
		return err
	case 1:
		return client.ConfirmMessages(ctx, id, []gateway.MessageConfirmation{{MessageID: id, EndpointID: id}})
	case 2:
		return client.SendMessage(ctx, gateway.SendMessageRequest{
			TenantID: id, EndpointID: id, MessageType: "app:test:json", IsPublish: true, ContextID: id, Payload: []byte("payload"),
		})
	default:
		stream, err := client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{})
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }()
		for {
			if _, err := stream.Next(); err != nil && !errors.Is(err, gateway.ErrEventTooLarge) {
				return err
			}
		}
	}
}

// FuzzHTTPToken answers token requests with raw bytes. A token is used as it is,
// in one header, or not at all.
func FuzzHTTPToken(f *testing.F) {
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
	for _, body := range []string{
		`{"access_token":"abc","token_type":"Bearer","expires_in":3600}`, `{"access_token":"a\r\nX-Evil: 1","token_type":"Bearer","expires_in":1}`,
		`{"access_token":"","token_type":"Bearer"}`, `{"access_token":"a b","expires_in":0}`, `{"access_token":"größe","expires_in":-1}`, `{"access_token":17}`,
		`{"access_token":"abc","token_type":"MAC","expires_in":1e300}`, `{"access_token":"abc","expires_in":"3600"}`, `{"access_token":null}`, `[]`, `null`, `{`,
		`{"access_token":"a","access_token":"b","ACCESS_TOKEN":"c"}`, `{"access_token":"` + strings.Repeat("x", 10_000) + `"}`, `{"error":"invalid_client"}`,
	} {
		f.Add([]byte(head + body))
	}
	for _, answer := range answers {
		f.Add([]byte(answer))
	}
	h := newHosts(f)
	h.service.say([]byte(goodTenants))
	f.Fuzz(func(t *testing.T, answer []byte) {
		client := h.client(t)
		ctx := testkit.Context(t)
		h.token.say(answer)
		_, err := client.ListAuthorizedTenants(ctx)
		if ctx.Err() != nil {
			t.Fatalf("it did not end: %v", err)
		}
		h.clean(t, err)
		for _, r := range h.token.take() {
			if r.Method != http.MethodPost || len(r.Header["Authorization"]) != 1 {
				t.Errorf("token request %s with %q", r.Method, r.Header["Authorization"])
			}
		}
		for _, r := range h.service.take() {
			got := r.Header["Authorization"]
			if len(got) != 1 || !strings.HasPrefix(got[0], "Bearer ") || r.URL.Path != "/tenants" {
				t.Fatalf("%s with Authorization %q", r.URL, got)
			}
			// Names of JSON are told apart by case, so a map and not a struct.
			said, token := map[string]json.RawMessage{}, ""
			if a, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil); err == nil {
				body, _ := io.ReadAll(a.Body)
				_ = json.Unmarshal(body, &said)
				_ = json.Unmarshal(said["access_token"], &token)
			}
			if token != "" && got[0] != "Bearer "+token {
				t.Errorf("Authorization %q for the token %q", got[0], token)
			}
		}
	})
}

// FuzzHTTPPayload answers downloads with raw bytes, redirects included. What is
// given out as the payload is what a plain reader of HTTP finds in the answer, with
// the size that was announced; and no host gets a token.
func FuzzHTTPPayload(f *testing.F) {
	for _, answer := range answers {
		f.Add([]byte(answer), int64(-1))
		f.Add([]byte(answer), int64(2))
	}
	h := newHosts(f)
	h.service.say([]byte(goodTenants))
	f.Fuzz(func(t *testing.T, answer []byte, size int64) {
		client := h.client(t)
		ctx := testkit.Context(t)
		h.payload.say(answer)
		size = max(size, -1)
		payload, err := client.OpenPayload(ctx, h.payload.url()+"/p?signature=s", size)
		var data []byte
		if err == nil {
			data, err = io.ReadAll(payload)
			_ = payload.Close()
		}
		if ctx.Err() != nil {
			t.Fatalf("it did not end: %v", err)
		}
		h.clean(t, err)
		requests := h.payload.take()
		for _, r := range requests {
			if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" || r.Method != http.MethodGet {
				t.Errorf("%s with %v", r.Method, r.Header)
			}
		}
		if len(requests) > 20 {
			t.Errorf("%d requests", len(requests))
		}
		if err != nil {
			if strings.Contains(err.Error(), "signature=s") {
				t.Errorf("the error tells the query: %v", err)
			}
			return
		}
		if size >= 0 && int64(len(data)) != size {
			t.Errorf("%d bytes, announced were %d", len(data), size)
		}
		if string(data) == "evil" {
			return // from elsewhere, by a redirect
		}
		plain, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
		for err == nil && plain.StatusCode < 200 && plain.StatusCode != http.StatusSwitchingProtocols {
			return // interim answers, which the transport skips
		}
		if err != nil {
			t.Fatalf("%q came out of an answer that is none: %v", data, err)
		}
		want, _ := io.ReadAll(plain.Body)
		if !bytes.Equal(data, want) {
			t.Errorf("%q came out of an answer with the body %q", data, want)
		}
	})
}
