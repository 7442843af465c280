package blob_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	gcblob "gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/filesync"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/blob"
)

// withID returns a message that is a copy of all others with the same ID.
func withID(id, payload string) *message.Message {
	msg := message.NewMessage("uuid", []byte(payload))
	msg.Metadata[gateway.KeyDedupID] = id
	return msg
}

// TestAttemptWithOtherBytes: what an attempt has left that was never acknowledged
// gives way as a whole to the next one, which may carry other bytes, be it of a
// Transform that tells the time. What was acknowledged stays as a whole.
func TestAttemptWithOtherBytes(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) *gcblob.Bucket{
		"memory":    func(*testing.T) *gcblob.Bucket { return memblob.OpenBucket(nil) },
		"directory": func(t *testing.T) *gcblob.Bucket { t.Helper(); b, _ := openDirectory(t); return b },
	} {
		for left, lost := range map[string]func(key string) string{
			"payload": func(key string) string { return key + blob.SidecarSuffix },
			"sidecar": func(key string) string { return key }, // after a power cut
			"nothing": nil,
		} {
			t.Run(name+"/"+left+" left", func(t *testing.T) {
				bucket := open(t)
				sink := backend{bucket: bucket}.NewSink(t)
				testkit.NoError(t, sink.Publish("topic", withID("id", `{"at":1}`)))
				first := readBucket(t, bucket, "")
				want := `{"at":1}`
				if lost != nil {
					want = `{"at":2,"more":true}`
					testkit.NoError(t, bucket.Delete(t.Context(), lost(first[0].key)))
				}
				testkit.NoError(t, sink.Publish("topic", withID("id", `{"at":2,"more":true}`)))
				all := readBucket(t, bucket, "") // which compares payload and checksum
				if len(all) != 1 || string(all[0].payload) != want || all[0].key != first[0].key {
					t.Errorf("archived: %+v, want %s", all, want)
				}
			})
		}
	}
}

// TestWritersOfOneMessage: many attempts at once, also of other processes, leave one
// message, and no payload beside the checksum of another.
func TestWritersOfOneMessage(t *testing.T) {
	for name, writers := range map[string]int{"one process": 1, "two processes": 2} {
		t.Run(name, func(t *testing.T) {
			for round := range 50 {
				bucket := memblob.OpenBucket(nil)
				var wg sync.WaitGroup
				for writer := range writers {
					sink := backend{bucket: bucket}.NewSink(t)
					for i := range 4 / writers {
						wg.Go(func() {
							err := sink.Publish("topic", withID("id", fmt.Sprintf("payload %d of writer %d", i, writer)))
							if err != nil && !errors.Is(err, sinks.ErrUnavailable) {
								t.Error(err)
							}
						})
					}
				}
				wg.Wait()
				if all := readBucket(t, bucket, ""); len(all) != 1 {
					t.Fatalf("round %d: %d messages archived", round, len(all))
				}
				_ = bucket.Close()
			}
		})
	}
}

// TestAbandonedAttempt: an attempt whose caller has left is still at it when the next
// one comes, which waits for it, as long as its own context lasts.
func TestAbandonedAttempt(t *testing.T) {
	bucket, _ := openDirectory(t)
	elsewhere := &hangingClaimCheck{opened: make(chan struct{}), release: make(chan struct{})}
	sink := backend{bucket: bucket, config: blob.Config{ClaimCheck: elsewhere}}.NewSink(t)

	msg := withID("id", "")
	msg.Metadata["x-router-payload-mode"], msg.Metadata["x-router-payload-reference"] = "claim-check", "reference"
	ctx, leave := context.WithCancel(t.Context())
	msg.SetContext(ctx)
	result := make(chan error, 1)
	go func() { result <- sink.Publish("topic", msg) }()
	<-elsewhere.opened
	leave()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("Publish that was left: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	second := withID("id", "second")
	second.SetContext(ctx)
	if err := sink.Publish("topic", second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Publish while the first attempt goes on: %v", err)
	}
	go func() { result <- sink.Publish("topic", withID("id", "third")) }()
	if err := sink.Publish("topic", withID("other", "other")); err != nil {
		t.Errorf("another message: %v", err)
	}
	close(elsewhere.release)
	if err := <-result; err != nil {
		t.Errorf("Publish after the first attempt: %v", err)
	}
	var got []string
	for _, s := range readBucket(t, bucket, "") {
		got = append(got, string(s.payload))
	}
	slices.Sort(got)
	if want := []string{"other", "third"}; !slices.Equal(got, want) {
		t.Errorf("archived: %q, want %q", got, want)
	}
}

// hangingClaimCheck holds the first payload back, whatever becomes of the context.
type hangingClaimCheck struct{ opened, release chan struct{} }

func (c *hangingClaimCheck) Open(context.Context, string) (io.ReadCloser, int64, error) {
	close(c.opened)
	<-c.release
	return io.NopCloser(strings.NewReader("first")), 5, nil
}

// TestOneFileEach: a directory holds a payload and a sidecar for each message, and
// nothing else.
func TestOneFileEach(t *testing.T) {
	dir := t.TempDir()
	bucket, err := gcblob.OpenBucket(t.Context(), filesync.URL("file://"+filepath.ToSlash(dir)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bucket.Close() }()
	sink := backend{bucket: bucket}.NewSink(t)
	for i := range 3 {
		testkit.NoError(t, sink.Publish("topic", withID(fmt.Sprint(i), "payload")))
	}
	var files []string
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) != 6 || slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, ".attrs") }) {
		t.Errorf("files for 3 messages: %q (%v)", files, err)
	}
	if d := sink.Describe(); d.Durability < sinks.DurabilityDisk || d.DurabilityNote == "" {
		t.Errorf("Describe: %+v", d)
	}
}
