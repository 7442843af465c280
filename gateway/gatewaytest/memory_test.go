package gatewaytest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A service in memory is that of the network, in the time of its bubble, whatever it speaks.
func TestInMemory(t *testing.T) {
	for name, cfg := range map[string]gatewaytest.Config{"HTTP": {}, "TLS": {TLS: true}, "HTTP2": {TLS: true, HTTP2: true}} {
		cfg.InMemory, cfg.Listen = true, "0.0.0.0:0"
		t.Run(name, func(t *testing.T) { inMemory(t, cfg) })
	}
}

func inMemory(t *testing.T, cfg gatewaytest.Config) {
	synctest.Test(t, func(t *testing.T) {
		server := gatewaytest.New(t, cfg)
		client := server.Client()
		answer := testkit.Must(server.HTTPClient().Get(server.BaseURL()))(t)
		testkit.NoError(t, answer.Body.Close())
		if answer.ProtoMajor == 2 != cfg.HTTP2 || (answer.TLS != nil) != cfg.TLS {
			t.Errorf("the answer is %s with %v", answer.Proto, answer.TLS)
		}
		sender := server.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"img:png"}})
		receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{"img:png"}})
		testkit.Must(client.ListAuthorizedTenants(t.Context()))(t)
		time.Sleep(3 * time.Hour) // the token lived for one
		stream := testkit.Must(client.ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{}))(t)
		defer stream.Close()
		testkit.Must(server.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: "img:png", Recipients: []string{receiver.ID}, Payload: []byte("x")}))(t)
		event := testkit.Must(stream.Next())(t)
		if event.Type != gateway.EventMessageReceived {
			t.Errorf("got %v", event.Type)
		}
		testkit.Must(client.ListAuthorizedTenants(t.Context()))(t)
		server.Stop()
		if _, err := client.ListAuthorizedTenants(t.Context()); err == nil {
			t.Error("a stopped server answers")
		}
	})
}
