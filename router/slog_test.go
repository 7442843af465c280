package router_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// With the adapter for slog, a warning has its level, and no prefix.
func TestSlogLoggerHasWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := newSource()
		from.subErr = func(int) error { return router.Outage(errors.New("connection refused")) }
		var out testkit.Output
		logger := router.SlogLogger(slog.New(slog.NewTextHandler(&out, nil)))
		startLogged(t, logger, router.Config{Poison: newSink(nil)}, farmRoute(from, newSink(nil)))
		synctest.Wait()
		if got, want := out.String(), `level=WARN msg="source unavailable`; !strings.Contains(got, want) {
			t.Errorf("logged %s, want %s", got, want)
		}
		router.SlogLogger(nil).Error("to nobody", nil, nil)
	})
}
