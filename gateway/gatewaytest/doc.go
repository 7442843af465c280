// Package gatewaytest is the gateway service itself, in memory, on a real HTTP
// listener on loopback: token endpoint, all six operations, events, lifecycle,
// limits and errors of the specification, for tests and local runs.
package gatewaytest
