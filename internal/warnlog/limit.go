package warnlog

import (
	"sync"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/ratelog"
)

// PerMessage is how many errors with the same text are logged per minute if each concerns
// a different message: enough to see what is wrong with them.
const PerMessage = 20

// Limit returns a logger that logs errors with the same text at most burst times per
// minute. Further ones are logged at level debug, and their number is added to the next
// one that is logged. Texts must be constants: each one is remembered.
func Limit(logger watermill.LoggerAdapter, burst int) watermill.LoggerAdapter {
	return &limited{LoggerAdapter: logger, lines: &lines{burst: burst, byText: map[string]*ratelog.Line{}}}
}

type limited struct {
	watermill.LoggerAdapter
	lines *lines // shared with the loggers that With returns
}

type lines struct {
	burst  int
	mu     sync.Mutex
	byText map[string]*ratelog.Line
}

func (l *lines) line(text string) *ratelog.Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.byText[text]
	if line == nil {
		line = &ratelog.Line{Burst: l.burst}
		l.byText[text] = line
	}
	return line
}

// Error implements [watermill.LoggerAdapter].
func (l *limited) Error(msg string, err error, fields watermill.LogFields) {
	suppressed, ok := l.lines.line(msg).Next()
	switch {
	case !ok:
		l.Debug(msg, fields.Add(watermill.LogFields{"error": err}))
	case suppressed > 0:
		l.LoggerAdapter.Error(msg, err, fields.Add(watermill.LogFields{ratelog.Field: suppressed}))
	default:
		l.LoggerAdapter.Error(msg, err, fields)
	}
}

// Warn implements [Warner].
func (l *limited) Warn(msg string, fields watermill.LogFields) { Warn(l.LoggerAdapter, msg, fields) }

// With implements [watermill.LoggerAdapter].
func (l *limited) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return &limited{LoggerAdapter: l.LoggerAdapter.With(fields), lines: l.lines}
}
