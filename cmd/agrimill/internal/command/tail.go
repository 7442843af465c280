package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/wildcard"
)

type tail struct {
	service          service
	tenant, endpoint string
	types            []string
	events           []string
	count            int
	save             string
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
	flags.BoolVar(&p.asJSON, "json", false, "write JSON, one object per line")
	return cmd
}

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
	if c.count < 0 {
		return request, usagef("--count must not be negative")
	}
	return request, checkTenant(c.tenant)
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
		viewer.patterns = wildcard.New("", c.types...)
		if c.endpoint != "" {
			if viewer.endpoint, _, err = (&lookup{lister: client}).endpoint(ctx, "--endpoint", c.tenant, c.endpoint); err != nil {
				return err
			}
		}
		p.notef("only looking: nothing is confirmed, so everything will be delivered again")
		return viewer.follow(ctx, request)
	})
}

type viewer struct {
	program   *program
	client    *gateway.Client
	tail      *tail
	inbox     *inbox // may be nil
	directory *gateway.Directory
	endpoint  string // ID
	patterns  wildcard.Patterns
	seen      *simplelru.LRU[string, struct{}] // keys of what was shown

	shown  int
	failed int // not saved
}

// follow shows events until ctx ends, which is not an error, or until --count is reached. It fails if the first stream cannot be
// opened; a later one is tried again.
func (v *viewer) follow(ctx context.Context, request gateway.ReceiveEventsRequest) error {
	refreshing, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { // ends with stop
		v.directory.KeepFresh(refreshing, func(tenant string, err error) {
			v.program.notef("endpoints of tenant %s unavailable: %s; retrying", cell(tenant), redact(err))
		})
	})
	policy := backoff.Policy{Initial: 500 * time.Millisecond, Max: 30 * time.Second}
	for opened, failures := false, 0; ; failures++ {
		got, ended, err := v.stream(ctx, request)
		if got > 0 {
			opened, failures = true, 0
		}
		if ctx.Err() != nil || ended && err == nil {
			break
		}
		again := errors.Is(err, io.EOF) || errors.Is(err, gateway.ErrIdle) || gateway.Retryable(err)
		if ended || !again || !opened {
			return err
		}
		if !errors.Is(err, gateway.ErrIdle) {
			v.program.notef("the stream ended: %s; reconnecting", redact(err))
		}
		if policy.Wait(ctx, failures) != nil {
			break
		}
	}
	if v.failed > 0 {
		return fmt.Errorf("%s could not be saved", plural(v.failed, "event"))
	}
	return nil
}

// stream shows the events of one stream, and returns a measure of its progress: one for opening it, one for each event. ended says
// that --count is reached, or that nothing more can be shown.
func (v *viewer) stream(ctx context.Context, request gateway.ReceiveEventsRequest) (got int, ended bool, err error) {
	stream, err := v.client.ReceiveEvents(ctx, request)
	if errors.Is(err, gateway.ErrIdle) {
		return 1, false, err // it was open, but nothing arrived, not even a header
	}
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = stream.Close() }() // it was only read
	// After opening the stream, so that no change is missed in between.
	if err := v.directory.Sync(ctx); err != nil {
		return 0, false, err
	}
	for got = 1; v.tail.count == 0 || v.shown < v.tail.count; got++ {
		raw, err := stream.Next()
		if err != nil && !errors.Is(err, gateway.ErrEventTooLarge) {
			return got, false, err
		}
		var event gateway.Event
		if err == nil {
			event, err = gateway.DecodeEvent(raw.Type, raw.Data)
		}
		if err != nil {
			v.program.notef("skipped: %s", redact(err))
			continue
		}
		line := newEventLine(event, v.program.now(), v.directory) // before the directory forgets what was deleted
		v.directory.HandleEvent(event)
		if err := v.one(ctx, line); err != nil {
			return got, true, err
		}
	}
	return got, true, nil
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
	var err error
	if v.program.asJSON {
		err = v.program.writeLine(line)
	} else {
		err = v.program.writeEventText(line)
	}
	if err != nil {
		return err
	}
	v.shown++
	return nil
}

func (v *viewer) wanted(line *eventLine) bool {
	return (v.tail.tenant == "" || strings.EqualFold(v.tail.tenant, line.TenantID)) &&
		(v.endpoint == "" || strings.EqualFold(v.endpoint, line.EndpointID)) &&
		(len(v.patterns) == 0 || line.isMessage() && v.patterns.Match(line.MessageType))
}
