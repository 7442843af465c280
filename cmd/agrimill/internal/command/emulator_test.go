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
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// What the emulator says of itself is all that the other commands need.
func TestEmulator(t *testing.T) {
	const id = "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01"
	// Who has to know the credentials before the emulator runs gives them to it.
	w := &world{T: t, env: map[string]string{"EMULATOR_CLIENT_ID": "agrimill", "EMULATOR_CLIENT_SECRET": "known before", "EMULATOR_APPLICATION_ID": id}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	env := filepath.Join(t.TempDir(), "agrimill.env")
	must(t, os.WriteFile(env, []byte("of another emulator"), 0o644))
	out, in := io.Pipe()
	var logs bytes.Buffer
	status := make(chan int, 1)
	go func() {
		status <- w.program(in, &logs).run(ctx, []string{"emulator", "--listen", "127.0.0.1:0", "--service", "mill", "--env", env})
		_ = in.Close()
	}()
	stdout := bufio.NewReader(out)
	line := testkit.Must(stdout.ReadString('\n'))(t)
	var d emulated
	must(t, json.Unmarshal([]byte(line), &d))
	if d.ClientID != "agrimill" || d.ClientSecret != "known before" || d.ApplicationID != id || d.SoftwareVersionID == "" {
		t.Errorf("the emulator says %+v", d)
	}
	w.env = environment(t, env)
	w.want(statusOK, "endpoints", "put", "urn:example:farm", "--receive", "doc:pdf", "--subscribe", "doc:pdf")
	testkit.Contains(t, w.want(statusOK, "tenants"), d.TenantID)

	cancel()
	if rest, err := io.ReadAll(stdout); err != nil || len(rest) > 0 {
		t.Errorf("more on stdout: %q, %v", rest, err)
	}
	if got := <-status; got != statusOK {
		t.Errorf("status %d", got)
	}
	if !strings.Contains(logs.String(), d.BaseURL+controlPrefix) || strings.Contains(logs.String(), d.ClientSecret) {
		t.Errorf("log: %s", logs.String())
	}
	for _, args := range []string{"--chunk-size 0", "--inline-limit -1", "--service a/b", "--listen nonsense", "--listen 127.0.0.1:99999", "now"} {
		w.want(statusUsage, append([]string{"emulator"}, strings.Fields(args)...)...)
	}
	for name, value := range map[string]string{
		"EMULATOR_APPLICATION_ID": "{" + id + "}", "EMULATOR_SOFTWARE_VERSION_ID": id + "\n",
	} {
		w.env = map[string]string{name: value}
		if status, _, stderr := w.agrimill("emulator"); status != statusUsage || !strings.Contains(stderr, name+" must be a UUID") {
			t.Errorf("%s=%q: status %d, %s", name, value, status, stderr)
		}
	}
	w.env = nil
	w.want(statusFailed, "emulator", "--listen", "192.0.2.1:0")
	w.want(statusFailed, "emulator", "--listen", "127.0.0.1:0", "--env", filepath.Join(t.TempDir(), "absent", "agrimill.env"))
}

// environment reads a file that the emulator wrote, which nobody else can read.
func environment(t *testing.T, path string) map[string]string {
	t.Helper()
	info := testkit.Must(os.Stat(path))(t)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s: permissions %v", path, info.Mode())
	}
	text := testkit.Must(os.ReadFile(path))(t)
	env := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		env[name] = strings.Trim(value, "'")
	}
	return env
}

// A shell reads what was written, whatever is in a value.
func TestEmulatorEnvironment(t *testing.T) {
	const secret = `a 'quoted' $HOME "secret"`
	script := emulated{ClientSecret: secret}.environment() + "printf %s \"$AGRIMILL_CLIENT_SECRET\""
	out, err := exec.CommandContext(t.Context(), "bash", "-euc", script).Output()
	if err != nil || string(out) != secret {
		t.Errorf("the shell has %q, %v; want %q", out, err, secret)
	}
}
