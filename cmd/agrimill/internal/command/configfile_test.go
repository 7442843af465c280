package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// configure writes a configuration file with the gateway of f and sinks.
func (w *world) configure(sections string) string {
	w.Helper()
	file := filepath.Join(w.TempDir(), "agrimill.yaml")
	text := fmt.Sprintf(`gateway:
  base_url: %s
  token_url: %s
  client_id: ${AGRIMILL_CLIENT_ID}
  client_secret: ${AGRIMILL_CLIENT_SECRET}
  service_name: ${AGRIMILL_SERVICE}
  application_id: ${AGRIMILL_APPLICATION_ID}
  software_version_id: ${AGRIMILL_SOFTWARE_VERSION_ID}
  retry: {max_attempts: 1}
routes:
  - {name: farm-data, from: {gateway: all}, to: {sink: farm, topic: "{type|none}"}}
  - {name: task-data, from: {gateway: "iso:11783:-10:taskdata:zip"}, to: {sink: farm, topic: "{type|none}"}}
  - {name: shapes, from: {gateway: "shp:shape:zip"}, to: {sink: farm, topic: "{type|none}"}}
%s`, w.env["AGRIMILL_BASE_URL"], w.env["AGRIMILL_TOKEN_URL"], sections)
	must(w, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// The configuration of agrimill says where the gateway is; nothing else has to.
func TestConfigOfTheGateway(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{ServiceName: "mill"})
	f.env["AGRIMILL_APPLICATION_ID"], f.env["AGRIMILL_SOFTWARE_VERSION_ID"] = f.gate.Application().ID, f.gate.Application().SoftwareVersionID
	file := f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\n")
	mistaken := f.configure("poison: {sink: farn}\nsinks: {farm: {log: {}}}\nroute: []\nsink: {}\n")
	f.env["AGRIMILL_BASE_URL"], f.env["AGRIMILL_TOKEN_URL"] = "", ""
	testkit.Contains(t, f.want(statusOK, "tenants", "--config", file), f.gate.Tenant())
	f.want(statusOK, "endpoints", "put", "urn:example:new", "--config", file)
	if status, _, stderr := f.agrimill("tenants", "--config", file, "--base-url", "http://127.0.0.1:1"); status != statusUsage || !strings.Contains(stderr, "--base-url and --config exclude each other") {
		t.Errorf("two places: status %d, %s", status, stderr)
	}
	if status, _, stderr := f.agrimill("poison", "list", "--config", file); status != statusUsage || !strings.Contains(stderr, "of kind log") {
		t.Errorf("a poison queue in a log: status %d, %s", status, stderr)
	}

	// Every mistake is reported, and it is the same exit status as for wrong usage.
	status, stdout, stderr := f.agrimill("tenants", "--config", mistaken)
	if status != statusUsage || stdout != "" || !strings.HasPrefix(stderr, mistaken+":") || !strings.Contains(stderr, "sink: is not a known key") || !strings.Contains(stderr, "route") {
		t.Errorf("mistakes: status %d, stderr:\n%s", status, stderr)
	}
	f.want(statusUsage, "tenants", "--config", file+".none")
}

// And where the poison queue is. A server that is not there, a wrong password and a stream that does not exist are failures,
// told without secrets.
func TestConfigOfThePoisonQueue(t *testing.T) {
	w := newWorld(t, 0, taskData)
	if all := w.list(); len(all) != 1 {
		t.Fatalf("listed: %+v", all)
	}
	w.want(statusUsage, "poison", "list")
	// What is missing is named, and so is what to do.
	for settings, says := range map[string]string{", stream: NOTHING": "has no stream NOTHING", ", subject_prefix: other": "other"} {
		file := w.queueIn(settings)
		for _, command := range []string{"list", "show 1", "replay 1", "drop 1"} {
			status, _, stderr := w.agrimill(append([]string{"poison", "--config", file}, strings.Fields(command)...)...)
			stderr = strings.NewReplacer(strings.TrimPrefix(w.server.URL(), "nats://"), "ADDRESS", file, "FILE").Replace(stderr) // a port or a folder may have 404
			if status != statusFailed || !strings.Contains(stderr, says) || !strings.Contains(stderr, "see sinks.farm.nats in FILE") ||
				strings.Contains(stderr, "unavailable") || strings.Contains(stderr, "404") {
				t.Errorf("%s: status %d, stderr %q", command, status, stderr)
			}
		}
	}
	w.env["NATS_PASSWORD"] = password + "!"
	w.want(statusFailed, "poison", "list", "--config", w.file)
	w.server.Stop()
	w.want(statusFailed, "poison", "list", "--config", w.file)
}
