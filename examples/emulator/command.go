package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

const controlPrefix = "/_control"

// description is the first line on stdout.
type description struct {
	BaseURL           string `json:"base_url"`
	TokenURL          string `json:"token_url"`
	ClientID          string `json:"client_id"`
	ClientSecret      string `json:"client_secret"`
	ApplicationID     string `json:"application_id"`
	SoftwareVersionID string `json:"software_version_id"`
	TenantID          string `json:"tenant_id"`
	Service           string `json:"service"`
}

// command runs the emulator until ctx ends and returns the exit status: 0 after
// a clean end, 1 when it could not start, 2 for bad flags.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "emulator:", err)
		return 2
	}
	cfg.Logger = slog.New(slog.NewTextHandler(stderr, nil))
	if err := serve(ctx, cfg, stdout); err != nil {
		_, _ = fmt.Fprintln(stderr, "emulator:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (gatewaytest.Config, error) {
	cfg := gatewaytest.Config{ControlPrefix: controlPrefix}
	flags := flag.NewFlagSet("emulator", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1:8081", "address of the service; port 0 picks a free one")
	flags.StringVar(&cfg.ServiceName, "service", "router", "the service's own name, as it stands in header names")
	flags.Int64Var(&cfg.ChunkSize, "chunk-size", 1<<20, "largest payload in bytes that is delivered as one message")
	flags.Int64Var(&cfg.InlineLimit, "inline-limit", 64<<10, "largest payload in bytes that is embedded in its event; 0 embeds none")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	switch {
	case flags.NArg() > 0:
		return cfg, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case cfg.ChunkSize < 1:
		return cfg, errors.New("-chunk-size must be at least 1")
	case cfg.InlineLimit < 0:
		return cfg, errors.New("-inline-limit must not be negative")
	case cfg.InlineLimit == 0:
		cfg.InlineLimit = gatewaytest.NoInline
	}
	return cfg, cfg.Validate()
}

func serve(ctx context.Context, cfg gatewaytest.Config, stdout io.Writer) error {
	s, err := gatewaytest.Start(cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	app := s.Application()
	line, err := json.Marshal(description{
		BaseURL: s.BaseURL(), TokenURL: s.TokenURL(), ClientID: app.ClientID, ClientSecret: app.ClientSecret,
		ApplicationID: app.ID, SoftwareVersionID: app.SoftwareVersionID, TenantID: s.Tenant(), Service: s.ServiceName(),
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil {
		return err
	}
	cfg.Logger.Info("the emulator is ready", "base_url", s.BaseURL(), "control_api", s.BaseURL()+controlPrefix)
	<-ctx.Done()
	cfg.Logger.Info("the emulator ends")
	return nil
}
