package command

import (
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/emulator"
)

func newEmulatorCommand(p *program) *cobra.Command {
	config := gatewaytest.Config{ControlPrefix: emulator.ControlPrefix}
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
			config.Application = emulator.ApplicationFrom(p.env)
			if hideChunks {
				config.FileOrder = gatewaytest.FileAlone
			}
			switch {
			case config.InlineLimit < 0:
				return usagef("--inline-limit must not be negative")
			case config.InlineLimit == 0:
				config.InlineLimit = gatewaytest.NoInline
			}
			if err := emulator.Check(config); err != nil {
				return usagef("%s", err)
			}
			return emulator.Serve(cmd.Context(), config, envFile, p.stdout, p.stderr)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&config.Listen, "listen", emulator.DefaultListen, "`ADDRESS` of the service; port 0 picks a free one")
	flags.StringVar(&config.ServiceName, "service", emulator.DefaultService, "`NAME` of the service, as it appears in header names")
	flags.Int64Var(&config.ChunkSize, "chunk-size", emulator.DefaultChunkSize, "largest payload in `BYTES` that is delivered as one message")
	flags.Int64Var(&config.InlineLimit, "inline-limit", emulator.DefaultInlineLimit, "largest payload in `BYTES` that is embedded in its event; 0 embeds none")
	flags.BoolVar(&hideChunks, "hide-chunks", false, "deliver a payload above --chunk-size as FILE_RECEIVED alone, without its chunks")
	flags.BoolVar(&config.AnyContextID, "any-context-id", false, "accept context IDs of up to 50 characters of any form, not only UUIDs")
	flags.StringVar(&config.Replay, "replay", "", "play the recording of `FILE`")
	flags.Float64Var(&config.ReplaySpeed, "speed", 1, "play the recording this many `TIMES` as fast; 0 without pauses")
	flags.StringVar(&envFile, "env", "", "write the environment of the other commands to `FILE`, which is replaced")
	return cmd
}
