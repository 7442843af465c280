package router

import (
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/warnlog"
)

// SlogLogger returns what New of every package takes as its logger, and Watermill's Router too, for a program that logs with
// slog. Unlike [watermill.NewSlogLogger], it logs warnings at [slog.LevelWarn]. A nil logger is silent.
func SlogLogger(logger *slog.Logger) watermill.LoggerAdapter {
	if logger == nil {
		return watermill.NopLogger{}
	}
	return warnlog.New(logger, nil)
}
