package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/emulator"
	"github.com/agrimill/agrimill/internal/testkit"
)

const emulatorPage = "../../../docs/emulator.md"

// TestEmulatorPage runs the commands of docs/emulator.md as written, with bash and curl
// against the program, and checks their results.
func TestEmulatorPage(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing: install it (Debian, Ubuntu: apt-get install %s)", tool, tool)
		}
	}
	blocks := bashBlocks(t)
	const startCommand = "go run ./cmd/agrimill emulator --listen 127.0.0.1:8081 | tee emulator.json\n"
	if len(blocks) < 2 || blocks[0] != startCommand {
		t.Fatalf("the first command of %s should be %s", emulatorPage, startCommand)
	}

	dir := t.TempDir()
	program := startEmulator(t, dir)
	output := runScript(t, dir, strings.Join(blocks[1:], "\n"))
	program.terminate(t)

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
			t.Errorf("no line %q", line)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^\{"id":"[^"]*","external_id":"urn:example:`).FindAllString(output, -1)); n != 2 {
		t.Errorf("%d endpoints created", n)
	}
	checkLedger(t, output)
	checkTenants(t, filepath.Join(dir, "tenants.json"), program.described.TenantID)
	if after, err := os.ReadFile(filepath.Join(dir, "after.txt")); err != nil || bytes.Contains(after, []byte("event:")) {
		t.Errorf("after the confirmation: %q, %v", after, err)
	}
	if t.Failed() {
		t.Logf("output:\n%s", output)
	}
}

// bashBlocks are the ```bash blocks of the page, in order.
func bashBlocks(t *testing.T) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(emulatorPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("(?ms)^```bash\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, match[1])
	}
	return blocks
}

type emulatorProcess struct {
	cmd       *exec.Cmd
	stdout    *bufio.Reader
	stderr    *bytes.Buffer
	described emulator.Description
}

// startEmulator builds the program, starts it on a free port and leaves its first
// line in emulator.json, as the page does.
func startEmulator(t *testing.T, dir string) *emulatorProcess {
	t.Helper()
	binary := filepath.Join(dir, "agrimill")
	if out, err := exec.CommandContext(t.Context(), "go", "build", raceFlag, "-o", binary, "..").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary, "emulator", "--listen", "127.0.0.1:0")
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // for a test that fails before it terminates the process
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	e := &emulatorProcess{cmd: cmd, stdout: bufio.NewReader(pipe), stderr: stderr}
	line, err := e.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("first line: %v", err)
	}
	if err := json.Unmarshal([]byte(line), &e.described); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "emulator.json"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	return e
}

// terminate sends SIGTERM and expects a clean end.
func (e *emulatorProcess) terminate(t *testing.T) {
	t.Helper()
	if err := e.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(e.stdout)
	if err != nil || len(rest) > 0 {
		t.Errorf("more on stdout: %q, %v", rest, err)
	}
	if err := e.cmd.Wait(); err != nil {
		t.Errorf("the emulator ended with %v\n%s", err, e.stderr)
	}
	if strings.Contains(e.stderr.String(), e.described.ClientSecret) {
		t.Error("the secret is in the log")
	}
}

// runScript stops at the first command that fails.
func runScript(t *testing.T, dir, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-s")
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(script)
	cmd.Env = append(os.Environ(), "no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1", "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("the commands ended with %v\nstdout:\n%s\nstderr:\n%s", err, output, stderr.String())
	}
	if stderr.Len() > 0 {
		t.Errorf("stderr: %s", stderr.String())
	}
	return string(output)
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
func checkTenants(t *testing.T, name, tenant string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
		return
	}
	var body struct {
		Tenants []struct {
			TenantID  string `json:"tenant_id"`
			Endpoints []struct {
				ExternalID string `json:"external_id"`
			} `json:"endpoints"`
		} `json:"tenants"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		t.Errorf("tenants %s: %v", data, err)
		return
	}
	if len(body.Tenants) != 1 || body.Tenants[0].TenantID != tenant || len(body.Tenants[0].Endpoints) != 1 || body.Tenants[0].Endpoints[0].ExternalID != "urn:example:sender" {
		t.Errorf("tenants %s", data)
	}
}
