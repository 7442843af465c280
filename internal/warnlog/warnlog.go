// Package warnlog adds what Watermill's loggers lack: a warning level, and a limit
// for repeated errors.
package warnlog

import (
	"context"
	"log/slog"
	"maps"
	"slices"

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

// Adapter is an adapter for a [slog.Logger] with support for warnings, whose attributes are sorted: those of Watermill's own
// adapter are in another order each time.
type Adapter struct {
	logger *slog.Logger
	levels map[slog.Level]slog.Level
}

var _ Warner = (*Adapter)(nil)

// New returns an adapter. levels maps the levels of Watermill's log lines like
// [watermill.NewSlogLoggerWithLevelMapping] does; it may be nil.
func New(logger *slog.Logger, levels map[slog.Level]slog.Level) *Adapter {
	return &Adapter{logger, levels}
}

func (a *Adapter) log(level slog.Level, msg string, fields watermill.LogFields, more ...slog.Attr) {
	if a.logger.Enabled(context.Background(), level) {
		a.logger.LogAttrs(context.Background(), level, msg, append(attrs(fields), more...)...)
	}
}

// mapped is the level of a line of Watermill.
func (a *Adapter) mapped(level slog.Level) slog.Level {
	if to, ok := a.levels[level]; ok {
		return to
	}
	return level
}

// Error implements [watermill.LoggerAdapter].
func (a *Adapter) Error(msg string, err error, fields watermill.LogFields) {
	a.log(a.mapped(slog.LevelError), msg, fields, slog.Any("error", err))
}

// Info implements [watermill.LoggerAdapter].
func (a *Adapter) Info(msg string, fields watermill.LogFields) {
	a.log(a.mapped(slog.LevelInfo), msg, fields)
}

// Debug implements [watermill.LoggerAdapter].
func (a *Adapter) Debug(msg string, fields watermill.LogFields) {
	a.log(a.mapped(slog.LevelDebug), msg, fields)
}

// Trace implements [watermill.LoggerAdapter].
func (a *Adapter) Trace(msg string, fields watermill.LogFields) {
	a.log(a.mapped(watermill.LevelTrace), msg, fields)
}

// Warn implements [Warner]. No level is mapped to warnings or from them.
func (a *Adapter) Warn(msg string, fields watermill.LogFields) { a.log(slog.LevelWarn, msg, fields) }

// With implements [watermill.LoggerAdapter].
func (a *Adapter) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return New(slog.New(a.logger.Handler().WithAttrs(attrs(fields))), a.levels)
}

func attrs(fields watermill.LogFields) []slog.Attr {
	list := make([]slog.Attr, 0, len(fields)+1)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		list = append(list, slog.Any(key, fields[key]))
	}
	return list
}
