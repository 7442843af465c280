package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/gateway"
)

// tail is what `tail` is given.
type tail struct {
	service          service
	tenant, endpoint string
	types            []string
	events           []string
	count            int
	save             string
	confirm, asJSON  bool
}

func newTailCommand(p *program) *cobra.Command {
	var tail tail
	cmd := &cobra.Command{
		Use:     "tail",
		GroupID: groupGateway,
		Short:   "show events as they come",
		Long: `Shows the events of all the application's endpoints, a line each, until SIGINT or
SIGTERM, or --count. Messages that were not confirmed come first.

It only looks: no message is confirmed, so the gateway delivers each one again, also
here when the stream is opened anew; then it is not shown twice. With --confirm, what is
shown (and saved) is confirmed and never delivered again to anybody. Do not use that
beside a bridge that is to have these messages.

With --save the payloads of messages and files go into a folder, under the message's
ID and what is harmless of its file name. The chunks of a large payload are messages of
their own; the file that they make follows them.

Filters that are given together must all hold. With --json each line is an object,
without payloads and their addresses. When the stream ends, it is opened again; exit
status 1 means that it could not be opened, or that something could not be saved or
confirmed.

` + serviceHelp,
		Example: `  bridge tail
  bridge tail --event MESSAGE_RECEIVED --type 'iso:11783:*' --save inbox
  bridge tail --count 1 --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return tail.run(cmd.Context(), p) },
	}
	flags := cmd.Flags()
	tail.service.define(cmd)
	var known []string
	for _, t := range gateway.EventTypes() {
		known = append(known, string(t))
	}
	flags.StringArrayVar(&tail.events, "event", nil, "only events of this `TYPE`, such as MESSAGE_RECEIVED; may be repeated")
	completeFlag(cmd, "event", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp))
	flags.StringArrayVar(&tail.types, "type", nil, "only messages and files of this message `TYPE`; * stands for any characters, ? for one; may be repeated")
	flags.StringVar(&tail.tenant, "tenant", "", "only what concerns the tenant with this `ID`")
	flags.StringVar(&tail.endpoint, "endpoint", "", "only what concerns this `ENDPOINT`: ID or external ID")
	flags.IntVar(&tail.count, "count", 0, "end after `N` events; 0: no limit")
	flags.StringVar(&tail.save, "save", "", "write payloads into the folder `DIR`, which is created when it is missing")
	flags.BoolVar(&tail.confirm, "confirm", false, "confirm what is shown, so that nobody gets it again")
	flags.BoolVar(&tail.asJSON, "json", false, "write JSON, an object a line")
	return cmd
}

// request reads the flags.
func (c *tail) request() (gateway.ReceiveEventsRequest, error) {
	var request gateway.ReceiveEventsRequest
	for _, name := range c.events {
		event := gateway.EventType(strings.ToUpper(name))
		if !event.Known() {
			return request, usagef("--event: no event type %q; there are: %s", name, joinTypes(gateway.EventTypes()))
		}
		if !slices.Contains(request.Types, event) {
			request.Types = append(request.Types, event)
		}
	}
	switch {
	case c.count < 0:
		return request, usagef("--count must not be negative")
	case c.tenant != "" && !isUUID(c.tenant):
		return request, usagef("--tenant must be a UUID")
	}
	return request, nil
}

func joinTypes(types []gateway.EventType) string {
	var names []string
	for _, t := range types {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
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
		viewer := &viewer{
			program: p, client: client, tail: c, inbox: folder, directory: gateway.NewDirectory(client), endpoint: c.endpoint, seen: newRecent(10_000),
		}
		for _, text := range c.types {
			viewer.patterns = append(viewer.patterns, wildcards(text))
		}
		if c.endpoint != "" {
			if viewer.endpoint, _, err = (&lookup{lister: client}).endpoint(ctx, "--endpoint", c.tenant, c.endpoint); err != nil {
				return err
			}
		}
		if c.confirm {
			p.notef("what is shown is confirmed: nobody gets it again")
		} else {
			p.notef("only looking: nothing is confirmed, and all of it comes again")
		}
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
	patterns  []*regexp.Regexp
	seen      *recent

	shown    int
	failed   int // not saved, or not confirmed
	open     map[string][]gateway.MessageConfirmation
	unsettle int // entries of open
}

// maxConfirmations is how many are sent at a time.
const maxConfirmations = 100

// flushTimeout bounds the confirmations that are sent at the end.
const flushTimeout = 5 * time.Second

// follow shows events until ctx ends, which is no error, or enough are shown.
func (v *viewer) follow(ctx context.Context, request gateway.ReceiveEventsRequest) error {
	ctx, stop := context.WithCancel(ctx)
	source := &eventSource{client: v.client, request: request, directory: v.directory, now: v.program.now, items: make(chan sourceItem, 16)}
	go source.run(ctx) // ends with ctx, and closes items then
	err := v.show(ctx, source.items)
	stop()
	for range source.items { // until it has ended
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	v.flush(last)
	if err == nil && v.failed > 0 {
		err = fmt.Errorf("%s could not be saved or confirmed", plural(v.failed, "event"))
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
		if v.unsettle >= maxConfirmations || len(items) == 0 {
			v.flush(ctx)
		}
	}
	return nil
}

// take takes what comes from the source.
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

// one shows one event. The error says that no more can be shown.
func (v *viewer) one(ctx context.Context, line *eventLine) error {
	if !v.wanted(line) || v.seen.add(line.key()) {
		return nil
	}
	kept := true
	if v.inbox != nil && line.payload != nil {
		saved, size, err := v.inbox.save(ctx, v.client, line)
		switch {
		case err == nil:
			line.Saved, line.Size = saved, &size
		case errors.Is(err, errFolder), ctx.Err() != nil:
			return err
		default:
			v.seen.forget(line.key()) // it comes again
			kept = false
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
	if v.tail.confirm && kept {
		v.settle(line)
	}
	return nil
}

func (v *viewer) wanted(line *eventLine) bool {
	return (v.tail.tenant == "" || strings.EqualFold(v.tail.tenant, line.TenantID)) &&
		(v.endpoint == "" || line.concerns(v.endpoint)) &&
		(len(v.patterns) == 0 || line.isMessage() && slices.ContainsFunc(v.patterns, func(r *regexp.Regexp) bool { return r.MatchString(line.MessageType) }))
}

// settle notes what is to be confirmed.
func (v *viewer) settle(line *eventLine) {
	if !line.isMessage() {
		return
	}
	if line.TenantID == "" {
		v.failed++
		v.program.notef("not confirmed: %s: the tenant is not known", cell(line.id()))
		return
	}
	if v.open == nil {
		v.open = map[string][]gateway.MessageConfirmation{}
	}
	for _, id := range line.ids() {
		v.open[line.TenantID] = append(v.open[line.TenantID], gateway.MessageConfirmation{MessageID: id, EndpointID: line.EndpointID})
		v.unsettle++
	}
}

// flush confirms what was noted. What fails comes again.
func (v *viewer) flush(ctx context.Context) {
	for tenant, confirmations := range v.open {
		if err := v.client.ConfirmMessages(ctx, tenant, confirmations); err != nil {
			if ctx.Err() != nil {
				return // follow tries once more
			}
			v.failed += len(confirmations)
			v.program.notef("%s not confirmed: %s", plural(len(confirmations), "message"), redact(err))
		}
		v.unsettle -= len(confirmations)
		delete(v.open, tenant)
	}
}
