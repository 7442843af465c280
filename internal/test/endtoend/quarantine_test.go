package endtoend

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/poisonqueue"
	"github.com/agrimill/agrimill/subscriber"
)

// quarantining is a route whose subscriber's quarantine is the poison queue. The caller runs it.
func quarantining(t *testing.T, w *world, payload subscriber.PayloadConfig) (*nats.Sink, *subscriber.Subscriber, *router.Router) {
	t.Helper()
	logger := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: watermill.LevelTrace})))
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: w.nats.URL()}}, logger))(t)
	client := w.gateway.Client()
	t.Cleanup(func() { _ = client.Close() })
	sub := testkit.Must(subscriber.New(subscriber.Config{
		Client: client, Quarantine: subscriber.QuarantineConfig{Publisher: sink, Topic: router.DefaultPoisonTopic},
		Payload: payload,
	}, logger))(t)
	r := testkit.Must(router.New(router.Config{Poison: sink}, logger))(t)
	t.Cleanup(func() { _ = r.Close() })
	testkit.NoError(t, r.Add(router.Route{Name: "farm data", From: sub, Topic: subscriber.AllData, To: sink}))
	return sink, sub, r
}

// Events that cannot be decoded may go into the poison queue's topic: its tools
// show them, and a replay leaves them alone.
func TestQuarantineInThePoisonQueue(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{})
	sink, sub, r := quarantining(t, w, subscriber.PayloadConfig{})
	testkit.Must(sub.Subscribe(t.Context(), subscriber.AllData))(t)
	ctx := testkit.Context(t)
	testkit.NoError(t, w.gateway.WaitStreams(ctx, 1))
	w.gateway.EmitRaw(w.gateway.Application(), []byte("event: MESSAGE_RECEIVED\ndata: {\"id\":\n\n"))
	testkit.Eventually(w, "it is stored", func() bool { return sub.Stats().Quarantined == 1 })

	queue := testkit.Must(poisonqueue.New(poisonqueue.Config{Conn: sink.Conn()}))(t)
	shown := 0
	for p, err := range queue.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		shown++
		if p.Reason == "" || p.Class != subscriber.QuarantineMalformed || string(p.Message.Payload) != `{"id":` {
			t.Errorf("shown as %+v with payload %q", p, p.Message.Payload)
		}
		if _, ok := router.ParsePoisoned(p.Message); ok {
			t.Error("it passes for a message")
		}
	}
	report, err := r.Replay(ctx, queue, router.PoisonSelection{All: true})
	if err != nil || shown != 1 || report != (router.ReplayReport{Kept: 1}) {
		t.Errorf("%d shown, %+v, %v", shown, report, err)
	}
	if n, err := router.DeletePoisoned(ctx, queue, router.PoisonSelection{All: true}); err != nil || n != 1 {
		t.Errorf("%d deleted, %v", n, err)
	}
}

// What is known of a message whose payload is gone may go there, too. The message stays with the
// gateway.
func TestGonePayloadInThePoisonQueue(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t, gatewaytest.Config{InlineLimit: 10})
	w.gateway.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: http.StatusNotFound})
	sink, sub, r := quarantining(t, w, subscriber.PayloadConfig{RefreshEvery: 50 * time.Millisecond})
	go func() { _ = r.Run(t.Context()) }() // ends with Close
	w.sendPayload(messageType, []byte("more than ten bytes"))
	testkit.Eventually(w, "it is set aside", func() bool { return sub.Stats().Quarantined == 1 })

	queue := testkit.Must(poisonqueue.New(poisonqueue.Config{Conn: sink.Conn()}))(t)
	shown := 0
	for p, err := range queue.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		shown++
		if p.Class != subscriber.QuarantinePayloadGone || p.Reason != subscriber.ErrPayloadGone.Error() || len(p.Message.Payload) > 0 {
			t.Errorf("shown as %+v with payload %q", p, p.Message.Payload)
		}
	}
	if shown != 1 || w.confirmed() != 0 {
		t.Errorf("%d shown, %d confirmed; want 1 and 0", shown, w.confirmed())
	}
}
