package nats_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

// What Look finds, warns of and refuses is what Subscribe does, and Look leaves everything as it is.
func TestLookIsWhatSubscribeFinds(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 3)
	explicit := jetstream.ConsumerConfig{FilterSubject: fieldSubject, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1000}
	for name, test := range map[string]struct {
		change func(*jetstream.ConsumerConfig) // nil: there is no consumer
		push   bool                            // it is a push consumer
		read   func(*nats.Config)
		is     error
		says   string // in the error or a warning; empty: neither
	}{
		"missing":         {},
		"as configured":   {change: func(*jetstream.ConsumerConfig) {}},
		"another subject": {change: func(c *jetstream.ConsumerConfig) { c.FilterSubject = "field.other" }, is: nats.ErrConfig, says: "reads field.other, not field.data"},
		"several subjects": {change: func(c *jetstream.ConsumerConfig) {
			c.FilterSubject, c.FilterSubjects = "", []string{"field.a", "field.b"}
		}, is: nats.ErrConfig, says: "field.b"},
		"every subject": {change: func(c *jetstream.ConsumerConfig) { c.FilterSubject = "" }, is: nats.ErrConfig, says: "every subject"},
		"headers only":  {change: func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }, is: nats.ErrConfig, says: "headers only"},
		"priority group": {change: func(c *jetstream.ConsumerConfig) {
			c.PriorityPolicy, c.PriorityGroups = jetstream.PriorityPolicyOverflow, []string{"a"}
		}, is: nats.ErrConfig, says: "priority groups"},
		"another ack policy":   {change: func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckAllPolicy }, is: nats.ErrConfig, says: "ack policy"},
		"no acks":              {change: func(c *jetstream.ConsumerConfig) { c.AckPolicy, c.MaxAckPending = jetstream.AckNonePolicy, 0 }, is: nats.ErrConfig, says: "ack policy"},
		"max deliver":          {change: func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 }, is: nats.ErrConfig, says: "max_deliver 5"},
		"push for pull":        {change: func(*jetstream.ConsumerConfig) {}, push: true, is: nats.ErrConfig, says: "is a push consumer"},
		"max ack pending":      {change: func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 5 }, says: "max ack pending 5, so no more are handled at a time (configured: 256)"},
		"max ack pending fits": {change: func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 5 }, read: func(c *nats.Config) { c.MaxInFlight = 5 }},
		"ack wait":             {change: func(c *jetstream.ConsumerConfig) { c.AckWait = time.Minute }, says: "ack wait 1m0s (configured: 30s)"},
		"inactive threshold":   {change: func(c *jetstream.ConsumerConfig) { c.InactiveThreshold = time.Hour }, says: "inactive threshold 1h0m0s"},
		"memory":               {change: func(c *jetstream.ConsumerConfig) { c.MemoryStorage = true }, says: "memory storage"},
		"replay":               {change: func(c *jetstream.ConsumerConfig) { c.ReplayPolicy = jetstream.ReplayOriginalPolicy }, says: "as slowly as they were stored"},
		"paused": {change: func(c *jetstream.ConsumerConfig) {
			until := time.Now().Add(time.Hour)
			c.PauseUntil = &until
		}, says: "paused until"},
		"no stream":        {read: func(c *nats.Config) { c.Stream = "GONE" }, is: jetstream.ErrStreamNotFound, says: "stream not found; there are FIELD (field."},
		"twice the prefix": {read: func(c *nats.Config) { c.Stream, c.SubjectPrefix = "FIELD", "field" }, says: "begins with the prefix"},
		"no settings":      {read: func(c *nats.Config) { c.Durable = "a.b" }, is: nats.ErrConfig, says: "Durable"},
	} {
		t.Run(name, func(t *testing.T) {
			config := nats.Config{Connection: sinknats.Connection{URL: f.server.URL()}, SubjectPrefix: sinknats.NoSubjectPrefix, Durable: strings.ReplaceAll(name, " ", "_"), CloseTimeout: time.Second}
			if test.change != nil {
				want := explicit
				want.Durable = config.Durable
				if test.push {
					want.DeliverSubject, want.DeliverGroup = "push."+config.Durable, config.Durable
				}
				test.change(&want)
				create := func() (err error) {
					if test.push {
						_, err = f.js.CreatePushConsumer(t.Context(), "FIELD", want)
					} else {
						_, err = f.js.CreateConsumer(t.Context(), "FIELD", want)
					}
					return err
				}
				testkit.NoError(t, create())
			}
			if test.read != nil {
				test.read(&config)
			}
			before := f.consumers()
			looked := &warnings{}
			found, err := nats.Look(t.Context(), config, fieldSubject, looked)
			testkit.ErrorIs(t, err, test.is)
			if said := fmt.Sprint(err, looked.texts()); !strings.Contains(said, test.says) || test.says == "" && said != "<nil> []" {
				t.Errorf("said %s, want %q", said, test.says)
			}
			if want := (nats.Found{Stream: "FIELD", Exists: test.change != nil}); err == nil {
				if want.Exists {
					want.Waiting = 3
				}
				testkit.Equal(t, found, want)
			}
			testkit.Equal(t, f.consumers(), before)
			f.compare(config, err, looked.texts())
			if test.is != nil {
				testkit.Equal(t, f.consumers(), before) // Subscribe refuses it, too
			}
		})
	}
}

// compare subscribes and holds the error and the warnings against those of Look.
func (f *field) compare(config nats.Config, lookError error, looked []string) {
	f.Helper()
	log := &warnings{}
	source, err := nats.New(config, log)
	if err == nil {
		defer func() { _ = source.Close() }()
		_, err = source.Subscribe(f.Context(), fieldSubject)
	}
	if fmt.Sprint(err) != fmt.Sprint(lookError) || !slices.Equal(log.texts(), looked) {
		f.Errorf("Subscribe says %v %q, Look %v %q", err, log.texts(), lookError, looked)
	}
}

// warnings is a logger that keeps the warnings.
type warnings struct {
	watermill.NopLogger
	mu   sync.Mutex
	list []string
}

// Warn implements [warnlog.Warner].
func (w *warnings) Warn(msg string, _ watermill.LogFields) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, msg)
}

// With implements [watermill.LoggerAdapter].
func (w *warnings) With(watermill.LogFields) watermill.LoggerAdapter { return w }

func (w *warnings) texts() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list)
}

// consumers returns the settings of all consumers of the stream.
func (f *field) consumers() (list []string) {
	f.Helper()
	stream := testkit.Must(f.js.Stream(f.Context(), "FIELD"))(f)
	for info := range stream.ListConsumers(f.Context()).Info() {
		list = append(list, fmt.Sprintf("%+v", info.Config))
	}
	slices.Sort(list)
	return list
}

// Nobody answers, or only later: that is an outage for both.
func TestLookInAnOutage(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.server.Stop()
	_, err := nats.Look(t.Context(), nats.Config{Connection: sinknats.Connection{URL: f.server.URL()}, SubjectPrefix: sinknats.NoSubjectPrefix, Durable: "out"}, fieldSubject, nil)
	if !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("got %v, want an outage", err)
	}
}

// A consumer that takes requests of a short time only is read with such requests.
func TestConsumerOfShortRequests(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.consumer(func(c *jetstream.ConsumerConfig) { c.MaxRequestExpires = time.Second })
	messages := f.subscribe(f.subscriber())
	f.put(0, 1)
	f.next(messages).Ack()
}
