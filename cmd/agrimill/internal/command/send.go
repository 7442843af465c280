package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/farmfile"
)

type send struct {
	service      service
	tenant, from string
	to           []string
	publish      bool
	messageType  string
	filename     string
	hasFilename  bool
	teamset      string
	contextID    string
	spoolDir     string
	timeout      time.Duration
	failFast     bool
}

func newSendCommand(p *program) *cobra.Command {
	var send send
	cmd := &cobra.Command{
		Use:     "send FILE...",
		GroupID: groupGateway,
		Short:   "send files through the gateway",
		Long: `Sends each file as one message from one of the application's endpoints: to the
endpoints of --to, to all subscribers of its type with --publish, or both. Files are
streamed; the gateway splits large ones. The file "-" is stdin, which is kept in memory
until it is sent, or above 16 MiB in a temporary file in the directory of --spool-dir, or
else of TMPDIR.

The message type is derived from the file name and its extension, and is
application:octet-stream for unknown kinds; --type overrides it. --tenant can be left
out if the endpoint of --from is in only one tenant. Endpoints are given by ID or
external ID.

One line per file goes to stdout, with the context ID that was sent. If a file fails
for a reason of its own (it cannot be read, it is too large, no recipient is
reachable), the next one is sent; --fail-fast stops there. If the gateway is down or
refuses the application, the rest are not tried. Exit status 1 means that the results
could not be written, or that at least one file did not reach every recipient; one that
reached some of them is reported separately, because it must not be sent to all of them again.
After a failure without a response, resend that file with its --context-id, so that receivers
recognize a copy.

` + serviceHelp,
		Example: `  agrimill send --from urn:example:terminal --publish taskdata.zip
  agrimill send --from urn:example:terminal --to urn:example:software taskdata.zip report.pdf
  agrimill send --from urn:example:terminal --publish --filename field.zip - < taskdata.zip`,
		Args: some("the files to send, or - for stdin"),
		RunE: func(cmd *cobra.Command, args []string) error {
			send.hasFilename = cmd.Flags().Changed("filename")
			return send.run(cmd.Context(), p, args)
		},
	}
	flags := cmd.Flags()
	send.service.define(cmd)
	flags.StringVar(&send.tenant, "tenant", "", "`ID` of the tenant")
	flags.StringVar(&send.from, "from", "", "sending `ENDPOINT`: ID or external ID; required")
	flags.StringArrayVar(&send.to, "to", nil, "receiving `ENDPOINT`: ID or external ID; may be repeated")
	flags.BoolVar(&send.publish, "publish", false, "send to all endpoints that subscribe to the type")
	flags.StringVar(&send.messageType, "type", "", "message `TYPE` (default: derived from the file name)")
	flags.StringVar(&send.filename, "filename", "", "file `NAME` that receivers see, empty for none (default: the file's name)")
	flags.StringVar(&send.teamset, "teamset", "", "teamset context `ID`")
	flags.StringVar(&send.contextID, "context-id", "", "context `ID`, a UUID unless the configuration has any_context_id, to resend one file after a failure (default: a new one)")
	flags.StringVar(&send.spoolDir, "spool-dir", "", "`DIRECTORY` for the temporary file of a large stdin (default TMPDIR, or the system's)")
	flags.DurationVar(&send.timeout, "timeout", 0, "give up after this `DURATION`; 0 means never")
	flags.BoolVar(&send.failFast, "fail-fast", false, "stop at the first failure of any kind")
	flags.BoolVar(&p.asJSON, "json", false, "write one JSON object at the end")
	return cmd
}

// Outcomes for a file.
const (
	outcomeSent         = "sent"
	outcomePartial      = "partial"       // some direct recipients received it
	outcomeNoRecipients = "no_recipients" // nobody received it
	outcomeFailed       = "failed"
	outcomeNotSent      = "not_sent" // not tried
)

type sendReport struct {
	Sent         int          `json:"sent"`
	Partial      int          `json:"partial"`
	NoRecipients int          `json:"no_recipients"`
	Failed       int          `json:"failed"`
	NotSent      int          `json:"not_sent"`
	Results      []sendResult `json:"results"`
}

type sendResult struct {
	File        string `json:"file"`
	Filename    string `json:"filename,omitempty"`
	MessageType string `json:"message_type,omitempty"`
	Size        int64  `json:"size"`
	// ContextID is empty if nothing was sent.
	ContextID string `json:"context_id,omitempty"`
	Outcome   string `json:"outcome"`
	Error     string `json:"error,omitempty"`
	Advice    string `json:"advice,omitempty"`
}

func (c *send) check(files []string) error {
	stdin := 0
	for _, file := range files {
		if file == stdinName {
			stdin++
		}
	}
	switch {
	case c.from == "":
		return usagef("specify the sending endpoint with --from")
	case len(c.to) == 0 && !c.publish:
		return usagef("specify the recipients: --to ENDPOINT, or --publish for all subscribers")
	case stdin > 1:
		return usagef("stdin can be sent only once")
	case stdin > 0 && c.messageType == "" && c.filename == "":
		return usagef("stdin has no name to derive a message type from: add --type or --filename")
	case len(files) > 1 && (c.contextID != "" || c.hasFilename):
		return usagef("--context-id and --filename require a single file")
	case c.timeout < 0:
		return usagef("--timeout must not be negative")
	}
	return checkTenant(c.tenant)
}

func (c *send) run(ctx context.Context, p *program, files []string) error {
	if err := c.check(files); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // a closed stdout is no reason to stop sending
	ctx, cancel := limited(ctx, c.timeout)
	defer cancel()
	return c.service.use(p, func(client *gateway.Client) error {
		if c.contextID != "" && !config.IsUUID(c.contextID) && !client.Config().AnyContextID {
			return usagef("--context-id must be a UUID, unless the file of --config has gateway.any_context_id")
		}
		request, err := c.request(ctx, client)
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		sender := &sender{program: p, client: client, send: c, request: request}
		report := sender.all(ctx, files)
		if err = sender.unwritten; p.asJSON {
			err = p.writeJSON(report)
		}
		if err != nil {
			err = fmt.Errorf("the results could not be written: %w", err)
		}
		if left := len(files) - report.Sent; left > 0 {
			err = errors.Join(err, fmt.Errorf("%d of %s did not reach every recipient", left, plural(len(files), "file")))
			if ctx.Err() != nil {
				err = fmt.Errorf("%w; %w", context.Cause(ctx), err)
			}
		}
		return err
	})
}

func (c *send) request(ctx context.Context, client *gateway.Client) (request gateway.SendMessageRequest, err error) {
	known := &lookup{lister: client}
	request.IsPublish, request.TeamsetContextID = c.publish, c.teamset
	request.EndpointID, request.TenantID, err = known.endpoint(ctx, "--from", c.tenant, c.from)
	for _, to := range c.to {
		if err != nil {
			break
		}
		var id string
		if id, _, err = known.endpoint(ctx, "--to", request.TenantID, to); err == nil {
			request.DirectRecipients = append(request.DirectRecipients, id)
		}
	}
	return request, err
}

type sender struct {
	program *program
	client  *gateway.Client
	send    *send
	request gateway.SendMessageRequest

	unwritten error // of a line for stdout; may be nil
}

func (s *sender) all(ctx context.Context, files []string) sendReport {
	results := []sendResult{}
	counts := map[string]int{}
	stopped := false
	for i, file := range files {
		result := sendResult{File: file, Outcome: outcomeNotSent}
		if !stopped {
			var err error
			result, err = s.one(ctx, file, fmt.Sprintf("%d/%d", i+1, len(files)))
			stopped = err != nil && (s.send.failFast || ctx.Err() != nil || hopeless(err))
		}
		s.report(result)
		results = append(results, result)
		counts[result.Outcome]++
	}
	return sendReport{
		Sent: counts[outcomeSent], Partial: counts[outcomePartial], NoRecipients: counts[outcomeNoRecipients],
		Failed: counts[outcomeFailed], NotSent: counts[outcomeNotSent], Results: results,
	}
}

func hopeless(err error) bool {
	return isAny(err, gateway.ErrUnauthorized, gateway.ErrForbidden, gateway.ErrUnavailable, gateway.ErrRateLimited, gateway.ErrBadResponse,
		gateway.ErrRedirect, gateway.ErrToken, gateway.ErrClosed)
}

func isAny(err error, causes ...error) bool {
	return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
}

func (s *sender) one(ctx context.Context, file, position string) (sendResult, error) {
	result := sendResult{File: file, Outcome: outcomeSent}
	err := s.transfer(ctx, &result, position)
	switch {
	case err == nil:
		return result, nil
	case errors.Is(err, gateway.ErrPartialDelivery):
		result.Outcome = outcomePartial
	case errors.Is(err, gateway.ErrNoRecipients):
		result.Outcome = outcomeNoRecipients
	default:
		result.Outcome = outcomeFailed
	}
	result.Error, result.Advice = redact(err), admin.Advice(err)
	if result.Outcome == outcomeFailed && result.ContextID != "" && !turnedDown(err) {
		// The gateway may have accepted it anyway.
		result.Advice = "it may have arrived anyway: send it again with --context-id " + result.ContextID
	}
	return result, err
}

// turnedDown reports whether nobody received the message: the gateway, or the client before it, rejected it, or its file could not be
// read to the end in the only attempt.
func turnedDown(err error) bool {
	if sent := (*gateway.Error)(nil); errors.Is(err, errUnread) && errors.As(err, &sent) && sent.Attempts <= 1 {
		return true
	}
	return isAny(err, gateway.ErrUnauthorized, gateway.ErrForbidden, gateway.ErrRateLimited, gateway.ErrToken) || gateway.Refused(err)
}

func (s *sender) transfer(ctx context.Context, result *sendResult, position string) (err error) {
	payload, err := s.program.openPayload(ctx, result.File, s.send.spoolDir, s.client.Config().MaxPayloadSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, payload.Close()) }()
	name := filepath.Base(result.File)
	if s.send.hasFilename || result.File == stdinName {
		name = s.send.filename
	}
	result.Filename, result.Size = farmfile.WireFilename(name), payload.Size
	if result.MessageType = s.send.messageType; result.MessageType == "" {
		result.MessageType = farmfile.MessageType(name)
	}
	request := s.request
	request.MessageType, request.Filename, request.Size = result.MessageType, result.Filename, payload.Size
	if request.ContextID = s.send.contextID; request.ContextID == "" {
		request.ContextID = uuid.NewString()
	}
	request.Body = payload.Open
	if err := s.client.ValidateMessage(request); err != nil {
		return mistaken(err, map[string]string{
			"MessageType": "--type", "TeamsetContextID": "--teamset", "Filename": "--filename", "ContextID": "--context-id", "Payload": "the file",
		})
	}
	result.ContextID = request.ContextID
	bar := s.program.newBar(position+" "+cell(filepath.Base(result.File)), payload.Size, progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true))
	defer func() { _ = bar.Finish() }() // which removes it
	request.Body = showing(bar, payload.Size, payload.Open)
	return s.client.SendMessage(ctx, request)
}

func (s *sender) report(result sendResult) {
	if result.Error != "" {
		s.program.notef("%s: %s", cell(result.File), result.Error)
		if result.Advice != "" {
			s.program.notef("  %s", result.Advice)
		}
	}
	if !s.program.asJSON {
		if _, err := fmt.Fprintf(s.program.stdout, "%s\t%s\t%d\t%s\t%s\n",
			result.Outcome, cell(result.File), result.Size, cell(result.MessageType), cell(result.ContextID)); err != nil {
			s.unwritten = err
		}
	}
}
