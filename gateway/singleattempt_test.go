package gateway_test

import (
	"context"
	"fmt"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// The caller has other work to do and comes back to what failed.
func ExampleSingleAttempt() {
	s, client, _, _ := start(gatewaytest.Config{})
	defer stop(s, client)
	s.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503, Times: 1})

	_, err := client.ListAuthorizedTenants(gateway.SingleAttempt(context.Background()))
	fmt.Println(gateway.Retryable(err), s.Stats(gatewaytest.OpListTenants).Requests)
	// Output: true 1
}
