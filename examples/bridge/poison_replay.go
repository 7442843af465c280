package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/nats"
)

func newPoisonReplayCommand(p *program) *cobra.Command {
	var replay poisonReplay
	cmd := &cobra.Command{
		Use:   "replay (ID... | filters | --all)",
		Short: "send poisoned messages on, and take those off that arrived",
		Long: `Each message goes, as it was received, to the topic of --to-topic, by way of
retry, deduplication and poison queue. It is taken off the queue after the stream
has stored it. One that fails again returns to the end of the queue under a new ID,
with its history. An outage is waited for; SIGINT, SIGTERM or the end of --timeout
leave the rest in the queue. If one of the IDs is not in the queue, nothing is
replayed.

This program does not know what a route of your own program does to messages:
replay those of a route with a Transform, or into another kind of sink, there
(Router.ReplaySelected).

The exit status is 1 also when a message returned to the queue or stayed in it.

` + environmentHelp,
		Example: `  bridge poison replay 17
  bridge poison replay --route 'task data' --dry-run
  bridge poison replay --all --timeout 10m`,
		RunE: func(cmd *cobra.Command, args []string) error { return replay.run(cmd.Context(), p, args) },
	}
	flags := cmd.Flags()
	replay.connection.define(cmd)
	replay.connection.claimCheck.define(flags)
	replay.wanted.define(cmd)
	flags.StringVar(&replay.toTopic, "to-topic", router.DefaultToTopic, "`TEMPLATE` of the topics that messages go to")
	flags.StringVar(&replay.toStream, "to-stream", "", "`NAME` of the stream that messages go to (default: that of --stream)")
	flags.StringVar(&replay.toPrefix, "to-subject-prefix", "", "subject prefix in that stream (default: that of --subject-prefix)")
	flags.DurationVar(&replay.timeout, "timeout", 0, "give up after this time; 0: never")
	flags.BoolVar(&replay.dryRun, "dry-run", false, "list what would be replayed, and do nothing")
	flags.BoolVar(&replay.asJSON, "json", false, "write the summary as JSON")
	return cmd
}

type poisonReplay struct {
	connection         connection
	wanted             selection
	toTopic            string
	toStream, toPrefix string
	timeout            time.Duration
	dryRun, asJSON     bool
}

// Outcomes of a replayed message.
const (
	outcomeDelivered = "delivered" // the sink has it
	outcomeDuplicate = "duplicate" // the sink had it before
	outcomePoisoned  = "poisoned"  // failed again, and is back in the queue
	outcomeKept      = "kept"      // stayed in the queue
	outcomeGone      = "gone"      // somebody else took it off in the meantime
)

// replayReport is the result as JSON.
type replayReport struct {
	Selected  int            `json:"selected"`
	Delivered int            `json:"delivered"`
	Duplicate int            `json:"duplicate"`
	Poisoned  int            `json:"poisoned"`
	Kept      int            `json:"kept"`
	Gone      int            `json:"gone"`
	Results   []replayResult `json:"results"`
}

type replayResult struct {
	ID      string `json:"id"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
}

func (c *poisonReplay) run(ctx context.Context, p *program, args []string) error {
	if err := c.wanted.prepare(args, p.now()); err != nil {
		return err
	}
	template, err := sinks.ParseTopicTemplate(c.toTopic)
	switch {
	case err != nil:
		return usagef("--to-topic: %s", err)
	case c.timeout < 0:
		return usagef("--timeout must not be negative")
	}
	ctx, cancel := limited(ctx, c.timeout)
	defer cancel()
	return c.connection.use(ctx, p, true, func(at opened) error { return c.replay(ctx, p, at, template) })
}

func (c *poisonReplay) replay(ctx context.Context, p *program, at opened, template *sinks.TopicTemplate) (err error) {
	records, err := c.wanted.records(ctx, at.queue)
	if err != nil {
		return err
	}
	if c.dryRun {
		return p.writeRecords(records, c.asJSON)
	}
	target, err := c.target(at.sink)
	if err != nil {
		return err
	}
	if d := target.Describe(); d.Durability < sinks.DurabilityDisk && len(records) > 0 {
		p.notef("warning: the stream that messages go to: %s", d.DurabilityNote)
	}
	run := &replayRun{program: p}
	if run.router, err = c.router(at.sink, target, template, at.payloads, records, run); err != nil {
		return errors.Join(err, target.Close())
	}
	// The Router's Close knows only the sinks of its routes.
	defer func() { err = errors.Join(err, run.router.Close(), target.Close()) }()
	report, err := run.replay(ctx, at.queue, records)
	return errors.Join(err, p.writeReplayReport(report, c.asJSON))
}

// target is the sink that messages go to, over the connection of the poison queue.
func (c *poisonReplay) target(poison *nats.Sink) (*nats.Sink, error) {
	config := nats.Config{
		Conn: poison.Conn(), Provision: nats.ProvisionNone, Stream: c.toStream, SubjectPrefix: c.toPrefix,
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

// errIntoQueue keeps a replay from filling the queue that it empties.
var errIntoQueue = router.Permanent(errors.New("the topic is that of the poison queue (--to-topic)"))

// replayKey keeps what is replayed apart from what the route itself has stored,
// which may be something else that it made of the message, or a part of that:
// the stream would take the one for a copy of the other, and the record would be
// deleted with the message being nowhere. A replay that is repeated is recognised.
func replayKey(scope string, msg *message.Message) (router.Key, bool, error) {
	return router.DefaultKey("poison replay "+scope, msg)
}

// router has one route for each that poisoned a message, under the same name: a
// message returns under that name when it fails again.
func (c *poisonReplay) router(
	poison, target *nats.Sink, template *sinks.TopicTemplate, store *claimcheck.Store, records []record, observer router.Observer,
) (*router.Router, error) {
	config := router.Config{
		Poison: poison, PoisonTopic: c.connection.topic, Observer: observer,
		Dedup: router.DedupConfig{KeyFunc: replayKey},
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
			// The Router does not run: nothing is received.
			Name: name, From: gochannel.NewGoChannel(gochannel.Config{}, nil), Topic: c.connection.topic,
			To: target, TopicFunc: topic,
		}); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

// routeName is the name of the route that replays what a route poisoned. A
// middleware that is used alone may have no name.
func routeName(name string) string {
	if name == "" {
		return "replay"
	}
	return name
}

// replayRun replays messages one by one and tells what becomes of them. It is
// the router's Observer, which knows why a message failed.
type replayRun struct {
	program *program
	router  *router.Router

	mu     sync.Mutex
	reason string // of the last message that was poisoned
}

// Observe implements [router.Observer].
func (r *replayRun) Observe(e router.Event) {
	switch e.Kind {
	case router.EventPoisoned:
		r.mu.Lock()
		r.reason = e.Text
		r.mu.Unlock()
	case router.EventOutageBegan:
		r.program.notef("waiting: %s", e.Text)
	case router.EventOutageEnded:
		r.program.notef("it goes on after %s", e.Delay.Round(time.Second))
	}
}

func (r *replayRun) lastReason() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason
}

// replay returns an error unless every message is delivered.
func (r *replayRun) replay(ctx context.Context, queue router.PoisonStore, records []record) (replayReport, error) {
	report := replayReport{Selected: len(records), Results: []replayResult{}}
	for i, record := range records {
		result, err := r.one(ctx, queue, record.ID)
		if err != nil {
			left := plural(len(records)-i, "message")
			if ctx.Err() != nil {
				return report, fmt.Errorf("%w; %s not replayed", context.Cause(ctx), left)
			}
			return report, fmt.Errorf("%w; %s not replayed", err, left)
		}
		report.add(result)
		text := fmt.Sprintf("%d/%d  %s  %s", i+1, len(records), result.ID, result.Outcome)
		if result.Reason != "" {
			text += ": " + result.Reason
		}
		r.program.notef("%s", text)
	}
	if n := report.Poisoned + report.Kept; n > 0 {
		return report, fmt.Errorf("%s of %d still in the poison queue", plural(n, "message"), len(records))
	}
	return report, nil
}

// one replays one message. The error says that further ones will not fare better.
func (r *replayRun) one(ctx context.Context, queue router.PoisonStore, id string) (replayResult, error) {
	if err := ctx.Err(); err != nil {
		return replayResult{}, err
	}
	report, err := r.router.ReplaySelected(ctx, queue, router.PoisonSelection{
		IDs:   []string{id},
		Route: func(p router.Poisoned) string { return routeName(p.Route) },
	})
	result := replayResult{ID: id, Outcome: outcomeDelivered}
	switch {
	case errors.Is(err, router.ErrNotInQueue):
		result.Outcome = outcomeGone
	case err != nil && router.Classify(err) == router.ClassPermanent:
		result.Outcome, result.Reason = outcomeKept, redact(err)
	case err != nil:
		return result, err
	case report.Kept > 0:
		result.Outcome, result.Reason = outcomeKept, "the router did not write this message"
	case report.Poisoned > 0:
		result.Outcome, result.Reason = outcomePoisoned, r.lastReason()
	case report.Duplicates > 0:
		result.Outcome = outcomeDuplicate
	}
	return result, nil
}

func (r *replayReport) add(result replayResult) {
	r.Results = append(r.Results, result)
	switch result.Outcome {
	case outcomeDelivered:
		r.Delivered++
	case outcomeDuplicate:
		r.Duplicate++
	case outcomePoisoned:
		r.Poisoned++
	case outcomeKept:
		r.Kept++
	case outcomeGone:
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
