package admin_test

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/stored"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/spool"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/logsink"
	"github.com/agrimill/agrimill/sinks/nats"
)

// contentsOf is the path of the request for the contents of the only message that a query finds.
func contentsOf(t *testing.T, known *journal.Journal, query string) string {
	t.Helper()
	found := known.Trace(query, journal.Only{}, 2).Messages
	if len(found) != 1 || len(found[0].MessageIDs) != 1 {
		t.Fatalf("%s finds %+v", query, found)
	}
	return "/api/contents?id=" + found[0].MessageIDs[0] + "&endpoint=" + found[0].Endpoint
}

// What is in a message is shown with the token only, from where it was stored.
func TestContents(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken, ReadToken: readToken}, b)
	b.sendPayload(taskData, "acre.zip", farmdatatest.Archive(t, 3))
	b.waitConfirmed(1)
	b.sendPayload(taskData, "words.zip", []byte("rows and words"))
	b.waitConfirmed(2)
	b.sendPayload(shapes, "poisoned.zip", farmdatatest.Archive(t, 4))
	b.waitConfirmed(3)
	path := contentsOf(t, b.Journal(), "acre.zip")
	get(t, server, path).want(t, http.StatusUnauthorized)
	get(t, server, path, bearer("wrong")).want(t, http.StatusUnauthorized)
	get(t, server, path, bearer(readToken)).want(t, http.StatusForbidden)
	get(t, serve(t, admin.Config{}, b), path, bearer(testToken)).want(t, http.StatusForbidden)

	get(t, server, path, bearer(testToken)).want(t, http.StatusOK, "TaskData 4.2: 1 task", "Working width", `"records":3`, "u003csvg",
		`"place":"agrimill.`, "(stored by task data in sink farm)", `"x-router-filename":"acre.zip"`)
	m := b.Journal().Trace("acre.zip", journal.Only{}, 1).Messages[0]
	for _, id := range []string{strings.ToUpper(m.MessageIDs[0]), m.UUID} {
		get(t, server, "/api/contents?id="+url.QueryEscape(id), bearer(testToken)).want(t, http.StatusOK, `"records":3`)
	}
	get(t, server, contentsOf(t, b.Journal(), "words.zip"), bearer(testToken)).want(t, http.StatusOK, "neither TaskData nor EFDI", `"preview":{"kind":"text","text":"rows and words"}`)
	get(t, server, contentsOf(t, b.Journal(), "poisoned.zip"), bearer(testToken)).want(t, http.StatusOK, `"records":4`, "(poisoned by ", `"x-router-poison-attempts":"`)

	get(t, server, "/api/contents", bearer(testToken)).want(t, http.StatusBadRequest)
	get(t, server, "/api/contents?id="+strings.Repeat("x", 513), bearer(testToken)).want(t, http.StatusBadRequest)
	for _, id := range []string{"no-such-message", "acre.zip", m.MessageIDs[0][:8], m.MessageIDs[0] + "&endpoint=other"} {
		get(t, server, "/api/contents?id="+id, bearer(testToken)).want(t, http.StatusNotFound, "nothing is known of this message")
	}
	get(t, serve(t, admin.Config{Token: testToken}, &plainSource{}), path, bearer(testToken)).want(t, http.StatusNotFound, "there is no journal")
}

// each serves the contents of a message in a journal of its own, as if events had happened to it.
func each(t *testing.T, cfg *config.Config, events ...journal.Event) answer {
	t.Helper()
	j := testkit.Must(journal.New(journal.Config{}))(t)
	j.Event(&gateway.MessageReceived{ID: "message-number-1", TenantID: "tenant-1", Filename: "Field 7.zip"})
	m := j.Trace("message-number-1", journal.Only{}, 1).Messages[0]
	m.Events = append(m.Events, events...)
	source := &plainSource{journal: j, stored: func(ctx context.Context) iter.Seq2[admin.StoredCopy, error] {
		return stored.Each(ctx, cfg, &m, stored.Options{Limits: spool.Limits{Max: admin.MaxStored}, ConnectTimeout: time.Second})
	}}
	return get(t, serve(t, admin.Config{Token: testToken}, source), "/api/contents?id=message-number-1", bearer(testToken))
}

func storedAt(route string, at journal.Location) journal.Event {
	return journal.Event{Step: journal.StepStored, Route: route, At: &at}
}

// A response says in one sentence why nothing can be shown, of each place, and never what only agrimill may know.
func TestContentsNotShown(t *testing.T) {
	each(t, &config.Config{}).want(t, http.StatusNotFound, "the journal knows of no place that has it (it is ")

	cfg := &config.Config{
		Routes: []config.Route{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}},
		Sinks: map[string]config.Sink{
			"a": {NATS: &config.NATS{Config: nats.Config{Connection: nats.Connection{URL: "nats://farmer:" + secret + "@127.0.0.1:1"}}}},
			"b": {Kafka: &config.Kafka{Config: kafka.Config{
				Connection: kafka.Connection{Brokers: []string{"127.0.0.1:1"}, SASL: kafka.SASL{Mechanism: kafka.MechanismPlain, User: "farmer", Password: secret}},
			}}},
			"c": {Log: &logsink.Config{}},
		},
	}
	for i := range cfg.Routes {
		cfg.Routes[i].To.Sink = cfg.Routes[i].Name
	}
	stream, topic := journal.Location{Stream: "S", Subject: "farm.task", Sequence: 7}, journal.Location{Topic: "lake", Offset: 8}
	a := each(t, cfg, storedAt("a", stream), storedAt("b", topic)).want(t, http.StatusBadGateway,
		"farm.task in stream S, sequence 7 (stored by a in sink a): ", "lake, partition 0, offset 8 (stored by b in sink b): ")
	if strings.Contains(a.body, "farmer") {
		t.Errorf("it tells a user: %s", a.body)
	}
	// Brokers exchanged, a sink that is gone, and one that keeps nothing.
	each(t, cfg, storedAt("a", topic), storedAt("b", stream), storedAt("d", stream), storedAt("c", journal.Location{Key: "k"})).want(t, http.StatusBadGateway,
		"sink a is of kind nats now", "sink b is of kind kafka now", "the configuration has no such route")
	each(t, cfg, storedAt("c", journal.Location{Key: "k"}), storedAt("a", journal.Location{ContextID: "x"})).want(t, http.StatusNotFound,
		"a sink of this kind keeps nothing", "the gateway keeps nothing that was confirmed")
	j := testkit.Must(journal.New(journal.Config{}))(t)
	j.Event(&gateway.MessageReceived{ID: "message-number-1", TenantID: "tenant-1"})
	told := &plainSource{journal: j, stored: func(context.Context) iter.Seq2[admin.StoredCopy, error] {
		return func(yield func(admin.StoredCopy, error) bool) {
			yield(admin.StoredCopy{Place: "there"}, errors.New("dial nats://farmer:"+secret+"@nats.example:4222: refused"))
		}
	}}
	get(t, serve(t, admin.Config{Token: testToken}, told), "/api/contents?id=message-number-1", bearer(testToken)).want(t, http.StatusBadGateway, "there: dial nats://nats.example:4222: refused")
	var many []journal.Event
	for i := range uint64(60) {
		many = append(many, storedAt("d", journal.Location{Stream: "S", Sequence: i + 1}))
	}
	each(t, cfg, many...).want(t, http.StatusNotFound, "; and 46 more")
}

// At most two messages are read at a time.
func TestContentsOfManyAtATime(t *testing.T) {
	j := testkit.Must(journal.New(journal.Config{}))(t)
	j.Event(&gateway.MessageReceived{ID: "message-number-1", TenantID: "tenant-1"})
	reading, proceed := make(chan struct{}, 3), make(chan struct{})
	source := &plainSource{journal: j, stored: func(context.Context) iter.Seq2[admin.StoredCopy, error] {
		return func(yield func(admin.StoredCopy, error) bool) {
			reading <- struct{}{}
			<-proceed
			yield(admin.StoredCopy{Place: "there", Payload: []byte("words")}, nil)
		}
	}}
	server := serve(t, admin.Config{Token: testToken}, source)
	ask := func() answer { return get(t, server, "/api/contents?id=message-number-1", bearer(testToken)) }
	answers := make(chan answer)
	for range 2 {
		go func() { answers <- ask() }()
	}
	<-reading
	<-reading
	third := make(chan answer, 1)
	go func() { third <- ask() }()
	select {
	case got := <-third:
		if after := got.want(t, http.StatusServiceUnavailable, "try again").header.Get("Retry-After"); after != "1" {
			t.Errorf("Retry-After: %q", after)
		}
	case <-reading:
		t.Error("a third one is read beside the others")
	}
	close(proceed)
	for range 2 {
		(<-answers).want(t, http.StatusOK, `"text":"words"`, `"place":"there"`)
	}
}

// A client that gives up ends the reading.
func TestContentsEndWithTheRequest(t *testing.T) {
	j := testkit.Must(journal.New(journal.Config{}))(t)
	j.Event(&gateway.MessageReceived{ID: "message-number-1", TenantID: "tenant-1"})
	reading, ended := make(chan struct{}), make(chan error, 1)
	source := &plainSource{journal: j, stored: func(ctx context.Context) iter.Seq2[admin.StoredCopy, error] {
		return func(yield func(admin.StoredCopy, error) bool) {
			close(reading)
			<-ctx.Done()
			ended <- ctx.Err()
			yield(admin.StoredCopy{Place: "there"}, ctx.Err())
		}
	}}
	server := serve(t, admin.Config{Token: testToken}, source)
	ctx, cancel := context.WithCancel(t.Context())
	r := testkit.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server.Addr()+"/api/contents?id=message-number-1", http.NoBody))(t)
	bearer(testToken)(r)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	failed := make(chan error, 1)
	go func() {
		response, err := client.Do(r)
		if err == nil {
			err = response.Body.Close()
		}
		failed <- err
	}()
	<-reading
	cancel()
	if err := <-failed; err == nil {
		t.Error("a response to nobody")
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the reading ended with %v", err)
	}
}
