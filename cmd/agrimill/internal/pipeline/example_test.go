package pipeline_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// A configuration becomes a running agrimill: here it writes a line for each message.
func Example() {
	gate, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer gate.Close()
	types := []string{"img:png"}
	camera := gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "camera", Send: types})
	gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "archive", Receive: types, Subscribe: types})

	client := gate.ClientConfig()
	text := fmt.Sprintf(`
gateway: {base_url: %q, token_url: %q, client_id: %q, client_secret: "${SECRET}"}
sinks: {lines: {log: {}}}
routes: [{name: pictures, from: {gateway: "img:png"}, to: {sink: lines}}]
poison: {sink: lines}
`, client.BaseURL, client.TokenURL, client.ClientID)
	cfg, err := config.Parse("agrimill.yaml", []byte(text), config.Options{Env: func(string) string { return string(client.ClientSecret) }})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	agrimill, err := pipeline.New(ctx, cfg, pipeline.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	result := make(chan error, 1)
	go func() { result <- agrimill.Run(ctx) }()

	if _, err := gate.Send(gatewaytest.SendRequest{From: camera.ID, MessageType: "img:png", Payload: []byte("a picture")}); err != nil {
		fmt.Println(err)
	}
	if err := gate.WaitConfirmed(ctx, 1); err != nil {
		fmt.Println(err)
	}
	stop() // it drains
	if err := <-result; err != nil {
		fmt.Println(err)
	}
	for _, route := range agrimill.Snapshot().Routes {
		fmt.Println(route.Name, route.Delivered)
	}
	// Output: pictures 1
}

func ExampleTrial_Run() {
	cfg, err := config.Load("../../examples/minimal.yaml", config.Options{AllowMissing: true})
	if err != nil {
		panic(err)
	}
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set(gateway.KeyEventType, string(gateway.EventFileReceived))
	msg.Metadata.Set(gateway.KeyMessageType, "img:png")
	results, err := pipeline.NewTrial(cfg).Run(context.Background(), "", msg)
	if err != nil {
		panic(err)
	}
	for _, r := range results {
		fmt.Println(r.Route, r.Outcome, r.Messages[0].Topic)
	}
	// Output: farm-data published none.img:png
}
