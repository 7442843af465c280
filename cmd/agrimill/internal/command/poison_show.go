package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/claimcheck"
)

func newPoisonShowCommand(p *program) *cobra.Command {
	var show poisonShow
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "show one poisoned message: reason, history, metadata and, on request, its payload",
		Long: `Shows why a message was poisoned and what is known of it. With --payload - only the payload
is written to stdout, unchanged.

` + connectionHelp,
		Example: `  agrimill poison show --config agrimill.yaml 17
  agrimill poison show --config agrimill.yaml 17 --payload 17.zip`,
		Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error { return show.run(cmd.Context(), p, args) },
	}
	flags := cmd.Flags()
	show.connection.define(cmd)
	flags.StringVar(&show.payload, "payload", "", "write the payload to a new `FILE`; - means stdout")
	flags.BoolVar(&p.asJSON, "json", false, "write JSON")
	return cmd
}

type poisonShow struct {
	connection connection
	payload    string
}

type shownRecord struct {
	admin.PoisonedRecord
	Metadata map[string]string `json:"metadata"`
}

func (c *poisonShow) run(ctx context.Context, p *program, args []string) error {
	if c.payload == "-" && p.asJSON {
		return usagef("--json cannot be combined with --payload -")
	}
	if err := checkID(args[0]); err != nil {
		return err
	}
	return c.connection.use(ctx, p, func(queue router.PoisonStore) error { return c.show(ctx, p, queue, args[0]) })
}

func (c *poisonShow) show(ctx context.Context, p *program, queue router.PoisonStore, id string) error {
	poisoned, err := queue.Get(ctx, id)
	if err != nil {
		return fmt.Errorf("poisoned message %q: %w", id, err)
	}
	if c.payload == "-" {
		return c.copyPayload(ctx, p.stdout, poisoned.Message)
	}
	if c.payload != "" {
		if err := create(c.payload, 0o600, func(to io.Writer) error { return c.copyPayload(ctx, to, poisoned.Message) }); err != nil {
			return err
		}
	}
	r := shownRecord{admin.NewPoisonedRecord(poisoned), poisoned.Message.Metadata}
	return p.write(r, func() error { return p.writeRecord(r) })
}

func (p *program) writeRecord(r shownRecord) error {
	table := p.table()
	line := func(name, value string) { table.row(name+":", value) }
	line("ID", r.ID)
	if r.Foreign {
		line("Note", "no router wrote this message; it cannot be replayed")
	} else {
		line("Route", r.Route)
		line("Received from", r.Topic)
		line("Class", r.Class)
		line("Reason", r.Reason)
		line("History", fmt.Sprintf("%s, poisoned %s", plural(r.Attempts, "failed attempt"), plural(r.Count, "time")))
		line("First failure", timeCell(r.First))
		line("Last failure", timeCell(r.Last))
	}
	line("Message UUID", r.UUID)
	where := "in the record"
	if r.PayloadMode != "" {
		where = "elsewhere: " + r.PayloadMode
	}
	line("Payload", fmt.Sprintf("%s, %s", plural(int(r.Size), "byte"), where))
	_, _ = fmt.Fprintln(table, "Metadata:\t")
	for _, key := range slices.Sorted(maps.Keys(r.Metadata)) {
		if !strings.HasPrefix(key, "x-router-poison-") {
			line("  "+key, r.Metadata[key])
		}
	}
	return table.Flush()
}

// errNoClaimCheck: the place of the payload is unknown.
var errNoClaimCheck = errors.New("the payload is in a claim check, and the configuration has none (claim_check)")

func (c *poisonShow) copyPayload(ctx context.Context, to io.Writer, msg *message.Message) (err error) {
	switch mode := msg.Metadata[gateway.KeyPayloadMode]; {
	case mode == "":
		_, err := to.Write(msg.Payload)
		return err
	case mode == gateway.PayloadModeLazy:
		return router.ErrPayloadElsewhere
	case c.connection.loaded.ClaimCheck == nil:
		return errNoClaimCheck
	}
	store, err := claimcheck.New(ctx, c.connection.loaded.ClaimCheck.Config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	msg.SetContext(ctx)
	payload, _, err := store.OpenMessage(msg)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, payload)
	return errors.Join(err, payload.Close())
}
