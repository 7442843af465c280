package command

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/router"
)

const reasonWidth = 100 // characters

func newPoisonListCommand(p *program) *cobra.Command {
	var from connection
	var wanted filters
	var grouped bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "list poisoned messages, oldest first",
		Long: `A message must match all filters. With --json the output is an
array of objects without payloads.

--group makes one line, with a count, of the messages with the same route, message type and
reason; numbers, IDs and quoted texts in the reason do not matter.

` + connectionHelp,
		Example: `  agrimill poison list --config agrimill.yaml
  agrimill poison list --config agrimill.yaml --group
  agrimill poison list --config agrimill.yaml --since 2d --class handler --route task-data
  agrimill poison list --config agrimill.yaml --type 'iso:11783:*' --limit 20 --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := wanted.prepare(); err != nil {
				return err
			}
			return from.use(cmd.Context(), p, func(queue router.PoisonStore) error {
				records, err := (&selection{filters: wanted}).records(cmd.Context(), queue)
				if err != nil {
					return err
				}
				if len(records) == 0 && wanted.any() {
					p.notef("no message matches; agrimill poison list without filters has all")
				}
				if grouped {
					return p.writeGroups(records)
				}
				return p.writeRecords(records)
			})
		},
	}
	from.define(cmd)
	wanted.define(cmd, p.now)
	cmd.Flags().BoolVar(&grouped, "group", false, "list groups of messages instead, the largest first")
	cmd.Flags().BoolVar(&p.asJSON, "json", false, "write JSON")
	return cmd
}

func (p *program) writeGroups(records []admin.PoisonedRecord) error {
	groups := admin.GroupPoisoned(slices.Values(records)).Groups
	return p.writeList(groups, len(groups), func(table table) {
		table.row("COUNT", "ROUTE", "CLASS", "TYPE", "FIRST", "LAST", "REASON")
		for _, g := range groups {
			table.row(g.Count, g.Route, g.Class, g.MessageType, timeCell(g.First), timeCell(g.Last), shorten(g.Reason, reasonWidth))
		}
	})
}

func (p *program) writeRecords(records []admin.PoisonedRecord) error {
	return p.writeList(records, len(records), func(table table) {
		table.row("ID", "ROUTE", "CLASS", "TYPE", "BYTES", "ATTEMPTS", "FIRST", "LAST", "REASON")
		for _, r := range records {
			attempts := fmt.Sprint(r.Attempts)
			if r.Foreign {
				attempts = "" // unknown
			}
			table.row(r.ID, r.Route, r.Class, r.MessageType, r.Size, attempts, timeCell(r.First), timeCell(r.Last), shorten(r.Reason, reasonWidth))
		}
	})
}

func (p *program) writeList(list any, n int, rows func(table)) error {
	return p.write(list, func() error {
		if n == 0 {
			_, err := fmt.Fprintln(p.stdout, "no messages")
			return err
		}
		table := p.table()
		rows(table)
		return table.Flush()
	})
}
