// Package emulator runs the gateway service in memory (package gatewaytest) as a
// program: what examples/emulator and the bridge's emulator command share.
package emulator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// ControlPrefix is the path below which the control API answers.
const ControlPrefix = "/_control"

// Defaults of the flags that set [Options].
const (
	DefaultListen            = "127.0.0.1:8081"
	DefaultService           = "router"
	DefaultChunkSize   int64 = 1 << 20
	DefaultInlineLimit int64 = 64 << 10
)

// Options are what a person may choose. There are no defaults here: the flags
// have them.
type Options struct {
	// Listen is the address of the service; port 0 picks a free one.
	Listen string
	// Service is the service's own name, as it stands in header names.
	Service string
	// ChunkSize is the largest payload in bytes that is delivered as one message,
	// at least 1.
	ChunkSize int64
	// InlineLimit is the largest payload in bytes that is embedded in its event;
	// 0 embeds none.
	InlineLimit int64
	// Application are the IDs and credentials of the application. What is empty
	// is generated.
	Application gatewaytest.ApplicationConfig
}

// Variables of the environment that [ApplicationFrom] reads.
const (
	EnvClientID          = "EMULATOR_CLIENT_ID"
	EnvClientSecret      = "EMULATOR_CLIENT_SECRET"
	EnvApplicationID     = "EMULATOR_APPLICATION_ID"
	EnvSoftwareVersionID = "EMULATOR_SOFTWARE_VERSION_ID"
)

// ApplicationFrom returns the application that the environment describes, for a
// program that has to know the credentials before the emulator runs.
func ApplicationFrom(env func(string) string) gatewaytest.ApplicationConfig {
	return gatewaytest.ApplicationConfig{
		ClientID: env(EnvClientID), ClientSecret: env(EnvClientSecret),
		ID: env(EnvApplicationID), SoftwareVersionID: env(EnvSoftwareVersionID),
	}
}

// Config returns the configuration of the server, or says which option makes no
// sense, under the name of its flag: dashes are what stands before that.
func (o Options) Config(dashes string) (gatewaytest.Config, error) {
	cfg := gatewaytest.Config{
		ControlPrefix: ControlPrefix, Listen: o.Listen, ServiceName: o.Service, ChunkSize: o.ChunkSize, InlineLimit: o.InlineLimit,
		Application: o.Application,
	}
	switch {
	case o.ChunkSize < 1:
		return cfg, fmt.Errorf("%schunk-size must be at least 1", dashes)
	case o.InlineLimit < 0:
		return cfg, fmt.Errorf("%sinline-limit must not be negative", dashes)
	case o.InlineLimit == 0:
		cfg.InlineLimit = gatewaytest.NoInline
	}
	return cfg, cfg.Validate()
}

// Description is the first line on stdout.
type Description struct {
	BaseURL           string `json:"base_url"`
	TokenURL          string `json:"token_url"`
	ClientID          string `json:"client_id"`
	ClientSecret      string `json:"client_secret"`
	ApplicationID     string `json:"application_id"`
	SoftwareVersionID string `json:"software_version_id"`
	TenantID          string `json:"tenant_id"`
	Service           string `json:"service"`
}

// Serve runs the service until ctx ends; that is no error. It writes one line to
// stdout, a [Description] in JSON, when the service can be reached. logs gets a
// line a request, without secrets and payloads.
func Serve(ctx context.Context, cfg gatewaytest.Config, stdout, logs io.Writer) error {
	logger := slog.New(slog.NewTextHandler(logs, nil))
	cfg.Logger = logger
	s, err := gatewaytest.Start(cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	app := s.Application()
	line, err := json.Marshal(Description{
		BaseURL: s.BaseURL(), TokenURL: s.TokenURL(), ClientID: app.ClientID, ClientSecret: app.ClientSecret,
		ApplicationID: app.ID, SoftwareVersionID: app.SoftwareVersionID, TenantID: s.Tenant(), Service: s.ServiceName(),
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil {
		return err
	}
	logger.Info("the emulator is ready", "base_url", s.BaseURL(), "control_api", s.BaseURL()+ControlPrefix)
	<-ctx.Done()
	logger.Info("the emulator ends")
	return nil
}
