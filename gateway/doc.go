// Package gateway is a typed client of the agricultural data-routing gateway, without
// Watermill: sending, the event stream, confirmations, tenants and endpoints, with OAuth 2.0
// tokens, retries, a rate limit and typed errors.
//
//	client, err := gateway.New(gateway.Config{BaseURL: …, TokenURL: …, ClientID: …, ClientSecret: …})
//	…
//	tenants, err := client.ListAuthorizedTenants(ctx)
//
// One client serves a whole program. [Provisioner] keeps an endpoint in every tenant that
// authorizes the application, and [Directory] knows the current tenants and endpoints. To
// receive, use package subscriber, which reopens the stream and batches confirmations; to
// send as a Watermill publisher, package publisher. Package gatewaytest is the service in
// memory, for tests.
package gateway
