package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity says whether a [Problem] prevents agrimill from running.
type Severity string

// The severities.
const (
	// SeverityError: the configuration cannot be used.
	SeverityError Severity = "error"
	// SeverityWarning: it can be used, but probably should not.
	SeverityWarning Severity = "warning"
)

// Problem is one mistake in a configuration.
type Problem struct {
	Severity Severity `json:"severity"`
	// File, Line and Column are the position; Line and Column count from 1 and are 0 if the
	// mistake has no position in the file.
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	// Path is the key, e.g. routes[1].to.sink; empty for the file as a whole.
	Path string `json:"path,omitempty"`
	// Message says what is wrong. It contains no secret.
	Message string `json:"message"`
	// Suggestion says what to do, if that is known.
	Suggestion string `json:"suggestion,omitempty"`
}

// String returns the problem as one line: FILE:LINE:COLUMN: PATH: MESSAGE; SUGGESTION.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": ")
	if p.Severity == SeverityWarning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Suggestion != "" {
		b.WriteString("; " + p.Suggestion)
	}
	return b.String()
}

// Problems is the error of [Load]: every mistake in a configuration, sorted by position.
type Problems struct {
	List []Problem
}

// Error returns one line per problem.
func (p *Problems) Error() string {
	lines := make([]string, len(p.List))
	for i, problem := range p.List {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// Errors returns how many of the problems prevent agrimill from running.
func (p *Problems) Errors() int {
	n := 0
	for _, problem := range p.List {
		if problem.Severity == SeverityError {
			n++
		}
	}
	return n
}

func (p *Problems) sort() {
	slices.SortStableFunc(p.List, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message))
	})
	p.List = slices.Compact(p.List)
}
