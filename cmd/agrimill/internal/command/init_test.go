package command

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// What init writes is a pipeline, without a change.
func TestInit(t *testing.T) {
	t.Parallel()
	f := newFarm(t, gatewaytest.Config{})
	for name, c := range map[string]struct {
		answers string // empty: nobody is there
		args    []string
		want    []string
	}{
		"suggestions": {want: []string{`external_id: "urn:example:farm"`, `url: "nats://127.0.0.1:4222"`}},
		"flags": {
			args: []string{"--external-id", "urn:example:dairy", "--name", "Dairy, north", "--receive", "doc:pdf, img:png", "--to", "kafka://a:9092,b:9092"},
			want: []string{`external_id: "urn:example:dairy"`, `name: "Dairy, north"`, `- "img:png"`, `- "b:9092"`, "into Kafka"},
		},
		"answers": {
			answers: "\n\nurn:example:answered\n\ndoc:pdf\ntls://nats.example:4222\n",
			want:    []string{`external_id: "urn:example:answered"`, `name: "Farm"`, `- "doc:pdf"`, `url: "tls://nats.example:4222"`},
		},
		"answers beside flags": {
			answers: "\n\nAnswered\n\n\n", args: []string{"--external-id", "urn:example:flag"},
			want: []string{`external_id: "urn:example:flag"`, `name: "Answered"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "farm.yaml")
			w := &world{T: t, env: f.env, terminal: c.answers != "", stdin: strings.NewReader(c.answers)}
			said := w.want(statusOK, append([]string{"init", file}, c.args...)...)
			if !strings.Contains(said, "agrimill run "+file) || strings.Contains(said, "export") {
				t.Errorf("it says %s", said)
			}
			text := testkit.Must(os.ReadFile(file))(t)
			for _, want := range c.want {
				testkit.Contains(t, string(text), want)
			}
			w.want(statusOK, "validate", file)
			cfg := testkit.Must(config.Load(file, config.Options{Env: func(name string) string { return f.env[name] }}))(t)
			if len(cfg.Warnings) > 0 {
				t.Errorf("warnings: %v", cfg.Warnings)
			}
			p := testkit.Must(pipeline.New(t.Context(), cfg, pipeline.Options{}))(t)
			must(t, p.Close())
		})
	}
}

// What init writes and the commands that take the environment use the same names in headers.
func TestInitService(t *testing.T) {
	t.Parallel()
	f := newFarm(t, gatewaytest.Config{ServiceName: "grange"})
	for want, service := range map[string]string{"grange": "grange", gateway.DefaultServiceName: ""} {
		env := maps.Clone(f.env)
		env["AGRIMILL_SERVICE"] = service
		file := filepath.Join(t.TempDir(), "farm.yaml")
		w := &world{T: t, env: env}
		if said := w.want(statusOK, "init", file); strings.Contains(said, "export") {
			t.Errorf("it says %s", said)
		}
		cfg := testkit.Must(config.Load(file, config.Options{Env: func(name string) string { return env[name] }}))(t)
		if got := cfg.Gateway.ServiceName; got != want {
			t.Errorf("AGRIMILL_SERVICE is %q: the service of the file is %q, want %q", service, got, want)
		}
	}
}

// A file with credentials in an address is for its user alone, and init says so.
func TestInitKeepsCredentials(t *testing.T) {
	t.Parallel()
	for to, mode := range map[string]os.FileMode{"nats://farm:secret@127.0.0.1:4222": 0o600, "nats://127.0.0.1:4222": 0o644} {
		file := filepath.Join(t.TempDir(), "farm.yaml")
		said := (&world{T: t}).want(statusOK, "init", file, "--to", to)
		info := testkit.Must(os.Stat(file))(t)
		if info.Mode() != mode || strings.Contains(said, "readable by you alone") != (mode == 0o600) {
			t.Errorf("--to %s: mode %s, it says %s", to, info.Mode(), said)
		}
	}
}

// What validate would refuse is not written, and nothing is replaced.
func TestInitRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "farm.yaml")
	w := &world{T: t}
	for _, args := range [][]string{
		{"--external-id", "no URN"}, {"--receive", " ,"}, {"--to", "http://127.0.0.1"}, {"--to", "kafka://"}, {"--base-url", "gateway"}, {"more"},
	} {
		w.want(statusUsage, append([]string{"init", file}, args...)...)
	}
	w.terminal, w.stdin = true, strings.NewReader("https://gateway.example\n") // and no more answers
	w.want(statusFailed, "init", file)
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("something was written: %v", err)
	}
	w.terminal = false
	must(t, os.WriteFile(file, []byte("mine"), 0o600))
	w.want(statusUsage, "init", file)
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine" {
		t.Errorf("the file is %q, %v", text, err)
	}
	testkit.Contains(t, func() string { w.env = nil; return w.want(statusOK, "init", file+".new") }(), "export AGRIMILL_CLIENT_SECRET=…")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	w.terminal, w.stdin = true, strings.NewReader("")
	if status := w.program(t.Output(), t.Output()).run(canceled, []string{"init", file + ".canceled"}); status != statusFailed {
		t.Errorf("status %d", status)
	}
}
