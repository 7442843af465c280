// Command bridge is the whole of agrimill as a program, behind one configuration
// file, with commands to look after it and to talk to the gateway by hand:
//
//	go run ./examples/bridge help
//	go run ./examples/bridge run FILE                  carries messages
//	go run ./examples/bridge validate|check|schema     about the configuration
//	go run ./examples/bridge tenants                   what there is, and what can be routed
//	go run ./examples/bridge endpoints put|delete      endpoints of the application
//	go run ./examples/bridge send FILE...              sends files
//	go run ./examples/bridge tail                      shows events as they come
//	go run ./examples/bridge poison list|show|replay|drop
//	go run ./examples/bridge emulator                  a gateway to try things out
//	go run ./examples/bridge version
//
// `help COMMAND` says everything about a command; docs/bridge.md is the guide.
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
