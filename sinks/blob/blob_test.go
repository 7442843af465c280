package blob_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"
	gcblob "gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/blob"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stored is one message as it lies in the bucket.
type stored struct {
	key     string
	payload []byte
	blob.Sidecar
}

// readBucket returns the messages that have a sidecar, in the order of keys.
func readBucket(t *testing.T, bucket *gcblob.Bucket, prefix string) []stored {
	t.Helper()
	ctx := context.Background()
	var all []stored
	it := bucket.List(&gcblob.ListOptions{Prefix: prefix})
	for {
		object, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		key, isSidecar := strings.CutSuffix(object.Key, blob.SidecarSuffix)
		if !isSidecar {
			continue
		}
		s := stored{key: key}
		text := testkit.Must(bucket.ReadAll(ctx, object.Key))(t)
		testkit.NoError(t, json.Unmarshal(text, &s.Sidecar))
		s.payload = testkit.Must(bucket.ReadAll(ctx, key))(t)
		if digest := sha256.Sum256(s.payload); s.SHA256 != hex.EncodeToString(digest[:]) || s.Size != int64(len(s.payload)) {
			t.Errorf("%s: digest or size do not fit the payload", key)
		}
		all = append(all, s)
	}
	return all
}

type backend struct {
	sinktest.NoFaults
	bucket *gcblob.Bucket
	config blob.Config
}

func (b backend) NewSink(t *testing.T) sinks.Sink {
	t.Helper()
	b.config.Bucket = b.bucket
	sink := testkit.Must(blob.New(b.config))(t)
	t.Cleanup(func() { _ = sink.Close() })
	return sink
}

// Read sorts by the element of the key that ascends.
func (b backend) Read(t *testing.T, topic string) []*message.Message {
	t.Helper()
	all := readBucket(t, b.bucket, strings.ReplaceAll(topic, ".", "/")+"/")
	id := func(s stored) string {
		parts := strings.Split(s.key, "/")
		return parts[len(parts)-2]
	}
	if len(all) > 0 && all[0].AllMetadata()[gateway.KeyDedupID] == "" {
		slices.SortStableFunc(all, func(a, b stored) int { return cmp.Compare(id(a), id(b)) })
	}
	var messages []*message.Message
	for _, s := range all {
		if s.Topic == topic {
			msg := message.NewMessage(s.UUID, s.payload)
			msg.Metadata = s.AllMetadata()
			messages = append(messages, msg)
		}
	}
	return messages
}

// atReceipt reads the object of a key.
func atReceipt(t *testing.T, b sinktest.Backend, topic string, receipt sinks.Receipt) *message.Message {
	t.Helper()
	payload, err := b.(backend).bucket.ReadAll(t.Context(), receipt.Key)
	if err != nil || !strings.HasPrefix(receipt.Key, strings.ReplaceAll(topic, ".", "/")+"/") {
		t.Fatalf("key %q: %v", receipt.Key, err)
	}
	return message.NewMessage("", payload)
}

func openDirectory(t *testing.T) (*gcblob.Bucket, string) {
	t.Helper()
	dir := t.TempDir()
	bucket := testkit.Must(fileblob.OpenBucket(dir, &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite}))(t)
	t.Cleanup(func() { _ = bucket.Close() }) // an error when it is closed already
	return bucket, dir
}

func TestConformance(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) *gcblob.Bucket{
		"memory":    func(*testing.T) *gcblob.Bucket { return memblob.OpenBucket(nil) },
		"directory": func(t *testing.T) *gcblob.Bucket { t.Helper(); b, _ := openDirectory(t); return b },
	} {
		t.Run(name, func(t *testing.T) {
			sinktest.Run(t, sinktest.Suite{
				New: func(t *testing.T, settings sinktest.Settings) sinktest.Backend {
					t.Helper()
					return backend{bucket: open(t), config: blob.Config{MaxMessageSize: settings.MaxMessageSize}}
				},
				Features: sinktest.Features{
					UUID: true, Metadata: true, MaxMessageSize: true, AtReceipt: atReceipt,
					ReservedNames:        []string{"x-router-filename", "Content-Type"},
					RejectedTopics:       []string{"", ".", "a..b", "../x", "a/b", "a b", "%41", strings.Repeat("abc.", 300) + "a"},
					UnescapeTopicSegment: sinks.DefaultSegments.Unescape,
				},
			})
		})
	}
}

func TestCopiesAreRecognised(t *testing.T) {
	bucket, _ := openDirectory(t)
	sink := backend{bucket: bucket}.NewSink(t)
	publish := func(topic, payload, id string) {
		t.Helper()
		msg := message.NewMessage(payload, []byte(payload))
		msg.Metadata[gateway.KeyDedupID] = id
		testkit.NoError(t, sink.Publish(topic, msg))
	}
	publish("a.b", "first", "id/../1")
	publish("a.b", "copy", "id/../1")
	publish("a.b", "other", "id/../2")
	publish("c.d", "elsewhere", "id/../1")
	var got []string
	for _, s := range readBucket(t, bucket, "") {
		got = append(got, s.Topic+" "+string(s.payload))
	}
	slices.Sort(got)
	testkit.Equal(t, got, []string{"a.b first", "a.b other", "c.d elsewhere"})
}

// TestHostileNames: nothing that a sender chooses leaves the directory, hides a
// file or makes two messages one.
func TestHostileNames(t *testing.T) {
	bucket, dir := openDirectory(t)
	sink := testkit.Must(blob.New(blob.Config{Bucket: bucket, Path: "{topic}/{type|none}/{id}/{filename|payload}"}))(t)
	defer sink.Close()
	names := []string{
		"..", ".", "../../etc/passwd", "/etc/passwd", "..\\..\\x", "C:\\x", ".hidden", "a/b", "a\x00b", "\r\n", " ", "~", "-rf", "*",
		"taskdata.zip", "taskdata.zip.metadata.json", "payload", "payload.metadata.json", "Grünfläche.shp", "\xff", "%2E%2E", "tenant.type",
		strings.Repeat("x", 300), strings.Repeat("x", 301), strings.Repeat("ä", 100), strings.Repeat("../", 100),
	}
	for _, name := range names {
		msg := message.NewMessage("1", []byte(name))
		msg.Metadata["x-router-filename"], msg.Metadata["x-router-message-type"] = name, name
		msg.Metadata[gateway.KeyDedupID] = "the same"
		if err := sink.Publish("tenant.type", msg); err != nil {
			t.Errorf("%.40q: %v", name, err)
		}
	}
	all := readBucket(t, bucket, "")
	if len(all) != len(names) {
		t.Errorf("%d messages are stored, want %d", len(all), len(names))
	}
	for _, s := range all {
		if !strings.HasPrefix(s.key, "tenant/type/") || strings.Count(s.key, "/") != 4 {
			t.Errorf("key %q", s.key)
		}
		if name := s.AllMetadata()["x-router-filename"]; name != string(s.payload) {
			t.Errorf("%q has the payload of %q", name, s.payload)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "tenant" {
		t.Errorf("in the directory: %v, %v", entries, err)
	}
}

func TestOutage(t *testing.T) {
	bucket, dir := openDirectory(t)
	sink := backend{bucket: bucket}.NewSink(t)
	blocker := filepath.Join(dir, "tenant")
	testkit.NoError(t, os.WriteFile(blocker, nil, 0o600))
	msg := message.NewMessage("1", []byte("x"))
	testkit.ErrorIs(t, sink.Publish("tenant.type", msg), sinks.ErrUnavailable)
	testkit.NoError(t, os.Remove(blocker))
	testkit.NoError(t, sink.Publish("tenant.type", msg))
	testkit.NoError(t, sink.Health(t.Context()))
	testkit.NoError(t, bucket.Close())
	testkit.ErrorIs(t, sink.Health(t.Context()), sinks.ErrUnavailable)
}

func TestConfig(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	for name, config := range map[string]blob.Config{
		"no bucket":     {},
		"negative size": {Bucket: bucket, MaxMessageSize: -1},
		"no topic":      {Bucket: bucket, Path: "{id}"},
		"no id":         {Bucket: bucket, Path: "{topic}/{filename|x}"},
		"bad template":  {Bucket: bucket, Path: "{topic}/{id}/{"},
	} {
		if _, err := blob.New(config); !errors.Is(err, blob.ErrConfig) {
			t.Errorf("%s: got %v, want ErrConfig", name, err)
		}
	}
	for _, path := range []string{
		"/{topic}/{id}", "../{topic}/{id}", "./{topic}/{id}", "{topic}/../{id}", "{topic}//{id}", "{topic}/{id}/", "{topic}/./{id}", "{topic}/{id}/..",
		"{topic}/{id}\x00", "\xff/{topic}/{id}", strings.Repeat("e/", 450) + "{topic}/{id}", "{topic}/{id}/" + strings.Repeat("{type}/", 470) + "x",
	} {
		if _, err := blob.New(blob.Config{Bucket: bucket, Path: path}); !errors.Is(err, blob.ErrConfig) {
			t.Errorf("path %.40q: got %v, want ErrConfig", path, err)
		}
	}
}

// An error names the sink as it was called, and says once that the message is refused.
func TestErrorNamesTheSink(t *testing.T) {
	sink := testkit.Must(blob.New(blob.Config{Bucket: memblob.OpenBucket(nil), Name: "archive"}))(t)
	defer sink.Close()
	elsewhere := message.NewMessage("1", nil)
	elsewhere.Metadata[gateway.KeyPayloadMode] = gateway.PayloadModeClaimCheck
	for topic, msg := range map[string]*message.Message{"a b": message.NewMessage("1", nil), "topic": elsewhere} {
		err := sink.Publish(topic, msg)
		want := "sink archive, topic " + topic + ": " + sinks.ErrRejected.Error() + ": "
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Count(err.Error(), sinks.ErrRejected.Error()) != 1 {
			t.Errorf("got %v, want one that begins with %q, once", err, want)
		}
	}
	if name := sink.Describe().Name; name != "archive" {
		t.Errorf("Describe names it %q", name)
	}
}

// TestLongNames: what the gateway takes as a file name and a message type, 100 characters each, has a key of its
// own in every layout that New takes, which a file system can hold.
func TestLongNames(t *testing.T) {
	long := func(text string) string { return string([]rune(strings.Repeat(text, 100))[:100]) }
	var values []string
	for _, text := range []string{"a", "Feld 7, ", "\u00e4", "Поле-", "圃場", "🌾", "?", "%", ".", "a.", ".attrs"} {
		values = append(values, long(text), string([]rune(long(text))[:99])+"b", text)
	}
	values = append(values, "x.attrs", "x..", "x.attrs.attrs", "x.metadata.json", "x.tmp")
	for _, path := range []string{
		"", "{topic}/{id}-{filename|payload}", "{date}/{topic}_{id}_{filename}", "{topic}/{filename}-{id}", "{filename}{topic}{id}", "{topic}-{id}.{filename}",
		"{filename}/{type}/{sender}/{teamset}/{topic}/{id}/{context}", "{topic}/{id}" + strings.Repeat("-fixed", 50) + "{filename}", "{topic}/{id}/Ä" + strings.Repeat("ä", 150) + "{filename}",
	} {
		bucket, dir := openDirectory(t)
		config := blob.Config{Bucket: bucket, Path: path}
		if err := config.Validate(); err != nil {
			t.Fatalf("path %q: %v", path, err)
		}
		keys := map[string]string{}
		for _, value := range values {
			msg := message.NewMessage("1", nil)
			for _, key := range []string{gateway.KeyFilename, gateway.KeyMessageType, gateway.KeyEndpointID, gateway.KeyTeamsetContextID, gateway.KeyContextID} {
				msg.Metadata[key] = value
			}
			msg.Metadata[gateway.KeyDedupID] = "the same"
			key, err := config.Key("tenant."+config.TopicSegment(value), msg)
			if other, taken := keys[key]; err != nil || taken {
				t.Errorf("path %.40q, %.40q: key %q is that of %q (%v)", path, value, key, other, err)
			}
			keys[key] = value
			for _, object := range []string{key, key + blob.SidecarSuffix} {
				if err := bucket.WriteAll(t.Context(), object, nil, &gcblob.WriterOptions{IfNotExist: true}); err != nil {
					t.Errorf("path %.40q, %.40q: %v", path, value, err)
				}
			}
		}
		_ = filepath.WalkDir(dir, func(name string, _ os.DirEntry, _ error) error {
			if relative, _ := filepath.Rel(dir, name); len(filepath.Base(name)) > 230 || len(relative) > 1000 {
				t.Errorf("path %.40q: %d bytes of a name, %d in all", path, len(filepath.Base(name)), len(relative))
			}
			return nil
		})
	}
}

func ExampleNew() {
	bucket := memblob.OpenBucket(nil) // or fileblob, s3blob, gcsblob, azureblob
	defer func() { _ = bucket.Close() }()

	sink, err := blob.New(blob.Config{Bucket: bucket})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = sink.Close() }()

	msg := message.NewMessage("1", []byte("PK…"))
	msg.Metadata["x-router-filename"] = "../taskdata.zip"
	msg.Metadata[gateway.KeyDedupID] = "endpoint context digest"
	if err := sink.Publish("tenant."+sink.TopicSegment("iso:11783:-10:taskdata:zip"), msg); err != nil {
		fmt.Println(err)
		return
	}
	for it := bucket.List(nil); ; {
		object, err := it.Next(context.Background())
		if err != nil {
			break
		}
		fmt.Println(object.Key)
	}
	// Output:
	// tenant/iso:11783:-10:taskdata:zip/28364d66b198308cfe6fa07835053217/%2E.%2Ftaskdata.zip
	// tenant/iso:11783:-10:taskdata:zip/28364d66b198308cfe6fa07835053217/%2E.%2Ftaskdata.zip.metadata.json
}
