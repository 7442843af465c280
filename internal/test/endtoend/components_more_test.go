package endtoend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/requestreply"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/sony/gobreaker"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
)

var jsonMarshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

func newRouter(t *testing.T) *message.Router {
	return testkit.Must(message.NewRouter(message.RouterConfig{CloseTimeout: testkit.Patience}, nil))(t)
}

// commands returns a bus and a processor of commands, each in the topic of its type.
func commands(t *testing.T, b componentBroker, r *message.Router) (*cqrs.CommandBus, *cqrs.CommandProcessor) {
	bus := testkit.Must(cqrs.NewCommandBusWithConfig(b.publisher, cqrs.CommandBusConfig{
		Marshaler: jsonMarshaler,
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return "commands." + p.CommandName, nil
		},
	}))(t)
	processor := testkit.Must(cqrs.NewCommandProcessorWithConfig(r, cqrs.CommandProcessorConfig{
		Marshaler: jsonMarshaler,
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return "commands." + p.CommandName, nil
		},
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return b.subscriber(p.HandlerName), nil
		},
	}))(t)
	return bus, processor
}

// A command reaches its handler, and comes again until that succeeds.
func TestComponentCommands(t *testing.T) {
	t.Parallel()
	eachBroker(t, []string{"commands.weighed"}, func(t *testing.T, b componentBroker) {
		r := newRouter(t)
		bus, processor := commands(t, b, r)
		got := make(chan string, 100)
		failed := false
		testkit.NoError(t, processor.AddHandlers(cqrs.NewCommandHandler("w", func(_ context.Context, c *weighed) error {
			if c.Number == 1 && !failed {
				failed = true
				return errors.New("not yet")
			}
			got <- fmt.Sprint(c.Number)
			return nil
		})))
		start(t, r.Run)
		for n := range 3 {
			testkit.NoError(t, bus.Send(t.Context(), &weighed{n}))
		}
		receive(t, got, map[string]bool{"0": true, "1": true, "2": true})
	})
}

// Each group gets all events of the topic, whatever their types, and what none of its handlers takes does not stop it.
func TestComponentEventGroups(t *testing.T) {
	t.Parallel()
	eachBroker(t, []string{"events"}, func(t *testing.T, b componentBroker) {
		bus := testkit.Must(cqrs.NewEventBusWithConfig(b.publisher, cqrs.EventBusConfig{
			Marshaler:            jsonMarshaler,
			GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "events", nil },
		}))(t)
		r := newRouter(t)
		processor := testkit.Must(cqrs.NewEventGroupProcessorWithConfig(r, cqrs.EventGroupProcessorConfig{
			Marshaler: jsonMarshaler, AckOnUnknownEvent: true,
			GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) {
				return "events", nil
			},
			SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return b.subscriber(p.EventGroupName), nil
			},
		}))(t)
		got := make(chan string, 100)
		tell := func(group string) (cqrs.GroupEventHandler, cqrs.GroupEventHandler) {
			return cqrs.NewGroupEventHandler(func(_ context.Context, e *harvested) error {
					got <- fmt.Sprint(group, " harvested ", e.Number)
					return nil
				}),
				cqrs.NewGroupEventHandler(func(_ context.Context, e *weighed) error { got <- fmt.Sprint(group, " weighed ", e.Number); return nil })
		}
		h, w := tell("all")
		testkit.NoError(t, processor.AddHandlersGroup("all", h, w))
		_, w = tell("scales")
		testkit.NoError(t, processor.AddHandlersGroup("scales", w))
		start(t, r.Run)
		want := map[string]bool{}
		for i := range 5 {
			for _, event := range []any{harvested{i}, weighed{i}} {
				testkit.NoError(t, bus.Publish(t.Context(), event))
			}
			want[fmt.Sprint("all harvested ", i)], want[fmt.Sprint("all weighed ", i)], want[fmt.Sprint("scales weighed ", i)] = true, true, true
		}
		receive(t, got, want)
	})
}

// Whoever sends a command gets the result of its handler, and its error.
func TestComponentRequestReply(t *testing.T) {
	t.Parallel()
	eachBroker(t, []string{"commands.weighed", "replies"}, func(t *testing.T, b componentBroker) {
		r := newRouter(t)
		bus, processor := commands(t, b, r)
		// Nobody closes the subscriber of a request, so a source of its own would leave its connection, and its durable.
		replies := testkit.Must(gochannel.NewFanOut(b.subscriber("replies-here"), nil))(t)
		replies.AddSubscription("replies")
		start(t, replies.Run)
		backend := testkit.Must(requestreply.NewPubSubBackend(requestreply.PubSubBackendConfig{
			Publisher: b.publisher, AckCommandErrors: true,
			SubscriberConstructor:  func(requestreply.PubSubBackendSubscribeParams) (message.Subscriber, error) { return replies, nil },
			GeneratePublishTopic:   func(requestreply.PubSubBackendPublishParams) (string, error) { return "replies", nil },
			GenerateSubscribeTopic: func(requestreply.PubSubBackendSubscribeParams) (string, error) { return "replies", nil },
		}, requestreply.BackendPubsubJSONMarshaler[int]{}))(t)
		testkit.NoError(t, processor.AddHandlers(requestreply.NewCommandHandlerWithResult("w", backend, func(_ context.Context, c *weighed) (int, error) {
			if c.Number == 2 {
				return 0, errors.New("the scales are broken")
			}
			return 10 * c.Number, nil
		})))
		start(t, r.Run)
		<-replies.Running()
		for n := range 3 {
			reply := testkit.Must(requestreply.SendWithReply(t.Context(), bus, backend, &weighed{n}))(t)
			if failed := n == 2; failed != (reply.Error != nil) || !failed && reply.HandlerResult != 10*n {
				t.Errorf("request %d: %+v", n, reply)
			}
		}
	})
}

// A Requeuer publishes to its old topic what a handler's PoisonQueue took, and counts how often. Over the gateway both
// would publish what was received under another type, which is refused.
func TestComponentRequeuer(t *testing.T) {
	t.Parallel()
	realBrokers(t, []string{"orders", "failed"}, func(t *testing.T, b componentBroker) {
		requeue := testkit.Must(requeuer.NewRequeuer(requeuer.Config{
			Subscriber: b.subscriber("requeuer"), SubscribeTopic: "failed", Publisher: b.publisher, Delay: time.Millisecond,
			GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return "orders", nil },
			Router:               newRouter(t),
		}, nil))(t)
		r := newRouter(t)
		r.AddMiddleware(testkit.Must(middleware.PoisonQueue(b.publisher, "failed"))(t))
		got := make(chan string, 10)
		r.AddConsumerHandler("orders", "orders", b.subscriber("orders"), func(msg *message.Message) error {
			if msg.Metadata.Get(requeuer.RetriesKey) == "" {
				return errors.New("not yet")
			}
			got <- fmt.Sprint(string(msg.Payload), " after ", msg.Metadata.Get(requeuer.RetriesKey))
			return nil
		})
		start(t, r.Run)
		start(t, requeue.Run)
		publish(t, b.publisher, "orders", "1")
		named := message.NewMessage("2", []byte("2"))
		named.Metadata.Set(gateway.KeyDedupID, "named by a route")
		testkit.NoError(t, b.publisher.Publish("orders", named))
		receive(t, got, map[string]bool{"1 after 1": true, "2 after 1": true})
	})
}

// Watermill's middlewares around a handler: each message is handled, or is in the queue, once.
func TestComponentMiddlewares(t *testing.T) {
	t.Parallel()
	realBrokers(t, []string{"orders", "failed"}, func(t *testing.T, b componentBroker) {
		r := newRouter(t)
		r.AddMiddleware(
			testkit.Must(middleware.PoisonQueue(b.publisher, "failed"))(t),
			middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}.Middleware,
			middleware.NewThrottle(1000, time.Second).Middleware,
			middleware.Recoverer,
		)
		got := make(chan string, 10)
		r.AddConsumerHandler("orders", "orders", b.subscriber("orders"), func(msg *message.Message) error {
			if string(msg.Payload) == "2" {
				panic("2 is never right")
			}
			got <- "handled " + string(msg.Payload)
			return nil
		})
		failed := testkit.Must(b.subscriber("failed").Subscribe(t.Context(), "failed"))(t)
		go func() { // ends with the subscription
			for msg := range failed {
				got <- fmt.Sprint("failed ", string(msg.Payload), strings.Contains(msg.Metadata.Get(middleware.ReasonForPoisonedKey), "never right"))
				msg.Ack()
			}
		}()
		start(t, r.Run)
		for _, uuid := range []string{"1", "2", "3"} {
			publish(t, b.publisher, "orders", uuid)
		}
		receive(t, got, map[string]bool{"handled 1": true, "failed 2true": true, "handled 3": true})
	})
}

// A breaker that has opened lets nothing through: the messages come again until it closes.
func TestComponentCircuitBreaker(t *testing.T) {
	t.Parallel()
	eachBroker(t, []string{"orders"}, func(t *testing.T, b componentBroker) {
		var mended atomic.Bool
		opened := make(chan struct{})
		r := newRouter(t)
		r.AddMiddleware(middleware.NewCircuitBreaker(gobreaker.Settings{
			Timeout:     time.Millisecond,
			ReadyToTrip: func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures == 2 },
			OnStateChange: func(_ string, _, to gobreaker.State) {
				if to == gobreaker.StateOpen && !mended.Swap(true) {
					close(opened)
				}
			},
		}).Middleware)
		got := make(chan string, 10)
		r.AddConsumerHandler("orders", "orders", b.subscriber("orders"), func(msg *message.Message) error {
			if !mended.Load() {
				return errors.New("not yet")
			}
			got <- string(msg.Payload)
			return nil
		})
		start(t, r.Run)
		for _, uuid := range []string{"1", "2", "3"} {
			publish(t, b.publisher, "orders", uuid)
		}
		testkit.Ends(t, "the breaker opens", func() { <-opened })
		receive(t, got, map[string]bool{"1": true, "2": true, "3": true})
	})
}

// No broker here delays what is published with a delay: it comes at once, and says when it was to come.
func TestComponentDelay(t *testing.T) {
	t.Parallel()
	eachBroker(t, []string{"orders"}, func(t *testing.T, b componentBroker) {
		delayed := testkit.Must(delay.NewPublisher(b.publisher, delay.PublisherConfig{
			DefaultDelayGenerator: func(delay.DefaultDelayGeneratorParams) (delay.Delay, error) { return delay.For(time.Hour), nil },
		}))(t)
		messages := testkit.Must(b.subscriber("reader").Subscribe(t.Context(), "orders"))(t)
		publish(t, delayed, "orders", "1")
		testkit.Ends(t, "receiving", func() {
			msg := <-messages
			if msg.Metadata.Get(delay.DelayedForKey) != "1h0m0s" {
				t.Errorf("%v", msg.Metadata)
			}
			msg.Ack()
		})
	})
}

// What a component needs of the metadata does not arrive over the gateway without an envelope, so it is not sent.
func TestComponentWithoutEnvelope(t *testing.T) {
	t.Parallel()
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{"events.harvested"}})
	pub := testkit.Must(publisher.New(publisher.Config{Client: server.Client(), TenantID: server.Tenant(), EndpointID: sender.ID}, nil))(t)
	bus := testkit.Must(cqrs.NewEventBusWithConfig(pub, cqrs.EventBusConfig{
		Marshaler:            jsonMarshaler,
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return "events." + p.EventName, nil },
	}))(t)
	err := bus.Publish(t.Context(), harvested{1})
	var refused *publisher.MetadataError
	if !errors.As(err, &refused) || refused.Key != "name" || !strings.Contains(err.Error(), "envelope marshaler") {
		t.Errorf("%v", err)
	}
	requested := message.NewMessage(watermill.NewUUID(), nil)
	requested.Metadata.Set(requestreply.OperationIDMetadataKey, "1")
	if err := pub.Publish("events.harvested", requested); !errors.As(err, &refused) || refused.Key != requestreply.OperationIDMetadataKey {
		t.Errorf("%v", err)
	}
	if sent := server.Stats(gatewaytest.OpSendMessage).Requests; sent != 0 {
		t.Errorf("%d requests", sent)
	}
}
