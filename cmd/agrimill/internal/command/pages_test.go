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

	"github.com/agrimill/agrimill/internal/testkit"
)

const (
	gettingStartedPage = "../../../../docs/getting-started.md"
	emulatorPage       = "../../../../docs/emulator.md"
)

// TestPages runs the commands of pages of the documentation as written, with bash, curl and real processes on free ports. What
// the first command builds is already linked into the binary of the tests.
func TestPages(t *testing.T) {
	t.Parallel()
	if first := bashBlocks(t, gettingStartedPage)[0]; first != "go build -o agrimill ./cmd/agrimill\n" {
		t.Errorf("the first command of %s is %q, want the build of the program", gettingStartedPage, first)
	}
	for name, run := range map[string]func(s *steps, blocks []string){gettingStartedPage: runGettingStarted, emulatorPage: runEmulatorPage} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			run(newSteps(t), bashBlocks(t, name))
		})
	}
}

// bashBlocks are the ```bash blocks of a page, in order.
func bashBlocks(t *testing.T, page string) (blocks []string) {
	t.Helper()
	text := testkit.Must(os.ReadFile(page))(t)
	for _, match := range regexp.MustCompile("(?ms)^```bash\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, match[1])
	}
	return blocks
}

func runGettingStarted(s *steps, blocks []string) {
	if len(blocks) != 16 {
		s.Fatalf("%s has %d blocks: this test knows 16", gettingStartedPage, len(blocks))
	}
	began := time.Now()
	demo := s.start(blocks[1])
	demo.wait("Ctrl-C ends the demo")
	s.until(blocks[2], "All is right")
	s.until(blocks[3], "Sprayer 24 m", "lange_breite_")
	s.run(blocks[4], "sent")
	s.until(blocks[5], "delivered by tasks; filtered by documents; confirmed")
	s.ends(demo)

	demo = s.start(blocks[6])
	demo.wait("Ctrl-C ends the demo")
	s.until(blocks[7], "received 1") // so that something was stored
	demo.enter()
	demo.wait("BROKEN")
	s.until(blocks[7], `The sink "farm"`, "nothing is lost")
	demo.enter()
	demo.wait("REPAIRED")
	s.until(blocks[8], "All is right")
	s.ends(demo)

	demo = s.start(blocks[9])
	demo.wait("Ctrl-C ends the demo")
	s.until(blocks[10], "poisoned by shapes", "no teamset")
	s.run(blocks[11], "no teamset", "1 failed")
	text := strings.Replace(s.read("demo.yaml"), "{teamset}.shapes", "{teamset|none}.shapes", 1)
	must(s, os.WriteFile(filepath.Join(s.dir, "demo.yaml"), []byte(text), 0o600))
	s.until("curl -fsS http://127.0.0.1:9090/api/config", "{teamset|none}.shapes")
	s.run(blocks[12], "1 passed", "delivered")
	s.until(blocks[13], "no messages", "delivered by shapes")
	s.ends(demo)

	emulator := s.start(blocks[14])
	emulator.wait("emulator ready")
	s.run(blocks[15], "farm.yaml written", "valid: 1 route, 1 sink, 1 endpoint")
	emulator.stop()
	emulator.gone()
	s.Logf("%s took %s of waiting and pasting", gettingStartedPage, time.Since(began).Round(time.Second))
}

// ends stops a demo, which leaves nothing open.
func (s *steps) ends(demo *terminal) {
	s.Helper()
	demo.stop()
	demo.wait("all of them stored and confirmed")
	demo.gone()
	if !demo.cmd.ProcessState.Success() {
		s.Errorf("the demo ended with %s:\n%s", demo.cmd.ProcessState, strings.Join(demo.seen, "\n"))
	}
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
	var described emulated
	must(s, json.Unmarshal([]byte(s.read("emulator.json")), &described))
	checkEmulator(s, output, described.TenantID)
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

// checkEmulator looks at what the commands read from the emulator: one message, delivered twice, confirmed once; and only the
// sender is left after the farmer deleted the receiver.
func checkEmulator(s *steps, output, tenant string) {
	s.Helper()
	var seen struct {
		Entries []struct {
			Deliveries, Confirmations []time.Time
			Filename                  string
		}
		Tenants []struct {
			TenantID  string `json:"tenant_id"`
			Endpoints []struct {
				ExternalID string `json:"external_id"`
			}
		}
	}
	for _, text := range []string{regexp.MustCompile(`(?m)^\{"entries":.*$`).FindString(output), s.read("tenants.json")} {
		if err := json.Unmarshal([]byte(text), &seen); err != nil {
			s.Fatalf("%q: %v", text, err)
		}
	}
	if e := seen.Entries; len(e) != 1 || len(e[0].Deliveries) != 2 || len(e[0].Confirmations) != 1 || e[0].Filename != "task.txt" {
		s.Errorf("ledger %+v", e)
	}
	if l := seen.Tenants; len(l) != 1 || l[0].TenantID != tenant || len(l[0].Endpoints) != 1 || l[0].Endpoints[0].ExternalID != "urn:example:sender" {
		s.Errorf("tenants %+v", l)
	}
}

// steps is a folder in which commands are run.
type steps struct {
	*testing.T
	dir       string
	adminPort string
}

// newSteps is a folder with the program, see TestMain.
func newSteps(t *testing.T) *steps {
	t.Helper()
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing: install it (Debian, Ubuntu: apt-get install %s)", tool, tool)
		}
	}
	s := &steps{T: t, dir: t.TempDir(), adminPort: fmt.Sprint(testkit.FreePorts(t, 1)[0])}
	binary := testkit.Must(os.Executable())(t)
	must(t, os.Symlink(binary, filepath.Join(s.dir, "agrimill")))
	return s
}

// read returns what is in a file of the folder.
func (s *steps) read(name string) string {
	s.Helper()
	text := testkit.Must(os.ReadFile(filepath.Join(s.dir, name)))(s)
	return string(text)
}

// command is bash in the folder, with the port of the test.
func (s *steps) command(ctx context.Context, script string) *exec.Cmd {
	page := "127.0.0.1:" + s.adminPort
	script = strings.NewReplacer("127.0.0.1:9090", page, "agrimill emulator", "agrimill emulator --listen 127.0.0.1:0", "agrimill demo", "agrimill demo --address "+page,
		"agrimill status", "agrimill status --admin "+page, "agrimill trace", "agrimill trace --admin "+page).Replace(script)
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1", "LC_ALL=C")
	return cmd
}

// run runs a block, whose output, which it returns, has to contain texts.
func (s *steps) run(script string, texts ...string) string {
	s.Helper()
	out, err := s.command(testkit.Context(s), script).CombinedOutput()
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
	ctx := testkit.Context(s)
	again := time.NewTicker(250 * time.Millisecond)
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
	keys io.WriteCloser // its stdin
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
	keys := testkit.Must(p.cmd.StdinPipe())(s)
	p.keys = keys
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

// enter presses Enter.
func (p *terminal) enter() {
	p.Helper()
	testkit.Must(io.WriteString(p.keys, "\n"))(p)
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
