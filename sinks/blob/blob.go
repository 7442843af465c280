// Package blob is the sink that archives messages as files in any bucket of
// gocloud.dev/blob: a directory, S3, Google Cloud Storage, Azure.
//
// Each message becomes two objects: its payload, and beside it, with the suffix
// ".metadata.json", a [Sidecar] with topic, UUID and metadata. The sidecar is
// written last: a payload without one is a message that was not acknowledged.
//
// A payload that is not in its message (claim check, lazy) is opened and streamed
// into the bucket, so that the file is always the payload; see Config.ClaimCheck.
//
// A message with sinks.KeyDedupID has a path of its own made of topic and ID,
// which is written only once, so copies are recognised for as long as the object
// is there. Without the ID each publish makes new objects.
package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/sinks"
)

const (
	// DefaultPath is the default of Config.Path.
	DefaultPath = "{topic}/{id}/{filename|payload}"

	// SidecarSuffix is what the key of a sidecar has behind that of the payload.
	SidecarSuffix = ".metadata.json"
)

const (
	// maxElement and maxKey keep keys within the limits of common file systems
	// (255 bytes) and object stores (1024 bytes), with room for SidecarSuffix
	// and the names of temporary files.
	maxElement = 200
	maxKey     = 900
)

// ErrConfig is wrapped by the errors of New.
var ErrConfig = errors.New("sinks/blob: bad configuration")

// errBadKey is the cause of sinks.ErrRejected for messages without a legal key.
var errBadKey = errors.New("no legal object key")

// Config configures the sink.
type Config struct {
	// Bucket holds the objects. Required. It is not closed.
	Bucket *blob.Bucket

	// Path is the template of the key of a payload, in the language of
	// sinks.ParseTopicTemplate, whose variables it has and three more: {topic},
	// the topic with '/' for '.'; {id}, derived from sinks.KeyDedupID, or else
	// unique and ascending; {date}, the day of writing in UTC as 2006-01-02 (with
	// it a copy on another day is not recognised). It has to contain {topic} and
	// {id}. Default [DefaultPath].
	//
	// Values are escaped to one path element each: `../x` becomes `%2E%2E%2Fx`.
	// What is longer than 200 bytes then is cut and ends with a digest.
	Path string

	// ClaimCheck opens payloads that messages refer to (gateway.KeyPayloadReference).
	// What a subscriber of this process delivered is opened without it. A message
	// whose payload cannot be opened for want of it is sinks.ErrRejected.
	ClaimCheck ClaimCheck

	// MaxMessageSize is the largest message in bytes, metadata included, payloads
	// that are not in the message aside. Default, and 0: no limit.
	MaxMessageSize int64

	// Durability and DurabilityNote are what the bucket promises; they appear in
	// Describe. Default: unknown.
	Durability     sinks.Durability
	DurabilityNote string
}

// ClaimCheck opens payloads that are stored outside of the messages. Package
// sinks/claimcheck has one.
type ClaimCheck interface {
	// Open returns the payload and its size in bytes, -1 when it is not known.
	Open(ctx context.Context, reference string) (payload io.ReadCloser, size int64, err error)
}

// Sidecar is the content of the object beside a payload, as JSON.
type Sidecar struct {
	Topic string `json:"topic"`
	UUID  string `json:"uuid"`
	Size  int64  `json:"size"`
	// SHA256 of the payload, in hexadecimal.
	SHA256 string `json:"sha256"`
	// Metadata are the entries that are UTF-8, but those that say that the payload
	// is elsewhere: it is here now.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Bytes are the other entries, names and values in base64.
	Bytes []BytesEntry `json:"metadata_bytes,omitempty"`
}

// BytesEntry is one metadata entry that is not UTF-8.
type BytesEntry struct {
	Name  []byte `json:"name"`
	Value []byte `json:"value"`
}

// AllMetadata returns Metadata and Bytes together.
func (s Sidecar) AllMetadata() message.Metadata {
	all := make(message.Metadata, len(s.Metadata)+len(s.Bytes))
	maps.Copy(all, s.Metadata)
	for _, entry := range s.Bytes {
		all[string(entry.Name)] = string(entry.Value)
	}
	return all
}

// Variables of Path beside those of topics, as metadata keys that exist only
// while the template is applied.
const (
	topicVariable = "\x00topic"
	idVariable    = "\x00id"
	dateVariable  = "\x00date"
)

// New returns the sink. Errors wrap [ErrConfig].
//
// Topics are dots and segments of the sink's TopicSegment; others are
// sinks.ErrRejected. Whatever the bucket answers counts as
// sinks.ErrUnavailable.
func New(config Config) (sinks.Sink, error) {
	if config.Bucket == nil {
		return nil, fmt.Errorf("%w: Bucket is missing", ErrConfig)
	}
	if config.MaxMessageSize < 0 {
		return nil, fmt.Errorf("%w: MaxMessageSize must not be negative", ErrConfig)
	}
	if config.Path == "" {
		config.Path = DefaultPath
	}
	variables := sinks.TopicVariables()
	variables["topic"], variables["id"], variables["date"] = topicVariable, idVariable, dateVariable
	path, err := sinks.ParseTemplate(config.Path, variables)
	if err != nil {
		return nil, fmt.Errorf("%w: Path: %w", ErrConfig, err)
	}
	for _, needed := range []string{"{topic}", "{id}"} {
		if !strings.Contains(config.Path, needed) {
			return nil, fmt.Errorf("%w: Path must contain %s, or messages would overwrite each other", ErrConfig, needed)
		}
	}
	return sinks.FromPublisher("blob", &publisher{bucket: config.Bucket, path: path, claimCheck: config.ClaimCheck},
		sinks.WithDescription(sinks.Description{
			MaxMessageSize: config.MaxMessageSize,
			Durability:     config.Durability,
			DurabilityNote: config.DurabilityNote,
		}),
		sinks.WithHealth(func(ctx context.Context) error {
			accessible, err := config.Bucket.IsAccessible(ctx)
			if err == nil && !accessible {
				err = errors.New("bucket is not accessible")
			}
			return err
		})), nil
}

type publisher struct {
	bucket     *blob.Bucket
	path       *sinks.TopicTemplate
	claimCheck ClaimCheck
}

func (p *publisher) Close() error { return nil }

// OpensPayloads tells the router to leave payloads where they are.
func (p *publisher) OpensPayloads() bool { return true }

func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	keys := make([]string, len(messages))
	for i, msg := range messages { // all of them before the first is written
		key, err := p.key(topic, msg)
		if err != nil {
			return fmt.Errorf("%w: %w", sinks.ErrRejected, err)
		}
		keys[i] = key
	}
	for i, msg := range messages {
		if err := p.store(topic, keys[i], msg); err != nil {
			return err
		}
	}
	return nil
}

func (p *publisher) store(topic, key string, msg *message.Message) error {
	ctx := msg.Context()
	payload, err := p.open(ctx, msg)
	if err != nil {
		return err
	}
	digest, size := sha256.New(), int64(0)
	err = p.write(ctx, key, "application/octet-stream", func(w io.Writer) error {
		size, err = io.Copy(io.MultiWriter(w, digest), payload)
		return err
	})
	if closeErr := payload.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(sidecar(topic, msg, size, digest.Sum(nil)))
	if err != nil {
		return fmt.Errorf("%w: %w", sinks.ErrRejected, err)
	}
	return p.write(ctx, key+SidecarSuffix, "application/json", func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

var (
	errNoOpener = fmt.Errorf("%w: the payload is not in the message and there is nothing to open it with: set blob.Config.ClaimCheck", sinks.ErrRejected)
	errChanged  = fmt.Errorf("%w: the stored payload has another SHA-256 than the message tells", sinks.ErrRejected)
)

// open opens the payload of a message, wherever it is.
func (p *publisher) open(ctx context.Context, msg *message.Message) (io.ReadCloser, error) {
	mode := msg.Metadata[gateway.KeyPayloadMode]
	if mode == "" || len(msg.Payload) > 0 {
		return io.NopCloser(bytes.NewReader(msg.Payload)), nil
	}
	open := payloadref.FromContext(ctx)
	if mode == gateway.PayloadModeClaimCheck && p.claimCheck != nil {
		open = func(ctx context.Context) (io.ReadCloser, int64, error) {
			return p.claimCheck.Open(ctx, msg.Metadata[gateway.KeyPayloadReference])
		}
	}
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

func sidecar(topic string, msg *message.Message, size int64, digest []byte) Sidecar {
	s := Sidecar{Topic: topic, UUID: msg.UUID, Size: size, SHA256: hex.EncodeToString(digest)}
	for _, name := range slices.Sorted(maps.Keys(msg.Metadata)) {
		if len(msg.Payload) == 0 && (name == gateway.KeyPayloadMode || name == gateway.KeyPayloadReference) {
			continue
		}
		value := msg.Metadata[name]
		if utf8.ValidString(name) && utf8.ValidString(value) {
			if s.Metadata == nil {
				s.Metadata = map[string]string{}
			}
			s.Metadata[name] = value
		} else {
			s.Bytes = append(s.Bytes, BytesEntry{Name: []byte(name), Value: []byte(value)})
		}
	}
	return s
}

// write writes an object unless it exists: then this is a copy, or the first
// attempt came this far. Nothing is there after a failure.
func (p *publisher) write(ctx context.Context, key, contentType string, fill func(io.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := p.bucket.NewWriter(ctx, key, &blob.WriterOptions{ContentType: contentType, IfNotExist: true})
	if err != nil {
		return err
	}
	if err = fill(w); err != nil {
		cancel() // Close would make what has come so far the object
	}
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	if gcerrors.Code(err) == gcerrors.FailedPrecondition {
		return nil
	}
	return err
}

// key returns the key of a message's payload.
func (p *publisher) key(topic string, msg *message.Message) (string, error) {
	if err := checkTopic(topic); err != nil {
		return "", err
	}
	values := maps.Clone(msg.Metadata)
	if values == nil {
		values = message.Metadata{}
	}
	values[topicVariable] = topic
	values[dateVariable] = time.Now().UTC().Format(time.DateOnly)
	if id := msg.Metadata[sinks.KeyDedupID]; id != "" {
		// A digest, so that an ID never looks like the unique ones below.
		digest := sha256.Sum256([]byte(id))
		values[idVariable] = hex.EncodeToString(digest[:16])
	} else {
		unique, err := uuid.NewV7()
		if err != nil {
			return "", err
		}
		values[idVariable] = unique.String()
	}
	key, err := p.path.Render(values, func(name, value string) string {
		if name == "topic" { // made of escaped segments, as checked
			return strings.ReplaceAll(topic, ".", "/")
		}
		return element(value)
	})
	if err != nil {
		return "", err
	}
	if len(key) > maxKey {
		return "", fmt.Errorf("%w: %d bytes long, the limit is %d", errBadKey, len(key), maxKey)
	}
	for part := range strings.SplitSeq(key, "/") {
		if len(part) > maxElement+len(".") || part == "" || part == "." || part == ".." {
			return "", fmt.Errorf("%w: it has a path element that is empty, too long, or a way up", errBadKey)
		}
	}
	return key, nil
}

// checkTopic returns an error unless topic consists of segments as
// sinks.DefaultSegments makes them.
func checkTopic(topic string) error {
	for segment := range strings.SplitSeq(topic, ".") {
		if _, err := sinks.DefaultSegments.Unescape(segment); err != nil {
			return err
		}
	}
	return nil
}

// elements escapes values to path elements. A dot may stay, but not in front:
// no value becomes "..", or hidden. Nor at the end of what looks like the suffix
// of a sidecar.
var elements = sinks.Segments{Mark: '%', Legal: func(b byte) bool {
	return b == '.' || sinks.DefaultSegments.Legal(b)
}}

func element(value string) string {
	escaped := elements.Escape(value)
	if rest, ok := strings.CutPrefix(escaped, "."); ok {
		escaped = "%2E" + rest
	}
	if rest, ok := strings.CutSuffix(escaped, SidecarSuffix); ok {
		escaped = rest + "%2E" + SidecarSuffix[1:]
	}
	if len(escaped) > maxElement {
		digest := sha256.Sum256([]byte(value))
		tail := "%" + hex.EncodeToString(digest[:16])
		escaped = escaped[:maxElement-len(tail)] + tail
	}
	return escaped
}
