// Command quickstart sends farm files through a gateway into NATS JetStream and shows that
// every one of them arrived.
//
// Everything it needs runs inside the process, on loopback: the gateway (package
// gatewaytest) and a NATS server with JetStream. One endpoint publishes the files, another
// receives them, the router stores them in JetStream under subjects built from tenant and
// message type, and an independent consumer reads them back and compares their SHA-256 with
// what was sent.
//
//	go run ./internal/quickstart [-dir FOLDER] [-timeout 1m]
//
// Without -dir it sends generated samples. With -dir it sends the files directly in the
// folder, up to 31 MiB each; subfolders and files whose name begins with a dot are skipped.
// The message type is derived from the name and is application:octet-stream for unknown
// kinds.
//
// Progress goes to stderr; a table goes to stdout, and then the last line, either
//
//	OK sent=N received=N stored=N confirmed=N poisoned=0 mismatched=0
//
// where N counts payloads, with exit status 0, or a line that begins with
// FAILED, with exit status 1.
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
	"time"

	"github.com/agrimill/agrimill/internal/demo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// command runs the program with the given arguments and streams, and returns the exit
// status.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("dir", "", "folder with the files to send; empty: generated samples")
	timeout := flags.Duration("timeout", time.Minute, "time limit for the whole run")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}

	var result report
	if err == nil {
		progress := newProgress(stderr)
		var files []demo.File
		if files, err = input(*dir, progress); err == nil {
			ctx, cancel := context.WithTimeoutCause(ctx, *timeout,
				fmt.Errorf("not finished within %s (see -timeout)", *timeout))
			result, err = run(ctx, files, progress)
			cancel()
		}
	}
	if len(result.payloads) > 0 {
		if tableErr := result.writeTable(stdout); err == nil {
			err = tableErr
		}
	}
	line, ok := result.lastLine(err)
	if _, err := fmt.Fprintln(stdout, line); err != nil || !ok {
		return 1
	}
	return 0
}

// input returns what to send.
func input(dir string, progress *progress) ([]demo.File, error) {
	if dir == "" {
		progress.printf("no -dir given: generating samples")
		return demo.LongAcre()
	}
	files, skipped, err := demo.ReadFolder(dir)
	for _, name := range skipped {
		progress.printf("skipped %s: not a visible file directly in the folder", name)
	}
	return files, err
}
