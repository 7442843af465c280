package main

import (
	"context"
	"errors"

	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/examples/bridge/admin"
	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/examples/bridge/pipeline"
)

// runBridge is the command run.
type runBridge struct {
	file     string
	address  string
	logLevel string
	watch    time.Duration
}

func newRunCommand(p *program) *cobra.Command {
	c := &runBridge{}
	cmd := &cobra.Command{
		Use:     "run FILE",
		GroupID: groupPipeline,
		Short:   "carry messages until it is told to stop",
		Long: `Runs the routes of a configuration until SIGINT or SIGTERM. Then nothing more is
taken, what was taken is finished and confirmed, and everything is closed, within
shutdown.timeout. A second signal ends it at once.

What is down does not stop it: a sink or a gateway that cannot be reached is tried
until it can, also at the start, while messages wait unconfirmed. /readyz at
admin.address tells. What ends it is a mistake in the configuration, and a gateway that
refuses it: the credentials before they were accepted once, or the event stream for good.

SIGHUP, and a change of FILE, reload the configuration: routes, filters, topics, sinks,
poison, retry, publisher, endpoints and log.level are taken over without losing a message.
The other sections need a restart; the log names them. A file with mistakes is refused, every
one of them is logged, and the old configuration goes on. Files that FILE only names, such as
those of secrets, are read again with SIGHUP.

Logs go to stderr, messages of sinks of kind log to stdout.

Exit status: 0 stopped by a signal, everything finished; 1 it could not go on, or not
everything was finished in time (nothing is lost, it comes again); 2 wrong usage or
invalid configuration. The second signal ends it by that signal.`,
		Example: `  bridge run bridge.yaml
  bridge run bridge.yaml --log-level debug --address 127.0.0.1:0`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("exactly one FILE with the configuration is needed")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c.file = args[0]
			if c.watch < 0 {
				return usagef("--watch must not be negative")
			}
			return c.run(cmd.Context(), p)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.address, "address", "", "`ADDRESS` of the status page, probes and metrics, instead of admin.address; off for none")
	choice(cmd, &c.logLevel, "log-level", "`LEVEL` of the log, instead of log.level: debug, info, warn or error", "debug", "info", "warn", "error")
	flags.DurationVar(&c.watch, "watch", 2*time.Second, "how often (`DURATION`) to look whether FILE has changed; 0 for never")
	return cmd
}

func (c *runBridge) run(ctx context.Context, p *program) error {
	// From the beginning: without it, the signal ends the program.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	before, err := contentOf(c.file)
	if err != nil {
		before = "" // Load tells what is wrong
	}
	cfg, err := config.Load(c.file, config.Options{Env: p.env})
	if err != nil {
		return invalid(err)
	}
	level := new(slog.LevelVar)
	c.setLevel(level, cfg)
	logger := newLogger(p, cfg.Log.Format, level)
	logWarnings(logger, cfg)

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	hostname, _ := os.Hostname() // it is only shown
	bridge, err := pipeline.New(ctx, cfg, pipeline.Options{
		Name: hostname, Version: readVersion().Version, Logger: logger, Registry: registry, Stdout: p.stdout,
	})
	switch {
	case errors.Is(err, pipeline.ErrConfig):
		return invalid(err)
	case err != nil:
		return err
	}
	server, err := c.listen(cfg, registry, logger, bridge)
	if err != nil {
		return errors.Join(err, bridge.Close())
	}
	reloads := &reloader{
		file: c.file, content: before, hangups: hangups, env: p.env, logger: logger, bridge: bridge,
		applied: func(cfg *config.Config) { c.setLevel(level, cfg) },
	}
	return c.serve(ctx, bridge, server, reloads)
}

// listen makes the server of the status page; nil when it is off.
func (c *runBridge) listen(cfg *config.Config, registry *prometheus.Registry, logger *slog.Logger, source admin.Source) (*admin.Server, error) {
	address := cfg.Admin.Address
	if c.address != "" {
		address = c.address
	}
	if address == config.AdminOff {
		return nil, nil
	}
	server, err := admin.New(admin.Config{
		Address: address, Hosts: cfg.Admin.Hosts, Token: cfg.Admin.Token.Reveal(), PProf: cfg.Admin.PProf,
		Gatherer: registry, Logger: logger,
	}, source)
	if errors.Is(err, admin.ErrConfig) {
		return nil, invalid(err)
	}
	return server, err
}

// serve runs everything until ctx ends or something cannot go on. The status page
// is there as long as the pipeline, also while that drains.
func (c *runBridge) serve(ctx context.Context, bridge *pipeline.Pipeline, server *admin.Server, reloads *reloader) error {
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
				stop() // without its probes, nobody knows how it does
			}
		}
		served <- err
	}()
	reloaded := make(chan struct{})
	go func() {
		defer close(reloaded)
		reloads.run(beside, c.watch)
	}()
	err := bridge.Run(running)
	stopBeside()
	<-reloaded
	return errors.Join(err, <-served)
}

// setLevel sets the level of the log. The flag comes before the file.
func (c *runBridge) setLevel(level *slog.LevelVar, cfg *config.Config) {
	log := cfg.Log
	if c.logLevel != "" {
		log.Level = c.logLevel
	}
	level.Set(log.SlogLevel())
}

func newLogger(p *program, format string, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(p.stderr, options))
	}
	return slog.New(slog.NewTextHandler(p.stderr, options))
}

func logWarnings(logger *slog.Logger, cfg *config.Config) {
	for _, warning := range cfg.Warnings {
		logger.Warn("configuration", "problem", redact(errors.New(warning.String())))
	}
}
