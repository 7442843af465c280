package pipeline_test

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router/metrics"
)

// What docker-compose.yaml puts together works: the same configuration, the same
// credentials, between the same servers, in one process. Task data arrives in NATS
// and in Kafka, everything is confirmed, and every metric of the alerts and of the
// dashboard is there.
func TestComposeWorks(t *testing.T) {
	env := deployEnvironment(t, true)
	gate := gatewaytest.New(t, gatewaytest.Config{Application: gatewaytest.ApplicationConfig{
		ClientID: env("EMULATOR_CLIENT_ID"), ClientSecret: env("EMULATOR_CLIENT_SECRET"),
		ID: env("EMULATOR_APPLICATION_ID"), SoftwareVersionID: env("EMULATOR_SOFTWARE_VERSION_ID"),
	}})
	nats := natstest.Start(t)
	kafka := kafkatest.Start(t)
	text := strings.NewReplacer(
		"http://emulator:8081", gate.BaseURL(),
		"nats://nats:4222", nats.URL(),
		"kafka:9092", kafka.Addr(),
		"/var/lib/agrimill", t.TempDir(),
	).Replace(string(deployFile(t, "compose/agrimill.yaml")))
	cfg := testkit.Must(config.Parse("agrimill.yaml", []byte(text), config.Options{Env: env}))(t)
	ctx := testkit.Context(t)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	agrimill := testkit.Must(pipeline.New(ctx, cfg, pipeline.Options{Registry: registry, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}))(t)
	client := gate.Client()
	stream := testkit.Must(client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{Types: []gateway.EventType{gateway.EventEndpointsListChanged}}))(t)
	running, stop := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- agrimill.Run(running) }()
	if _, err := stream.Next(); err != nil { // the endpoint of the configuration is there
		t.Fatal(err)
	}
	testkit.NoError(t, stream.Close())

	sender := gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "terminal", Send: []string{taskData, "img:jpeg"}})
	sent := 0
	for _, messageType := range []string{taskData, "img:jpeg"} {
		ids := testkit.Must(gate.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: []byte(messageType)}))(t)
		sent += len(ids)
	}
	if len(gate.Ledger()) != sent {
		t.Fatal("the endpoint of the configuration does not receive what it is subscribed to")
	}
	testkit.NoError(t, gate.WaitConfirmed(ctx, sent))
	checkStored(ctx, t, nats.URL(), uint64(sent))
	if records := kafkatest.Read(t, kafka.Addr(), "agrimill.iso__3A11783__3A-10__3Ataskdata__3Azip"); len(records) != 1 {
		t.Errorf("%d messages in Kafka, want the task data", len(records))
	}
	checkMetrics(t, registry)
	stop()
	testkit.NoError(t, <-result)
}

func checkStored(ctx context.Context, t *testing.T, url string, want uint64) {
	t.Helper()
	conn := testkit.Must(natstest.Connect(url))(t)
	defer conn.Close()
	js := testkit.Must(natstest.JetStream(conn))(t)
	stream := testkit.Must(js.Stream(ctx, "AGRIMILL"))(t)
	info, err := stream.Info(ctx)
	if err != nil || info.State.Msgs != want {
		t.Errorf("%d messages in NATS, want %d, %v", info.State.Msgs, want, err)
	}
}

// checkMetrics holds the alerts, the dashboard and docs/metrics.md against what a
// running agrimill exports.
func checkMetrics(t *testing.T, registry prometheus.Gatherer) {
	t.Helper()
	families := testkit.Must(registry.Gather())(t)
	exported := map[string]bool{"up": true} // of Prometheus
	for _, family := range families {
		exported[family.GetName()] = true
	}
	own := maps.Clone(exported) // what only the program exports
	maps.DeleteFunc(own, func(name string, _ bool) bool {
		return !strings.HasPrefix(name, "agrimill_") ||
			slices.ContainsFunc(metrics.Metrics(), func(m metrics.Metric) bool { return m.Name == name })
	})
	for _, name := range metrics.Names() { // some appear when something first happens
		exported[name] = true
	}
	name := regexp.MustCompile(`\b(agrimill|process|go)_[a-z_]+[a-z]\b`)
	for _, file := range []string{"prometheus/alerts.yaml", "grafana/dashboards/agrimill.json"} {
		found := name.FindAllString(string(deployFile(t, file)), -1)
		if len(found) < 15 {
			t.Errorf("%s: only %d metrics", file, len(found))
		}
		for _, name := range found {
			if !exported[name] {
				t.Errorf("%s: agrimill exports no %s", file, name)
			}
		}
	}
	page := string(testkit.Must(os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "metrics.md")))(t))
	_, section, found := strings.Cut(page, "\n## The program agrimill\n")
	if !found {
		t.Fatal("docs/metrics.md has no section about the program")
	}
	for _, match := range regexp.MustCompile("(?m)^\\| `(agrimill_[a-z_]+)[`{]").FindAllStringSubmatch(section, -1) {
		if !own[match[1]] {
			t.Errorf("docs/metrics.md: agrimill exports no %s", match[1])
		}
		delete(own, match[1])
	}
	if len(own) > 0 {
		t.Errorf("docs/metrics.md does not document %v", slices.Sorted(maps.Keys(own)))
	}
}
