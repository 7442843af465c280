package blob_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	gcblob "gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/blob"
	"github.com/agrimill/agrimill/sinks/claimcheck"
)

// referring returns a message whose payload is elsewhere.
func referring(mode, reference string, payload []byte) *message.Message {
	sum := sha256.Sum256(payload)
	msg := message.NewMessage("uuid", nil)
	msg.Metadata = message.Metadata{
		gateway.KeyPayloadMode: mode, gateway.KeyPayloadReference: reference,
		gateway.KeyPayloadSize: strconv.Itoa(len(payload)), gateway.KeyPayloadSHA256: hex.EncodeToString(sum[:]),
		"other": "stays",
	}
	return msg
}

func wantArchived(t *testing.T, bucket *gcblob.Bucket, payload []byte) {
	t.Helper()
	all := readBucket(t, bucket, "")
	if len(all) != 1 || !bytes.Equal(all[0].payload, payload) {
		t.Fatalf("%d messages archived, or other bytes", len(all))
	}
	m := all[0].AllMetadata()
	if m["other"] != "stays" || m[gateway.KeyPayloadMode] != "" || m[gateway.KeyPayloadReference] != "" {
		t.Errorf("metadata %v", m)
	}
}

func TestPayloadFromTheClaimCheck(t *testing.T) {
	payload := bytes.Repeat([]byte("farm"), 100_000)
	stored := memblob.OpenBucket(nil)
	defer func() { _ = stored.Close() }()
	store := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{Bucket: stored}))(t)
	reference := testkit.Must(store.Put(t.Context(), "key", bytes.NewReader(payload)))(t)
	bucket := memblob.OpenBucket(nil)
	defer func() { _ = bucket.Close() }()
	sink := backend{bucket: bucket, config: blob.Config{ClaimCheck: store}}.NewSink(t)
	if !sink.Describe().OpensPayloads {
		t.Error("the sink does not say that it opens payloads")
	}
	testkit.NoError(t, sink.Publish("topic", referring(gateway.PayloadModeClaimCheck, reference, payload)))
	wantArchived(t, bucket, payload)
}

func TestPayloadFromTheMessagesContext(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer func() { _ = bucket.Close() }()
	msg := referring(gateway.PayloadModeLazy, "", []byte("lazy"))
	msg.SetContext(msgctx.With(t.Context(), msgctx.Value{Open: func(context.Context) (io.ReadCloser, int64, error) {
		return io.NopCloser(bytes.NewReader([]byte("lazy"))), 4, nil
	}}))
	testkit.NoError(t, (backend{bucket: bucket}).NewSink(t).Publish("topic", msg))
	wantArchived(t, bucket, []byte("lazy"))
}

// What was deleted from the claim check is taken from where the message came from, if it is the same payload.
func TestPayloadThatTheClaimCheckHasLost(t *testing.T) {
	stored := memblob.OpenBucket(nil)
	defer func() { _ = stored.Close() }()
	store := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{Bucket: stored}))(t)
	bucket := memblob.OpenBucket(nil)
	defer func() { _ = bucket.Close() }()
	sink := backend{bucket: bucket, config: blob.Config{ClaimCheck: store}}.NewSink(t)
	publish := func(digest string) error {
		msg := referring(gateway.PayloadModeClaimCheck, "deleted", []byte("farm"))
		if digest != "" {
			msg.Metadata[gateway.KeyPayloadSHA256] = digest
		}
		msg.SetContext(msgctx.With(t.Context(), msgctx.Value{Open: func(context.Context) (io.ReadCloser, int64, error) {
			return io.NopCloser(bytes.NewReader([]byte("farm"))), 4, nil
		}}))
		return sink.Publish("topic", msg)
	}
	for _, digest := range []string{"unknown", hex.EncodeToString(make([]byte, sha256.Size))} {
		if err := publish(digest); !errors.Is(err, gateway.ErrNotFound) {
			t.Errorf("digest %s: %v, want ErrNotFound", digest, err)
		}
	}
	testkit.NoError(t, publish(""))
	wantArchived(t, bucket, []byte("farm"))
}

// What cannot be opened, breaks off or has changed is never archived.
func TestPayloadThatIsNotThere(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		open msgctx.Opener
		want error
	}{
		"nothing to open it with": {nil, sinks.ErrRejected},
		"cannot be opened":        {func(context.Context) (io.ReadCloser, int64, error) { return nil, 0, broken }, sinks.ErrUnavailable},
		"changed": {func(context.Context) (io.ReadCloser, int64, error) {
			return io.NopCloser(bytes.NewReader([]byte("other"))), 5, nil
		}, sinks.ErrRejected},
		"breaks off": {func(context.Context) (io.ReadCloser, int64, error) {
			return io.NopCloser(io.MultiReader(bytes.NewReader([]byte("pay")), &brokenReader{broken})), 7, nil
		}, sinks.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			bucket := memblob.OpenBucket(nil)
			defer func() { _ = bucket.Close() }()
			msg := referring(gateway.PayloadModeClaimCheck, "reference", []byte("payload"))
			if c.open != nil {
				msg.SetContext(msgctx.With(t.Context(), msgctx.Value{Open: c.open}))
			}
			testkit.ErrorIs(t, (backend{bucket: bucket}).NewSink(t).Publish("topic", msg), c.want)
			if object, err := bucket.List(nil).Next(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("%v is in the bucket, error %v", object, err)
			}
		})
	}
}

type brokenReader struct{ err error }

func (b *brokenReader) Read([]byte) (int, error) { return 0, b.err }
