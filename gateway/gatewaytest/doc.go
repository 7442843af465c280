// Package gatewaytest is an in-memory implementation of the gateway service on a real
// HTTP listener on loopback: the token endpoint, all six operations, the event
// stream, routing, lifecycle, limits and errors of the specification. It is meant for
// application tests and local runs. It does not depend on the client of
// package gateway: any HTTP client can use it.
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
//		if err != nil {
//			t.Fatal(err)
//		}
//		if err := client.SendMessage(t.Context(), gateway.SendMessageRequest{
//			TenantID: s.Tenant(), EndpointID: sender.ID, MessageType: "doc:pdf", IsPublish: true, Payload: []byte("hello")}); err != nil {
//			t.Fatal(err)
//		}
//		raw, err := stream.Next()
//		if err != nil {
//			t.Fatal(err)
//		}
//		event, err := gateway.DecodeEvent(raw.Type, raw.Data)
//		if err != nil || string(event.(*gateway.MessageReceived).Payload) != "hello" {
//			t.Errorf("got %+v, %v, want hello", event, err)
//		}
//	}
//
// # What it can do
//
//   - Configure: [Config] contains every decision that the specification leaves
//     open, and the limits.
//   - Populate: [Server.AddApplication], [Server.AddTenant], [Server.AddEndpoint],
//     and [Server.Send] for messages without HTTP.
//   - Act as the user: [Server.Authorize], [Server.Revoke],
//     [Server.DeleteEndpointByUser], [Server.SetUserName], [Server.SetRoute].
//   - Inject faults: [Server.Inject] for one operation, [Server.CutStreams],
//     [Server.StallStreams], [Server.EmitRaw], [Server.RedeliverUnconfirmed],
//     [Server.ExpireTokens], [Server.Stop] and [Server.Restart].
//   - Observe: [Server.Ledger] has an entry for every message at every receiving
//     endpoint, with its digest, deliveries and confirmations; [Server.Wait] and
//     its variants block, without polling, until the ledger looks as expected;
//     [Server.NoLoss] compares it with what is stored; [Server.OnConfirm] and
//     [Server.Stats].
//   - Control time: [Server.Advance].
//   - Find leaks: all secrets begin with [SecretPrefix], [TokenPrefix] or
//     [SignaturePrefix].
//   - Replay what a real gateway answered: [Recorder] and [Config.Replay].
//
// The same is available over HTTP below [Config.ControlPrefix]; see control.go.
// The command `agrimill emulator` uses it.
//
// # Recordings
//
// A recording has a JSON object per line. The first one has gateway_recording (the version of
// the format, 1), started (a date-time), and payloads (whether they were kept). Each of the others
// is something that happened to one request:
//
//   - at: microseconds since the beginning; request: the number of the request, from 1.
//   - method, path: the request itself, without query, headers and body; always first.
//   - status, header: the head of the answer, with the headers Content-Type, Content-Length (of payloads),
//     Content-Range, Accept-Ranges, Etag and Retry-After.
//   - body: what came next of its body, as a list of parts: whole lines of an event stream, other text at once.
//   - end: complete, cut (by the gateway) or client (the program went away); always last.
//
// A part is text; or bytes (base64) that are no text; or payload_uri, the number of a URI, whose
// download has the path /payloads/ with that number; or size, sha256 and as of what was left out: a payload, or
// what might be one, because it could not be read. as says what it was: raw, base64, base64url, either of those
// "without padding", or unreadable. It is played as other bytes of the same size, which depend on the digest alone.
//
// Within a line of an event stream there is no rhythm, and a redirect of a payload URI leads past the recorder.
//
// # Differences from a real service
//
// Everything is in memory and lost at the end. Messages are kept until they are
// confirmed, without a time limit. The service speaks HTTP/1.1 by default. Each file of
// the package that represents an operation begins with what it implements.
package gatewaytest
