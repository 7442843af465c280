package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
)

// child is the program, in a process of its own.
type child struct {
	*testing.T
	cmd    *exec.Cmd
	stderr *testkit.Output
	ended  chan struct{}
}

// startChild runs the program with these arguments and this environment. It is
// killed when the test ends, if it has not ended before.
func startChild(t *testing.T, env []string, args ...string) *child {
	t.Helper()
	c := newChild(t, env, args...)
	c.begin()
	return c
}

// newChild is startChild for one that is still to begin.
func newChild(t *testing.T, env []string, args ...string) *child {
	t.Helper()
	c := &child{T: t, cmd: exec.Command(os.Args[0], args...), stderr: &testkit.Output{}, ended: make(chan struct{})}
	c.cmd.Args[0] = "agrimill" // see TestMain
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stdout, c.cmd.Stderr = c.stderr, c.stderr
	return c
}

func (c *child) begin() {
	c.Helper()
	must(c, c.cmd.Start())
	go func() { // ends with the process
		defer close(c.ended)
		_ = c.cmd.Wait() // its state is looked at by status
	}()
	c.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it may have ended
		<-c.ended
		if c.Failed() {
			c.Log(c.stderr.String())
		}
	})
}

func (c *child) signal(s os.Signal) {
	c.Helper()
	must(c, c.cmd.Process.Signal(s))
}

// status waits for the end and returns the exit status, -1 when a signal was the
// end.
func (c *child) status() int {
	c.Helper()
	testkit.Receive(c, "the end of the program", c.ended)
	return c.cmd.ProcessState.ExitCode()
}

// endsWell sends a signal to the program, once it handles signals, which ends it without an error.
func (c *child) endsWell(s os.Signal) {
	c.Helper()
	c.waitFor("agrimill is running")
	c.signal(s)
	if status := c.status(); status != statusOK {
		c.Errorf("status %d", status)
	}
}

// waitFor waits for a line of the log.
func (c *child) waitFor(text string) {
	c.Helper()
	testkit.Eventually(c.T, "the log says "+text, func() bool {
		select {
		case <-c.ended:
			c.Fatalf("the program has ended before it says %q", text)
		default:
		}
		return strings.Contains(c.stderr.String(), text)
	})
}

// url returns the address of a page of the status server.
func (c *child) url(path string) string {
	c.Helper()
	c.waitFor("admin: serving")
	_, rest, _ := strings.Cut(c.stderr.String(), `msg="admin: serving" address=`)
	address, _, _ := strings.Cut(rest, " ")
	return "http://" + address + path
}

func (c *child) get(path string) (status int, body string) {
	c.Helper()
	response, err := http.Get(c.url(path))
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }() // only read
	var text bytes.Buffer
	_, _ = text.ReadFrom(response.Body) // what is there will do
	return response.StatusCode, text.String()
}

// runWorld is a gateway, a NATS server, and a configuration between them.
type runWorld struct {
	*testing.T
	gate   *gatewaytest.Server
	sender gateway.Endpoint
	server *natstest.Server
	file   string
	sent   int
}

func newRunWorld(t *testing.T) *runWorld {
	t.Helper()
	types := []string{taskData, shapes}
	w := &runWorld{T: t, gate: gatewaytest.New(t, gatewaytest.Config{}), server: natstest.Start(t), file: filepath.Join(t.TempDir(), "agrimill.yaml")}
	w.sender = w.gate.AddEndpoint(gatewaytest.EndpointConfig{Send: types})
	w.gate.AddEndpoint(gatewaytest.EndpointConfig{Receive: types, Subscribe: types})
	w.write(w.routes("from-farm", "farm.{type|none}"))
	return w
}

// routes is a configuration with one route.
func (w *runWorld) routes(name, topic string) string {
	c := w.gate.ClientConfig()
	return fmt.Sprintf(`
gateway: {base_url: %q, token_url: %q, client_id: %q, client_secret: "${SECRET}"}
sinks:
  farm: {nats: {url: %q}}
routes:
  - {name: %s, from: {gateway: all}, to: {sink: farm, topic: %q}}
poison: {sink: farm}
shutdown: {timeout: 20s}
`, c.BaseURL, c.TokenURL, c.ClientID, w.server.URL(), name, topic)
}

// write replaces the configuration in one step.
func (w *runWorld) write(text string) {
	w.Helper()
	next := w.file + ".new"
	must(w, os.WriteFile(next, []byte(text), 0o600))
	must(w, os.Rename(next, w.file))
}

// start runs the program with a status page.
func (w *runWorld) start(args ...string) *child {
	w.Helper()
	env := []string{"SECRET=" + w.gate.Application().ClientSecret}
	c := startChild(w.T, env, append([]string{"run", w.file, "--address", "127.0.0.1:0", "--watch", "50ms"}, args...)...)
	w.Cleanup(func() {
		for _, secret := range []string{mark, w.gate.Application().ClientSecret} {
			if strings.Contains(c.stderr.String(), secret) {
				w.Errorf("the log holds %q", secret)
			}
		}
	})
	return c
}

func (w *runWorld) send(n int) {
	w.Helper()
	for range n {
		w.sent++
		testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Payload: fmt.Appendf(nil, "%s%d", mark, w.sent)}))(w)
	}
}

// stored counts the payloads in the stream.
func (w *runWorld) stored() map[string]int {
	w.Helper()
	conn := testkit.Must(natstest.Connect(w.server.URL()))(w)
	defer conn.Close()
	js := testkit.Must(natstest.JetStream(conn))(w)
	stream := testkit.Must(js.Stream(w.Context(), "AGRIMILL"))(w)
	consumer := testkit.Must(stream.OrderedConsumer(w.Context(), jetstream.OrderedConsumerConfig{}))(w)
	messages := testkit.Must(consumer.Messages())(w)
	defer messages.Stop()
	ctx := testkit.Context(w)
	payloads := map[string]int{}
	for range stream.CachedInfo().State.Msgs {
		msg := testkit.Must(messages.Next(jetstream.NextContext(ctx)))(w)
		payloads[string(msg.Data())]++
	}
	return payloads
}

// check checks that everything that is confirmed is in the stream, and everything in
// the stream is there once.
func (w *runWorld) check() {
	w.Helper()
	stored := w.stored()
	for payload, n := range stored {
		if n != 1 {
			w.Errorf("%s is there %d times", payload, n)
		}
	}
	confirmed := 0
	for i, e := range w.gate.Ledger() {
		if e.Confirmed() {
			confirmed++
			if payload := fmt.Sprintf("%s%d", mark, i+1); stored[payload] == 0 {
				w.Errorf("%s is confirmed and not stored", payload)
			}
		}
	}
	w.Logf("sent %d, stored %d, confirmed %d", w.sent, len(stored), confirmed)
}

func (w *runWorld) waitConfirmed() {
	w.Helper()
	must(w, w.gate.WaitConfirmed(testkit.Context(w), w.sent))
}

// SIGTERM under load: everything that was taken is finished, what is confirmed is
// held, and the rest comes with the next start.
func TestRunStopsUnderLoad(t *testing.T) {
	t.Parallel() // it waits
	w := newRunWorld(t)
	// However busy the machine is, there is time to finish.
	w.write(strings.Replace(w.routes("from-farm", "farm.{type|none}"), "timeout: 20s", "timeout: 4m", 1))
	first := w.start()
	first.waitFor("sink opened")
	w.send(500)
	testkit.Eventually(t, "messages flow", func() bool { return w.confirmed() > 0 })
	w.send(500)
	first.signal(syscall.SIGTERM)
	// On a machine that is so busy that messages wait for longer than a second, some are left with the gateway meanwhile, and
	// it says so.
	if status := first.status(); status != statusOK && status != statusUnfinished {
		t.Errorf("status %d", status)
	}
	w.check()
	if stored, confirmed := len(w.stored()), w.confirmed(); stored != confirmed {
		t.Errorf("%d messages are stored, %d of them confirmed", stored, confirmed)
	}
	second := w.start()
	w.waitConfirmed()
	second.endsWell(syscall.SIGINT)
	w.check()
	if n := len(w.stored()); n != w.sent {
		t.Errorf("%d of %d messages are stored", n, w.sent)
	}
}

func (w *runWorld) confirmed() (n int) {
	for _, e := range w.gate.Ledger() {
		if e.Confirmed() {
			n++
		}
	}
	return n
}

// Stopped in an outage, it has a status of its own, and one line says what was left
// open. A store of handled messages that cannot be opened is an outage like others.
func TestRunStopsInAnOutage(t *testing.T) {
	t.Parallel() // it waits
	w := newRunWorld(t)
	w.send(5)
	w.server.Stop()
	first := w.start()
	testkit.Eventually(t, "all are received, in an outage", func() bool {
		_, body := first.get("/api/status")
		return strings.Contains(body, `"received":5`) && strings.Contains(body, `"state":"outage"`)
	})
	first.signal(syscall.SIGTERM)
	if status := first.status(); status != statusUnfinished {
		t.Errorf("status %d, want %d", status, statusUnfinished)
	}
	const line = `msg="agrimill stopped with unfinished messages; they are left with the gateway or broker, and come again" received=5 confirmed=0 open=5 set_aside=0 held=0 unconfirmed=0 returned=0`
	if text := first.stderr.String(); strings.Count(text, line) != 1 || !strings.HasSuffix(text, line+"\n") {
		t.Errorf("it does not end with %q:\n%s", line, text)
	}
	w.server.Restart()

	file := filepath.Join(t.TempDir(), "dedup.db")
	w.write(w.routes("from-farm", "farm.{type|none}") + fmt.Sprintf("dedup: {bbolt: {path: %q}}\n", file))
	holder := w.start()
	w.waitConfirmed()
	w.send(5)
	w.waitConfirmed()
	locked := w.start()
	locked.waitFor("open in another process")
	locked.signal(syscall.SIGTERM)
	if status := locked.status(); status == statusUsage || status == statusFailed {
		t.Errorf("with a file that another process has open: status %d", status)
	}
	holder.endsWell(syscall.SIGTERM)
}

// A second signal ends it at once.
func TestRunSecondSignal(t *testing.T) {
	t.Parallel() // it waits
	w := newRunWorld(t)
	fault := w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Hang: true})
	defer fault.Lift()
	c := w.start()
	w.send(10)
	testkit.Eventually(t, "a confirmation hangs", func() bool { return fault.Hits() > 0 })
	c.signal(syscall.SIGTERM)
	testkit.Eventually(t, "it drains", func() bool {
		status, body := c.get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "draining")
	})
	c.signal(syscall.SIGTERM)
	if status := c.status(); status == statusOK {
		t.Errorf("status %d", status)
	}
}

func TestRunServesPages(t *testing.T) {
	t.Parallel() // it waits
	w := newRunWorld(t)
	c := w.start()
	w.send(5)
	w.waitConfirmed()
	testkit.Eventually(t, "it is ready", func() bool { status, _ := c.get("/readyz"); return status == http.StatusOK })
	for path, want := range map[string]string{
		"/healthz": "", "/": "<html", "/api/status": `"from-farm"`, "/api/tenants": w.gate.Tenant(),
		"/metrics": "agrimill_sink_up{kind=\"nats\",sink=\"farm\"} 1", "/api/config": `"127.0.0.1:0"`, // --address
	} {
		if status, body := c.get(path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if _, body := c.get("/metrics"); !strings.Contains(body, "go_goroutines") || !strings.Contains(body, "agrimill_subscriber_confirmations_total") {
		t.Errorf("metrics: %s", body)
	}
	w.server.Stop()
	failing := func() bool {
		_, body := c.get("/readyz")
		return strings.Contains(body, `"since"`) && strings.Contains(body, "failing, within the grace period")
	}
	testkit.Eventually(t, "the sink that is down is reported", failing)
	w.server.Restart()
	testkit.Eventually(t, "it is well again", func() bool { status, _ := c.get("/readyz"); return status == http.StatusOK && !failing() })
	c.endsWell(syscall.SIGTERM)
}

// A change of the file, SIGHUP, and a file with mistakes.
func TestRunReloads(t *testing.T) {
	t.Parallel() // it waits
	w := newRunWorld(t)
	const token = "admin: {token: in-plain-text-for-a-warning}\n"
	w.write(w.routes("from-farm", "farm.{type|none}") + token)
	c := w.start()
	w.send(5)
	w.waitConfirmed()

	w.write(w.routes("from-farm", "other.{type|none}") + token)
	c.waitFor("configuration: reloaded")
	w.send(5)
	w.waitConfirmed()

	w.write(strings.Replace(w.routes("from-farm", "other.{type|none}"), "poison: {sink: farm}", "poison: {sink: nowhere}\nnonsense: 1", 1) + token)
	c.waitFor("rejected, keeping the current one")
	c.waitFor("nonsense")
	c.waitFor("nowhere")
	w.send(5)
	w.waitConfirmed()
	if _, body := c.get("/metrics"); !strings.Contains(body, "agrimill_config_last_reload_successful 0") {
		t.Error("the metrics do not tell that a configuration was refused")
	}

	w.write(strings.Replace(w.routes("from-farm", "third.{type|none}"), "timeout: 20s", "timeout: 21s", 1) + token)
	c.signal(syscall.SIGHUP)
	c.waitFor("sections=[shutdown]")
	w.send(5)
	w.waitConfirmed()

	// A file that was away is loaded again, though it is as before.
	text := testkit.Must(os.ReadFile(w.file))(t)
	must(t, os.Remove(w.file))
	c.signal(syscall.SIGHUP)
	c.waitFor("cannot be read: no such file or directory")
	for _, successful := range []string{"0", "1"} {
		testkit.Eventually(t, "the metrics tell of the last reload "+successful, func() bool {
			_, body := c.get("/metrics")
			return strings.Contains(body, "\nagrimill_config_last_reload_successful "+successful+"\n")
		})
		must(t, os.WriteFile(w.file, text, 0o600))
	}
	c.endsWell(syscall.SIGTERM)
	w.check()
	if n := strings.Count(c.stderr.String(), "admin.token: is a secret in plain text"); n != 1 {
		t.Errorf("the same warning is logged %d times", n)
	}
}

// What machines read in the log: numbers are numbers, lists are never null, a warning has
// its level, and a poisoned message is named.
func TestRunLogsForMachines(t *testing.T) {
	t.Parallel() // it waits
	w := newRunWorld(t)
	w.write(w.routes("from-farm", "{filename}") + "log: {format: json, level: debug}\n") // a message without a name is poisoned
	c := w.start()
	w.send(1)
	w.waitConfirmed()
	c.signal(syscall.SIGHUP)
	c.waitFor("configuration: reloaded")
	w.write(strings.Replace(w.routes("from-farm", "{type}"), "timeout: 20s", "timeout: 21s", 1) + "log: {format: json, level: debug}\n")
	c.waitFor("take effect after a restart")
	c.waitFor("changed")
	c.endsWell(syscall.SIGTERM)
	seen := map[string]map[string]any{}
	digits := regexp.MustCompile(`^-?[0-9.]+$`)
	for line := range strings.Lines(c.stderr.String()) {
		fields := map[string]any{}
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("not a line of JSON: %s", line)
			continue
		}
		for name, value := range fields {
			if text, ok := value.(string); value == nil || ok && digits.MatchString(text) {
				t.Errorf("%s is %#v in %s", name, value, line)
			}
		}
		text, _ := fields["msg"].(string)
		if first, _, _ := strings.Cut(text, " "); first != strings.ToLower(first) && first != "NATS" {
			t.Errorf("a message begins with a small letter: %s", line)
		}
		if strings.Contains(text, "Warning") {
			t.Errorf("a warning in disguise: %s", line)
		}
		seen[text] = fields
	}
	poisoned := seen["message moved to the poison queue"]
	if poisoned["level"] != "ERROR" || poisoned["attempts"] != 1.0 || poisoned["context_id"] != w.gate.Ledger()[0].ContextID {
		t.Errorf("the poisoned message: %v", poisoned)
	}
	for text, fields := range seen {
		if strings.HasPrefix(text, "durability disk: ") && fields["level"] != "WARN" {
			t.Errorf("the warning of the sink: %v", fields)
		}
	}
}

// Durations have their unit in JSON, too.
func TestLogHasUnits(t *testing.T) {
	var out bytes.Buffer
	newLogger(&program{stderr: &out}, "json", slog.LevelInfo).Info("slow", "duration", 1500*time.Millisecond)
	testkit.Contains(t, out.String(), `"duration":"1.5s"`)
}

// A volume of Kubernetes: FILE leads to ..data/FILE, and ..data to a directory, which
// is swapped.
func TestRunFollowsSymlinks(t *testing.T) {
	t.Parallel() // it waits
	w := newRunWorld(t)
	dir := t.TempDir()
	volume := func(name, text string) {
		t.Helper()
		err := os.Mkdir(filepath.Join(dir, name), 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name, "agrimill.yaml"), []byte(text), 0o600)
		}
		next := filepath.Join(dir, "..data_tmp")
		testkit.NoError(t, errors.Join(err, os.Symlink(name, next), os.Rename(next, filepath.Join(dir, "..data"))))
	}
	volume("..1", w.routes("from-farm", "one.{type|none}"))
	w.file = filepath.Join(dir, "agrimill.yaml")
	must(t, os.Symlink("..data/agrimill.yaml", w.file))
	c := w.start("--log-level", "info")
	c.waitFor("agrimill is running")
	volume("..2", w.routes("from-farm", "two.{type|none}"))
	must(t, os.RemoveAll(filepath.Join(dir, "..1")))
	c.waitFor(`configuration: reloaded`)
	c.waitFor(`from-farm\" changed`)
	c.endsWell(syscall.SIGTERM)
}

func TestRunRefuses(t *testing.T) {
	t.Parallel() // it waits
	w := newRunWorld(t)
	if status := startChild(t, nil, "run", w.file+".missing").status(); status != statusUsage {
		t.Errorf("without a file: status %d", status)
	}
	if status := startChild(t, nil, "run").status(); status != statusUsage {
		t.Errorf("without an argument: status %d", status)
	}
	if status := startChild(t, []string{"SECRET=x"}, "run", w.file, "--log-level", "loud").status(); status != statusUsage {
		t.Errorf("wrong level: status %d", status)
	}
	if status := startChild(t, []string{"SECRET=x"}, "run", w.file, "--address", "nonsense").status(); status != statusUsage {
		t.Errorf("wrong address: status %d", status)
	}
	c := startChild(t, []string{"SECRET=wrong"}, "run", w.file, "--address", "off")
	status := c.status()
	if text := c.stderr.String(); status != statusFailed || strings.Count(text, "the gateway refuses the credentials") != 1 || !strings.HasSuffix(text, "advice=\"check the client ID, the client secret and the address of the token endpoint\"\n") {
		t.Errorf("wrong secret: status %d\n%s", status, c.stderr)
	}
	// Nothing in the configuration is wrong: this is not the status that a supervisor takes for final.
	w.write(w.routes("from-farm", "farm") + "subscriber: {stream_refused_for: 1s}\n")
	refusal := w.gate.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: 403, Body: []byte("<html>default backend</html>"), ContentType: "text/html"})
	c = w.start()
	if status := c.status(); status != statusFailed || !strings.Contains(c.stderr.String(), "refuses the event stream") || !strings.Contains(c.stderr.String(), "status 403") {
		t.Errorf("refused: status %d\n%s", status, c.stderr)
	}
	refusal.Lift()
	w.write("gateway: {}\nnonsense: 1\n")
	c = startChild(t, nil, "run", w.file)
	if status := c.status(); status != statusUsage || !strings.Contains(c.stderr.String(), "nonsense") || !strings.Contains(c.stderr.String(), "base_url") {
		t.Errorf("invalid: status %d\n%s", status, c.stderr)
	}
}
