// Command bridge runs agrimill as a program:
//
//	go run ./examples/bridge help
//	go run ./examples/bridge poison list   [--route …] [--class …] [--type …] [--since …] [--limit N] [--json]
//	go run ./examples/bridge poison show   [--payload FILE] [--json] ID
//	go run ./examples/bridge poison replay [--to-topic TEMPLATE] [--dry-run] [--json] (ID… | filter | --all)
//	go run ./examples/bridge poison drop   [--yes] [--dry-run] [--json] (ID… | filter | --all)
//	go run ./examples/bridge version       [--json]
//
// `help COMMAND` says everything about a command. docs/poison-queue.md is the
// runbook.
//
// Results go to stdout, progress and errors to stderr; neither payloads nor
// credentials go to stderr. Credentials come from files and the environment, never
// from arguments, which every user of the machine can see. The exit status is 0
// when all is done, 1 when something failed, and 2 for wrong usage and invalid
// configuration.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the program at once.
	context.AfterFunc(ctx, stop)
	p := &program{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv, now: time.Now, isTerminal: isTerminal,
	}
	status := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(status)
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
