// Package stored reads the payloads of messages where sinks stored them, as the journal has it and the configuration
// names the sinks: in JetStream, in Kafka, in a bucket, in a claim check, and in the poison queue. It changes
// nothing there.
package stored

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/spool"
	routerfarm "github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks/claimcheck"
)

// MaxCopies is how many stored messages are looked at to find one that has the payload: a transform may have
// made many of it.
const MaxCopies = 50

// Copy is a message where a sink has stored it.
type Copy struct {
	// Step is StepStored or StepPoisoned, Route the route that did it, and Sink its sink in the configuration; empty if
	// that has no such route.
	Step  journal.Step
	Route string
	Sink  string
	// At is where it is.
	At journal.Location
	// Part says that it is one of several messages that carried a file.
	Part bool

	// Message is the message as it was found, and Payload its payload, which the caller of [Reader.Read] closes.
	Message *message.Message
	Payload *spool.Payload
}

// String says where it is.
func (c *Copy) String() string {
	return fmt.Sprintf("%s (%s by %s in sink %s)", printable(c.At.String()), c.Step, printable(c.Route), printable(c.Sink))
}

// CopiesOf returns where a message is stored, as the journal has it and the configuration names the sinks: whole files first, then by
// the kind of sink, and what was stored first first.
func CopiesOf(cfg *config.Config, m *journal.Message) []*Copy {
	var list []*Copy
	for _, e := range m.Events {
		if e.At == nil || e.Step != journal.StepStored && e.Step != journal.StepPoisoned {
			continue
		}
		sink := cfg.SinkOf(e.Route, e.Step == journal.StepPoisoned)
		c := &Copy{Step: e.Step, Route: e.Route, Sink: sink, At: *e.At, Part: e.MessageID != ""}
		if !slices.ContainsFunc(list, func(other *Copy) bool { return other.Sink == c.Sink && other.At == c.At }) {
			list = append(list, c)
		}
	}
	slices.SortStableFunc(list, func(a, b *Copy) int { return a.rank() - b.rank() })
	return list
}

// rank is the place of a copy in the order in which they are tried.
func (c *Copy) rank() (rank int) {
	switch {
	case c.At.Stream != "":
	case c.At.Topic != "":
		rank = 1
	case c.At.Key != "":
		rank = 2
	default:
		rank = 3
	}
	if c.Step == journal.StepPoisoned {
		rank += 10
	}
	if c.Part {
		rank += 100
	}
	return rank
}

// absence says that a place does not have a message (any more), and not that it could not be asked: to look again does not help.
type absence string

// Error implements error.
func (a absence) Error() string { return string(a) }

const (
	gone    = "there is nothing any more: "
	notKept = "nothing is kept there: "

	// errOther: a stream or topic was deleted and made again.
	errOther absence = "there is another message now"
)

// Absent reports whether an error of [Reader.Read] says that the place does not have the message, and not that it could
// not be asked.
func Absent(err error) bool {
	_, absent := errors.AsType[absence](err)
	return absent || errors.Is(err, gateway.ErrNotFound)
}

func printable(text string) string { return cmp.Or(journal.Printable(text), "-") }

// WhyNot says what there is to say of a message of which none of its copies could be used, in a part of a sentence.
func WhyNot(m *journal.Message, copies int) string {
	state := printable(m.State)
	switch {
	case copies > 0:
		return "none of the places above has it (it is " + state + ")"
	case len(m.MessageIDs) > 0 && !strings.Contains(m.State, "; confirmed") && !strings.HasPrefix(m.State, "confirmed"):
		return "the journal knows of no place that has it (it is " + state + "); until it is confirmed, the gateway has it and delivers it again"
	}
	return "the journal knows of no place that has it (it is " + state + "), and the gateway keeps nothing that was confirmed"
}

// Options say how copies are read.
type Options struct {
	// Limits are those of a payload.
	Limits spool.Limits
	// ConnectTimeout is how long to wait for a broker, 0 for what the configuration says.
	ConnectTimeout time.Duration
	// Claims is where payloads in a claim check are; nil has it opened as the configuration says.
	Claims *claimcheck.Store
}

// Reader reads copies of one message, with connections that it keeps for the next. It is for one goroutine.
type Reader struct {
	cfg     *config.Config
	message *journal.Message
	options Options
	claims  *claimcheck.Store     // nil: not opened here
	brokers map[string]copySource // by the name of the sink
}

// NewReader returns a reader. It has to be closed.
func NewReader(cfg *config.Config, m *journal.Message, options Options) *Reader {
	return &Reader{cfg: cfg, message: m, options: options}
}

// copySource has messages that a sink stored. They come with their payload, or a claim check's reference to it.
type copySource interface {
	get(ctx context.Context, at journal.Location) (*message.Message, *spool.Payload, error)
	close() error
}

// Close closes what was opened, payloads excepted.
func (r *Reader) Close() error {
	var errs []error
	for _, source := range r.brokers {
		errs = append(errs, source.close())
	}
	if r.claims != nil {
		errs = append(errs, r.claims.Close())
	}
	return errors.Join(errs...)
}

// Read reads a copy, and sets its Message and Payload. The caller closes the payload. Without one, the error says why; it has
// to be redacted before it is shown.
func (r *Reader) Read(ctx context.Context, c *Copy) error {
	source, err := r.source(ctx, c)
	if err != nil {
		return err
	}
	msg, stored, err := source.get(ctx, c.At)
	switch {
	case err != nil:
		return err
	case msg.Metadata[routerfarm.KeySourceType] != "":
		err = absence("it is what a transform made of the message")
	case !sameMessage(r.message, msg):
		err = errOther
	case stored == nil:
		stored, err = r.open(ctx, msg)
	}
	if err != nil {
		if stored != nil {
			err = errors.Join(err, stored.Close())
		}
		return err
	}
	c.Message, c.Payload = msg, stored
	return nil
}

func (r *Reader) source(ctx context.Context, c *Copy) (copySource, error) {
	if c.At.ContextID != "" {
		return nil, absence(notKept + "the gateway keeps nothing that was confirmed")
	}
	if source := r.brokers[c.Sink]; source != nil {
		return source, nil
	}
	sink, ok := r.cfg.Sinks[c.Sink]
	if !ok {
		return nil, absence("the configuration has no such route")
	}
	var source copySource
	var err error
	switch {
	case sink.NATS != nil && c.At.Stream != "":
		source, err = newNATSCopies(*sink.NATS, r.options.ConnectTimeout)
	case sink.Kafka != nil && c.At.Topic != "":
		source, err = newKafkaCopies(*sink.Kafka, r.options.ConnectTimeout)
	case sink.Blob != nil && c.At.Key != "":
		source, err = newBlobCopies(ctx, *sink.Blob, r.options.Limits)
	case sink.Log != nil:
		return nil, absence(notKept + "a sink of this kind keeps nothing")
	default:
		return nil, fmt.Errorf("sink %s is of kind %s now", c.Sink, sink.Kind())
	}
	if err != nil {
		return nil, err
	}
	if r.brokers == nil {
		r.brokers = map[string]copySource{}
	}
	r.brokers[c.Sink] = source
	return source, nil
}

// sameMessage reports whether a message is the one that the journal speaks of: a place may have another one since a
// stream or topic was deleted and made again.
func sameMessage(m *journal.Message, msg *message.Message) bool {
	told := msg.Metadata[gateway.KeyMessageID]
	if told == "" {
		told = msg.Metadata[gateway.KeyMessageIDs]
	}
	if len(m.MessageIDs) == 0 || told == "" {
		return len(m.MessageIDs) == 0 && told == "" && msg.UUID == m.UUID
	}
	if receiver := msg.Metadata[gateway.KeyReceivingEndpointID]; m.Endpoint != "" && receiver != "" && !strings.EqualFold(receiver, m.Endpoint) {
		return false
	}
	for id := range strings.SplitSeq(told, ",") {
		if slices.ContainsFunc(m.MessageIDs, func(known string) bool { return strings.EqualFold(known, strings.TrimSpace(id)) }) {
			return true
		}
	}
	return false
}

func (r *Reader) open(ctx context.Context, msg *message.Message) (*spool.Payload, error) {
	switch msg.Metadata[gateway.KeyPayloadMode] {
	case "":
		if int64(len(msg.Payload)) > r.options.Limits.Max {
			return nil, spool.TooLarge("the payload", r.options.Limits.Max)
		}
		return spool.InMemory(msg.Payload), nil
	case gateway.PayloadModeClaimCheck:
	default:
		return nil, absence(notKept + "the payload was left with the gateway, which deletes it after the confirmation")
	}
	claims, err := r.claimCheck(ctx)
	if err != nil {
		return nil, err
	}
	msg.SetContext(ctx)
	from, _, err := claims.OpenMessage(msg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }() // it was only read
	return spool.Buffer(spool.StreamOf(from), "the payload", r.options.Limits)
}

func (r *Reader) claimCheck(ctx context.Context) (_ *claimcheck.Store, err error) {
	switch {
	case r.options.Claims != nil:
		return r.options.Claims, nil
	case r.cfg.ClaimCheck == nil:
		return nil, errors.New("the payload is in a claim check, and the configuration has none (claim_check)")
	case r.claims == nil:
		r.claims, err = claimcheck.New(ctx, r.cfg.ClaimCheck.Config)
	}
	return r.claims, err
}
