package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/router"
)

// Exit statuses.
const (
	statusOK     = 0
	statusFailed = 1
	statusUsage  = 2 // also: invalid configuration
)

// usageError is a mistake in the arguments. It is told with a line that says how
// the command is to be used.
type usageError struct{ text string }

// Error says what is wrong with the arguments.
func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// statusError ends the program with a status of its own. Without an error nothing
// more is told: the command has said what there is to say.
type statusError struct {
	status int
	err    error
}

// Error is the text of the cause. Without one it names the status, and is not shown.
func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

// Unwrap returns the cause, nil when there is none.
func (e *statusError) Unwrap() error { return e.err }

// invalid says that a configuration is not valid: status 2.
func invalid(err error) error { return &statusError{statusUsage, err} }

// told ends the program with a status after the command itself has said why.
func told(status int) error { return &statusError{status: status} }

// report tells an error on stderr and returns the exit status that goes with it.
// What went wrong before the command itself began is wrong usage.
func (p *program) report(cmd *cobra.Command, began bool, err error) int {
	var usage *usageError
	var status *statusError
	switch {
	case err == nil:
		return statusOK
	case errors.As(err, &usage), !began:
		p.notef("%s: %s\nUsage: %s\nSee: %s --help", cmd.CommandPath(), redact(err), useLine(cmd), cmd.CommandPath())
		return statusUsage
	case errors.As(err, &status):
		p.tellInvalid(status.err)
		return status.status
	default:
		p.notef("bridge: %s", redact(err))
		if text := advice(err); text != "" {
			p.notef("  %s", text)
		}
		return statusFailed
	}
}

// tellInvalid tells what is wrong with a configuration: a line for each problem,
// which begins with its place, as editors understand it.
func (p *program) tellInvalid(err error) {
	var problems *config.Problems
	switch {
	case errors.As(err, &problems):
		for _, problem := range problems.List {
			p.notef("%s", redact(errors.New(problem.String())))
		}
	case err != nil:
		p.notef("bridge: %s", redact(err))
	}
}

// redact is an error as it may be shown: without secrets, and without what could
// do something to a terminal.
func redact(err error) string { return cell(router.RedactError(err, nil)) }
