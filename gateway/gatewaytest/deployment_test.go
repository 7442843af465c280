package gatewaytest_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// With FileAlone a payload that is split arrives as one FILE_RECEIVED, whose confirmation confirms
// all of it; until then it is replayed alone, too.
func TestFileAloneHidesChunks(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{ChunkSize: 4, FileOrder: gatewaytest.FileAlone})
	from := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"doc:pdf"}})
	to := s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{"doc:pdf"}})
	next := func() gateway.Event {
		t.Helper()
		stream := testkit.Must(s.Client().ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{}))(t)
		defer func() { _ = stream.Close() }()
		raw := testkit.Must(stream.Next())(t)
		return testkit.Must(gateway.DecodeEvent(raw.Type, raw.Data))(t)
	}
	ids, err := s.Send(gatewaytest.SendRequest{From: from.ID, MessageType: "doc:pdf", Payload: []byte("0123456789"), Recipients: []string{to.ID}})
	if err != nil || len(ids) != 3 {
		t.Fatalf("got messages %v, %v, want 3", ids, err)
	}
	for range 2 {
		file, ok := next().(*gateway.FileReceived)
		if !ok || len(file.MessageIDs) != 3 || string(file.Payload) != "0123456789" {
			t.Fatalf("got %+v, want the file alone", file)
		}
	}
	var confirmations []gateway.MessageConfirmation
	for _, id := range ids {
		confirmations = append(confirmations, gateway.MessageConfirmation{MessageID: id, EndpointID: to.ID})
	}
	testkit.NoError(t, s.Client().ConfirmMessages(t.Context(), s.Tenant(), confirmations))
	testkit.Must(s.Send(gatewaytest.SendRequest{From: from.ID, MessageType: "doc:pdf", Payload: []byte("abc"), Recipients: []string{to.ID}}))(t)
	if m, ok := next().(*gateway.MessageReceived); !ok || string(m.Payload) != "abc" {
		t.Errorf("got %+v, want what is small as a message, and no file again", m)
	}
}

// Context IDs are UUIDs, unless the service is one that takes any string: then so does the client.
func TestAnyContextID(t *testing.T) {
	for _, tt := range []struct {
		id          string
		uuid, other bool // whether it is accepted without and with the setting
	}{
		{uuid.NewString(), true, true},
		{strings.ToUpper(uuid.NewString()), true, true},
		{"delivery note 17/2026", false, true},
		{strings.Repeat("ü", 50), false, true},
		{strings.Repeat("x", 51), false, false},
		{"a\nb", false, false},
	} {
		for _, anyID := range []bool{false, true} {
			s := gatewaytest.New(t, gatewaytest.Config{AnyContextID: anyID})
			from := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"doc:pdf"}})
			s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{"doc:pdf"}, Subscribe: []string{"doc:pdf"}})
			if got := s.ClientConfig().AnyContextID; got != anyID {
				t.Errorf("ClientConfig of a service with %v: got %v", anyID, got)
			}
			want := tt.uuid || anyID && tt.other
			for _, client := range []bool{false, true} {
				cfg := s.ClientConfig()
				cfg.AnyContextID = client
				c := testkit.Must(gateway.New(cfg))(t)
				t.Cleanup(func() { _ = c.Close() })
				err := c.SendMessage(t.Context(), gateway.SendMessageRequest{
					TenantID: s.Tenant(), EndpointID: from.ID, MessageType: "doc:pdf", IsPublish: true, ContextID: tt.id, Payload: []byte("x"),
				})
				if accepted := want && (client || tt.uuid); (err == nil) != accepted {
					t.Errorf("%q, service %v, client %v: got %v, want it accepted: %v", tt.id, anyID, client, err, accepted)
				}
			}
		}
	}
}

// raw sends a request as it stands, and returns status and message of the answer.
func raw(t *testing.T, s *gatewaytest.Server, request string) (int, string) {
	t.Helper()
	base := testkit.Must(url.Parse(s.BaseURL()))(t)
	conn, err := net.Dial("tcp", base.Host) // closing it also ends a stream, which the body's Close would read to its end
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	testkit.Must(io.WriteString(conn, strings.ReplaceAll(request, "\n", "\r\n")))(t)
	resp := testkit.Must(http.ReadResponse(bufio.NewReader(conn), nil))(t)
	var answer gateway.ErrorResponse
	if resp.StatusCode != http.StatusOK {
		testkit.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	}
	return resp.StatusCode, answer.Message
}

// What a request leaves out or names wrongly is refused, not passed over.
func TestRequestsThatAreRefused(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{})
	from := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"doc:pdf"}})
	s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{"doc:pdf"}, Subscribe: []string{"doc:pdf"}})
	head := "Host: gateway.example\nAuthorization: Bearer " + s.IssueToken(s.Application()) + "\n"
	send := "POST /messages HTTP/1.1\n" + head + fmt.Sprintf("Content-Type: application/octet-stream\nx-router-is-publish: true\nx-router-sent-timestamp: 2026-03-01T09:05:07Z\n"+
		"x-router-endpoint-id: %s\nx-router-message-type: doc:pdf\nx-router-tenant-id: %s\nx-router-context-id: %s\n", from.ID, s.Tenant(), uuid.NewString())
	for _, tt := range []struct {
		name, request string
		status        int
		message       string
	}{
		{"no Content-Length", send + "\n", 400, "header Content-Length is missing"},
		{"chunked", send + "Transfer-Encoding: chunked\n\n1\nx\n0\n\n", 400, "header Content-Length is missing"},
		{"an empty payload", send + "Content-Length: 0\n\n", 200, ""},
		{"a payload", send + "Content-Length: 1\n\nx", 200, ""},
		{"an unknown type", "GET /events?types=MESSAGE HTTP/1.1\n" + head + "\n", 400, "parameter types has an unknown event type"},
		{"an empty type", "GET /events?types= HTTP/1.1\n" + head + "\n", 400, "parameter types has an unknown event type"},
		{"one of several types", "GET /events?types=MESSAGE_RECEIVED&types=x HTTP/1.1\n" + head + "\n", 400, "parameter types has an unknown event type"},
		{"another parameter", "GET /events?event_types=MESSAGE_RECEIVED HTTP/1.1\n" + head + "\n", 400, `unknown parameter "event_types"`},
		{"a parameter in another case", "GET /events?Types=MESSAGE_RECEIVED HTTP/1.1\n" + head + "\n", 400, `unknown parameter "Types"`},
		{"a malformed query", "GET /events?types=%zz HTTP/1.1\n" + head + "\n", 400, "query is malformed"},
		{"the right one", "GET /events?types=MESSAGE_RECEIVED HTTP/1.1\n" + head + "\n", 200, ""},
	} {
		if status, message := raw(t, s, tt.request); status != tt.status || message != tt.message {
			t.Errorf("%s: got %d %q, want %d %q", tt.name, status, message, tt.status, tt.message)
		}
	}
}
