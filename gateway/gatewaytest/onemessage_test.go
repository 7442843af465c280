package gatewaytest_test

import (
	"os"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestOneMessage(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{})
	sender := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"doc:pdf"}})
	s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{"doc:pdf"}, Subscribe: []string{"doc:pdf"}})
	client := s.Client()
	stream, err := client.ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{Types: []gateway.EventType{gateway.EventMessageReceived}})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.SendMessage(t.Context(), gateway.SendMessageRequest{
		TenantID: s.Tenant(), EndpointID: sender.ID, MessageType: "doc:pdf", IsPublish: true, Payload: []byte("hello")}); err != nil {
		t.Fatal(err)
	}
	raw, err := stream.Next()
	if err != nil {
		t.Fatal(err)
	}
	event, err := gateway.DecodeEvent(raw.Type, raw.Data)
	if err != nil || string(event.(*gateway.MessageReceived).Payload) != "hello" {
		t.Errorf("got %+v, %v, want hello", event, err)
	}
}

// The test above is what the package comment shows, word for word, and it is short and plain Go: its readers have no testkit.
func TestOneMessageIsDocumented(t *testing.T) {
	source := read(t, "onemessage_test.go")
	start := strings.Index(source, "func TestOneMessage(")
	text := source[start : start+strings.Index(source[start:], "\n}\n")+3]
	if lines := strings.Count(text, "\n"); lines > 22 {
		t.Errorf("%d lines", lines)
	}
	comment := strings.ReplaceAll("\n"+strings.TrimSuffix(text, "\n"), "\n", "\n//\t")
	testkit.Contains(t, read(t, "doc.go"), comment+"\n")
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
