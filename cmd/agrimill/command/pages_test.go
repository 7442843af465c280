package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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

	"github.com/agrimill/agrimill/internal/emulator"
	"github.com/agrimill/agrimill/internal/testkit"
)

const (
	gettingStartedPage = "../../../docs/getting-started.md"
	emulatorPage       = "../../../docs/emulator.md"
)

// TestPages runs the commands of pages of the documentation as written, with bash, curl and real processes on free ports. One
// build of the program is that of all.
func TestPages(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	blocks := bashBlocks(t, gettingStartedPage)
	build(t, bin, blocks[0], "agrimill")
	for name, run := range map[string]func(s *steps, blocks []string){gettingStartedPage: runGettingStarted, emulatorPage: runEmulatorPage} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			run(newSteps(t, bin), bashBlocks(t, name))
		})
	}
}

// bashBlocks are the ```bash blocks of a page, in order.
func bashBlocks(t *testing.T, page string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	must(t, err)
	for _, match := range regexp.MustCompile("(?ms)^```bash\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, match[1])
	}
	return blocks
}

func runGettingStarted(s *steps, blocks []string) {
	if len(blocks) != 16 {
		s.Fatalf("%s has %d blocks: this test knows 16", gettingStartedPage, len(blocks))
	}
	build(s.T, s.dir, strings.Replace(blocks[1], "go run ", "go build -o nats-server ", 1), "nats-server")
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

// runEmulatorPage checks the results of the commands, too.
func runEmulatorPage(s *steps, blocks []string) {
	const startCommand = "go run ./cmd/agrimill emulator --listen 127.0.0.1:8081 | tee emulator.json\n"
	if len(blocks) < 2 || blocks[0] != startCommand {
		s.Fatalf("the first command of %s should be %s", emulatorPage, startCommand)
	}
	program := s.start("./agrimill emulator | tee emulator.json")
	program.wait("emulator ready")
	s.until("cat emulator.json", "}")
	output := s.run("exec 2>stderr.txt\n" + strings.Join(blocks[1:], "\n"))
	program.stop()
	program.gone()
	if stderr := s.read("stderr.txt"); stderr != "" {
		s.Errorf("stderr: %s", stderr)
	}

	for _, line := range []string{
		`a token of \d+ characters`,
		`sent: 200`,
		`event: MESSAGE_RECEIVED`,
		`task data would be a zip file`,
		`the same message again`,
		`confirmed: 202`,
		`nothing left to confirm`,
		`attempt 1: 503`,
		`attempt 2: 503`,
		`attempt 3: 200`,
	} {
		if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(output) {
			s.Errorf("no line %q", line)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^\{"id":"[^"]*","external_id":"urn:example:`).FindAllString(output, -1)); n != 2 {
		s.Errorf("%d endpoints created", n)
	}
	checkLedger(s.T, output)
	var described emulator.Description
	must(s, json.Unmarshal([]byte(s.read("emulator.json")), &described))
	checkTenants(s.T, s.read("tenants.json"), described.TenantID)
	if strings.Contains(s.read("after.txt"), "event:") {
		s.Error("an event comes after the confirmation")
	}
	for _, line := range program.seen {
		if strings.Contains(line, described.ClientSecret) && !strings.HasPrefix(line, "{") { // which is the description
			s.Errorf("the secret is in the log: %s", line)
		}
	}
	if s.Failed() {
		s.Logf("output:\n%s", output)
	}
}

// checkLedger reads the ledger that the commands printed: one message, delivered
// twice, confirmed once.
func checkLedger(t *testing.T, output string) {
	t.Helper()
	var ledger struct {
		Entries []struct {
			Deliveries    []time.Time `json:"deliveries"`
			Confirmations []time.Time `json:"confirmations"`
			Filename      string      `json:"filename"`
		} `json:"entries"`
	}
	line := regexp.MustCompile(`(?m)^\{"entries":.*$`).FindString(output)
	if err := json.Unmarshal([]byte(line), &ledger); err != nil {
		t.Errorf("ledger %q: %v", line, err)
		return
	}
	if len(ledger.Entries) != 1 || len(ledger.Entries[0].Deliveries) != 2 || len(ledger.Entries[0].Confirmations) != 1 || ledger.Entries[0].Filename != "task.txt" {
		t.Errorf("ledger %s", line)
	}
}

// checkTenants: only the sender is left after the farmer deleted the receiver.
func checkTenants(t *testing.T, data, tenant string) {
	t.Helper()
	var body struct {
		Tenants []struct {
			TenantID  string `json:"tenant_id"`
			Endpoints []struct {
				ExternalID string `json:"external_id"`
			} `json:"endpoints"`
		} `json:"tenants"`
	}
	if err := json.Unmarshal([]byte(data), &body); err != nil {
		t.Errorf("tenants %s: %v", data, err)
		return
	}
	if len(body.Tenants) != 1 || body.Tenants[0].TenantID != tenant || len(body.Tenants[0].Endpoints) != 1 || body.Tenants[0].Endpoints[0].ExternalID != "urn:example:sender" {
		t.Errorf("tenants %s", data)
	}
}

// steps is a folder in which commands are run.
type steps struct {
	*testing.T
	dir       string
	natsPort  string
	adminPort string
}

// newSteps is a folder with the program, which is in bin.
func newSteps(t *testing.T, bin string) *steps {
	t.Helper()
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing: install it (Debian, Ubuntu: apt-get install %s)", tool, tool)
		}
	}
	ports := testkit.FreePorts(t, 2)
	s := &steps{T: t, dir: t.TempDir(), natsPort: fmt.Sprint(ports[0]), adminPort: fmt.Sprint(ports[1])}
	must(t, os.Symlink(filepath.Join(bin, "agrimill"), filepath.Join(s.dir, "agrimill")))
	const example = "../examples/minimal.yaml"
	text, err := os.ReadFile(example)
	must(t, err)
	folder := filepath.Join(s.dir, "cmd", "agrimill", "examples")
	must(t, os.MkdirAll(folder, 0o750))
	text = fmt.Appendf(text, "admin: {address: \"127.0.0.1:%s\"}\n", s.adminPort)
	must(t, os.WriteFile(filepath.Join(folder, filepath.Base(example)), text, 0o600))
	return s
}

// build runs a go build line of a page in the root of the clone.
func build(t *testing.T, dir, line, name string) {
	t.Helper()
	line, _, _ = strings.Cut(strings.TrimSpace(line), " --")
	line = strings.Replace(line, "go build ", "go build "+raceFlag+" ", 1)
	cmd := exec.CommandContext(t.Context(), "bash", "-ec", strings.Replace(line, "-o "+name, "-o '"+filepath.Join(dir, name)+"'", 1))
	cmd.Dir = filepath.Join("..", "..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// read returns what is in a file of the folder.
func (s *steps) read(name string) string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	must(s, err)
	return string(text)
}

// command is bash in the folder, with the ports of the test.
func (s *steps) command(ctx context.Context, script string) *exec.Cmd {
	script = strings.NewReplacer(":9090", ":"+s.adminPort, "agrimill emulator", "agrimill emulator --listen 127.0.0.1:0").Replace(script)
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "NATS_URL=nats://127.0.0.1:"+s.natsPort, "no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1", "LC_ALL=C")
	return cmd
}

// run runs a block, whose output, which it returns, has to contain texts.
func (s *steps) run(script string, texts ...string) string {
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
	return string(out)
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
	must(s, p.cmd.Start())
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
