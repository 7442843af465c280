package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/demo"
	"github.com/agrimill/agrimill/internal/farmfile"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	// chunkSize is the size above which the gateway splits a payload.
	chunkSize = 1 << 20
	// streamName and subjectPrefix are where the router stores messages.
	streamName    = "AGRIMILL"
	subjectPrefix = "agrimill"
	poisonTopic   = "poison"
	// closeTimeout bounds stopping the route, and assessTimeout the check of what arrived
	// after that. Both come on top of -timeout.
	closeTimeout  = 2 * time.Second
	assessTimeout = 15 * time.Second
)

// flow is one run: what is sent, and what has been observed of it.
type flow struct {
	progress *progress
	server   *gatewaytest.Server
	natsURL  string
	files    []demo.File
	// contextIDs are the gateway's IDs of the payloads, fixed before sending.
	contextIDs []string
	sent       []bool

	mu sync.Mutex
	// received are the message IDs that reached the route.
	received map[string]bool
}

// run moves the files from one endpoint through the gateway and the router into JetStream.
// It ends when everything is confirmed, when something has failed for good, or with ctx.
// The report is complete in all cases.
func run(ctx context.Context, files []demo.File, progress *progress) (result report, err error) {
	broker, err := demo.StartNATS()
	if err != nil {
		return report{}, err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	server, err := gatewaytest.Start(gatewaytest.Config{ChunkSize: chunkSize})
	if err != nil {
		return report{}, err
	}
	defer server.Close()
	progress.printf("gateway at %s, NATS JetStream at %s", server.BaseURL(), broker.URL())

	return newFlow(files, progress, server, broker.URL()).run(ctx)
}

func newFlow(files []demo.File, progress *progress, server *gatewaytest.Server, natsURL string) *flow {
	f := &flow{
		progress: progress, server: server, natsURL: natsURL,
		files: files, contextIDs: make([]string, len(files)), sent: make([]bool, len(files)),
		received: map[string]bool{},
	}
	for i := range files {
		f.contextIDs[i] = watermill.NewUUID()
	}
	return f
}

func (f *flow) run(ctx context.Context) (report, error) {
	workErr := f.work(ctx)
	assess, cancel := context.WithTimeout(context.WithoutCancel(ctx), assessTimeout)
	defer cancel()
	result, err := f.assess(assess)
	return result, errors.Join(workErr, err)
}

// work does what an application would do: endpoints, a publisher, a route.
func (f *flow) work(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// On a timeout, the cause says more than "context deadline exceeded".
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()

	logger := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(f.progress, &slog.HandlerOptions{Level: slog.LevelWarn})))
	client, err := gateway.New(f.server.ClientConfig())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	sender, err := f.createEndpoints(ctx, client)
	if err != nil {
		return err
	}
	endRoute, err := f.startRoute(ctx, cancel, client, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endRoute()) }()

	if err := f.send(ctx, client, sender.ID, logger); err != nil {
		return err
	}
	if err := f.server.Wait(ctx, f.allConfirmed); err != nil {
		return err
	}
	f.progress.printf("everything is confirmed; closing the route")
	return nil
}

// createEndpoints creates the sender and the receiver through the gateway's
// API and returns the sender.
func (f *flow) createEndpoints(ctx context.Context, client *gateway.Client) (sender gateway.Endpoint, err error) {
	var (
		sends, receives []gateway.EndpointCapability
		subscribes      []gateway.EndpointSubscription
	)
	for _, t := range f.messageTypes(func(demo.File) bool { return true }) {
		sends = append(sends, gateway.EndpointCapability{MessageType: t, Direction: gateway.DirectionSend})
		receives = append(receives, gateway.EndpointCapability{MessageType: t, Direction: gateway.DirectionReceive})
		subscribes = append(subscribes, gateway.EndpointSubscription{MessageType: t})
	}
	put := func(name string, capabilities []gateway.EndpointCapability, subscriptions []gateway.EndpointSubscription) (gateway.Endpoint, error) {
		endpoint, _, err := client.PutEndpoint(ctx, f.server.Tenant(), "urn:quickstart:"+name, gateway.PutEndpointRequest{
			Name:              "Quickstart " + name,
			ApplicationID:     f.server.Application().ID,
			SoftwareVersionID: f.server.Application().SoftwareVersionID,
			Capabilities:      capabilities,
			Subscriptions:     subscriptions,
			EndpointType:      gateway.EndpointTypeCloudSoftware,
		})
		if err != nil {
			return gateway.Endpoint{}, fmt.Errorf("creating endpoint %s: %w", name, err)
		}
		f.progress.printf("endpoint %s created: %s", name, endpoint.ID)
		return endpoint, nil
	}
	if _, err := put("receiver", receives, subscribes); err != nil {
		return gateway.Endpoint{}, err
	}
	return put("sender", sends, nil)
}

// startRoute starts the route from the gateway into JetStream. end stops it,
// waits for it, and returns its error. A route that ends by itself ends the
// whole run through fail.
func (f *flow) startRoute(ctx context.Context, fail context.CancelCauseFunc, client *gateway.Client, logger watermill.LoggerAdapter) (end func() error, err error) {
	sub, err := subscriber.New(subscriber.Config{
		Client: client,
		// A type whose payloads the gateway splits is delivered as files; all others are
		// delivered as they arrive.
		Files:         f.messageTypes(func(p demo.File) bool { return len(p.Data) > chunkSize }),
		FileHold:      2 * time.Second,
		WholeFileHold: 200 * time.Millisecond,
		ChunkSize:     chunkSize,
		CloseTimeout:  closeTimeout,
	}, logger)
	if err != nil {
		return nil, err
	}
	sink, err := nats.New(nats.Config{Connection: nats.Connection{URL: f.natsURL}, Stream: streamName, SubjectPrefix: subjectPrefix}, logger)
	if err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	r, err := router.New(router.Config{
		Poison: sink, PoisonTopic: poisonTopic, CloseTimeout: closeTimeout, Observer: f,
	}, logger)
	if err == nil {
		err = r.Add(router.Route{Name: "farm data", From: sub, Topic: subscriber.AllData, To: sink})
	}
	if err != nil {
		return nil, errors.Join(err, sub.Close(), sink.Close())
	}

	runCtx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	var runErr error
	go func() { // ended by stop; end waits for it
		defer close(ended)
		runErr = r.Run(runCtx)
		if runCtx.Err() == nil {
			fail(fmt.Errorf("the route ended by itself: %w", runErr))
		}
	}()
	return func() error {
		stop()
		<-ended
		return errors.Join(runErr, sub.Close(), sink.Close())
	}, nil
}

// Observe implements [router.Observer]: it records what reaches the route, and reports what becomes of it.
func (f *flow) Observe(event router.Event) {
	if event.Message == nil {
		return
	}
	what := ""
	switch event.Kind {
	case router.EventStarted:
		what = "received"
		ids := strings.Split(event.Message.Metadata.Get(gateway.KeyMessageIDs), ",")
		ids = append(ids, event.Message.Metadata.Get(gateway.KeyMessageID))
		f.mu.Lock()
		for _, id := range ids {
			f.received[id] = true
		}
		f.mu.Unlock()
	case router.EventDelivered:
		what = "stored  "
	case router.EventPoisoned:
		what = "POISONED"
	case router.EventRetry:
		what = "NOT stored"
	default:
		return
	}
	f.progress.printf("%s %s (%d bytes)", what, event.Message.Metadata.Get(gateway.KeyFilename), len(event.Message.Payload))
}

// send publishes every file.
func (f *flow) send(ctx context.Context, client *gateway.Client, senderID string, logger watermill.LoggerAdapter) (err error) {
	pub, err := publisher.New(publisher.Config{Client: client, TenantID: f.server.Tenant(), EndpointID: senderID}, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	for i, file := range f.files {
		msg := message.NewMessage(f.contextIDs[i], file.Data)
		msg.SetContext(ctx)
		msg.Metadata.Set(gateway.KeyFilename, farmfile.WireFilename(file.Name))
		if err := pub.Publish(file.MessageType, msg); err != nil {
			return fmt.Errorf("sending %s: %w", farmfile.Printable(file.Name), err)
		}
		f.sent[i] = true
		f.progress.printf("sent     %s (%d bytes) as %s", farmfile.Printable(file.Name), len(file.Data), file.MessageType)
	}
	return nil
}

// messageTypes lists the message types of the files that keep accepts, each once.
func (f *flow) messageTypes(keep func(demo.File) bool) []string {
	var types []string
	for _, file := range f.files {
		if keep(file) && !slices.Contains(types, file.MessageType) {
			types = append(types, file.MessageType)
		}
	}
	return types
}

// entriesOf groups the gateway's ledger by payload.
func entriesOf(ledger []gatewaytest.LedgerEntry) map[string][]gatewaytest.LedgerEntry {
	byContext := map[string][]gatewaytest.LedgerEntry{}
	for _, entry := range ledger {
		byContext[entry.ContextID] = append(byContext[entry.ContextID], entry)
	}
	return byContext
}

// confirmed reports whether every message that the gateway made of a payload is present and
// confirmed.
func confirmed(entries []gatewaytest.LedgerEntry) bool {
	return len(entries) > 0 && len(entries) == entries[0].Chunks &&
		!slices.ContainsFunc(entries, func(e gatewaytest.LedgerEntry) bool { return !e.Confirmed() })
}

func (f *flow) allConfirmed(ledger []gatewaytest.LedgerEntry) bool {
	entries := entriesOf(ledger)
	for _, id := range f.contextIDs {
		if !confirmed(entries[id]) {
			return false
		}
	}
	return true
}

// assess determines from the gateway's ledger and JetStream what became of every payload.
func (f *flow) assess(ctx context.Context) (report, error) {
	want := make([]expectation, len(f.files))
	for i, file := range f.files {
		want[i] = expectation{
			subject: strings.Join([]string{subjectPrefix, nats.TopicSegment(f.server.Tenant()), nats.TopicSegment(file.MessageType)}, "."),
			digest:  sha256.Sum256(file.Data),
		}
	}
	found, err := readStream(ctx, f.natsURL, streamName)
	if err != nil {
		err = fmt.Errorf("verifying: %w", err)
	}
	subjects, poisoned, mismatched := compare(want, found, subjectPrefix+"."+poisonTopic)
	f.progress.printf("read %d messages back from JetStream and compared their SHA-256", len(found))

	result := report{poisoned: poisoned, mismatched: mismatched}
	entries := entriesOf(f.server.Ledger())
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, file := range f.files {
		made := entries[f.contextIDs[i]]
		received := len(made) > 0
		for _, entry := range made {
			received = received && f.received[entry.MessageID]
		}
		result.payloads = append(result.payloads, outcome{
			name: farmfile.Printable(file.Name), messageType: file.MessageType, size: len(file.Data),
			chunks: len(made), subject: subjects[i],
			sent: f.sent[i], received: received, stored: subjects[i] != "", confirmed: confirmed(made),
		})
	}
	return result, err
}
