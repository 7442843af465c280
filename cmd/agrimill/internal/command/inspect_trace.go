package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/stored"
	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/internal/spool"
	routerfarm "github.com/agrimill/agrimill/router/farm"
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

Of several messages that match, it is the newest one. stderr says which, and where it was.

The devices of a time log in EFDI are looked for where devices of the configuration has them;
--devices comes first. stderr says where they are from, or why there are none.

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
			return p.inspectStored(ctx, cfg, m, func(reader *stored.Reader, c *stored.Copy) error {
				data, err := content.Open(ctx, c.Payload.At, c.Payload.Size, given)
				if err != nil {
					return fmt.Errorf("%w: %w", errNotShown, err)
				}
				p.notef("%s, from %s", nameOf(m, false), c)
				if data.Form == content.EFDITimeLog && view.devices == "" {
					if devices := p.devicesOf(ctx, reader, c); len(devices) > 0 {
						described := content.Config{EFDI: efdi.Config{Devices: devices}}
						if data, err = content.Open(ctx, c.Payload.At, c.Payload.Size, described); err != nil {
							return fmt.Errorf("%w: %w", errNotShown, err)
						}
						data.Sets[0].Devices = append(data.Sets[0].Devices, devices...)
					}
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

// newestOf returns the newest message that a query finds.
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

// devicesOf returns the devices of the teamset that sent a time log, as the running agrimill remembers them, and says on stderr
// where they are from, or else what to do.
func (p *program) devicesOf(ctx context.Context, reader *stored.Reader, c *stored.Copy) []farmdata.Device {
	const unnamed = "names and units are not those of the machine: "
	devices, err := reader.Devices(ctx, c.Message)
	switch {
	case errors.Is(err, stored.ErrNoDevices):
		p.notef(unnamed+"%s; give --devices FILE, or configure devices.nats_kv or devices.kafka and have the description sent again", err)
	case errors.Is(err, stored.ErrDevicesInMemory):
		p.notef(unnamed+"%s; look on its status page, give --devices FILE, or configure devices.nats_kv or devices.kafka", err)
	case err != nil:
		p.notef(unnamed+"%s; repair that, or give --devices FILE", redact(err))
	case devices.State == routerfarm.DevicesMissing:
		p.notef(unnamed+"%s has no description of the teamset; give --devices FILE, or have it sent again and received by a route with transform or filter.farm", devices.Place)
	case devices.State == routerfarm.DevicesAmbiguous:
		p.notef("names, units and scales are those of the description that was sent last before the log, from %s; the teamset was described in different ways", devices.Place)
	default:
		p.notef("names, units and scales are from %s", devices.Place)
	}
	return devices.List
}

// inspectStored calls use with the copies of a message, one after the other, until one can be shown.
func (p *program) inspectStored(ctx context.Context, cfg *config.Config, m *journal.Message, use func(*stored.Reader, *stored.Copy) error) (err error) {
	reader := stored.NewReader(cfg, m, stored.Options{Limits: spool.Limits{Max: maxInspected}})
	defer func() { err = errors.Join(err, reader.Close()) }()
	copies := stored.CopiesOf(cfg, m)
	for _, c := range copies[:min(len(copies), stored.MaxCopies)] {
		err := reader.Read(ctx, c)
		if err == nil {
			err = errors.Join(use(reader, c), c.Payload.Close())
			if !errors.Is(err, errNotShown) {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.notef("%s: %s", c, redact(err))
	}
	if len(copies) > stored.MaxCopies {
		p.notef("and %d more were not looked at", len(copies)-stored.MaxCopies)
	}
	return fmt.Errorf("%s: the payload cannot be shown: %s", nameOf(m, false), stored.WhyNot(m, len(copies)))
}
