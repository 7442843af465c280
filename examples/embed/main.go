// Command embed is agrimill in a program of one's own: bridge.go is all it takes
// from the gateway into NATS JetStream.
//
//	go run ./examples/embed [-nats URL -gateway URL -token URL]
//
// With the addresses, and the credentials of the application in the environment
// variables CLIENT_ID and CLIENT_SECRET, it runs until SIGINT or SIGTERM. Without
// any it starts a gateway and a NATS server of its own, sends messages through,
// and checks that each of them is stored once and confirmed. The exit status is
// 0 when all is well, else 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/agrimill/agrimill/gateway"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Getenv, os.Stdout)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string, env func(string) string, out io.Writer) error {
	flags := flag.NewFlagSet("embed", flag.ContinueOnError)
	natsURL := flags.String("nats", "", "address of the NATS server")
	config := gateway.Config{ClientID: env("CLIENT_ID"), ClientSecret: env("CLIENT_SECRET")}
	flags.StringVar(&config.BaseURL, "gateway", "", "address of the gateway")
	flags.StringVar(&config.TokenURL, "token", "", "address for tokens")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch given := []bool{*natsURL != "", config.BaseURL != "", config.TokenURL != ""}; {
	case given[0] && given[1] && given[2]:
		return bridge(ctx, config, *natsURL)
	case given[0] || given[1] || given[2]:
		return errors.New("-nats, -gateway and -token are needed together")
	default:
		return demo(ctx, out)
	}
}
