package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
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
	rows := [][]string{{"FILE", "MESSAGE TYPE", "BYTES", "CHUNKS", "SUBJECT", "STORED", "CONFIRMED"}}
	for _, p := range r.payloads {
		subject := p.subject
		if subject == "" {
			subject = "-"
		}
		rows = append(rows, []string{p.name, p.messageType, strconv.Itoa(p.size), strconv.Itoa(p.chunks),
			subject, yesNo(p.stored), yesNo(p.confirmed)})
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 2 || i == 3 { // numbers are right-aligned
				cell = padding + cell
			} else {
				cell += padding
			}
			line.WriteString(cell + "  ")
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
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
