package command

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
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

	"github.com/agrimill/agrimill/internal/testkit"
)

const gettingStartedPage = "../../../docs/getting-started.md"

// TestGettingStarted runs the commands of docs/getting-started.md as written, with
// bash, curl and real processes: NATS, the emulator and agrimill, on free ports.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(gettingStartedPage)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, match := range regexp.MustCompile("(?ms)^```bash\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		blocks = append(blocks, match[1])
	}
	if len(blocks) != 16 {
		t.Fatalf("%s has %d blocks: this test knows 16", gettingStartedPage, len(blocks))
	}
	s := newSteps(t)
	s.build(blocks[0], "agrimill")
	s.build(strings.Replace(blocks[1], "go run ", "go build -o nats-server ", 1), "nats-server")
	_, flags, _ := strings.Cut(strings.TrimSpace(blocks[1]), "/v2 ")
	natsLine := "exec ./nats-server " + flags + " --port " + s.natsPort

	nats := s.start(natsLine)
	nats.wait("Server is ready")
	emulator := s.start(blocks[2])
	emulator.wait("emulator ready")
	s.until("cat emulator.json", "}") // as a person would who copies from the terminal
	s.run(blocks[3], "valid: 1 route, 1 sink, 1 endpoint", "nothing failed")
	agrimill := s.start(". ./agrimill.env; exec " + blocks[4])
	agrimill.wait("endpoint provisioned", "sink opened")
	s.run(blocks[5], "created endpoint", "sent")
	s.until(blocks[6], `} 1`)

	nats.stop()
	agrimill.wait("what=sink name=farm state=down")
	send, look, _ := strings.Cut(blocks[7], "\n")
	s.run(". ./agrimill.env\n"+send, "sent")
	s.until(look, `"ready":false`, "sink farm") // after the grace period, in which a person types
	agrimill.wait("name=farm-data state=outage")
	nats.gone()
	nats = s.start(natsLine)
	agrimill.wait("name=farm-data state=running was=outage")
	s.until(blocks[6], `} 2`)
	s.run(blocks[8], `} 2`, "no messages")

	agrimill.stop()
	agrimill.wait("agrimill stopped")

	s.run(blocks[9], "valid: 2 routes, 1 sink, 1 endpoint", "warning: routes[1].to.topic: needs {teamset}")
	agrimill = s.start(". ./agrimill.env; exec " + blocks[10])
	agrimill.wait("endpoint provisioned", "sink opened")
	s.run(". ./agrimill.env\n"+blocks[11], "sent")
	s.until(". ./agrimill.env\n"+blocks[12], "delivered by tasks; confirmed", "poisoned by shapes; confirmed", "no route takes it; not confirmed yet",
		"The route is missing")
	s.run(". ./agrimill.env\n"+blocks[13], "no teamset", "2 passed")
	agrimill.wait("configuration: reloaded")
	s.run(". ./agrimill.env\n"+blocks[14], "delivered")
	s.until(". ./agrimill.env\n"+blocks[15], "delivered by pictures; confirmed", "no messages")
	agrimill.stop()
	agrimill.wait("agrimill stopped")
	emulator.stop()
	nats.stop()
}

// steps is a folder in which commands are run.
type steps struct {
	*testing.T
	dir       string
	natsPort  string
	adminPort string
}

func newSteps(t *testing.T) *steps {
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing: install it (Debian, Ubuntu: apt-get install %s)", tool, tool)
		}
	}
	ports := testkit.FreePorts(t, 2)
	s := &steps{T: t, dir: t.TempDir(), natsPort: fmt.Sprint(ports[0]), adminPort: fmt.Sprint(ports[1])}
	const example = "../examples/minimal.yaml"
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(s.dir, "cmd", "agrimill", "examples")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	text = fmt.Appendf(text, "admin: {address: \"127.0.0.1:%s\"}\n", s.adminPort)
	if err := os.WriteFile(filepath.Join(folder, filepath.Base(example)), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// build runs a go build line of the page in the root of the clone.
func (s *steps) build(line, name string) {
	s.Helper()
	line, _, _ = strings.Cut(strings.TrimSpace(line), " --")
	line = strings.Replace(line, "go build ", "go build "+raceFlag+" ", 1)
	cmd := exec.CommandContext(s.Context(), "bash", "-ec", strings.Replace(line, "-o "+name, "-o '"+filepath.Join(s.dir, name)+"'", 1))
	cmd.Dir = filepath.Join("..", "..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// command is bash in the folder, with the ports of the test.
func (s *steps) command(ctx context.Context, script string) *exec.Cmd {
	script = strings.NewReplacer(":9090", ":"+s.adminPort, "agrimill emulator", "agrimill emulator --listen 127.0.0.1:0").Replace(script)
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "NATS_URL=nats://127.0.0.1:"+s.natsPort, "no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1")
	return cmd
}

// run runs a block, whose output has to contain texts.
func (s *steps) run(script string, texts ...string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), testkit.Patience)
	defer cancel()
	out, err := s.command(ctx, script).CombinedOutput()
	if err != nil {
		s.Fatalf("%s: %v\n%s", script, err, out)
	}
	for _, text := range texts {
		if !bytes.Contains(out, []byte(text)) {
			s.Errorf("%s: no %q in\n%s", script, text, out)
		}
	}
}

// until runs a block again and again, as a person would, until its output contains
// the texts.
func (s *steps) until(script string, texts ...string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), testkit.Patience)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		out, err := s.command(ctx, script).CombinedOutput()
		if err == nil && !slices.ContainsFunc(texts, func(text string) bool { return !bytes.Contains(out, []byte(text)) }) {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			s.Fatalf("%s: no %q: %v\n%s", script, texts, err, out)
		}
	}
}

// terminal is a program that runs in a terminal of its own.
type terminal struct {
	*steps
	cmd  *exec.Cmd
	once sync.Once
	// lines has what the program writes, and is closed at the end.
	lines chan string
	seen  []string
}

// start runs a block until stop.
func (s *steps) start(script string) *terminal {
	s.Helper()
	p := &terminal{steps: s, cmd: s.command(context.WithoutCancel(s.Context()), script), lines: make(chan string, 10_000)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C goes to all of them
	output, input := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = input, input
	if err := p.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	go func() { // ends with the program
		_ = input.CloseWithError(p.cmd.Wait())
	}()
	go func() { // ends with input
		defer close(p.lines)
		scanner := bufio.NewScanner(output)
		for scanner.Scan() {
			p.lines <- scanner.Text()
		}
	}()
	s.Cleanup(func() {
		p.stop()
		p.gone()
	})
	return p
}

// wait waits until the program has written all texts, in any order.
func (p *terminal) wait(texts ...string) {
	p.Helper()
	deadline := time.NewTimer(testkit.Patience)
	defer deadline.Stop()
	for len(texts) > 0 {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.Fatalf("the program ended without %q:\n%s", texts, strings.Join(p.seen, "\n"))
			}
			p.seen = append(p.seen, line)
			texts = slices.DeleteFunc(texts, func(text string) bool { return strings.Contains(line, text) })
		case <-deadline.C:
			p.Fatalf("no %q:\n%s", texts, strings.Join(p.seen, "\n"))
		}
	}
}

// stop is Ctrl-C. What the program writes then can still be waited for.
func (p *terminal) stop() {
	p.once.Do(func() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT) })
}

// gone waits until the program has ended.
func (p *terminal) gone() {
	p.Helper()
	deadline := time.AfterFunc(testkit.Patience, func() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) })
	defer deadline.Stop()
	for line := range p.lines {
		p.seen = append(p.seen, line)
	}
}
