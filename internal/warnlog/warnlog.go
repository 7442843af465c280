// Package warnlog adds what Watermill's loggers lack: a warning level, and a limit
// for repeated errors.
package warnlog

import (
	"context"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/ratelog"
)

// Prefix begins a warning if the logger has no level for it.
const Prefix = "Warning: "

// Warner is an optional interface of a [watermill.LoggerAdapter]. Its Warn logs at level
// warning, as Info does at level info.
type Warner interface {
	Warn(msg string, fields watermill.LogFields)
}

// Warn logs a warning with the logger's own Warn if it has one, otherwise at level info
// with Prefix.
func Warn(logger watermill.LoggerAdapter, msg string, fields watermill.LogFields) {
	if warner, ok := logger.(Warner); ok {
		warner.Warn(msg, fields)
		return
	}
	logger.Info(Prefix+msg, fields)
}

// Or returns the logger, and one that discards all output for nil.
func Or(logger watermill.LoggerAdapter) watermill.LoggerAdapter {
	if logger == nil {
		return watermill.NopLogger{}
	}
	return logger
}

// Limited warns as often as line allows.
func Limited(line *ratelog.Line, logger watermill.LoggerAdapter, msg string, fields watermill.LogFields) {
	if suppressed, ok := line.Next(); ok {
		Warn(logger, msg, Counted(fields, suppressed))
	}
}

// Counted adds to the fields of a line how many were left out before it.
func Counted(fields watermill.LogFields, suppressed int) watermill.LogFields {
	if suppressed > 0 {
		fields[ratelog.Field] = suppressed
	}
	return fields
}

// Adapter is Watermill's adapter for a [slog.Logger], with support for warnings.
type Adapter struct {
	watermill.LoggerAdapter
	logger *slog.Logger
	levels map[slog.Level]slog.Level
}

var _ Warner = (*Adapter)(nil)

// New returns an adapter. levels maps the levels of Watermill's log lines like
// [watermill.NewSlogLoggerWithLevelMapping] does; it may be nil.
func New(logger *slog.Logger, levels map[slog.Level]slog.Level) *Adapter {
	return &Adapter{watermill.NewSlogLoggerWithLevelMapping(logger, levels), logger, levels}
}

// Warn implements [Warner].
func (a *Adapter) Warn(msg string, fields watermill.LogFields) {
	a.logger.LogAttrs(context.Background(), slog.LevelWarn, msg, attrs(fields)...)
}

// With implements [watermill.LoggerAdapter].
func (a *Adapter) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return New(slog.New(a.logger.Handler().WithAttrs(attrs(fields))), a.levels)
}

func attrs(fields watermill.LogFields) []slog.Attr {
	list := make([]slog.Attr, 0, len(fields))
	for key, value := range fields {
		list = append(list, slog.Any(key, value))
	}
	return list
}
