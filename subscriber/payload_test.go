package subscriber_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

func TestInlineAndRemotePayloadsLookTheSame(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: 1000})
	_, messages := f.receive(f.config())
	sizes := []int{0, 1, 999, 1000, 1001, 100_000}
	for _, n := range sizes {
		f.send(typeJSON, random(n))
	}
	for _, n := range sizes {
		msg := f.next(messages)
		if !bytes.Equal(msg.Payload, random(n)) {
			t.Errorf("payload of %d bytes is not what was sent (got %d bytes)", n, len(msg.Payload))
		}
		if got := msg.Metadata.Get(gateway.KeyPayloadMode); got != "" {
			t.Errorf("payload mode %q in the metadata of an inline payload", got)
		}
		msg.Ack()
	}
	f.waitConfirmed(len(sizes))
}

func TestDownloadsSurviveFaults(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]gatewaytest.Fault{
		"cut":       {CutAfter: 1000, Times: 2},
		"reset":     {CutAfter: 1000, Cut: gatewaytest.CutReset, Times: 2},
		"5xx":       {Status: 503, Times: 3},
		"html page": {Body: []byte("<html>maintenance</html>"), ContentType: "text/html", Times: 2},
		"refused":   {Refuse: true, Times: 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{ChunkSize: 50_000})
			f.server.Inject(gatewaytest.OpPayload, fault)
			cfg := f.config()
			cfg.Files = []string{typeFile}
			messages := f.subscribe(f.subscriber(cfg), subscriber.AllData)
			f.send(typeFile, random(200_000)) // a file tells its size in the event
			msg := f.next(messages)
			if !bytes.Equal(msg.Payload, random(200_000)) {
				t.Fatalf("got %d bytes that are not what was sent", len(msg.Payload))
			}
			msg.Ack()
			f.waitConfirmed(4)
		})
	}
}

// Neither the event nor the host tells how long the payload is: what has come before the connection broke is not all of it.
func TestDownloadOfUnknownSizeThatBreaksOff(t *testing.T) {
	t.Parallel()
	whole, asked := random(100_000), 0
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked > 1 { // one request after the other
			_, _ = w.Write(whole)
			return
		}
		_, _ = w.Write(whole[:1000])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(host.Close)
	for _, mode := range []subscriber.PayloadMode{subscriber.PayloadInline, subscriber.PayloadClaimCheck} {
		t.Run(mode.String(), func(t *testing.T) {
			asked = 0
			f := newFixture(t, gatewaytest.Config{})
			cfg, store := f.config(), &memoryStore{data: map[string][]byte{}}
			cfg.Payload.Mode, cfg.Payload.ClaimCheck = mode, store
			messages := f.subscribe(f.subscriber(cfg), subscriber.AllData)
			testkit.Eventually(t, "an open stream", func() bool { return f.server.Streams() == 1 })
			f.emit(gateway.EventMessageReceived, fmt.Sprintf(`"id":%q,"app_message_id":"a","message_type":%q,"sent_at":"2026-01-01T00:00:00Z","payload_uri":%q,"receiving_endpoint_id":%q`,
				uuid.NewString(), typeJSON, host.URL, f.receiver.ID))
			msg := f.next(messages)
			defer msg.Ack()
			got := testkit.Must(io.ReadAll(open(t, msg)))(t)
			if !bytes.Equal(got, whole) {
				t.Errorf("got %d bytes of %d", len(got), len(whole))
			}
		})
	}
}

// Nothing tells files without messages apart, so nothing of one may take the place of that of another.
func TestFilesWithoutMessagesInTheClaimCheck(t *testing.T) {
	t.Parallel()
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }))
	t.Cleanup(host.Close)
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.Payload.Mode, cfg.Payload.ClaimCheck, cfg.Payload.ClaimCheckFrom = subscriber.PayloadClaimCheck, &memoryStore{data: map[string][]byte{}}, 1
	messages := f.subscribe(f.subscriber(cfg), subscriber.AllData)
	testkit.Eventually(t, "an open stream", func() bool { return f.server.Streams() == 1 })
	paths := []string{"/1", "/2"}
	for _, path := range paths {
		f.emit(gateway.EventFileReceived, fmt.Sprintf(`"message_type":%q,"size":2,"message_ids":[],"payload_uri":%q,"receiving_endpoint_id":%q`, typeFile, host.URL+path, f.receiver.ID))
	}
	var got []string
	for _, msg := range f.ackN(messages, 2) {
		got = append(got, string(testkit.Must(io.ReadAll(open(t, msg)))(t)))
	}
	if !slices.Equal(slices.Sorted(slices.Values(got)), paths) {
		t.Errorf("got %q, want %q", got, paths)
	}
}

func open(t *testing.T, msg *message.Message) io.Reader {
	t.Helper()
	payload, _, err := subscriber.OpenPayload(msg)
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = payload.Close() })
	return payload
}

func TestExpiredPayloadIsAskedForAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	for _, status := range []int{403, 404, 410} {
		f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: status, Times: 1})
	}
	sub, messages := f.receive(f.config())
	f.send(typeJSON, random(200_000))
	msg := f.next(messages)
	if !bytes.Equal(msg.Payload, random(200_000)) {
		t.Fatal("the payload is not what was sent")
	}
	msg.Ack()
	f.waitConfirmed(1)
	// However often the URIs are refused, one reconnect brings a fresh one, and the next has
	// to wait for its time.
	if stats := sub.Stats(); stats.Expired == 0 || stats.Expired > 2 || stats.Stream.Connects != 2 {
		t.Errorf("Expired = %d, Connects = %d; want 1 or 2, and 2", stats.Expired, stats.Stream.Connects)
	}
}

func TestPayloadAboveMaxInlineStaysUnconfirmed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.Payload.MaxInline = 100_000
	reported := make(chan error, 10)
	cfg.Hooks.Undeliverable = func(_ gateway.Event, err error) { reported <- err }
	messages := f.subscribe(f.subscriber(cfg), subscriber.AllData)
	f.send(typeJSON, random(200_000))
	f.send(typeJSON, []byte("next"))
	if msg := f.next(messages); string(msg.Payload) != "next" {
		t.Fatalf("got a payload of %d bytes", len(msg.Payload))
	} else {
		msg.Ack()
	}
	f.waitConfirmed(1)
	if err := <-reported; !errors.Is(err, subscriber.ErrPayloadTooLarge) {
		t.Errorf("reported %v, want ErrPayloadTooLarge", err)
	}
	if f.confirmed() != 1 {
		t.Error("the message that could not be delivered was confirmed")
	}
}

// memoryStore is a claim check in memory.
type memoryStore struct {
	mu    sync.Mutex
	data  map[string][]byte
	fails int
}

func (m *memoryStore) Put(_ context.Context, key string, r io.Reader) (string, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails > 0 {
		m.fails--
		return "", errors.New("bucket is down")
	}
	if m.data == nil {
		m.data = map[string][]byte{}
	}
	m.data[key] = data
	return key, nil
}

func (m *memoryStore) Open(_ context.Context, reference string) (io.ReadCloser, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.data[reference]
	if !ok {
		return nil, 0, fmt.Errorf("open: %w", gateway.ErrNotFound)
	}
	return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
}

// While a message is unconfirmed the service has its payload, whatever becomes of the claim check.
func TestObjectThatWasDeletedFromTheClaimCheck(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{ChunkSize: 1 << 20})
	cfg, store := f.config(), &memoryStore{}
	cfg.Payload.Mode, cfg.Payload.ClaimCheck, cfg.Payload.ClaimCheckFrom = subscriber.PayloadClaimCheck, store, 1
	messages := f.subscribe(f.subscriber(cfg), subscriber.AllData)
	f.send(typeJSON, random(200_000))
	msg := f.next(messages)
	store.mu.Lock()
	clear(store.data)
	store.mu.Unlock()
	f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: http.StatusGone, Times: 1})
	if _, _, err := subscriber.OpenPayload(msg); !errors.Is(err, gateway.ErrPayloadExpired) {
		t.Errorf("OpenPayload: %v, want ErrPayloadExpired", err)
	}
	msg.Nack()
	msg = f.next(messages)
	if got := testkit.Must(io.ReadAll(open(t, msg)))(t); !bytes.Equal(got, random(200_000)) {
		t.Errorf("OpenPayload gave %d bytes that are not what was sent", len(got))
	}
	msg.Ack()
	f.waitConfirmed(1)
}

func TestClaimCheck(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{ChunkSize: 1 << 20})
	cfg := f.config()
	store := &memoryStore{fails: 2}
	cfg.Payload.Mode, cfg.Payload.ClaimCheck, cfg.Payload.ClaimCheckFrom = subscriber.PayloadClaimCheck, store, 150_000
	messages := f.subscribe(f.subscriber(cfg), subscriber.AllData)
	f.send(typeJSON, random(200_000))
	f.send(typeJSON, random(100_000)) // remote, but small enough for the message

	msg := f.next(messages)
	if len(msg.Payload) != 0 {
		t.Errorf("the message carries %d bytes of payload", len(msg.Payload))
	}
	sum := sha256.Sum256(random(200_000))
	for key, want := range map[string]string{
		gateway.KeyPayloadMode: gateway.PayloadModeClaimCheck, gateway.KeyPayloadSize: "200000",
		gateway.KeyPayloadSHA256: hex.EncodeToString(sum[:]),
	} {
		if got := msg.Metadata.Get(key); got != want {
			t.Errorf("%s = %q, want %q", key, got, want)
		}
	}
	if got := store.data[msg.Metadata.Get(gateway.KeyPayloadReference)]; !bytes.Equal(got, random(200_000)) {
		t.Errorf("the store has %d bytes that are not what was sent", len(got))
	}
	payload, size, err := subscriber.OpenPayload(msg)
	if err != nil || size != 200_000 {
		t.Fatalf("OpenPayload: size %d, error %v", size, err)
	}
	if got, err := io.ReadAll(payload); err != nil || !bytes.Equal(got, random(200_000)) {
		t.Errorf("OpenPayload gave %d bytes, error %v", len(got), err)
	}
	msg.Ack()
	if msg := f.next(messages); !bytes.Equal(msg.Payload, random(100_000)) {
		t.Errorf("small remote payload: %d bytes", len(msg.Payload))
	} else {
		msg.Ack()
	}
	f.waitConfirmed(2)
}

func TestManyRemotePayloadsWithinTheByteCap(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: 10_000})
	cfg := f.config()
	cfg.MaxInFlightBytes = 250_000
	cfg.Payload.MaxDownloads = 3
	sub, messages := f.receive(cfg)
	// Remote and embedded payloads of two keys, each message larger than what
	// would fit beside the others.
	for range 10 {
		f.send(typeJSON, random(200_000), f.receiver)
		f.send(typeJSON, random(9_000), f.receiver)
		f.send(typeJSON, random(150_000), f.receiver2)
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
				if got := sub.Stats().InFlightBytes; got > 250_000+200_000 {
					t.Errorf("%d bytes in flight, want at most the cap and one payload", got)
					return
				}
			}
		}
	}()
	f.ackN(messages, 30)
	f.waitConfirmed(30)
	testkit.Eventually(f, "no bytes are left", func() bool { return sub.Stats().InFlightBytes == 0 })
}

// Everything that may be open waits for a fresh URI, while the stream is not read
// because there is no room for the next event. On each connection, a message that can never be delivered comes first.
func TestExpiredPayloadsTakeAllTheRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
	cfg := f.config()
	cfg.MaxInFlight, cfg.Order = 3, subscriber.Unordered
	cfg.Payload.MaxInline = 100_000
	sub, messages := f.receive(cfg)
	f.send(typeJSON, random(200_000))
	testkit.Eventually(f, "it was given up", func() bool { s := sub.Stats(); return s.Received == 1 && s.InFlight == 0 })
	gone := f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Hang: true, Status: 410, Times: 3})
	for i := range 20 {
		f.send(typeJSON, random(1000+i))
	}
	testkit.Eventually(f, "one has arrived for which there is no room", func() bool {
		s := sub.Stats()
		return gone.Hits() == 3 && s.Received >= 5
	})
	gone.Lift()
	f.ackN(messages, 20)
	f.waitConfirmed(20)
}

// What a middleware has put into the message in place of a payload that is elsewhere is what the handler behind it opens.
func TestOpenPayloadThatWasReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
	cfg := f.config()
	cfg.Payload.Mode = subscriber.PayloadLazy
	_, messages := f.receive(cfg)
	f.send(typeJSON, []byte("encrypted"))
	msg := f.next(messages)
	for _, want := range []string{"encrypted", "plain"} {
		payload, size, err := subscriber.OpenPayload(msg)
		testkit.NoError(t, err)
		if got := string(testkit.Must(io.ReadAll(payload))(t)); got != want || size != int64(len(want)) {
			t.Errorf("got %q of %d bytes, want %q", got, size, want)
		}
		testkit.NoError(t, payload.Close())
		msg.Payload = []byte("plain")
	}
	msg.Ack()
}
