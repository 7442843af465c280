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
// reader: its own connection, the plain NATS client, nothing from this module.
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
	var found []stored
	for at := uint64(1); at <= stream.CachedInfo().State.LastSeq; at++ {
		msg, err := stream.GetMsg(ctx, at)
		if err != nil {
			return nil, fmt.Errorf("reading %s after %d messages: %w", streamName, len(found), err)
		}
		found = append(found, stored{subject: msg.Subject, size: len(msg.Data), digest: sha256.Sum256(msg.Data)})
	}
	return found, nil
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
