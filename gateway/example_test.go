package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// start gives the examples a service in memory with a sender and a receiver, and a client.
func start(cfg gatewaytest.Config) (s *gatewaytest.Server, client *gateway.Client, sender, receiver gateway.Endpoint) {
	s, err := gatewaytest.Start(cfg)
	if err != nil {
		log.Fatal(err)
	}
	client, err = gateway.New(s.ClientConfig())
	if err != nil {
		log.Fatal(err)
	}
	types := []string{"img:png", "doc:pdf"}
	sender = s.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "farm:sender", Send: types})
	receiver = s.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "farm:receiver", Receive: types, Subscribe: types[:1]})
	return s, client, sender, receiver
}

func stop(s *gatewaytest.Server, client *gateway.Client) {
	_ = client.Close()
	s.Close()
}

func ExampleNew() {
	client, err := gateway.New(gateway.Config{
		BaseURL:      "https://gateway.example",
		TokenURL:     "https://auth.example/token",
		ClientID:     "my-application",
		ClientSecret: "from a vault",
		ServiceName:  "router", // the service's own name in x-router-tenant-id
		Retry:        gateway.RetryConfig{MaxAttempts: 10, MaxBackoff: time.Minute},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	cfg := client.Config()
	fmt.Println(cfg.StreamIdleTimeout, cfg.MaxPayloadSize>>20, cfg.Retry.InitialBackoff, cfg.ClientSecret == "")

	_, err = gateway.New(gateway.Config{})
	fmt.Println(errors.Is(err, gateway.ErrInvalid))
	// Output:
	// 2m0s 256 500ms true
	// true
}

// A message is sent, received, and confirmed after it has been taken care of.
func Example() {
	s, client, sender, _ := start(gatewaytest.Config{})
	defer stop(s, client)
	ctx := context.Background()

	stream, err := client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{Types: []gateway.EventType{gateway.EventMessageReceived}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = stream.Close() }()

	err = client.SendMessage(ctx, gateway.SendMessageRequest{
		TenantID: s.Tenant(), EndpointID: sender.ID, MessageType: "img:png", IsPublish: true,
		Filename: "Acker.png", Payload: []byte("a picture"),
	})
	if err != nil {
		log.Fatal(err)
	}

	raw, err := stream.Next()
	if err != nil {
		log.Fatal(err)
	}
	event, err := gateway.DecodeEvent(raw.Type, raw.Data)
	if err != nil {
		log.Fatal(err)
	}
	msg, ok := event.(*gateway.MessageReceived)
	if !ok {
		log.Fatalf("got %s", event.Type())
	}
	fmt.Printf("%s %s %q\n", msg.MessageType, msg.Filename, msg.Payload)

	err = client.ConfirmMessages(ctx, msg.TenantID, []gateway.MessageConfirmation{
		{MessageID: msg.ID, EndpointID: msg.ReceivingEndpointID},
	})
	fmt.Println("confirmed:", err == nil)
	// Output:
	// img:png Acker.png "a picture"
	// confirmed: true
}

// A direct recipient needs no subscription. The two ways in which direct
// recipients are not reached have a sentinel each.
func ExampleClient_SendMessage() {
	s, client, sender, receiver := start(gatewaytest.Config{})
	defer stop(s, client)

	send := func(recipients ...string) error {
		return client.SendMessage(context.Background(), gateway.SendMessageRequest{
			TenantID: s.Tenant(), EndpointID: sender.ID, MessageType: "doc:pdf",
			DirectRecipients: recipients, Payload: []byte("%PDF-"),
		})
	}
	nobody := "00000000-0000-4000-8000-000000000000"
	fmt.Println("reached:", send(receiver.ID) == nil)
	fmt.Println("reached nobody:", errors.Is(send(nobody), gateway.ErrNoRecipients))
	fmt.Println("reached some:", errors.Is(send(receiver.ID, nobody), gateway.ErrPartialDelivery))
	// Output:
	// reached: true
	// reached nobody: true
	// reached some: true
}

// A payload that is not in memory is opened anew for each attempt.
func ExampleClient_SendMessage_stream() {
	s, client, sender, _ := start(gatewaytest.Config{})
	defer stop(s, client)

	payload := bytes.Repeat([]byte("x"), 1<<20) // a file, an object in a bucket
	err := client.SendMessage(context.Background(), gateway.SendMessageRequest{
		TenantID: s.Tenant(), EndpointID: sender.ID, MessageType: "img:png", IsPublish: true,
		Size: int64(len(payload)),
		Body: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(payload)), nil },
	})
	fmt.Println(err)
	// Output: <nil>
}

func ExampleClient_ReceiveEvents() {
	s, client, sender, _ := start(gatewaytest.Config{})
	defer stop(s, client)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range 2 {
		if err := client.SendMessage(ctx, gateway.SendMessageRequest{
			TenantID: s.Tenant(), EndpointID: sender.ID, MessageType: "img:png", IsPublish: true, Payload: []byte("x"),
		}); err != nil {
			log.Fatal(err)
		}
	}

	stream, err := client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	for received := 0; ; {
		event, err := stream.Next()
		switch {
		case errors.Is(err, gateway.ErrEventTooLarge):
			continue // the stream goes on
		case errors.Is(err, context.Canceled):
			fmt.Println("the end")
			return
		case err != nil: // io.EOF, ErrIdle, ErrUnavailable
			fmt.Println("reconnect after a backoff")
			return
		}
		if event.Type != gateway.EventMessageReceived {
			continue
		}
		fmt.Println(event.Type)
		if received++; received == 2 {
			cancel()
		}
	}
	// Output:
	// MESSAGE_RECEIVED
	// MESSAGE_RECEIVED
	// the end
}

func ExampleClient_OpenPayload() {
	s, client, sender, _ := start(gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
	defer stop(s, client)
	ctx := context.Background()
	if err := client.SendMessage(ctx, gateway.SendMessageRequest{
		TenantID: s.Tenant(), EndpointID: sender.ID, MessageType: "img:png", IsPublish: true, Payload: []byte("a picture"),
	}); err != nil {
		log.Fatal(err)
	}
	stream, err := client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{Types: []gateway.EventType{gateway.EventMessageReceived}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	raw, err := stream.Next()
	if err != nil {
		log.Fatal(err)
	}
	event, err := gateway.DecodeEvent(raw.Type, raw.Data)
	if err != nil {
		log.Fatal(err)
	}

	const unknown = -1 // a MESSAGE_RECEIVED does not announce the size
	payload, err := client.OpenPayload(ctx, event.(*gateway.MessageReceived).PayloadURI, unknown)
	if errors.Is(err, gateway.ErrPayloadExpired) {
		log.Fatal("reconnect for a fresh address")
	}
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = payload.Close() }()
	data, err := io.ReadAll(payload)
	fmt.Printf("%d bytes: %q %v\n", payload.Size(), data, err)
	// Output: 9 bytes: "a picture" <nil>
}

func ExampleClient_ConfirmMessages() {
	s, client, _, receiver := start(gatewaytest.Config{StrictConfirmations: true})
	defer stop(s, client)
	err := client.ConfirmMessages(context.Background(), s.Tenant(), []gateway.MessageConfirmation{
		{MessageID: "00000000-0000-4000-8000-000000000000", EndpointID: receiver.ID},
	})
	fmt.Println(errors.Is(err, gateway.ErrBadRequest))
	err = client.ConfirmMessages(context.Background(), s.Tenant(), nil)
	fmt.Println(err)
	// Output:
	// true
	// gateway: confirm messages: confirmations must have at least 1 item
}

func ExampleClient_ListAuthorizedTenants() {
	s, client, _, _ := start(gatewaytest.Config{})
	defer stop(s, client)
	tenants, err := client.ListAuthorizedTenants(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range tenants {
		fmt.Println(t.ID == s.Tenant(), len(t.Endpoints))
	}
	// Output: true 2
}

func ExampleClient_ListTenantEndpoints() {
	s, client, sender, receiver := start(gatewaytest.Config{})
	defer stop(s, client)
	endpoints, err := client.ListTenantEndpoints(context.Background(), s.Tenant())
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range endpoints {
		if e.ID == sender.ID {
			fmt.Println(e.ExternalID, "can send", e.RoutedEndpoints.CanSendTo[receiver.ID])
		}
	}
	// Output: farm:sender can send [doc:pdf img:png]
}

func ExampleClient_PutEndpoint() {
	s, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	ctx := context.Background()
	client, err := gateway.New(s.ClientConfig())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()

	request := gateway.PutEndpointRequest{
		Name:              "Hof Müller",
		ApplicationID:     s.Application().ID,
		SoftwareVersionID: s.Application().SoftwareVersionID,
		EndpointType:      gateway.EndpointTypeCloudSoftware,
		Capabilities:      []gateway.EndpointCapability{{MessageType: "img:png", Direction: gateway.DirectionSendReceive}},
		Subscriptions:     []gateway.EndpointSubscription{{MessageType: "img:png"}},
	}
	for range 2 {
		endpoint, created, err := client.PutEndpoint(ctx, s.Tenant(), "urn:farm:mueller/1?x#y", request)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(endpoint.ExternalID, "created:", created)
	}
	// Output:
	// urn:farm:mueller/1?x#y created: true
	// urn:farm:mueller/1?x#y created: false
}

func ExampleClient_DeleteEndpoint() {
	s, client, _, _ := start(gatewaytest.Config{})
	defer stop(s, client)
	fmt.Println(client.DeleteEndpoint(context.Background(), s.Tenant(), "farm:sender"))
	err := client.DeleteEndpoint(context.Background(), s.Tenant(), "farm:sender")
	fmt.Println(errors.Is(err, gateway.ErrNotFound))
	// Output:
	// <nil>
	// true
}

func ExampleClient_RateLimit() {
	s, client, _, _ := start(gatewaytest.Config{})
	defer stop(s, client)
	state := client.RateLimit()
	fmt.Println(state.Limited, state.Rejected)
	// Output: false 0
}

func ExampleError() {
	err := error(&gateway.Error{Op: "send message", StatusCode: 503, Message: "try later", Attempts: 5})
	fmt.Println(err)
	fmt.Println(errors.Is(err, gateway.ErrUnavailable), gateway.Retryable(err))
	var e *gateway.Error
	if errors.As(err, &e) {
		fmt.Println(e.StatusCode)
	}
	// Output:
	// gateway: send message: status 503 Service Unavailable: "try later" (after 5 attempts)
	// true true
	// 503
}

func ExampleRetryable() {
	fmt.Println(gateway.Retryable(&gateway.Error{StatusCode: 503}))
	fmt.Println(gateway.Retryable(&gateway.Error{StatusCode: 413, ErrorResponse: true}))
	fmt.Println(gateway.Retryable(&gateway.Error{StatusCode: 413, ContentType: "text/html"})) // a proxy's page
	// Output:
	// true
	// false
	// true
}

func ExampleValidateExternalID() {
	fmt.Println(gateway.ValidateExternalID("urn:farm:field/7?part=2#north"))
	fmt.Println(gateway.ValidateExternalID("field-7"))
	// Output:
	// <nil>
	// externalId must have two parts, separated by a colon, such as example:farm
}

func ExampleValidateEndpointName() {
	fmt.Println(gateway.ValidateEndpointName("Hof Müller, 東"))
	fmt.Println(gateway.ValidateEndpointName("a/b"))
	// Output:
	// <nil>
	// name must consist of letters, digits, spaces and - _ . , :
}

func ExamplePutEndpointRequest_Validate() {
	err := gateway.PutEndpointRequest{
		ApplicationID:     "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
		SoftwareVersionID: "7c9e6679-7425-40de-944b-e07fc1f90ae7",
		EndpointType:      gateway.EndpointTypeTelemetryPlatform,
	}.Validate()
	fmt.Println(err)
	// Output: invalid request: endpoint_type must not be a legacy type: it can be read but not created
}
