// Package emulator runs the in-memory gateway service (package gatewaytest) as a
// program. It implements the command agrimill emulator.
package emulator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// ControlPrefix is the path below which the control API is served.
const ControlPrefix = "/_control"

// Defaults of flags.
const (
	DefaultListen            = "127.0.0.1:8081"
	DefaultService           = "router"
	DefaultChunkSize   int64 = 1 << 20
	DefaultInlineLimit int64 = 32 << 10
)

// Environment variables that [ApplicationFrom] reads.
const (
	EnvClientID          = "EMULATOR_CLIENT_ID"
	EnvClientSecret      = "EMULATOR_CLIENT_SECRET"
	EnvApplicationID     = "EMULATOR_APPLICATION_ID"
	EnvSoftwareVersionID = "EMULATOR_SOFTWARE_VERSION_ID"
)

// ApplicationFrom returns the application described by the environment, for
// programs that need to know the credentials before the emulator runs.
func ApplicationFrom(env func(string) string) gatewaytest.ApplicationConfig {
	return gatewaytest.ApplicationConfig{
		ClientID: env(EnvClientID), ClientSecret: env(EnvClientSecret),
		ID: env(EnvApplicationID), SoftwareVersionID: env(EnvSoftwareVersionID),
	}
}

// Check reports what the configuration has that is not allowed, by the flag or the environment variable that set it.
func Check(cfg gatewaytest.Config) error {
	switch {
	case cfg.ChunkSize < 1:
		return errors.New("--chunk-size must be at least 1")
	case !(cfg.ReplaySpeed >= 0 && cfg.ReplaySpeed <= math.MaxFloat64): // rejects NaN, too
		return errors.New("--speed must not be negative")
	}
	for _, id := range [][2]string{{EnvApplicationID, cfg.Application.ID}, {EnvSoftwareVersionID, cfg.Application.SoftwareVersionID}} {
		if id[1] != "" && (uuid.Validate(id[1]) != nil || len(id[1]) != len(uuid.Nil.String())) {
			return fmt.Errorf("the environment variable %s must be a UUID, or empty for a random one", id[0])
		}
	}
	return cfg.Validate()
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

// Environment returns the lines of a shell that export what agrimill takes from the environment.
func (d Description) Environment() string {
	var lines strings.Builder
	for _, v := range [][2]string{
		{"BASE_URL", d.BaseURL}, {"TOKEN_URL", d.TokenURL}, {"CLIENT_ID", d.ClientID}, {"CLIENT_SECRET", d.ClientSecret},
		{"APPLICATION_ID", d.ApplicationID}, {"SOFTWARE_VERSION_ID", d.SoftwareVersionID}, {"SERVICE", d.Service},
	} {
		fmt.Fprintf(&lines, "export AGRIMILL_%s='%s'\n", v[0], strings.ReplaceAll(v[1], "'", `'\''`))
	}
	return lines.String()
}

// write replaces a file by the environment, with permissions for its owner only.
func (d Description) write(path string) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".agrimill-env-")
	if err != nil {
		return err
	}
	_, err = file.WriteString(d.Environment())
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
	}
	return err
}

// Serve runs the service until ctx ends, which is not an error. When the service is
// reachable, it replaces envFile, unless that is empty, by [Description.Environment], and writes one
// line to stdout, a [Description] in JSON. logs receives one line per request, without secrets and payloads.
func Serve(ctx context.Context, cfg gatewaytest.Config, envFile string, stdout, logs io.Writer) error {
	logger := slog.New(slog.NewTextHandler(logs, nil))
	cfg.Logger = logger
	s, err := gatewaytest.Start(cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	app := s.Application()
	described := Description{
		BaseURL: s.BaseURL(), TokenURL: s.TokenURL(), ClientID: app.ClientID, ClientSecret: app.ClientSecret,
		ApplicationID: app.ID, SoftwareVersionID: app.SoftwareVersionID, TenantID: s.Tenant(), Service: s.ServiceName(),
	}
	line, err := json.Marshal(described)
	if err != nil {
		return err
	}
	if envFile != "" {
		if err := described.write(envFile); err != nil {
			return fmt.Errorf("the file with the environment: %w", err)
		}
	}
	if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil {
		return err
	}
	logger.Info("emulator ready", "base_url", s.BaseURL(), "control_api", s.BaseURL()+ControlPrefix)
	<-ctx.Done()
	logger.Info("emulator stopping")
	return nil
}
