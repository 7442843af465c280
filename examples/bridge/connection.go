package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sinks/nats/poisonqueue"
)

// environmentHelp is the part of the help about the connection.
const environmentHelp = `Where the queue is: --config FILE, the configuration of the bridge, whose poison queue
has to be in a sink of the kind nats. Without one: --nats, --stream and so on.

Environment: NATS_URL stands in for --nats, and may hold user and password.
Credentials are a file (--creds or NATS_CREDS, --nkey or NATS_NKEY), or NATS_TOKEN,
or NATS_USER with NATS_PASSWORD. SSL_CERT_FILE names the certificates of an own
authority.`

// connection is where the poison queue is, and where the payloads are that were
// too large for it.
type connection struct {
	configPath            string
	url, creds, nkey      string
	stream, prefix, topic string
	claimCheck            claimCheck

	sink nats.Config // set by prepare
}

func (c *connection) define(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&c.url, "nats", "", "`URL` of the NATS server, without credentials (default NATS_URL, or nats://127.0.0.1:4222)")
	flags.StringVar(&c.creds, "creds", "", "`FILE` with NATS credentials (JWT and seed)")
	flags.StringVar(&c.nkey, "nkey", "", "`FILE` with an NKey seed")
	flags.StringVar(&c.stream, "stream", nats.DefaultStream, "`NAME` of the stream with the poison queue")
	flags.StringVar(&c.prefix, "subject-prefix", nats.DefaultSubjectPrefix, "what comes before each topic in the stream's subjects")
	flags.StringVar(&c.topic, "poison-topic", router.DefaultPoisonTopic, "`TOPIC` of the poison queue")
	configFlag(cmd, &c.configPath, "nats", "creds", "nkey", "stream", "subject-prefix", "poison-topic")
}

// prepare finds out where everything is; it connects to nothing. The stream is
// left as it is, whatever the configuration says.
func (c *connection) prepare(p *program) error {
	if c.configPath != "" {
		return c.fromFile(p)
	}
	c.sink = nats.Config{
		URL: c.url, Name: "agrimill-bridge", Stream: c.stream, SubjectPrefix: c.prefix, Provision: nats.ProvisionNone,
		CredentialsFile: c.creds, NKeySeedFile: c.nkey,
	}
	if strings.Contains(c.url, "@") {
		return usagef("--nats must not hold credentials, which other users of the machine could see: use --creds, --nkey or the environment")
	}
	if c.url == "" {
		c.sink.URL = p.env("NATS_URL")
	}
	if c.creds == "" && c.nkey == "" {
		c.sink.CredentialsFile, c.sink.NKeySeedFile = p.env("NATS_CREDS"), p.env("NATS_NKEY")
		c.sink.User, c.sink.Password, c.sink.Token = p.env("NATS_USER"), p.env("NATS_PASSWORD"), p.env("NATS_TOKEN")
	}
	if err := c.sink.Validate(); err != nil {
		return usagef("%s", err)
	}
	return nil
}

// fromFile is prepare with the configuration of the bridge.
func (c *connection) fromFile(p *program) error {
	loaded, err := p.loadConfig(c.configPath)
	if err != nil {
		return err
	}
	sink := loaded.Sinks[loaded.Poison.Sink]
	if sink.NATS == nil {
		return invalid(fmt.Errorf("%s: the poison queue is in the sink %q of the kind %s: only one in NATS JetStream can be looked after here",
			c.configPath, loaded.Poison.Sink, sink.Kind()))
	}
	if c.sink, err = sink.NATS.SinkConfig("agrimill-bridge"); err != nil {
		return invalid(err)
	}
	c.sink.Provision = nats.ProvisionNone
	c.stream, c.prefix, c.topic = c.sink.Stream, c.sink.SubjectPrefix, loaded.Poison.Topic
	if loaded.ClaimCheck != nil {
		c.claimCheck.configured = loaded.ClaimCheck.StoreConfig()
	}
	return nil
}

// opened is the poison queue, with the sink that it is in.
type opened struct {
	sink  *nats.Sink
	queue *poisonqueue.Queue
	// payloads are those that were too large for the queue; nil when nobody said
	// where they are, or they are not wanted.
	payloads *claimcheck.Store
}

// use runs f with the poison queue, and with the payloads beside it if they are
// wanted. Everything is closed afterwards.
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
	if at.sink, at.queue, err = c.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, at.sink.Close()) }()
	return f(at)
}

// open connects to the poison queue, after prepare. Who calls it closes the sink, and with it
// the connection.
func (c *connection) open() (*nats.Sink, *poisonqueue.Queue, error) {
	sink, err := nats.New(c.sink, nil)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, nats.ErrStream):
		return nil, nil, fmt.Errorf("%w (see --stream and --subject-prefix)", err)
	case err != nil:
		return nil, nil, err
	}
	queue, err := poisonqueue.New(poisonqueue.Config{
		Conn: sink.Conn(), Stream: c.stream, SubjectPrefix: c.prefix, Topic: c.topic,
	})
	if err != nil {
		return nil, nil, errors.Join(err, sink.Close())
	}
	return sink, queue, nil
}
