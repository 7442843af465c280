package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/kafka"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	sourcekafka "github.com/agrimill/agrimill/sources/kafka"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
)

const (
	wayBackKeys   = 256
	wayBackHeader = "key"
)

// filledStream starts a server with a stream that has b.N messages of wayBackKeys keys under a subject, and returns its address.
func filledStream(b *testing.B, subject string) (url string) {
	b.Helper()
	url = natstest.Start(b, func(o *server.Options) { o.NoLog = true }).URL()
	conn := testkit.Must(natsgo.Connect(url))(b)
	defer conn.Close()
	js := testkit.Must(jetstream.New(conn))(b)
	testkit.Must(js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "FILLED", Subjects: []string{subject}}))(b)
	for i := range b.N {
		msg := natsgo.NewMsg(subject)
		key, body := wayBackMessage(i)
		msg.Header.Set(wayBackHeader, key)
		msg.Data = body
		testkit.Must(js.PublishMsgAsync(msg))(b)
		if i%1000 == 999 {
			<-js.PublishAsyncComplete()
		}
	}
	<-js.PublishAsyncComplete()
	return url
}

// BenchmarkWayBack is the whole way from a broker to a gateway that answers each message
// after 20 ms and checks the order of each of 256 keys.
func BenchmarkWayBack(b *testing.B) {
	base := startSource(b)
	b.Run("nats", func(b *testing.B) {
		twoCores(b)
		url := filledStream(b, "out")
		source := testkit.Must(sourcenats.New(sourcenats.Config{
			Connection: sinknats.Connection{URL: url}, SubjectPrefix: sinknats.NoSubjectPrefix, Durable: "back", KeyHeader: wayBackHeader,
		}, nil))(b)
		wayBack(b, base, source, "out")
	})
	for _, partitions := range []int32{1, 6} {
		b.Run(fmt.Sprintf("kafka/%d", partitions), func(b *testing.B) {
			twoCores(b)
			addrs := brokers(b)
			client := testkit.Must(kgo.NewClient(kgo.SeedBrokers(addrs...)))(b)
			defer client.Close()
			topic := fmt.Sprintf("back%d-%d", partitions, b.N)
			testkit.Must(kadm.NewClient(client).CreateTopic(b.Context(), partitions, 1, nil, topic))(b)
			records := make([]*kgo.Record, b.N)
			for i := range records {
				key, body := wayBackMessage(i)
				records[i] = &kgo.Record{Topic: topic, Key: []byte(key), Value: body}
			}
			testkit.NoError(b, client.ProduceSync(b.Context(), records...).FirstErr())
			config := sourcekafka.Config{TopicPrefix: kafka.NoTopicPrefix, Topics: []string{topic}, Group: topic}
			config.Brokers = addrs
			source := testkit.Must(sourcekafka.New(config, nil))(b)
			wayBack(b, base, source, topic)
		})
	}
}

// BenchmarkFloorWayBack posts the same payloads with net/http, for each key one after the
// other, with headers that are there already.
func BenchmarkFloorWayBack(b *testing.B) {
	base := startSource(b)
	twoCores(b)
	call(b, base+"/slow/reset")
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: wayBackKeys}}
	defer client.CloseIdleConnections()
	post := func(i int) error {
		_, body := wayBackMessage(i)
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, base+"/slow/messages", bytes.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.Body.Close()
	}
	end := meter(b)
	var keys sync.WaitGroup
	for key := range wayBackKeys {
		keys.Go(func() {
			for i := key; i < b.N; i += wayBackKeys {
				if err := post(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	keys.Wait()
	end()
}

// wayBackMessage returns the key and the payload of message i: the key, its number within the
// key, and enough to make a KiB.
func wayBackMessage(i int) (key string, payload []byte) {
	key = fmt.Sprintf("k%d", i%wayBackKeys)
	return key, append(fmt.Appendf(nil, "%s %d ", key, i/wayBackKeys), make([]byte, kib)...)
}

// wayBack sends everything from a source to the gateway, from the first message on.
func wayBack(b *testing.B, base string, from message.Subscriber, topic string) {
	b.Helper()
	call(b, base+"/slow/reset")
	client := testkit.Must(gateway.New(gateway.Config{BaseURL: base + "/slow", TokenURL: base + "/token", ClientID: "id", ClientSecret: "secret", MaxIdleConnsPerHost: wayBackKeys}))(b)
	defer func() { _ = client.Close() }()
	pub := testkit.Must(publisher.New(publisher.Config{
		Client: client, TenantID: benchTenant, EndpointID: benchEndpoint, MaxRequests: wayBackKeys,
	}, nil))(b)
	count := newCounted(b.N)
	r := testkit.Must(router.New(router.Config{Poison: newCounted(b.N)}, nil))(b)
	first := make(chan struct{}, 1)
	testkit.NoError(b, r.Add(router.Route{
		Name: "back", From: from, Topic: topic, To: &countedPlaces{pub, count}, ToTopic: benchType,
		Filter: func(*message.Message) (bool, error) {
			select {
			case first <- struct{}{}:
			default:
			}
			return true, nil
		},
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }() // ends with ctx
	<-first
	end := meter(b)
	<-count.done
	end()
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
	if answer := call(b, base+"/slow/disorder"); answer != "0" {
		b.Errorf("%s messages came out of order", answer)
	}
}

// call asks the source process for something.
func call(b *testing.B, url string) string {
	b.Helper()
	req := testkit.Must(http.NewRequestWithContext(context.Background(), http.MethodPost, url, http.NoBody))(b)
	resp := testkit.Must(http.DefaultClient.Do(req))(b)
	defer func() { _ = resp.Body.Close() }()
	text := testkit.Must(io.ReadAll(resp.Body))(b)
	return strings.TrimSpace(string(text))
}
