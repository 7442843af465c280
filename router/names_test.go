package router_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// watermillNames are all names that Watermill reads from a context.
func watermillNames(ctx context.Context) [5]string {
	return [...]string{
		message.HandlerNameFromCtx(ctx), message.SubscriberNameFromCtx(ctx), message.PublisherNameFromCtx(ctx),
		message.SubscribeTopicFromCtx(ctx), message.PublishTopicFromCtx(ctx),
	}
}

// Watermill's own Router has to find in the context what ours puts there, and the
// reverse, or a new version of it has other keys.
func TestNamesAreThoseOfWatermill(t *testing.T) {
	from, to := newSource(), newSink(nil)
	route := farmRoute(from, to)
	noted := make(chan [5]string, 1)
	route.Middleware = []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			noted <- watermillNames(msg.Context())
			return h(msg)
		}
	}}
	start(t, router.Config{Poison: newSink(nil)}, route)
	msg := farmMessage("1", "e", "c", "p")
	from.deliver(t, msg)
	ours := <-noted
	if want := [...]string{route.Name, "*router_test.source", "*router_test.memorySink", route.Topic, ""}; ours != want {
		t.Errorf("names %q, want %q", ours, want)
	}

	pubsub := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1, Persistent: true}, nil)
	defer func() { _ = pubsub.Close() }()
	stock := message.NewDefaultRouter(watermill.NopLogger{})
	stock.AddConsumerHandler(route.Name, route.Topic, pubsub, func(msg *message.Message) error {
		noted <- watermillNames(msg.Context())
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- stock.Run(t.Context()) }() // ends with Close
	<-stock.Running()
	testkit.NoError(t, pubsub.Publish(route.Topic, message.NewMessage("1", nil)))
	theirs := <-noted
	if theirs[0] != ours[0] || theirs[3] != ours[3] {
		t.Errorf("names %q under Watermill's Router, %q under ours", theirs, ours)
	}
	testkit.NoError(t, stock.Close())
	testkit.NoError(t, <-ended)
}
