package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// readStdin calls read with stdin and returns when it does, or when ctx ends. A read from a
// terminal or a pipe cannot be interrupted: in that case the goroutine ends with stdin, or
// with the process.
func (p *program) readStdin(ctx context.Context, read func(stdin io.Reader) error) error {
	return await(ctx, func() error { return read(p.stdin) })
}

// await returns when do does, or when ctx ends: then do, which knows no context, is left alone.
func await(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-done:
		return err
	}
}

// errDeclined: the user did not answer yes.
var errDeclined = errors.New("nothing was done: not confirmed")

// confirm asks the user and returns nil for yes.
func (p *program) confirm(ctx context.Context, question string) error {
	if _, err := fmt.Fprintf(p.stderr, "%s [y/N] ", question); err != nil {
		return err
	}
	var answer string
	err := p.readStdin(ctx, func(stdin io.Reader) error {
		text, err := bufio.NewReader(io.LimitReader(stdin, 1<<10)).ReadString('\n')
		if !errors.Is(err, io.EOF) && err != nil {
			return err
		}
		answer = text
		return nil
	})
	if err != nil {
		p.notef("") // after the question
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}
