package testkit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
)

// Log is a logger that records its lines. Its methods return copies.
type Log struct {
	lines *logLines
	with  watermill.LogFields
}

type logLines struct {
	mu   sync.Mutex
	list []watermill.CapturedMessage
}

// NewLog returns an empty log.
func NewLog() *Log { return &Log{lines: &logLines{}} }

// Lines returns the lines with the given levels in order, or all lines without levels.
func (l *Log) Lines(levels ...watermill.LogLevel) []watermill.CapturedMessage {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	var lines []watermill.CapturedMessage
	for _, line := range l.lines.list {
		if len(levels) == 0 || slices.Contains(levels, line.Level) {
			lines = append(lines, line)
		}
	}
	return lines
}

// Texts returns each line as text: level, message, error and fields.
func (l *Log) Texts() []string {
	var texts []string
	for _, line := range l.Lines() {
		texts = append(texts, fmt.Sprintf("%s %s err=%v %v", levelNames[line.Level], line.Msg, line.Err, line.Fields))
	}
	return texts
}

// String returns [Log.Texts], one per line.
func (l *Log) String() string { return strings.Join(l.Texts(), "\n") }

var levelNames = map[watermill.LogLevel]string{
	watermill.ErrorLogLevel: "ERROR",
	watermill.InfoLogLevel:  "INFO",
	watermill.DebugLogLevel: "DEBUG",
	watermill.TraceLogLevel: "TRACE",
}

func (l *Log) add(level watermill.LogLevel, msg string, err error, fields watermill.LogFields) {
	line := watermill.CapturedMessage{Level: level, Msg: msg, Err: err, Fields: maps.Clone(l.with.Add(fields))}
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	l.lines.list = append(l.lines.list, line)
}

// Error implements watermill.LoggerAdapter.
func (l *Log) Error(msg string, err error, fields watermill.LogFields) {
	l.add(watermill.ErrorLogLevel, msg, err, fields)
}

// Info implements watermill.LoggerAdapter.
func (l *Log) Info(msg string, fields watermill.LogFields) {
	l.add(watermill.InfoLogLevel, msg, nil, fields)
}

// Debug implements watermill.LoggerAdapter.
func (l *Log) Debug(msg string, fields watermill.LogFields) {
	l.add(watermill.DebugLogLevel, msg, nil, fields)
}

// Trace implements watermill.LoggerAdapter.
func (l *Log) Trace(msg string, fields watermill.LogFields) {
	l.add(watermill.TraceLogLevel, msg, nil, fields)
}

// With implements watermill.LoggerAdapter, for the same lines.
func (l *Log) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return &Log{lines: l.lines, with: l.with.Add(fields)}
}

// Output is text that one goroutine writes and another reads.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String returns what has been written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
