package main

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDemo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := demo(ctx, 100, "iso:11783:-10:taskdata:zip"); err != nil {
		t.Fatal(err)
	}
}

// Neither a failed start nor one that is interrupted leaves a connection behind.
func TestNothingIsLeftBehind(t *testing.T) {
	gate := gatewaytest.New(t, gatewaytest.Config{})
	server := natstest.Start(t)
	if err := run(t.Context(), gate.ClientConfig(), "nats://127.0.0.1:1"); err == nil {
		t.Error("no NATS server, and no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, gate.ClientConfig(), server.URL()); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	testkit.Eventually(t, "no connection is left", func() bool { return server.Server().NumClients() == 0 })
}
