package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	_ "gocloud.dev/blob/fileblob" // the driver of file:// buckets

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/nats"
	kafkaqueue "github.com/agrimill/agrimill/stores/kafka/poisonqueue"
	"github.com/agrimill/agrimill/stores/nats/poisonqueue"
)

// environmentHelp is the part of the help about the connection.
const environmentHelp = `The queue is found through --config FILE, agrimill's configuration, whose poison queue
must be in a sink of kind nats or kafka, or else, in NATS, through --nats, --stream and so on.

Environment: NATS_URL replaces --nats and may include user and password.
Credentials are a file (--creds or NATS_CREDS, --nkey or NATS_NKEY), or NATS_TOKEN,
or NATS_USER with NATS_PASSWORD. Set SSL_CERT_FILE to trust a private certificate
authority.`

// connection locates the poison queue, and the payloads that were too large for it.
type connection struct {
	configPath            string
	url, creds, nkey      string
	domain, inboxPrefix   string
	stream, prefix, topic string
	claimCheck            claimCheck

	// Set by prepare: what configPath has, and where the queue is, in Kafka if kafka is not nil.
	loaded *config.Config
	sink   nats.Config
	kafka  *kafkaqueue.Config
}

func (c *connection) define(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&c.url, "nats", "", "`URL` of the NATS server, without credentials (default NATS_URL, or nats://127.0.0.1:4222)")
	flags.StringVar(&c.creds, "creds", "", "`FILE` with NATS credentials (JWT and seed)")
	flags.StringVar(&c.nkey, "nkey", "", "`FILE` with an NKey seed")
	flags.StringVar(&c.domain, "domain", "", "`DOMAIN` of JetStream, if it is not the server's own")
	flags.StringVar(&c.inboxPrefix, "inbox-prefix", "", "`PREFIX` of the inboxes to which the account may subscribe (default _INBOX)")
	flags.StringVar(&c.stream, "stream", nats.DefaultStream, "`NAME` of the stream with the poison queue")
	flags.StringVar(&c.prefix, "subject-prefix", nats.DefaultSubjectPrefix, "`PREFIX` of each topic in the stream's subjects")
	flags.StringVar(&c.topic, "poison-topic", router.DefaultPoisonTopic, "`TOPIC` of the poison queue")
	configFlag(cmd, &c.configPath, "nats", "creds", "nkey", "domain", "inbox-prefix", "stream", "subject-prefix", "poison-topic")
}

// prepare works out the settings without connecting. The stream is never created or
// changed, whatever the configuration says.
func (c *connection) prepare(p *program) error {
	if c.configPath != "" {
		return c.fromFile(p)
	}
	c.sink = nats.Config{
		URL: c.url, Name: "agrimill", Stream: c.stream, SubjectPrefix: c.prefix, Provision: nats.ProvisionNone,
		CredentialsFile: c.creds, NKeySeedFile: c.nkey, Domain: c.domain, InboxPrefix: c.inboxPrefix,
	}
	if strings.Contains(c.url, "@") {
		return usagef("--nats must not contain credentials, which other users of the machine could see: use --creds, --nkey or the environment")
	}
	if c.url == "" {
		c.sink.URL = p.env("NATS_URL")
	}
	if c.creds == "" && c.nkey == "" {
		c.sink.CredentialsFile, c.sink.NKeySeedFile = p.env("NATS_CREDS"), p.env("NATS_NKEY")
		c.sink.User, c.sink.Password, c.sink.Token = p.env("NATS_USER"), gateway.Secret(p.env("NATS_PASSWORD")), gateway.Secret(p.env("NATS_TOKEN"))
	}
	if err := c.sink.Validate(); err != nil {
		return usagef("%s", err)
	}
	return nil
}

// fromFile is prepare with agrimill's configuration.
func (c *connection) fromFile(p *program) error {
	loaded, err := p.loadConfig(c.configPath)
	if err != nil {
		return err
	}
	c.loaded = loaded
	if loaded.ClaimCheck != nil {
		c.claimCheck.configured = loaded.ClaimCheck.Config
	}
	sink := loaded.Sinks[loaded.Poison.Sink]
	if sink.Kafka != nil {
		config, err := sink.Kafka.PoisonQueueConfig(loaded.Poison.Topic)
		if err != nil {
			return invalid(err)
		}
		c.kafka = &config
		return nil
	}
	if sink.NATS == nil {
		return invalid(fmt.Errorf("%s: the poison queue is in sink %q of kind %s; these commands work only with a queue in NATS JetStream or Kafka",
			c.configPath, loaded.Poison.Sink, sink.Kind()))
	}
	if c.sink, err = sink.NATS.SinkConfig("agrimill"); err != nil {
		return invalid(err)
	}
	c.sink.Provision = nats.ProvisionNone
	c.stream, c.prefix, c.topic = c.sink.Stream, c.sink.SubjectPrefix, loaded.Poison.Topic
	return nil
}

// opened is the poison queue with its connection.
type opened struct {
	sink  *nats.Sink // nil if the queue is in Kafka
	queue router.PoisonStore
	close func() error
	// payloads has those that were too large for the queue; nil if their place is unknown
	// or they are not needed.
	payloads *claimcheck.Store
}

// use calls f with the poison queue, and with the payloads if they are needed, and closes
// everything afterwards.
func (c *connection) use(ctx context.Context, p *program, payloads bool, f func(opened) error) (err error) {
	if err := c.prepare(p); err != nil {
		return err
	}
	var at opened
	if payloads {
		if at.payloads, err = c.claimCheck.open(ctx, p.env); err != nil {
			return err
		}
	}
	if at.payloads != nil {
		defer func() { err = errors.Join(err, at.payloads.Close()) }()
	}
	store := at.payloads
	if at, err = c.open(); err != nil {
		return err
	}
	at.payloads = store
	defer func() { err = errors.Join(err, at.close()) }()
	return c.explain(f(at))
}

// open connects to the poison queue, after prepare. The caller closes it.
func (c *connection) open() (opened, error) {
	if c.kafka != nil {
		queue, err := kafkaqueue.New(*c.kafka)
		if err != nil {
			return opened{}, invalid(err)
		}
		return opened{queue: queue, close: queue.Close}, nil
	}
	sink, err := nats.New(c.sink, nil)
	if err != nil {
		return opened{}, c.explain(err)
	}
	queue, err := poisonqueue.New(poisonqueue.Config{
		Conn: sink.Conn(), Domain: c.sink.Domain, Stream: c.stream, SubjectPrefix: c.prefix, Topic: c.topic,
	})
	if err != nil {
		return opened{}, errors.Join(err, sink.Close())
	}
	return opened{sink: sink, queue: queue, close: sink.Close}, nil
}

// explain adds what to do if the stream does not exist or does not contain the queue.
func (c *connection) explain(err error) error {
	where := "see --stream and --subject-prefix"
	if c.configPath != "" {
		where = fmt.Sprintf("see sinks.%s.nats in %s", c.loaded.Poison.Sink, c.configPath)
	}
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("no poison queue: NATS at %s has no stream %s. Is it the right server and stream (%s)? agrimill creates the stream when it first runs",
			cmp.Or(config.Hosts(c.sink.URL), natsgo.DefaultURL), c.stream, where)
	case errors.Is(err, nats.ErrStream):
		return fmt.Errorf("%w (%s)", err, where)
	}
	return err
}

// claimCheck locates the payloads that are not in their messages.
type claimCheck struct {
	url, prefix string
	// configured is from agrimill's configuration; empty if that has no claim check.
	configured claimcheck.Config
}

func (c *claimCheck) define(flags *pflag.FlagSet) {
	flags.StringVar(&c.url, "claim-check", "", "`URL` of the bucket with large payloads, file:///… (default: from --config, or CLAIM_CHECK_URL)")
	flags.StringVar(&c.prefix, "claim-check-prefix", "", "`PREFIX` of the names of all payloads")
}

// open returns nil if none is configured.
func (c *claimCheck) open(ctx context.Context, env func(string) string) (*claimcheck.Store, error) {
	config := claimcheck.Config{URL: c.url, Prefix: c.prefix}
	if c.url == "" && c.configured.URL != "" {
		config = c.configured
	} else if c.url == "" {
		config.URL = env("CLAIM_CHECK_URL")
	}
	if config.URL == "" {
		return nil, nil
	}
	if err := config.Validate(); err != nil {
		return nil, usagef("%s", err)
	}
	return claimcheck.New(ctx, config)
}
