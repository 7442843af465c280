// Command secretcheck reads what `go test -json` writes and fails when any line of
// it, also of tests that pass, tells a secret that package gatewaytest made up: a
// client secret, an access token, the signature of a payload URI, as they are or in
// Base64. It prints what `go test` would print: the packages, and the output of
// what failed.
//
//	go test -json ./... | go run ./internal/secretcheck
//
// Exit status: 0 nothing was told, 1 something was told or a test failed, 2 the
// input cannot be read.
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

func main() { os.Exit(run(os.Stdin, os.Stdout)) }

// run checks everything in r and returns the exit status.
func run(r io.Reader, w io.Writer) int {
	c := &checker{out: w, outputs: map[key]*output{}}
	for _, prefix := range []string{gatewaytest.SecretPrefix, gatewaytest.TokenPrefix, gatewaytest.SignaturePrefix} {
		c.patterns = append(c.patterns, patternsOf(prefix)...)
	}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			c.line(line)
		}
		if err == io.EOF {
			return c.end()
		}
		if err != nil {
			fmt.Fprintln(w, "secretcheck:", err)
			return 2
		}
	}
}

// pattern is a text that no line may have.
type pattern struct {
	text []byte
	what string
}

// patternsOf are the prefix itself and what is left of it in Base64, where it
// may begin at any of three places, in both alphabets.
func patternsOf(prefix string) []pattern {
	patterns := []pattern{{[]byte(prefix), prefix}}
	for shift := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\x00", shift) + prefix))
		// The characters at both ends depend on what is beside the prefix.
		first, last := (shift*8+5)/6, (shift+len(prefix))*8/6
		patterns = append(patterns, pattern{[]byte(encoded[first:last]), prefix + " in Base64"})
	}
	return patterns
}

// event is what test2json writes.
type event struct {
	Action, Package, Test, Output string
}

type key struct{ pkg, test string }

// output is what a test has written that has not ended.
type output struct {
	text bytes.Buffer
	rest []byte // of a line that goes on in the next event
}

type checker struct {
	out      io.Writer
	patterns []pattern
	outputs  map[key]*output
	leaks    int
	failed   bool
	events   int
}

func (c *checker) line(line []byte) {
	var e event
	if line[0] != '{' || json.Unmarshal(line, &e) != nil || e.Action == "" {
		c.find(key{}, line) // somebody writes past the tests
		c.print(line)
		return
	}
	c.events++
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output":
		o := c.outputs[k]
		if o == nil {
			o = &output{}
			c.outputs[k] = o
		}
		o.rest = append(o.rest, e.Output...)
		if !strings.HasSuffix(e.Output, "\n") {
			return
		}
		c.take(k, o)
	case "build-output":
		c.print([]byte(e.Output))
	case "build-fail":
		c.failed = true
	case "pass", "skip":
		c.finish(k, false)
	case "fail":
		c.failed = true
		if e.Test == "" {
			// What did not end, because the process did.
			for other := range c.outputs {
				if other.pkg == e.Package && other.test != "" {
					c.finish(other, true)
				}
			}
		}
		c.finish(k, true)
	}
}

// take checks a whole line, and prints or keeps it.
func (c *checker) take(k key, o *output) {
	c.find(k, o.rest)
	switch text := string(o.rest); {
	case k.test == "" && text != "PASS\n" && !strings.HasPrefix(text, "coverage:"):
		c.print(o.rest)
	case k.test != "" && !strings.HasPrefix(text, "=== "):
		o.text.Write(o.rest)
	}
	o.rest = o.rest[:0]
}

// finish forgets what a test has written, after printing it if the test failed.
func (c *checker) finish(k key, failed bool) {
	o := c.outputs[k]
	if o == nil {
		return
	}
	delete(c.outputs, k)
	if len(o.rest) > 0 {
		c.take(k, o)
	}
	if failed {
		c.print(o.text.Bytes())
	}
}

// find reports what a line tells that it must not.
func (c *checker) find(k key, line []byte) {
	for _, p := range c.patterns {
		at := bytes.Index(line, p.text)
		if at < 0 {
			continue
		}
		if c.leaks++; c.leaks > 100 {
			return
		}
		// The rest of the line shows where it comes from; the secret itself goes no further.
		c.print(fmt.Appendf(nil, "secretcheck: %s %s tells %s…: %s\n", k.pkg, k.test, p.what, shown(line, at)))
	}
}

// shown is the part of a line before the secret.
func shown(line []byte, at int) string {
	return strings.TrimSpace(string(line[max(0, at-300):at])) + "[redacted]"
}

func (c *checker) print(text []byte) { _, _ = c.out.Write(text) } // nobody to tell

// end ends everything that did not, and judges.
func (c *checker) end() int {
	for k := range c.outputs {
		c.finish(k, true)
	}
	switch {
	case c.events == 0:
		c.print([]byte("secretcheck: this is not what go test -json writes\n"))
		return 2
	case c.leaks > 0:
		c.print(fmt.Appendf(nil, "secretcheck: %d lines tell a secret\n", c.leaks))
		return 1
	case c.failed:
		return 1
	}
	return 0
}
