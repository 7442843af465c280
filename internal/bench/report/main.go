// Command report reads the output of `go test -bench` on standard input, of one
// run or of several one after the other, and prints tables of medians: each
// benchmark beside its floor or peer from the same run, and beside its aim.
//
// What it reads it shows on standard error, as it comes.
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
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
