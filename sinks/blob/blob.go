// Package blob is the sink that archives messages as files in any bucket of
// gocloud.dev/blob: a directory, S3, Google Cloud Storage, Azure.
//
//	bucket, err := fileblob.OpenBucket("/var/lib/farm", &fileblob.Options{Metadata: fileblob.MetadataDontWrite})
//	…
//	sink, err := blob.New(blob.Config{Bucket: bucket})
//
// Each message becomes two objects: its payload, and beside it, with the suffix
// ".metadata.json", a [Sidecar] with topic, UUID, checksum and metadata. The sidecar is
// written last: a payload without one was not acknowledged, and gives way to the next attempt.
// Files are forced to the disk before the acknowledgment. A payload that is not in its
// message is streamed into the bucket; see Config.ClaimCheck.
//
// A message with gateway.KeyDedupID has a path made of topic and ID, which is written only
// once, so copies are recognized as long as the object is there. Without the ID each publish
// makes new objects.
package blob

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/filesync"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/sinks"
)

// New returns the sink. Errors wrap [ErrConfig].
//
// Topics are dots and segments of the sink's TopicSegment; others are
// sinks.ErrRejected. Whatever the bucket answers counts as
// sinks.ErrUnavailable.
func New(config Config) (sinks.Sink, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	path, err := config.template()
	if err != nil {
		return nil, err
	}
	if config.Durability == sinks.DurabilityUnknown {
		config.Durability, config.DurabilityNote = durability(config.Bucket, config.DurabilityNote)
	}
	pub := &publisher{
		bucket: config.Bucket, path: path, claimCheck: config.ClaimCheck, writing: make(map[string]chan struct{}),
	}
	return sinks.FromPublisher(config.Name, pub, sinks.PublisherConfig{
		Topics: config,
		Store:  pub.publish,
		Description: sinks.Description{
			MaxMessageSize: config.MaxMessageSize,
			OpensPayloads:  true,
			Durability:     config.Durability,
			DurabilityNote: config.DurabilityNote,
			Synced:         synced(config.Durability),
		},
		Health: func(ctx context.Context) error {
			accessible, err := config.Bucket.IsAccessible(ctx)
			if err == nil && !accessible {
				err = errors.New("bucket is not accessible")
			}
			return err
		},
	}), nil
}

// synced returns when what is stored survives a power cut.
func synced(d sinks.Durability) sinks.Synced {
	switch d {
	case sinks.DurabilitySynced:
		return sinks.SyncedAlways
	case sinks.DurabilityReplicated:
		return sinks.SyncedReplicas
	default:
		return sinks.SyncedUnknown
	}
}

// durability returns what is known of a bucket; note is the caller's own.
func durability(bucket *blob.Bucket, note string) (sinks.Durability, string) {
	switch {
	case !filesync.IsFiles(bucket):
		return sinks.DurabilityUnknown, note
	case runtime.GOOS == "windows": // has no way to force names to the disk
		return sinks.DurabilityDisk, cmp.Or(note, "files, forced to the disk before the acknowledgment; their names are not")
	}
	return sinks.DurabilitySynced, cmp.Or(note, "files, forced to the disk before the acknowledgment")
}

type publisher struct {
	bucket     *blob.Bucket
	path       *sinks.TopicTemplate
	claimCheck gateway.PayloadOpener

	mu      sync.Mutex
	writing map[string]chan struct{} // by key; closed when the message is written
}

func (p *publisher) Close() error { return nil }

func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	messages = msgctx.Apart(messages)
	keys := make([]string, len(messages))
	for i, msg := range messages { // all of them before the first is written
		key, err := render(p.path, topic, msg.Metadata)
		if err != nil {
			return fmt.Errorf("%w: %w", sinks.ErrRejected, err)
		}
		keys[i] = key
	}
	for i, msg := range messages {
		if _, err := p.store(topic, keys[i], msg); err != nil {
			return err
		}
	}
	return nil
}

// publish is Publish of one message.
func (p *publisher) publish(topic string, msg *message.Message) (sinks.Receipt, error) {
	key, err := render(p.path, topic, msg.Metadata)
	if err != nil {
		return sinks.Receipt{}, fmt.Errorf("%w: %w", sinks.ErrRejected, err)
	}
	there, err := p.store(topic, key, msg)
	return sinks.Receipt{Key: key, Duplicate: there}, err
}

// maxRewrites bounds how often writers of one message in different processes may
// undo each other's work.
const maxRewrites = 4

// repairTime is how long an attempt leaves a payload alone that does not fit its sidecar.
const repairTime = 50 * time.Millisecond

// store writes payload and sidecar so that they belong together, whatever earlier
// and other attempts with the same key have left: those need not carry the same
// bytes. duplicate says that both were there.
func (p *publisher) store(topic, key string, msg *message.Message) (duplicate bool, err error) {
	ctx := msg.Context()
	unlock, err := p.lock(ctx, key)
	if err != nil {
		return false, err
	}
	defer unlock()
	replace := false
	for range maxRewrites {
		about, there, err := p.storePayload(ctx, topic, key, msg, replace)
		if err != nil {
			return false, err
		}
		if there {
			there, whole, err := p.look(ctx, key)
			if there && !whole && err == nil { // another process may be about to repair it
				if err = backoff.Sleep(ctx, repairTime); err == nil {
					_, whole, err = p.look(ctx, key)
				}
			}
			if err != nil {
				return false, err
			}
			if whole { // this is a copy
				return true, filesync.Directories(ctx, p.bucket, key) // which the first one may not have come to
			}
			replace = true // that one was never acknowledged
			continue
		}
		if there, err = p.storeSidecar(ctx, key, about); err != nil {
			return false, err
		}
		if there {
			other, err := p.readSidecar(ctx, key)
			if err != nil {
				return false, err
			}
			if other.SHA256 != about.SHA256 {
				// Another process has stored the message meanwhile, or a power cut
				// has left the sidecar alone. Either payload will do, but with its
				// own sidecar.
				if err := p.bucket.Delete(ctx, key+SidecarSuffix); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
					return false, err
				}
				replace = true
				continue
			}
		}
		return false, filesync.Directories(ctx, p.bucket, key)
	}
	return false, errors.New("another process keeps writing the same message with another payload")
}

// lock makes attempts to write one message follow each other: one whose caller has
// left may still be at it.
func (p *publisher) lock(ctx context.Context, key string) (unlock func(), err error) {
	done := make(chan struct{})
	for {
		p.mu.Lock()
		other, busy := p.writing[key]
		if !busy {
			p.writing[key] = done
		}
		p.mu.Unlock()
		if !busy {
			break
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func() {
		p.mu.Lock()
		delete(p.writing, key)
		p.mu.Unlock()
		close(done)
	}, nil
}

// storePayload writes the payload and returns what goes into the sidecar. there says
// that there is a payload already, which stays unless it is to be replaced.
func (p *publisher) storePayload(ctx context.Context, topic, key string, msg *message.Message, replace bool) (about Sidecar, there bool, err error) {
	payload, err := p.open(ctx, msg)
	if err != nil {
		return Sidecar{}, false, err
	}
	digest, size := sha256.New(), int64(0)
	there, err = p.write(ctx, key, "application/octet-stream", replace, func(w io.Writer) error {
		size, err = io.Copy(io.MultiWriter(w, digest), payload)
		return err
	})
	if closeErr := payload.Close(); err == nil {
		err = closeErr
	}
	return sidecar(topic, msg, size, digest.Sum(nil)), there, err
}

// look reports whether there is a sidecar, and whether it fits the payload that is there.
// It need not: an attempt may have ended before it could remove the sidecar of another one.
func (p *publisher) look(ctx context.Context, key string) (there, whole bool, err error) {
	about, err := p.readSidecar(ctx, key)
	if err != nil || about.SHA256 == "" {
		return false, false, err
	}
	payload, err := p.bucket.NewReader(ctx, key, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return true, false, nil // gone again
	}
	if err != nil {
		return true, false, err
	}
	defer func() { _ = payload.Close() }() // was only read
	if payload.Size() != about.Size {
		return true, false, nil
	}
	digest := sha256.New()
	if _, err := io.Copy(digest, payload); err != nil {
		return true, false, err
	}
	return true, hex.EncodeToString(digest.Sum(nil)) == about.SHA256, nil
}

var (
	errNoOpener = fmt.Errorf("%w: the payload is not in the message and there is nothing to open it with: configure a claim check", sinks.ErrRejected)
	errChanged  = fmt.Errorf("%w: the SHA-256 of the stored payload differs from that in the message", sinks.ErrRejected)
)

// open opens the payload of a message, wherever it is.
func (p *publisher) open(ctx context.Context, msg *message.Message) (io.ReadCloser, error) {
	if msg.Metadata[gateway.KeyPayloadMode] == "" || len(msg.Payload) > 0 {
		return io.NopCloser(bytes.NewReader(msg.Payload)), nil
	}
	open := payloadref.Find(ctx, msg.Metadata, p.claimCheck)
	if open == nil {
		return nil, errNoOpener
	}
	payload, _, err := open(ctx)
	if err != nil {
		return nil, err
	}
	if digest, ok := payloadref.ParseDigest(msg.Metadata[gateway.KeyPayloadSHA256]); ok {
		payload = payloadref.Verify(payload, digest, errChanged)
	}
	return payload, nil
}

// write writes an object, as a whole or not at all. there says that there is one
// already, which stays unless it is to be replaced.
func (p *publisher) write(ctx context.Context, key, contentType string, replace bool, fill func(io.Writer) error) (there bool, err error) {
	err = filesync.Write(ctx, p.bucket, key, blob.WriterOptions{ContentType: contentType, IfNotExist: !replace}, fill)
	if gcerrors.Code(err) == gcerrors.FailedPrecondition {
		return true, nil
	}
	return false, err
}
