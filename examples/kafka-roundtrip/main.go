// Command kafka-roundtrip shows how to move messages from the gateway into Kafka, and
// replies from Kafka back to the gateway. The functions run and report are all it takes.
// The rest starts a gateway and, unless KAFKA_BROKERS lists brokers, a Kafka cluster in
// this process, and checks the result. The last line of the output is
//
//	OK: 100 task files through Kafka and confirmed, 100 reports sent back
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/kafka"
	kafkasource "github.com/agrimill/agrimill/sources/kafka"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	taskType   = "iso:11783:-10:taskdata:zip"
	reportType = "app:example:report:text"
	topic      = "tasks" // in Kafka agrimill.tasks, which has to exist when the consumer group starts
)

// run moves task files from the gateway into Kafka, and a report on each from Kafka to the
// gateway. In both directions nothing is acknowledged before the other side has stored it.
func run(ctx context.Context, config gateway.Config, tenant, office string, brokers []string) error {
	client, err := gateway.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	fromGateway, err := subscriber.New(subscriber.Config{Client: client}, nil)
	if err != nil {
		return err
	}
	toGateway, err := publisher.New(publisher.Config{Client: client, TenantID: tenant, EndpointID: office}, nil)
	if err != nil {
		return err
	}
	defer toGateway.Close()
	toKafka, err := kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: brokers}}, nil)
	if err != nil {
		return err
	}
	defer toKafka.Close()
	fromKafka, err := kafkasource.New(kafkasource.Config{
		Connection: kafka.Connection{Brokers: brokers}, Topics: []string{topic}, Group: "reports",
	}, nil)
	if err != nil {
		return err
	}
	defer fromKafka.Close()
	r, err := router.New(router.Config{Poison: toKafka}, nil)
	if err != nil {
		return err
	}
	err = errors.Join(
		r.Add(router.Route{Name: "into Kafka", From: fromGateway, Topic: taskType, To: toKafka, ToTopic: topic}),
		r.Add(router.Route{
			Name: "reports", From: fromKafka, Topic: topic, Transform: report,
			To: toGateway, ToTopic: reportType,
		}),
	)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// report replies to a task file. The UUID becomes the context ID, by which receivers
// recognize a copy: derived from that of the task file, it is the same if the report is
// created again.
func report(msg *message.Message) ([]*message.Message, error) {
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte("report of "+msg.Metadata.Get(gateway.KeyContextID)))
	return []*message.Message{message.NewMessage(id.String(), fmt.Appendf(nil, "received: %s", msg.Payload))}, nil
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := demo(ctx, 100); err != nil {
		log.Fatal(err)
	}
}

func demo(ctx context.Context, count int) error {
	gate, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		return err
	}
	defer gate.Close()
	brokers := strings.Split(os.Getenv("KAFKA_BROKERS"), ",")
	if brokers[0] == "" {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, kafka.TopicName("", topic)))
		if err != nil {
			return err
		}
		defer cluster.Close()
		brokers = cluster.ListenAddrs()
	}

	// Two applications of one farmer: the office's and the one on a machine's terminal.
	machine := gate.AddApplication(gatewaytest.ApplicationConfig{})
	gate.Authorize(machine, gate.Tenant())
	office := gate.AddEndpoint(gatewaytest.EndpointConfig{
		Send: []string{reportType}, Receive: []string{taskType}, Subscribe: []string{taskType},
	})
	terminal := gate.AddEndpoint(gatewaytest.EndpointConfig{
		App: machine, Send: []string{taskType}, Receive: []string{reportType}, Subscribe: []string{reportType},
	})
	for i := range count {
		file := fmt.Appendf(nil, "task data %d", i)
		if _, err := gate.Send(gatewaytest.SendRequest{From: terminal.ID, MessageType: taskType, Payload: file}); err != nil {
			return err
		}
	}
	running, stop := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- run(running, gate.ClientConfig(), gate.Tenant(), office.ID, brokers) }()
	// The ledger has one entry per message and receiver.
	err = gate.Wait(ctx, func(ledger []gatewaytest.LedgerEntry) bool { return len(ledger) >= 2*count })
	err = errors.Join(err, gate.WaitConfirmed(ctx, count))
	stop()
	if err := errors.Join(err, <-result); err != nil {
		return err
	}
	ledger, reports := gate.Ledger(), make(map[[sha256.Size]byte]bool)
	for _, entry := range ledger {
		if entry.EndpointID == terminal.ID {
			reports[entry.PayloadSHA256] = true
		}
	}
	if len(ledger) != 2*count || len(reports) != count {
		return fmt.Errorf("%d messages, %d different reports among them", len(ledger), len(reports))
	}
	fmt.Printf("OK: %d task files through Kafka and confirmed, %d reports sent back\n", count, count)
	return nil
}
