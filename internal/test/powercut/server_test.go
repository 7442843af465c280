//go:build powercut

package powercut

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// build builds nats-server with the layer.
func build(t *testing.T) string {
	t.Helper()
	out := testkit.Must(exec.Command("go", "env", "GOROOT").Output())(t)
	source, dir := filepath.Join(strings.TrimSpace(string(out)), "src", "os"), t.TempDir()
	replace := map[string]string{}
	patch := func(name, old, new string) {
		text := testkit.Must(os.ReadFile(filepath.Join(source, name)))(t)
		if strings.Count(string(text), old) != 1 {
			t.Fatalf("%s does not have once: %s", name, old)
		}
		to := filepath.Join(dir, name)
		testkit.NoError(t, os.WriteFile(to, []byte(strings.Replace(string(text), old, new, 1)), 0o600))
		replace[filepath.Join(source, name)] = to
	}
	patch("file_posix.go", `	if e := f.pfd.Fsync(); e != nil {
		return f.wrapErr("sync", e)
	}
`, `	content, follows := powerCutBefore(f)
	if e := f.pfd.Fsync(); e != nil {
		return f.wrapErr("sync", e)
	}
	if follows {
		powerCutAfter(f, content)
	}
`)
	patch("file.go", "	return rename(oldpath, newpath)\n", `	err := rename(oldpath, newpath)
	if err == nil {
		powerCutRenamed(oldpath, newpath)
	}
	return err
`)
	layer := testkit.Must(filepath.Abs("layer.go.txt"))(t)
	replace[filepath.Join(source, "powercut.go")] = layer
	overlay := testkit.Must(json.Marshal(map[string]any{"Replace": replace}))(t)
	file, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "nats-server")
	testkit.NoError(t, os.WriteFile(file, overlay, 0o600))
	if out, err := exec.Command("go", "build", "-overlay", file, "-o", binary, "github.com/nats-io/nats-server/v2").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

// machine is one with a nats-server, and a switch.
type machine struct {
	*testing.T
	binary, store, shadow, config string
	port                          int
	process                       *exec.Cmd
}

// newMachines returns one, or several whose servers are a cluster.
func newMachines(t *testing.T, binary string, n int) (machines []*machine) {
	t.Helper()
	ports := testkit.FreePorts(t, 2*n)
	routes := make([]string, n)
	for i := range n {
		routes[i] = fmt.Sprintf("\"nats://127.0.0.1:%d\"", ports[n+i])
	}
	for i := range n {
		dir := t.TempDir()
		m := &machine{T: t, binary: binary, store: filepath.Join(dir, "store"), shadow: filepath.Join(dir, "synced"), port: ports[i]}
		m.config = filepath.Join(dir, "nats.conf")
		text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\nserver_name: server%d\njetstream {store_dir: %q, sync_interval: %q}\n", m.port, i, m.store, interval)
		if n > 1 {
			text += fmt.Sprintf("cluster {name: cut, listen: \"127.0.0.1:%d\", routes: [%s]}\n", ports[n+i], strings.Join(routes, ", "))
		}
		testkit.NoError(t, os.WriteFile(m.config, []byte(text), 0o600))
		m.start()
		t.Cleanup(m.kill)
		machines = append(machines, m)
	}
	return machines
}

func (m *machine) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", m.port) }

func (m *machine) start() {
	m.Helper()
	m.process = exec.Command(m.binary, "-c", m.config)
	m.process.Env = append(os.Environ(), "POWERCUT_STORE="+m.store, "POWERCUT_SHADOW="+m.shadow)
	testkit.NoError(m, m.process.Start())
	testkit.Eventually(m.T, "the server answers", func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", m.port))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func (m *machine) kill() {
	_ = m.process.Process.Kill()
	_ = m.process.Wait()
}

// writeBack has everything on disk that the server, which does not run, has written: as after some time without a cut.
func (m *machine) writeBack() {
	m.Helper()
	m.copy(m.store, m.shadow)
}

// lose makes the files of the server, which does not run, what had been synced.
func (m *machine) lose() {
	m.Helper()
	m.copy(m.shadow, m.store)
}

func (m *machine) copy(from, to string) {
	m.Helper()
	testkit.NoError(m, os.RemoveAll(to))
	testkit.NoError(m, os.CopyFS(to, os.DirFS(from)))
	_ = filepath.WalkDir(to, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".writing") {
			return os.Remove(path)
		}
		return err
	})
}
