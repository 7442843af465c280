package command

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
)

// reloader reloads the pipeline's configuration on SIGHUP and when the file changes.
type reloader struct {
	file     string
	content  []byte // that was last tried
	loaded   *config.Config
	hangups  <-chan os.Signal
	load     func() (*config.Config, error)
	logger   *slog.Logger
	agrimill *pipeline.Pipeline
	applied  func(*config.Config) // called for each configuration that took effect
}

// run returns when ctx ends.
//
// It polls the file rather than watching it: that also works for a Kubernetes volume, which
// swaps a symbolic link far above the file, and on file systems without notifications. A
// file that is still being written is left alone until two reads agree.
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
			r.logger.Info("configuration: reloading on SIGHUP")
			r.content, _ = r.read() // one that is away is another one once it is back
			last = r.content
			r.reload(ctx)
		case <-looks:
			content, there := r.read()
			if !there {
				continue // being replaced, or gone: keep the current configuration
			}
			stable := bytes.Equal(content, last)
			last = content
			if stable && !bytes.Equal(content, r.content) {
				r.content = content
				r.logger.Info("configuration: reloading, the file changed")
				r.reload(ctx)
			}
		}
	}
}

// read returns what the file has, or why that cannot be read, which reload then reports.
func (r *reloader) read() (content []byte, there bool) {
	content, err := config.Read(r.file)
	if err != nil {
		content = []byte(err.Error())
	}
	return content, !errors.Is(err, fs.ErrNotExist)
}

// reload reads the file and passes it to the pipeline. It logs whatever is wrong.
func (r *reloader) reload(ctx context.Context) {
	cfg, err := r.load()
	if err != nil {
		if problems, ok := errors.AsType[*config.Problems](err); ok { // its warnings are not why
			err = &config.Problems{List: slices.DeleteFunc(problems.List, func(p config.Problem) bool { return p.Severity != config.SeverityError })}
		}
		r.rejected(err)
		r.agrimill.ReloadFailed(err)
		return
	}
	logWarnings(r.logger, cfg, r.loaded)
	r.loaded = cfg
	report, err := r.agrimill.Reload(ctx, cfg)
	switch {
	case errors.Is(err, pipeline.ErrNotRunning), ctx.Err() != nil:
		return // shutting down
	case err != nil:
		r.rejected(err)
		return
	}
	r.applied(cfg)
	if len(report.Restart) > 0 {
		r.logger.Warn("configuration: changes in these sections take effect after a restart", "sections", report.Restart)
	}
	if report.Unfinished != "" {
		r.logger.Warn("configuration: some messages were not finished in time and will be redelivered", "reason", report.Unfinished)
	}
	r.logger.Info("configuration: reloaded", "changed", report.Changed)
}

func (r *reloader) rejected(err error) {
	if problems, ok := errors.AsType[*config.Problems](err); ok {
		for _, problem := range problems.List {
			r.logger.Error("the configuration has a mistake", "problem", redact(errors.New(problem.String())))
		}
		r.logger.Error("configuration: rejected, keeping the current one", "mistakes", len(problems.List))
		return
	}
	r.logger.Error("configuration: rejected, keeping the current one", "error", redact(err))
}
