package main

import (
	"context"
	"errors"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// bridge carries everything that the gateway delivers into NATS JetStream, until
// ctx ends. What could not be stored by then was not confirmed, and comes again.
func bridge(ctx context.Context, config gateway.Config, natsURL string) error {
	client, err1 := gateway.New(config)
	sub, err2 := subscriber.New(subscriber.Config{Client: client}, nil)
	sink, err3 := nats.New(nats.Config{URL: natsURL}, nil)
	r, err4 := router.New(router.Config{Poison: sink}, nil)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	route := router.Route{Name: "farm data", From: sub, Topic: subscriber.AllData, To: sink}
	if err := r.Add(route); err != nil {
		return err
	}
	return errors.Join(r.Run(ctx), client.Close())
}
