package gatewaytest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A service in memory is that of the network, in the time of its bubble.
func TestInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := gatewaytest.New(t, gatewaytest.Config{InMemory: true, Listen: "0.0.0.0:0"})
		client := server.Client()
		sender := server.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"img:png"}})
		receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{"img:png"}})
		_, err := client.ListAuthorizedTenants(t.Context())
		testkit.NoError(t, err)
		time.Sleep(3 * time.Hour) // the token lived for one
		stream, err := client.ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{})
		testkit.NoError(t, err)
		defer stream.Close()
		_, err = server.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: "img:png", Recipients: []string{receiver.ID}, Payload: []byte("x")})
		testkit.NoError(t, err)
		event, err := stream.Next()
		testkit.NoError(t, err)
		if event.Type != gateway.EventMessageReceived {
			t.Errorf("got %v", event.Type)
		}
		_, err = client.ListAuthorizedTenants(t.Context())
		testkit.NoError(t, err)
		server.Stop()
		if _, err := client.ListAuthorizedTenants(t.Context()); err == nil {
			t.Error("a stopped server answers")
		}
	})
}
