package routertest_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/routertest"
)

// A test of one's own set-up, here Watermill's Router with Retry: it declares what the set-up
// promises, and the suite skips the rest.
func ExampleRun() {
	testRetry := func(t *testing.T) { // TestRetry, in a file of tests
		routertest.Run(t, routertest.Suite{
			New: func(t *testing.T, handle message.NoPublishHandlerFunc) routertest.Setup {
				orders := gochannel.NewGoChannel(gochannel.Config{}, nil)
				return routertest.Setup{
					Send: func(msg *message.Message) error { return orders.Publish("orders", msg) },
					Run: func(ctx context.Context, running func()) error {
						retry, err := router.NewRetry(router.RetryConfig{Stop: ctx.Done()}, nil)
						if err != nil {
							return err
						}
						r, err := message.NewRouter(message.RouterConfig{}, nil)
						if err != nil {
							return err
						}
						r.AddMiddleware(retry.Middleware)
						r.AddConsumerHandler("orders", "orders", orders, handle)
						go func() { // ends with Run
							<-r.Running()
							running()
						}()
						return r.Run(ctx)
					},
				}
			},
			Outage: true,
		})
	}
	_ = testRetry
}
