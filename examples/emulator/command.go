package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/emulator"
)

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
	if err := emulator.Serve(ctx, cfg, stdout, stderr); err != nil {
		_, _ = fmt.Fprintln(stderr, "emulator:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (gatewaytest.Config, error) {
	var options emulator.Options
	flags := flag.NewFlagSet("emulator", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&options.Listen, "listen", emulator.DefaultListen, "address of the service; port 0 picks a free one")
	flags.StringVar(&options.Service, "service", emulator.DefaultService, "the service's own name, as it stands in header names")
	flags.Int64Var(&options.ChunkSize, "chunk-size", emulator.DefaultChunkSize, "largest payload in bytes that is delivered as one message")
	flags.Int64Var(&options.InlineLimit, "inline-limit", emulator.DefaultInlineLimit, "largest payload in bytes that is embedded in its event; 0 embeds none")
	if err := flags.Parse(args); err != nil {
		return gatewaytest.Config{}, err
	}
	if flags.NArg() > 0 {
		return gatewaytest.Config{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return options.Config("-")
}
