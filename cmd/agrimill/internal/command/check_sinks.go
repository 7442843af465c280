package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"gocloud.dev/blob"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	sourcekafka "github.com/agrimill/agrimill/sources/kafka"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
)

func (c *checker) sinkProbes() []probe {
	var list []probe
	for _, name := range slices.Sorted(maps.Keys(c.cfg.Sinks)) {
		sink := c.cfg.Sinks[name]
		var run func(ctx context.Context) (finding, error)
		switch {
		case sink.NATS != nil:
			run = func(ctx context.Context) (finding, error) { return c.nats(ctx, name, *sink.NATS) }
		case sink.Kafka != nil:
			run = func(ctx context.Context) (finding, error) { return c.kafka(ctx, name, *sink.Kafka) }
		case sink.Blob != nil:
			run = func(ctx context.Context) (finding, error) { return bucket(ctx, string(sink.Blob.URL)) }
		default:
			run = func(context.Context) (finding, error) { return finding{detail: "writes to standard output"}, nil }
		}
		list = append(list, probe{"sinks", name, run})
	}
	return list
}

// nats connects a sink and looks at its stream without creating or changing it.
func (c *checker) nats(ctx context.Context, name string, cfg config.NATS) (finding, error) {
	settings, err := cfg.SinkConfig(name)
	if err != nil {
		return finding{}, err
	}
	settings.ReadOnly = true
	settings.ConnectTimeout = min(settings.ConnectTimeout, c.timeout)
	var notes notes
	sink, err := nats.New(settings, &notes)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && cfg.Provision != nats.ProvisionNone:
		return finding{detail: "stream " + cfg.Stream + " will be created"}, nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return finding{}, advise(err, "create stream %s with the subject %s.>, or set provision: create", cfg.Stream, cfg.SubjectPrefix)
	case err != nil:
		return finding{}, natsAdvice(err)
	}
	defer func() { _ = sink.Close() }() // only read
	if err := sink.Health(ctx); err != nil {
		return finding{}, natsAdvice(err)
	}
	return finding{"stream " + cfg.Stream + " exists; durability: " + sink.Describe().Durability.String(), notes.text()}, nil
}

// notes is a logger that keeps the warnings of what run opens, too.
type notes struct {
	watermill.NopLogger
	mu   sync.Mutex
	list []string
}

// Warn implements [warnlog.Warner].
func (n *notes) Warn(msg string, fields watermill.LogFields) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		msg += fmt.Sprintf(", %s %v", name, fields[name])
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, msg)
}

// With implements [watermill.LoggerAdapter].
func (n *notes) With(watermill.LogFields) watermill.LoggerAdapter { return n }

func (n *notes) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.list, "; ")
}

// durable adds the durability that a sink reports.
func durable(d sinks.Description, detail string) finding {
	found := finding{detail: detail + "; durability: " + d.Durability.String()}
	if d.Durability == sinks.DurabilityMemory || d.Durability == sinks.DurabilityNone {
		found.warn = d.DurabilityNote
	}
	return found
}

func natsAdvice(err error) error {
	switch {
	case errors.Is(err, natsgo.ErrAuthorization), errors.Is(err, natsgo.ErrAuthExpired):
		return advise(err, "the server rejects the credentials: check user and password, token, credentials_file or nkey_seed_file")
	case errors.Is(err, nats.ErrInbox):
		return advise(err, "set inbox_prefix to what the account may subscribe to: _INBOX_mill for the permission _INBOX_mill.>")
	case errors.Is(err, natsgo.ErrPermissionViolation):
		return advise(err, "the account must be allowed to do that: check the permissions of the user")
	case errors.Is(err, nats.ErrNoJetStreamInAccount):
		return advise(err, "the account has no JetStream: enable it for the account in the configuration of the server")
	case errors.Is(err, nats.ErrNoDomain):
		return advise(err, "check domain, and the leaf nodes or gateways of the server")
	case errors.Is(err, nats.ErrNoJetStream):
		return advise(err, "the server has no JetStream of its own: start it with --jetstream, or set domain to that of a JetStream that it is joined to")
	case errors.Is(err, natsgo.ErrNoServers), errors.Is(err, natsgo.ErrTimeout), unreachable(err):
		return advise(err, "is the server running, and is it reachable from here?")
	case errors.Is(err, nats.ErrStream):
		return advise(err, "correct stream or subject_prefix, or the stream")
	}
	return err
}

func unreachable(err error) bool {
	var network net.Error
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &network)
}

// kafka connects a sink and looks for the topics that it does not create.
func (c *checker) kafka(ctx context.Context, name string, cfg config.Kafka) (finding, error) {
	settings, err := cfg.SinkConfig(name)
	if err != nil {
		return finding{}, err
	}
	settings.ConnectTimeout = min(settings.ConnectTimeout, c.timeout)
	sink, err := kafka.New(settings, nil)
	if err != nil {
		return finding{}, kafkaAdvice(err)
	}
	defer func() { _ = sink.Close() }() // nothing was written
	if err := sink.Health(ctx); err != nil {
		return finding{}, kafkaAdvice(err)
	}
	topics := c.fixedTopics(name, cfg)
	if cfg.Provision != kafka.ProvisionNone || len(topics) == 0 {
		return durable(sink.Describe(), "the cluster responds"), nil
	}
	connection, err := cfg.Connection()
	if err != nil {
		return finding{}, err
	}
	if err := topicsExist(connection, topics, settings.ConnectTimeout); err != nil {
		return finding{}, err
	}
	return durable(sink.Describe(), "the cluster has the "+plural(len(topics), "topic")+" whose names are fixed"), nil
}

// fixedTopics returns the Kafka topics whose names do not depend on a message.
func (c *checker) fixedTopics(name string, cfg config.Kafka) []string {
	var topics []string
	add := func(topic string) {
		name := kafka.TopicName(cfg.TopicPrefix, topic)
		if !strings.ContainsAny(topic, "{}") && !slices.Contains(topics, name) {
			topics = append(topics, name)
		}
	}
	for _, route := range c.cfg.Routes {
		if route.To.Sink == name {
			add(route.To.Topic)
		}
	}
	if c.cfg.Poison.Sink == name {
		add(c.cfg.Poison.Topic)
	}
	return topics
}

func topicsExist(connection kafka.Connection, topics []string, timeout time.Duration) error {
	settings := connection.ClientConfig()
	settings.Net.DialTimeout, settings.Net.ReadTimeout, settings.Net.WriteTimeout = timeout, timeout, timeout
	settings.Metadata.Full = false
	settings.Metadata.AllowAutoTopicCreation = false
	settings.Metadata.Retry.Max = 0
	client, err := sarama.NewClient(connection.Brokers, settings)
	if err != nil {
		return kafkaAdvice(err)
	}
	defer func() { _ = client.Close() }() // nothing is under way
	var missing []string
	for _, topic := range topics {
		switch _, err := client.Partitions(topic); {
		case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
			missing = append(missing, topic)
		case err != nil:
			return kafkaAdvice(fmt.Errorf("topic %s: %w", topic, err))
		}
	}
	if len(missing) > 0 {
		return advise(fmt.Errorf("no topic %s", strings.Join(missing, ", ")), "create it")
	}
	return nil
}

func kafkaAdvice(err error) error {
	switch {
	case errors.Is(err, sarama.ErrSASLAuthenticationFailed):
		return advise(err, "the brokers reject the credentials: check sasl.mechanism, sasl.user and sasl.password")
	case errors.Is(err, sarama.ErrTopicAuthorizationFailed), errors.Is(err, sarama.ErrClusterAuthorizationFailed), errors.Is(err, sarama.ErrGroupAuthorizationFailed):
		return advise(err, "the user is not allowed to: check the ACLs of the cluster")
	case errors.Is(err, sarama.ErrOutOfBrokers), errors.Is(err, sinks.ErrUnavailable), unreachable(err):
		return advise(err, "are the brokers running, and are they reachable from here under the names in advertised.listeners, too? Do they require tls or sasl, and are the credentials right?")
	}
	return err
}

const bucketAdvice = "is the address right, and may this user read and write there?"

// bucket checks a bucket without creating a directory.
func bucket(ctx context.Context, address string) (finding, error) {
	u, err := url.Parse(address)
	if err != nil {
		return finding{}, errors.New("the bucket address is not a URL")
	}
	if u.Scheme == "file" {
		query := u.Query()
		create := query.Get("create_dir") != "" // whatever it is
		query.Del("create_dir")
		u.RawQuery = query.Encode()
		dir := filepath.FromSlash(u.Path)
		_, err := os.Stat(dir)
		missing := errors.Is(err, fs.ErrNotExist)
		if missing && !create {
			return finding{}, advise(err, "create the directory, or add ?create_dir=true to the URL")
		}
		if missing || err == nil { // otherwise opening it says why; in Windows the path has no such form
			if err := writable(dir); err != nil {
				return finding{}, advise(err, bucketAdvice)
			}
		}
		if missing {
			return finding{detail: "the directory will be created"}, nil
		}
	}
	opened, err := blob.OpenBucket(ctx, u.String())
	if err != nil {
		return finding{}, advise(err, bucketAdvice)
	}
	defer func() { _ = opened.Close() }() // nothing was written
	switch there, err := opened.IsAccessible(ctx); {
	case err != nil:
		return finding{}, advise(err, bucketAdvice)
	case !there:
		return finding{}, advise(errors.New("no such bucket"), "create it")
	}
	return finding{detail: "the bucket exists"}, nil
}

// routeProbes returns the checks of the sources of routes and of the endpoints that they
// send from.
func (c *checker) routeProbes() []probe {
	var list []probe
	for _, route := range c.cfg.Routes {
		switch {
		case route.From.NATS != nil:
			list = append(list, probe{"routes", route.Name + " from", func(ctx context.Context) (finding, error) { return c.natsSource(ctx, *route.From.NATS) }})
		case route.From.Kafka != nil:
			list = append(list, probe{"routes", route.Name + " from", func(context.Context) (finding, error) { return c.kafkaSource(*route.From.Kafka) }})
		}
		if ids := route.Filter.Endpoint; len(ids) > 0 {
			list = append(list, probe{"routes", route.Name + " filter", func(context.Context) (finding, error) { return c.filtered(ids) }})
		}
		if route.To.Gateway != nil {
			list = append(list, probe{"routes", route.Name + " to", func(context.Context) (finding, error) {
				return c.sender(config.ToGateway{Config: c.cfg.PublisherConfig(*route.To.Gateway), Type: route.To.Gateway.Type})
			}})
		}
	}
	return list
}

// natsSource looks up the stream and the consumer of a route as run does, without making either.
func (c *checker) natsSource(ctx context.Context, source config.NATSSource) (finding, error) {
	settings, err := source.SourceConfig()
	if err != nil {
		return finding{}, err
	}
	settings.ConnectTimeout = min(settings.WithDefaults().ConnectTimeout, c.timeout)
	settings.Options = append(settings.Options, natsgo.NoReconnect())
	var notes notes
	found, err := sourcenats.Look(ctx, settings, source.Subject, &notes)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && source.Stream == "":
		return finding{}, advise(err, "no stream has the subject %s: create one, or correct the subject", source.Subject)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return finding{}, advise(err, "create stream %s, or correct its name", source.Stream)
	case errors.Is(err, sourcenats.ErrConfig):
		return finding{}, advise(err, "correct durable, subject, or the consumer")
	case err != nil:
		return finding{}, natsAdvice(err)
	}
	detail := "stream " + found.Stream + " exists; consumer " + settings.Durable + " will be created"
	if found.Exists {
		detail = fmt.Sprintf("stream %s exists; consumer %s exists, %s not acknowledged", found.Stream, settings.Durable, plural(int(found.Waiting), "message"))
	}
	return finding{detail, notes.text()}, nil
}

// kafkaSource looks up the topics and the group of a route as run does, without joining the group.
func (c *checker) kafkaSource(source config.KafkaSource) (finding, error) {
	settings, err := source.SourceConfig()
	if err != nil {
		return finding{}, err
	}
	timeout := min(settings.WithDefaults().ConnectTimeout, c.timeout)
	settings.Client = func(client *sarama.Config) {
		client.Net.DialTimeout, client.Net.ReadTimeout, client.Net.WriteTimeout = timeout, timeout, timeout
	}
	var notes notes
	found, err := sourcekafka.Look(settings, "", &notes)
	switch {
	case errors.Is(err, sourcekafka.ErrNoTopic):
		return finding{}, advise(err, "create it")
	case errors.Is(err, sourcekafka.ErrConfig):
		return finding{}, advise(err, "name another group, or end what uses this one")
	case err != nil:
		return finding{}, kafkaAdvice(err)
	}
	detail := fmt.Sprintf("%s found with %s; ", plural(len(settings.Topics), "topic"), plural(found.Partitions, "partition"))
	if found.New {
		return finding{detail + fmt.Sprintf("group %s is new and starts with the %s records", settings.Group, settings.Start), notes.text()}, nil
	}
	return finding{detail + fmt.Sprintf("group %s is %s behind", settings.Group, plural(int(found.Waiting), "offset")), notes.text()}, nil
}
