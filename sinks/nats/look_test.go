package nats_test

import (
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

// An answer about the stream that comes after that to a later question does not count: the sink stores what it could store, and does not
// warn of the later answer again. Without any answer on a connection, the error says why there is none.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, func(o *server.Options) { o.JetStream = false })
	var hold atomic.Bool
	held := make(chan *natsgo.Msg, 1)
	var stream atomic.Pointer[jetstream.StreamConfig]
	stream.Store(&jetstream.StreamConfig{Name: nats.DefaultStream, Subjects: []string{"agrimill.>"}})
	broker, _ := natstest.Client(t, s.URL())
	info := func() []byte { return testkit.Must(json.Marshal(jetstream.StreamInfo{Config: *stream.Load()}))(t) }
	looks := testkit.Must(broker.Subscribe("$JS.API.STREAM.INFO."+nats.DefaultStream, func(question *natsgo.Msg) {
		if hold.CompareAndSwap(true, false) {
			held <- question
			return
		}
		_ = question.Respond(info())
	}))(t)
	testkit.Must(broker.Subscribe("agrimill.>", func(msg *natsgo.Msg) { _ = msg.Respond([]byte(`{"stream":"AGRIMILL","seq":1}`)) }))(t)
	testkit.NoError(t, broker.Flush())

	proxy := natstest.NewProxy(t, s.URL())
	log := testkit.NewLog()
	reconnect := natsgo.ReconnectWait(10 * time.Millisecond)
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: proxy.URL(), Options: []natsgo.Option{reconnect}}}, log)
	testkit.NoError(t, sink.Publish("t", newMessage("x")))
	hold.Store(true)
	late := make(chan error, 1)
	go func() { late <- sink.Health(t.Context()) }() // ends with its answer
	question, before := <-held, info()
	stream.Store(&jetstream.StreamConfig{Name: nats.DefaultStream, Subjects: []string{"agrimill.>"}, MaxMsgsPerSubject: 5})
	proxy.Cut()
	testkit.EventuallyNil(t, func() error { return sink.Publish("t", newMessage("x")) })
	testkit.NoError(t, question.Respond(before))
	testkit.NoError(t, <-late)
	if err := sink.Publish("t", newMessage("x")); err != nil {
		t.Errorf("after the late answer: %v", err)
	}
	testkit.NoError(t, sink.Health(t.Context()))
	if n := strings.Count(log.String(), "durability none"); n != 1 {
		t.Errorf("the change is told %d times:\n%s", n, log)
	}

	testkit.NoError(t, looks.Unsubscribe())
	testkit.NoError(t, broker.Flush())
	proxy.Cut()
	testkit.Eventually(t, "the cause is said", func() bool {
		err := sink.Publish("t", newMessage("x"))
		return errors.Is(err, sinks.ErrUnavailable) && strings.Contains(err.Error(), nats.ErrNoJetStream.Error())
	})
}

// Two answers that were on their way when a loss was found tell it once.
func TestLossThatTwoAnswersTell(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, func(o *server.Options) { o.JetStream = false })
	broker, _ := natstest.Client(t, s.URL())
	var hold atomic.Bool
	held := make(chan *natsgo.Msg)
	info := func(created time.Time, last uint64) []byte {
		return testkit.Must(json.Marshal(jetstream.StreamInfo{
			Config:  jetstream.StreamConfig{Name: nats.DefaultStream, Subjects: []string{"agrimill.>"}},
			Created: created, State: jetstream.StreamState{LastSeq: last},
		}))(t)
	}
	created := time.Now()
	testkit.Must(broker.Subscribe("$JS.API.STREAM.INFO."+nats.DefaultStream, func(question *natsgo.Msg) {
		if hold.Load() {
			held <- question
			return
		}
		_ = question.Respond(info(created, 0))
	}))(t)
	testkit.Must(broker.Subscribe("agrimill.>", func(msg *natsgo.Msg) { _ = msg.Respond([]byte(`{"stream":"AGRIMILL","seq":3}`)) }))(t)
	testkit.NoError(t, broker.Flush())

	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL()}}, testkit.NewLog())
	testkit.NoError(t, sink.Publish("t", newMessage("x")))
	hold.Store(true)
	answers := make(chan error, 2)
	var questions []*natsgo.Msg
	for range cap(answers) {
		go func() { answers <- sink.Health(t.Context()) }() // ends with its answer
		questions = append(questions, <-held)
	}
	hold.Store(false)
	for _, question := range questions {
		testkit.NoError(t, question.Respond(info(created.Add(time.Second), 0)))
		testkit.NoError(t, <-answers)
	}
	if lost := sink.Lost(); lost != 3 {
		t.Errorf("%d messages are lost", lost)
	}
}
