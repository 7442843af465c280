//go:build browser

package command

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/browsertest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
)

// write makes a file of farm data, as large as told, and returns its path and digest.
func (w *endToEnd) write(name string, size int) (path, digest string) {
	w.Helper()
	content := make([]byte, size)
	random := rand.NewChaCha8(sha256.Sum256([]byte(name)))
	_, _ = random.Read(content) // it never fails
	path = filepath.Join(w.folder, name)
	must(w, os.WriteFile(path, content, 0o600))
	sum := sha256.Sum256(content)
	return path, hex.EncodeToString(sum[:])
}

// arrived reads the stream from its beginning, with nothing but the client of NATS,
// until each of the digests has come, and returns how often each did.
func (w *endToEnd) arrived(address string, digests ...string) map[string]int {
	w.Helper()
	ctx := testkit.Context(w)
	conn := testkit.Must(natstest.Connect("nats://" + address))(w)
	defer conn.Close()
	js := testkit.Must(natstest.JetStream(conn))(w)
	consumer := testkit.Must(js.OrderedConsumer(ctx, "AGRIMILL", jetstream.OrderedConsumerConfig{}))(w)
	counts := map[string]int{}
	for slices.ContainsFunc(digests, func(d string) bool { return counts[d] == 0 }) {
		msg, err := consumer.Next(jetstream.FetchContext(ctx))
		if err != nil {
			w.Fatalf("%v after %d of %d files", err, len(counts), len(digests))
		}
		sum := sha256.Sum256(msg.Data())
		counts[hex.EncodeToString(sum[:])]++
	}
	stream := testkit.Must(js.Stream(ctx, "AGRIMILL"))(w)
	info := testkit.Must(stream.Info(ctx))(w)
	if total := info.State.Msgs; total != uint64(len(digests)) {
		w.Errorf("the stream holds %d messages, want %d", total, len(digests))
	}
	return counts
}

// unconfirmed counts what the gateway has and was not told is held.
func (w *endToEnd) unconfirmed(baseURL string) (open, all int) {
	w.Helper()
	request := testkit.Must(http.NewRequestWithContext(w.Context(), http.MethodGet, baseURL+"/_control/ledger", nil))(w)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response := testkit.Must(client.Do(request))(w)
	defer func() { _ = response.Body.Close() }()
	var ledger struct {
		Entries []struct {
			Confirmations []time.Time `json:"confirmations"`
		} `json:"entries"`
	}
	must(w, json.NewDecoder(response.Body).Decode(&ledger))
	for _, entry := range ledger.Entries {
		if len(entry.Confirmations) == 0 {
			open++
		}
	}
	return open, len(ledger.Entries)
}

// stateOf is true on the page when a node of the picture is in a state.
func stateOf(label, state string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".node")].some(n => n.getAttribute("aria-label") === %q && n.dataset.state === %q)`, label, state)
}

// room opens a room of the page, with the keyboard.
func room(page *browsertest.Tab, name string) {
	page.Helper()
	page.Eval(fmt.Sprintf(`document.querySelector('#rooms a[href="#/%s"]').focus()`, name))
	page.Keys("\r")
	page.Wait(fmt.Sprintf(`document.querySelector('#rooms a[aria-current="page"]').hash === "#/%s"`, name))
}

// TestBrowserEndToEnd does what a new user does: agrimill runs from the 20 lines
// of examples/minimal.yaml between the emulator and NATS, each a process of its own;
// the page shows it; a file is sent and arrives; NATS is killed, and the page says so;
// files are sent meanwhile; NATS is back, and nothing is lost.
func TestBrowserEndToEnd(t *testing.T) {
	minimal := filepath.Join("..", "..", "examples", "minimal.yaml")
	if config, err := os.ReadFile(minimal); err != nil {
		t.Fatal(err)
	} else if n := strings.Count(string(config), "\n"); n > 20 {
		t.Errorf("%s has %d lines, not 20", minimal, n)
	}
	w := newEndToEnd(t)
	nats, address := w.startNATS("-1")
	told := w.startEmulator(address)
	agrimill := w.start("agrimill", w.agrimill, "run", minimal, "--address", "127.0.0.1:0")
	origin := agrimill.origin()

	page := browsertest.Open(t, origin+"/")
	page.Wait(`document.querySelector("#state").dataset.state === "running"`)
	page.Wait(stateOf("Gateway", "connected"))
	page.Wait(stateOf("Route farm-data", "running"))
	page.Wait(stateOf("Sink farm", "up"))
	room(page, "farms")
	page.Wait(`[...document.querySelectorAll("#tenants .name")].some(n => n.textContent === "Farm")`)
	page.Picture("e2e-1-running")

	// A file is sent and arrives.
	w.command("endpoints", "put", e2eSender, "--name", "Terminal", "--send", taskData)
	file, digest := w.write("taskdata.zip", 200_000)
	w.command("send", "--from", e2eSender, "--publish", file)
	page.Wait(`document.querySelector("#t-stored").textContent === "1" && document.querySelector("#t-confirmed").textContent === "1"`)
	if counts := w.arrived(address, digest); counts[digest] != 1 {
		t.Errorf("the file arrived %d times", counts[digest])
	}
	page.Wait(`[...document.querySelectorAll("#tenants .name")].some(n => n.textContent === "Terminal")`)
	room(page, "overview")
	page.Picture("e2e-2-delivered")

	// The sink is broken, and the state changes.
	nats.stop(syscall.SIGKILL)
	page.Wait(stateOf("Sink farm", "down"))
	files, digests := []string{}, []string{digest}
	for i := range 10 {
		file, digest := w.write(fmt.Sprintf("taskdata-%d.zip", i), 50_000*(i+1)/3)
		files, digests = append(files, file), append(digests, digest)
	}
	w.command(append([]string{"send", "--from", e2eSender, "--publish"}, files...)...)
	page.Wait(stateOf("Route farm-data", "outage"))
	page.Wait(`document.querySelector("#state").dataset.state === "degraded"`)
	page.Wait(`document.querySelector("#t-open").textContent === "10"`)
	page.Picture("e2e-3-broken")
	if open, all := w.unconfirmed(told["base_url"]); open != 10 || all != 11 {
		t.Errorf("%d of %d messages are unconfirmed, want 10 of 11", open, all)
	}

	// It is repaired, on the same files, and nothing is lost.
	_, port, _ := strings.Cut(address, ":")
	w.startNATS(port)
	page.Wait(`document.querySelector("#t-confirmed").textContent === "11" && document.querySelector("#t-open").textContent === "0"`)
	page.Wait(`document.querySelector("#state").dataset.state === "running"`)
	page.Wait(stateOf("Sink farm", "up"))
	page.Picture("e2e-4-repaired")
	for digest, n := range w.arrived(address, digests...) {
		if n != 1 || !slices.Contains(digests, digest) {
			t.Errorf("the file %s arrived %d times", digest, n)
		}
	}
	if open, all := w.unconfirmed(told["base_url"]); open != 0 || all != 11 {
		t.Errorf("%d of %d messages are unconfirmed, want 0 of 11", open, all)
	}
	page.Clean(origin)

	// It ends in order, and has told no secret.
	if status := agrimill.stop(syscall.SIGTERM); status != 0 {
		t.Errorf("agrimill ended with status %d", status)
	}
	for _, line := range agrimill.output() {
		if strings.Contains(line, told["client_secret"]) {
			t.Errorf("agrimill wrote the secret: %s", line)
		}
	}
	page.Wait(`!document.querySelector("#gone").hidden`)
	page.Picture("e2e-5-ended")
}
