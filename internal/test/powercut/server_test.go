//go:build powercut

package powercut

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
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

// server is a nats-server, see [machine].
type server struct {
	*testing.T
	binary, store, shadow, config string
	port                          int
	process                       *exec.Cmd
}

// newServers returns one, or several that are a cluster.
func newServers(t *testing.T, binary string, n int) (servers []*server) {
	t.Helper()
	ports := testkit.FreePorts(t, 2*n)
	routes := make([]string, n)
	for i := range n {
		routes[i] = fmt.Sprintf("\"nats://127.0.0.1:%d\"", ports[n+i])
	}
	for i := range n {
		dir := t.TempDir()
		m := &server{T: t, binary: binary, store: filepath.Join(dir, "store"), shadow: filepath.Join(dir, "synced"), port: ports[i]}
		m.config = filepath.Join(dir, "nats.conf")
		text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\nserver_name: server%d\njetstream {store_dir: %q, sync_interval: %q}\n", m.port, i, m.store, interval)
		if n > 1 {
			text += fmt.Sprintf("cluster {name: cut, listen: \"127.0.0.1:%d\", routes: [%s]}\n", ports[n+i], strings.Join(routes, ", "))
		}
		testkit.NoError(t, os.WriteFile(m.config, []byte(text), 0o600))
		m.start()
		t.Cleanup(m.kill)
		servers = append(servers, m)
	}
	return servers
}

func (m *server) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", m.port) }

func (m *server) start() {
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

func (m *server) kill() {
	_ = m.process.Process.Kill()
	_ = m.process.Wait()
}

func (m *server) writeBack() { copyFiles(m.T, m.store, m.shadow) }
func (m *server) lose()      { copyFiles(m.T, m.shadow, m.store) }

func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	testkit.NoError(t, os.RemoveAll(to))
	testkit.NoError(t, os.CopyFS(to, os.DirFS(from)))
	_ = filepath.WalkDir(to, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".writing") {
			return os.Remove(path)
		}
		return err
	})
}

// cluster is the servers that have a stream.
type cluster struct {
	*testing.T
	servers []*server
	config  nats.Config
}

// natsServers returns what starts as many servers, and has the stream on all of them.
func natsServers(t *testing.T, n int) func(*testing.T) (broker, setup) {
	binary := build(t)
	return func(t *testing.T) (broker, setup) {
		c := &cluster{T: t, servers: newServers(t, binary, n)}
		var urls []string
		for _, m := range c.servers {
			urls = append(urls, m.url())
		}
		s := setup{URL: strings.Join(urls, ","), Synced: sinks.Synced(interval), Replicas: n}
		if n > 1 {
			s.Synced = sinks.SyncedReplicas
		}
		c.config = s.nats()
		testkit.Eventually(t, "the stream is made", func() bool {
			sink, err := nats.New(c.config, nil)
			if err == nil {
				_ = sink.Close()
			}
			return err == nil
		})
		return c, s
	}
}

func (c *cluster) machines() (machines []machine) {
	for _, m := range c.servers {
		machines = append(machines, m)
	}
	return machines
}

// stream calls f with the stream until it succeeds.
func (c *cluster) stream(what string, f func(jetstream.Stream) error) {
	c.Helper()
	var err error
	defer func() {
		if err != nil {
			c.Log(err)
		}
	}()
	testkit.Eventually(c.T, what, func() bool {
		err = func() error {
			conn, err := c.config.Connect("look")
			if err != nil {
				return err
			}
			defer conn.Close()
			js, err := jetstream.New(conn)
			if err != nil {
				return err
			}
			stream, err := js.Stream(c.Context(), nats.DefaultStream)
			if err != nil {
				return err
			}
			return f(stream)
		}()
		return err == nil
	})
}

// settles waits until all servers have what one has.
func (c *cluster) settles() {
	c.Helper()
	c.stream("the servers have the same", func(stream jetstream.Stream) error {
		if len(c.servers) == 1 {
			return nil
		}
		cluster := stream.CachedInfo().Cluster
		if cluster == nil || cluster.Leader == "" || len(cluster.Replicas) != len(c.servers)-1 {
			return fmt.Errorf("the cluster is %+v", cluster)
		}
		for _, peer := range cluster.Replicas {
			if !peer.Current || peer.Offline {
				return fmt.Errorf("%+v is behind", *peer)
			}
		}
		return nil
	})
}

// stored returns how often each message is in the stream.
func (c *cluster) stored() (found map[string]int) {
	c.Helper()
	c.stream("the stream is read", func(stream jetstream.Stream) error {
		found = make(map[string]int)
		state := stream.CachedInfo().State
		if state.Msgs == 0 {
			return nil
		}
		consumer, err := stream.OrderedConsumer(c.Context(), jetstream.OrderedConsumerConfig{HeadersOnly: true})
		if err != nil {
			return err
		}
		for n := uint64(0); n < state.Msgs; {
			batch, err := consumer.Fetch(int(min(1000, state.Msgs-n)))
			if err != nil {
				return err
			}
			before := n
			for msg := range batch.Messages() {
				found[msg.Headers().Get(gateway.KeyMessageID)]++
				n++
			}
			if n == before {
				return errors.Join(batch.Error(), fmt.Errorf("%d of %d messages are read", n, state.Msgs))
			}
		}
		return nil
	})
	return found
}
