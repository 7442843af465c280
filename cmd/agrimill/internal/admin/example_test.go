package admin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
)

// loader is a pipeline that carries nothing: it has one sink, which answers.
type loader struct{ admin.Source }

func (loader) Snapshot() admin.Snapshot {
	return admin.Snapshot{State: admin.StateRunning, Name: "loader", Sinks: []admin.Sink{{Name: "farm", Kind: "log", Up: true}}}
}

func Example() {
	server, err := admin.New(admin.Config{Address: "127.0.0.1:0"}, loader{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()

	// A client that keeps no connection open.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + server.Addr() + "/healthz")
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d %s", response.StatusCode, body)

	stop()
	fmt.Println(<-served)
	// Output:
	// 200 ok
	// <nil>
}
