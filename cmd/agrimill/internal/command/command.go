// Package command has the commands of agrimill, one file per command. Each command
// gets what it needs of the outside world from a program value, so that tests run it
// without a process.
package command

import (
	"cmp"
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Main runs the command that args name, without the program's own name, and returns
// the exit status. It uses the standard streams, the environment and the signals of the
// process.
//
// SIGINT and SIGTERM ask the command to finish: run drains first, the others stop. A
// second signal ends the process at once.
func Main(args []string, build Build) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // from here on signals have their default effect again
	p := &program{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv, now: time.Now, isTerminal: isTerminal, build: build,
	}
	return p.run(ctx, args)
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            func(string) string
	now            func() time.Time
	// isTerminal reports whether a person is at the other end of stdin, stdout or
	// stderr.
	isTerminal func(stream any) bool
	build      Build
	asJSON     bool // --json was given
	help       helpOutput
}

func (p *program) run(ctx context.Context, args []string) int {
	root := newRootCommand(p)
	began := false
	root.PersistentPreRun = func(*cobra.Command, []string) { began = true } // the arguments are accepted
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if p.help.err != nil {
		err, began = p.help.err, true
	}
	status := p.report(cmd, began, err)
	if buffer, ok := p.stderr.(*logBuffer); ok {
		buffer.Close()
	}
	return status
}

// helpOutput keeps what went wrong when cobra wrote help, which does not look.
type helpOutput struct {
	io.Writer
	err error
}

func (o *helpOutput) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	o.err = cmp.Or(o.err, err)
	return n, err
}
