package kafka_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
)

func TestShared(t *testing.T) {
	for _, c := range sharedTests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, kafkatest.Start(t).Addr(), "shared")
		})
	}
}

// TestErrorsOfBrokers: each answer of a broker has its class, and what is to be
// repeated is.
func TestErrorsOfBrokers(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	for i, c := range []answer{
		// Passing faults: the producer sends again.
		{kerr.NotLeaderForPartition, 2, nil},
		{kerr.LeaderNotAvailable, 2, nil},
		{kerr.NotEnoughReplicas, 2, nil},
		{kerr.NotEnoughReplicasAfterAppend, 2, nil},
		{kerr.RequestTimedOut, 2, nil},
		{kerr.KafkaStorageError, 2, nil},
		{kerr.UnknownTopicOrPartition, 2, nil},
		{kerr.CorruptMessage, 2, nil},
		// The same, lasting.
		{kerr.NotLeaderForPartition, -1, sinks.ErrUnavailable},
		{kerr.NotEnoughReplicas, -1, sinks.ErrUnavailable},
		{kerr.NotEnoughReplicasAfterAppend, -1, sinks.ErrUnavailable},
		{kerr.UnknownTopicOrPartition, -1, sinks.ErrUnavailable},
		// An operator's business.
		{kerr.TopicAuthorizationFailed, -1, sinks.ErrUnavailable},
		{kerr.ClusterAuthorizationFailed, -1, sinks.ErrUnavailable},
		{kerr.PolicyViolation, -1, sinks.ErrUnavailable},
		{kerr.UnknownServerError, -1, sinks.ErrUnavailable},
		{kerr.InvalidProducerEpoch, -1, sinks.ErrUnavailable},
		{kerr.OutOfOrderSequenceNumber, -1, sinks.ErrUnavailable},
		{kerr.UnsupportedCompressionType, -1, sinks.ErrUnavailable},
		{kerr.InvalidTimestamp, -1, sinks.ErrUnavailable},
		{kerr.ThrottlingQuotaExceeded, -1, sinks.ErrUnavailable},
		// About the message.
		{kerr.InvalidTopicException, -1, sinks.ErrRejected},
	} {
		t.Run(fmt.Sprint(c.code.Message, c.count), func(t *testing.T) {
			t.Parallel() // it waits
			c.test(t, cluster, fmt.Sprint("topic", i))
		})
	}
}

// answer is an error that brokers answer with, and what becomes of it.
type answer struct {
	code  *kerr.Error
	count int // of answers; -1 = always
	want  error
}

// test publishes while requests are answered so, and once more after that. Something was stored before.
func (c answer) test(t *testing.T, cluster *kafkatest.Cluster, topic string) {
	timeout := testkit.Patience
	if c.want == sinks.ErrUnavailable {
		timeout = time.Second // some answers are waited for until then
	}
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, PublishTimeout: timeout})
	testkit.EventuallyNil(t, func() error { return sink.Publish(topic, newMessage("before")) })
	fault := cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "agrimill." + topic, Err: c.code, Count: c.count})
	for fault.Hits() == 0 { // it may take longer than the time-out until the request is there
		wantClass(t, sink.Publish(topic, newMessage("during")), c.want)
	}
	fault.Remove()
	if c.want == nil && fault.Hits() != c.count {
		t.Errorf("%d answers were faulty, want %d", fault.Hits(), c.count)
	}
	testkit.EventuallyNil(t, func() error { return sink.Publish(topic, newMessage("after")) })
	got := map[string]int{}
	for _, record := range kafkatest.Read(t, cluster.Addr(), "agrimill."+topic) {
		got[string(record.Value)]++
	}
	if got["before"] < 1 || got["after"] < 1 || c.want == nil && got["during"] != 1 {
		t.Errorf("stored: %v", got)
	}
}

// TestInnocentNeighbours: when a broker refuses a batch for one message in it,
// the others are not thrown away. They fail as in an outage, and pass alone.
func TestInnocentNeighbours(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code      *kerr.Error
		want      error
		marshaler wmkafka.Marshaler
	}{
		{kerr.InvalidRecord, sinks.ErrRejected, nil},
		{kerr.MessageTooLarge, sinks.ErrTooLarge, nil},
		{kerr.RecordListTooLarge, sinks.ErrTooLarge, nil},
		{kerr.InvalidTimestamp, sinks.ErrRejected, timestamping{at: time.Unix(1, 0)}}, // the message's own, not the clock's
	} {
		t.Run(c.code.Message, func(t *testing.T) {
			cluster := kafkatest.Start(t)
			sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Marshaler: c.marshaler})
			guilty := func(request kmsg.Request) bool {
				records := request.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records
				return strings.Contains(string(records), "guilty")
			}
			cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: c.code, Count: -1, When: guilty})

			innocent := []*message.Message{}
			for i := range 20 {
				innocent = append(innocent, newMessage(fmt.Sprint("innocent ", i)))
			}
			err := sink.Publish("topic", append(innocent, newMessage("guilty"))...)
			wantClass(t, err, sinks.ErrUnavailable)
			var group sync.WaitGroup
			for _, msg := range innocent {
				group.Go(func() {
					if err := sink.Publish("topic", msg); err != nil {
						t.Errorf("an innocent message: %v", err)
					}
				})
			}
			group.Go(func() { wantClass(t, sink.Publish("topic", newMessage("guilty")), c.want) })
			group.Wait()
		})
	}
}

// TestLostAcknowledgement: what the broker has done and could not say so is asked again, and stored once.
func TestLostAcknowledgement(t *testing.T) {
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}})
	mustPublish(t, sink, "topic", newMessage("before"))
	lose := sync.OnceFunc(cluster.Proxy.LoseReplies)
	done := cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Observe: true, Count: -1, When: func(kmsg.Request) bool {
		lose()
		return true
	}})
	result := make(chan error, 1)
	go func() { result <- sink.Publish("topic", newMessage("during")) }()
	testkit.NoError(t, done.Wait(testkit.Context(t), 1))
	cluster.Proxy.Cut()
	testkit.NoError(t, <-result)
	mustPublish(t, sink, "topic", newMessage("after"))
	var got []string
	for _, record := range kafkatest.Read(t, cluster.Addr(), "agrimill.topic") {
		got = append(got, string(record.Value))
	}
	if strings.Join(got, " ") != "before during after" {
		t.Errorf("stored: %q", got)
	}
	if done.Hits() < 3 {
		t.Errorf("%d requests, want a repeated one among them", done.Hits())
	}
}

// TestLostConnections: whatever is asked when all connections were lost a moment ago is
// answered on new ones, also when several ask at once and find out one after the other.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}})
	mustPublish(t, sink, "topic", newMessage("before"))
	created := 0
	questions := map[string]func() error{
		"Health":  func() error { return sink.Health(t.Context()) },
		"Publish": func() error { return sink.Publish("topic", newMessage("after")) },
		"Publish to a new topic": func() error {
			created++
			return sink.Publish(fmt.Sprint("new", created), newMessage("first"))
		},
	}
	for round := range 5 {
		for name, ask := range questions {
			cluster.Proxy.Cut()
			if err := ask(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		cluster.Proxy.Cut()
		var group sync.WaitGroup
		for name, ask := range questions {
			group.Go(func() {
				if err := ask(); err != nil {
					t.Errorf("%s beside others in round %d: %v", name, round, err)
				}
			})
		}
		group.Wait()
	}
}

// TestAcknowledgedByAll: the requests ask for all replicas, and carry what
// makes them idempotent.
func TestAcknowledgedByAll(t *testing.T) {
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{
		Connection: kafka.Connection{Brokers: []string{cluster.Addr()}},
		Configure: func(k *sarama.Config) { // whatever somebody sets
			k.Producer.RequiredAcks = sarama.NoResponse
			k.Producer.Idempotent = false
			k.Net.MaxOpenRequests = 9
			k.Producer.Return.Successes = false
			k.ClientID = "mine"
		},
	})
	var mu sync.Mutex
	var acks []int16
	var producers []int64
	var inits int
	cluster.Fake().Fault(kfake.Fault{Observe: true, Count: -1, When: func(request kmsg.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		switch request := request.(type) {
		case *kmsg.ProduceRequest:
			acks = append(acks, request.Acks)
			var batch kmsg.RecordBatch
			if err := batch.ReadFrom(request.Topics[0].Partitions[0].Records); err == nil {
				producers = append(producers, batch.ProducerID)
			}
		case *kmsg.InitProducerIDRequest:
			inits++
		}
		return false
	}})
	mustPublish(t, sink, "topic", newMessage("x"))
	mu.Lock()
	defer mu.Unlock()
	// A request may be observed more than once.
	if slices.Max(acks) != -1 || slices.Min(acks) != -1 || inits == 0 || len(producers) != len(acks) || slices.Min(producers) < 0 {
		t.Errorf("acks %v, producer IDs %v, %d producers", acks, producers, inits)
	}
}

func TestSASL(t *testing.T) {
	for _, mechanism := range []kafka.Mechanism{kafka.MechanismPlain, kafka.MechanismSCRAMSHA256, kafka.MechanismSCRAMSHA512} {
		t.Run(string(mechanism), func(t *testing.T) {
			cluster := kafkatest.Start(t, kfake.EnableSASL(),
				kfake.Superuser(string(mechanism), "farmer", "pass,word=ü"), kfake.Superuser("PLAIN", "reader", "read"))
			config := kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}, SASL: kafka.SASL{Mechanism: mechanism, User: "farmer", Password: "pass,word=ü"}}}
			sink := newSink(t, config)
			mustPublish(t, sink, "topic", newMessage("x"))
			testkit.NoError(t, sink.Health(t.Context()))
			records := kafkatest.Read(t, cluster.Addr(), "agrimill.topic", kgo.SASL(plain.Auth{User: "reader", Pass: "read"}.AsMechanism()))
			if len(records) != 1 {
				t.Errorf("%d records", len(records))
			}

			config.SASL.Password = "secret and wrong"
			_, err := kafka.New(config, nil)
			wantClass(t, err, sinks.ErrUnavailable)
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error tells the password: %v", err)
			}
			config.SASL = kafka.SASL{}
			_, err = kafka.New(config, nil)
			wantClass(t, err, sinks.ErrUnavailable)
		})
	}
}

func TestTLS(t *testing.T) {
	certificate := testkit.NewCertificate(t)
	cluster := kafkatest.Start(t, kfake.TLS(certificate.Server(t)))
	trusting := certificate.Client()
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}, TLS: trusting}})
	mustPublish(t, sink, "topic", newMessage("x"))
	if records := kafkatest.Read(t, cluster.Addr(), "agrimill.topic", kgo.DialTLSConfig(trusting)); len(records) != 1 {
		t.Errorf("%d records", len(records))
	}
	_, err := kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}, TLS: &tls.Config{}, ConnectTimeout: 2 * time.Second}}, nil)
	wantClass(t, err, sinks.ErrUnavailable)
	_, err = kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}, ConnectTimeout: 2 * time.Second}, PublishTimeout: 2 * time.Second}, nil)
	wantClass(t, err, sinks.ErrUnavailable)
}

// TestNotAllowedToDescribe: without the permission to read settings the broker's
// word about a single message counts.
func TestNotAllowedToDescribe(t *testing.T) {
	allow := func(resource kmsg.ACLResourceType, name string, operation kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: operation, Allow: true}
	}
	cluster := kafkatest.Start(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "admin"),
		kfake.User("PLAIN", "farmer", "farmer",
			allow(kmsg.ACLResourceTypeTopic, "*", kmsg.ACLOperationWrite),
			allow(kmsg.ACLResourceTypeTopic, "*", kmsg.ACLOperationCreate),
			allow(kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationCreate),
			allow(kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationIdempotentWrite)))
	logger := testkit.NewLog()
	sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}, SASL: kafka.SASL{User: "farmer", Password: "farmer"}}}, logger))(t)
	defer func() { _ = sink.Close() }()
	if got := sink.Describe().Durability; got != sinks.DurabilityUnknown {
		t.Errorf("durability %v", got)
	}
	large := string(random(t, 2<<20))
	for range 2 {
		wantClass(t, sink.Publish("topic", newMessage(large)), sinks.ErrTooLarge)
	}
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if err := sink.Publish("topic", newMessage("small")); err != nil {
				t.Errorf("Publish: %v", err)
			}
		})
	}
	group.Go(func() { wantClass(t, sink.Publish("topic", newMessage(large)), sinks.ErrTooLarge) })
	group.Wait()
	records := kafkatest.Read(t, cluster.Addr(), "agrimill.topic", kgo.SASL(plain.Auth{User: "admin", Pass: "admin"}.AsMechanism()))
	if len(records) != 20 {
		t.Errorf("%d records, want 20", len(records))
	}
	testkit.Contains(t, warnings(logger), "DescribeConfigs")
}

// warnings returns what was logged as such.
func warnings(logger *testkit.Log) string {
	var b strings.Builder
	for _, line := range logger.Lines(watermill.InfoLogLevel) {
		if strings.HasPrefix(line.Msg, "Warning: ") {
			fmt.Fprintln(&b, line.Msg, line.Fields)
		}
	}
	return b.String()
}

// A topic that somebody has compacted since is looked at again after a while.
func TestTopicIsChanged(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	logger := testkit.NewLog()
	sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}}, logger))(t)
	defer func() { _ = sink.Close() }()
	mustPublish(t, sink, "one", forEndpoint("e", "x"))
	compact := kadm.AlterConfig{Name: "cleanup.policy", Value: kadm.StringPtr("compact")}
	testkit.Must(kadm.NewClient(kafkatest.Client(t, cluster.Addr())).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{compact}, "agrimill.one"))(t)
	sink.LookAgain("one")
	mustPublish(t, sink, "one", forEndpoint("e", "x"))
	testkit.Eventually(t, "the sink promises nothing any more", func() bool {
		return sink.Describe().Durability == sinks.DurabilityNone && strings.Contains(warnings(logger), "cleanup.policy compact")
	})
}

// TestWarnings: settings that break the promises are logged, those of the brokers
// by New and those of a topic with its first message, each once.
func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		name       string
		config     kafka.Config
		topic      map[string]string
		has, lacks []string
		durability sinks.Durability
	}{
		{
			name:       "one copy",
			config:     kafka.Config{ReplicationFactor: 1},
			has:        []string{"replication factor 1"},
			lacks:      []string{"min.insync.replicas", "unclean", "compact", "auto.create"},
			durability: sinks.DurabilityDisk,
		},
		{
			name:       "one acknowledges",
			config:     kafka.Config{ReplicationFactor: 3},
			has:        []string{"min.insync.replicas 1"},
			lacks:      []string{"replication factor 1"},
			durability: sinks.DurabilityDisk,
		},
		{
			name:       "as it should be",
			config:     kafka.Config{ReplicationFactor: 3, TopicConfig: map[string]string{"min.insync.replicas": "2"}},
			lacks:      []string{"replication factor 1", "min.insync.replicas", "unclean", "compact"},
			durability: sinks.DurabilityReplicated,
		},
		{
			name:       "compacted",
			config:     kafka.Config{ReplicationFactor: 3, TopicConfig: map[string]string{"min.insync.replicas": "2", "cleanup.policy": "compact"}},
			has:        []string{"cleanup.policy compact"},
			durability: sinks.DurabilityNone,
		},
		{
			name:       "compacted, and what is old is deleted",
			config:     kafka.Config{ReplicationFactor: 3, TopicConfig: map[string]string{"min.insync.replicas": "2", "cleanup.policy": "compact,delete"}},
			has:        []string{"cleanup.policy compact"},
			durability: sinks.DurabilityNone,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := testkit.Must(kfake.NewCluster(kfake.NumBrokers(3), kfake.DefaultNumPartitions(1), kfake.BrokerConfigs(map[string]string{"default.replication.factor": "1"})))(t)
			defer cluster.Close()
			logger := testkit.NewLog()
			c.config.Brokers = cluster.ListenAddrs()
			sink := testkit.Must(kafka.New(c.config, logger))(t)
			defer func() { _ = sink.Close() }()
			for _, topic := range []string{"one", "two"} {
				msg := forEndpoint("e", "x")
				mustPublish(t, sink, topic, msg)
			}
			testkit.EventuallyNil(t, func() error { // the look at a topic ends after its first message
				if got := sink.Describe(); got.Durability != c.durability || got.DurabilityNote == "" {
					return fmt.Errorf("durability %v, want %v: %s", got.Durability, c.durability, got.DurabilityNote)
				}
				return nil
			})
			got := warnings(logger)
			for _, text := range c.has {
				if strings.Count(got, text) != 1 {
					t.Errorf("%q is logged %d times, want once:\n%s", text, strings.Count(got, text), got)
				}
			}
			for _, text := range c.lacks {
				if strings.Contains(got, text) {
					t.Errorf("%q is logged:\n%s", text, got)
				}
			}
		})
	}
}

// TestSeveralBrokers: leaders move and brokers go, while messages come.
func TestSeveralBrokers(t *testing.T) {
	cluster := testkit.Must(kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(6, "agrimill.topic")))(t)
	defer cluster.Close()
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: cluster.ListenAddrs()}, PublishTimeout: 5 * time.Second})
	var acked sync.Map
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	for p := range 8 {
		group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				payload := fmt.Sprint(p, " ", i)
				err := sink.Publish("topic", forEndpoint(fmt.Sprint(p), payload))
				if err == nil {
					acked.Store(payload, true)
				} else if !errors.Is(err, sinks.ErrUnavailable) {
					t.Errorf("Publish: %v", err)
					return
				}
			}
		})
	}
	published := func(payload string) {
		testkit.EventuallyNil(t, func() error { return sink.Publish("topic", newMessage(payload)) })
		acked.Store(payload, true)
	}
	for i := range 5 {
		cluster.ShufflePartitionLeaders()
		published(fmt.Sprint("shuffled ", i))
	}
	testkit.NoError(t, cluster.RemoveNode(0))
	for i := range 20 {
		published(fmt.Sprint("removed ", i))
	}
	cancel()
	group.Wait()
	stored := map[string]int{}
	for _, record := range kafkatest.Read(t, cluster.ListenAddrs()[0], "agrimill.topic") {
		stored[string(record.Value)]++
	}
	acked.Range(func(payload, _ any) bool {
		if stored[payload.(string)] == 0 {
			t.Errorf("%v was acked and is not stored", payload)
		}
		return true
	})
	testkit.NoError(t, sink.Health(t.Context()))
}

func TestHealthWithoutLeader(t *testing.T) {
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}})
	mustPublish(t, sink, "topic", newMessage("x"))
	fault := cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "agrimill.topic", Err: kerr.LeaderNotAvailable, Count: -1})
	err := sink.Health(t.Context())
	wantClass(t, err, sinks.ErrUnavailable)
	fault.Remove()
	testkit.NoError(t, sink.Health(t.Context()))
}

// The sink tells when a broker is back, after a Publish has failed without one. Close
// does not wait for that.
func TestRecovered(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	mustPublish(t, newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}}), "topic", newMessage("x"))
	sink := newSink(t, kafka.Config{
		Connection: kafka.Connection{Brokers: []string{cluster.Addr()}, ConnectTimeout: time.Second}, PublishTimeout: time.Second, CloseTimeout: 10 * testkit.Patience,
	})
	testkit.EventuallyNil(t, func() error { return sink.Publish("topic", newMessage("x")) })
	back := sink.Recovered()
	cluster.Stop()
	wantClass(t, sink.Publish("topic", newMessage("y")), sinks.ErrUnavailable)
	select {
	case <-back:
		t.Fatal("told while the broker is away")
	default:
	}
	cluster.Restart() // often before the sink has looked for the first time
	testkit.Receive(t, "that it is back", back)
	// If it is not completely back yet, that is reported again.
	fault := cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "agrimill.topic", Err: kerr.TopicAuthorizationFailed, Count: -1})
	again := sink.Recovered()
	wantClass(t, sink.Publish("topic", newMessage("z")), sinks.ErrUnavailable)
	testkit.Receive(t, "that it is back, again,", again)
	fault.Remove()
	testkit.EventuallyNil(t, func() error { return sink.Publish("topic", newMessage("z")) })

	cluster.Proxy.Hang()
	wantClass(t, sink.Publish("topic", newMessage("y")), sinks.ErrUnavailable)
	testkit.Ends(t, "Close", func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
	cluster.Proxy.Resume()
}

// TestUnreachable: New tells, and does not wait for ever.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	cluster.Stop()
	_, err := kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}, ConnectTimeout: time.Second}}, nil)
	wantClass(t, err, sinks.ErrUnavailable)
	cluster.Restart()
	cluster.Proxy.Hang()
	_, err = kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}, ConnectTimeout: time.Second}, PublishTimeout: time.Second}, nil)
	wantClass(t, err, sinks.ErrUnavailable)
	cluster.Proxy.Resume()
}

// TestPending: more than MaxPending messages and bytes wait for room, which a
// context may end.
func TestPending(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	withTimeout := func(timeout time.Duration) *kafka.Sink {
		return newSink(t, kafka.Config{
			Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, MaxPending: 4, MaxPendingBytes: 10_000, PublishTimeout: timeout, CloseTimeout: time.Second,
		})
	}
	sink := withTimeout(testkit.Patience)
	var messages []*message.Message
	for range 100 {
		messages = append(messages, newMessage(string(random(t, 3000))))
	}
	mustPublish(t, sink, "topic", messages...)
	mustPublish(t, sink, "topic", newMessage(string(random(t, 50_000)))) // more than the room
	if n := len(kafkatest.Read(t, cluster.Addr(), "agrimill.topic")); n != 101 {
		t.Errorf("%d records, want 101", n)
	}

	sink = withTimeout(time.Second)
	testkit.EventuallyNil(t, func() error { return sink.Publish("topic", newMessage("x")) })
	cluster.Proxy.Hang()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			msg := newMessage("x")
			msg.SetContext(ctx)
			if err := sink.Publish("topic", newMessage("y"), msg); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the context's error", err)
			}
		})
	}
	group.Wait()
	wantClass(t, sink.Publish("topic", newMessage("x")), sinks.ErrUnavailable) // no room
	cluster.Proxy.Resume()
	testkit.EventuallyNil(t, func() error { return sink.Publish("topic", newMessage("x")) })
}

// TestContextEndsBeforeTheProducer: what is not with the producer when its context ends is not sent.
func TestContextEndsBeforeTheProducer(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	end := func() {}
	marshaler := wmkafka.NewWithPartitioningMarshaler(func(string, *message.Message) (string, error) {
		end() // after the first look
		return "", nil
	})
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Marshaler: marshaler, MaxPending: 1, MaxPendingBytes: 10_000})
	mustPublish(t, sink, "topic", newMessage("x"))
	for range 3 { // what they have taken of the room is given back
		ctx, cancel := context.WithCancel(t.Context())
		end = cancel
		msg := newMessage("late")
		msg.SetContext(ctx)
		if err := sink.Publish("topic", msg); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's error", err)
		}
	}
	end = func() {}
	mustPublish(t, sink, "topic", newMessage("y"))
	var got []string
	for _, record := range kafkatest.Read(t, cluster.Addr(), "agrimill.topic") {
		got = append(got, string(record.Value))
	}
	if want := []string{"x", "y"}; !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
}

// TestSlowResult: whoever takes long over a result does not keep the next batches from being sent.
func TestSlowResult(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Partitions: 1})
	mustPublish(t, sink, "topic", newMessage("first"))
	cluster.Proxy.Hang()
	taken, released := make(chan struct{}, 20), make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	defer release()
	publish := func() *sinks.Publication {
		p := testkit.Must(sink.PublishAsync("topic", newMessage("x")))(t)
		return p
	}
	for range cap(taken) { // in two batches: one is under way while the others come
		publish().Then(func(sinks.Receipt, error) {
			taken <- struct{}{}
			<-released
		})
	}
	cluster.Proxy.Resume()
	<-taken
	last := publish()
	testkit.EventuallyNil(t, func() error {
		if n := len(kafkatest.Read(t, cluster.Addr(), "agrimill.topic")); n != 22 {
			return fmt.Errorf("%d records, want 22", n)
		}
		return nil
	})
	release()
	testkit.Must(last.Result())(t)
}

// TestLinger: a batch waits for more messages only when they are pipelined.
func TestLinger(t *testing.T) {
	cluster := kafkatest.Start(t)
	for ingest, want := range map[sinks.Ingest]bool{sinks.IngestPlain: false, sinks.IngestPipelined: true} {
		var frequency time.Duration
		newSink(t, kafka.Config{
			Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Ingest: ingest,
			Configure: func(k *sarama.Config) { frequency = k.Producer.Flush.Frequency },
		})
		if got := frequency > 0; got != want {
			t.Errorf("%s: waits %s", ingest, frequency)
		}
	}
}

// timestamping gives the guilty a time of their own.
type timestamping struct {
	kafka.Marshaler
	at time.Time
}

func (m timestamping) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	record, err := m.Marshaler.Marshal(topic, msg)
	if string(msg.Payload) == "guilty" {
		record.Timestamp = m.at
	}
	return record, err
}

// TestTimestampBeforeKafkas: what no batch can have is refused before it spoils one.
func TestTimestampBeforeKafkas(t *testing.T) {
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Marshaler: timestamping{at: time.Unix(-1, 0)}})
	innocent := testkit.Must(sink.PublishAsync("topic", newMessage("innocent")))(t)
	_, err := sink.PublishAsync("topic", newMessage("guilty"))
	wantClass(t, err, sinks.ErrRejected)
	testkit.Must(innocent.Result())(t)
}

// TestForeignMarshaler: a marshaler that keeps the payload, chooses the key, and makes nothing of some messages.
func TestForeignMarshaler(t *testing.T) {
	cluster := kafkatest.Start(t)
	marshaler := wmkafka.NewWithPartitioningMarshaler(func(_ string, msg *message.Message) (string, error) {
		if msg.UUID == "bad" {
			return "", errors.New("no key")
		}
		return "key of marshaler", nil
	})
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Marshaler: silent{marshaler}})
	mustPublish(t, sink, "topic", forEndpoint("e", "x"))
	records := kafkatest.Read(t, cluster.Addr(), "agrimill.topic")
	if len(records) != 1 || string(records[0].Key) != "key of marshaler" || string(records[0].Value) != "x" {
		t.Errorf("%+v", records)
	}
	for _, uuid := range []string{"bad", "silent"} {
		wantClass(t, sink.Publish("topic", message.NewMessage(uuid, nil)), sinks.ErrRejected)
	}
}

// TestMarshalerPanics: what has panicked, and a route recovers from, does not keep its topic from another producer.
func TestMarshalerPanics(t *testing.T) {
	cluster := kafkatest.Start(t)
	marshaler := wmkafka.NewWithPartitioningMarshaler(func(_ string, msg *message.Message) (string, error) {
		if msg.UUID == "panics" {
			panic("no key")
		}
		return "", nil
	})
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Marshaler: marshaler})
	func() {
		defer func() { _ = recover() }()
		t.Errorf("got %v, want a panic", sink.Publish("topic", message.NewMessage("panics", nil)))
	}()
	cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: 1})
	wantClass(t, sink.Publish("topic", newMessage("x")), sinks.ErrUnavailable) // the next goes by another producer
	mustPublish(t, sink, "topic", newMessage("x"))
}

// keyless has a key that cannot be encoded.
type keyless struct{ wmkafka.Marshaler }

func (m keyless) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	record, err := m.Marshaler.Marshal(topic, msg)
	if msg.UUID == "keyless" {
		record.Key = noKey{}
	}
	return record, err
}

type noKey struct{}

func (noKey) Encode() ([]byte, error) { return nil, errors.New("no key") }
func (noKey) Length() int             { return 0 }

// A key that cannot be encoded is the fault of its message alone.
func TestMarshalerMakesABadKey(t *testing.T) {
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{kafkatest.Start(t).Addr()}}, Marshaler: keyless{wmkafka.DefaultMarshaler{}}})
	mustPublish(t, sink, "topic", newMessage("x"))
	wantClass(t, sink.Publish("topic", message.NewMessage("keyless", nil)), sinks.ErrRejected)
	mustPublish(t, sink, "topic", newMessage("x"))
}

// silent makes no record of a message with that UUID, without saying why.
type silent struct{ wmkafka.Marshaler }

func (m silent) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	if msg.UUID == "silent" {
		return nil, nil
	}
	return m.Marshaler.Marshal(topic, msg)
}

func TestConfig(t *testing.T) {
	valid := kafka.Config{Connection: kafka.Connection{Brokers: []string{"127.0.0.1:9092"}}}
	if err := valid.Validate(); err != nil {
		t.Errorf("the smallest configuration: %v", err)
	}
	for field, change := range map[string]func(*kafka.Config){
		"Brokers":           func(c *kafka.Config) { c.Brokers = nil },
		"Brokers ":          func(c *kafka.Config) { c.Brokers = []string{"host"} },
		"SASL.Mechanism":    func(c *kafka.Config) { c.SASL = kafka.SASL{Mechanism: "MAGIC", User: "u", Password: "p"} },
		"SASL":              func(c *kafka.Config) { c.SASL.User = "u" },
		"SASL ":             func(c *kafka.Config) { c.SASL.Password = "p" },
		"Version":           func(c *kafka.Config) { c.Version = sarama.V1_0_0_0 },
		"TopicPrefix":       func(c *kafka.Config) { c.TopicPrefix = "a b" },
		"TopicPrefix ":      func(c *kafka.Config) { c.TopicPrefix = "a." },
		"Provision":         func(c *kafka.Config) { c.Provision = 7 },
		"Partitions":        func(c *kafka.Config) { c.Partitions = -1 },
		"ReplicationFactor": func(c *kafka.Config) { c.ReplicationFactor = -1 },
		"Partitions ":       func(c *kafka.Config) { c.Version = sarama.V2_1_0_0 },
		"Compression":       func(c *kafka.Config) { c.Compression = 9 },
		"MaxMessageSize":    func(c *kafka.Config) { c.MaxMessageSize = 10 },
		"MaxMessageSize ":   func(c *kafka.Config) { c.MaxMessageSize = 1 << 30 },
		"PublishTimeout":    func(c *kafka.Config) { c.PublishTimeout = -1 },
		"MaxPending":        func(c *kafka.Config) { c.MaxPending = -1 },
		"Ingest":            func(c *kafka.Config) { c.Ingest = 7 },
	} {
		config := valid
		change(&config)
		err := config.Validate()
		if !errors.Is(err, kafka.ErrConfig) || !strings.Contains(err.Error(), strings.TrimSpace(field)) {
			t.Errorf("%s: got %v", field, err)
		}
		if _, err := kafka.New(config, nil); !errors.Is(err, kafka.ErrConfig) {
			t.Errorf("%s: New: got %v", field, err)
		}
	}
	config := valid
	config.Configure = func(k *sarama.Config) { k.Net.DialTimeout = 0 }
	if _, err := kafka.New(config, nil); !errors.Is(err, kafka.ErrConfig) {
		t.Errorf("Configure: got %v", err)
	}
}

func TestNoTopicPrefix(t *testing.T) {
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, TopicPrefix: kafka.NoTopicPrefix})
	mustPublish(t, sink, "plain", newMessage("x"))
	if n := len(kafkatest.Read(t, cluster.Addr(), "plain")); n != 1 {
		t.Errorf("%d records", n)
	}
	for _, topic := range []string{"__consumer_offsets", "__transaction_state", ""} {
		wantClass(t, sink.Publish(topic, newMessage("x")), sinks.ErrRejected)
	}
}

// TestStuckPartition: one partition that takes nothing holds up no other one, of
// its own topic or of another.
func TestStuckPartition(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	const keys = 20
	sink := newSink(t, kafka.Config{
		Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Partitions: 4, PublishTimeout: testkit.Patience, MaxPending: 2 * keys,
	})
	for i := range keys {
		mustPublish(t, sink, "topic", forEndpoint(fmt.Sprint(i), "before"))
	}
	mustPublish(t, sink, "other", forEndpoint("0", "before"))
	stuck, blocked, free := int32(-1), []string{}, []string{}
	for _, record := range kafkatest.Read(t, cluster.Addr(), "agrimill.topic") {
		if stuck < 0 {
			stuck = record.Partition
		}
		if key := string(record.Key); record.Partition == stuck {
			blocked = append(blocked, key)
		} else {
			free = append(free, key)
		}
	}
	fault := cluster.Fake().Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: "agrimill.topic", Partitions: []int32{stuck}, Err: kerr.NotEnoughReplicas, Count: -1,
	})
	results := make(chan error, len(blocked))
	for _, key := range blocked {
		go func() { results <- sink.Publish("topic", forEndpoint(key, "stuck")) }()
	}
	testkit.NoError(t, fault.Wait(testkit.Context(t), 1))

	var group sync.WaitGroup
	for range 10 {
		for _, key := range free {
			group.Go(func() {
				for _, topic := range []string{"topic", "other"} {
					if err := sink.Publish(topic, forEndpoint(key, "free")); err != nil {
						t.Errorf("Publish: %v", err)
					}
				}
			})
		}
	}
	group.Wait()
	select {
	case err := <-results:
		t.Errorf("a message of the partition that is stuck: %v", err)
	default:
	}
	fault.Remove()
	for range blocked {
		if err := <-results; err != nil {
			t.Errorf("Publish when it is over: %v", err)
		}
	}
}

// TestLateCopies: a message that its producer still sends, again and again, when its topic
// gets another producer is not stored behind what comes after it.
func TestLateCopies(t *testing.T) {
	t.Parallel()
	const timeout = 500 * time.Millisecond
	for name, replace := range map[string]func(t *testing.T, cluster *kafkatest.Cluster, sink *kafka.Sink, other string){
		"the limit is raised": func(t *testing.T, cluster *kafkatest.Cluster, sink *kafka.Sink, _ string) {
			t.Helper()
			alter(t, cluster.Addr(), "agrimill.topic", "max.message.bytes", "1000000")
			sink.LookAgain("topic")
		},
		"a batch is refused": func(t *testing.T, cluster *kafkatest.Cluster, sink *kafka.Sink, other string) {
			t.Helper()
			cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, When: func(request kmsg.Request) bool {
				return strings.Contains(string(request.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records), "guilty")
			}})
			wantClass(t, sink.Publish("topic", forEndpoint(other, "guilty")), sinks.ErrUnavailable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := kafkatest.Start(t)
			small := "100000"
			createTopic(t, cluster.Addr(), "agrimill.topic", 2, map[string]*string{"max.message.bytes": &small})
			sink := newSink(t, kafka.Config{
				Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, PublishTimeout: timeout,
				Configure: func(c *sarama.Config) { // it is still at it when the time is up
					c.Producer.Retry.BackoffFunc = func(int, int) time.Duration { return timeout / 2 }
					c.Producer.Retry.Max = 1000
				},
			})
			partitions := map[int32]string{}
			for i := 0; len(partitions) < 2; i++ {
				key := fmt.Sprint("key ", i)
				testkit.EventuallyNil(t, func() error { return sink.Publish("topic", forEndpoint(key, "0")) })
				for _, record := range kafkatest.Read(t, cluster.Addr(), "agrimill.topic") {
					partitions[record.Partition] = string(record.Key)
				}
			}
			key, other := partitions[0], partitions[1]

			first := int64(-1)
			fault := cluster.Fake().Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.Produce}, Topic: "agrimill.topic", Partitions: []int32{0}, Err: kerr.NotEnoughReplicas, Count: -1,
				When: func(request kmsg.Request) bool { // the first producer's
					for _, p := range request.(*kmsg.ProduceRequest).Topics[0].Partitions {
						if p.Partition == 0 {
							id := int64(binary.BigEndian.Uint64(p.Records[43:51]))
							if first < 0 {
								first = id
							}
							return id == first
						}
					}
					return false
				},
			})
			wantClass(t, sink.Publish("topic", forEndpoint(key, "1")), sinks.ErrUnavailable)
			replace(t, cluster, sink, other)
			for _, payload := range []string{strings.Repeat("x", 200_000), "1", "2"} {
				if err := sink.Publish("topic", forEndpoint(key, payload)); !errors.Is(err, sinks.ErrUnavailable) {
					t.Errorf("Publish while the first producer is still sending: %v", err)
				}
			}
			fault.Remove()
			for _, payload := range []string{"1", "2", "3"} {
				testkit.EventuallyNil(t, func() error { return sink.Publish("topic", forEndpoint(key, payload)) })
			}
			if err := sink.Close(); err != nil { // which waits for what is under way
				t.Fatal(err)
			}
			var got []string
			for _, record := range kafkatest.Read(t, cluster.Addr(), "agrimill.topic") {
				if record.Partition == 0 && len(record.Value) < 10 {
					got = append(got, string(record.Value))
				}
			}
			if order := strings.Join(slices.Compact(got), ""); order != "0123" { // one that was reported as failed may be there as well
				t.Errorf("stored: %q", got)
			}
		})
	}
}

// TestTroubledConnections: acknowledgments are lost and connections cut again
// and again while messages come. Everything is stored in the order of its key;
// twice only what Publish returned an error for.
func TestTroubledConnections(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Partitions: 3})
	mustPublish(t, sink, "topic", forEndpoint("first", "0"))
	const keys, each = 10, 100
	var failures atomic.Int64
	var group sync.WaitGroup
	for k := range keys {
		group.Go(func() {
			pause := time.NewTicker(5 * time.Millisecond)
			defer pause.Stop()
			for i := 0; i < each; {
				switch err := sink.Publish("topic", forEndpoint(fmt.Sprint(k), fmt.Sprint(i))); {
				case err == nil:
					i++
				case errors.Is(err, sinks.ErrUnavailable):
					failures.Add(1)
				default:
					t.Errorf("Publish: %v", err)
					return
				}
				<-pause.C
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		group.Wait()
	}()
	pause := time.NewTicker(30 * time.Millisecond)
	defer pause.Stop()
	for running, i := true, 0; running; i++ {
		if i < 20 {
			cluster.Proxy.LoseReplies()
		}
		select {
		case <-done:
			running = false
		case <-pause.C:
		}
		if i < 20 {
			cluster.Proxy.Cut()
		}
	}
	next, copies := map[string]int{}, int64(0)
	for _, record := range kafkatest.Read(t, cluster.Addr(), "agrimill.topic") {
		key, got := string(record.Key), string(record.Value)
		if n := next[key]; n > 0 && got == fmt.Sprint(n-1) {
			copies++
			continue
		}
		if want := fmt.Sprint(next[key]); got != want {
			t.Fatalf("key %s: got %s, want %s", key, got, want)
		}
		next[key]++
	}
	for k := range keys {
		if n := next[fmt.Sprint(k)]; n != each {
			t.Errorf("key %d: %d messages, want %d", k, n, each)
		}
	}
	t.Logf("%d calls failed, %d copies", failures.Load(), copies)
	if copies > failures.Load() {
		t.Errorf("%d copies, but %d calls failed", copies, failures.Load())
	}
}
