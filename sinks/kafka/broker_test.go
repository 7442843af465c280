//go:build kafkabroker

package kafka_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest/broker"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

// TestBroker runs everything against a real broker: that of KAFKA_BROKERS, or
// one of its own. All tests share it, each with topics of its own.
func TestBroker(t *testing.T) {
	addr := os.Getenv("KAFKA_BROKERS")
	has := features()
	has.Outage, has.Hang = false, false // see testKilled; it is the proxy that hangs, whatever is behind it
	if addr == "" {
		certificate := testkit.NewCertificate(t)
		real := kafkatest.StartReal(t, secured(certificate))
		addr = real.Addr()
		t.Run("Secure", func(t *testing.T) { testSecure(t, real, certificate.Client()) })
		t.Run("Killed", func(t *testing.T) { testKilled(t, real) })
	} else {
		addr, _, _ = strings.Cut(addr, ",")
		t.Logf("NOT RUN: outages, authentication and TLS, because the broker at %s is not ours to stop", addr)
	}
	run := fmt.Sprintf("t%d", time.Now().UnixNano())
	var count atomic.Int64
	prefix := func(t *testing.T) string {
		p := fmt.Sprintf("%s-%d", run, count.Add(1))
		t.Cleanup(func() { deleteTopics(t, addr, p) })
		return p
	}
	t.Run("Shared", func(t *testing.T) {
		for _, c := range sharedTests {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.test(t, addr, prefix(t))
			})
		}
		t.Run("Roundtrip", func(t *testing.T) {
			t.Parallel()
			testRoundtrip(t, addr)
		})
	})
	t.Run("Conformance", func(t *testing.T) {
		sinktest.Run(t, sinktest.Suite{
			New: func(t *testing.T, settings sinktest.Settings) sinktest.Backend {
				t.Helper()
				t.Parallel()
				b := &backend{addr: addr, config: suiteConfig(addr, settings)}
				b.config.TopicPrefix = prefix(t)
				return b
			},
			Features: has,
		})
	})
}

// testRoundtrip runs examples/kafka-roundtrip, which has a cluster of its own otherwise.
func testRoundtrip(t *testing.T, addr string) {
	const topic = "example.tasks"
	createTopic(t, addr, topic, 1, nil)
	cmd := exec.CommandContext(t.Context(), "go", "run", "github.com/agrimill/agrimill/examples/kafka-roundtrip")
	cmd.Env = append(os.Environ(), "KAFKA_BROKERS="+addr)
	out, runErr := cmd.CombinedOutput()
	testkit.Must(kadm.NewClient(kafkatest.Client(t, addr)).DeleteTopics(t.Context(), topic))(t)
	if runErr != nil || !strings.HasPrefix(string(out), "OK: 100 task files ") {
		t.Errorf("%v: %s", runErr, out)
	}
}

// deleteTopics deletes the topics of a test.
func deleteTopics(t *testing.T, addr, prefix string) {
	t.Helper()
	admin := kadm.NewClient(kafkatest.Client(t, addr))
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	topics := testkit.Must(admin.ListTopics(ctx))(t)
	var ours []string
	for _, topic := range topics.Names() {
		if strings.HasPrefix(topic, prefix+".") || topic == prefix+"_taken" {
			ours = append(ours, topic)
		}
	}
	if len(ours) == 0 {
		return
	}
	testkit.Must(admin.DeleteTopics(ctx, ours...))(t)
}

// secured configures a broker with a listener for two users.
func secured(certificate testkit.Certificate) broker.Config {
	return broker.Config{
		Users:       map[string]string{"farmer": "barn;door=7", "reader": "read"},
		Certificate: string(certificate.Cert),
		Key:         string(certificate.Key),
	}
}

// testSecure: TLS together with each mechanism of SASL.
func testSecure(t *testing.T, real *kafkatest.Real, trusting *tls.Config) {
	reader := []kgo.Opt{kgo.DialTLSConfig(trusting), kgo.SASL(plain.Auth{User: "reader", Pass: "read"}.AsMechanism())}
	for _, mechanism := range []kafka.Mechanism{kafka.MechanismPlain, kafka.MechanismSCRAMSHA256, kafka.MechanismSCRAMSHA512} {
		t.Run(string(mechanism), func(t *testing.T) {
			config := kafka.Config{
				Connection: kafka.Connection{Brokers: []string{real.SecureAddr()}, TLS: trusting, SASL: kafka.SASL{Mechanism: mechanism, User: "farmer", Password: "barn;door=7"}}, TopicPrefix: "secure",
			}
			sink := newSink(t, config)
			topic := sink.TopicSegment(string(mechanism))
			mustPublish(t, sink, topic, newMessage("x"))
			if n := len(kafkatest.Read(t, real.SecureAddr(), "secure."+topic, reader...)); n != 1 {
				t.Errorf("%d records", n)
			}
			config.SASL.Password = "wrong"
			_, err := kafka.New(config, nil)
			wantClass(t, err, sinks.ErrUnavailable)
			config.SASL = kafka.SASL{}
			config.ConnectTimeout, config.PublishTimeout = 2*time.Second, 2*time.Second
			_, err = kafka.New(config, nil)
			wantClass(t, err, sinks.ErrUnavailable)
		})
	}
}

// testKilled: the broker is killed, and stopped, while messages come. What was
// acknowledged is there afterwards, in the order of each key.
func testKilled(t *testing.T, real *kafkatest.Real) {
	config := suiteConfig(real.Addr(), sinktest.Settings{Faults: true})
	config.TopicPrefix, config.Partitions = "killed", 4
	sink := newSink(t, config)
	const keys = 8
	var acked [keys][]string
	var published atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	for k := range keys {
		group.Go(func() {
			pause := time.NewTicker(5 * time.Millisecond)
			defer pause.Stop()
			for i := 0; ctx.Err() == nil; {
				payload := fmt.Sprint(k, " ", i)
				err := sink.Publish("topic", forEndpoint(fmt.Sprint(k), payload))
				switch {
				case err == nil:
					acked[k] = append(acked[k], payload)
					published.Add(1)
					i++ // what failed is published again, like the router does
				case errors.Is(err, sinks.ErrUnavailable):
					<-pause.C
				default:
					t.Errorf("Publish: %v", err)
					return
				}
			}
		})
	}
	more := func(n int64) {
		t.Helper()
		want := published.Load() + n
		testkit.EventuallyNil(t, func() error {
			if got := published.Load(); got < want {
				return fmt.Errorf("%d messages, want %d", got, want)
			}
			return nil
		})
	}
	for _, end := range []func(){real.Kill, real.Stop} {
		more(500)
		end()
		wantClass(t, sink.Health(t.Context()), sinks.ErrUnavailable)
		real.Restart()
	}
	more(500)
	testkit.EventuallyNil(t, func() error { return sink.Health(t.Context()) })
	cancel()
	group.Wait()

	stored := map[string][]string{}
	duplicates := 0
	for _, record := range kafkatest.Read(t, real.Addr(), "killed.topic") {
		key, payload := string(record.Key), string(record.Value)
		if n := len(stored[key]); n > 0 && stored[key][n-1] == payload {
			duplicates++
			continue // published again after an error, or stored and not acknowledged
		}
		stored[key] = append(stored[key], payload)
	}
	t.Logf("%d messages acknowledged, %d copies", published.Load(), duplicates)
	for k := range keys {
		// Each key's messages were published one after the other, so apart from
		// the copies they have to stand there exactly so; one that was not
		// acknowledged may follow.
		got := stored[fmt.Sprint(k)]
		if len(got) < len(acked[k]) {
			t.Errorf("key %d: %d messages are stored, %d were acknowledged", k, len(got), len(acked[k]))
			continue
		}
		for i, want := range acked[k] {
			if got[i] != want {
				t.Errorf("key %d: message %d is %q, want %q", k, i, got[i], want)
				break
			}
		}
	}
}
