//go:build browser || ha

package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

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
	must(w, errors.Join(err1, err2))
	must(w, p.cmd.Start())
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
	timeout := time.After(testkit.Patience)
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
	must(p, p.cmd.Process.Signal(signal))
	testkit.Receive(p, "the end of "+p.name, p.ended)
	return p.cmd.ProcessState.ExitCode()
}

// endToEnd is the world of a new user: programs, a folder, an environment.
type endToEnd struct {
	testing.TB
	folder, agrimill, natsServer string
	env                          map[string]string
}

// e2eSender is the endpoint that files are sent from.
const e2eSender = "urn:example:terminal"

func newEndToEnd(tb testing.TB) *endToEnd {
	tb.Helper()
	w := &endToEnd{TB: tb, folder: tb.TempDir()}
	w.agrimill = w.build("agrimill", "../..")
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
func (w *endToEnd) build(name, pkg string, flags ...string) string {
	w.Helper()
	path := filepath.Join(w.folder, name)
	args := append(append([]string{"build", raceFlag, "-o", path}, flags...), pkg)
	if out, err := exec.CommandContext(w.Context(), "go", args...).CombinedOutput(); err != nil {
		w.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	return path
}

// command runs agrimill to its end and returns what it wrote to stdout.
func (w *endToEnd) command(args ...string) string {
	w.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(w.Context(), w.agrimill, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = w.environment(), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		w.Fatalf("agrimill %s: %v\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
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
	emulator := w.start("emulator", w.agrimill, "emulator", "--listen", "127.0.0.1:0")
	must(w, json.Unmarshal([]byte(emulator.line(`^(\{.*\})$`)), &told))
	w.env = map[string]string{"NATS_URL": "nats://" + nats}
	for _, name := range []string{"base_url", "token_url", "client_id", "client_secret", "application_id", "software_version_id"} {
		w.env["AGRIMILL_"+strings.ToUpper(name)] = told[name]
	}
	return told
}

// origin is where the status page of an instance is.
func (p *process) origin() string {
	p.Helper()
	return "http://" + p.line(`serving.* "?address"?[=:]"?(127\.0\.0\.1:\d+)`)
}
