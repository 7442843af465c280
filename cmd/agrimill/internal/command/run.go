package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
)

type runCommand struct {
	file     string
	address  string
	logLevel string
	watch    time.Duration
	// quiet leaves out the warnings of the configuration at the start.
	quiet bool
	// listening is called with the address of the status page and what it shows. Nil: nobody asks.
	listening func(address string, shows admin.Source)
}

const defaultWatch = 2 * time.Second

func newRunCommand(p *program) *cobra.Command {
	c := &runCommand{}
	cmd := &cobra.Command{
		Use:     "run FILE",
		GroupID: groupPipeline,
		Short:   "run the pipeline until it is stopped",
		Long: `Runs the routes of a configuration until SIGINT or SIGTERM. It then stops taking
messages, finishes and confirms those in flight, including downloads, and closes
everything, within shutdown.timeout. A second signal ends the
process at once.

Outages do not stop it: a sink or a gateway that is unreachable is retried until it
is back, also at startup, while messages wait unconfirmed; /readyz at admin.address
reports it. It exits only on a mistake in the configuration, or if the gateway refuses
it: the credentials before they were accepted once, or the event stream with 400 or 403
for subscriber.stream_refused_for.

SIGHUP or a change of FILE reloads the configuration: routes, filters, topics, sinks,
poison, retry, publisher, endpoints, log.level and the client secret change without
losing a message. The other sections need a restart; the log names them. An invalid file
is rejected, every mistake is logged, and the current configuration stays in effect.
Passwords and other secrets in files that FILE names are reread on SIGHUP. The client
secret is reread for every token, so rotating it needs no reload.

Logs go to stderr, messages from sinks of kind log to stdout.

Exit status: 0 stopped by a signal, every message was finished and confirmed; 1 it could
not continue; 2 wrong usage or a configuration that has to be changed; 3 stopped by a
signal with messages left open, for example in an outage or held for a file: they come
again, and the last line of the log has the counts. A second signal kills the process.`,
		Example: `  agrimill run agrimill.yaml
  agrimill run agrimill.yaml --log-level debug --address 127.0.0.1:0`,
		Args:              exactly("configuration FILE"),
		ValidArgsFunction: configFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			c.file = args[0]
			switch {
			case c.watch < 0:
				return usagef("--watch must not be negative")
			case c.address != "" && c.address != config.AdminOff && !isAddress(c.address):
				return usagef("--address must be host:port or off, not %q", c.address)
			}
			return c.run(cmd.Context(), p)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.address, "address", "", "`ADDRESS` of the status page, probes and metrics, instead of admin.address; off disables them")
	choice(cmd, &c.logLevel, "log-level", "`LEVEL` of the log, instead of log.level: debug, info, warn or error", "debug", "info", "warn", "error")
	flags.DurationVar(&c.watch, "watch", defaultWatch, "how often (`DURATION`) to check FILE for changes; 0 disables it")
	return cmd
}

func (c *runCommand) run(ctx context.Context, p *program) error {
	// First of all: unhandled, the signal would kill the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	signal.Ignore(syscall.SIGPIPE) // a closed stderr must not end it
	defer signal.Reset(syscall.SIGPIPE)
	stderr := newLogBuffer(p.stderr)
	p.stderr = stderr // program.run closes it
	if info, err := os.Stat(c.file); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		return invalid(fmt.Errorf("%s is a pipe, which run could not read again: write the configuration to a file", c.file))
	}
	before, _ := config.Read(c.file) // loading it reports what is wrong
	cfg, err := c.load(p)
	if err != nil {
		return invalid(err)
	}
	level := new(slog.LevelVar)
	c.setLevel(level, cfg)
	logger := newLogger(p, cfg.Log.Format, level)
	stderr.logger.Store(logger)
	if !c.quiet {
		logWarnings(logger, cfg, nil)
	}

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	hostname, _ := os.Hostname() // for display only
	version := readVersion(p.build)
	agrimill, err := pipeline.New(ctx, cfg, pipeline.Options{
		Name: hostname, Version: version.Version, Revision: version.Revision, Logger: logger, Registry: registry, Stdout: p.stdout,
	})
	switch {
	case errors.Is(err, pipeline.ErrConfig):
		return invalid(err)
	case err != nil:
		return err
	}
	server, err := c.listen(cfg, registry, logger, agrimill)
	if err != nil {
		_ = agrimill.Close() // it never ran: there is nothing to lose
		return err
	}
	reloads := &reloader{
		file: c.file, content: before, loaded: cfg, hangups: hangups, load: func() (*config.Config, error) { return c.load(p) }, logger: logger, agrimill: agrimill,
		applied: func(cfg *config.Config) { c.setLevel(level, cfg) },
	}
	return c.serve(ctx, agrimill, server, reloads)
}

// load reads the file. --address stands for admin.address everywhere: the process has its name from it, too.
func (c *runCommand) load(p *program) (*config.Config, error) {
	cfg, err := config.Load(c.file, config.Options{Env: p.env})
	if err == nil && c.address != "" {
		cfg.SetAddress("--address", c.address)
	}
	return cfg, err
}

// listen creates the server of the status page; nil if it is off.
func (c *runCommand) listen(cfg *config.Config, registry *prometheus.Registry, logger *slog.Logger, source admin.Source) (*admin.Server, error) {
	if cfg.Admin.Address == config.AdminOff {
		return nil, nil
	}
	settings := cfg.Admin
	settings.Gatherer, settings.Logger = registry, logger
	server, err := admin.New(settings, source)
	if errors.Is(err, admin.ErrConfig) {
		return nil, invalid(err)
	}
	if err == nil && c.listening != nil {
		c.listening(server.Addr(), source)
	}
	return server, err
}

// serve runs everything until ctx ends or something fails for good. The status page stays
// up as long as the pipeline, also while it drains.
func (c *runCommand) serve(ctx context.Context, agrimill *pipeline.Pipeline, server *admin.Server, reloads *reloader) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	beside, stopBeside := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBeside()
	served := make(chan error, 1)
	// Both end with beside.
	go func() {
		var err error
		if server != nil {
			if err = server.Serve(beside); err != nil {
				stop() // without its probes, nobody can tell whether it is healthy
			}
		}
		served <- err
	}()
	reloaded := make(chan struct{})
	go func() {
		defer close(reloaded)
		reloads.run(beside, c.watch)
	}()
	err := agrimill.Run(running)
	stopBeside()
	<-reloaded
	if failure := <-served; failure != nil {
		return failure
	}
	switch { // the last line of the log says why
	case errors.Is(err, pipeline.ErrUnfinished):
		return exitWith(statusUnfinished)
	case err != nil:
		return exitWith(statusFailed)
	}
	return nil
}

func (c *runCommand) setLevel(level *slog.LevelVar, cfg *config.Config) {
	log := cfg.Log
	if c.logLevel != "" {
		log.Level = c.logLevel
	}
	level.Set(log.SlogLevel())
}

func newLogger(p *program, format string, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		options.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration {
				a.Value = slog.StringValue(a.Value.Duration().String()) // with its unit, as in text
			}
			return a
		}
		return slog.New(slog.NewJSONHandler(p.stderr, options))
	}
	return slog.New(slog.NewTextHandler(p.stderr, options))
}

// logWarnings logs the warnings of a configuration, except those that the one before had.
func logWarnings(logger *slog.Logger, cfg, before *config.Config) {
	for _, warning := range cfg.Warnings {
		if before != nil && slices.ContainsFunc(before.Warnings, func(w config.Problem) bool { return w.Path == warning.Path && w.Message == warning.Message }) {
			continue
		}
		logger.Warn("the configuration has a warning", "problem", redact(errors.New(warning.String())))
	}
}
