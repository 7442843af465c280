package bench

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
)

const (
	benchTenant   = "7a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
	benchEndpoint = "b1a7c9de-5f1b-4b7e-9c53-3f2e1d0c9000"
	benchType     = "iso:11783:-10:taskdata:zip"
)

// BenchmarkPublisher publishes messages one after the other.
func BenchmarkPublisher(b *testing.B) {
	base := startSource(b)
	for _, size := range sizes {
		b.Run(sizeName(size), func(b *testing.B) {
			pub := testkit.Must(publisher.New(publisher.Config{
				Client: newClient(b, base), TenantID: benchTenant, EndpointID: benchEndpoint,
			}, nil))(b)
			defer func() { _ = pub.Close() }()
			payload := make([]byte, size)
			publish := func() {
				testkit.NoError(b, pub.Publish(benchType, message.NewMessage(uuid.NewString(), payload)))
			}
			publish() // fetches the token
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				publish()
			}
			reportRate(b)
		})
	}
}

// BenchmarkFloorPost posts the same payloads with net/http alone. Each request has exactly the
// headers that the specification demands of every POST /messages. Two of their values are made
// for it: a fresh context ID, which may come again with the same payload only, and the time of
// sending. A token is there already, and nothing is checked, limited in time or repeated.
func BenchmarkFloorPost(b *testing.B) {
	base := startSource(b)
	// In the form in which http.Header has them, so that it need not convert them.
	name := http.CanonicalHeaderKey
	isPublish, sentTimestamp := name(gateway.KeyIsPublish), name(gateway.KeySentTimestamp)
	tenantID, endpointID := name(gateway.KeyTenantID), name(gateway.KeyEndpointID)
	messageType, contextID := name(gateway.KeyMessageType), name(gateway.KeyContextID)
	for _, size := range sizes {
		b.Run(sizeName(size), func(b *testing.B) {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			payload := make([]byte, size)
			post := func() {
				// Content-Length is set by NewRequest.
				req := testkit.Must(http.NewRequestWithContext(context.Background(), http.MethodPost, base+"/messages", bytes.NewReader(payload)))(b)
				req.Header.Set("Authorization", "Bearer t")
				req.Header.Set("Content-Type", "application/octet-stream")
				req.Header.Set(isPublish, "true")
				req.Header.Set(sentTimestamp, time.Now().UTC().Format(time.RFC3339Nano))
				req.Header.Set(endpointID, benchEndpoint)
				req.Header.Set(messageType, benchType)
				req.Header.Set(tenantID, benchTenant)
				req.Header.Set(contextID, uuid.NewString())
				resp := testkit.Must(client.Do(req))(b)
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			post()
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				post()
			}
			reportRate(b)
		})
	}
}
