package command

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
)

// tail has the flags of `tail`.
type tail struct {
	service          service
	tenant, endpoint string
	types            []string
	events           []string
	count            int
	save             string
	asJSON           bool
}

func newTailCommand(p *program) *cobra.Command {
	var tail tail
	cmd := &cobra.Command{
		Use:     "tail [FILE]",
		GroupID: groupGateway,
		Short:   "show events as they arrive",
		Long: `Shows the events of all the application's endpoints, one line each, until SIGINT or
SIGTERM, or --count. Messages that were not confirmed come first.

It only looks: no message is confirmed, so the gateway redelivers each one, to agrimill run
and also to this command when it reconnects (it is not shown twice).

With --save, payloads of messages and files go into a directory, named by the message ID
and the harmless part of the file name. The chunks of a large payload are messages of
their own; the file that they form follows them.

An event must match all filters. With --json each line is an object, without payloads
and their addresses. When the stream ends, the command reconnects; exit status 1 means
that it could not be opened, or that something could not be saved.

` + serviceHelp,
		Example: `  agrimill tail
  agrimill tail --event MESSAGE_RECEIVED --type 'iso:11783:*' --save inbox
  agrimill tail --count 1 --json`,
		Args:              configArgument,
		ValidArgsFunction: configFiles,
		RunE:              func(cmd *cobra.Command, _ []string) error { return tail.run(cmd.Context(), p) },
	}
	flags := cmd.Flags()
	tail.service.define(cmd)
	flags.StringArrayVar(&tail.events, "event", nil, "only events of this `TYPE`, such as MESSAGE_RECEIVED; may be repeated")
	completeFlag(cmd, "event", cobra.FixedCompletions(config.EventTypes(), cobra.ShellCompDirectiveNoFileComp))
	flags.StringArrayVar(&tail.types, "type", nil, "only messages and files of this message `TYPE`; * matches any characters, ? exactly one; may be repeated")
	flags.StringVar(&tail.tenant, "tenant", "", "only events of the tenant with this `ID`")
	flags.StringVar(&tail.endpoint, "endpoint", "", "only events of this `ENDPOINT`: ID or external ID")
	flags.IntVar(&tail.count, "count", 0, "exit after `N` events; 0 means no limit")
	flags.StringVar(&tail.save, "save", "", "write payloads into the directory `DIR`, created if missing")
	flags.BoolVar(&tail.asJSON, "json", false, "write JSON, one object per line")
	return cmd
}

// request builds the request from the flags.
func (c *tail) request() (gateway.ReceiveEventsRequest, error) {
	var request gateway.ReceiveEventsRequest
	for _, name := range c.events {
		event := gateway.EventType(strings.ToUpper(name))
		if !event.Known() {
			return request, usagef("--event: unknown event type %q; available: %s", name, strings.Join(config.EventTypes(), ", "))
		}
		if !slices.Contains(request.Types, event) {
			request.Types = append(request.Types, event)
		}
	}
	switch {
	case c.count < 0:
		return request, usagef("--count must not be negative")
	case c.tenant != "" && !config.IsUUID(c.tenant):
		return request, usagef("--tenant must be a UUID")
	}
	return request, nil
}

func (c *tail) run(ctx context.Context, p *program) error {
	request, err := c.request()
	if err != nil {
		return err
	}
	return c.service.use(p, func(client *gateway.Client) error {
		var folder *inbox
		if c.save != "" {
			if folder, err = openInbox(c.save); err != nil {
				return err
			}
			defer folder.close()
		}
		seen, err := simplelru.NewLRU[string, struct{}](10_000, nil)
		if err != nil {
			return err
		}
		viewer := &viewer{
			program: p, client: client, tail: c, inbox: folder, directory: gateway.NewDirectory(client), endpoint: c.endpoint, seen: seen,
		}
		viewer.patterns = config.NewPatterns("", c.types...)
		if c.endpoint != "" {
			if viewer.endpoint, _, err = (&lookup{lister: client}).endpoint(ctx, "--endpoint", c.tenant, c.endpoint); err != nil {
				return err
			}
		}
		p.notef("only looking: nothing is confirmed, so everything will be delivered again")
		return viewer.follow(ctx, request)
	})
}

// viewer shows events.
type viewer struct {
	program   *program
	client    *gateway.Client
	tail      *tail
	inbox     *inbox // may be nil
	directory *gateway.Directory
	endpoint  string // ID
	patterns  config.Patterns
	seen      *simplelru.LRU[string, struct{}] // keys of what was shown

	shown  int
	failed int // not saved
}

// follow shows events until ctx ends, which is not an error, or until --count is reached.
func (v *viewer) follow(ctx context.Context, request gateway.ReceiveEventsRequest) error {
	ctx, stop := context.WithCancel(ctx)
	source := &eventSource{client: v.client, request: request, directory: v.directory, now: v.program.now, items: make(chan sourceItem, 16)}
	go source.run(ctx) // ends with ctx, and closes items then
	err := v.show(ctx, source.items)
	stop()
	for range source.items { // until the source has returned
	}
	if err == nil && v.failed > 0 {
		err = fmt.Errorf("%s could not be saved", plural(v.failed, "event"))
	}
	return err
}

func (v *viewer) show(ctx context.Context, items <-chan sourceItem) error {
	for v.tail.count == 0 || v.shown < v.tail.count {
		select {
		case <-ctx.Done():
			return nil
		case item, ok := <-items:
			if !ok {
				return nil
			}
			if err := v.take(ctx, item); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
	}
	return nil
}

// take handles one item from the source.
func (v *viewer) take(ctx context.Context, item sourceItem) error {
	switch {
	case item.err != nil:
		return item.err
	case item.line == nil:
		v.program.notef("%s", item.note)
		return nil
	}
	return v.one(ctx, item.line)
}

// one shows one event. After an error, nothing more can be shown.
func (v *viewer) one(ctx context.Context, line *eventLine) error {
	if !v.wanted(line) || v.seen.Contains(line.key()) {
		return nil
	}
	if key := line.key(); key != "" {
		v.seen.Add(key, struct{}{})
	}
	if v.inbox != nil && line.payload != nil {
		saved, size, err := v.inbox.save(ctx, v.client, line)
		switch {
		case err == nil:
			line.Saved, line.Size = saved, &size
		case ctx.Err() != nil:
			return err
		default:
			v.seen.Remove(line.key()) // it is redelivered
			v.failed++
			v.program.notef("not saved: %s: %s", cell(line.id()), redact(err))
		}
	}
	write := v.program.writeEventText
	if v.tail.asJSON {
		write = v.program.writeEventJSON
	}
	if err := write(line); err != nil {
		return err
	}
	v.shown++
	return nil
}

func (v *viewer) wanted(line *eventLine) bool {
	return (v.tail.tenant == "" || strings.EqualFold(v.tail.tenant, line.TenantID)) &&
		(v.endpoint == "" || line.concerns(v.endpoint)) &&
		(len(v.patterns) == 0 || line.isMessage() && v.patterns.Match(line.MessageType))
}
