package router_test

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/poisonqueue"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

const received, answer = "app:received", "app:answer"

// toGateway is a gateway with an endpoint that sends, one that receives, and a publisher.
type toGateway struct {
	server           *gatewaytest.Server
	pub              *publisher.Publisher
	sender, receiver string

	mu   sync.Mutex
	sent []http.Header
}

func newToGateway(t *testing.T) *toGateway {
	t.Helper()
	types := []string{received, answer}
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: types})
	g := &toGateway{server: server, sender: sender.ID, receiver: server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: types, Subscribe: types}).ID}
	server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: http.StatusTeapot, Match: func(r *http.Request) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.sent = append(g.sent, r.Header)
		return false
	}})
	g.pub = publishTo(t, server, publisher.Config{EndpointID: sender.ID})
	return g
}

// all returns the values of a header of all requests.
func (g *toGateway) all(header string) (values []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.sent {
		values = append(values, h.Get(header))
	}
	return values
}

// in is a message as the gateway delivers it; without event type, as a broker does.
func in(eventType gateway.EventType, metadata ...string) *message.Message {
	msg := message.NewMessage(uuid.NewString(), []byte("in"))
	msg.Metadata[gateway.KeyMessageType] = received
	msg.Metadata[gateway.KeyContextID] = uuid.NewString()
	msg.Metadata[gateway.KeySentTimestamp] = "2020-01-02T03:04:05Z"
	if eventType != "" {
		msg.Metadata[gateway.KeyEventType] = string(eventType)
	}
	for i := 0; i < len(metadata); i += 2 {
		msg.Metadata[metadata[i]] = metadata[i+1]
	}
	return msg
}

// The topic that a route names is the message type, whatever type the message came with.
func TestToTopicIsTheMessageType(t *testing.T) {
	pdf := func(msg *message.Message) ([]*message.Message, error) {
		msg.Payload = []byte("out")
		return []*message.Message{msg}, nil
	}
	for _, tt := range []struct {
		name      string
		toTopic   string
		topicFunc func(*message.Message) (string, error)
		transform message.HandlerFunc
		typeless  bool
		want      []string // nil: poisoned
	}{
		{name: "fixed", toTopic: answer, transform: pdf, want: []string{answer}},
		{name: "fixed, passed on", toTopic: answer, want: []string{answer}},
		{name: "template with the type", toTopic: "{type}", transform: pdf, want: []string{received}},
		{name: "template with a replacement", toTopic: "{type|" + answer + "}", want: []string{answer}, typeless: true},
		{name: "function", topicFunc: func(*message.Message) (string, error) { return answer, nil }, transform: pdf, want: []string{answer}},
		{name: "no topic: the type of the message", transform: pdf, want: []string{received}},
		{name: "no topic: the type that the transform sets", transform: func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata[gateway.KeyMessageType] = answer
			return []*message.Message{msg}, nil
		}, want: []string{answer}},
		{name: "no topic and no type", typeless: true},
		{name: "several", toTopic: answer, transform: func(msg *message.Message) ([]*message.Message, error) {
			other := message.NewMessage(uuid.NewString(), []byte("other"))
			return []*message.Message{msg, other}, nil
		}, want: []string{answer, answer}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newToGateway(t)
			from, poison := newSource(), newSink(nil)
			start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{
				Name: "answer", From: from, Topic: "in", To: g.pub, ToTopic: tt.toTopic, TopicFunc: tt.topicFunc, Transform: tt.transform,
			})
			msg := in(gateway.EventMessageReceived)
			if tt.typeless {
				delete(msg.Metadata, gateway.KeyMessageType)
			}
			from.deliver(t, msg)
			if got := g.all(gateway.KeyMessageType); !slices.Equal(got, tt.want) {
				t.Errorf("sent as %q, want %q", got, tt.want)
			}
			poison.wantStored(t, map[bool]int{true: 1}[tt.want == nil])
			if !tt.typeless && msg.Metadata[gateway.KeyMessageType] != received {
				t.Errorf("the message received has type %q, want %q", msg.Metadata[gateway.KeyMessageType], received)
			}
		})
	}
}

// To a broker, the topic says where a message goes, and the header keeps what it is.
func TestToTopicOfABrokerLeavesTheType(t *testing.T) {
	from, to := newSource(), newSink(nil)
	start(t, router.Config{Poison: newSink(nil)}, router.Route{Name: "store", From: from, Topic: "in", To: to, ToTopic: answer})
	msg := in(gateway.EventMessageReceived)
	from.deliver(t, msg)
	if stored := to.wait(t, 1)[0]; stored.topic != answer || stored.msg.Metadata[gateway.KeyMessageType] != received {
		t.Errorf("got topic %q and type %q, want %q and %q", stored.topic, stored.msg.Metadata[gateway.KeyMessageType], answer, received)
	}
}

// What metadata says of the payload received, its context ID and when it was sent, does not hold for another payload.
func TestAnotherPayloadHasAnIDAndATimeOfItsOwn(t *testing.T) {
	for _, event := range []gateway.EventType{"", gateway.EventMessageReceived} {
		for _, same := range []bool{true, false} {
			t.Run(string(event)+map[bool]string{true: " same", false: " other"}[same], func(t *testing.T) {
				g := newToGateway(t)
				from := newSource()
				start(t, router.Config{Poison: newSink(nil)}, router.Route{
					Name: "answer", From: from, Topic: "in", To: g.pub, ToTopic: answer,
					Transform: func(msg *message.Message) ([]*message.Message, error) {
						if same {
							return []*message.Message{msg}, nil
						}
						other := msg.Copy()
						msg.Payload, other.Payload = []byte("one"), []byte("other")
						return []*message.Message{msg, other}, nil
					},
				})
				msg := in(event)
				from.deliver(t, msg)
				for _, at := range g.all(gateway.KeySentTimestamp) {
					if kept := at == msg.Metadata[gateway.KeySentTimestamp]; kept != same {
						t.Errorf("sent at %s, received as sent at %s", at, msg.Metadata[gateway.KeySentTimestamp])
					}
				}
				ids := g.all(gateway.KeyContextID)
				slices.Sort(ids)
				if want := map[bool]int{true: 1, false: 2}[same]; len(slices.Compact(ids)) != want {
					t.Errorf("got context IDs %q, want %d", ids, want)
				}
				if kept := slices.Contains(ids, msg.Metadata[gateway.KeyContextID]); kept != (same && event == "") {
					t.Errorf("context IDs %q have that of the message received (%s): %v", ids, msg.Metadata[gateway.KeyContextID], kept)
				}
			})
		}
	}
}

// A message that some of its recipients have is not sent to them again: neither while the poison queue is down nor by a
// replay that is not forced.
func TestPartialDeliveryIsNotSentAgain(t *testing.T) {
	g := newToGateway(t)
	from, q := newSource(), &poisonqueue.Queue{}
	var tries atomic.Int64
	poison := newSink(func(_ string, msg *message.Message) error {
		if tries.Add(1) <= 2 {
			return down
		}
		return q.Publish(router.DefaultPoisonTopic, msg)
	})
	r := start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{Name: "back", From: from, Topic: "in", To: g.pub, ToTopic: answer})
	msg := message.NewMessage(uuid.NewString(), []byte("payload"))
	msg.Metadata[gateway.KeyDirectRecipients] = g.receiver + "," + uuid.NewString()
	from.deliver(t, msg)
	if got := len(g.all(gateway.KeyContextID)); got != 1 || tries.Load() != 3 {
		t.Errorf("sent %d times, and %d tries to poison; want 1 and 3", got, tries.Load())
	}
	for _, tt := range []struct {
		force bool
		want  router.ReplayReport
		sent  int
	}{
		{false, router.ReplayReport{Kept: 1, Partial: 1}, 1},
		{true, router.ReplayReport{Poisoned: 1}, 2},
		{false, router.ReplayReport{Kept: 1, Partial: 1}, 2},
	} {
		report, err := r.Replay(t.Context(), q, router.PoisonSelection{All: true, Force: tt.force})
		report.Reason = ""
		if err != nil || report != tt.want {
			t.Errorf("got %+v, %v, want %+v", report, err, tt.want)
		}
		if got := len(g.all(gateway.KeyContextID)); got != tt.sent {
			t.Errorf("sent %d times, want %d", got, tt.sent)
		}
	}
}

// What some recipients of the first of two messages have is not sent to them again while the second one fails, also where a
// partial delivery counts as sent.
func TestFirstOfTwoIsSentOnce(t *testing.T) {
	for name, recipients := range map[string]int{"sent": 0, "partially delivered": 1} {
		t.Run(name, func(t *testing.T) {
			g := newToGateway(t)
			g.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Times: 3, Match: func(r *http.Request) bool {
				return r.Header.Get(gateway.KeyFilename) == "second"
			}})
			pub := publishTo(t, g.server, publisher.Config{EndpointID: g.sender, PartialDelivery: publisher.PartialDeliveryIsSent})
			from := newSource()
			start(t, router.Config{Poison: newSink(nil), Retry: fastRetry}, router.Route{
				Name: "back", From: from, Topic: "in", To: pub, ToTopic: answer,
				Transform: func(*message.Message) (made []*message.Message, _ error) {
					for _, name := range []string{"first", "second"} {
						msg := message.NewMessage(uuid.NewString(), []byte(name))
						msg.Metadata[gateway.KeyFilename] = name
						msg.Metadata[gateway.KeyDirectRecipients] = g.receiver
						for range recipients {
							msg.Metadata[gateway.KeyDirectRecipients] += "," + uuid.NewString()
						}
						made = append(made, msg)
					}
					return made, nil
				},
			})
			from.deliver(t, in(gateway.EventMessageReceived))
			if got, want := g.all(gateway.KeyFilename), []string{"first", "second", "second", "second", "second"}; !slices.Equal(got, want) {
				t.Errorf("sent %q, want %q", got, want)
			}
		})
	}
}

// Nor is it sent again when the message comes again because the poison queue never takes it.
func TestPartialDeliveryThatFitsNowhereIsNotSentAgain(t *testing.T) {
	g := newToGateway(t)
	from, q := newSource(), &poisonqueue.Queue{}
	tries := 0
	poison := newSink(func(_ string, msg *message.Message) error {
		if tries++; tries <= 3 {
			return sinks.ErrRejected
		}
		return q.Publish(router.DefaultPoisonTopic, msg)
	})
	r := start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{Name: "back", From: from, Topic: "in", To: g.pub, ToTopic: answer})
	msg := message.NewMessage(uuid.NewString(), []byte("payload"))
	msg.Metadata[gateway.KeyDirectRecipients] = g.receiver + "," + uuid.NewString()
	for n, want := range []string{"nack", "nack", "nack", "ack"} {
		again := msg.Copy()
		again.SetContext(msgctx.With(t.Context(), msgctx.Value{Nack: &msgctx.Nack{}}))
		from.messages <- again
		if got := verdict(t, again); got != want {
			t.Fatalf("delivery %d: %s, want %s", n+1, got, want)
		}
	}
	if got := len(g.all(gateway.KeyContextID)); got != 1 {
		t.Errorf("sent %d times, want 1", got)
	}
	report, err := r.Replay(t.Context(), q, router.PoisonSelection{All: true, Force: true})
	if report.Reason = ""; err != nil || report != (router.ReplayReport{Poisoned: 1}) || len(g.all(gateway.KeyContextID)) != 2 {
		t.Errorf("a forced replay: %+v, %v, sent %d times; want it sent once more", report, err, len(g.all(gateway.KeyContextID)))
	}
}

// Nor when it comes again because its source has lost it while the poison queue was down, as a broker does that has both.
func TestPartialDeliveryOfALostSourceIsNotSentAgain(t *testing.T) {
	g := newToGateway(t)
	from, q := newSource(), &poisonqueue.Queue{}
	lost, lose := context.WithCancel(t.Context())
	poison := newSink(func(_ string, msg *message.Message) error {
		if lost.Err() == nil {
			lose()
			return down
		}
		return q.Publish(router.DefaultPoisonTopic, msg)
	})
	start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{Name: "back", From: from, Topic: "in", To: g.pub, ToTopic: answer})
	g.sentOnce(lost, t, from, q)
}

// sentOnce delivers a message of which a recipient does not exist, with the context lost, and once more after its nack.
func (g *toGateway) sentOnce(lost context.Context, t *testing.T, from *source, q *poisonqueue.Queue) {
	t.Helper()
	msg := message.NewMessage(uuid.NewString(), []byte("payload"))
	msg.Metadata[gateway.KeyDirectRecipients] = g.receiver + "," + uuid.NewString()
	again := msg.Copy()
	msg.SetContext(lost)
	from.messages <- msg
	wantNack(t, msg)
	from.deliver(t, again)
	if got := len(g.all(gateway.KeyContextID)); got != 1 || len(q.UUIDs()) != 1 {
		t.Errorf("sent %d times, %d in the poison queue; want 1 and 1", got, len(q.UUIDs()))
	}
}

// Nor when its source has lost it before the answer came.
func TestPartialDeliveryThatIsLostMeanwhileIsNotSentAgain(t *testing.T) {
	g := newToGateway(t)
	from, q := newSource(), &poisonqueue.Queue{}
	lost, lose := context.WithCancel(t.Context())
	lostMeanwhile := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			defer lose()
			return h(msg)
		}
	}
	start(t, router.Config{Poison: q, Chain: func(_ string, s router.Chain) []message.HandlerMiddleware {
		return []message.HandlerMiddleware{s.Poison, lostMeanwhile, s.Retry, s.Dedup, s.Recoverer}
	}}, router.Route{Name: "back", From: from, Topic: "in", To: g.pub, ToTopic: answer})
	g.sentOnce(lost, t, from, q)
}

// Nor by the next replay, if the poison queue did not take it after the first one.
func TestPartialDeliveryOfAReplayIsNotSentAgain(t *testing.T) {
	g := newToGateway(t)
	q := &poisonqueue.Queue{}
	ended, end := context.WithCancel(t.Context())
	record := message.NewMessage(uuid.NewString(), []byte("payload"))
	record.Metadata[router.KeyPoisonRoute], record.Metadata[router.KeyPoisonCount] = "back", "1"
	record.Metadata[gateway.KeyDirectRecipients] = g.receiver + "," + uuid.NewString()
	testkit.NoError(t, q.Publish(router.DefaultPoisonTopic, record))
	poison := newSink(func(_ string, msg *message.Message) error {
		if ended.Err() == nil {
			end()
			return down
		}
		return q.Publish(router.DefaultPoisonTopic, msg)
	})
	r := start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{Name: "back", From: newSource(), Topic: "in", To: g.pub, ToTopic: answer})
	if report, err := r.Replay(ended, q, router.PoisonSelection{All: true}); err == nil {
		t.Errorf("%+v, want an error", report)
	}
	report, err := r.Replay(t.Context(), q, router.PoisonSelection{All: true})
	if report.Reason = ""; err != nil || report != (router.ReplayReport{Poisoned: 1}) || len(g.all(gateway.KeyContextID)) != 1 {
		t.Errorf("%+v, %v, sent %d times; want one poisoned, sent once", report, err, len(g.all(gateway.KeyContextID)))
	}
}

// What one handler did not deliver to all says nothing about the others that have the same poison queue, nor about messages
// without a UUID, which are not told apart.
func TestPartialDeliveryOfOneHandlerOnly(t *testing.T) {
	q := testkit.Must(router.NewPoisonQueue(router.PoisonConfig{Publisher: newSink(func(string, *message.Message) error { return sinks.ErrRejected })}, nil))(t)
	r := testkit.Must(message.NewRouter(message.RouterConfig{}, nil))(t)
	r.AddMiddleware(q.Middleware)
	handled := map[string]int{} // one message at a time
	ids := map[string]string{"a": "1", "b": "1", "nameless": ""}
	from := map[string]*source{}
	for name := range ids {
		from[name] = newSource()
		r.AddConsumerHandler(name, "in", from[name], func(*message.Message) error {
			handled[name]++
			return router.WithClass(gateway.ErrPartialDelivery, router.ClassPermanent)
		})
	}
	var running sync.WaitGroup
	running.Go(func() { testkit.NoError(t, r.Run(t.Context())) })
	<-r.Running()
	for range 2 {
		for name, id := range ids {
			msg := message.NewMessage(id, nil)
			msg.SetContext(msgctx.With(t.Context(), msgctx.Value{Nack: &msgctx.Nack{}}))
			from[name].messages <- msg
			if got := verdict(t, msg); got != "nack" {
				t.Errorf("%s: %s", name, got)
			}
		}
	}
	testkit.NoError(t, r.Close())
	running.Wait()
	testkit.Equal(t, handled, map[string]int{"a": 1, "b": 1, "nameless": 2})
}
