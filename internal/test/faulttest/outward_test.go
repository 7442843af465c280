//go:build faults

package faulttest

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	sourcekafka "github.com/agrimill/agrimill/sources/kafka"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
)

const (
	outTopic = "out"
	// outInFlight is how many messages JetStream has open; Kafka has one: they have no keys.
	outInFlight = 50
)

// outOrder says as whom a pipeline sends to the gateway.
type outOrder struct{ Tenant, Endpoint string }

// buildOutward makes the way back, from a broker to the gateway, and starts it.
func buildOutward(p *parts, o outOrder, logger watermill.LoggerAdapter) (*pipeline, error) {
	p.Gateway.Retry.MaxAttempts = 2
	client, err := gateway.New(p.Gateway)
	if err != nil {
		return nil, err
	}
	pub, err := publisher.New(publisher.Config{Client: client, TenantID: o.Tenant, EndpointID: o.Endpoint}, logger)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	from, err := openSource(p, logger)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	poison, err := openSink(p, logger)
	if err != nil {
		return nil, errors.Join(err, from.Close(), client.Close())
	}
	to := sinks.Sink(pub)
	if p.Sink != nil {
		to, poison = p.Sink(to), p.Sink(poison)
	}
	p.Router.Poison = poison
	r, err := router.New(p.Router, logger)
	if err != nil {
		return nil, errors.Join(err, poison.Close(), from.Close(), client.Close())
	}
	if err := r.Add(router.Route{
		Name: "to the gateway", From: from, Topic: outTopic, Transform: p.Route.Transform, To: to, ToTopic: "{type}",
	}); err != nil {
		return nil, errors.Join(err, r.Close(), client.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	own := &pipeline{router: r, client: client, run: make(chan error, 1), cancel: cancel}
	go func() { own.run <- r.Run(ctx) }() // ends with ctx
	return own, nil
}

// openSource opens what remembers how far it was read, also when the process is killed.
func openSource(p *parts, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	if p.broker.Kind == kindNATS {
		return sourcenats.New(sourcenats.Config{
			Connection: nats.Connection{URL: p.broker.Address, ConnectTimeout: 5 * time.Second},
			Durable:    "out", Stream: "AGRIMILL", AckWait: time.Second, MaxInFlight: outInFlight, CloseTimeout: p.Router.CloseTimeout,
			KeyHeader: gateway.KeyContextID,
		}, logger)
	}
	return sourcekafka.New(sourcekafka.Config{
		Connection: kafka.Connection{Brokers: []string{p.broker.Address}, ConnectTimeout: 3 * time.Second},
		Topics:     []string{outTopic}, Group: "out", MaxInFlight: outInFlight, CloseTimeout: p.Router.CloseTimeout / 2,
		MaxNackDelay: 20 * time.Millisecond,
		Client: func(client *sarama.Config) {
			client.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
			// A member that was killed is missed soon.
			client.Consumer.Group.Session.Timeout, client.Consumer.Group.Heartbeat.Interval = 2*time.Second, 200*time.Millisecond
			client.Consumer.Group.Rebalance.Timeout = p.Router.CloseTimeout
			client.Net.ReadTimeout = 3 * time.Second
		},
	}, logger)
}

// fusedTransport passes a point when the gateway has answered, before anybody
// has read that.
type fusedTransport struct {
	http.RoundTripper
	fuse *fuse
}

func (t *fusedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.RoundTripper.RoundTrip(r)
	if err == nil && strings.HasSuffix(r.URL.Path, "/messages") {
		t.fuse.pass(pointAnswered)
	}
	return answer, err
}

// outward is a world whose messages go the way back.
type outward struct {
	*world
	source  sinks.Sink
	context map[string][sha256.Size]byte // what was put into the broker
	partial map[string]bool              // with a recipient that does not exist
	late    []*message.Message           // what the broker did not take yet
	// unanswered are the requests of pipelines in this process that the service may have accepted and of
	// which they do not know it: each of them may be sent once more.
	unanswered atomic.Int64
}

// answers counts the messages whose answers are lost, late, or no answers.
type answers struct {
	http.RoundTripper
	lost *atomic.Int64
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.RoundTripper.RoundTrip(r)
	if strings.HasSuffix(r.URL.Path, "/messages") && (err != nil || answer.StatusCode >= http.StatusInternalServerError) {
		a.lost.Add(1)
	}
	return answer, err
}

func newOutward(w *world) *outward {
	w.Helper()
	o := &outward{world: w, context: map[string][sha256.Size]byte{}, partial: map[string]bool{}}
	p := newParts(w.gateway.ClientConfig(), w.broker.address())
	if b, ok := w.broker.(*natsBroker); ok {
		p.broker.Address = b.Server.URL() // past the proxy
	}
	o.source = testkit.Must(openSink(p, w.logger()))(w)
	w.Cleanup(func() { _ = o.source.Close() })
	return o
}

// as is whom the pipelines of this world send as.
func (o *outward) as() outOrder { return outOrder{Tenant: o.gateway.Tenant(), Endpoint: o.sender.ID} }

// put stores n messages to be sent, every twentieth of them also to somebody who
// does not exist.
func (o *outward) put(n int) {
	o.Helper()
	for range n {
		o.late = append(o.late, o.newMessage())
	}
	testkit.NoError(o, o.flush())
}

func (o *outward) newMessage() *message.Message {
	payload := o.bytes(100)
	msg := message.NewMessage(uuid.NewString(), payload)
	msg.Metadata = message.Metadata{gateway.KeyMessageType: messageType, gateway.KeyContextID: uuid.NewString(),
		gateway.KeyDirectRecipients: o.receivers[0].ID, gateway.KeyDedupID: msg.UUID}
	if len(o.context)%20 == 7 {
		msg.Metadata[gateway.KeyDirectRecipients] += "," + uuid.NewString()
		o.partial[msg.Metadata[gateway.KeyContextID]] = true
	}
	o.context[msg.Metadata[gateway.KeyContextID]] = sha256.Sum256(payload)
	return msg
}

// flush stores what is late, up to the first that the broker does not take.
func (o *outward) flush() error {
	for len(o.late) > 0 {
		if err := o.source.Publish(outTopic, o.late[0]); err != nil {
			return err
		}
		o.late = o.late[1:]
	}
	return nil
}

// run starts the pipeline. It ends with the test, if not before.
func (o *outward) run() *pipeline {
	o.Helper()
	config := newParts(o.gateway.ClientConfig(), o.broker.address())
	transport := &http.Transport{TLSClientConfig: config.Gateway.TLS, ForceAttemptHTTP2: true}
	o.Cleanup(transport.CloseIdleConnections)
	config.Gateway.Transport = &answers{transport, &o.unanswered}
	p := testkit.Must(buildOutward(config, o.as(), o.logger()))(o)
	o.Cleanup(func() { _ = p.stop() })
	return p
}

// arrived reports whether everything that can arrive has.
func (o *outward) arrived(ledger []gatewaytest.LedgerEntry) bool {
	return len(ledger) >= len(o.context) && len(contexts(ledger)) == len(o.context)
}

// waitAll waits until everything that can arrive has.
func (o *outward) waitAll() {
	o.Helper()
	if err := o.gateway.Wait(testkit.Context(o), o.arrived); err != nil {
		o.Fatalf("%d of %d messages arrived: %v", len(contexts(o.gateway.Ledger())), len(o.context), err)
	}
}

// waitPoisoned waits until the poison queue has all partial deliveries.
func (o *outward) waitPoisoned() {
	o.Helper()
	testkit.Eventually(o, "all partial deliveries are in the poison queue", func() bool { return len(o.poisoned()) >= len(o.partial) })
}

// poisoned are the reasons in the poison queue, by context ID.
func (o *outward) poisoned() map[string]string {
	o.Helper()
	testkit.NoError(o, o.oracle.look())
	reasons := map[string]string{}
	for _, records := range o.oracle.archive.all() {
		for _, r := range records {
			if r.poisoned() {
				reasons[r.metadata[gateway.KeyContextID]] = r.metadata[router.KeyPoisonReason]
			}
		}
	}
	return reasons
}

func contexts(ledger []gatewaytest.LedgerEntry) map[string]int {
	count := map[string]int{}
	for _, e := range ledger {
		count[e.ContextID]++
	}
	return count
}

// judgeOutward checks that everything arrived whole, and once after deduplication
// by context ID; raw duplicates at most max, unless that is negative. The poison
// queue has the partial deliveries, and nothing else.
func (o *outward) judgeOutward(maxDuplicates int) verdict {
	o.Helper()
	ledger := o.gateway.Ledger()
	duplicates := 0
	for id, n := range contexts(ledger) {
		if _, known := o.context[id]; !known {
			o.Errorf("%s arrived and was never sent", id)
		}
		duplicates += n - 1
	}
	for _, e := range ledger {
		if e.SHA256 != o.context[e.ContextID] || e.EndpointID != o.receivers[0].ID {
			o.Errorf("%s arrived with other bytes or at another endpoint", e.ContextID)
		}
	}
	if !o.arrived(ledger) {
		o.Errorf("%d of %d messages arrived", len(contexts(ledger)), len(o.context))
	}
	if maxDuplicates >= 0 && duplicates > maxDuplicates {
		o.Errorf("%d raw duplicates, want at most %d", duplicates, maxDuplicates)
	}
	poisoned := o.poisoned()
	for id, reason := range poisoned {
		if !o.partial[id] || !strings.Contains(reason, "Recipient") {
			o.Errorf("%s is in the poison queue: %s", id, reason)
		}
	}
	if len(poisoned) != len(o.partial) {
		o.Errorf("the poison queue has %d partial deliveries, want %d", len(poisoned), len(o.partial))
	}
	o.Logf("sent %d (%d partly), arrived %d, raw duplicates %d", len(o.context), len(o.partial), len(ledger), duplicates)
	return verdict{sent: len(o.context), stored: len(contexts(ledger)), duplicates: duplicates, poisoned: len(poisoned)}
}

// outPoints are the places at which a process that sends outward is killed. It
// has no memory of what it sent: the context ID has to do.
var outPoints = []point{pointHandled, pointPublish, pointAnswered, pointPublished, pointPoison, pointPoisoned}

// killedOutward kills a process at each point, after up to limit messages, and has
// the next one continue.
func (o *outward) killedOutward(points []point, each, limit int) {
	o.Helper()
	as := o.as()
	ord := order{Outward: &as}
	for _, at := range points {
		o.put(each)
		ord.Point, ord.After = at, 1+o.rng.Int64N(int64(min(limit, each-2))) // one or two are partial
		if slices.Contains([]point{pointPoison, pointPoisoned}, at) {
			ord.After = 1
		}
		o.Logf("%s, number %d", at, ord.After)
		c := o.startChild(ord)
		if code := o.waitChild(c); code != -1 {
			o.Errorf("%s: the child ended with code %d, want it killed", at, code)
		}
	}
	o.lastChild(ord, func() {
		o.waitAll()
		o.waitPoisoned()
	})
}
