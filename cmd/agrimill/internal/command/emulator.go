package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// controlPrefix is the path below which the emulator's control API is served.
const controlPrefix = "/_control"

func newEmulatorCommand(p *program) *cobra.Command {
	settings := gatewaytest.Config{ControlPrefix: controlPrefix}
	var envFile string
	var hideChunks bool
	cmd := &cobra.Command{
		Use:     "emulator",
		GroupID: groupOther,
		Short:   "run an in-memory gateway to try things out",
		Long: `Runs the gateway service in memory until SIGINT or SIGTERM: the token endpoint, all
operations and the event stream, with one application and one tenant that has
authorized it. Nothing survives the process.

The application's IDs and credentials are random unless set in the environment:
EMULATOR_CLIENT_ID, EMULATOR_CLIENT_SECRET, EMULATOR_APPLICATION_ID and
EMULATOR_SOFTWARE_VERSION_ID.

The first line on stdout is a JSON object with base_url, token_url, client_id,
client_secret, application_id, software_version_id, tenant_id and service; nothing
else goes to stdout. Logs go to stderr, one line per request. {base_url}/_control is an
API, on loopback only, for more tenants, routes, faults and the clock: see
docs/emulator.md.

--replay answers from a recording of "agrimill record", with the pauses of the service; --speed 10
shortens them to a tenth, and 0 leaves them out.

--env writes the variables of the other commands and of a configuration (AGRIMILL_BASE_URL,
AGRIMILL_CLIENT_SECRET and so on) to a file for a shell: ". FILE". Only you can read it.`,
		Example: `  agrimill emulator --env agrimill.env
  agrimill emulator | tee emulator.json
  agrimill emulator --listen 127.0.0.1:0 --chunk-size 65536
  agrimill emulator --replay session.jsonl --speed 10`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings.Application = gatewaytest.ApplicationConfig{
				ClientID: p.env("EMULATOR_CLIENT_ID"), ClientSecret: p.env("EMULATOR_CLIENT_SECRET"),
				ID: p.env("EMULATOR_APPLICATION_ID"), SoftwareVersionID: p.env("EMULATOR_SOFTWARE_VERSION_ID"),
			}
			if hideChunks {
				settings.FileOrder = gatewaytest.FileAlone
			}
			switch {
			case settings.InlineLimit < 0:
				return usagef("--inline-limit must not be negative")
			case settings.InlineLimit == 0:
				settings.InlineLimit = gatewaytest.NoInline
			}
			if err := checkEmulated(settings); err != nil {
				return usagef("%s", err)
			}
			return p.emulate(cmd.Context(), settings, envFile)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&settings.Listen, "listen", "127.0.0.1:8081", "`ADDRESS` of the service; port 0 picks a free one")
	flags.StringVar(&settings.ServiceName, "service", "router", "`NAME` of the service, as it appears in header names")
	flags.Int64Var(&settings.ChunkSize, "chunk-size", 1<<20, "largest payload in `BYTES` that is delivered as one message")
	flags.Int64Var(&settings.InlineLimit, "inline-limit", 32<<10, "largest payload in `BYTES` that is embedded in its event; 0 embeds none")
	flags.BoolVar(&hideChunks, "hide-chunks", false, "deliver a payload above --chunk-size as FILE_RECEIVED alone, without its chunks")
	flags.BoolVar(&settings.AnyContextID, "any-context-id", false, "accept context IDs of up to 50 characters of any form, not only UUIDs")
	flags.StringVar(&settings.Replay, "replay", "", "play the recording of `FILE`")
	flags.Float64Var(&settings.ReplaySpeed, "speed", 1, "play the recording this many `TIMES` as fast; 0 without pauses")
	flags.StringVar(&envFile, "env", "", "write the environment of the other commands to `FILE`, which is replaced")
	return cmd
}

// checkEmulated names what is not allowed by the flag or the environment variable that set it.
func checkEmulated(settings gatewaytest.Config) error {
	switch {
	case !isAddress(settings.Listen):
		return fmt.Errorf("--listen must be host:port, not %q", settings.Listen)
	case settings.ChunkSize < 1:
		return errors.New("--chunk-size must be at least 1")
	case !(settings.ReplaySpeed >= 0 && settings.ReplaySpeed <= math.MaxFloat64): // rejects NaN, too
		return errors.New("--speed must not be negative")
	case settings.ReplaySpeed != 1 && settings.Replay == "":
		return errors.New("--speed needs --replay")
	}
	for _, id := range [][2]string{{"APPLICATION", settings.Application.ID}, {"SOFTWARE_VERSION", settings.Application.SoftwareVersionID}} {
		if id[1] != "" && !config.IsUUID(id[1]) {
			return fmt.Errorf("the environment variable EMULATOR_%s_ID must be a UUID, or empty for a random one", id[0])
		}
	}
	return mistaken(settings.Validate(), map[string]string{"ServiceName": "--service"})
}

// emulated is the first line on stdout.
type emulated struct {
	BaseURL           string `json:"base_url"`
	TokenURL          string `json:"token_url"`
	ClientID          string `json:"client_id"`
	ClientSecret      string `json:"client_secret"`
	ApplicationID     string `json:"application_id"`
	SoftwareVersionID string `json:"software_version_id"`
	TenantID          string `json:"tenant_id"`
	Service           string `json:"service"`
}

// environment returns the lines of a shell that export what agrimill takes from the environment.
func (e emulated) environment() string {
	var lines strings.Builder
	for _, v := range [][2]string{
		{"BASE_URL", e.BaseURL}, {"TOKEN_URL", e.TokenURL}, {"CLIENT_ID", e.ClientID}, {"CLIENT_SECRET", e.ClientSecret},
		{"APPLICATION_ID", e.ApplicationID}, {"SOFTWARE_VERSION_ID", e.SoftwareVersionID}, {"SERVICE", e.Service},
	} {
		fmt.Fprintf(&lines, "export AGRIMILL_%s='%s'\n", v[0], strings.ReplaceAll(v[1], "'", `'\''`))
	}
	return lines.String()
}

// write replaces a file by the environment, with permissions for its owner only.
func (e emulated) write(path string) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".agrimill-env-")
	if err != nil {
		return err
	}
	_, err = file.WriteString(e.environment())
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
	}
	return err
}

// emulate runs the service until ctx ends, which is not an error.
func (p *program) emulate(ctx context.Context, settings gatewaytest.Config, envFile string) error {
	settings.Logger = slog.New(slog.NewTextHandler(p.stderr, nil))
	var s *gatewaytest.Server
	err := await(ctx, func() (err error) { // a recording may be a pipe
		s, err = gatewaytest.Start(settings)
		return err
	})
	if err != nil {
		return err
	}
	defer s.Close()
	app := s.Application()
	described := emulated{
		BaseURL: s.BaseURL(), TokenURL: s.TokenURL(), ClientID: app.ClientID, ClientSecret: app.ClientSecret,
		ApplicationID: app.ID, SoftwareVersionID: app.SoftwareVersionID, TenantID: s.Tenant(), Service: s.ServiceName(),
	}
	if envFile != "" {
		if err := described.write(envFile); err != nil {
			return fmt.Errorf("the file with the environment: %w", err)
		}
	}
	if err := p.writeLine(described); err != nil {
		return err
	}
	settings.Logger.Info("emulator ready", "base_url", s.BaseURL(), "control_api", s.BaseURL()+controlPrefix)
	<-ctx.Done()
	settings.Logger.Info("emulator stopping")
	return nil
}
