//go:build browser

package command

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/browsertest"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
)

// The configuration of the story: shapes go to NATS and Kafka, with a topic that asks for what they lack,
// and nothing takes pictures.
const storyConfig = `
gateway:
  base_url: ${AGRIMILL_BASE_URL}
  token_url: ${AGRIMILL_TOKEN_URL}
  client_id: ${AGRIMILL_CLIENT_ID}
  client_secret: ${AGRIMILL_CLIENT_SECRET}
  application_id: ${AGRIMILL_APPLICATION_ID}
  software_version_id: ${AGRIMILL_SOFTWARE_VERSION_ID}
endpoints:
  - external_id: urn:example:farm
    name: Farm
    capabilities:
      - {type: "iso:11783:-10:taskdata:zip", direction: RECEIVE}
      - {type: "shp:shape:zip", direction: RECEIVE}
      - {type: "img:png", direction: RECEIVE}
    subscriptions: ["iso:11783:-10:taskdata:zip", "shp:shape:zip", "img:png"]
sinks:
  farm: {nats: {url: "${NATS_URL}"}}
  lake: {kafka: {brokers: ["${KAFKA_BROKER}"], topic_prefix: lake, partitions: 1}}
routes:
  - {name: tasks, from: {gateway: "iso:11783:-10:taskdata:zip"}, to: {sink: farm, topic: "{type}"}}
  - {name: shapes, from: {gateway: "shp:shape:zip"}, to: {sink: farm, topic: "{teamset}.{type}"}}
  - {name: shapes-lake, from: {gateway: "shp:shape:zip"}, to: {sink: lake, topic: "{teamset}.shapes"}}
poison: {sink: farm}
admin: {address: "127.0.0.1:0", token: "${ADMIN_TOKEN}"}
`

const storyCases = `
cases:
  - name: shapes go to both, without a team
    message: {type: "shp:shape:zip"}
    expect: [{route: shapes, topic: "none.shp:shape:zip"}, {route: shapes-lake, topic: none.shapes}]
  - name: pictures go to the farm
    message: {type: "img:png"}
    expect: [{route: pictures, topic: "img:png"}]
`

// tabTo presses Tab until the element is focused, as somebody without a mouse does.
func tabTo(page *browsertest.Tab, selector string) {
	page.Helper()
	for range 400 {
		page.Keys("\t")
		if page.Eval(fmt.Sprintf(`document.activeElement?.matches(%q) ?? false`, selector)) == "true" {
			return
		}
	}
	page.Picture("failed")
	page.Fatalf("Tab does not reach %s", selector)
}

// TestBrowserWhatHappenedToMyFile is what an operator does, with the keyboard only: of three files that
// were sent, one arrives, one is poisoned, and one has no route. Each is found by its name, with the reason. The
// configuration is repaired, tested and reloaded, the poisoned are replayed, and everything is in NATS and in Kafka.
func TestBrowserWhatHappenedToMyFile(t *testing.T) {
	for _, device := range []struct {
		name          string
		width, height int64
		phone         bool
	}{{"desktop", 1400, 1000, false}, {"phone", 390, 844, true}} {
		t.Run(device.name, func(t *testing.T) {
			s := newStory(t)
			s.page.Resize(device.width, device.height, device.phone)
			s.picture = func(what string) { s.page.Picture("story-" + device.name + "-" + what) }
			s.run()
		})
	}
}

type story struct {
	*endToEnd
	page     *browsertest.Tab
	picture  func(what string)
	told     map[string]string
	nats     string
	kafka    *kafkatest.Cluster
	config   string
	agrimill *process
}

const storyToken = "the-token-of-the-page"

func newStory(t *testing.T) *story {
	s := &story{endToEnd: newEndToEnd(t), kafka: kafkatest.Start(t)}
	_, s.nats = s.startNATS("-1")
	s.told = s.startEmulator(s.nats)
	s.env["ADMIN_TOKEN"], s.env["KAFKA_BROKER"] = storyToken, s.kafka.Addr()
	s.config = filepath.Join(s.folder, "agrimill.yaml")
	s.file(s.config, storyConfig)
	s.agrimill = s.start("agrimill", s.endToEnd.agrimill, "run", s.config)
	s.page = browsertest.Open(t, s.agrimill.origin()+"/")
	s.page.Wait(`document.querySelector("#state").dataset.state === "running"`)
	return s
}

func (s *story) file(path, text string) {
	s.Helper()
	must(s, os.WriteFile(path, []byte(text), 0o600))
}

// find looks for a file on the page and waits for what is known of it.
func (s *story) find(name string, want ...string) {
	s.Helper()
	tabTo(s.page, "#trace-query") // which selects what is in it
	s.page.Keys(name + "\r")
	for _, text := range append(want, name) {
		s.page.Wait(fmt.Sprintf(`document.querySelectorAll("#trace-messages > li").length === 1 && document.querySelector("#trace-messages").textContent.includes(%q)`, text))
	}
}

// tests runs agrimill test and returns whether everything passed, and what it wrote.
func (s *story) tests(cases string) (bool, string) {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), s.endToEnd.agrimill, "test", s.config, cases)
	cmd.Env = s.environment()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.Fatal(err)
	}
	return err == nil, string(out)
}

func (s *story) run() {
	page := s.page
	s.command("endpoints", "put", e2eSender, "--name", "Terminal", "--send", taskData, "--send", "shp:shape:zip", "--send", "img:png")
	const tasks, shape, picture = "tasks of field 12.zip", "shape of field 12.zip", "photo of field 12.png"
	var files, digests []string
	for _, name := range []string{tasks, shape, picture} {
		file, digest := s.write(name, 20_000)
		files, digests = append(files, file), append(digests, digest)
	}
	s.command(append([]string{"send", "--from", e2eSender, "--publish"}, files...)...)
	page.Wait(`document.querySelector("#t-stored").textContent === "2" && document.querySelector("#t-stored-note").textContent.endsWith("2 poisoned")`)
	s.picture("1-sent")

	// Where is it, and why?
	s.find(tasks, "delivered by tasks; confirmed", "in stream AGRIMILL, sequence ")
	s.picture("2-arrived")
	s.find(shape, "poisoned", "permanent: ", "teamset")
	s.picture("3-poisoned")
	s.find(picture, "no route takes it; not confirmed yet", "never saw it")
	s.picture("4-no-route")
	tabTo(page, "#why-tenant")
	page.Keys(page.Eval(`document.querySelector("#why-tenants option").value`))
	tabTo(page, "#why-type")
	page.Keys("img:png\r")
	page.Wait(`document.querySelector("#why-result").textContent.startsWith("The route is missing")`)
	s.picture("5-why")

	// The mistakes are repaired. A test sees them, and that they are gone.
	cases := filepath.Join(s.folder, "cases.yaml")
	s.file(cases, storyCases)
	if passed, out := s.tests(cases); passed || !strings.Contains(out, "teamset") || !strings.Contains(out, "pictures") {
		s.Errorf("agrimill test did not see the mistakes:\n%s", out)
	}
	repaired := strings.NewReplacer("{teamset}.", "{teamset|none}.",
		"poison:", `  - {name: pictures, from: {gateway: "img:png"}, to: {sink: farm, topic: "{type}"}}`+"\npoison:").Replace(storyConfig)
	s.file(s.config, repaired)
	if passed, out := s.tests(cases); !passed {
		s.Fatalf("agrimill test: %s", out)
	}
	must(s, s.agrimill.cmd.Process.Signal(syscall.SIGHUP))
	page.Wait(stateOf("Route pictures", "running"))
	// What nobody took is redelivered.
	page.Wait(`document.querySelector("#t-stored").textContent === "3"`)
	s.find(picture, "delivered by pictures; confirmed")
	s.picture("6-reloaded")

	// The groups are replayed.
	tabTo(page, `#rooms a[href="#/problems"]`)
	page.Keys("\r")
	tabTo(page, "#token")
	page.Keys(storyToken)
	for left := 1; left >= 0; left-- {
		// What is left of the last group is one message, with a button of its own.
		button := "#poison-groups li:first-child .replay"
		if left == 0 {
			button = `#poison-rows button[aria-label^="Replay"]`
		}
		page.Wait(fmt.Sprintf(`document.querySelector(%q)?.disabled === false`, button))
		tabTo(page, button)
		page.Keys("\r")
		if left > 0 { // a group asks first
			page.Wait(`document.activeElement?.id === "confirm-yes"`)
			page.Keys("\r")
		}
		page.Wait(fmt.Sprintf(`document.querySelector("#replay-result").textContent === "1 delivered" && document.querySelectorAll("#poison-rows tr").length === %d`, left))
	}
	s.find(shape, "delivered by shapes")
	s.picture("7-replayed")

	// Everything is where it belongs.
	for digest, n := range s.arrived(s.nats, digests...) {
		if n != 1 {
			s.Errorf("NATS has the file %s %d times", digest, n)
		}
	}
	records := kafkatest.Read(s, s.kafka.Addr(), "lake.none.shapes")
	if len(records) != 1 {
		s.Fatalf("Kafka has %d records", len(records))
	}
	if sum := sha256.Sum256(records[0].Value); hex.EncodeToString(sum[:]) != digests[1] {
		s.Error("Kafka has another file")
	}
	if open, all := s.unconfirmed(s.told["base_url"]); open != 0 || all != 3 {
		s.Errorf("%d of %d messages are unconfirmed, want 0 of 3", open, all)
	}
	page.Clean(s.agrimill.origin())
	if status := s.agrimill.stop(syscall.SIGTERM); status != 0 {
		s.Errorf("agrimill ended with status %d", status)
	}
	for _, line := range s.agrimill.output() {
		if strings.Contains(line, storyToken) || strings.Contains(line, s.told["client_secret"]) {
			s.Errorf("agrimill wrote a secret: %s", line)
		}
	}
}
