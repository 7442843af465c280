package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"text/tabwriter"
)

// reasonWidth is how much of a reason the table shows, in characters.
const reasonWidth = 100

func poisonListCommand() command {
	return command{
		name:  "list",
		short: "list poisoned messages, oldest first",
		long: `Filters that are given together must all hold. With -json the output is an
array of objects; it never has payloads.

` + environmentHelp,
		define: func(flags *flag.FlagSet) action {
			var from connection
			var wanted selection
			from.define(flags)
			wanted.filters.define(flags)
			asJSON := flags.Bool("json", false, "write JSON")
			return func(ctx context.Context, p *program, args []string) (err error) {
				if len(args) > 0 {
					return usagef("unexpected argument %q", args[0])
				}
				if err := wanted.filters.prepare(p.now()); err != nil {
					return err
				}
				sink, queue, err := from.open(p.env)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, sink.Close()) }()
				records, err := wanted.records(ctx, queue)
				if err != nil {
					return err
				}
				return p.writeRecords(records, *asJSON)
			}
		},
	}
}

// writeRecords writes a table or JSON to stdout.
func (p *program) writeRecords(records []record, asJSON bool) error {
	if asJSON {
		return p.writeJSON(records)
	}
	if len(records) == 0 {
		_, err := fmt.Fprintln(p.stdout, "no messages")
		return err
	}
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "ID\tROUTE\tCLASS\tTYPE\tBYTES\tATTEMPTS\tFIRST\tLAST\tREASON")
	for _, r := range records {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", r.ID, cell(r.Route), cell(r.Class), cell(r.MessageType),
			r.PayloadSize, r.Attempts, timeCell(r.First), timeCell(r.Last), shorten(cell(r.Reason), reasonWidth))
	}
	return table.Flush()
}
