package claimcheck_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "gocloud.dev/blob/memblob" // the driver of mem:// buckets

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/sinks/claimcheck"
)

func ExampleNew() {
	ctx := context.Background()
	// file:///var/lib/agrimill/payloads?create_dir=true, s3://bucket?region=…,
	// gs://bucket, azblob://container
	store, err := claimcheck.New(ctx, claimcheck.Config{URL: "mem://", Prefix: "payloads/"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()

	reference, err := store.Put(ctx, "0f3a", strings.NewReader("a large file"))
	if err != nil {
		log.Fatal(err)
	}
	payload, size, err := store.Open(ctx, reference)
	if err != nil {
		log.Fatal(err)
	}
	content, err := io.ReadAll(payload)
	if err != nil {
		log.Fatal(err)
	}
	if err := payload.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(reference, size, string(content))

	if err := store.Delete(ctx, reference); err != nil {
		log.Fatal(err)
	}
	_, _, err = store.Open(ctx, reference)
	fmt.Println(errors.Is(err, gateway.ErrNotFound))
	// Output:
	// 0f3a 12 a large file
	// true
}

// A consumer of Kafka or NATS in another process opens the payload of a message
// wherever it is.
func ExampleStore_OpenMessage() {
	ctx := context.Background()
	store, err := claimcheck.New(ctx, claimcheck.Config{URL: "mem://"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	reference, err := store.Put(ctx, "0f3a", strings.NewReader("a large file"))
	if err != nil {
		log.Fatal(err)
	}
	large := message.NewMessage("1", nil)
	large.Metadata.Set(gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck)
	large.Metadata.Set(gateway.KeyPayloadReference, reference)

	for _, msg := range []*message.Message{large, message.NewMessage("2", []byte("small"))} {
		payload, size, err := store.OpenMessage(msg)
		if err != nil {
			log.Fatal(err)
		}
		content, err := io.ReadAll(payload)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(size, string(content))
		if err := payload.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 12 a large file
	// 5 small
}
