package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agrimill/agrimill/router"
)

// Exit statuses.
const (
	statusOK     = 0
	statusFailed = 1
	statusUsage  = 2
)

// program is what commands see of the world.
type program struct {
	stdout, stderr io.Writer
	env            func(string) string
	now            func() time.Time
}

// command is one command, or a group of them.
type command struct {
	name  string
	args  string // the arguments besides flags, for help
	short string // one line
	long  string // whole paragraphs
	group []command
	// define declares the flags and returns what runs with them. Nil for groups.
	define func(flags *flag.FlagSet) action
}

// action runs a command with its arguments besides flags.
type action func(ctx context.Context, p *program, args []string) error

// bridge is the tree of all commands.
func bridge() command {
	return command{
		name:  "bridge",
		short: "farm data between the gateway and brokers",
		long: `Results go to stdout, progress and errors to stderr. Flags may stand before or
after other arguments, with one dash or two.

Exit status: 0 all is done, 1 something failed, 2 wrong usage.`,
		group: []command{poisonCommand(), versionCommand()},
	}
}

// usageError is a mistake in the arguments.
type usageError struct {
	text string
	path string // of the command, set by dispatch
	line string // how the command is to be used, set by dispatch
}

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{text: fmt.Sprintf(format, args...)} }

// run is the program; it returns the exit status.
func (p *program) run(ctx context.Context, args []string) int {
	err := p.dispatch(ctx, bridge(), "bridge", args)
	var usage *usageError
	switch {
	case err == nil:
		return statusOK
	case errors.As(err, &usage):
		p.notef("%s: %s\nUsage: %s\nSee: bridge help%s", usage.path, router.RedactError(usage, nil), usage.line, strings.TrimPrefix(usage.path, "bridge"))
		return statusUsage
	default:
		p.notef("bridge: %s", router.RedactError(err, nil))
		return statusFailed
	}
}

// notef writes a line to stderr. There is nowhere to tell that it failed.
func (p *program) notef(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stderr, format+"\n", args...)
}

// dispatch finds the command that the arguments name, and runs it.
func (p *program) dispatch(ctx context.Context, c command, path string, args []string) error {
	if c.define == nil {
		return p.dispatchGroup(ctx, c, path, args)
	}
	flags := newFlags()
	run := c.define(flags)
	rest, err := parse(flags, args)
	if errors.Is(err, flag.ErrHelp) {
		return p.help(c, path)
	}
	if err == nil {
		err = run(ctx, p, rest)
	} else {
		err = usagef("%s", err)
	}
	return located(err, path, c.usage(path))
}

func (p *program) dispatchGroup(ctx context.Context, c command, path string, args []string) error {
	if len(args) == 0 {
		return located(usagef("a command is needed: %s", c.names()), path, c.usage(path))
	}
	name := args[0]
	switch {
	case name == "help":
		return p.helpFor(c, path, args[1:])
	case name == "-h" || name == "-help" || name == "--help":
		return p.help(c, path)
	}
	for _, sub := range c.group {
		if sub.name == name {
			return p.dispatch(ctx, sub, path+" "+name, args[1:])
		}
	}
	return located(usagef("no command %q; there are: %s", name, c.names()), path, c.usage(path))
}

// located tells a usage error where it happened.
func located(err error, path, line string) error {
	var usage *usageError
	if errors.As(err, &usage) && usage.path == "" {
		usage.path, usage.line = path, line
	}
	return err
}

func (c command) names() string {
	var names []string
	for _, sub := range c.group {
		names = append(names, sub.name)
	}
	return strings.Join(append(names, "help"), ", ")
}

func (c command) usage(path string) string {
	if c.define == nil {
		return path + " COMMAND [flags]"
	}
	return strings.TrimSpace(path + " [flags] " + c.args)
}

// helpFor writes the help of the command that names lead to.
func (p *program) helpFor(c command, path string, names []string) error {
	for _, name := range names {
		found := false
		for _, sub := range c.group {
			if sub.name == name {
				c, path, found = sub, path+" "+name, true
				break
			}
		}
		if !found {
			return located(usagef("no command %q; there are: %s", name, c.names()), path, c.usage(path))
		}
	}
	return p.help(c, path)
}

// help writes the help of a command to stdout.
func (p *program) help(c command, path string) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s\n\nUsage: %s\n", path, c.short, c.usage(path))
	if c.long != "" {
		fmt.Fprintf(&text, "\n%s\n", c.long)
	}
	if len(c.group) > 0 {
		text.WriteString("\nCommands:\n")
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		for _, sub := range c.group {
			_, _ = fmt.Fprintf(table, "  %s\t%s\n", sub.name, sub.short)
		}
		_, _ = fmt.Fprint(table, "  help\tsay more about a command\n")
		_ = table.Flush() // into memory
	}
	if c.define != nil {
		flags := newFlags()
		c.define(flags)
		text.WriteString("\nFlags:\n")
		flags.SetOutput(&text)
		flags.PrintDefaults()
	}
	_, err := io.WriteString(p.stdout, text.String())
	return err
}

// writeJSON writes a value to stdout as JSON.
func (p *program) writeJSON(value any) error {
	encoder := json.NewEncoder(p.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
