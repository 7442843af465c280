package gateway_test

import (
	"context"
	"fmt"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

func ExampleProvisioner() {
	server, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client, err := gateway.New(server.ClientConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	results := make(chan gateway.ProvisionResult, 2)
	provisioner, err := gateway.NewProvisioner(gateway.ProvisionerConfig{
		Client:     client,
		ExternalID: "urn:example:archive",
		Endpoint: gateway.PutEndpointRequest{
			Name:              "Archive",
			ApplicationID:     server.Application().ID,
			SoftwareVersionID: server.Application().SoftwareVersionID,
			Capabilities:      []gateway.EndpointCapability{{MessageType: "img:jpeg", Direction: gateway.DirectionReceive}},
			Subscriptions:     []gateway.EndpointSubscription{{MessageType: "img:jpeg"}},
		},
		OnResult: func(r gateway.ProvisionResult) { results <- r },
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	// At start: every tenant that there is.
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- provisioner.Run(ctx) }() // ends with ctx
	fmt.Println("at start:", (<-results).Created)

	// Later: every tenant that comes.
	tenant := server.AddTenant()
	server.Authorize(server.Application(), tenant)
	provisioner.HandleEvent(&gateway.AuthorizationAdded{
		Tenant: gateway.TenantInfo{ID: tenant},
		Scope:  gateway.ScopeEndpointsManage,
	})
	fmt.Println("later:", (<-results).Created)
	cancel()
	fmt.Println("end:", <-done)
	// Output:
	// at start: true
	// later: true
	// end: <nil>
}
