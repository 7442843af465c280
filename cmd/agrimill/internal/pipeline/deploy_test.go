package pipeline_test

// The tests here and in compose_test.go hold the files for deployment against agrimill itself. What the programs
// that read them say is tested in cmd/agrimill/deploy/linttest.

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/internal/testkit"
)

var deployment = filepath.Join("..", "..", "deploy")

func deployFile(t *testing.T, name string) []byte {
	t.Helper()
	return testkit.Must(os.ReadFile(filepath.Join(deployment, filepath.FromSlash(name))))(t)
}

// secretFiles is a directory with the secrets that a deployment gives as files.
func secretFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"client-secret", "admin-token"} {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("content-of-"+name+"\n"), 0o600))
	}
	return dir
}

// deployEnvironment gives what the deployment gives: variables, and files of secrets.
func deployEnvironment(t *testing.T, compose bool) func(string) string {
	t.Helper()
	secrets := secretFiles(t)
	variables := map[string]string{"CREDENTIALS_DIRECTORY": secrets}
	if compose {
		var file struct {
			Services map[string]struct {
				Environment map[string]string `yaml:"environment"`
			} `yaml:"services"`
		}
		testkit.NoError(t, yaml.Unmarshal(deployFile(t, "docker-compose.yaml"), &file))
		variables = file.Services["agrimill"].Environment
		// What the machine has to give, without a default.
		given := regexp.MustCompile(`\$\{(\w+):\?[^}]*\}`)
		for name, value := range variables {
			variables[name] = given.ReplaceAllString(value, "given-from-outside-as-$1")
		}
	}
	return func(name string) string { return variables[name] }
}

// The unit keeps agrimill down after the exit status for a wrong configuration, and not after a crash.
func TestSystemdRestartsAfterACrash(t *testing.T) {
	const crash = "AGRIMILL_TEST_CRASH"
	if os.Getenv(crash) != "" {
		go panic("crash")
		select {}
	}
	t.Parallel()
	unit := string(deployFile(t, "systemd/agrimill.service"))
	command := exec.CommandContext(t.Context(), testkit.Must(os.Executable())(t), "-test.run", "^"+t.Name()+"$")
	command.Dir, command.Env = t.TempDir(), []string{crash + "=1"} // there may be a core file
	for _, variable := range regexp.MustCompile(`(?m)^Environment=(.+)$`).FindAllStringSubmatch(unit, -1) {
		command.Env = append(command.Env, variable[1])
	}
	_ = command.Run()
	kept := regexp.MustCompile(`(?m)^(RestartPrevent|Success)ExitStatus=(.+)$`).FindAllStringSubmatch(unit, -1)
	status := strconv.Itoa(command.ProcessState.ExitCode())
	if len(kept) != 2 || slices.ContainsFunc(kept, func(k []string) bool { return k[2] == status }) {
		t.Errorf("exit status %s after a crash (%v); no restart after %q", status, command.ProcessState, kept)
	}
}

// Every configuration of an instance is one, without a mistake and without a warning.
func TestConfigurationsLoad(t *testing.T) {
	inPod := func(name string) string {
		var configMap struct {
			Data map[string]string `yaml:"data"`
		}
		testkit.NoError(t, yaml.Unmarshal(deployFile(t, name), &configMap))
		text := configMap.Data["agrimill.yaml"]
		const mounted = "/etc/agrimill/secrets"
		if !strings.Contains(text, mounted) {
			t.Errorf("%s: the configuration does not read %s", name, mounted)
		}
		return strings.ReplaceAll(text, mounted, secretFiles(t))
	}
	// Of the chart, the values have it; linttest checks that the ConfigMap is made of them.
	inValues := func(name string) string {
		var values struct {
			Config map[string]any `yaml:"config"`
		}
		testkit.NoError(t, yaml.Unmarshal(deployFile(t, name), &values))
		text := testkit.Must(yaml.Marshal(values.Config))(t)
		return strings.ReplaceAll(string(text), "/etc/agrimill/secrets", secretFiles(t))
	}
	for name, tt := range map[string]struct {
		text    string
		compose bool
	}{
		"helm/values.yaml":             {inValues("helm/values.yaml"), false},
		"compose/agrimill.yaml":        {string(deployFile(t, "compose/agrimill.yaml")), true},
		"systemd/agrimill.yaml":        {string(deployFile(t, "systemd/agrimill.yaml")), false},
		"systemd/agrimill-ha.yaml":     {string(deployFile(t, "systemd/agrimill-ha.yaml")), false},
		"kubernetes/configmap.yaml":    {inPod("kubernetes/configmap.yaml"), false},
		"kubernetes-ha/configmap.yaml": {inPod("kubernetes-ha/configmap.yaml"), false},
	} {
		t.Run(name, func(t *testing.T) {
			c := testkit.Must(config.Parse(name, []byte(tt.text), config.Options{Env: deployEnvironment(t, tt.compose)}))(t)
			for _, warning := range c.Warnings {
				// The emulator is another container on the same machine.
				if plain := strings.Contains(warning.Message, "is not encrypted"); !plain || !tt.compose {
					t.Error(warning)
				}
			}
			// Two instances cannot share a file.
			if (c.Dedup.BBolt == nil) != (c.HA != nil) || (c.Dedup.NATSKV == nil) != (c.HA == nil) || c.ClaimCheck == nil || c.Poison.Sink == "" {
				t.Error("an instance in production has a memory that outlives it, a claim check and a poison queue")
			}
			if token := string(c.Admin.Token); !strings.Contains(token, "admin-token") && !strings.Contains(token, "ADMIN_TOKEN") {
				t.Error("the token of the status page does not come from outside")
			}
		})
	}
}

// The NATS server takes its file, and keeps what agrimill's configuration says of it.
func TestNATSConfiguration(t *testing.T) {
	options := testkit.Must(natsserver.ProcessConfigFile(filepath.Join(deployment, "compose", "nats.conf")))(t)
	if !options.JetStream || !options.SyncAlways || options.StoreDir != "/data" || options.Port != 4222 {
		t.Errorf("JetStream %t, sync always %t, store %s, port %d", options.JetStream, options.SyncAlways, options.StoreDir, options.Port)
	}
}

// A dashboard that someone edited by hand is still JSON that a diff can show.
func TestDashboardIsFormatted(t *testing.T) {
	data := deployFile(t, "grafana/dashboards/agrimill.json")
	if !json.Valid(data) {
		t.Fatal("not JSON")
	}
	if lines := strings.Count(string(data), "\n"); lines < 500 {
		t.Errorf("%d lines: write it indented", lines)
	}
}

// What README.md exports to talk to the emulator is what docker-compose.yaml and the
// agrimill's configuration say.
func TestReadmeKnowsTheEmulator(t *testing.T) {
	env := deployEnvironment(t, true)
	cfg := testkit.Must(config.Parse("agrimill.yaml", deployFile(t, "compose/agrimill.yaml"), config.Options{Env: env}))(t)
	outside := strings.NewReplacer("emulator:8081", "127.0.0.1:8081")
	readme := string(deployFile(t, "README.md"))
	for name, value := range map[string]string{
		"BASE_URL":            outside.Replace(string(cfg.Gateway.BaseURL)),
		"TOKEN_URL":           outside.Replace(string(cfg.Gateway.TokenURL)),
		"CLIENT_ID":           env("EMULATOR_CLIENT_ID"),
		"CLIENT_SECRET":       env("EMULATOR_CLIENT_SECRET"),
		"APPLICATION_ID":      env("EMULATOR_APPLICATION_ID"),
		"SOFTWARE_VERSION_ID": env("EMULATOR_SOFTWARE_VERSION_ID"),
	} {
		if line := "export AGRIMILL_" + name + "=" + value + "\n"; !strings.Contains(readme, line) {
			t.Errorf("README.md does not say %s", line)
		}
	}
}
