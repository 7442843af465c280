package linttest

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/unit"
)

const unitName = "agrimill.service"

// directives are all that the unit may use, by section, from systemd.unit(5),
// systemd.service(5), systemd.exec(5), systemd.kill(5) and
// systemd.resource-control(5): a name with a mistake is ignored by systemd, and
// nobody would notice.
var directives = map[string][]string{
	"Unit": {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec"},
	"Service": {
		"Type", "ExecStart", "ExecReload", "Restart", "RestartSec", "RestartPreventExitStatus", "SuccessExitStatus", "TimeoutStopSec",
		"LoadCredential", "StateDirectory", "StateDirectoryMode", "UMask", "DynamicUser", "User",
		"CapabilityBoundingSet", "AmbientCapabilities", "NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp",
		"PrivateDevices", "PrivateUsers", "ProtectClock", "ProtectControlGroups", "ProtectHostname", "ProtectKernelLogs",
		"ProtectKernelModules", "ProtectKernelTunables", "ProtectProc", "ProcSubset", "RemoveIPC",
		"RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality",
		"MemoryDenyWriteExecute", "SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber", "Environment",
		"MemoryMax", "LimitNOFILE", "LimitCORE",
	},
	"Install": {"WantedBy"},
}

// service reads the unit: section.Directive → values in order.
func service(t *testing.T) map[string][]string {
	t.Helper()
	sections := must(unit.DeserializeSections(bytes.NewReader(read(t, deploy, "systemd", unitName))))(t)
	values := map[string][]string{}
	for _, section := range sections {
		for _, entry := range section.Entries {
			if !slices.Contains(directives[section.Section], entry.Name) {
				t.Errorf("[%s] %s= is not known", section.Section, entry.Name)
			}
			key := section.Section + "." + entry.Name
			values[key] = append(values[key], entry.Value)
		}
	}
	return values
}

func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	values := service(t)
	for key, want := range map[string]string{
		"Service.DynamicUser":              "yes",
		"Service.NoNewPrivileges":          "yes",
		"Service.ProtectSystem":            "strict",
		"Service.ProtectHome":              "yes",
		"Service.Restart":                  "on-failure",
		"Service.RestartPreventExitStatus": "2", // agrimill's status for a configuration that is wrong
		"Service.SuccessExitStatus":        "3", // and for what was open when it was stopped
		"Service.CapabilityBoundingSet":    "",
		"Unit.StartLimitIntervalSec":       "0",
	} {
		if got := values[key]; len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	reload := values["Service.ExecReload"]
	if len(reload) != 2 || !strings.Contains(reload[0], " validate ") || reload[1] != "/bin/kill -HUP $MAINPID" {
		t.Errorf("ExecReload is %q: want the file checked, then SIGHUP", reload)
	}
}

// What the unit gives is what the configuration beside it asks for.
func TestSystemdAgreesWithItsConfiguration(t *testing.T) {
	t.Parallel()
	values := service(t)
	config := parseProgramConfig(t, read(t, deploy, "systemd", "agrimill.yaml"))
	var given []string
	for _, value := range values["Service.LoadCredential"] {
		credential, _, _ := strings.Cut(value, ":")
		given = append(given, "${CREDENTIALS_DIRECTORY}/"+credential)
	}
	if wanted := []string{config.Gateway.ClientSecretFile, config.Admin.TokenFile}; !slices.Equal(given, wanted) {
		t.Errorf("the unit gives %q, the configuration wants %q", given, wanted)
	}
	state := "/var/lib/" + values["Service.StateDirectory"][0] + "/"
	if path := config.Dedup.BBolt.Path; !strings.HasPrefix(path, state) {
		t.Errorf("%s is not below %s, and everything else is read-only", path, state)
	}
	if url := config.ClaimCheck.URL; !strings.HasPrefix(url, "file://"+state) {
		t.Errorf("%s is not below %s, and everything else is read-only", url, state)
	}
	stop := must(time.ParseDuration(values["Service.TimeoutStopSec"][0]))(t)
	longerThanTheDrain(t, "TimeoutStopSec", stop, config)
	for _, command := range append(values["Service.ExecStart"], values["Service.ExecReload"][0]) {
		if fields := strings.Fields(command); fields[len(fields)-1] != "/etc/agrimill/agrimill.yaml" {
			t.Errorf("%s: another file than the others", command)
		}
	}
}

// longerThanTheDrain: whoever kills an instance has to wait longer than it needs.
func longerThanTheDrain(t *testing.T, what string, limit time.Duration, config programConfig) {
	t.Helper()
	drain, err := time.ParseDuration(config.Shutdown.Timeout)
	if err != nil {
		t.Fatalf("shutdown.timeout: %v", err)
	}
	if limit < drain+15*time.Second {
		t.Errorf("%s is %s: too short for a drain of %s, and for what comes after it", what, limit, drain)
	}
}

// TestSystemdAnalyze asks systemd itself, where it is.
func TestSystemdAnalyze(t *testing.T) {
	t.Parallel()
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd-analyze is not here; the other tests looked at the unit")
		return
	}
	// Only that the program is not installed here is none of the unit's mistakes.
	out, _ := exec.CommandContext(t.Context(), tool, "verify", "--man=no", filepath.Join(deploy, "systemd", unitName)).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, unitName) && !strings.Contains(line, "/usr/local/bin/agrimill is not executable") || strings.Contains(line, "Unknown") {
			t.Errorf("systemd-analyze: %s", line)
		}
	}
	// Of 10, which is a service that may do everything.
	out, err = exec.CommandContext(t.Context(), tool, "security", "--offline=true", "--no-pager", "--threshold=25", filepath.Join(deploy, "systemd", unitName)).CombinedOutput()
	switch {
	case strings.Contains(string(out), "unrecognized option"):
		t.Log("systemd-analyze is older than 250 and cannot judge a file")
	case err != nil:
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}
