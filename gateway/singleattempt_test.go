package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// The caller has other work to do and comes back to what failed.
func ExampleSingleAttempt() {
	s, client, _, _ := start(gatewaytest.Config{})
	defer stop(s, client)
	s.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503, Times: 1})

	_, err := client.ListAuthorizedTenants(gateway.SingleAttempt(context.Background()))
	fmt.Println(gateway.Retryable(err))
	// Output: true
}

func TestSingleAttempt(t *testing.T) {
	server := gatewaytest.New(t, gatewaytest.Config{})
	client, err := gateway.New(server.ClientConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	server.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503, Times: 1})
	_, err = client.ListAuthorizedTenants(gateway.SingleAttempt(t.Context()))
	if !errors.Is(err, gateway.ErrUnavailable) || server.Stats(gatewaytest.OpListTenants).Requests != 1 {
		t.Errorf("%v after %d requests", err, server.Stats(gatewaytest.OpListTenants).Requests)
	}
	if _, err := client.ListAuthorizedTenants(gateway.SingleAttempt(t.Context())); err != nil {
		t.Error(err)
	}
}
