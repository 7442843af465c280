// Command time-logs shows how to put decoded time logs into NATS JetStream: the first half of main is all
// it takes, with a server and a gateway of your own. The rest sends a log and looks at what is stored. The
// last line of the output is
//
//	OK: {"record":0,"time":"2026-05-04T06:30:00Z","north":52.5,"east":7.5,"status":0,"values":{"0043_DET-1":9000}}
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

const timeLog = "iso:11783:-10:time_log:protobuf"

func main() {
	gate := must(gatewaytest.Start(gatewaytest.Config{}))
	dir := must(os.MkdirTemp("", "agrimill-time-logs-"))
	server := must(natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir}))
	server.Start()

	client := must(gateway.New(gate.ClientConfig()))
	sink := must(nats.New(nats.Config{Connection: nats.Connection{URL: server.ClientURL()}}, nil))
	sub := must(subscriber.New(subscriber.Config{Client: client}, nil))
	records := must(farm.NewRecords(farm.RecordsConfig{BatchRecords: 1000}))
	r := must(router.New(router.Config{Poison: sink}, nil))
	check(r.Add(router.Route{Name: "time logs", From: sub, Topic: timeLog, Transform: records, To: sink}))
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()

	stored := must(must(natsgo.Connect("", natsgo.InProcessServer(server))).SubscribeSync("agrimill.>"))
	sender := gate.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{timeLog}})
	gate.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{timeLog}, Subscribe: []string{timeLog}})
	width := &efdipb.DataLogValue{Ddi: 0x43, Value: 9000, DeviceElement: &efdipb.UID{Number: -1}}
	payload := must(proto.Marshal(&efdipb.TimeLog{Time: []*efdipb.Time{{
		Start:         timestamppb.New(time.Date(2026, time.May, 4, 6, 30, 0, 0, time.UTC)),
		PositionStart: &efdipb.Position{North: 52.5, East: 7.5}, DataLogValue: []*efdipb.DataLogValue{width},
	}}}))
	must(gate.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: timeLog, Payload: payload}))
	lines := strings.Split(string(must(stored.NextMsgWithContext(ctx)).Data), "\n")
	check(gate.WaitConfirmed(ctx, 1))
	stop()
	check(<-result) // the router has closed the subscriber and the sink
	check(client.Close())
	gate.Close()
	server.Shutdown()
	check(os.RemoveAll(dir))
	fmt.Println("OK:", lines[1])
}

func must[T any](value T, err error) T { check(err); return value }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
