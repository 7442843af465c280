package sse

import (
	"bytes"
	"strings"
	"time"
)

// result is what a whole stream yields.
type result struct {
	events []record
	retry  time.Duration
	hasRe  bool
}

// record is an event, or a skipped one.
type record struct {
	name, data string
	tooLarge   bool
}

// reference interprets a whole stream the slow and obvious way, following the
// wording of the standard, but without event IDs: decode, split into lines, process line by line.
func reference(input []byte, limit int) result {
	var res result
	input = bytes.TrimPrefix(input, []byte("\xEF\xBB\xBF"))
	var name string
	var data []byte
	hasData, skip := false, false
	lines, rest := referenceLines(input)
	for _, line := range lines {
		if line == "" {
			if !skip && hasData {
				res.events = append(res.events, record{name: name, data: string(data)})
			}
			name, data, hasData, skip = "", nil, false, false
			continue
		}
		if skip {
			continue
		}
		field, value := line, ""
		for i := range len(line) {
			if line[i] == ':' {
				field, value = line[:i], line[i+1:]
				break
			}
		}
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
		switch field {
		case "event", "data", "retry":
			size := len(name) + len(data) + len(value)
			if field == "data" && hasData {
				size++
			}
			// Our own rule, not the standard's.
			if size > limit {
				res.events = append(res.events, record{name: name, tooLarge: true})
				skip = true
				continue
			}
		}
		switch field {
		case "event":
			name = value
		case "data":
			if hasData {
				data = append(data, '\n')
			}
			data, hasData = append(data, value...), true
		case "retry":
			if d, ok := referenceRetry(value); ok {
				res.retry, res.hasRe = d, true
			}
		}
	}
	// An unfinished line counts for nothing, but may already be too long.
	if field, value, ok := strings.Cut(rest, ":"); ok && !skip {
		switch field {
		case "event", "data", "retry":
			size := len(name) + len(data) + len(strings.TrimPrefix(value, " "))
			if field == "data" && hasData {
				size++
			}
			if size > limit {
				res.events = append(res.events, record{name: name, tooLarge: true})
			}
		}
	}
	return res
}

// referenceLines returns the lines that have an end, and what is after them.
func referenceLines(input []byte) (lines []string, rest string) {
	var line []byte
	for i := 0; i < len(input); i++ {
		switch input[i] {
		case '\r':
			if i+1 < len(input) && input[i+1] == '\n' {
				i++
			}
			lines, line = append(lines, string(line)), nil
		case '\n':
			lines, line = append(lines, string(line)), nil
		default:
			line = append(line, input[i])
		}
	}
	return lines, string(line)
}

func referenceRetry(value string) (time.Duration, bool) {
	if value == "" {
		return 0, false
	}
	const most = int64(1<<63-1) / 1e6
	n := int64(0)
	for _, c := range []byte(value) {
		if c < '0' || c > '9' {
			return 0, false
		}
		if n = n*10 + int64(c-'0'); n > most {
			n = most
		}
	}
	return time.Duration(n) * time.Millisecond, true
}
