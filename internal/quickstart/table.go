package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// outcome is what became of one payload.
type outcome struct {
	name        string
	messageType string
	size        int
	// chunks is the number of messages the gateway split the payload into.
	chunks int
	// subject is where the payload was found in JetStream; empty: nowhere.
	subject                           string
	sent, received, stored, confirmed bool
}

// report is the outcome of a whole run.
type report struct {
	payloads []outcome
	// poisoned is the number of messages on the poison subject.
	poisoned int
	// mismatched is the number of stored messages that differ from what was sent: other
	// bytes, another subject, or stored twice.
	mismatched int
}

// ok reports whether every payload arrived exactly once.
func (r report) ok() bool {
	for _, p := range r.payloads {
		if !p.sent || !p.received || !p.stored || !p.confirmed {
			return false
		}
	}
	return len(r.payloads) > 0 && r.poisoned == 0 && r.mismatched == 0
}

// counts is the report in one line, every number counting payloads.
func (r report) counts() string {
	var sent, received, stored, confirmed int
	for _, p := range r.payloads {
		sent += number(p.sent)
		received += number(p.received)
		stored += number(p.stored)
		confirmed += number(p.confirmed)
	}
	return fmt.Sprintf("sent=%d received=%d stored=%d confirmed=%d poisoned=%d mismatched=%d",
		sent, received, stored, confirmed, r.poisoned, r.mismatched)
}

// lastLine is the last line of the output: OK only if err is nil and every payload made it.
func (r report) lastLine(err error) (line string, ok bool) {
	switch {
	case err != nil:
		// One line, whatever the error text contains.
		return "FAILED " + r.counts() + ": " + strings.Join(strings.Fields(err.Error()), " "), false
	case !r.ok():
		return "FAILED " + r.counts(), false
	}
	return "OK " + r.counts(), true
}

// writeTable prints one row for each payload.
func (r report) writeTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "FILE\tMESSAGE TYPE\tBYTES\tCHUNKS\tSUBJECT\tSTORED\tCONFIRMED") // Flush has the error
	for _, p := range r.payloads {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", p.name, p.messageType, p.size, p.chunks, cmp.Or(p.subject, "-"), yesNo(p.stored), yesNo(p.confirmed))
	}
	return table.Flush()
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
