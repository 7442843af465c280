package admin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"net/http"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/subscriber"
)

// loader is a pipeline that carries nothing: it has one sink, which answers.
type loader struct{}

func (loader) Snapshot() admin.Snapshot {
	return admin.Snapshot{State: admin.StateRunning, Name: "loader", Sinks: []admin.Sink{{Name: "farm", Kind: "log", Up: true}}}
}
func (loader) Tenants(context.Context) ([]admin.Tenant, error) { return nil, nil }
func (loader) Payloads() gateway.PayloadOpener                 { return nil }
func (loader) Devices() *farm.Devices                          { return nil }
func (loader) Stored(context.Context, *journal.Message) iter.Seq2[admin.StoredCopy, error] {
	return func(func(admin.StoredCopy, error) bool) {}
}
func (loader) PoisonStore() router.PoisonStore { return nil }
func (loader) Journal() *journal.Journal       { return nil }
func (loader) Settings() []admin.Setting       { return nil }
func (loader) History() *history.History       { return nil }
func (loader) Open() []subscriber.Open         { return nil }
func (loader) Why(q why.Question) why.Answer   { return why.Answer{Question: q} }
func (loader) Replay(context.Context, router.PoisonStore, []string) (router.ReplayReport, error) {
	return router.ReplayReport{}, errors.New("there is no poison queue")
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
