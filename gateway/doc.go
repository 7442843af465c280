// Package gateway is a typed client of the agricultural data-routing gateway:
// an HTTP/JSON service with an OAuth 2.0 token endpoint and a stream of
// Server-Sent Events. It covers all six operations, the six event types,
// authentication, errors and limits. It does not depend on Watermill; packages
// publisher and subscriber build on it.
package gateway
