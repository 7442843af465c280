package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/examples/bridge/pipeline"
)

// reloader gives the pipeline the configuration anew, when it is told to by SIGHUP
// and when the file has changed.
type reloader struct {
	file    string
	content string // digest of the file that was last tried
	hangups <-chan os.Signal
	env     func(string) string
	logger  *slog.Logger
	bridge  *pipeline.Pipeline
	applied func(*config.Config) // called for each configuration that was taken over
}

// run works until ctx ends.
//
// The file is read again and again instead of being watched: that also sees
// what a volume of Kubernetes does, which swaps a symbolic link far above the file,
// and file systems without notifications. A file that is just being written is
// left alone until two looks agree.
func (r *reloader) run(ctx context.Context, interval time.Duration) {
	var looks <-chan time.Time
	if interval > 0 {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		looks = tick.C
	}
	last := r.content
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.hangups:
			r.logger.Info("configuration: reloading, on SIGHUP")
			if content, err := contentOf(r.file); err == nil {
				r.content, last = content, content
			}
			r.reload(ctx)
		case <-looks:
			content, err := contentOf(r.file)
			if err != nil {
				continue // it is just being replaced, or gone; the old one goes on
			}
			settled := content == last
			last = content
			if settled && content != r.content {
				r.content = content
				r.logger.Info("configuration: reloading, the file has changed")
				r.reload(ctx)
			}
		}
	}
}

// reload reads the file and hands it to the pipeline. Whatever is wrong is logged.
func (r *reloader) reload(ctx context.Context) {
	cfg, err := config.Load(r.file, config.Options{Env: r.env})
	if err != nil {
		r.refused(err)
		r.bridge.ReloadFailed(err)
		return
	}
	logWarnings(r.logger, cfg)
	report, err := r.bridge.Reload(ctx, cfg)
	switch {
	case errors.Is(err, pipeline.ErrNotRunning), ctx.Err() != nil:
		return // it is ending
	case err != nil:
		r.refused(err)
		return
	}
	r.applied(cfg)
	if len(report.Restart) > 0 {
		r.logger.Warn("configuration: these sections have changed and need a restart; until then the old ones count", "sections", report.Restart)
	}
	if report.Unfinished != "" {
		r.logger.Warn("configuration: not everything was finished in time, it comes again", "reason", report.Unfinished)
	}
	r.logger.Info("configuration: reloaded", "changed", report.Changed)
}

// refused logs every mistake of a configuration.
func (r *reloader) refused(err error) {
	var problems *config.Problems
	if errors.As(err, &problems) {
		for _, problem := range problems.List {
			r.logger.Error("configuration", "problem", redact(errors.New(problem.String())))
		}
		r.logger.Error("configuration: refused, the old one goes on", "mistakes", problems.Errors())
		return
	}
	r.logger.Error("configuration: refused, the old one goes on", "error", redact(err))
}

// contentOf returns a digest of a file.
func contentOf(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return string(sum[:]), nil
}
