// Command benchreport reads the output of `go test -bench` from standard input, of one run
// or of several in sequence, and prints tables of medians: each benchmark next to its floor
// or peer from the same run, and next to its aim.
//
// It echoes its input to standard error as it arrives.
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "benchreport:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out, echo io.Writer) error {
	results, err := parse(in, echo)
	if err != nil {
		return err
	}
	return write(out, results)
}
