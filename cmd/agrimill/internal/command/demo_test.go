package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/demo"
	"github.com/agrimill/agrimill/internal/testkit"
)

// demonstration is a demo that runs.
type demonstration struct {
	*world
	file           string
	stdout, stderr testkit.Output
	keys           *io.PipeWriter // of a terminal
	stop           context.CancelFunc
	status         chan int
	poisons        bool
}

// startDemo runs a demo, with a person at the terminal, until stop is called.
func startDemo(t *testing.T, args ...string) *demonstration {
	t.Helper()
	stdin, keys := io.Pipe()
	d := &demonstration{
		world: &world{T: t, stdin: stdin, terminal: true}, file: filepath.Join(t.TempDir(), "demo.yaml"), keys: keys, status: make(chan int, 1),
		poisons: slices.Contains(args, "--poison"),
	}
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	program := d.program(&d.stdout, &d.stderr)
	go func() { // ends with ctx
		d.status <- program.run(ctx, append([]string{"demo", "--config", d.file, "--address", "127.0.0.1:0"}, args...))
		_ = stdin.Close()
	}()
	t.Cleanup(d.stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("stdout:\n%sstderr:\n%s", d.stdout.String(), d.stderr.String())
		}
	})
	d.says("Ctrl-C ends the demo")
	return d
}

// says waits until the demo has written something.
func (d *demonstration) says(text string) {
	d.Helper()
	testkit.Eventually(d.T, "the demo says "+text, func() bool { return strings.Contains(d.stdout.String(), text) })
}

// enter presses Enter.
func (d *demonstration) enter() {
	d.Helper()
	testkit.Must(io.WriteString(d.keys, "\n"))(d.T)
}

// address is that of the status page.
func (d *demonstration) address() string {
	return regexp.MustCompile(`http://(\S+)`).FindStringSubmatch(d.stdout.String())[1]
}

// metric waits until a line of the metrics matches.
func (d *demonstration) metric(pattern string) {
	d.Helper()
	line := regexp.MustCompile("(?m)^" + pattern + "$")
	testkit.Eventually(d.T, "a metric is "+pattern, func() bool {
		response, err := http.Get("http://" + d.address() + "/metrics")
		if err != nil {
			return false
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		return err == nil && line.Match(body)
	})
}

// ends stops the demo, which leaves nothing open and nothing behind.
func (d *demonstration) ends() {
	d.Helper()
	d.stop()
	if status := <-d.status; status != statusOK {
		d.Errorf("status %d\n%s", status, d.stderr.String())
	}
	where := "stored and confirmed"
	if d.poisons {
		where = `(stored and confirmed|confirmed; [1-9]\d* in the poison queue, the others stored)`
	}
	if out := d.stdout.String(); !regexp.MustCompile(`(?m)^[1-9]\d* messages? sent, all of them ` + where + `\.$`).MatchString(out) {
		d.Errorf("not everything is confirmed:\n%s", out)
	}
	if left, err := os.ReadDir(filepath.Dir(d.file)); err != nil || len(left) > 0 {
		d.Errorf("left behind: %v, %v", left, err)
	}
}

const demoDelivered = `agrimill_route_messages_total\{outcome="delivered",route="tasks"\} [1-9]\d*`

// What the demo says can be tried works.
func TestDemo(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--rate", "5", "--poison")
	d.metric(demoDelivered)
	d.metric(`agrimill_route_messages_total\{outcome="poisoned",route="shapes"\} [1-9]\d*`)
	d.want(statusOK, "validate", d.file)
	testkit.Contains(t, d.want(statusOK, "trace", "--admin", d.address(), "lange_breite", "--limit", "1"), "lange_breite_")
	if text := d.want(statusOK, "tenants", "--config", d.file); !strings.Contains(text, "Sprayer 24 m") || !strings.Contains(text, "Hof Lindenau") {
		t.Errorf("tenants:\n%s", text)
	}
	own := filepath.Join(t.TempDir(), "own.pdf")
	must(t, os.WriteFile(own, []byte("own"), 0o600))
	d.want(statusOK, "send", "--config", d.file, "--from", demoTerminal, "--publish", own)
	testkit.Contains(t, d.want(statusOK, "poison", "list", "--config", d.file), "shapes")
	for line := range strings.Lines(d.stderr.String()) {
		if strings.Contains(line, "level=WARN") && !strings.Contains(line, "in the poison queue") { // which is what --poison is for
			t.Errorf("a warning: %s", line)
		}
	}
	d.ends()
}

// A part breaks and is repaired by Enter, and nothing is lost. Ctrl-C repairs what is broken.
func TestDemoBreaks(t *testing.T) {
	t.Parallel()
	for _, fault := range demo.Faults() {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			d := startDemo(t, "--rate", "5", "--break", fault.Name)
			d.metric(demoDelivered)
			d.enter()
			d.says(fault.Broken)
			d.enter()
			d.says(fault.Repaired)
			d.enter()
			testkit.Eventually(t, "it breaks again", func() bool { return strings.Count(d.stdout.String(), fault.Broken) == 2 })
			d.ends()
		})
	}
}

// --once sends each file once, and compares what is stored.
func TestDemoOnce(t *testing.T) {
	t.Parallel()
	once := func(want int, args ...string) string {
		t.Helper()
		w := &world{T: t}
		out := w.want(statusOK, append([]string{"demo", "--once", "--config", filepath.Join(t.TempDir(), "demo.yaml"), "--address", "127.0.0.1:0"}, args...)...)
		if line := fmt.Sprintf("\nOK sent=%d received=%[1]d stored=%[1]d confirmed=%[1]d poisoned=0 mismatched=0\n", want); !strings.HasSuffix(out, line) {
			t.Errorf("it does not end with%s%s", line, out)
		}
		return out
	}
	rows := map[string]*regexp.Regexp{}
	row := func(pattern string) { rows[pattern] = regexp.MustCompile("(?m)^" + pattern + " +agrimill[.].* true$") }
	row(`raw_sensor_dump.bin +application:octet-stream +3145728 +3`)
	out := once(5)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"empty.json": "", "two\nlines.pdf": "x", strings.Repeat("long ", 30) + ".PNG": "x", "same 1.bin": "twins", "same 2.bin": "twins",
		"two.bin": strings.Repeat("c", demo.ChunkSize+1), ".hidden": "skipped",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	row(`empty.json +application:octet-stream +0 +1`)
	row(`two.bin +application:octet-stream +1048577 +2`)
	out += once(6, "--files", dir)
	for pattern, row := range rows {
		if !row.MatchString(out) {
			t.Errorf("no row %s:\n%s", pattern, out)
		}
	}
}

// neverConnected is a pipeline that has no sink.
type neverConnected struct{ admin.Source }

func (neverConnected) Snapshot() admin.Snapshot { return admin.Snapshot{Sinks: []admin.Sink{{}}} }

// Whatever keeps --once from its work, it ends, and its last line says what it was.
func TestDemoOnceFails(t *testing.T) {
	t.Parallel()
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }()
	file := filepath.Join(t.TempDir(), "demo.yaml")
	for want, args := range map[string][]string{
		"no such file or directory": {"--files", filepath.Join(t.TempDir(), "none")},
		"address already in use":    {"--address", listener.Addr().String()},
	} {
		out := (&world{T: t}).want(statusFailed, append([]string{"demo", "--once", "--config", file}, args...)...)
		last := out[strings.LastIndex(strings.TrimSuffix(out, "\n"), "\n")+1:]
		if !strings.HasPrefix(last, "FAILED sent=0 ") || !strings.Contains(last, want) {
			t.Errorf("%q: its last line is %q", args, last)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("it took longer"))
	c := &demoCommand{once: true, pipeline: neverConnected{}}
	if err := c.work(ctx); err == nil || err.Error() != "the pipeline has not connected: it took longer" {
		t.Errorf("a pipeline that never connects: %v", err)
	}
}

// The first Ctrl-C ends the last wait of --once, which has not begun with one.
func TestDemoOnceIsInterrupted(t *testing.T) {
	t.Parallel()
	world := testkit.Must(demo.Start(demo.Options{}))(t)
	t.Cleanup(func() { must(t, world.Close()) })
	world.Gateway.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{taskData}, Subscribe: []string{taskData}})
	testkit.Must(world.Gateway.Send(gatewaytest.SendRequest{From: world.Gateway.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{taskData}}).ID, MessageType: taskData}))(t)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	c := &demoCommand{once: true, world: world, program: &program{stdout: io.Discard}}
	if err := c.finish(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the wait ends with %v", err)
	}
}

// The file of a demo that was killed is replaced; that of one that runs, and one from elsewhere, stay.
func TestDemoAfterAKill(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--rate", "1")
	left := testkit.Must(os.ReadFile(d.file))(t)
	d.want(statusUsage, "demo", "--config", d.file)
	if now, err := os.ReadFile(d.file); err != nil || string(now) != string(left) {
		t.Errorf("the file of a demo that runs is another one: %v", err)
	}
	d.metric(demoDelivered)
	d.ends()
	must(t, os.WriteFile(d.file, left, 0o600))
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt() // while it looks whose file that is
	if c := (&demoCommand{run: runCommand{file: d.file}, program: &program{env: os.Getenv}}); !c.leftBehind(ctx) {
		t.Error("a signal makes the file of a killed demo one of a demo that runs")
	}
	again := startDemo(t, "--rate", "1", "--config", d.file)
	if !strings.Contains(again.stderr.String(), "is from a demo that was killed: it is replaced") {
		t.Error("it does not say that it replaces a file")
	}
	again.file = d.file
	again.metric(demoDelivered)
	again.ends()
}

func TestDemoRefuses(t *testing.T) {
	t.Parallel()
	w := &world{T: t}
	taken := filepath.Join(t.TempDir(), "demo.yaml")
	must(t, os.WriteFile(taken, nil, 0o600))
	w.want(statusUsage, "demo", "--config", taken)
	if _, err := os.Stat(taken); err != nil {
		t.Errorf("a file that was there is gone: %v", err)
	}
	for _, args := range [][]string{{"--break", "wind"}, {"--once", "--poison"}, {"--rate", "-1"}, {"--rate", "NaN"}, {"--rate", "1001"}, {"--address", "off"}, {"--address", "127.0.0.1:99999"}, {"now"}} {
		w.want(statusUsage, append([]string{"demo", "--config", filepath.Join(t.TempDir(), "demo.yaml")}, args...)...)
	}
	w.want(statusFailed, "demo", "--config", filepath.Join(t.TempDir(), "demo.yaml"), "--files", t.TempDir())
}
