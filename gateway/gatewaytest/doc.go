// Package gatewaytest is the gateway service itself, in memory, on a real HTTP
// listener on loopback: the token endpoint, all six operations, the event
// stream, routing, lifecycle, limits and errors of the specification, for the
// tests of applications and for local runs. No part of it knows the client of
// package gateway: whatever speaks HTTP can use it.
//
// # In a test
//
// [New] starts a server with an application and a tenant that has authorized it,
// and stops it when the test ends. A test that sends one message and expects one
// event:
//
//	func TestOneMessage(t *testing.T) {
//		s := gatewaytest.New(t, gatewaytest.Config{})
//		sender := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"doc:pdf"}})
//		s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{"doc:pdf"}, Subscribe: []string{"doc:pdf"}})
//		client := s.Client()
//		stream, err := client.ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{Types: []gateway.EventType{gateway.EventMessageReceived}})
//		require.NoError(t, err)
//		require.NoError(t, client.SendMessage(t.Context(), gateway.SendMessageRequest{
//			TenantID: s.Tenant(), EndpointID: sender.ID, MessageType: "doc:pdf", IsPublish: true, Payload: []byte("hello")}))
//		raw, err := stream.Next()
//		require.NoError(t, err)
//		event, err := gateway.DecodeEvent(raw.Type, raw.Data)
//		require.NoError(t, err)
//		require.Equal(t, "hello", string(event.(*gateway.MessageReceived).Payload))
//	}
//
// # What can be done with it
//
//   - Configure: [Config] holds every decision that the specification leaves
//     open, and the limits.
//   - Populate: [Server.AddApplication], [Server.AddTenant], [Server.AddEndpoint],
//     and [Server.Send] for messages without HTTP.
//   - Play the user: [Server.Authorize], [Server.Revoke],
//     [Server.DeleteEndpointByUser], [Server.SetUserName], [Server.SetRoute].
//   - Break things: [Server.Inject] for one operation, [Server.CutStreams],
//     [Server.StallStreams], [Server.EmitRaw], [Server.RedeliverUnconfirmed],
//     [Server.ExpireTokens], [Server.Stop] and [Server.Restart].
//   - Observe: [Server.Ledger] has an entry for every message at every receiving
//     endpoint, with its digest, deliveries and confirmations; [Server.Wait] and
//     its variants block until it looks as expected, without polling;
//     [Server.OnConfirm] and [Server.Stats].
//   - Move time: [Server.Advance].
//   - Find leaks: what is secret begins with [SecretPrefix], [TokenPrefix] or
//     [SignaturePrefix].
//
// The same is available over HTTP below [Config.ControlPrefix]; see control.go.
// The program examples/emulator makes use of that.
//
// # Differences from a real service
//
// Everything is in memory and gone at the end. Messages are kept until they are
// confirmed, without a time limit. The service speaks HTTP/1.1. Each file of
// the package that stands for an operation begins with what it honours.
package gatewaytest
