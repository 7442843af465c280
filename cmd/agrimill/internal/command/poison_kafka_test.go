package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
)

const pageToken = "the-token-of-the-page"

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
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in %s", want, text)
		}
	}
	if payload := w.want(statusOK, "poison", "show", all[1].ID, "--config", broken, "--payload", "-"); payload != mark+"two" {
		t.Errorf("payload %q", payload)
	}
	w.want(statusFailed, "poison", "show", "1-4711", "--config", broken)

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

// The page does the same, and tells how many there are, and since when.
func TestPoisonQueueInKafkaOnPage(t *testing.T) {
	w := newKafkaWorld(t)
	broken, repaired := w.write("{filename}"), w.write("repaired")
	w.run(broken, func(p *pipeline.Pipeline) {
		w.poisoned(broken, mark+"one", mark+"two", mark+"three")
		testkit.Eventually(t, "the depth is known", func() bool {
			q := p.Snapshot().Poison
			return q.Depth != nil && *q.Depth == 3 && !q.Oldest.IsZero() && q.DepthNote == ""
		})
	})
	w.run(repaired, func(p *pipeline.Pipeline) {
		page := w.servePage(p)
		var status struct {
			Browsable bool `json:"poison_browsable"`
		}
		page.get("/api/status", &status)
		var groups admin.PoisonGroups
		page.get("/api/poison/groups", &groups)
		if !status.Browsable || groups.Messages != 3 || len(groups.Groups) != 2 {
			t.Errorf("%+v, %+v", status, groups)
		}
		var list admin.PoisonPage
		page.get("/api/poison?limit=2", &list)
		if len(list.Messages) != 2 || !list.More || list.Messages[1].MessageType != shapes {
			t.Fatalf("%+v", list)
		}
		var contents admin.PoisonContents
		page.get("/api/poison/contents?id="+list.Messages[0].ID, &contents)
		if contents.Preview == nil || contents.Preview.Text != mark+"one" {
			t.Errorf("%+v", contents)
		}
		if got := page.post("/api/poison/replay", list.Messages[0].ID); len(got.Results) != 1 || got.Results[0].Outcome != admin.ReplayDelivered {
			t.Errorf("%+v", got)
		}
		if got := page.post("/api/poison/drop", list.Messages[0].ID, list.Messages[1].ID); len(got.Results) != 2 ||
			got.Results[0].Outcome != admin.ReplayGone || got.Results[1].Outcome != admin.ReplayDropped {
			t.Errorf("%+v", got)
		}
		page.get("/api/poison", &list)
		if len(list.Messages) != 1 {
			t.Errorf("left: %+v", list)
		}
	})
	if got := w.arrived(); !slices.Equal(got, []string{mark + "one"}) {
		t.Errorf("arrived: %q", got)
	}
}

// servedPage is a status page.
type servedPage struct {
	*testing.T
	addr string
}

// servePage serves the page of a pipeline until the test ends.
func (w *kafkaWorld) servePage(p *pipeline.Pipeline) servedPage {
	w.Helper()
	server, err := admin.New(admin.Config{Address: "127.0.0.1:0", Token: pageToken}, p)
	must(w, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }() // ends with ctx
	w.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
	return servedPage{w.T, "http://" + server.Addr()}
}

func (p servedPage) get(path string, into any) { p.Helper(); p.do(http.MethodGet, path, nil, into) }

func (p servedPage) post(path string, ids ...string) (response admin.ReplayResponse) {
	p.Helper()
	body, err := json.Marshal(admin.ReplayRequest{IDs: ids})
	must(p, err)
	p.do(http.MethodPost, path, body, &response)
	return response
}

func (p servedPage) do(method, path string, body []byte, into any) {
	p.Helper()
	request, err := http.NewRequestWithContext(p.Context(), method, p.addr+path, bytes.NewReader(body))
	must(p, err)
	request.Header.Set("Authorization", "Bearer "+pageToken)
	request.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	must(p, err)
	defer func() { _ = response.Body.Close() }()
	if err := json.NewDecoder(response.Body).Decode(into); err != nil || response.StatusCode != http.StatusOK {
		p.Fatalf("%s: %s, %v", path, response.Status, err)
	}
}
