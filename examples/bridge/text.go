package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// cell is a text fit for a terminal and a table.
func cell(text string) string {
	if text == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}

// shorten cuts a text to a number of characters.
func shorten(text string, limit int) string {
	runes := []rune(text)
	if len(runes) <= limit {
		return text
	}
	return string(runes[:limit-1]) + "…"
}

func timeCell(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// plural is a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
