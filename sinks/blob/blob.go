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
// Files are forced to the disk before the acknowledgement. A payload that is not in its
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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/filesync"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/sinks"
)

const (
	sinkName = "blob"

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
	// minElement is the shortest that elements are cut to: room for the digest, and something to read.
	minElement = 50
	// digestMark begins the digest of an element that was cut. No escape does: two upper-case
	// hexadecimal digits follow its mark.
	digestMark = "%h"
)

// reservedSuffixes are ends of path elements that mean something else: a sidecar, and, to the driver of file
// buckets, attributes and, with two dots, no end of the element.
var reservedSuffixes = []string{SidecarSuffix, ".attrs", ".."}

// ErrConfig is wrapped by the errors of New.
var ErrConfig = errors.New("sinks/blob: bad configuration")

// errBadKey is the cause of sinks.ErrRejected for messages without a legal key.
var errBadKey = errors.New("invalid object key")

// Config configures the sink.
type Config struct {
	// Bucket holds the objects. Required. It is not closed.
	Bucket *blob.Bucket `yaml:"-"`

	// Path is the template of the key of a payload, with the variables of
	// topics and {topic}, {id} and {date}. The topic has '/' for '.'; the ID
	// is derived from x-router-dedup-id, or else unique and ascending; the date is the day of
	// writing in UTC as 2006-01-02 (with it a copy on another day is not recognized). It has
	// to contain {topic} and {id}. Default [DefaultPath].
	//
	// A value adds no path elements: `../x` becomes `%2E%2E%2Fx`. An element that is longer than 200
	// bytes then, or shorter where the key would exceed 900 bytes, is cut and ends with a digest.
	Path string `yaml:"path"`

	// ClaimCheck opens payloads that messages refer to (gateway.KeyPayloadReference).
	// What a subscriber of this process delivered is opened without it. A message
	// whose payload cannot be opened without it fails with sinks.ErrRejected.
	ClaimCheck gateway.PayloadOpener `yaml:"-"`

	// MaxMessageSize is the largest message in bytes, with its metadata, without payloads
	// elsewhere. Default, and 0: no limit.
	MaxMessageSize int64 `yaml:"max_message_size" unit:"bytes"`

	// Durability is what the bucket promises. It appears in Describe. Default: synced for
	// buckets of files, else unknown.
	Durability sinks.Durability `yaml:"durability" enum:"unknown,memory,disk,synced,replicated"`
	// DurabilityNote explains Durability.
	DurabilityNote string `yaml:"-"`
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

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	return c
}

func (c *Config) setDefaults() {
	if c.Path == "" {
		c.Path = DefaultPath
	}
}

func (c Config) template() (*sinks.TopicTemplate, error) {
	variables := sinks.TopicVariables()
	variables["topic"], variables["id"], variables["date"] = topicVariable, idVariable, dateVariable
	return sinks.ParseTemplate(c.Path, variables)
}

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	c.setDefaults()
	var e validate.Errors
	e.Check(c.Bucket != nil, "Bucket", "is required")
	var bad *sinks.TemplateError
	path, err := c.template()
	if errors.As(err, &bad) {
		e.AddCause(bad, "Path", "%s", bad.Reason)
	} else if err := try(path, "x"); err != nil {
		e.AddCause(err, "Path", "makes keys that no bucket takes: %s", err)
	}
	for _, needed := range []string{"{topic}", "{id}"} {
		e.Check(strings.Contains(c.Path, needed), "Path", "must contain %s, or messages would overwrite each other", needed)
	}
	validate.NotNegative(&e, "MaxMessageSize", c.MaxMessageSize)
	return e.Err(ErrConfig)
}

// New returns the sink. Errors wrap [ErrConfig].
//
// Topics are dots and segments of the sink's TopicSegment; others are
// sinks.ErrRejected. Whatever the bucket answers counts as
// sinks.ErrUnavailable.
func New(config Config) (sinks.Sink, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	path, err := config.template()
	if err != nil {
		return nil, err
	}
	if config.Durability == sinks.DurabilityUnknown {
		config.Durability, config.DurabilityNote = durability(config.Bucket, config.DurabilityNote)
	}
	pub := &publisher{
		bucket: config.Bucket, path: path, claimCheck: config.ClaimCheck, files: filesync.IsFiles(config.Bucket),
		writing: make(map[string]chan struct{}),
	}
	return sinks.FromPublisher(sinkName, pub, sinks.PublisherConfig{
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
		return sinks.DurabilityDisk, cmp.Or(note, "files, forced to the disk before the acknowledgement; their names are not")
	}
	return sinks.DurabilitySynced, cmp.Or(note, "files, forced to the disk before the acknowledgement")
}

type publisher struct {
	bucket     *blob.Bucket
	path       *sinks.TopicTemplate
	claimCheck gateway.PayloadOpener
	files      bool

	mu      sync.Mutex
	writing map[string]chan struct{} // by key; closed when the message is written
}

func (p *publisher) Close() error { return nil }

func (p *publisher) Publish(topic string, messages ...*message.Message) error {
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
				return true, p.syncDirectories(ctx, key) // which the first one may not have come to
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
		return false, p.syncDirectories(ctx, key)
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

// storeSidecar writes the sidecar unless there is one.
func (p *publisher) storeSidecar(ctx context.Context, key string, about Sidecar) (there bool, err error) {
	text, err := json.Marshal(about)
	if err != nil {
		return false, fmt.Errorf("%w: %w", sinks.ErrRejected, err)
	}
	return p.write(ctx, key+SidecarSuffix, "application/json", false, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

func (p *publisher) readSidecar(ctx context.Context, key string) (about Sidecar, err error) {
	text, err := p.bucket.ReadAll(ctx, key+SidecarSuffix)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return about, nil // gone again, with whatever it said
	}
	if err == nil && json.Unmarshal(text, &about) != nil {
		about = Sidecar{} // fits nothing
	}
	return about, err
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

// syncDirectories makes the names of payload and sidecar durable.
func (p *publisher) syncDirectories(ctx context.Context, key string) error {
	if !p.files {
		return nil
	}
	return filesync.Directories(ctx, p.bucket, key)
}

var (
	errNoOpener = fmt.Errorf("%w: the payload is not in the message and there is nothing to open it with: set blob.Config.ClaimCheck", sinks.ErrRejected)
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

// write writes an object, as a whole or not at all. there says that there is one
// already, which stays unless it is to be replaced.
func (p *publisher) write(ctx context.Context, key, contentType string, replace bool, fill func(io.Writer) error) (there bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var file filesync.Object
	w, err := p.bucket.NewWriter(ctx, key, &blob.WriterOptions{ContentType: contentType, IfNotExist: !replace, BeforeWrite: file.BeforeWrite})
	if err != nil {
		return false, err
	}
	if err = fill(w); err == nil {
		err = file.Sync()
	}
	if err != nil {
		cancel() // Close would make what has come so far the object
	}
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	if gcerrors.Code(err) == gcerrors.FailedPrecondition {
		return true, nil
	}
	return false, err
}

// TopicSegment is that of [sinks.DefaultSegments].
func (Config) TopicSegment(value string) string { return sinks.DefaultSegments.Escape(value) }

// CheckTopic implements [sinks.Topics]. It also covers the fixed parts and fallbacks of Path.
func (c Config) CheckTopic(topic string) error {
	c.setDefaults()
	path, err := c.template()
	if err != nil {
		return sinks.NewError(sinkName, topic, sinks.ErrRejected, err)
	}
	if err := try(path, topic); err != nil {
		return sinks.NewError(sinkName, topic, sinks.ErrRejected, err)
	}
	return nil
}

// try returns an error if no message in the topic can have a key, or none without the values that have a fallback.
func try(path *sinks.TopicTemplate, topic string) error {
	for _, values := range path.Samples() {
		if _, err := render(path, topic, values); err != nil {
			return err
		}
	}
	return nil
}

// Required returns the metadata keys without which a message has no key, by the names of their variables in
// Path. It returns none for a Path that is not valid.
func (c Config) Required() map[string]string {
	c.setDefaults()
	path, err := c.template()
	if err != nil {
		return nil
	}
	required := path.Required()
	maps.DeleteFunc(required, func(name, _ string) bool { return name == "topic" || name == "id" || name == "date" })
	return required
}

// Key returns the key of a message's payload in the topic. Without [gateway.KeyDedupID] it is another one each time.
// The error matches [sinks.ErrRejected]: the message cannot be stored.
func (c Config) Key(topic string, msg *message.Message) (string, error) {
	c.setDefaults()
	path, err := c.template()
	if err == nil {
		var key string
		if key, err = render(path, topic, msg.Metadata); err == nil {
			return key, nil
		}
	}
	return "", sinks.NewError(sinkName, topic, sinks.ErrRejected, err)
}

// render returns the key of the payload of a message with the metadata.
func render(path *sinks.TopicTemplate, topic string, metadata message.Metadata) (string, error) {
	if err := checkTopic(topic); err != nil {
		return "", err
	}
	values := maps.Clone(metadata)
	if values == nil {
		values = message.Metadata{}
	}
	values[topicVariable] = topic
	values[dateVariable] = time.Now().UTC().Format(time.DateOnly)
	if id := metadata[gateway.KeyDedupID]; id != "" {
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
	key, err := path.Render(values, func(name, value string) string {
		if name == "topic" { // made of escaped segments, as checked
			return strings.ReplaceAll(topic, ".", "/")
		}
		return escape(value)
	})
	if err != nil {
		return "", err
	}
	return fit(key)
}

// fit makes each element of a key, and the key itself, short enough. It refuses keys that no bucket takes.
func fit(key string) (string, error) {
	elements := strings.Split(key, "/")
	for i, element := range elements {
		if element == "" || element == "." || element == ".." {
			return "", fmt.Errorf("%w: it has a path element that is empty, '.' or '..'", errBadKey)
		}
		if strings.ContainsFunc(element, unicode.IsControl) || !utf8.ValidString(element) {
			return "", fmt.Errorf("%w: it has a control character, or is no UTF-8", errBadKey)
		}
		for _, suffix := range reservedSuffixes {
			if rest, reserved := strings.CutSuffix(element, suffix); reserved {
				elements[i] = rest + "%2E" + suffix[1:]
			}
		}
	}
	for limit := maxElement; limit >= minElement; limit /= 2 {
		short := make([]string, len(elements))
		for i, element := range elements {
			short[i] = cut(element, limit)
		}
		if key := strings.Join(short, "/"); len(key) <= maxKey {
			return key, nil
		}
	}
	return "", fmt.Errorf("%w: %d bytes long, the limit is %d", errBadKey, len(key), maxKey)
}

// cut returns an element of at most limit bytes: a longer one ends with its digest.
func cut(element string, limit int) string {
	if len(element) <= limit {
		return element
	}
	digest := sha256.Sum256([]byte(element))
	tail := digestMark + hex.EncodeToString(digest[:16])
	return strings.ToValidUTF8(element[:limit-len(tail)], "") + tail
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

// escapes makes values parts of path elements. A dot may stay, but not in front:
// no value becomes "..", or hidden.
var escapes = sinks.Segments{Mark: '%', Legal: func(b byte) bool {
	return b == '.' || sinks.DefaultSegments.Legal(b)
}}

func escape(value string) string {
	escaped := escapes.Escape(value)
	if rest, ok := strings.CutPrefix(escaped, "."); ok {
		escaped = "%2E" + rest
	}
	return escaped
}
