package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/pflag"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sinks/nats/poisonqueue"
)

// environmentHelp is the part of the help about the connection.
const environmentHelp = `Environment: NATS_URL stands in for --nats, and may hold user and password.
Credentials are a file (--creds or NATS_CREDS, --nkey or NATS_NKEY), or NATS_TOKEN,
or NATS_USER with NATS_PASSWORD. SSL_CERT_FILE names the certificates of an own
authority.`

// connection is where the poison queue is.
type connection struct {
	url, creds, nkey      string
	stream, prefix, topic string
}

func (c *connection) define(flags *pflag.FlagSet) {
	flags.StringVar(&c.url, "nats", "", "`URL` of the NATS server, without credentials (default NATS_URL, or nats://127.0.0.1:4222)")
	flags.StringVar(&c.creds, "creds", "", "`FILE` with NATS credentials (JWT and seed)")
	flags.StringVar(&c.nkey, "nkey", "", "`FILE` with an NKey seed")
	flags.StringVar(&c.stream, "stream", nats.DefaultStream, "`NAME` of the stream with the poison queue")
	flags.StringVar(&c.prefix, "subject-prefix", nats.DefaultSubjectPrefix, "what comes before each topic in the stream's subjects")
	flags.StringVar(&c.topic, "poison-topic", router.DefaultPoisonTopic, "`TOPIC` of the poison queue")
}

// config returns the sink's configuration. The stream is left as it is.
func (c *connection) config(env func(string) string) (nats.Config, error) {
	config := nats.Config{
		URL: c.url, Name: "agrimill-bridge", Stream: c.stream, SubjectPrefix: c.prefix, Provision: nats.ProvisionNone,
		CredentialsFile: c.creds, NKeySeedFile: c.nkey,
	}
	if strings.Contains(config.URL, "@") {
		return config, usagef("--nats must not hold credentials, which other users of the machine could see: use --creds, --nkey or the environment")
	}
	if config.URL == "" {
		config.URL = env("NATS_URL")
	}
	if c.creds == "" && c.nkey == "" {
		config.CredentialsFile, config.NKeySeedFile = env("NATS_CREDS"), env("NATS_NKEY")
		config.User, config.Password, config.Token = env("NATS_USER"), env("NATS_PASSWORD"), env("NATS_TOKEN")
	}
	if err := config.Validate(); err != nil {
		return config, usagef("%s", err)
	}
	return config, nil
}

// open connects to the poison queue. Who calls it closes the sink, and with it
// the connection.
func (c *connection) open(env func(string) string) (*nats.Sink, *poisonqueue.Queue, error) {
	config, err := c.config(env)
	if err != nil {
		return nil, nil, err
	}
	sink, err := nats.New(config, nil)
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
