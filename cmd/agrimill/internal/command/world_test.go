package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/poisonqueue"
	"github.com/agrimill/agrimill/subscriber"
)

func TestMain(m *testing.M) {
	// Under the name of the program, the binary of the tests is the program.
	if filepath.Base(os.Args[0]) == "agrimill" {
		os.Exit(Main(os.Args[1:], Build{}))
	}
	goleak.VerifyTestMain(m, testkit.SaramaLeaks()...)
}

const (
	taskData = "iso:11783:-10:taskdata:zip"
	shapes   = "shp:shape:zip"
	// mark begins every payload: it must not be seen on stderr.
	mark     = "PAYLOAD-OF-THE-FARM-"
	user     = "farmer"
	password = "not-for-everybody"
)

// world is a NATS server with a password, and messages in its poison queue that
// a router has put there on their way from a gateway.
type world struct {
	*testing.T
	server *natstest.Server
	sink   *nats.Sink
	env    map[string]string
	file   string // a configuration with the poison queue
	// Of the router; may be nil.
	store *claimcheck.Store
	// What all messages hold; nil: each its own.
	payload []byte
	// What the program reads, and whether a person is there.
	stdin    io.Reader
	terminal bool
}

// newWorld has the messages poisoned whose types are given, by the route "shapes"
// or "task-data". fillers go into the stream first, so that IDs begin after them.
func newWorld(t *testing.T, fillers int, messageTypes ...string) *world {
	t.Helper()
	w := &world{T: t, server: natstest.Start(t, func(o *natsserver.Options) {
		o.Username, o.Password = user, password
	})}
	const id = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
	w.env = map[string]string{
		"NATS_PASSWORD": password, "AGRIMILL_BASE_URL": "http://127.0.0.1:1", "AGRIMILL_TOKEN_URL": "http://127.0.0.1:1/token",
		"AGRIMILL_CLIENT_ID": "agrimill", "AGRIMILL_CLIENT_SECRET": "kept to itself", "AGRIMILL_SERVICE": "router",
		"AGRIMILL_APPLICATION_ID": id, "AGRIMILL_SOFTWARE_VERSION_ID": id,
	}
	w.sink = w.newSink(nats.Config{})
	w.file = w.queueIn("")
	for range fillers {
		must(t, w.sink.Publish("filler", message.NewMessage("filler", nil)))
	}
	if len(messageTypes) > 0 {
		w.poison(messageTypes...)
	}
	return w
}

func (w *world) newSink(config nats.Config) *nats.Sink {
	w.Helper()
	config.URL, config.User, config.Password = w.server.URL(), user, password
	sink := testkit.Must(nats.New(config, nil))(w)
	w.Cleanup(func() {
		if err := sink.Close(); err != nil {
			w.Error(err)
		}
	})
	return sink
}

// poison runs a router from a gateway into NATS whose transforms fail.
func (w *world) poison(messageTypes ...string) {
	w.Helper()
	gate := gatewaytest.New(w, gatewaytest.Config{})
	all := []string{taskData, shapes}
	sender := gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "terminal", Send: all})
	gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "farm software", Receive: all, Subscribe: all})
	client := testkit.Must(gateway.New(gate.ClientConfig()))(w)
	sub := testkit.Must(subscriber.New(subscriber.Config{
		Client: client, Confirm: subscriber.ConfirmConfig{MaxAge: 5 * time.Millisecond},
	}, nil))(w)
	config := router.Config{
		Poison: w.newSink(nats.Config{}),
		Retry:  router.RetrySettings{MaxAttempts: 2, InitialBackoff: time.Millisecond},
	}
	if w.store != nil {
		config.ClaimCheck = w.store
	}
	r := testkit.Must(router.New(config, nil))(w)
	to := w.newSink(nats.Config{})
	for _, route := range []router.Route{
		{Name: "task-data", From: sub, Topic: taskData, To: to, Transform: func(msg *message.Message) ([]*message.Message, error) {
			return nil, fmt.Errorf("parsing %q failed at https://farm.example/doc?token=%s", msg.Payload[:20], password)
		}},
		{Name: "shapes", From: sub, Topic: shapes, To: to, Transform: func(*message.Message) ([]*message.Message, error) {
			return nil, router.Permanent(errors.New("no shape file"))
		}},
	} {
		must(w, r.Add(route))
	}
	ctx := testkit.Context(w)
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(running) }()
	var failure error
	for i, messageType := range messageTypes {
		payload := w.payload
		if payload == nil {
			payload = fmt.Appendf(nil, "%s%d, which is long enough", mark, i)
		}
		_, err := gate.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: payload})
		// One after the other, so that they are in the queue in this order.
		if failure = errors.Join(err, gate.WaitConfirmed(ctx, i+1)); failure != nil {
			break
		}
	}
	stop()
	must(w, errors.Join(failure, <-done, client.Close()))
}

// program writes to stdout and stderr.
func (w *world) program(stdout, stderr io.Writer) *program {
	stdin := w.stdin
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	return &program{
		stdin: stdin, stdout: stdout, stderr: stderr, env: func(key string) string { return w.env[key] },
		now: time.Now, isTerminal: func(any) bool { return w.terminal },
	}
}

// agrimill runs the program. stderr never shows payloads and secrets.
func (w *world) agrimill(args ...string) (status int, stdout, stderr string) {
	w.Helper()
	var out, errs bytes.Buffer
	status = w.program(&out, &errs).run(w.Context(), args)
	for _, secret := range []string{mark, password, "token=", w.env["AGRIMILL_CLIENT_SECRET"]} {
		if secret != "" && strings.Contains(errs.String(), secret) {
			w.Errorf("%q: stderr shows %q: %s", args, secret, errs.String())
		}
	}
	return status, out.String(), errs.String()
}

// want runs the program, which has to end with a status, and returns stdout.
func (w *world) want(status int, args ...string) string {
	w.Helper()
	got, stdout, stderr := w.agrimill(args...)
	if got != status {
		w.Fatalf("agrimill %q: status %d, want %d\nstdout: %s\nstderr: %s", args, got, status, stdout, stderr)
	}
	return stdout
}

// queueIn writes a configuration whose sink, poison queue included, is in NATS with further settings, and further sections.
func (w *world) queueIn(settings string, sections ...string) string {
	w.Helper()
	return w.configure(fmt.Sprintf("sinks: {farm: {nats: {url: %q, user: %s, password: \"${NATS_PASSWORD}\"%s}}}\npoison: {sink: farm}\n%s",
		w.server.URL(), user, settings, strings.Join(sections, "")))
}

// list returns what `poison list --json` tells, of the world's own queue if no other is given.
func (w *world) list(args ...string) []admin.PoisonedRecord {
	w.Helper()
	if !slices.Contains(args, "--config") {
		args = append(args, "--config", w.file)
	}
	return decode[[]admin.PoisonedRecord](w, w.want(statusOK, append([]string{"poison", "list", "--json"}, args...)...))
}

// decode reads JSON that has nothing beside what T has.
func decode[T any](w *world, text string) T {
	w.Helper()
	var value T
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&value); err != nil || decoder.More() {
		w.Fatalf("not the JSON it should be: %v: %s", err, text)
	}
	return value
}

// stored returns what the stream holds of a topic.
func (w *world) stored(config poisonqueue.Config) []*message.Message {
	w.Helper()
	config.Conn = w.newSink(nats.Config{}).Conn()
	queue := testkit.Must(poisonqueue.New(config))(w)
	var messages []*message.Message
	for p, err := range queue.Messages(w.Context()) {
		must(w, err)
		messages = append(messages, p.Message)
	}
	return messages
}

// topicOf is the topic of a poisoned message in the routes of configure.
func topicOf(r admin.PoisonedRecord) string { return nats.TopicSegment(r.MessageType) }

func ids(records []admin.PoisonedRecord) []string {
	var list []string
	for _, r := range records {
		list = append(list, r.ID)
	}
	return list
}

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
