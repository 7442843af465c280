// Command filter-transform shows how a route selects messages and turns them into others.
// The functions run and hot are all it takes. The rest runs the route between a gateway and
// a broker, and checks the result. The last line of the output is
//
//	OK: 4 messages confirmed: 2 alarms from one, 2 filtered out, 1 poisoned
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

const messageType = "app:example:temperatures:json"

type temperature struct {
	Sensor  string
	Celsius float64
}

func run(ctx context.Context, config gateway.Config, sink sinks.Sink) error {
	client, err := gateway.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	sub, err := subscriber.New(subscriber.Config{Client: client}, nil)
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{Poison: sink}, nil)
	if err != nil {
		return err
	}
	err = r.Add(router.Route{
		Name: "alarms", From: sub, Topic: messageType,
		Filter:    func(m *message.Message) (bool, error) { return m.Metadata[gateway.KeyFilename] != "test.json", nil },
		Transform: hot,
		To:        sink, ToTopic: "alarms",
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// hot returns a message for each temperature that is too high.
func hot(msg *message.Message) ([]*message.Message, error) {
	var temperatures []temperature
	if err := json.Unmarshal(msg.Payload, &temperatures); err != nil {
		return nil, router.Permanent(err) // a retry would fail, too: to the poison queue
	}
	var alarms []*message.Message // none: filtered out
	for _, t := range temperatures {
		if t.Celsius < 90 {
			continue
		}
		payload, err := json.Marshal(t)
		if err != nil {
			return nil, err // retried a few times, then to the poison queue
		}
		alarms = append(alarms, message.NewMessage(watermill.NewUUID(), payload))
	}
	return alarms, nil
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := demo(ctx); err != nil {
		log.Fatal(err)
	}
}

func demo(ctx context.Context) error {
	gate, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		return err
	}
	defer gate.Close()
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil) // any Watermill publisher can be a sink
	alarms, err := broker.Subscribe(ctx, "alarms")
	if err != nil {
		return err
	}
	poisoned, err := broker.Subscribe(ctx, router.DefaultPoisonTopic)
	if err != nil {
		return err
	}
	sender := gate.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{messageType}})
	gate.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{messageType}, Subscribe: []string{messageType}})
	for name, content := range map[string]string{
		"1.json":    `[{"Sensor": "oil", "Celsius": 95}, {"Sensor": "air", "Celsius": 21}, {"Sensor": "engine", "Celsius": 99}]`,
		"2.json":    `[{"Sensor": "oil", "Celsius": 80}]`,
		"3.json":    `not JSON`,
		"test.json": `[{"Sensor": "oil", "Celsius": 95}]`,
	} {
		request := gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Filename: name, Payload: []byte(content)}
		if _, err := gate.Send(request); err != nil {
			return err
		}
	}

	running, stop := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() {
		result <- run(running, gate.ClientConfig(), sinks.FromPublisher("broker", broker, sinks.PublisherConfig{}))
	}()
	err = errors.Join(
		receive(alarms, `{"Sensor":"oil","Celsius":95}`, `{"Sensor":"engine","Celsius":99}`),
		receive(poisoned, `not JSON`),
		gate.WaitConfirmed(ctx, 4),
	)
	stop()
	if err := errors.Join(err, <-result); err != nil {
		return err
	}
	fmt.Println("OK: 4 messages confirmed: 2 alarms from one, 2 filtered out, 1 poisoned")
	return nil
}

// receive waits for messages in any order, because a GoChannel keeps none.
func receive(messages <-chan *message.Message, want ...string) error {
	for len(want) > 0 {
		msg, open := <-messages
		i := slices.IndexFunc(want, func(payload string) bool { return open && string(msg.Payload) == payload })
		if i < 0 {
			return fmt.Errorf("%s did not arrive", want)
		}
		msg.Ack()
		want = slices.Delete(want, i, i+1)
	}
	return nil
}
