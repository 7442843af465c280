package subscriber

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// resyncWorld is a subscriber without a stream, and the connection that it asks for a new one.
type resyncWorld struct {
	*testing.T
	*Subscriber
	client  *silentClient
	log     *testkit.Log
	asked   []time.Duration // since the beginning
	connect func()
}

func newResyncWorld(t *testing.T, cfg Config) *resyncWorld {
	w := &resyncWorld{T: t, client: &silentClient{}, log: testkit.NewLog()}
	cfg.Client, cfg.StartAfter = w.client, -1
	cfg.DrainTimeout, cfg.CloseTimeout = time.Second, 3*time.Second
	s := testkit.Must(New(cfg, w.log))(t)
	w.Subscriber = s
	t.Cleanup(func() { _ = s.Close() })
	began := time.Now()
	w.connect = func() { s.setConnected(func() { w.asked = append(w.asked, time.Since(began)) }, false) }
	return w
}

// reconnects returns when reconnects were asked for.
func (w *resyncWorld) reconnects() []time.Duration {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

// next returns the next message, which has to come.
func (w *resyncWorld) next(messages <-chan *message.Message) *message.Message {
	w.Helper()
	return testkit.Receive(w, "a message", messages)
}

// arrive lets messages with these numbers arrive, one after the other.
func (w *resyncWorld) arrive(numbers ...int) {
	for _, i := range numbers {
		w.intake(w.Context(), &gateway.MessageReceived{
			ID: fmt.Sprintf("%08x-2222-4333-8444-555555555555", i), AppMessageID: fmt.Sprint(i), ReceivingEndpointID: "66666666-7777-4888-8999-aaaaaaaaaaaa",
			TenantID: "tenant", MessageType: "type", Payload: []byte("small"),
		}, 0)
		synctest.Wait()
	}
}
