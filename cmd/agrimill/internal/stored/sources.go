package stored

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	gcblob "gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/internal/spool"
	"github.com/agrimill/agrimill/sinks/blob"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
)

// natsCopies reads messages of JetStream one by one, without a consumer.
type natsCopies struct {
	conn *natsgo.Conn
	js   jetstream.JetStream
}

func newNATSCopies(cfg config.NATS, wait time.Duration) (copySource, error) {
	if wait > 0 {
		cfg.ConnectTimeout = wait
	}
	conn, err := cfg.Connect("agrimill inspect", natsgo.NoReconnect())
	if err != nil {
		return nil, err
	}
	js, err := nats.JetStream(conn, cfg.Domain)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &natsCopies{conn, js}, nil
}

func (s *natsCopies) get(ctx context.Context, at journal.Location) (*message.Message, *spool.Payload, error) {
	stream, err := s.js.Stream(ctx, at.Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, nil, absence(gone + "the stream was deleted")
	case err != nil:
		return nil, nil, err
	}
	raw, err := stream.GetMsg(ctx, at.Sequence)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, nil, absence(gone + "it was deleted, or the limits of the stream were reached")
	case err != nil:
		return nil, nil, err
	case raw.Subject != at.Subject:
		return nil, nil, errOther
	}
	msg, err := nats.Marshaler{}.Unmarshal(&natsgo.Msg{Subject: raw.Subject, Header: raw.Header, Data: raw.Data})
	return msg, nil, err
}

func (s *natsCopies) close() error {
	s.conn.Close()
	return nil
}

// kafkaCopies reads records of Kafka one by one, outside of any consumer group.
type kafkaCopies struct {
	client   sarama.Client
	consumer sarama.Consumer
}

func newKafkaCopies(cfg config.Kafka, wait time.Duration) (copySource, error) {
	connection, err := cfg.Connection()
	if err != nil {
		return nil, err
	}
	settings := connection.ClientConfig()
	settings.Metadata.Full, settings.Metadata.AllowAutoTopicCreation = false, false
	settings.Consumer.Return.Errors, settings.Consumer.MaxWaitTime = true, 50*time.Millisecond // to close it ends a request
	if wait > 0 {
		settings.Net.DialTimeout, settings.Net.ReadTimeout, settings.Net.WriteTimeout = wait, wait, wait
		settings.Metadata.Timeout, settings.Metadata.Retry.Max = wait, 1
	}
	client, err := sarama.NewClient(connection.Brokers, settings)
	if err != nil {
		return nil, err
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &kafkaCopies{client, consumer}, nil
}

func (s *kafkaCopies) get(ctx context.Context, at journal.Location) (*message.Message, *spool.Payload, error) {
	// Asked for, because a consumer that begins where there is nothing yet waits.
	for _, end := range []struct {
		time    int64
		missing func(offset int64) bool
		why     string
	}{
		{sarama.OffsetOldest, func(oldest int64) bool { return at.Offset < oldest }, "it was deleted, or the retention time of the topic is over"},
		{sarama.OffsetNewest, func(next int64) bool { return at.Offset >= next }, "the topic was deleted and made again"},
	} {
		switch offset, err := s.client.GetOffset(at.Topic, at.Partition, end.time); {
		case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
			return nil, nil, absence(gone + "the topic was deleted")
		case err != nil:
			return nil, nil, err
		case end.missing(offset):
			return nil, nil, absence(gone + end.why)
		}
	}
	from, err := s.consumer.ConsumePartition(at.Topic, at.Partition, at.Offset)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		from.AsyncClose()
		for range from.Messages() { // until it has ended
		}
		for range from.Errors() { // which the closing may add to
		}
	}()
	select {
	case record := <-from.Messages():
		if record == nil || record.Offset != at.Offset { // the next one that is still there
			return nil, nil, absence(gone + "the topic was compacted")
		}
		msg, err := kafka.Marshaler{}.Unmarshal(record)
		return msg, nil, err
	case err := <-from.Errors():
		return nil, nil, err
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
}

func (s *kafkaCopies) close() error { return errors.Join(s.consumer.Close(), s.client.Close()) }

type blobCopies struct {
	bucket *gcblob.Bucket
	limits spool.Limits
}

func newBlobCopies(ctx context.Context, cfg config.Blob, limits spool.Limits) (copySource, error) {
	address, err := url.Parse(string(cfg.URL))
	if err != nil {
		return nil, errors.New("the bucket address is not a URL")
	}
	if address.Scheme == "file" { // nothing is created
		query := address.Query()
		query.Del("create_dir")
		query.Set("metadata", "skip")
		address.RawQuery = query.Encode()
	}
	bucket, err := gcblob.OpenBucket(ctx, address.String())
	if err != nil {
		return nil, err
	}
	return &blobCopies{bucket, limits}, nil
}

// maxSidecar is the largest sidecar that is read, in bytes.
const maxSidecar = 16 << 20

func (s *blobCopies) get(ctx context.Context, at journal.Location) (_ *message.Message, stored *spool.Payload, err error) {
	about, err := s.sidecar(ctx, at.Key+blob.SidecarSuffix)
	if err != nil {
		return nil, nil, err
	}
	object, err := s.bucket.NewReader(ctx, at.Key, nil)
	switch {
	case gcerrors.Code(err) == gcerrors.NotFound:
		return nil, nil, absence(gone + "the object was deleted")
	case err != nil:
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	from := io.ReadCloser(object)
	if digest, ok := payloadref.ParseDigest(about.SHA256); ok {
		from = payloadref.Verify(object, digest, errors.New("the SHA-256 of the object differs from that in its "+blob.SidecarSuffix))
	}
	if stored, err = spool.Buffer(spool.StreamOf(from), "the payload", s.limits); err != nil {
		return nil, nil, err
	}
	msg := message.NewMessage(about.UUID, nil)
	msg.Metadata = about.AllMetadata()
	return msg, stored, nil
}

// sidecar reads what the sink wrote beside an object, and before which it had not stored it.
func (s *blobCopies) sidecar(ctx context.Context, key string) (about blob.Sidecar, err error) {
	object, err := s.bucket.NewReader(ctx, key, nil)
	switch {
	case gcerrors.Code(err) == gcerrors.NotFound:
		return about, absence(gone + "the object, or its " + blob.SidecarSuffix + ", was deleted")
	case err != nil:
		return about, err
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	if err := json.NewDecoder(io.LimitReader(object, maxSidecar)).Decode(&about); err != nil {
		return about, fmt.Errorf("the %s of the object is damaged", blob.SidecarSuffix)
	}
	return about, nil
}

func (s *blobCopies) close() error { return s.bucket.Close() }
