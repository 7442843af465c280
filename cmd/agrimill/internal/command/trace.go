package command

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
)

func newTraceCommand(p *program) *cobra.Command {
	var at adminAt
	var limit int
	cmd := &cobra.Command{
		Use:     "trace ID|FILENAME...",
		GroupID: groupPipeline,
		Short:   "show what became of a message",
		Long: `Asks a running agrimill for its journal: when a message was received, which routes took,
filtered or retried it and why, where it was stored, and when it was confirmed.

A message is found by its context ID, message ID or UUID, whole or at least the first eight
characters, or by a part of its filename. A file comes with the messages that carried it. The
argument lost also finds messages that a broker acknowledged and then lost.

The journal is bounded (journal in the configuration). It is in memory and begins with the
process, unless it has a file (path). It knows nothing of other instances.

Exit status: 0 every argument was found; 1 one was not, or agrimill did not answer.`,
		Example: `  agrimill trace --config agrimill.yaml 'field 1.zip'
  agrimill trace --config agrimill.yaml --json field`,
		Args: some("an ID or a part of a filename"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := at.server(p)
			if err != nil {
				return err
			}
			var traces []journal.Trace
			for _, query := range args {
				trace, err := server.trace(cmd.Context(), query, limit)
				if err != nil {
					return err
				}
				traces = append(traces, trace)
			}
			var names map[string]string
			if !p.asJSON {
				names = server.endpointNames(cmd.Context())
			}
			return p.writeTraces(traces, names)
		},
	}
	at.flags(cmd)
	cmd.Flags().BoolVar(&p.asJSON, "json", false, "write JSON")
	cmd.Flags().IntVar(&limit, "limit", 20, "show at most the `N` newest messages for each argument (1 to 10000); the newest 200 come with the routes that never saw them")
	return cmd
}

// endpointNames returns what people call endpoints, by ID in lower case, as far as it is known.
func (r *adminServer) endpointNames(ctx context.Context) map[string]string {
	names := map[string]string{}
	list, _ := r.tenants(ctx) // without it, the IDs are enough
	for _, t := range list {
		for _, e := range t.Endpoints {
			names[strings.ToLower(e.ID)] = cmp.Or(e.Name, e.ExternalID)
		}
	}
	return names
}

func (p *program) writeTraces(traces []journal.Trace, names map[string]string) error {
	status := statusOK
	for _, trace := range traces {
		if len(trace.Messages) == 0 {
			status = statusFailed
			p.unknown(trace)
		}
	}
	return ended(p.write(traces, func() error {
		for _, trace := range traces {
			for _, m := range trace.Messages {
				if err := p.writeMessage(&m, names); err != nil {
					return err
				}
			}
			if trace.More > 0 {
				p.notef("%s for %s not shown; see --limit", plural(trace.More, "older message"), quote(cell(trace.Query)))
			}
		}
		return nil
	}), status)
}

func (p *program) unknown(trace journal.Trace) {
	p.notef("nothing is known of %s: the journal begins at %s; it has neither older messages nor those of other instances",
		quote(cell(trace.Query)), timeCell(trace.Since))
}

// nameOf is what a person calls a message, or all that identifies it, with the names of endpoints.
func nameOf(m *journal.Message, names map[string]string, all bool) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, strings.TrimSpace(name+" "+cell(value)))
		}
	}
	add("", m.Filename)
	add("", m.MessageType)
	if all {
		if m.Bytes >= 0 {
			add("", plural(int(m.Bytes), "byte"))
		}
		add("context", m.ContextID)
		add("tenant", m.Tenant)
		if name := names[strings.ToLower(m.Endpoint)]; name != "" {
			add("", fmt.Sprintf("endpoint %q (%s)", name, m.Endpoint))
		} else {
			add("endpoint", m.Endpoint)
		}
	}
	switch n := len(m.MessageIDs); {
	case n == 1:
		add("message", m.MessageIDs[0])
	case n > 1:
		add("", plural(n, "message"))
	case m.Delivery != "":
		add("from", m.Delivery)
	default:
		add("message", m.UUID)
	}
	return strings.Join(parts, ", ")
}

func (p *program) writeMessage(m *journal.Message, names map[string]string) error {
	if _, err := fmt.Fprintf(p.stdout, "%s\n  %s\n", nameOf(m, names, true), cell(m.State)); err != nil {
		return err
	}
	table := p.table()
	line := func(when, step, route, detail string) {
		_, _ = fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", when, step, cell(route), detail)
	}
	steps := stepsOf(m.Events)
	for i, s := range steps {
		if left := len(steps) - maxSteps; left > 0 && i >= maxSteps/2 && i < maxSteps/2+left {
			if i == maxSteps/2 {
				line("…", plural(left, "step"), "", "not shown; --json has them")
			}
			continue
		}
		line(s.Time.Format("2006-01-02T15:04:05.000Z07:00"), s.Step.String(), s.Route, s.detail())
	}
	for i, r := range m.Unseen {
		if i == maxUnseen {
			line("…", "never saw it", "", plural(len(m.Unseen)-maxUnseen, "more route"))
			break
		}
		line("-", "never saw it", r.Route, cell(r.Why))
	}
	return table.Flush()
}

// What is shown of one message fits a screen of 40 lines.
const (
	maxSteps  = 28
	maxUnseen = 6
)

// step is what happened to a message, or to several messages that carry a file.
type step struct {
	journal.Event
	ids  map[string]bool
	last time.Time
}

// stepsOf puts together what happened to the messages of a file, once each.
func stepsOf(events []journal.Event) (steps []*step) {
	latest := map[journal.Event]*step{}
	for _, e := range events {
		if e.MessageID == "" {
			steps = append(steps, &step{Event: e})
			continue
		}
		alike := e
		alike.Time, alike.MessageID, alike.At, alike.Bytes = time.Time{}, "", nil, 0
		s := latest[alike]
		if s == nil || s.ids[e.MessageID] {
			s = &step{Event: e, ids: map[string]bool{}}
			latest[alike], steps = s, append(steps, s)
		}
		s.ids[e.MessageID], s.last = true, e.Time
	}
	return steps
}

func (s *step) detail() string {
	if len(s.ids) < 2 {
		return s.Detail()
	}
	whole := s.Event
	whole.MessageID, whole.Bytes = plural(len(s.ids), "message"), 0
	if d := s.last.Sub(s.Time).Round(time.Millisecond); d > 0 {
		whole.MessageID += ", the last " + d.String() + " later"
	}
	return whole.Detail()
}
