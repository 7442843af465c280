// Command task-from-map shows how a map of a farm software, in NATS JetStream, becomes a task for a terminal behind the gateway: the
// first half of main is all it takes, with a server and a gateway of your own. The rest stores a map and looks at what arrives. The last
// line of the output is
//
//	OK: North, Urea, 183.7 kg/ha
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/farmdata/isoxml"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	sink "github.com/agrimill/agrimill/sinks/nats"
	source "github.com/agrimill/agrimill/sources/nats"
	"github.com/agrimill/agrimill/subscriber"
)

const north = `{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"FIELD": "North", "RATE": 183.7},
	"geometry": {"type": "Polygon", "coordinates": [[[8, 52], [8.01, 52], [8.01, 52.01], [8, 52.01], [8, 52]]]}}]}`

func main() {
	gate := must(gatewaytest.Start(gatewaytest.Config{}))
	dir := must(os.MkdirTemp("", "agrimill-task-from-map-"))
	server := must(natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir}))
	server.Start()
	stream := must(must(natsgo.Connect("", natsgo.InProcessServer(server))).JetStream())
	must(stream.AddStream(&natsgo.StreamConfig{Name: "MAPS", Subjects: []string{"maps.>"}}))
	office := gate.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{farm.TypeTaskData}}).ID
	gate.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{farm.TypeTaskData}, Subscribe: []string{farm.TypeTaskData}})

	client := must(gateway.New(gate.ClientConfig()))
	maps := must(source.New(source.Config{Connection: sink.Connection{URL: server.ClientURL()}, SubjectPrefix: "maps", Durable: "maps"}, nil))
	terminals := must(publisher.New(publisher.Config{Client: client, TenantID: gate.Tenant(), EndpointID: office}, nil))
	rates := []farm.RateConfig{{Column: "RATE", DDI: "0006", Unit: "kg/ha", Product: farm.NameConfig{Name: "Urea"}}}
	task := must(farm.NewTaskData(farm.TaskDataConfig{Field: farm.NameConfig{Column: "FIELD"}, Columns: rates}))
	r := must(router.New(router.Config{Poison: must(sink.New(sink.Config{Connection: sink.Connection{URL: server.ClientURL()}}, nil))}, nil))
	check(r.Add(router.Route{Name: "tasks", From: maps, Topic: ">", Transform: task, To: terminals, ToTopic: farm.TypeTaskData}))
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()

	must(stream.Publish("maps.north", []byte(north)))
	terminal := must(subscriber.New(subscriber.Config{Client: client}, nil))
	received := <-must(terminal.Subscribe(ctx, farm.TypeTaskData))
	set := must(isoxml.Open(ctx, bytes.NewReader(received.Payload), int64(len(received.Payload)), isoxml.Config{})).Sets[0]
	received.Ack()
	stop()
	check(errors.Join(terminal.Close(), <-result, client.Close()))
	gate.Close()
	server.Shutdown()
	check(os.RemoveAll(dir))
	fmt.Printf("OK: %s, %s, %.1f kg/ha\n", set.Fields[0].Designator, set.Products[0].Designator, set.Prescriptions()[0].Zones[0].Amounts[0].Scaled())
}

func must[T any](value T, err error) T { check(err); return value }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
