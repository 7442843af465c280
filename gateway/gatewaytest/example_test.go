package gatewaytest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Onboarding from nothing: a new application and a new tenant; the user
// authorizes the application, which creates two endpoints, sends a message from
// one to the other, gets its event, confirms it, and deletes the endpoints.
func Example_onboarding() {
	ctx := context.Background()
	s, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	app := s.AddApplication(gatewaytest.ApplicationConfig{})
	tenant := s.AddTenant()
	client := app.Client()
	stream, err := client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	next := func() gateway.Event {
		raw, err := stream.Next()
		if err != nil {
			log.Fatal(err)
		}
		event, err := gateway.DecodeEvent(raw.Type, raw.Data)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.Type())
		return event
	}

	s.Authorize(app, tenant)
	added := next().(*gateway.AuthorizationAdded)
	fmt.Println("  scope", added.Scope, "with", len(added.Tenant.Endpoints), "endpoints")

	endpoint := func(externalID string, direction gateway.Direction, subscriptions ...gateway.EndpointSubscription) gateway.Endpoint {
		e, created, err := client.PutEndpoint(ctx, added.Tenant.ID, externalID, gateway.PutEndpointRequest{
			ApplicationID: app.ID, SoftwareVersionID: app.SoftwareVersionID,
			EndpointType:  gateway.EndpointTypeCloudSoftware,
			Capabilities:  []gateway.EndpointCapability{{MessageType: "img:png", Direction: direction}},
			Subscriptions: subscriptions,
		})
		if err != nil {
			log.Fatal(err)
		}
		changed := next().(*gateway.EndpointsListChanged)
		fmt.Println("  created", created, "now", len(changed.Endpoints))
		return e
	}
	sender := endpoint("urn:example:sender", gateway.DirectionSend)
	receiver := endpoint("urn:example:receiver", gateway.DirectionReceive, gateway.EndpointSubscription{MessageType: "img:png"})

	err = client.SendMessage(ctx, gateway.SendMessageRequest{
		TenantID: tenant, EndpointID: sender.ID, MessageType: "img:png", IsPublish: true,
		Filename: "field.png", Payload: []byte("an image"),
	})
	if err != nil {
		log.Fatal(err)
	}
	message := next().(*gateway.MessageReceived)
	fmt.Printf("  %s: %s\n", message.Filename, message.Payload)

	err = client.ConfirmMessages(ctx, tenant, []gateway.MessageConfirmation{{MessageID: message.ID, EndpointID: receiver.ID}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("confirmed:", s.Ledger()[0].Confirmed())

	for _, externalID := range []string{sender.ExternalID, receiver.ExternalID} {
		if err := client.DeleteEndpoint(ctx, tenant, externalID); err != nil {
			log.Fatal(err)
		}
		deleted := next().(*gateway.EndpointDeleted)
		fmt.Println(" ", deleted.ExternalID)
		changed := next().(*gateway.EndpointsListChanged)
		fmt.Println("  now", len(changed.Endpoints))
	}

	// Output:
	// AUTHORIZATION_ADDED
	//   scope endpoints:manage with 0 endpoints
	// ENDPOINTS_LIST_CHANGED
	//   created true now 1
	// ENDPOINTS_LIST_CHANGED
	//   created true now 2
	// MESSAGE_RECEIVED
	//   field.png: an image
	// confirmed: true
	// ENDPOINT_DELETED
	//   urn:example:sender
	// ENDPOINTS_LIST_CHANGED
	//   now 1
	// ENDPOINT_DELETED
	//   urn:example:receiver
	// ENDPOINTS_LIST_CHANGED
	//   now 0
}

// In a program, Start takes the place of New, and Close that of the test's end.
func ExampleStart() {
	s, err := gatewaytest.Start(gatewaytest.Config{ServiceName: "mill"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	fmt.Println(s.ServiceName(), s.ClientConfig().Validate())
	// Output: mill <nil>
}

// A token endpoint that is busy once, a confirmation whose answer is lost, an
// event stream that breaks after 100 bytes.
func ExampleServer_Inject() {
	s, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	busy := s.Inject(gatewaytest.OpToken, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Times: 1})
	s.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{DropAnswer: true, Times: 1})
	s.Inject(gatewaytest.OpEvents, gatewaytest.Fault{CutAfter: 100, Times: 1})

	tenants, err := s.Client().ListAuthorizedTenants(context.Background()) // the client asks for the token again
	fmt.Println(len(tenants), err, busy.Hits())
	// Output: 1 <nil> 1
}

// Waiting for what a test expects, instead of sleeping.
func ExampleServer_Wait() {
	s, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	sender := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"img:png"}})
	s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{"img:png"}, Subscribe: []string{"img:png"}})
	if _, err := s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: "img:png", Payload: []byte("an image")}); err != nil {
		log.Fatal(err)
	}

	// Nobody reads: the message is accepted, but not delivered.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	fmt.Println(s.WaitConfirmed(ctx, 1))
	fmt.Println(s.Wait(context.Background(), func(entries []gatewaytest.LedgerEntry) bool { return len(entries) == 1 }))
	fmt.Println(s.Ledger()[0].Delivered())
	// Output:
	// context deadline exceeded
	// <nil>
	// false
}

// A test that breaks the gateway, and then asks whether the application has stored all that it confirmed.
func ExampleServer_NoLoss() {
	test := func(t *testing.T, application func(cfg gateway.Config, dir string)) {
		s := gatewaytest.New(t, gatewaytest.Config{})
		dir := t.TempDir()
		sender := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"img:png"}})
		s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{"img:png"}, Subscribe: []string{"img:png"}})
		go application(s.ClientConfig(), dir)

		for n := range 100 {
			testkit.Must(s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: "img:png", Filename: fmt.Sprint(n, ".png")}))(t)
		}
		s.CutStreams()
		testkit.NoError(t, s.WaitConfirmed(t.Context(), 100))
		s.NoLoss(t, func(e gatewaytest.LedgerEntry) bool {
			_, err := os.Stat(filepath.Join(dir, e.Filename))
			return err == nil
		})
	}
	_ = test
}

// A session of a program with a gateway is recorded, here one in memory, and played back.
func ExampleRecorder() {
	real, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer real.Close()
	file, err := os.CreateTemp("", "session-*.jsonl")
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(file.Name())
	recorder, err := gatewaytest.NewRecorder(gatewaytest.RecorderConfig{BaseURL: real.BaseURL(), TokenURL: real.TokenURL(), To: file})
	if err != nil {
		log.Fatal(err)
	}
	front := httptest.NewServer(recorder)
	program := func(cfg gateway.Config) string { // what is recorded
		client, err := gateway.New(cfg)
		if err != nil {
			log.Fatal(err)
		}
		defer client.Close()
		tenants, err := client.ListAuthorizedTenants(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		return tenants[0].ID
	}
	cfg := real.ClientConfig()
	cfg.BaseURL, cfg.TokenURL = front.URL, front.URL+"/oauth/token"
	tenant := program(cfg)
	front.Close()
	if err := errors.Join(recorder.Close(), file.Close()); err != nil {
		log.Fatal(err)
	}

	s, err := gatewaytest.Start(gatewaytest.Config{Replay: file.Name()}) // ReplaySpeed: 1 keeps the pauses
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	fmt.Println(program(s.ClientConfig()) == tenant)
	// Output: true
}
