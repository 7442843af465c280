// Command kafka-roundtrip carries farm data through the gateway into Kafka, has a
// handler make a report of each message, and sends the reports back through the
// gateway: roundtrip.go is all it takes.
//
//	go run ./examples/kafka-roundtrip [-brokers host:port,…]
//
// The gateway is one of its own. Without -brokers, and without the environment
// variable KAFKA_BROKERS, it starts an Apache Kafka broker of its own, which
// needs a JDK (17 or newer) and, the first time, Maven. It checks that every message
// is in Kafka once, that exactly one report came back for each, and that
// everything is confirmed, and ends with a line that begins with OK and status
// 0, or with FAILED and status 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/agrimill/agrimill/internal/kafkatest/broker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("kafka-roundtrip", flag.ContinueOnError)
	flags.SetOutput(stderr)
	brokers := flags.String("brokers", os.Getenv("KAFKA_BROKERS"), "addresses of Kafka brokers; empty: start one")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := run(ctx, *brokers, stdout, stderr); err != nil {
		_, _ = fmt.Fprintln(stdout, "FAILED", err)
		return 1
	}
	return 0
}

func run(ctx context.Context, brokers string, stdout, stderr io.Writer) error {
	if brokers == "" {
		_, _ = fmt.Fprintln(stderr, "starting a Kafka broker; the first time it is fetched, which takes a minute")
		dir, err := os.MkdirTemp("", "kafka-roundtrip")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }() // nothing of it is needed
		kafka, err := broker.Start(ctx, broker.Config{Dir: dir})
		if err != nil {
			return err
		}
		defer kafka.Stop()
		brokers = kafka.Addr()
	}
	return demo(ctx, strings.Split(brokers, ","), stdout, stderr)
}
