package command

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	kafkaqueue "github.com/agrimill/agrimill/stores/kafka/poisonqueue"
)

func newPoisonCommand(p *program) *cobra.Command {
	return group(&cobra.Command{
		Use:     "poison",
		GroupID: groupPoison,
		Short:   "manage the poison queue in NATS JetStream or Kafka",
		Long: `A message that cannot be handled is moved to the poison queue and confirmed, so
it exists nowhere else. Listing and showing messages leaves the queue unchanged.`,
	}, newPoisonListCommand(p), newPoisonShowCommand(p), newPoisonReplayCommand(p), newPoisonDropCommand(p))
}

// filters select messages by their properties.
type filters struct {
	routes, types []string
	class         string
	since         string
	limit         int
	from          time.Time // since, parsed
	patterns      []*regexp.Regexp
}

func (f *filters) define(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.routes, "route", nil, "only messages poisoned by the route `NAME`; may be repeated")
	flags.StringArrayVar(&f.types, "type", nil, "only this message `TYPE`; * matches any characters, ? exactly one; may be repeated")
	choice(cmd, &f.class, "class", "only this `CLASS`: permanent or handler", router.ClassPermanent.String(), router.ClassHandler.String())
	flags.StringVar(&f.since, "since", "", "only messages that last failed at or after this `TIME`: 90m, 2d, 2026-11-20, 2026-11-20T08:00:00Z")
	flags.IntVar(&f.limit, "limit", 0, "at most the `N` oldest messages; 0 means no limit")
}

// prepare checks the flags.
func (f *filters) prepare(now time.Time) error {
	if f.limit < 0 {
		return usagef("--limit must not be negative")
	}
	if f.since != "" {
		var err error
		if f.from, err = parseSince(f.since, now); err != nil {
			return usagef("--since: %s", err)
		}
	}
	for _, text := range f.types {
		f.patterns = append(f.patterns, wildcards(text))
	}
	return nil
}

// any reports whether a filter was given. A limit does not count.
func (f *filters) any() bool {
	return len(f.routes) > 0 || len(f.types) > 0 || f.class != "" || f.since != ""
}

func (f *filters) match(p router.Poisoned) bool {
	messageType := p.Message.Metadata[gateway.KeyMessageType]
	return (len(f.routes) == 0 || slices.Contains(f.routes, p.Route)) &&
		(len(f.types) == 0 || slices.ContainsFunc(f.patterns, func(r *regexp.Regexp) bool { return r.MatchString(messageType) })) &&
		(f.class == "" || f.class == p.Class) &&
		(f.since == "" || !p.Last.Before(f.from))
}

// selection is filters, or IDs, or everything. It must be explicit, so that forgetting it
// selects nothing rather than everything.
type selection struct {
	filters
	all bool
	ids []string
}

func (s *selection) define(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.all, "all", false, "every message in the queue")
	s.filters.define(cmd)
}

func (s *selection) prepare(ids []string, now time.Time) error {
	given := 0
	for _, is := range []bool{s.all, len(ids) > 0, s.any()} {
		if is {
			given++
		}
	}
	if given != 1 {
		return usagef("select messages by ID, by filter (--route, --class, --type, --since), or with --all")
	}
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return err
		}
		if !slices.Contains(s.ids, id) {
			s.ids = append(s.ids, id)
		}
	}
	return s.filters.prepare(now)
}

func checkID(id string) error {
	if n, err := strconv.ParseUint(id, 10, 64); (err != nil || n == 0) && !kafkaqueue.ValidID(id) {
		return usagef("%q is not an ID: IDs are numbers, such as 17, or 0-17 in Kafka; see agrimill poison list", id)
	}
	return nil
}

// records returns the selected messages, oldest first, without their payloads.
func (s *selection) records(ctx context.Context, queue router.PoisonStore) ([]record, error) {
	selected := []record{}
	want := router.PoisonSelection{IDs: s.ids}
	if len(s.ids) == 0 {
		want.Filter = s.match
	}
	for poisoned, err := range router.SelectPoisoned(ctx, queue, want) {
		if err != nil {
			return nil, err
		}
		selected = append(selected, newRecord(poisoned))
		if len(selected) == s.limit {
			break
		}
	}
	return selected, nil
}

// record is a message of the poison queue as it is printed.
type record struct {
	ID       string    `json:"id"`
	Route    string    `json:"route"`
	Topic    string    `json:"topic"`
	Class    string    `json:"class"`
	Reason   string    `json:"reason"`
	Attempts int       `json:"attempts"`
	Count    int       `json:"count"`
	First    time.Time `json:"first,omitzero"`
	Last     time.Time `json:"last,omitzero"`
	// Foreign: not written by a router, so it cannot be replayed.
	Foreign bool `json:"foreign,omitempty"`
	// Unreadable are the keys of the metadata whose value is missing or cannot be read.
	Unreadable  []string `json:"unreadable,omitempty"`
	UUID        string   `json:"uuid"`
	MessageType string   `json:"message_type"`
	Tenant      string   `json:"tenant_id"`
	Filename    string   `json:"filename,omitempty"`
	PayloadSize int64    `json:"payload_size"`
	// PayloadMode is empty if the payload is in the record.
	PayloadMode string            `json:"payload_mode,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"` // show only
}

func newRecord(p router.Poisoned) record {
	meta := p.Message.Metadata
	_, ours := router.ParsePoisoned(p.Message)
	r := record{
		ID: p.ID, Route: p.Route, Topic: p.Topic, Class: p.Class, Reason: p.Reason, Attempts: p.Attempts, Count: p.Count,
		First: p.First, Last: p.Last, Foreign: !ours, Unreadable: p.Unreadable, UUID: p.Message.UUID, MessageType: meta[gateway.KeyMessageType],
		Tenant: meta[gateway.KeyTenantID], Filename: meta[gateway.KeyFilename],
		PayloadSize: int64(len(p.Message.Payload)), PayloadMode: meta[gateway.KeyPayloadMode],
	}
	if r.PayloadMode != "" {
		if size, err := strconv.ParseInt(meta[gateway.KeyPayloadSize], 10, 64); err == nil {
			r.PayloadSize = size
		}
	}
	return r
}
