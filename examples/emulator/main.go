// Command emulator is the gateway service in memory (package gatewaytest), for
// curl and for applications in any language.
//
//	go run ./examples/emulator [-listen 127.0.0.1:8081] [-service router]
//	                           [-chunk-size BYTES] [-inline-limit BYTES]
//
// It creates one application, whose software version allows every message type
// in both directions, and one tenant that authorized it. The first line on
// stdout is one JSON object with base_url, token_url, client_id, client_secret,
// application_id, software_version_id, tenant_id and service; nothing else goes
// to stdout. Logs go to stderr, one line a request. SIGTERM and SIGINT end it
// with exit status 0.
//
// More tenants and applications, what the user does (authorizations, routes,
// deletions), faults, the clock and the ledger of deliveries are reached through
// the control API below {base_url}/_control, on loopback only; package
// gatewaytest documents it, and docs/getting-started.md shows both with curl.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
