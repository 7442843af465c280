package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/nats"
)

func newPoisonReplayCommand(p *program) *cobra.Command {
	var replay poisonReplay
	cmd := &cobra.Command{
		Use:   "replay (ID... | filters | --all)",
		Short: "deliver poisoned messages again and remove those that arrived",
		Long: `With --config, each message goes through the route that poisoned it, as currently
configured: its topic, its sink or the gateway, its claim check. That is what the status
page does, too, but nothing has to be running for it. A message whose route is not in the
configuration, or whose filter no longer accepts it, is kept. So is one that has reached some of its
recipients, who would get it again, unless --force is given.

Without --config, --to-topic sends each message, as it was received, to a topic in NATS.
agrimill does not know what a route in your own program does to messages: replay those
of a route with a Transform, or into another kind of sink, in that program
(Router.Replay).

A message is removed from the queue after its sink has stored it. One that fails again
goes to the end of the queue under a new ID, with its history. During an outage the
command waits; SIGINT, SIGTERM or --timeout leave the rest in the queue. If one of the
IDs is not in the queue, nothing is replayed.

The exit status is also 1 if a message returned to the queue or stayed in it.

` + environmentHelp,
		Example: `  agrimill poison replay --config agrimill.yaml 17
  agrimill poison replay --config agrimill.yaml --route task-data --dry-run
  agrimill poison replay --config agrimill.yaml --all --timeout 10m
  agrimill poison replay --type 'shp:*' --to-topic 'shapes.{tenant}'`,
		RunE: func(cmd *cobra.Command, args []string) error { return replay.run(cmd.Context(), p, args) },
	}
	flags := cmd.Flags()
	replay.connection.define(cmd)
	replay.connection.claimCheck.define(flags)
	replay.wanted.define(cmd)
	flags.StringVar(&replay.toTopic, "to-topic", "", "send messages to topics of this `TEMPLATE` instead of through their routes, e.g. "+router.DefaultToTopic)
	flags.StringVar(&replay.toStream, "to-stream", "", "with --to-topic, the `NAME` of the stream (default: that of --stream)")
	flags.StringVar(&replay.toPrefix, "to-subject-prefix", "", "with --to-topic, the subject `PREFIX` in the stream (default: that of --subject-prefix)")
	for _, other := range []string{"to-topic", "to-stream", "to-subject-prefix", "claim-check", "claim-check-prefix"} {
		cmd.MarkFlagsMutuallyExclusive("config", other)
	}
	flags.DurationVar(&replay.timeout, "timeout", 0, "give up after this `DURATION`; 0 means never")
	flags.BoolVar(&replay.force, "force", false, "replay messages that have reached some of their recipients, too, which get them again")
	flags.BoolVar(&replay.dryRun, "dry-run", false, "list what would be replayed, without replaying it")
	flags.BoolVar(&replay.asJSON, "json", false, "write the summary as JSON")
	return cmd
}

type poisonReplay struct {
	connection         connection
	wanted             selection
	toTopic            string
	toStream, toPrefix string
	timeout            time.Duration
	force              bool
	dryRun, asJSON     bool
}

// replayReport is the result as JSON.
type replayReport struct {
	Selected  int                  `json:"selected"`
	Delivered int                  `json:"delivered"`
	Duplicate int                  `json:"duplicate"`
	Poisoned  int                  `json:"poisoned"`
	Kept      int                  `json:"kept"`
	Gone      int                  `json:"gone"`
	Results   []admin.ReplayResult `json:"results"`
}

func (c *poisonReplay) run(ctx context.Context, p *program, args []string) error {
	if err := c.wanted.prepare(args, p.now()); err != nil {
		return err
	}
	var template *sinks.TopicTemplate
	if c.toTopic != "" {
		var err error
		if template, err = sinks.ParseTopicTemplate(c.toTopic); err != nil {
			return usagef("--to-topic: %s", err)
		}
	}
	switch {
	case c.timeout < 0:
		return usagef("--timeout must not be negative")
	case c.connection.configPath == "" && template == nil && !c.dryRun:
		return usagef("choose how to replay: --config FILE sends messages through the routes that poisoned them, --to-topic TEMPLATE sends them elsewhere as they were received")
	}
	ctx, cancel := limited(ctx, c.timeout)
	defer cancel()
	return c.connection.use(ctx, p, template != nil, func(at opened) error { return c.replay(ctx, p, at, template) })
}

func (c *poisonReplay) replay(ctx context.Context, p *program, at opened, template *sinks.TopicTemplate) (err error) {
	records, err := c.wanted.records(ctx, at.queue)
	if err != nil {
		return err
	}
	if c.dryRun {
		return p.writeRecords(records, c.asJSON)
	}
	report := newReplayReport(records)
	switch {
	case len(records) == 0:
	case template == nil:
		report, err = c.throughRoutes(ctx, p, records)
	default:
		report, err = c.elsewhere(ctx, p, at, template, records)
	}
	return errors.Join(err, p.writeReplayReport(report, c.asJSON))
}

// throughRoutes replays through the routes of the configuration.
func (c *poisonReplay) throughRoutes(ctx context.Context, p *program, records []admin.PoisonedRecord) (report replayReport, err error) {
	var routes []string
	for _, r := range records {
		routes = append(routes, r.Route)
	}
	replayer, err := pipeline.NewReplayer(ctx, c.connection.loaded, routes, pipeline.Options{Observer: waits{p}, ForceReplays: c.force})
	switch {
	case errors.Is(err, pipeline.ErrConfig):
		return newReplayReport(records), invalid(err)
	case err != nil:
		return newReplayReport(records), notReplayed(err, len(records))
	}
	defer func() { err = errors.Join(err, replayer.Close()) }()
	return replayEach(ctx, p, replayer, records)
}

// elsewhere replays to a topic in NATS, regardless of the routes.
func (c *poisonReplay) elsewhere(
	ctx context.Context, p *program, at opened, template *sinks.TopicTemplate, records []admin.PoisonedRecord,
) (report replayReport, err error) {
	target, err := c.target(at.sink)
	if err != nil {
		return newReplayReport(records), err
	}
	if d := target.Describe(); d.Durability < sinks.DurabilityDisk {
		p.notef("warning: the target stream: %s", d.DurabilityNote)
	}
	r, err := c.router(at.sink, target, template, at.payloads, records, waits{p})
	if err != nil {
		return newReplayReport(records), errors.Join(err, target.Close())
	}
	// The Router's Close closes only the sinks of its routes.
	defer func() { err = errors.Join(err, r.Close(), target.Close()) }()
	return replayEach(ctx, p, rerouted{r, at.queue, c.force}, records)
}

// target returns the sink for the messages, over the connection of the poison queue.
func (c *poisonReplay) target(poison *nats.Sink) (*nats.Sink, error) {
	config := nats.Config{
		Conn: poison.Conn(), Domain: c.connection.sink.Domain, Provision: nats.ProvisionNone, Stream: c.toStream, SubjectPrefix: c.toPrefix,
	}
	if config.Stream == "" {
		config.Stream = c.connection.stream
	}
	if config.SubjectPrefix == "" {
		config.SubjectPrefix = c.connection.prefix
	}
	if err := config.Validate(); err != nil {
		return nil, usagef("%s", err)
	}
	return nats.New(config, nil)
}

// errIntoQueue keeps a replay from filling the queue that it is emptying.
var errIntoQueue = router.Permanent(errors.New("--to-topic resolves to the topic of the poison queue"))

// replayKey separates what is sent elsewhere from what the route itself stored, which may
// be something else that it derived from the message, or a part of that: otherwise the
// stream would take one for a copy of the other, and the record would be deleted although
// the message is stored nowhere. A repeated replay is still recognized.
func replayKey(scope string, msg *message.Message) (router.Keys, error) {
	return router.DefaultKeys("poison replay "+scope, msg)
}

// router returns a router with one route for each that poisoned a message, under the same
// name: a message that fails again returns under that name.
func (c *poisonReplay) router(
	poison, target *nats.Sink, template *sinks.TopicTemplate, store *claimcheck.Store, records []admin.PoisonedRecord, observer router.Observer,
) (*router.Router, error) {
	config := router.Config{
		Poison: poison, PoisonTopic: c.connection.topic, Observer: observer,
		Dedup: router.DedupSettings{KeyFunc: replayKey},
	}
	if store != nil {
		config.ClaimCheck = store
	}
	r, err := router.New(config, nil)
	if err != nil {
		return nil, err
	}
	prefix := c.toPrefix
	if prefix == "" {
		prefix = c.connection.prefix
	}
	queueSubject := c.connection.prefix + "." + c.connection.topic
	topic := func(msg *message.Message) (string, error) {
		topic, err := template.Topic(msg.Metadata, target.TopicSegment)
		if err == nil && prefix+"."+topic == queueSubject {
			err = errIntoQueue
		}
		return topic, err
	}
	added := make(map[string]bool)
	for _, record := range records {
		name := routeName(record.Route)
		if added[name] {
			continue
		}
		added[name] = true
		if err := r.Add(router.Route{
			// The Router does not run, so nothing is received.
			Name: name, From: gochannel.NewGoChannel(gochannel.Config{}, nil), Topic: c.connection.topic,
			To: target, TopicFunc: topic,
		}); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

// routeName is the name of the replaying route for a route. A middleware that is used on
// its own may have no name.
func routeName(name string) string {
	if name == "" {
		return "replay"
	}
	return name
}

// rerouted replays with a router of its own.
type rerouted struct {
	router *router.Router
	queue  router.PoisonStore
	force  bool
}

// Replay implements [admin.Replayer].
func (r rerouted) Replay(ctx context.Context, ids []string) (router.ReplayReport, error) {
	return r.router.Replay(ctx, r.queue, router.PoisonSelection{
		IDs: ids, Force: r.force, Route: func(p router.Poisoned) string { return routeName(p.Route) },
	})
}

// waits prints that a replay is waiting for an outage to end.
type waits struct{ *program }

// Observe implements [router.Observer].
func (w waits) Observe(e router.Event) {
	switch e.Kind {
	case router.EventOutageBegan:
		w.notef("waiting: %s", e.Text)
	case router.EventOutageEnded:
		w.notef("continuing after %s", e.Delay.Round(time.Second))
	}
}

// replayEach replays messages one by one and prints the outcome of each. It returns an
// error unless every message was delivered.
func replayEach(ctx context.Context, p *program, replayer admin.Replayer, records []admin.PoisonedRecord) (replayReport, error) {
	report := newReplayReport(records)
	err := admin.ReplayEach(ctx, replayer, idsOfRecords(records), func(result admin.ReplayResult) {
		report.add(result)
		text := fmt.Sprintf("%d/%d  %s  %s", len(report.Results), len(records), result.ID, result.Outcome)
		if result.Reason != "" {
			text += ": " + cell(result.Reason)
		}
		p.notef("%s", text)
	})
	if err != nil {
		return report, notReplayed(err, len(records)-len(report.Results))
	}
	if n := report.Poisoned + report.Kept; n > 0 {
		return report, fmt.Errorf("%s of %d still in the poison queue", plural(n, "message"), len(records))
	}
	return report, nil
}

func notReplayed(err error, left int) error {
	return fmt.Errorf("%w; %s not replayed", err, plural(left, "message"))
}

func newReplayReport(records []admin.PoisonedRecord) replayReport {
	return replayReport{Selected: len(records), Results: []admin.ReplayResult{}}
}

func (r *replayReport) add(result admin.ReplayResult) {
	r.Results = append(r.Results, result)
	switch result.Outcome {
	case admin.ReplayDelivered:
		r.Delivered++
	case admin.ReplayDuplicate:
		r.Duplicate++
	case admin.ReplayPoisoned:
		r.Poisoned++
	case admin.ReplayKept:
		r.Kept++
	case admin.ReplayGone:
		r.Gone++
	}
}

func (p *program) writeReplayReport(report replayReport, asJSON bool) error {
	if asJSON {
		return p.writeJSON(report)
	}
	_, err := fmt.Fprintf(p.stdout, "%s selected: %d delivered, %d duplicate, %d poisoned again, %d kept, %d gone\n",
		plural(report.Selected, "message"), report.Delivered, report.Duplicate, report.Poisoned, report.Kept, report.Gone)
	return err
}
