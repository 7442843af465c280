package warnlog_test

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/warnlog"
)

func TestWarningsHaveTheirLevel(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		make func(*slog.Logger) watermill.LoggerAdapter
		want string
	}{
		{"with a level for them", func(l *slog.Logger) watermill.LoggerAdapter { return warnlog.New(l, nil) },
			`level=WARN msg="the disk is slow" sink=archive free=7`},
		// What is mapped are the levels of Watermill: warnings are not among them.
		{"with mapped levels", func(l *slog.Logger) watermill.LoggerAdapter {
			return warnlog.New(l, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
		}, `level=WARN msg="the disk is slow" sink=archive free=7`},
		{"without", watermill.NewSlogLogger, `level=INFO msg="Warning: the disk is slow" sink=archive free=7`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			logger := tt.make(slog.New(slog.NewTextHandler(&out, nil))).With(watermill.LogFields{"sink": "archive"})
			warnlog.Warn(logger, "the disk is slow", watermill.LogFields{"free": 7})
			if _, line, _ := strings.Cut(strings.TrimSpace(out.String()), " "); line != tt.want {
				t.Errorf("logged %q, want %q", line, tt.want)
			}
		})
	}
}

// The attributes of a line are in the same order each time.
func TestAttributesAreSorted(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	logger := warnlog.New(slog.New(slog.NewTextHandler(&out, nil)), nil)
	for range 50 {
		logger.With(watermill.LogFields{"part": 1, "host": 2}).Error("lost", errors.New("why"), watermill.LogFields{"d": 4, "a": 1, "c": 3, "b": 2})
	}
	for line := range strings.Lines(out.String()) {
		if !strings.HasSuffix(line, " level=ERROR msg=lost host=2 part=1 a=1 b=2 c=3 d=4 error=why\n") {
			t.Fatalf("got %s", line)
		}
	}
}

func TestMappedLevelsStay(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	logger := warnlog.New(slog.New(slog.NewTextHandler(&out, nil)), map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
	logger.With(watermill.LogFields{"a": 1}).Info("hidden", nil)
	if out.Len() > 0 {
		t.Errorf("logged %q", out.String())
	}
}

func TestErrorsAreLimitedByTheirText(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		captured := testkit.NewLog()
		logger := warnlog.Limit(captured, 2).With(watermill.LogFields{"part": "x"})
		failure := errors.New("no room")
		for range 5 {
			logger.Error("cannot store", failure, watermill.LogFields{"id": 7})
			logger.Error("cannot read", failure, nil)
		}
		count := func(level watermill.LogLevel) int { return len(captured.Lines(level)) }
		if count(watermill.ErrorLogLevel) != 4 || count(watermill.DebugLogLevel) != 6 {
			t.Errorf("%d errors and %d debug lines, want 4 and 6", count(watermill.ErrorLogLevel), count(watermill.DebugLogLevel))
		}
		time.Sleep(time.Minute)
		logger.With(watermill.LogFields{"more": "y"}).Error("cannot store", failure, nil)
		if !slices.ContainsFunc(captured.Lines(), watermill.CapturedMessage{
			Level: watermill.ErrorLogLevel, Msg: "cannot store", Err: failure,
			Fields: watermill.LogFields{"part": "x", "more": "y", "suppressed": 3},
		}.ContentEquals) {
			t.Errorf("the next line does not tell how many were left out: %v", captured.Lines(watermill.ErrorLogLevel))
		}
	})
}

// What is limited can still warn.
func TestLimitKeepsWarnings(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	warnlog.Warn(warnlog.Limit(warnlog.New(slog.New(slog.NewTextHandler(&out, nil)), nil), 1), "slow", nil)
	testkit.Contains(t, out.String(), "level=WARN msg=slow")
}
