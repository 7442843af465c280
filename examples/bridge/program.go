package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

// program is what commands see of the world.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            func(string) string
	now            func() time.Time
	// isTerminal reports whether a person is at the other end of stdin, stdout or
	// stderr.
	isTerminal func(stream any) bool
}

// run is the program; it returns the exit status.
func (p *program) run(ctx context.Context, args []string) int {
	root := newRootCommand(p)
	began := false
	watch(root, &began)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return p.report(cmd, began, err)
}

// watch makes every command below cmd say that it has begun, that is that its
// arguments were taken.
func watch(cmd *cobra.Command, began *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*began = true
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		watch(sub, began)
	}
}

// notef writes a line to stderr. There is nowhere to tell that it failed.
func (p *program) notef(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stderr, format+"\n", args...)
}

// writeJSON writes a value to stdout as JSON.
func (p *program) writeJSON(value any) error {
	encoder := json.NewEncoder(p.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
