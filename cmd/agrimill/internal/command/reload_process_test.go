//go:build reload

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.etcd.io/bbolt"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/router/boltstore"
)

const (
	reloadBatch     = 1000 // messages before, during and after the reloads
	reloadUnheard   = 500  // messages whose confirmations are lost with the process
	reloadReceivers = 16
	reloadSenders   = 8
)

// TestReloadAndKill does what an operator does, with the configurations that the
// deployment files ship and with real processes: messages come all the time while SIGHUP
// changes the log's level, and has a file refused. Everything is stored once and
// confirmed. Then agrimill is killed before it could confirm what it has stored, and
// the next one tells by its dedup store what it need not store again.
func TestReloadAndKill(t *testing.T) {
	built := newEndToEnd(t)
	for _, test := range []struct {
		name, file, dedup string
		outlives          bool // the store outlives the process
	}{
		{"systemd with bbolt", "systemd", "", true},
		{"compose with bbolt", "compose", "", true},
		{"systemd with nats_kv", "systemd", `dedup: {nats_kv: {url: "${NATS_URL}"}}`, true},
		{"systemd with memory", "systemd", `dedup: {store: memory}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := &endToEnd{TB: t, folder: t.TempDir(), agrimill: built.agrimill, natsServer: built.natsServer}
			newReloadWorld(w, test.file, test.dedup).run(test.outlives)
		})
	}
}

// reloadWorld is an instance with what is around it.
type reloadWorld struct {
	*endToEnd
	baseURL   string // of the emulator
	nats      string
	kafka     *kafkatest.Cluster // nil: no route goes there
	state     string             // the folder that agrimill keeps things in
	config    string             // the file
	text      string             // of the configuration, without the section log
	routes    int
	client    *gateway.Client
	tenant    string
	sender    string
	receivers []string
	sent      atomic.Int64
}

func newReloadWorld(e *endToEnd, deployment, dedup string) *reloadWorld {
	e.Helper()
	w := &reloadWorld{endToEnd: e, state: filepath.Join(e.folder, "state"), config: filepath.Join(e.folder, "agrimill.yaml"), routes: 1}
	credentials := filepath.Join(e.folder, "credentials")
	for _, dir := range []string{w.state, credentials} {
		must(w, os.Mkdir(dir, 0o700))
	}
	_, w.nats = w.startNATS("-1")
	told := w.startEmulator(w.nats)
	w.baseURL, w.tenant = told["base_url"], told["tenant_id"]
	w.env["CREDENTIALS_DIRECTORY"], w.env["AGRIMILL_ADMIN_TOKEN"] = credentials, "the-token-of-the-page"
	for name, value := range map[string]string{"client-secret": told["client_secret"], "admin-token": w.env["AGRIMILL_ADMIN_TOKEN"]} {
		must(w, os.WriteFile(filepath.Join(credentials, name), []byte(value), 0o600))
	}
	maps.Copy(w.env, map[string]string{
		"EMULATOR_CLIENT_ID": told["client_id"], "EMULATOR_CLIENT_SECRET": told["client_secret"],
		"EMULATOR_APPLICATION_ID": told["application_id"], "EMULATOR_SOFTWARE_VERSION_ID": told["software_version_id"],
	})

	// The file as it is shipped, but for addresses and folders.
	shipped, err := os.ReadFile(filepath.Join("..", "..", "deploy", deployment, "agrimill.yaml"))
	must(w, err)
	kafka := "unused"
	if strings.Contains(string(shipped), "kafka:9092") {
		w.kafka, w.routes = kafkatest.Start(w), 2
		kafka = w.kafka.Addr()
	}
	w.text = strings.NewReplacer(
		"https://gateway.example", told["base_url"], "https://auth.example/token", told["token_url"], "farm-software", told["client_id"],
		"http://emulator:8081/oauth/token", told["token_url"], "http://emulator:8081", told["base_url"],
		"nats://127.0.0.1:4222", "nats://"+w.nats, "nats://nats:4222", "nats://"+w.nats, "kafka:9092", kafka,
		"/var/lib/agrimill", w.state, "log: {format: json}\n", "",
	).Replace(string(shipped))
	if dedup != "" {
		line := regexp.MustCompile(`(?m)^dedup: .*$`)
		if !line.MatchString(w.text) {
			w.Fatal("the configuration has no section dedup")
		}
		w.text = line.ReplaceAllString(w.text, strings.ReplaceAll(dedup, "$", "$$"))
	}
	w.configure("log: {level: info}\n")
	w.makeEndpoints(told)
	return w
}

func (w *reloadWorld) configure(log string) {
	w.Helper()
	must(w, os.WriteFile(w.config, []byte(w.text+log), 0o600))
}

func (w *reloadWorld) makeEndpoints(told map[string]string) {
	w.Helper()
	var err error
	w.client, err = gateway.New(gateway.Config{
		BaseURL: told["base_url"], TokenURL: told["token_url"], ClientID: told["client_id"], ClientSecret: gateway.Secret(told["client_secret"]),
	})
	must(w, err)
	w.Cleanup(func() { _ = w.client.Close() })
	put := func(name string, direction gateway.Direction) string {
		endpoint, _, err := w.client.PutEndpoint(w.Context(), w.tenant, "urn:example:"+name, gateway.PutEndpointRequest{
			Name: name, ApplicationID: told["application_id"], SoftwareVersionID: told["software_version_id"],
			Capabilities: []gateway.EndpointCapability{{MessageType: taskData, Direction: direction}}, EndpointType: gateway.EndpointTypeCloudSoftware,
		})
		must(w, err)
		return endpoint.ID
	}
	w.sender = put("terminal", gateway.DirectionSend)
	for i := range reloadReceivers {
		w.receivers = append(w.receivers, put(fmt.Sprintf("farm-%d", i), gateway.DirectionReceive))
	}
}

// send sends n different messages, and continues until more is closed; nil is closed.
func (w *reloadWorld) send(n int, more <-chan struct{}) {
	if more == nil {
		closed := make(chan struct{})
		close(closed)
		more = closed
	}
	var group sync.WaitGroup
	var next atomic.Int64
	enough := func(i int) bool {
		select {
		case <-more:
			return i > n
		default:
			return false
		}
	}
	for range reloadSenders {
		group.Go(func() {
			for i := int(next.Add(1)); !enough(i); i = int(next.Add(1)) {
				id := uuid.NewString()
				err := w.client.SendMessage(w.Context(), gateway.SendMessageRequest{
					TenantID: w.tenant, EndpointID: w.sender, MessageType: taskData, ContextID: id,
					DirectRecipients: []string{w.receivers[i%len(w.receivers)]}, Payload: []byte("payload of " + id),
				})
				if err != nil {
					w.Error(err)
					return
				}
				w.sent.Add(1)
			}
		})
	}
	group.Wait()
}

func (w *reloadWorld) run(outlives bool) {
	agrimill := w.start("agrimill", w.agrimill, "run", w.config, "--address", "127.0.0.1:0", "--watch", "0")
	origin := agrimill.origin()
	testkit.Eventually(w, "it is ready", func() bool { status, _ := w.get(origin + "/readyz"); return status == http.StatusOK })

	w.send(reloadBatch, nil)
	w.waitConfirmed()
	reloaded := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() { w.send(reloadBatch, reloaded) })
	endLoad := sync.OnceFunc(func() { close(reloaded); load.Wait() })
	defer endLoad()
	for _, change := range []struct{ log, line string }{
		{"log: {level: debug}\n", "configuration: reloaded"},
		{"nonsense: 1\n", "rejected, keeping the current one"},
		{"log: {level: info}\n", "configuration: reloaded"},
	} {
		sent, before := w.sent.Load(), agrimill.count(change.line)
		w.configure(change.log)
		if err := agrimill.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			w.Error(err)
		}
		testkit.Eventually(w, change.line, func() bool { return agrimill.count(change.line) > before })
		testkit.Eventually(w, "messages are being sent", func() bool { return w.sent.Load() > sent+100 })
	}
	endLoad()
	w.send(reloadBatch, nil)
	w.waitConfirmed()
	w.checkStored()
	w.checkCounts(origin, "delivered", int(w.sent.Load()))
	w.checkCounts(origin, "poisoned", 0)
	if status, body := w.get(origin + "/readyz"); status != http.StatusOK {
		w.Errorf("readyz: %d %s", status, body)
	}

	// What it stores now it cannot confirm any more.
	fault := w.control(http.MethodPost, "/faults", map[string]any{"operation": "confirmMessages", "status": 503})["id"]
	w.send(reloadUnheard, nil)
	testkit.Eventually(w, "all are stored", func() bool { return w.total(origin, "delivered") == w.routes*int(w.sent.Load()) })
	agrimill.stop(syscall.SIGKILL)
	w.control(http.MethodDelete, "/faults/"+fmt.Sprint(fault), nil)
	w.checkHeld(int(w.sent.Load()))

	again := w.start("agrimill", w.agrimill, "run", w.config, "--address", "127.0.0.1:0", "--watch", "0")
	origin = again.origin()
	w.waitConfirmed()
	w.checkStored()
	outcome := map[bool]string{true: "duplicate", false: "delivered"}
	w.checkCounts(origin, outcome[outlives], reloadUnheard)
	w.checkCounts(origin, outcome[!outlives], 0)
	if status := again.stop(syscall.SIGTERM); status != statusOK {
		w.Errorf("agrimill ended with status %d", status)
	}
}

// count counts the lines that have a text in them.
func (p *process) count(text string) int {
	n := 0
	for _, line := range p.output() {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (w *reloadWorld) get(url string) (status int, body string) {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, url, nil)
	must(w, err)
	return w.do(request)
}

func (w *reloadWorld) do(request *http.Request) (status int, body string) {
	w.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	var text bytes.Buffer
	if _, err := text.ReadFrom(response.Body); err != nil {
		w.Error(err)
	}
	return response.StatusCode, text.String()
}

// control asks the emulator's control API.
func (w *reloadWorld) control(method, path string, body any) (answer map[string]any) {
	w.Helper()
	text, err := json.Marshal(body)
	must(w, err)
	request, err := http.NewRequestWithContext(w.Context(), method, w.baseURL+"/_control"+path, bytes.NewReader(text))
	must(w, err)
	request.Header.Set("Content-Type", "application/json")
	status, said := w.do(request)
	if status/100 != 2 || status != http.StatusNoContent && json.Unmarshal([]byte(said), &answer) != nil {
		w.Fatalf("%s %s: %d %s", method, path, status, said)
	}
	return answer
}

// ledger is what the gateway has, by context ID, and how much of it is confirmed.
func (w *reloadWorld) ledger() (ids map[string]bool, confirmed int) {
	w.Helper()
	_, text := w.get(w.baseURL + "/_control/ledger")
	var ledger struct {
		Entries []struct {
			ContextID     string      `json:"context_id"`
			Confirmations []time.Time `json:"confirmations"`
		} `json:"entries"`
	}
	must(w, json.Unmarshal([]byte(text), &ledger))
	ids = map[string]bool{}
	for _, e := range ledger.Entries {
		ids[e.ContextID] = true
		if len(e.Confirmations) > 0 {
			confirmed++
		}
	}
	return ids, confirmed
}

// waitConfirmed waits until everything that was sent is confirmed.
func (w *reloadWorld) waitConfirmed() {
	w.Helper()
	testkit.Eventually(w, "all are confirmed", func() bool {
		_, confirmed := w.ledger()
		return confirmed == int(w.sent.Load())
	})
}

// total is the sum of a counter over the routes.
func (w *reloadWorld) total(origin, outcome string) int {
	w.Helper()
	_, text := w.get(origin + "/metrics")
	total := 0
	for _, match := range regexp.MustCompile(`agrimill_route_messages_total\{outcome="`+outcome+`",[^}]*\} (\S+)`).FindAllStringSubmatch(text, -1) {
		value, err := strconv.ParseFloat(match[1], 64)
		must(w, err)
		total += int(value)
	}
	return total
}

// checkCounts checks that each route has counted so many messages.
func (w *reloadWorld) checkCounts(origin, outcome string, want int) {
	w.Helper()
	if n := w.total(origin, outcome); n != w.routes*want {
		w.Errorf("%d messages are %s in %d routes, want %d in each", n, outcome, w.routes, want)
	}
}

// checkStored checks that the sinks have everything that the gateway has, and nothing
// else, each once.
func (w *reloadWorld) checkStored() {
	w.Helper()
	ids, _ := w.ledger()
	if len(ids) != int(w.sent.Load()) {
		w.Errorf("the gateway has %d messages of %d", len(ids), w.sent.Load())
	}
	check := func(sink string, stored map[string]int) {
		for id, n := range stored {
			if n != 1 || !ids[id] {
				w.Errorf("message %s is in %s %d times", id, sink, n)
			}
		}
		if len(stored) != len(ids) {
			w.Errorf("%s has %d messages of %d", sink, len(stored), len(ids))
		}
	}
	check("NATS", w.inNATS())
	if w.kafka == nil {
		return
	}
	stored := map[string]int{}
	for _, record := range kafkatest.Read(w, w.kafka.Addr(), "agrimill.iso__3A11783__3A-10__3Ataskdata__3Azip") {
		for _, h := range record.Headers {
			if h.Key == gateway.KeyContextID {
				stored[string(h.Value)]++
			}
		}
	}
	check("Kafka", stored)
}

func (w *reloadWorld) js() jetstream.JetStream {
	w.Helper()
	conn, err := natsgo.Connect("nats://" + w.nats)
	must(w, err)
	w.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	must(w, err)
	return js
}

// inNATS reads the stream, with nothing but the client of NATS.
func (w *reloadWorld) inNATS() map[string]int {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), testkit.Patience)
	defer cancel()
	js := w.js()
	stream, err := js.Stream(ctx, "AGRIMILL")
	must(w, err)
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	must(w, err)
	stored := map[string]int{}
	for range stream.CachedInfo().State.Msgs {
		msg, err := consumer.Next(jetstream.FetchContext(ctx))
		must(w, err)
		stored[msg.Headers().Get(gateway.KeyContextID)]++
	}
	return stored
}

// checkHeld looks, after the process is gone, into what it kept there: the file is sound,
// and each message has a key at least.
func (w *reloadWorld) checkHeld(messages int) {
	w.Helper()
	file := filepath.Join(w.state, "dedup.db")
	if _, err := os.Stat(file); err == nil {
		store, err := boltstore.New(boltstore.Config{Path: file}) // it looks for damage
		must(w, err)
		must(w, store.Close())
		db, err := bbolt.Open(file, 0, &bbolt.Options{ReadOnly: true})
		must(w, err)
		err = db.View(func(tx *bbolt.Tx) error {
			if n := tx.Bucket([]byte("commits")).Stats().KeyN; n < messages {
				w.Errorf("the file has %d keys, want %d", n, messages)
			}
			return nil
		})
		must(w, errors.Join(err, db.Close()))
	}
	if bucket, err := w.js().KeyValue(w.Context(), "agrimill-dedup"); err == nil {
		status, err := bucket.Status(w.Context())
		if err != nil || status.Values() < uint64(messages) {
			w.Errorf("the bucket has %d keys, want %d, %v", status.Values(), messages, err)
		}
	}
}
