package bench

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
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
			pub, err := publisher.New(publisher.Config{
				Client: newClient(b, base), TenantID: benchTenant, EndpointID: benchEndpoint,
			}, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = pub.Close() }()
			payload := make([]byte, size)
			publish := func() {
				if err := pub.Publish(benchType, message.NewMessage(uuid.NewString(), payload)); err != nil {
					b.Fatal(err)
				}
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

// BenchmarkFloorPost posts the same payloads with net/http and headers that are
// there already.
func BenchmarkFloorPost(b *testing.B) {
	base := startSource(b)
	for _, size := range sizes {
		b.Run(sizeName(size), func(b *testing.B) {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			header := http.Header{"Authorization": {"Bearer t"}, "Content-Type": {"application/octet-stream"}}
			for _, h := range [][2]string{
				{gateway.KeyTenantID, benchTenant},
				{gateway.KeyEndpointID, benchEndpoint},
				{gateway.KeyContextID, uuid.NewString()},
				{gateway.KeyMessageType, benchType},
				{gateway.KeyIsPublish, "true"},
				{gateway.KeySentTimestamp, "2026-05-04T03:02:01.123Z"},
				{gateway.KeyPayloadSize, strconv.Itoa(size)},
			} {
				header.Set(h[0], h[1])
			}
			payload := make([]byte, size)
			post := func() {
				req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, base+"/messages", bytes.NewReader(payload))
				if err != nil {
					b.Fatal(err)
				}
				req.Header = header
				resp, err := client.Do(req)
				if err != nil {
					b.Fatal(err)
				}
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
