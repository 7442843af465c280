package main

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// stored is one message as an independent consumer found it in JetStream.
type stored struct {
	subject string
	size    int
	digest  [sha256.Size]byte
}

// readStream reads everything in a JetStream stream, in order. It is an independent
// consumer: its own connection, the plain NATS client, nothing from this module.
func readStream(ctx context.Context, url, streamName string) ([]stored, error) {
	conn, err := nats.Connect(url, nats.Name("quickstart verification"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	stream, err := js.Stream(ctx, streamName)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", streamName, err)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", streamName, err)
	}
	if info.State.Msgs == 0 {
		return nil, nil
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return nil, fmt.Errorf("consumer of %s: %w", streamName, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("consumer of %s: %w", streamName, err)
	}
	// Next does not watch ctx.
	unblock := context.AfterFunc(ctx, messages.Stop)
	defer unblock()
	defer messages.Stop()

	var found []stored
	for {
		msg, err := messages.Next()
		if err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, fmt.Errorf("reading %s after %d messages: %w", streamName, len(found), err)
		}
		found = append(found, stored{subject: msg.Subject(), size: len(msg.Data()), digest: sha256.Sum256(msg.Data())})
		meta, err := msg.Metadata()
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", streamName, err)
		}
		if meta.Sequence.Stream >= info.State.LastSeq {
			return found, nil
		}
	}
}

// expectation is where a payload should be found.
type expectation struct {
	subject string
	digest  [sha256.Size]byte
}

// compare matches what was found with what was expected. Two payloads may be equal, so each
// message found satisfies only one expectation. subjects has, for each expectation, the
// subject where it was found, or "". Messages that satisfy no expectation are counted: as
// poisoned if they are on poisonSubject, else as mismatched.
func compare(want []expectation, found []stored, poisonSubject string) (subjects []string, poisoned, mismatched int) {
	open := map[expectation][]int{}
	for i, w := range want {
		open[w] = append(open[w], i)
	}
	subjects = make([]string, len(want))
	for _, f := range found {
		if f.subject == poisonSubject {
			poisoned++
			continue
		}
		key := expectation{f.subject, f.digest}
		if waiting := open[key]; len(waiting) > 0 {
			subjects[waiting[0]] = f.subject
			open[key] = waiting[1:]
			continue
		}
		mismatched++
	}
	return subjects, poisoned, mismatched
}
