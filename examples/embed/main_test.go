package main

import (
	"context"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func none(string) string { return "" }

func TestDemo(t *testing.T) {
	var out strings.Builder
	if err := command(t.Context(), nil, none, &out); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "OK: 100 messages") {
		t.Errorf("got %q", out.String())
	}
}

// The demo's check finds what it is there to find.
func TestCheckFindsWhatIsWrong(t *testing.T) {
	server := gatewaytest.New(t, gatewaytest.Config{})
	natsURL, stop, err := startNATS()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := check(t.Context(), server.Ledger(), natsURL); err == nil {
		t.Error("no stream, and no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := demo(ctx, &strings.Builder{}); err == nil {
		t.Error("interrupted, and no error")
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{"-nats", "nats://127.0.0.1:1"}, {"-gateway", "http://127.0.0.1:1", "-token", "http://127.0.0.1:1"}, {"-nonsense"}} {
		if err := command(t.Context(), args, none, &strings.Builder{}); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
	if err := command(t.Context(), []string{"-h"}, none, &strings.Builder{}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
	// Addresses and credentials reach the bridge, which has nothing to talk to.
	args := []string{"-nats", "nats://127.0.0.1:1", "-gateway", "http://127.0.0.1:1", "-token", "http://127.0.0.1:1/token"}
	err := command(t.Context(), args, func(key string) string { return key }, &strings.Builder{})
	if err == nil || strings.Contains(err.Error(), "CLIENT_SECRET") {
		t.Errorf("got %v", err)
	}
}

// TestLines holds what the example is about: a whole bridge in 25 lines.
func TestLines(t *testing.T) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "bridge.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			if lines := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1; lines > 25 {
				t.Errorf("%s has %d lines, want at most 25", f.Name.Name, lines)
			}
		}
	}
}
