package subscriber

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
)

// expiredClient has payloads whose addresses have expired.
type expiredClient struct{ *silentClient }

func (expiredClient) OpenPayload(context.Context, string, int64) (*gateway.PayloadReader, error) {
	return nil, gateway.ErrPayloadExpired
}

// handle has a handler called for each message until ctx ends.
func (w *resyncWorld) handle(ctx context.Context, handler msgctx.Handler) <-chan *message.Message {
	w.Helper()
	messages := testkit.Must(w.Subscribe(msgctx.WithSubscription(ctx, &msgctx.Subscription{To: w.Subscriber, Handler: handler}), AllData))(w)
	return messages
}

// remote arrives, with a payload that is elsewhere.
func (w *resyncWorld) remote() {
	w.come(&gateway.MessageReceived{
		ID: "00000001-2222-4333-8444-555555555555", AppMessageID: "payload", ReceivingEndpointID: fileEndpoint,
		TenantID: "tenant", MessageType: "type", PayloadURI: "https://payloads.invalid/1",
	})
}

// A handler that returns after its message was given up changes nothing any longer, whatever it has to say: others have
// the message, or will have it.
func TestHandlerThatReturnsTooLate(t *testing.T) {
	for name, late := range map[string]func(msg *message.Message) (acked bool){
		"acks":  func(*message.Message) bool { return true },
		"nacks": func(*message.Message) bool { return false },
		"payload has expired": func(msg *message.Message) bool {
			_, _, _ = OpenPayload(msg)
			return false
		},
		"refuses": func(msg *message.Message) bool { return Refuse(msg) },
		"waits": func(msg *message.Message) bool {
			msgctx.NackOf(msg.Context()).After(time.Hour)
			return false
		},
		"exits": func(*message.Message) bool {
			runtime.Goexit()
			return true
		},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			w := newResyncWorld(t, Config{
				Payload: PayloadConfig{Mode: PayloadLazy}, Unmatched: UnmatchedQuarantine,
				Quarantine: QuarantineConfig{Publisher: &discards{}},
			})
			w.cfg.Client = expiredClient{w.client}
			w.connect()
			release := make(chan struct{})
			ctx, end := context.WithCancel(t.Context())
			ended := w.handle(ctx, func(msg *message.Message) bool {
				<-release
				return late(msg)
			})
			w.remote()
			end()
			if _, open := <-ended; open {
				t.Fatal("a message came on the channel of a handler")
			}
			var handled atomic.Int64
			w.handle(t.Context(), func(*message.Message) bool { return handled.Add(1) > 0 })
			close(release)
			time.Sleep(time.Minute)
			before := len(w.reconnects())
			w.connect()
			w.remote()
			time.Sleep(time.Hour)
			testkit.Equal(t, handled.Load(), 1)
			testkit.Equal(t, w.client.confirmed.Load(), 1)
			if got := len(w.reconnects()); got != before {
				t.Errorf("%d reconnects although nothing is left", got-before)
			}
			if got := w.Stats(); got.Abandoned != 1 || got.Parked != 0 {
				t.Errorf("%d abandoned, %d parked; want 1 and none", got.Abandoned, got.Parked)
			}
		})
	}
}

// discards takes everything.
type discards struct{ n atomic.Int64 }

func (d *discards) Publish(string, ...*message.Message) error { d.n.Add(1); return nil }
func (*discards) Close() error                                { return nil }

// A subscription gives up what was handed out just when its handler is to be called.
func TestGivenUpBeforeItIsHandled(t *testing.T) {
	for range 100 {
		w := newResyncWorld(t, Config{Unmatched: UnmatchedQuarantine, Quarantine: QuarantineConfig{Publisher: &discards{}}})
		w.cfg.DrainTimeout = 1
		w.handle(t.Context(), Refuse)
		w.intake(w.Context(), filePart(1), 0)
		w.stopAll()
	}
}

// A handler that subscribes in the context of its message, to the subscriber of its own or to another one, gets the
// messages of that on the channel.
func TestSubscribeWithinAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, other := newResyncWorld(t, Config{}), newResyncWorld(t, Config{})
		w.connect()
		other.connect()
		var calls atomic.Int64
		type reply struct{ own, other <-chan *message.Message }
		replies := make(chan reply, 1)
		w.handle(t.Context(), func(msg *message.Message) bool {
			if calls.Add(1) == 1 {
				ctx := context.WithoutCancel(msg.Context())
				ctx, end := context.WithCancel(ctx)
				context.AfterFunc(t.Context(), end)
				own, err := w.Subscribe(ctx, AllData)
				if err != nil {
					t.Error(err)
				}
				others, err := other.Subscribe(ctx, AllData)
				if err != nil {
					t.Error(err)
				}
				replies <- reply{own, others}
			}
			return true
		})
		w.arrive(1)
		r := <-replies
		w.connect() // what was open when it subscribed comes before anything else
		w.arrive(2)
		other.arrive(3)
		w.next(r.own).Ack()
		other.next(r.other).Ack()
		synctest.Wait()
		testkit.Equal(t, calls.Load(), 2)
	})
}
