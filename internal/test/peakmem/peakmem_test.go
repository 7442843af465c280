package peakmem

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	_ "gocloud.dev/blob/fileblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	mega  = 1 << 20
	limit = 64 * mega
	large = 256 * mega // the most that the service carries
)

func newStore(tb testing.TB) *claimcheck.Store {
	tb.Helper()
	s := testkit.Must(claimcheck.New(tb.Context(), claimcheck.Config{URL: "file://" + filepath.ToSlash(tb.TempDir())}))(tb)
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// receiving is a subscriber at a gateway.
type receiving struct {
	*remote
	messages <-chan *message.Message
}

// receive subscribes; store is nil in modes that need none.
func receive(tb testing.TB, mode subscriber.PayloadMode, store *claimcheck.Store) *receiving {
	tb.Helper()
	r := startGateway(tb)
	cfg := subscriber.Config{Client: r.client(), Files: []string{typeFile}, Payload: subscriber.PayloadConfig{Mode: mode}}
	if store != nil {
		cfg.Payload.ClaimCheck = store
	}
	sub := testkit.Must(subscriber.New(cfg, nil))(tb)
	tb.Cleanup(func() {
		if err := sub.Close(); err != nil {
			tb.Error(err)
		}
	})
	messages := testkit.Must(sub.Subscribe(tb.Context(), subscriber.AllData))(tb)
	return &receiving{remote: r, messages: messages}
}

// one lets the service send a payload of size bytes and handles it: the handler
// reads it once, as it gets it, to make sure of it.
func (r *receiving) one(size int64) (peak, rss int64) {
	r.Helper()
	want := r.ask(command{Send: 1}) // the stream is open, and the client warm
	r.handle(want)
	return peakOf(r, func() { r.handle(r.ask(command{Send: size})) })
}

func (r *receiving) handle(want answer) {
	r.Helper()
	msg := testkit.Receive(r, "a message", r.messages)
	payload, size, err := subscriber.OpenPayload(msg)
	if err != nil {
		r.Fatal(err)
	}
	hash := sha256.New()
	testkit.Must(io.Copy(hash, payload))(r)
	testkit.NoError(r, payload.Close())
	if size != want.Size || !bytes.Equal(hash.Sum(nil), want.SHA256[:]) {
		r.Fatalf("got %d bytes, want %d, or they are not what was sent", size, want.Size)
	}
	msg.Ack()
}

// sending is a publisher at a gateway.
type sending struct {
	*remote
	pub   *publisher.Publisher
	store *claimcheck.Store // nil: payloads are in messages
}

func send(tb testing.TB, store *claimcheck.Store) *sending {
	tb.Helper()
	r := startGateway(tb)
	cfg := publisher.Config{Client: r.client(), TenantID: r.Tenant, EndpointID: r.Sender}
	if store != nil {
		cfg.ClaimCheck = store
	}
	pub := testkit.Must(publisher.New(cfg, nil))(tb)
	tb.Cleanup(func() { _ = pub.Close() })
	return &sending{remote: r, pub: pub, store: store}
}

// message has a payload of size bytes.
func (s *sending) message(size int64) (msg *message.Message, digest []byte) {
	s.Helper()
	hash := sha256.New()
	source := io.TeeReader(io.LimitReader(newSource(), size), hash)
	msg = message.NewMessage(uuid.NewString(), nil)
	if s.store == nil {
		msg.Payload = make([]byte, size)
		testkit.Must(io.ReadFull(source, msg.Payload))(s)
		return msg, hash.Sum(nil)
	}
	reference := testkit.Must(s.store.Put(context.Background(), msg.UUID, source))(s)
	digest = hash.Sum(nil)
	msg.Metadata.Set(gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck)
	msg.Metadata.Set(gateway.KeyPayloadReference, reference)
	msg.Metadata.Set(gateway.KeyPayloadSize, strconv.FormatInt(size, 10))
	msg.Metadata.Set(gateway.KeyPayloadSHA256, hex.EncodeToString(digest))
	return msg, digest
}

// one publishes a payload of size bytes; its making counts.
func (s *sending) one(size int64) (peak, rss int64) {
	s.Helper()
	return peakOf(s, func() {
		msg, digest := s.message(size)
		testkit.NoError(s, s.pub.Publish(typeFile, msg))
		if got := s.ask(command{Last: true}); got.Size != size || !bytes.Equal(got.SHA256[:], digest) {
			s.Fatalf("%d bytes arrived, want %d, or they are not what was sent", got.Size, size)
		}
	})
}

// The promise: 256 MB pass in at most 64 MB, both ways.

func TestSubscriberClaimCheckStaysBelow64MB(t *testing.T) {
	peak, _ := receive(t, subscriber.PayloadClaimCheck, newStore(t)).one(large)
	if peak > limit {
		t.Errorf("256 MB took %d MB of memory, want at most 64", peak/mega)
	}
	t.Logf("256 MB took %d MB of memory", peak/mega)
}

func TestPublisherClaimCheckStaysBelow64MB(t *testing.T) {
	peak, _ := send(t, newStore(t)).one(large)
	if peak > limit {
		t.Errorf("256 MB took %d MB of memory, want at most 64", peak/mega)
	}
	t.Logf("256 MB took %d MB of memory", peak/mega)
}

// A file that Send reads takes no more.
func TestPublisherSendStaysBelow64MB(t *testing.T) {
	const size = 100 * mega
	file := testkit.Must(os.Create(filepath.Join(t.TempDir(), "file")))(t)
	t.Cleanup(func() { _ = file.Close() })
	if err := file.Truncate(size); err != nil { // zeros, which take no room
		t.Fatal(err)
	}
	hash := sha256.New()
	_, _ = io.Copy(hash, io.NewSectionReader(file, 0, size))
	s := send(t, nil)
	peak, _ := peakOf(t, func() {
		testkit.NoError(t, s.pub.Send(t.Context(), publisher.Message{Type: typeFile, Body: file, Size: size}))
	})
	if got := s.ask(command{Last: true}); got.Size != size || !bytes.Equal(got.SHA256[:], hash.Sum(nil)) {
		t.Fatalf("%d bytes arrived, want %d, or they are not what was sent", got.Size, int64(size))
	}
	if peak > limit {
		t.Errorf("100 MB took %d MB of memory, want at most 64", peak/mega)
	}
	t.Logf("100 MB took %d MB of memory", peak/mega)
}

// A payload in a message is in memory once, both ways.
func TestInlinePayloadIsHeldOnce(t *testing.T) {
	const size = 64 * mega
	for name, one := range map[string]func(*testing.T) (int64, int64){
		"subscribe": func(t *testing.T) (int64, int64) { return receive(t, subscriber.PayloadInline, nil).one(size) },
		"publish":   func(t *testing.T) (int64, int64) { return send(t, nil).one(size) },
	} {
		t.Run(name, func(t *testing.T) { // what one holds until it is closed is not the other's
			peak, _ := one(t)
			if peak > size*3/2 {
				t.Errorf("64 MB took %d MB of memory, want little more than the payload", peak/mega)
			}
			t.Logf("64 MB took %d MB of memory", peak/mega)
		})
	}
}

// BenchmarkPeakMemory tells the memory that one payload takes in each mode.
func BenchmarkPeakMemory(b *testing.B) {
	for _, way := range []struct {
		name  string
		start func(testing.TB) func(int64) (int64, int64)
	}{
		{"subscribe/inline", func(tb testing.TB) func(int64) (int64, int64) { return receive(tb, subscriber.PayloadInline, nil).one }},
		{"subscribe/claim-check", func(tb testing.TB) func(int64) (int64, int64) {
			return receive(tb, subscriber.PayloadClaimCheck, newStore(tb)).one
		}},
		{"subscribe/lazy", func(tb testing.TB) func(int64) (int64, int64) { return receive(tb, subscriber.PayloadLazy, nil).one }},
		{"publish/inline", func(tb testing.TB) func(int64) (int64, int64) { return send(tb, nil).one }},
		{"publish/claim-check", func(tb testing.TB) func(int64) (int64, int64) { return send(tb, newStore(tb)).one }},
	} {
		for _, size := range []int64{64 * mega, large} {
			b.Run(fmt.Sprintf("%s/%dMB", way.name, size/mega), func(b *testing.B) {
				one := way.start(b)
				var peak, rss int64
				b.SetBytes(size)
				for b.Loop() {
					p, r := one(size)
					peak, rss = max(peak, p), max(rss, r)
				}
				b.ReportMetric(float64(peak)/mega, "peak-MB")
				if rss > 0 {
					b.ReportMetric(float64(rss)/mega, "rss-MB")
				}
			})
		}
	}
}
