package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/stored"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/spool"
)

// errNotShown: a payload was read, and is nothing that can be shown.
var errNotShown = errors.New("its content cannot be shown")

func newInspectTraceCommand(p *program) *cobra.Command {
	var view inspectView
	var at adminAt
	timeout := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "trace ID|FILENAME",
		Short: "show what is in the payload of a message that agrimill trace finds",
		Long: `Asks a running agrimill where it stored the message, as agrimill trace does, and reads the
payload there: in NATS JetStream, in Kafka, in a bucket, and last in the poison queue. The
brokers and buckets are those of --config; nothing is changed or created there.

If several messages match, the newest is shown; stderr names it and where it was.

A time log in EFDI has numbers in place of names and units: those are in the description of the
machine (--devices), with which the status page of agrimill shows such a log.

Exit status: 0 it could be read, perhaps with findings; 1 it is no farm data, or stored
nowhere that can be read (any more), and stderr says why.`,
		Example: `  agrimill inspect trace --config agrimill.yaml 'field 1.zip'
  agrimill inspect trace --config agrimill.yaml --output svg 'field 1.zip' > field.svg`,
		Args: exactly("ID or part of a filename"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if at.configPath == "" {
				return usagef("--config is required: it says where messages are stored")
			}
			cfg, err := p.loadConfig(at.configPath)
			if err != nil {
				return err
			}
			server, err := at.of(cfg)
			if err != nil {
				return err
			}
			ctx, cancel := limited(cmd.Context(), timeout)
			defer cancel()
			given, err := p.describedBy(ctx, view.devices)
			if err != nil {
				return err
			}
			m, err := p.newestOf(ctx, server, args[0])
			if err != nil {
				return err
			}
			return p.inspectStored(ctx, cfg, m, func(c *stored.Copy) error {
				data, err := content.Open(ctx, c.Payload.At, c.Payload.Size, given)
				if err != nil {
					return fmt.Errorf("%w: %w", errNotShown, admin.NotFarmData(err))
				}
				p.notef("%s, from %s", nameOf(m, nil, false), c)
				if data.Form == content.EFDITimeLog && view.devices == "" {
					p.notef("names and units are not those of the machine: give --devices FILE, or look on the status page of agrimill")
				}
				return p.show(ctx, data, view)
			})
		},
	}
	view.define(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "give up after `DURATION`; 0 means never")
	at.tokenFlag(cmd)
	configFlag(cmd, &at.configPath)
	return cmd
}

func (p *program) newestOf(ctx context.Context, server *adminServer, query string) (*journal.Message, error) {
	trace, err := server.trace(ctx, query, 1)
	if err != nil {
		return nil, err
	}
	if len(trace.Messages) == 0 {
		p.unknown(trace)
		return nil, exitWith(statusFailed)
	}
	if trace.More > 0 {
		p.notef("%s for %s not shown; agrimill trace lists them", plural(trace.More, "older message"), quote(cell(query)))
	}
	return &trace.Messages[0], nil
}

// inspectStored calls use with the copies of a message, one after the other, until one can be shown.
func (p *program) inspectStored(ctx context.Context, cfg *config.Config, m *journal.Message, use func(*stored.Copy) error) (err error) {
	reader := stored.NewReader(cfg, m, stored.Options{Limits: spool.Limits{Max: maxInspected}})
	defer func() { err = errors.Join(err, reader.Close()) }()
	copies, why := stored.CopiesOf(cfg, m), ""
	for _, c := range copies[:min(len(copies), stored.MaxCopies)] {
		err := reader.Read(ctx, c)
		if err == nil {
			err = errors.Join(use(c), c.Payload.Close())
			if !errors.Is(err, errNotShown) {
				return err
			}
			why = "it is no farm data"
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.notef("%s: %s", c, redact(err))
	}
	if len(copies) > stored.MaxCopies {
		p.notef("and %d more were not looked at", len(copies)-stored.MaxCopies)
	}
	return fmt.Errorf("%s: the payload cannot be shown: %s", nameOf(m, nil, false), cmp.Or(why, stored.WhyNot(m, len(copies))))
}
