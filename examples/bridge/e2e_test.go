//go:build browser

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/browsertest"
)

const e2ePatience = 60 * time.Second

// process is a program that runs, and what it wrote.
type process struct {
	testing.TB
	name  string
	cmd   *exec.Cmd
	ended chan struct{}

	mu     sync.Mutex
	lines  []string
	closed int           // of the two pipes
	more   chan struct{} // closed when there is more, and replaced
}

// start runs a program until it ends, or the test does.
func (w *endToEnd) start(name, binary string, args ...string) *process {
	w.Helper()
	p := &process{TB: w.TB, name: name, ended: make(chan struct{}), more: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Env = w.environment()
	stdout, err1 := p.cmd.StdoutPipe()
	stderr, err2 := p.cmd.StderrPipe()
	if err := errors.Join(err1, err2); err != nil {
		w.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	var reading sync.WaitGroup
	for _, pipe := range []io.Reader{stdout, stderr} {
		reading.Go(func() { p.read(pipe) })
	}
	go func() {
		defer close(p.ended)
		reading.Wait()
		_ = p.cmd.Wait() // how it ended is in ProcessState
	}()
	w.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if w.Failed() {
			w.Logf("%s wrote:\n%s", p.name, strings.Join(p.output(), "\n"))
		}
	})
	return p
}

func (p *process) read(pipe io.Reader) {
	scanner := bufio.NewScanner(pipe)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		p.say(func() { p.lines = append(p.lines, scanner.Text()) })
	}
	p.say(func() { p.closed++ })
}

func (p *process) say(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.more)
	p.more = make(chan struct{})
}

func (p *process) output() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// line waits for a line that matches, and returns the first group of it.
func (p *process) line(pattern string) string {
	p.Helper()
	expression := regexp.MustCompile(pattern)
	timeout := time.After(e2ePatience)
	for {
		p.mu.Lock()
		lines, over, more := slices.Clone(p.lines), p.closed == 2, p.more
		p.mu.Unlock()
		for _, line := range lines {
			if match := expression.FindStringSubmatch(line); match != nil {
				return match[1]
			}
		}
		if over {
			p.Fatalf("%s has ended without a line like %s", p.name, pattern)
		}
		select {
		case <-more:
		case <-timeout:
			p.Fatalf("%s has not written a line like %s", p.name, pattern)
		}
	}
}

// stop sends a signal and returns the exit status, -1 when a signal ended it.
func (p *process) stop(signal os.Signal) int {
	p.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(e2ePatience):
		p.Fatalf("%s does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

// endToEnd is the world of a new user: programs, a folder, an environment.
type endToEnd struct {
	testing.TB
	folder, bridge, natsServer string
	env                        map[string]string
}

// e2eSender is the endpoint that files are sent from.
const e2eSender = "urn:example:terminal"

func newEndToEnd(tb testing.TB) *endToEnd {
	tb.Helper()
	w := &endToEnd{TB: tb, folder: tb.TempDir()}
	w.bridge = w.build("bridge", ".")
	w.natsServer = w.build("nats-server", "github.com/nats-io/nats-server/v2")
	return w
}

func (w *endToEnd) environment() []string {
	list := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.folder, "TMPDIR=" + w.folder}
	for _, name := range slices.Sorted(maps.Keys(w.env)) {
		list = append(list, name+"="+w.env[name])
	}
	return list
}

// build builds a program of this module or of one that it requires.
func (w *endToEnd) build(name, pkg string) string {
	w.Helper()
	path := filepath.Join(w.folder, name)
	if out, err := exec.CommandContext(w.Context(), "go", "build", "-o", path, pkg).CombinedOutput(); err != nil {
		w.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	return path
}

// command runs the bridge to its end and returns what it wrote to stdout.
func (w *endToEnd) command(args ...string) string {
	w.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(w.Context(), w.bridge, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = w.environment(), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		w.Fatalf("bridge %s: %v\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String()
}

// startNATS starts a server with JetStream whose files are in the folder.
func (w *endToEnd) startNATS(port string) (server *process, address string) {
	w.Helper()
	server = w.start("nats-server", w.natsServer, "-a", "127.0.0.1", "-p", port, "-js", "-sd", filepath.Join(w.folder, "jetstream"))
	address = server.line(`Listening for client connections on (127\.0\.0\.1:\d+)`)
	server.line(`(Server is ready)`)
	return server, address
}

// startEmulator starts a gateway and puts into the environment how to reach it, and
// NATS. It returns what the emulator tells about itself.
func (w *endToEnd) startEmulator(nats string) (told map[string]string) {
	w.Helper()
	emulator := w.start("emulator", w.bridge, "emulator", "--listen", "127.0.0.1:0")
	if err := json.Unmarshal([]byte(emulator.line(`^(\{.*\})$`)), &told); err != nil {
		w.Fatal(err)
	}
	w.env = map[string]string{"NATS_URL": "nats://" + nats}
	for _, name := range []string{"base_url", "token_url", "client_id", "client_secret", "application_id", "software_version_id"} {
		w.env["AGRIMILL_"+strings.ToUpper(name)] = told[name]
	}
	return told
}

// origin is where the status page of a bridge is.
func (p *process) origin() string {
	p.Helper()
	return "http://" + p.line(`serving.* address="?(127\.0\.0\.1:\d+)`)
}

// write makes a file of farm data, as large as told, and returns its path and digest.
func (w *endToEnd) write(name string, size int) (path, digest string) {
	w.Helper()
	content := make([]byte, size)
	random := rand.NewChaCha8(sha256.Sum256([]byte(name)))
	_, _ = random.Read(content) // it never fails
	path = filepath.Join(w.folder, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		w.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return path, hex.EncodeToString(sum[:])
}

// arrived reads the stream from its beginning, with nothing but the client of NATS,
// until each of the digests has come, and returns how often each did.
func (w *endToEnd) arrived(address string, digests ...string) map[string]int {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), e2ePatience)
	defer cancel()
	conn, err := natsgo.Connect("nats://" + address)
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		w.Fatal(err)
	}
	consumer, err := js.OrderedConsumer(ctx, "AGRIMILL", jetstream.OrderedConsumerConfig{})
	if err != nil {
		w.Fatal(err)
	}
	counts := map[string]int{}
	for slices.ContainsFunc(digests, func(d string) bool { return counts[d] == 0 }) {
		msg, err := consumer.Next(jetstream.FetchContext(ctx))
		if err != nil {
			w.Fatalf("%v after %d of %d files", err, len(counts), len(digests))
		}
		sum := sha256.Sum256(msg.Data())
		counts[hex.EncodeToString(sum[:])]++
	}
	stream, err := js.Stream(ctx, "AGRIMILL")
	if err != nil {
		w.Fatal(err)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		w.Fatal(err)
	}
	if total := info.State.Msgs; total != uint64(len(digests)) {
		w.Errorf("the stream holds %d messages, want %d", total, len(digests))
	}
	return counts
}

// unconfirmed counts what the gateway has and was not told is held.
func (w *endToEnd) unconfirmed(baseURL string) (open, all int) {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, baseURL+"/_control/ledger", nil)
	if err != nil {
		w.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var ledger struct {
		Entries []struct {
			Confirmations []time.Time `json:"confirmations"`
		} `json:"entries"`
	}
	if err := json.NewDecoder(response.Body).Decode(&ledger); err != nil {
		w.Fatal(err)
	}
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

// TestBrowserEndToEnd does what a new user does: the bridge runs from the 20 lines
// of examples/minimal.yaml between the emulator and NATS, each a process of its own;
// the page shows it; a file is sent and arrives; NATS is killed, and the page says so;
// files are sent meanwhile; NATS is back, and nothing is lost.
func TestBrowserEndToEnd(t *testing.T) {
	minimal := filepath.Join("examples", "minimal.yaml")
	if config, err := os.ReadFile(minimal); err != nil {
		t.Fatal(err)
	} else if n := strings.Count(string(config), "\n"); n > 20 {
		t.Errorf("%s has %d lines, not 20", minimal, n)
	}
	w := newEndToEnd(t)
	nats, address := w.startNATS("-1")
	told := w.startEmulator(address)
	bridge := w.start("bridge", w.bridge, "run", minimal, "--address", "127.0.0.1:0")
	origin := bridge.origin()

	page := browsertest.Open(t, origin+"/")
	page.Wait(`document.querySelector("#state").dataset.state === "running"`)
	page.Wait(stateOf("Gateway", "connected"))
	page.Wait(stateOf("Route farm-data", "running"))
	page.Wait(stateOf("Sink farm", "up"))
	page.Wait(`[...document.querySelectorAll("#tenants .name")].some(n => n.textContent === "Farm")`)
	page.Picture("e2e-1-running")

	// A file is sent and arrives.
	w.command("endpoints", "put", e2eSender, "--name", "Terminal", "--send", taskData)
	file, digest := w.write("taskdata.zip", 200_000)
	w.command("send", "--from", e2eSender, "--publish", file)
	page.Wait(`document.querySelector("#t-delivered").textContent === "1" && document.querySelector("#t-confirmed").textContent === "1"`)
	if counts := w.arrived(address, digest); counts[digest] != 1 {
		t.Errorf("the file arrived %d times", counts[digest])
	}
	page.Wait(`[...document.querySelectorAll("#tenants .name")].some(n => n.textContent === "Terminal")`)
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
	if status := bridge.stop(syscall.SIGTERM); status != 0 {
		t.Errorf("the bridge ended with status %d", status)
	}
	for _, line := range bridge.output() {
		if strings.Contains(line, told["client_secret"]) {
			t.Errorf("the bridge wrote the secret: %s", line)
		}
	}
	page.Wait(`!document.querySelector("#gone").hidden`)
	page.Picture("e2e-5-ended")
}

// TestBrowserReplaysEndToEnd has files poisoned by a mistake in the configuration,
// repairs that while the bridge runs, and replays them on the page.
func TestBrowserReplaysEndToEnd(t *testing.T) {
	w := newEndToEnd(t)
	_, address := w.startNATS("-1")
	told := w.startEmulator(address)
	const token = "the-token-of-the-page"
	w.env["ADMIN_TOKEN"] = token
	minimal, err := os.ReadFile(filepath.Join("examples", "minimal.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// The topic asks for what no message has.
	broken := strings.Replace(string(minimal), "to: {sink: farm}", `to: {sink: farm, topic: "{teamset}.{type}"}`, 1)
	if broken == string(minimal) {
		t.Fatal("the route of the configuration is not as expected")
	}
	admin := "\nadmin: {address: \"127.0.0.1:0\", token: \"${ADMIN_TOKEN}\"}\n"
	file := filepath.Join(w.folder, "bridge.yaml")
	configure := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text+admin), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure(broken)
	bridge := w.start("bridge", w.bridge, "run", file)
	origin := bridge.origin()
	page := browsertest.Open(t, origin+"/")
	page.Wait(`document.querySelector("#state").dataset.state === "running"`)

	w.command("endpoints", "put", e2eSender, "--name", "Terminal", "--send", taskData)
	var files, digests []string
	for i := range 3 {
		file, digest := w.write(fmt.Sprintf("taskdata-%d.zip", i), 20_000)
		files, digests = append(files, file), append(digests, digest)
	}
	w.command(append([]string{"send", "--from", e2eSender, "--publish"}, files...)...)
	page.Wait(`document.querySelectorAll("#poison-rows tr").length === 3 && document.querySelector("#t-poisoned").textContent === "3"`)
	page.Wait(`document.querySelector("#poison-rows .class").textContent === "permanent"`)
	page.Picture("e2e-poison-1-queue")

	configure(string(minimal))
	if err := bridge.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	page.Wait(`[...document.querySelectorAll(".node .kind")].some(n => n.textContent.endsWith("{tenant|none}.{type|none}"))`)
	page.Type("#token", token)
	page.Click("#pick-all")
	page.Click("#replay-selected")
	page.Wait(`document.querySelector("#replay-result").textContent === "3 delivered"`)
	page.Wait(`document.querySelectorAll("#poison-rows tr").length === 0`)
	page.Picture("e2e-poison-2-replayed")
	for digest, n := range w.arrived(address, digests...) {
		if n != 1 || !slices.Contains(digests, digest) {
			t.Errorf("the file %s arrived %d times", digest, n)
		}
	}
	page.Clean(origin)
	if status := bridge.stop(syscall.SIGTERM); status != 0 {
		t.Errorf("the bridge ended with status %d", status)
	}
	for _, line := range bridge.output() {
		if strings.Contains(line, token) || strings.Contains(line, told["client_secret"]) {
			t.Errorf("the bridge wrote a secret: %s", line)
		}
	}
}
