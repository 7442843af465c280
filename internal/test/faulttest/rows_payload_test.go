//go:build faults

package faulttest

import (
	"crypto/sha256"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "gocloud.dev/blob/fileblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

// Payload addresses expire while their events wait in a backlog.
func TestRow13PayloadExpired(t *testing.T) {
	protocols(t, worldConfig{gateway: gatewaytest.Config{InlineLimit: gatewaytest.NoInline}}, func(t *testing.T, w *world) {
		open := make(chan struct{})
		p := w.start(func(p *parts) {
			p.Subscriber.MaxInFlight = 20
			p.below(func(to sinks.Sink, topic string, messages ...*message.Message) error {
				<-open
				return to.Publish(topic, messages...)
			})
		})
		w.sendSize(messages/2, 100)
		testkit.Eventually(w, "the pipeline is full", func() bool { return p.sub.Stats().InFlight == 20 })
		w.gateway.Advance(16 * time.Minute)
		close(open)
		w.sendSize(messages/2, 100)
		w.settle(expectation{})
		if s := p.sub.Stats(); s.Expired == 0 {
			t.Error("no payload had expired: nothing is shown")
		}
	})
}

// Downloads end early, are something else, or lie about their size. What a
// message is to look like only HTTP tells (its event has no size); a file's event
// tells its size, so an answer of another size is refused too.
func TestRow14PayloadDamaged(t *testing.T) {
	const size = 20_000
	html := []byte("<html><body>Service unavailable</body></html>")
	broken := []gatewaytest.Fault{
		{CutAfter: size / 2}, {CutAfter: size - 1, Cut: gatewaytest.CutReset}, {CutAfter: gatewaytest.AfterHeader},
		{CutAfter: size / 3, Cut: gatewaytest.CutClean}, {Refuse: true}, {Status: 500}, {Status: 503}, {Status: 429},
		{Status: 206, Body: make([]byte, 100)},
		{Body: html, Header: http.Header{"Content-Encoding": {"gzip"}}},
	}
	other := []gatewaytest.Fault{
		{Body: html, ContentType: "text/html"}, {Body: make([]byte, size+1)}, {Body: make([]byte, size-1)}, {Body: []byte{}},
		{Status: 206, Body: make([]byte, size-1), Header: http.Header{"Content-Range": {"bytes 0-19998/19999"}}},
	}
	cfg := worldConfig{gateway: gatewaytest.Config{InlineLimit: gatewaytest.NoInline, FileTypes: []string{fileType}}}
	t.Parallel()
	for name, row := range map[string]struct {
		messageType string
		faults      []gatewaytest.Fault
	}{
		"messages": {messageType, broken}, "files": {fileType, slices.Concat(broken, other)},
	} {
		t.Run(name, func(t *testing.T) {
			protocols(t, cfg, func(t *testing.T, w *world) {
				n, downloads := messages/4, 16
				if w.http2 {
					// All downloads share a connection: a cut of one is a cut of all.
					n, downloads = n/2, 4
				}
				for range n { // they hit half of the first downloads, and some of the others
					f := row.faults[w.rng.IntN(len(row.faults))]
					f.Times, f.Skip = 1, w.rng.IntN(2*n)
					w.gateway.Inject(gatewaytest.OpPayload, f)
				}
				hang := w.gateway.Inject(gatewaytest.OpPayload, gatewaytest.Fault{HangAfter: size / 2, Times: 3})
				w.start(func(p *parts) {
					p.Gateway.PayloadIdleTimeout = 300 * time.Millisecond
					short := subscriber.Backoff{Initial: time.Millisecond, Max: 20 * time.Millisecond}
					p.Subscriber.Payload.Retry, p.Subscriber.Reconnect = short, short
					p.Subscriber.Payload.MaxDownloads = downloads
					p.Gateway.Retry.InitialBackoff, p.Gateway.Retry.MaxBackoff = time.Millisecond, 20*time.Millisecond
					p.Gateway.RateLimit.MinRate = 1000
				})
				for range n {
					w.sendPayload(row.messageType, w.bytes(size))
				}
				w.settle(expectation{})
				hang.Lift()
				t.Logf("%d downloads for %d payloads", w.gateway.Stats(gatewaytest.OpPayload).Requests, n)
			})
		})
	}
}

// Large payloads at once, up to eight, go into the claim check. What is above the cap of
// the client stays with the service, and is reported; the others continue. What a
// payload of 256 MB takes is measured by package peakmem.
func TestRow15LargePayloads(t *testing.T) {
	const size, limit = 16 << 20, 20 << 20
	cfg := worldConfig{gateway: gatewaytest.Config{ChunkSize: 64 << 20, FileTypes: []string{fileType}}}
	protocols(t, cfg, func(t *testing.T, w *world) {
		dir := t.TempDir()
		store := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{URL: "file://" + filepath.ToSlash(dir)}))(t)
		t.Cleanup(func() { _ = store.Close() })
		large := 8
		if w.http2 {
			large = 4 // TLS with the race detector takes its time
		}
		for range large {
			w.sendRequest(gatewaytest.SendRequest{MessageType: fileType, Payload: fill(w, size)})
		}
		w.sendRequest(gatewaytest.SendRequest{MessageType: fileType, Payload: fill(w, limit+1)})
		w.send(messages)
		w.start(func(p *parts) {
			p.Gateway.MaxPayloadSize = limit
			p.Subscriber.Payload.Mode, p.Subscriber.Payload.ClaimCheck = subscriber.PayloadClaimCheck, store
			p.Subscriber.Payload.MaxDownloads = 8
			p.Router.ClaimCheck = store
		})
		tooLarge := func(e gatewaytest.LedgerEntry) bool { return e.PayloadSize > limit }
		w.waitFor(func(e gatewaytest.LedgerEntry) bool { return !tooLarge(e) })
		w.judge(expectation{open: tooLarge})
		checked := 0
		for _, e := range w.gateway.Ledger() {
			for _, r := range w.oracle.archive.find(identity{e.EndpointID, e.MessageID}) {
				reference := r.metadata[gateway.KeyPayloadReference]
				if e.PayloadSize < size {
					continue
				}
				msg := message.NewMessage("", nil)
				for k, v := range r.metadata {
					msg.Metadata[k] = v
				}
				payload, _, err := store.OpenMessage(msg)
				if err != nil {
					t.Fatal(err)
				}
				sum := sha256.New()
				n, err := io.Copy(sum, payload)
				_ = payload.Close()
				if err != nil || n != e.PayloadSize || [32]byte(sum.Sum(nil)) != e.PayloadSHA256 {
					t.Errorf("%s: %d bytes, %v; want the %d that were sent", reference, n, err, e.PayloadSize)
				}
				checked++
			}
		}
		if checked != large {
			t.Errorf("%d payloads are in the claim check, want %d", checked, large)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) == 0 {
			t.Errorf("the claim check has %d entries: %v", len(entries), err)
		}
	})
}

// fill makes a large payload that was not there before.
func fill(w *world, size int) []byte {
	w.sent++
	payload := append(make([]byte, 0, size), "payload "+strconv.Itoa(w.sent)...)
	for x := w.rng.Uint64(); len(payload) < size; x = x*6364136223846793005 + 1442695040888963407 {
		payload = append(payload, byte(x>>56))
	}
	return payload
}
