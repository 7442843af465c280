package command

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"

	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
)

const (
	descriptionType = "iso:11783:-10:device_description:protobuf"
	timeLogType     = "iso:11783:-10:time_log:protobuf"
)

// devicesWorld has a machine that sends time logs, which are stored as they are.
type devicesWorld struct {
	*storedWorld
	machine gateway.Endpoint
	server  *natstest.Server
	cluster *kafkatest.Cluster
}

// newDevicesWorld runs agrimill; devices is made a part of its configuration from the addresses of NATS and Kafka.
func newDevicesWorld(t *testing.T, devices func(nats, kafka string) string) *devicesWorld {
	w := &devicesWorld{
		storedWorld: &storedWorld{farm: newFarm(t, gatewaytest.Config{})}, server: natstest.Start(t), cluster: kafkatest.Start(t),
	}
	w.env["AGRIMILL_TOKEN"] = statusToken
	types := []string{descriptionType, timeLogType}
	w.machine = w.gate.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:example:machine", Send: types})
	w.gate.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:example:receiver", Receive: types, Subscribe: types})
	text := fmt.Sprintf(`
gateway:
  {base_url: %q, token_url: %q, client_id: "${AGRIMILL_CLIENT_ID}", client_secret: "${AGRIMILL_CLIENT_SECRET}", service_name: "${AGRIMILL_SERVICE}",
   application_id: "${AGRIMILL_APPLICATION_ID}", software_version_id: "${AGRIMILL_SOFTWARE_VERSION_ID}"}
sinks: {farm: {nats: {url: %q, stream: FARM, subject_prefix: farm}}}
poison: {sink: farm}
admin: {address: "127.0.0.1:0", token: "${AGRIMILL_TOKEN}"}
routes:
  - {name: logs, from: {gateway: all}, to: {sink: farm, topic: log}}
  - {name: records, from: {gateway: all}, transform: {records: {}}, to: {sink: farm, topic: records}}
%s
`, w.env["AGRIMILL_BASE_URL"], w.env["AGRIMILL_TOKEN_URL"], w.server.URL(), devices(w.server.URL(), w.cluster.Addr()))
	path := filepath.Join(t.TempDir(), "agrimill.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	t.Chdir(filepath.Dir(path))
	return w
}

// send sends what a machine says.
func (w *devicesWorld) send(messageType, teamset, filename string, at time.Time, payload []byte) {
	w.Helper()
	if _, err := w.gate.Send(gatewaytest.SendRequest{
		From: w.machine.ID, MessageType: messageType, TeamsetContextID: teamset, Filename: filename, SentAt: at, Payload: payload,
	}); err != nil {
		w.Fatal(err)
	}
}

// describe has teamsets that were described once, in two ways, and never send logs, and waits until agrimill is done with them.
func (w *devicesWorld) describe() {
	w.Helper()
	sent := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i, name := range []string{"First", "Second"} {
		var description efdipb.TaskData
		must(w, proto.Unmarshal(farmdatatest.Description(w.T), &description))
		description.Device[0].Designator = name
		w.send(descriptionType, "changed", name+".bin", sent.Add(time.Duration(2*i)*time.Second), farmdatatest.Marshal(w.T, &description))
	}
	w.send(descriptionType, "mower", "mower.bin", sent, farmdatatest.Description(w.T))
	w.send(timeLogType, "mower", "described.bin", sent.Add(time.Second), farmdatatest.TimeLog(w.T, 5))
	w.send(timeLogType, "changed", "ambiguous.bin", sent.Add(time.Second), farmdatatest.TimeLog(w.T, 4))
	w.send(timeLogType, "stranger", "missing.bin", sent, farmdatatest.TimeLog(w.T, 6))
	for _, name := range []string{"First.bin", "Second.bin", "mower.bin", "described.bin", "ambiguous.bin", "missing.bin"} {
		w.done(name)
	}
}

// edited writes the configuration with something else in place of a text.
func (w *devicesWorld) edited(old, with string) (file string) {
	w.Helper()
	text := w.file("agrimill.yaml")
	if !strings.Contains(text, old) {
		w.Fatalf("no %q in %s", old, text)
	}
	file = filepath.Join(w.TempDir(), "edited.yaml")
	must(w, os.WriteFile(file, []byte(strings.ReplaceAll(text, old, with)), 0o600))
	return file
}

// places lists everything that the brokers have, with the number of what is in it.
func (w *devicesWorld) places() (list []string) {
	w.Helper()
	conn, err := natstest.Connect(w.server.URL())
	must(w, err)
	defer conn.Close()
	js, err := natstest.JetStream(conn)
	must(w, err)
	streams := js.ListStreams(w.Context())
	for info := range streams.Info() {
		list = append(list, fmt.Sprint(info.Config.Name, " ", info.State.LastSeq))
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(w.cluster.Addr()))
	must(w, err)
	defer client.Close()
	ends, endsErr := kadm.NewClient(client).ListEndOffsets(w.Context())
	must(w, errors.Join(streams.Err(), endsErr))
	ends.Each(func(o kadm.ListedOffset) { list = append(list, fmt.Sprint(o.Topic, " ", o.Offset)) })
	slices.Sort(list)
	return list
}

// The devices of a time log are found where the running agrimill keeps them, or what to do is told. Nothing is created or
// changed by that.
func TestInspectTraceDevices(t *testing.T) {
	const wait = "devices: {wait: 1ms, "
	for _, c := range []struct {
		name, place string
		devices     func(nats, kafka string) string
		want        string // what is told if no other process can look there
	}{
		{"none", "", func(string, string) string { return "" }, "the configuration has no devices; give --devices FILE"},
		{"memory", "", func(string, string) string { return strings.TrimSuffix(wait, ", ") + "}" }, "the running agrimill has the descriptions in its memory, which no other process can read; look on its status page, give --devices FILE"},
		{"nats", "bucket machines (devices.nats_kv)", func(nats, _ string) string { return wait + fmt.Sprintf("nats_kv: {url: %q, bucket: machines}}", nats) }, ""},
		{"kafka", "topic machines (devices.kafka)", func(_, kafka string) string {
			return wait + fmt.Sprintf("kafka: {brokers: %q, topic: machines}}", kafka)
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newDevicesWorld(t, c.devices)
			w.send(timeLogType, "mower", "first.bin", time.Now(), farmdatatest.TimeLog(t, 1))
			w.beside(t, []string{"trace", "--config", "agrimill.yaml", "first.bin"})
			w.describe()
			before := w.places()
			shows := func(name, file, stdoutHas, stderrHas string) {
				t.Helper()
				status, stdout, stderr := w.agrimill("inspect", "trace", "--config", file, name)
				if status != statusOK || !strings.Contains(stdout, stdoutHas) || !strings.Contains(stderr, stderrHas) {
					t.Errorf("%s: status %d, no %q in %s\nor no %q in %s", name, status, stdoutHas, stdout, stderrHas, stderr)
				}
			}
			const named, unnamed = "DET-1    Mower   5      9    9    m\n", "names and units are not those of the machine: "
			if c.place != "" {
				shows("described.bin", "agrimill.yaml", named, "names, units and scales are from "+c.place+"\n")
				shows("ambiguous.bin", "agrimill.yaml", "First", "sent last before the log, from "+c.place+"; the teamset was described in different ways")
				shows("missing.bin", "agrimill.yaml", " 6 records", unnamed+c.place+" has no description of the teamset; give --devices FILE")
				shows("described.bin", w.edited("machines", "elsewhere"), " 5 records", "does not exist")
				nobody := fmt.Sprintf("127.0.0.1:%d", testkit.FreePorts(t, 1)[0])
				if c.name == "kafka" { // the message itself is in NATS
					shows("described.bin", w.edited(w.cluster.Addr(), nobody), " 5 records", unnamed+c.place+": ")
				}
			} else {
				shows("described.bin", "agrimill.yaml", " 5 records", unnamed+c.want)
			}
			description := filepath.Join(t.TempDir(), "mower.bin")
			must(t, os.WriteFile(description, farmdatatest.Description(t), 0o600))
			if status, stdout, stderr := w.inspect("missing.bin", "--devices", description); status != statusOK || !strings.Contains(stdout, "Mower") || strings.Contains(stderr, "scales") {
				t.Errorf("with --devices: status %d, %s\n%s", status, stdout, stderr)
			}
			if status, body := w.contents(w.done("described.bin")); status != http.StatusOK || strings.Contains(body, "Mower") != (c.name != "none") {
				t.Errorf("the status page: status %d, %.500s", status, body)
			}
			if after := w.places(); !slices.Equal(before, after) {
				t.Errorf("something was created or changed: %q, before %q", after, before)
			}
		})
	}
}
