//go:build faults

package faulttest

import (
	"errors"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// pipelined has several messages of a key on their way at a time.
func pipelined(also func(*partialWorld, *parts)) func(*partialWorld, *parts) {
	return func(w *partialWorld, p *parts) {
		p.Subscriber.Order = subscriber.OrderByKey
		p.NATS.Ingest = sinks.IngestPipelined
		also(w, p)
	}
}

// failOnSick fails the messages of the sick tenant during a fault.
func failOnSick(w *partialWorld, p *parts) {
	p.Route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		if w.hit(w.faultNow() != nil && w.isSick(msg)) {
			return nil, router.Outage(errors.New("as long as the fault lasts"))
		}
		return []*message.Message{msg}, nil
	}
}

// pipelinedRows are partial faults with ingest: pipelined: one of many keys on their way is sick.
func pipelinedRows() []partialRow {
	elsewhere := gatewaytest.Config{InlineLimit: 1000}
	return []partialRow{
		{name: "P30 pipelined: the handler fails on one key", change: pipelined(failOnSick), sick: 4},
		{name: "P31 pipelined: the handler hangs on one key", change: pipelined(hangOnSick), sick: 4},
		{name: "P32 pipelined: the sink refuses one tenant's topic", change: pipelined(topicOfTenant(0)), sick: 4},
		{name: "P33 pipelined: the sink does not answer for one tenant's topic", change: pipelined(topicOfTenant(brokerTimeout)), sick: 4},
		{name: "P34 pipelined: the sink hangs on one tenant's topic without end", change: pipelined(hangingTopic), strike: burst(40)},
		{
			name: "P35 pipelined: payloads of one tenant answer 500", gateway: elsewhere, size: 2000, change: pipelined(watchPayloads),
			strike: payloads(40, gatewaytest.Fault{Status: http.StatusInternalServerError}),
		},
	}
}
