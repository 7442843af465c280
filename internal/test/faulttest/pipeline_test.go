//go:build faults

package faulttest

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	messageType = "app:test:json"
	fileType    = "iso:11783:-10:taskdata:zip"
	dataTopic   = "data"
)

// parts are the configurations of a pipeline, to be changed before it is built.
type parts struct {
	broker address

	Gateway    gateway.Config
	Subscriber subscriber.Config
	NATS       nats.Config
	Kafka      kafka.Config
	Router     router.Config
	Route      router.Route
	// More returns further routes. Nil: none.
	More func(from message.Subscriber, to sinks.Sink) []router.Route
	// Store is the file of a store that outlives the process. Empty: in memory.
	Store string

	// The wrappers stand between the parts. Nil: nothing does.
	Client func(subscriber.Client) subscriber.Client
	Sink   func(sinks.Sink) sinks.Sink
	Dedup  func(router.DedupStore) router.DedupStore
}

// newParts has waits that are short enough for tests, but for the one at the end: a row ends when its
// messages are done, however long that takes on this machine.
func newParts(client gateway.Config, at address) *parts {
	client.Retry = gateway.RetryConfig{InitialBackoff: 10 * time.Millisecond, MaxBackoff: 200 * time.Millisecond, MaxRetryAfter: 300 * time.Millisecond}
	client.RateLimit = gateway.RateLimitConfig{Pause: 20 * time.Millisecond, MinRate: 20, Growth: 2}
	client.StreamIdleTimeout = time.Second
	client.RequestTimeout = 2 * time.Second
	client.TokenTimeout = time.Second
	client.StreamConnectTimeout = 2 * time.Second
	client.PayloadIdleTimeout = time.Second
	short := subscriber.Backoff{Initial: 10 * time.Millisecond, Max: 200 * time.Millisecond}
	return &parts{
		broker:  at,
		Gateway: client,
		Subscriber: subscriber.Config{
			Files: []string{fileType}, Nack: short, Reconnect: short, Order: subscriber.Unordered,
			WholeFileHold: 50 * time.Millisecond,
			DrainTimeout:  testkit.Patience, CloseTimeout: 2 * testkit.Patience,
			Confirm:    subscriber.ConfirmConfig{MaxAge: 10 * time.Millisecond, Retry: short},
			Payload:    subscriber.PayloadConfig{Retry: short},
			Quarantine: subscriber.QuarantineConfig{Retry: short},
		},
		NATS:  nats.Config{PublishTimeout: brokerTimeout, Connection: nats.Connection{ConnectTimeout: testkit.Patience}, CloseTimeout: testkit.Patience},
		Kafka: kafka.Config{PublishTimeout: 3 * time.Second, Connection: kafka.Connection{ConnectTimeout: testkit.Patience}, CloseTimeout: testkit.Patience},
		Router: router.Config{
			CloseTimeout: 2 * testkit.Patience,
			Retry:        router.RetrySettings{InitialBackoff: 10 * time.Millisecond, MaxBackoff: 200 * time.Millisecond},
			Dedup:        router.DedupSettings{Lease: 5 * time.Second},
		},
		Route: router.Route{Name: "farm data", Topic: subscriber.AllData, ToTopic: dataTopic},
	}
}

// below has every publish go through a function, which stands between what the oracle watches and the broker.
func (p *parts) below(publish func(to sinks.Sink, topic string, messages ...*message.Message) error) {
	watch := p.Sink
	p.Sink = func(s sinks.Sink) sinks.Sink { return watch(&hookedSink{s, publish}) }
}

type hookedSink struct {
	sinks.Sink
	publish func(to sinks.Sink, topic string, messages ...*message.Message) error
}

func (s *hookedSink) Publish(topic string, messages ...*message.Message) error {
	return s.publish(s.Sink, topic, messages...)
}

// hasty lets a pipeline end under a fault, with what it could not do.
func (p *parts) hasty() {
	p.Subscriber.DrainTimeout, p.Subscriber.CloseTimeout, p.Router.CloseTimeout = 3*time.Second, 6*time.Second, 8*time.Second
	p.NATS.CloseTimeout, p.Kafka.CloseTimeout = 3*time.Second, 3*time.Second
	p.NATS.ConnectTimeout, p.Kafka.ConnectTimeout = 20*time.Second, 20*time.Second
}

// pipeline is one process that embeds the library.
type pipeline struct {
	router *router.Router
	sub    *subscriber.Subscriber // nil on the way back
	client *gateway.Client
	run    chan error
	cancel context.CancelFunc
}

// build makes a pipeline and starts it.
func build(p *parts, logger watermill.LoggerAdapter) (*pipeline, error) {
	client, err := gateway.New(p.Gateway)
	if err != nil {
		return nil, err
	}
	p.Subscriber.Client = client
	if p.Client != nil {
		p.Subscriber.Client = p.Client(client)
	}
	sink, err := openSink(p, logger)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	if p.Sink != nil {
		sink = p.Sink(sink)
	}
	p.Subscriber.Quarantine.Publisher = sink
	sub, err := subscriber.New(p.Subscriber, logger)
	if err != nil {
		return nil, errors.Join(err, sink.Close(), client.Close())
	}
	if p.Store != "" {
		store, err := boltstore.New(boltstore.Config{Path: p.Store})
		if err != nil {
			return nil, errors.Join(err, sink.Close(), sub.Close(), client.Close())
		}
		p.Router.Dedup.Store = store
	}
	if p.Dedup != nil {
		p.Router.Dedup.Store = p.Dedup(p.Router.Dedup.Store)
	}
	p.Router.Poison = sink
	r, err := router.New(p.Router, logger)
	if err != nil {
		return nil, errors.Join(err, sink.Close(), sub.Close(), client.Close())
	}
	p.Route.From, p.Route.To = sub, sink
	routes := []router.Route{p.Route}
	if p.More != nil {
		routes = append(routes, p.More(sub, sink)...)
	}
	for _, route := range routes {
		if err := r.Add(route); err != nil {
			return nil, errors.Join(err, r.Close(), client.Close())
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	own := &pipeline{router: r, sub: sub, client: client, run: make(chan error, 1), cancel: cancel}
	go func() { own.run <- r.Run(ctx) }() // ends with ctx
	return own, nil
}

// stop ends the pipeline as an application would, by its context.
func (p *pipeline) stop() error {
	p.cancel()
	err := <-p.run
	p.run <- err
	return errors.Join(err, p.client.Close())
}

func (p *pipeline) health() router.RouteHealth { return p.router.Health()[0] }
