package command

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
)

// routesWorld has a route to each kind of target. Their topics need a file name until
// they are repaired, so that they poison everything.
type routesWorld struct {
	*world
	gate             *gatewaytest.Server
	sender, receiver gateway.Endpoint
	cluster          *kafkatest.Cluster
	dir              string
	js               jetstream.JetStream
}

func newRoutesWorld(t *testing.T) *routesWorld {
	t.Helper()
	w := &routesWorld{
		world: &world{T: t, env: map[string]string{}, server: natstest.Start(t, func(o *natsserver.Options) { o.MaxPayload = 16 << 10 })},
		gate:  gatewaytest.New(t, gatewaytest.Config{}), cluster: kafkatest.Start(t), dir: t.TempDir(),
	}
	types := []string{taskData}
	w.sender = w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "terminal", Send: types})
	w.receiver = w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "farm software", Receive: types, Subscribe: types})
	w.env["AGRIMILL_CLIENT_SECRET"] = w.gate.Application().ClientSecret
	conn := testkit.Must(natstest.Connect(w.server.URL()))(t)
	t.Cleanup(conn.Close)
	w.js = testkit.Must(natstest.JetStream(conn))(t)
	testkit.Must(w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out.>"}}))(t)
	return w
}

// write writes the configuration with the topic of all routes and further routes.
func (w *routesWorld) write(topic, messageType, further string) string {
	w.Helper()
	c := w.gate.ClientConfig()
	file := filepath.Join(w.TempDir(), "agrimill.yaml")
	text := fmt.Sprintf(`
gateway: {base_url: %q, token_url: %q, client_id: %q, client_secret: "${AGRIMILL_CLIENT_SECRET}"}
sinks:
  queue: {nats: {url: %[4]q}}
  farm: {nats: {url: %[4]q, stream: FARM, subject_prefix: farm}}
  lake: {kafka: {brokers: %[5]q, topic_prefix: lake}}
  files: {blob: {url: "file://%[6]s/archive?create_dir=true"}}
claim_check: {url: "file://%[6]s/payloads?create_dir=true", from: 8KiB}
poison: {sink: queue}
dedup: {bbolt: {path: %[7]q}}
admin: {address: off}
routes:
  - {name: to-nats, from: {gateway: all}, to: {sink: farm, topic: %[8]q}}
  - {name: to-kafka, from: {gateway: all}, to: {sink: lake, topic: %[8]q}}
  - {name: to-files, from: {gateway: all}, to: {sink: files, topic: %[8]q}}
  - name: to-gateway
    from: {nats: {url: %[4]q, subject: "out.>"}}
    to: {gateway: {tenant: %[9]s, endpoint: %[10]s, recipients: [%[11]s], type: %[12]q}}
%[13]s`, c.BaseURL, c.TokenURL, c.ClientID, w.server.URL(), w.cluster.Addr(), filepath.ToSlash(w.dir), filepath.Join(w.dir, "dedup.db"),
		topic, w.gate.Tenant(), w.sender.ID, w.receiver.ID, messageType, further)
	must(w, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// run runs the configuration until f, which is called when it is ready, returns.
func (w *routesWorld) run(file string, f func(*pipeline.Pipeline)) {
	w.Helper()
	cfg := testkit.Must(config.Load(file, config.Options{Env: func(key string) string { return w.env[key] }}))(w)
	p := testkit.Must(pipeline.New(w.Context(), cfg, pipeline.Options{Logger: slog.New(slog.NewTextHandler(w.Output(), &slog.HandlerOptions{Level: slog.LevelError}))}))(w)
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }() // ends with ctx
	testkit.Eventually(w.T, "it is ready", func() bool { return p.Snapshot().Verdict.Ready })
	f(p)
	cancel()
	if err := <-done; err != nil {
		w.Error(err)
	}
}

// targets tell for each route where a payload is, as often as it is there.
func (w *routesWorld) targets() map[string]func(payload []byte) []string {
	return map[string]func(payload []byte) []string{
		"to-nats": func(payload []byte) (places []string) {
			for _, msg := range w.streamed("FARM") {
				if holds(payload, msg.Data, msg.Header.Get(gateway.KeyPayloadSHA256)) {
					places = append(places, msg.Subject)
				}
			}
			return places
		},
		"to-kafka": func(payload []byte) (places []string) {
			for _, record := range kafkatest.Read(w, w.cluster.Addr(), "lake.repaired") {
				var checked string
				for _, header := range record.Headers {
					if header.Key == gateway.KeyPayloadSHA256 {
						checked = string(header.Value)
					}
				}
				if holds(payload, record.Value, checked) {
					places = append(places, record.Topic)
				}
			}
			return places
		},
		"to-files": func(payload []byte) (places []string) {
			root := filepath.Join(w.dir, "archive")
			err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return err
				}
				content, err := os.ReadFile(path)
				if bytes.Equal(content, payload) {
					relative, _ := filepath.Rel(root, path) // it is below
					top, _, _ := strings.Cut(filepath.ToSlash(relative), "/")
					places = append(places, top)
				}
				return err
			})
			if err != nil {
				w.Error(err)
			}
			return places
		},
		"to-gateway": func(payload []byte) (places []string) {
			sum := sha256.Sum256(payload)
			for _, e := range w.gate.Ledger() {
				if e.PayloadSHA256 == sum {
					places = append(places, e.MessageType)
				}
			}
			return places
		},
	}
}

// holds reports whether a message has the payload, in itself or in the claim check.
func holds(payload, data []byte, checked string) bool {
	return bytes.Equal(data, payload) || len(data) == 0 && checked == fmt.Sprintf("%x", sha256.Sum256(payload))
}

// streamed returns what a stream holds.
func (w *routesWorld) streamed(name string) (list []*jetstream.RawStreamMsg) {
	w.Helper()
	stream := testkit.Must(w.js.Stream(w.Context(), name))(w)
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		if raw, err := stream.GetMsg(w.Context(), seq); err == nil {
			list = append(list, raw)
		}
	}
	return list
}

// What the routes poisoned goes, once they are repaired, through them and to their
// targets: from the command line, with agrimill stopped and with it running, as from
// the status page.
func TestReplayThroughRoutes(t *testing.T) {
	w := newRoutesWorld(t)
	payloads := map[string][]byte{
		"stopped": []byte(mark + "stopped"), "large": []byte(strings.Repeat(mark, 2000)),
		"page": []byte(mark + "page"), "running": []byte(mark + "running"),
	}
	names := []string{"stopped", "large", "page", "running"}
	poisoned := map[string][]string{} // IDs by payload
	broken := w.write("{filename}", "{filename}", "")
	w.run(broken, func(*pipeline.Pipeline) {
		seen := 0
		for _, name := range names {
			testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Payload: payloads[name]}))(t)
			routes := 3
			if name != "large" { // which no message of NATS can hold
				routes++
				testkit.Must(w.js.Publish(t.Context(), "out.task", append([]byte("out-"), payloads[name]...)))(t)
			}
			testkit.Eventually(t, "the routes poison it", func() bool {
				all := w.list("--config", broken)
				poisoned[name] = ids(all[min(seen, len(all)):])
				return len(poisoned[name]) == routes
			})
			seen += routes
		}
	})
	file := w.write("repaired", taskData, "")
	replay := func(name string) {
		t.Helper()
		w.want(statusOK, append([]string{"poison", "replay", "--config", file}, poisoned[name]...)...)
	}
	replay("stopped")
	replay("large")
	w.run(file, func(p *pipeline.Pipeline) {
		report, err := p.Replay(t.Context(), p.PoisonStore(), poisoned["page"])
		if err != nil || report.Sent != 4 {
			t.Errorf("page: %+v, %v", report, err)
		}
		replay("running")
	})
	if left := w.list("--config", file); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	for route, placesOf := range w.targets() {
		want := map[string]string{"to-nats": "farm.repaired", "to-kafka": "lake.repaired", "to-files": "repaired", "to-gateway": taskData}[route]
		for _, name := range names {
			payload := payloads[name]
			if route == "to-gateway" {
				if name == "large" {
					continue
				}
				payload = append([]byte("out-"), payload...)
			}
			if places := placesOf(payload); !slices.Equal(places, []string{want}) {
				t.Errorf("%s, %s: it is in %q, want %q once", route, name, places, want)
			}
		}
	}
}

// Nothing is lost that cannot be replayed as things are: a message whose route is gone,
// one that its filter does not want any more, and any while the configuration cannot be
// read. They stay as they were, and the reason is reported.
func TestReplayThatIsRefused(t *testing.T) {
	w := newRoutesWorld(t)
	const further = "  - {name: gone, from: {gateway: all}, to: {sink: farm, topic: %[1]q}}\n  - {name: picky, from: {gateway: all}, filter: {type: %[2]q}, to: {sink: farm, topic: %[1]q}}\n"
	broken := w.write("fine", taskData, fmt.Sprintf(further, "{filename}", "*"))
	w.run(broken, func(*pipeline.Pipeline) {
		testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Payload: []byte(mark)}))(t)
		testkit.Eventually(t, "the routes poison it", func() bool { return len(w.list("--config", broken)) == 2 })
	})
	before := w.list("--config", broken)
	repaired := w.write("fine", taskData, strings.Replace(fmt.Sprintf(further, "repaired", "shp:*"), "gone", "renamed", 1))
	status, stdout, stderr := w.agrimill("poison", "replay", "--all", "--json", "--config", repaired)
	report := decode[replayReport](w.world, stdout)
	if status != statusFailed || report.Kept != 2 || report.Delivered+report.Poisoned != 0 {
		t.Errorf("status %d, report %+v, stderr %q", status, report, stderr)
	}
	for _, want := range []string{`no such route: "gone"`, `route "picky"`, "filter", "2 messages of 2 still in the poison queue"} {
		testkit.Contains(t, stderr, want)
	}
	w.want(statusUsage, "poison", "replay", "--all", "--config", repaired+".none")
	if left := w.list("--config", repaired); !slices.EqualFunc(left, before, equal) {
		t.Errorf("left %+v, want %+v", left, before)
	}
	// That it was refused is not remembered as handled.
	picky := w.write("fine", taskData, fmt.Sprintf(further, "repaired", "*"))
	w.want(statusOK, "poison", "replay", "--all", "--config", picky)
	if places := w.targets()["to-nats"]([]byte(mark)); !slices.Equal(places, []string{"farm.fine", "farm.repaired", "farm.repaired"}) {
		t.Errorf("it is in %q", places)
	}
}

// A sink that is down is waited for, as by agrimill, and the message stays meanwhile.
func TestReplayThroughRoutesWaits(t *testing.T) {
	w := newRoutesWorld(t)
	broken := w.write("{filename}", taskData, "")
	w.run(broken, func(*pipeline.Pipeline) {
		testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Payload: []byte(mark)}))(t)
		testkit.Eventually(t, "the routes poison it", func() bool { return len(w.list("--config", broken)) == 3 })
	})
	file := w.write("repaired", taskData, "")
	replay := []string{"poison", "replay", "--route", "to-kafka", "--config", file}
	w.cluster.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout bytes.Buffer
	errs := &watcher{text: "waiting: sink lake", found: cancel}
	if status := w.program(&stdout, errs).run(ctx, replay); status != statusFailed || !strings.Contains(errs.String(), "1 message not replayed") {
		t.Errorf("status %d, stderr %q", status, errs.String())
	}
	if left := w.list("--config", file, "--route", "to-kafka"); len(left) != 1 || left[0].Count != 1 {
		t.Errorf("left: %+v", left)
	}
	w.want(statusFailed, append(replay, "--timeout", "1s")...)
	if left := w.list("--config", file, "--route", "to-kafka"); len(left) != 1 || left[0].Count != 1 {
		t.Errorf("left: %+v", left)
	}
	errs = &watcher{text: "waiting: ", found: w.cluster.Restart}
	if status := w.program(&stdout, errs).run(t.Context(), replay); status != statusOK {
		t.Errorf("status %d, stderr %q", status, errs.String())
	}
	if places := w.targets()["to-kafka"]([]byte(mark)); !slices.Equal(places, []string{"lake.repaired"}) {
		t.Errorf("it is in %q", places)
	}
}
