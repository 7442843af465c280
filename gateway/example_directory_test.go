package gateway_test

import (
	"context"
	"fmt"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// Sync fills the directory at start and after every reconnect; in between, every
// event of the stream is given to it.
func ExampleDirectory() {
	server, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "Office", Send: []string{"img:jpeg"}})
	receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "Archive", Receive: []string{"img:jpeg"}})

	client, err := gateway.New(server.ClientConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	directory := gateway.NewDirectory(client)
	if err := directory.Sync(context.Background()); err != nil {
		fmt.Println(err)
		return
	}

	tenant, _ := directory.TenantOf(sender.ID)
	fmt.Println("in the default tenant:", tenant == server.Tenant())
	for _, e := range directory.Mine(tenant) {
		fmt.Println("mine:", e.Name)
	}
	from, _ := directory.Endpoint(sender.ID)
	for id, types := range from.RoutedEndpoints.CanSendTo {
		to, _ := directory.Endpoint(id)
		fmt.Println("can be sent:", to.Name, types)
	}

	directory.HandleEvent(&gateway.EndpointDeleted{ID: receiver.ID, ExternalID: receiver.ExternalID})
	from, _ = directory.Endpoint(sender.ID)
	fmt.Println("after the deletion:", len(from.RoutedEndpoints.CanSendTo))
	// Output:
	// in the default tenant: true
	// mine: Office
	// mine: Archive
	// can be sent: Archive [img:jpeg]
	// after the deletion: 0
}
