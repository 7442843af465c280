package command

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
)

// kafkaWorld has nothing but a gateway and Kafka, and one route. It needs a file name in its topic until it is repaired.
type kafkaWorld struct {
	*routesWorld
}

func newKafkaWorld(t *testing.T) *kafkaWorld {
	t.Helper()
	w := &kafkaWorld{&routesWorld{world: &world{T: t, env: map[string]string{}}, gate: gatewaytest.New(t, gatewaytest.Config{}), cluster: kafkatest.Start(t), dir: t.TempDir()}}
	types := []string{taskData, shapes}
	w.sender = w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "terminal", Send: types})
	w.receiver = w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "farm software", Receive: types, Subscribe: types})
	w.env["AGRIMILL_CLIENT_SECRET"] = w.gate.Application().ClientSecret
	return w
}

func (w *kafkaWorld) write(topic string) string {
	w.Helper()
	c := w.gate.ClientConfig()
	file := filepath.Join(w.TempDir(), "agrimill.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
gateway: {base_url: %q, token_url: %q, client_id: %q, client_secret: "${AGRIMILL_CLIENT_SECRET}"}
sinks: {lake: {kafka: {brokers: %q, topic_prefix: lake, partitions: 2}}}
poison: {sink: lake}
dedup: {bbolt: {path: %q}}
admin: {address: off}
routes:
  - {name: to-kafka, from: {gateway: all}, to: {sink: lake, topic: %q}}
`, c.BaseURL, c.TokenURL, c.ClientID, w.cluster.Addr(), filepath.Join(w.dir, "dedup.db"), topic), 0o600); err != nil {
		w.Fatal(err)
	}
	return file
}

// poisoned has payloads poisoned, and returns their IDs.
func (w *kafkaWorld) poisoned(file string, payloads ...string) (list []string) {
	w.Helper()
	before := len(w.list("--config", file))
	for i, payload := range payloads {
		messageType := []string{taskData, shapes}[i%2]
		if _, err := w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: messageType, Payload: []byte(payload)}); err != nil {
			w.Fatal(err)
		}
		testkit.Eventually(w.T, "the route poisons it", func() bool {
			list = ids(w.list("--config", file))
			return len(list) == before+i+1
		})
	}
	return list
}

func (w *kafkaWorld) arrived() (list []string) {
	for _, record := range kafkatest.Read(w, w.cluster.Addr(), "lake.repaired") {
		list = append(list, string(record.Value))
	}
	slices.Sort(list)
	return list
}

// The poison queue in Kafka is looked at, replayed and dropped from the command line as the one in NATS is.
func TestPoisonQueueInKafka(t *testing.T) {
	w := newKafkaWorld(t)
	broken, repaired := w.write("{filename}"), w.write("repaired")
	if text := w.want(statusOK, "poison", "list", "--config", broken); text != "no messages\n" {
		t.Errorf("nothing is poisoned: %q", text)
	}
	w.run(broken, func(*pipeline.Pipeline) { w.poisoned(broken, mark+"one", mark+"two", mark+"three", mark+"four") })
	all := w.list("--config", broken)
	groups := decode[[]admin.PoisonGroup](w.world, w.want(statusOK, "poison", "list", "--group", "--json", "--config", broken))
	if len(all) != 4 || len(groups) != 2 || groups[0].Count != 2 || groups[0].Route != "to-kafka" {
		t.Fatalf("%+v, %+v", all, groups)
	}
	if found := w.list("--config", broken, "--type", "shp:*"); len(found) != 2 {
		t.Errorf("found %+v", found)
	}
	text := w.want(statusOK, "poison", "show", all[1].ID, "--config", broken)
	for _, want := range []string{all[1].ID, "to-kafka", gateway.KeyTenantID, "no filename"} {
		testkit.Contains(t, text, want)
	}
	if payload := w.want(statusOK, "poison", "show", all[1].ID, "--config", broken, "--payload", "-"); payload != mark+"two" {
		t.Errorf("payload %q", payload)
	}
	w.want(statusFailed, "poison", "show", "1-4711-3f2a9c01", "--config", broken)

	// As it is, it fails again, under another ID.
	status, stdout, _ := w.agrimill("poison", "replay", all[0].ID, "--json", "--config", broken)
	if report := decode[replayReport](w.world, stdout); status != statusFailed || report.Poisoned != 1 {
		t.Errorf("status %d, %+v", status, report)
	}
	if again := w.list("--config", broken); len(again) != 4 || again[3].Count != 2 || again[3].UUID != all[0].UUID {
		t.Errorf("%+v", again)
	}
	w.want(statusOK, "poison", "drop", all[1].ID, "--config", repaired)
	w.want(statusOK, "poison", "replay", "--config", repaired, "--type", taskData)
	if left := w.list("--config", repaired); len(left) != 1 || left[0].ID != all[3].ID {
		t.Errorf("left: %+v", left)
	}
	w.want(statusOK, "poison", "replay", "--config", repaired, "--all")
	w.want(statusOK, "poison", "replay", "--config", repaired, "--all") // there is nothing left
	if got := w.arrived(); !slices.Equal(got, []string{mark + "four", mark + "one", mark + "three"}) {
		t.Errorf("arrived: %q", got)
	}
	w.want(statusUsage, "poison", "drop", "0-x", "--config", repaired)
}
