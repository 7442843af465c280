package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/sinks/claimcheck"
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
	if text := f.want(statusOK, "tenants", "--config", file); !strings.Contains(text, f.gate.Tenant()) {
		t.Errorf("tenants:\n%s", text)
	}
	f.want(statusOK, "endpoints", "put", "urn:example:new", "--config", file)
	if status, _, stderr := f.agrimill("tenants", "--config", file, "--base-url", "http://127.0.0.1:1"); status != statusUsage || !strings.Contains(stderr, "config") {
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

// And where the poison queue and its payloads are.
func TestConfigOfThePoisonQueue(t *testing.T) {
	payloads := "file://" + filepath.ToSlash(t.TempDir())
	w := newWorld(t, 0)
	store, err := claimcheck.New(t.Context(), claimcheck.Config{URL: payloads})
	must(t, err)
	defer func() { _ = store.Close() }()
	w.store = store
	w.poison(taskData, shapes)
	w.env["AGRIMILL_BASE_URL"], w.env["AGRIMILL_TOKEN_URL"] = "http://127.0.0.1:1", "http://127.0.0.1:1/token"
	w.env["AGRIMILL_CLIENT_ID"], w.env["AGRIMILL_CLIENT_SECRET"], w.env["AGRIMILL_SERVICE"] = "agrimill", "kept to itself", "router"
	w.env["AGRIMILL_APPLICATION_ID"], w.env["AGRIMILL_SOFTWARE_VERSION_ID"] = "6f9619ff-8b86-d011-b42d-00c04fc964ff", "6f9619ff-8b86-d011-b42d-00c04fc964fe"
	file := w.configure(fmt.Sprintf(`sinks: {farm: {nats: {url: %q, user: %s, password: "${NATS_PASSWORD}"}}}
poison: {sink: farm}
claim_check: {url: %q}
`, w.server.URL(), user, payloads))
	w.env["NATS_URL"] = "nats://127.0.0.1:1" // the file decides

	all := w.list("--config", file)
	if len(all) != 2 {
		t.Fatalf("listed: %+v", all)
	}
	w.want(statusOK, "poison", "show", all[0].ID, "--config", file, "--payload", "-")
	w.want(statusOK, "poison", "replay", all[0].ID, "--config", file)
	w.want(statusOK, "poison", "drop", all[1].ID, "--config", file)
	if left := w.list("--config", file); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	w.want(statusUsage, "poison", "list", "--config", file, "--stream", "OTHER")

	elsewhere := w.configure(fmt.Sprintf(`sinks: {farm: {nats: {url: %q, user: %s, password: "${NATS_PASSWORD}", stream: NOTHING}}}
poison: {sink: farm}
`, w.server.URL(), user))
	if status, _, stderr := w.agrimill("poison", "show", "1", "--config", elsewhere); status != statusFailed ||
		!strings.Contains(stderr, "has no stream NOTHING") || !strings.Contains(stderr, "see sinks.farm.nats in "+elsewhere) {
		t.Errorf("a stream that does not exist: status %d, stderr %q", status, stderr)
	}
}
