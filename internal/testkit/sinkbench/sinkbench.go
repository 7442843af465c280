// Package sinkbench has what the benchmarks of the sinks share.
package sinkbench

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
)

// Payload is the size of a message's payload.
const Payload = 1024

// Message is the i-th message as the router hands it on: with the metadata of a received
// message, of one of 100 endpoints.
func Message(i int) *message.Message {
	msg := message.NewMessage(fmt.Sprintf("1ae0fd9c-8d46-4b8a-9e52-%012d", i), make([]byte, Payload))
	msg.Metadata[gateway.KeyEventType] = "MESSAGE_RECEIVED"
	msg.Metadata[gateway.KeyMessageID] = msg.UUID
	msg.Metadata[gateway.KeyReceivingEndpointID] = fmt.Sprintf("f7a8c7d0-2b4e-4c57-8a0a-%012d", i%100)
	msg.Metadata[gateway.KeyTenantID] = "0c2b8f7e-6f7e-44d0-b9a8-6c2a6b1f6a01"
	msg.Metadata[gateway.KeyContextID] = msg.UUID
	msg.Metadata[gateway.KeyMessageType] = "iso:11783:-10:taskdata:zip"
	msg.Metadata[gateway.KeySentTimestamp] = "2024-05-05T10:11:12Z"
	msg.Metadata[gateway.KeyDedupID] = msg.UUID
	return msg
}

// InWindow runs f b.N times, at most window at once, and returns messages/s.
func InWindow(b *testing.B, window int, f func(i int) error) float64 {
	b.Helper()
	var next atomic.Int64
	var group sync.WaitGroup
	start := time.Now()
	for range window {
		group.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				if err := f(int(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	return float64(b.N) / time.Since(start).Seconds()
}
