package publisher_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/publisher"
)

// noNetwork checks messages as the real client does and sends none: what is
// left is the work of the publisher.
type noNetwork struct{ publisher.Client }

func (noNetwork) SendMessage(context.Context, gateway.SendMessageRequest) error { return nil }

// BenchmarkPublish tells what the publisher itself costs for each message. It
// does not depend on the size: the publisher copies no payloads.
func BenchmarkPublish(b *testing.B) {
	client, err := gateway.New(gateway.Config{BaseURL: "http://gateway.example", TokenURL: "http://gateway.example/token", ClientID: "a", ClientSecret: "b"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	pub, err := publisher.New(publisher.Config{Client: noNetwork{client}, TenantID: someID, EndpointID: someID}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = pub.Close() })
	for _, size := range []int{1 << 10, 32 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			payload := make([]byte, size)
			b.ReportAllocs()
			for b.Loop() {
				if err := pub.Publish(typeJSON, message.NewMessage(someID, payload)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
