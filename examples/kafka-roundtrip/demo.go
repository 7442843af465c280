package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	messages = 100
	patience = 2 * time.Minute
)

// demo lets a machine's terminal send task files to the office, which runs
// roundtrip, and checks what comes of it.
func demo(ctx context.Context, brokers []string, stdout, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	gate, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		return err
	}
	defer gate.Close()

	// Two applications of one farmer: the office's, and the machine's.
	machine := gate.AddApplication(gatewaytest.ApplicationConfig{})
	gate.Authorize(machine, gate.Tenant())
	office := gate.AddEndpoint(gatewaytest.EndpointConfig{
		Name: "office", Receive: []string{taskType}, Subscribe: []string{taskType}, Send: []string{reportType},
	})
	terminal := gate.AddEndpoint(gatewaytest.EndpointConfig{
		App: machine, Name: "terminal", Send: []string{taskType}, Receive: []string{reportType},
	})
	sums := make(map[string]string) // SHA-256 of each task file, by context ID
	for i := range messages {
		payload := fmt.Appendf(nil, "task data %d", i)
		context := uuid.NewString()
		sum := sha256.Sum256(payload)
		sums[context] = hex.EncodeToString(sum[:])
		if _, err := gate.Send(gatewaytest.SendRequest{From: terminal.ID, MessageType: taskType, Payload: payload, ContextID: context}); err != nil {
			return err
		}
	}

	logger := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	prefix := "agrimill-roundtrip-" + uuid.NewString()
	running, stop := context.WithCancel(ctx)
	defer stop()
	result := make(chan error, 1)
	// Nobody waits for reports once nobody makes them.
	reporting, stopReporting := context.WithCancel(ctx)
	defer stopReporting()
	go func() {
		defer stopReporting()
		result <- roundtrip(running, roundtripConfig{
			gateway: gate.ClientConfig(), tenant: gate.Tenant(), office: office.ID, terminal: terminal.ID,
			brokers: brokers, topicPrefix: prefix, logger: logger,
		})
	}()
	reports, err := receiveReports(reporting, machine.ClientConfig(), logger)
	if err != nil {
		stop()
		return errors.Join(<-result, err)
	}
	waited := gate.WaitConfirmed(ctx, 2*messages)
	stop()
	if err := errors.Join(waited, <-result); err != nil {
		return err
	}
	if err := errors.Join(checkReports(reports, sums), checkKafka(ctx, brokers, kafkaTopic(prefix), sums)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "OK %d task files in Kafka once, %d reports back at the terminal, everything confirmed\n", len(sums), len(reports))
	return err
}

// receiveReports receives the reports as the terminal's application would, until
// there is one for each message.
func receiveReports(ctx context.Context, config gateway.Config, logger watermill.LoggerAdapter) ([]report, error) {
	client, err := gateway.New(config)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }() // only idle connections are left
	sub, err := subscriber.New(subscriber.Config{Client: client}, logger)
	if err != nil {
		return nil, err
	}
	received, err := sub.Subscribe(ctx, reportType)
	if err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	var reports []report
	for len(reports) < messages {
		msg, open := <-received
		if !open {
			return nil, errors.Join(fmt.Errorf("%d of %d reports came back", len(reports), messages), ctx.Err(), sub.Close())
		}
		var r report
		if err := json.Unmarshal(msg.Payload, &r); err != nil {
			return nil, errors.Join(err, sub.Close())
		}
		reports = append(reports, r)
		msg.Ack()
	}
	return reports, sub.Close() // which sends the last confirmations
}

func checkReports(reports []report, sums map[string]string) error {
	seen := make(map[string]bool)
	for _, r := range reports {
		if sums[r.Context] == "" || sums[r.Context] != r.SHA256 {
			return fmt.Errorf("the report of %s is not about what was sent", r.Context)
		}
		if seen[r.Context] {
			return fmt.Errorf("two reports of %s", r.Context)
		}
		seen[r.Context] = true
	}
	return nil
}

// checkKafka reads the topic with a client that shares nothing with the sink.
func checkKafka(ctx context.Context, brokers []string, topic string, sums map[string]string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	defer client.Close()
	seen := make(map[string]bool)
	for len(seen) < len(sums) {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("reading %s: %w", topic, err)
		}
		for _, record := range fetches.Records() {
			context := header(record, gateway.KeyContextID)
			sum := sha256.Sum256(record.Value)
			if sums[context] != hex.EncodeToString(sum[:]) {
				return fmt.Errorf("the record at offset %d is not what was sent", record.Offset)
			}
			if seen[context] {
				return fmt.Errorf("%s is in Kafka twice", context)
			}
			seen[context] = true
		}
	}
	return nil
}

func header(record *kgo.Record, name string) string {
	for _, h := range record.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
