package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/router"
)

// Exit statuses.
const (
	statusOK     = 0
	statusFailed = 1
	statusUsage  = 2 // also: invalid configuration
	// statusUnfinished: run was stopped and left something open.
	statusUnfinished = 3 // those above are of admin.Verdict
)

// statusError ends the program with a specific status. Without an error nothing more is
// printed: the command has said what there is to say.
type statusError struct {
	status int
	err    error
	usage  bool // it is printed with a usage line
}

// Error is the text of the cause. Without a cause it names the status and is not shown.
func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

// Unwrap returns the cause, nil if there is none.
func (e *statusError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &statusError{status: statusUsage, err: fmt.Errorf(format, args...), usage: true}
}

// invalid marks an error as an invalid configuration: status 2.
func invalid(err error) error { return &statusError{status: statusUsage, err: err} }

// exitWith ends the program with a status when the command itself has already said why.
func exitWith(status int) error { return &statusError{status: status} }

// ended ends the program with a status once everything is written.
func ended(written error, status int) error {
	if written == nil && status != statusOK {
		return exitWith(status)
	}
	return written
}

// report prints an error to stderr and returns its exit status. An error before the command
// itself began is wrong usage.
func (p *program) report(cmd *cobra.Command, began bool, err error) int {
	if err == nil {
		return statusOK
	}
	if _, flags, ok := strings.Cut(err.Error(), "none of the others can be; ["); ok { // cobra's words
		err = usagef("--%s exclude each other", strings.Join(strings.Fields(strings.TrimSuffix(flags, "] were all set")), " and --"))
	}
	status, known := errors.AsType[*statusError](err)
	switch {
	case !began, known && status.usage:
		p.notef("%s: %s\nUsage: %s\nSee: %s --help", cmd.CommandPath(), redact(err), cmd.UseLine(), cmd.CommandPath())
		return statusUsage
	case known:
		p.printInvalid(status.err)
		return status.status
	default:
		p.notef("agrimill: %s", redact(err))
		if text := admin.Advice(err); text != "" {
			p.notef("  %s", text)
		}
		return statusFailed
	}
}

// printInvalid prints what is wrong with a configuration, one line per problem. Each line
// starts with the position, in the form that editors understand.
func (p *program) printInvalid(err error) {
	var problems *config.Problems
	switch {
	case errors.As(err, &problems):
		for _, problem := range problems.List {
			p.notef("%s", redact(errors.New(problem.String())))
		}
	case err != nil:
		p.notef("agrimill: %s", redact(err))
	}
}

// redact returns the text of an error as it may be shown: without secrets and without
// control characters.
func redact(err error) string { return cell(router.RedactError(err, nil)) }
