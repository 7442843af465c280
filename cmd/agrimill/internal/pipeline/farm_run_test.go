package pipeline_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
)

// A time log is decoded with a description that came before agrimill was restarted, also after a
// reload; maps go into a bucket; an expression routes by what is in a payload.
func TestFarmData(t *testing.T) {
	t.Parallel()
	const description, timeLog = "iso:11783:-10:device_description:protobuf", "iso:11783:-10:time_log:protobuf"
	w := newWorld(t)
	types := []string{description, timeLog, taskData}
	sender := w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "tractor", Send: types})
	w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "office", Receive: types, Subscribe: types})
	send := func(messageType string, payload []byte) {
		t.Helper()
		testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, TeamsetContextID: "team", Filename: "acre.zip", Payload: payload}))(t)
	}
	maps := t.TempDir()
	text := w.head() + strings.Replace(w.natsSink(), "poison:", fmt.Sprintf("  maps: {blob: {url: %q}}\npoison:", "file://"+maps), 1) +
		fmt.Sprintf("devices: {nats_kv: {url: %q}}\n", w.server.URL()) + `routes:
  - name: records
    from: {gateway: all}
    filter: {type: ["iso:11783:-10:*:protobuf"]}
    transform: {records: {}}
    to: {sink: farm, topic: records}
  - name: maps
    from: {gateway: all}
    filter: {expr: 'msgtype == "iso:11783:-10:taskdata:zip" && "Mower" in farm.machines'}
    set: {field: 'farm.fields.join(",")'}
    transform: {map: {}}
    to: {sink: maps, topic: maps}
`
	b := w.start(text)
	send(description, farmdatatest.Description(t))
	confirmed := func(n int) {
		t.Helper()
		testkit.NoError(t, w.gate.WaitConfirmed(testkit.Context(t), n))
	}
	confirmed(1)
	b.mustStop()

	b = w.start(text)
	send(timeLog, farmdatatest.TimeLog(t, 1))
	send(taskData, farmdatatest.Archive(t, 3))
	confirmed(4) // two endpoints have received the archive
	b.reload(strings.Replace(text, "topic: records", "topic: more", 1))
	send(timeLog, farmdatatest.TimeLog(t, 2))
	confirmed(5)
	b.mustStop()
	for subject, n := range map[string]int{"records": 1, "more": 2} {
		stored := w.read("agrimill." + subject)
		if len(stored) != 1 {
			t.Fatalf("%d messages in %s, want 1", len(stored), subject)
		}
		lines := bytes.Split(bytes.TrimSpace(stored[0].Data), []byte("\n"))
		if len(lines) != 1+n || !bytes.Contains(lines[1], []byte(`"0043_DET-1":9`)) || stored[0].Header.Get("x-farm-devices") != "described" {
			t.Errorf("%s: %s, %v", subject, stored[0].Data, stored[0].Header)
		}
	}
	var found []string
	testkit.EventuallyNil(t, func() (err error) {
		found, err = filepath.Glob(filepath.Join(maps, "maps", "*", "*.geojson"))
		if err == nil && len(found) != 2 {
			err = fmt.Errorf("%d maps, want one for each endpoint", len(found))
		}
		return err
	})
	data := testkit.Must(os.ReadFile(found[0]))(t)
	var collection struct{ Features []json.RawMessage }
	if err := json.Unmarshal(data, &collection); err != nil || len(collection.Features) != 2 {
		t.Errorf("%d features, %v, want a field and a track", len(collection.Features), err)
	}
}

// The same with the descriptions in Kafka.
func TestDevicesInKafka(t *testing.T) {
	t.Parallel()
	const description, timeLog = "iso:11783:-10:device_description:protobuf", "iso:11783:-10:time_log:protobuf"
	w := newWorld(t)
	types := []string{description, timeLog}
	sender := w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "tractor", Send: types})
	w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "office", Receive: types, Subscribe: types})
	text := w.head() + w.natsSink() + fmt.Sprintf("devices: {kafka: {brokers: %q}}\n", kafkatest.Start(t).Addr()) + `routes:
  - {name: records, from: {gateway: all}, transform: {records: {}}, to: {sink: farm, topic: records}}
`
	for i, message := range []gatewaytest.SendRequest{
		{MessageType: description, Payload: farmdatatest.Description(t)}, {MessageType: timeLog, Payload: farmdatatest.TimeLog(t, 1)},
	} {
		b := w.start(text)
		message.From = sender.ID
		testkit.Must(w.gate.Send(message))(t)
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		testkit.NoError(t, w.gate.WaitConfirmed(ctx, i+1))
		cancel()
		b.mustStop()
	}
	stored := w.read("agrimill.records")
	if len(stored) != 1 || !bytes.Contains(stored[0].Data, []byte(`"0043_DET-1":9,`)) {
		t.Errorf("%d messages", len(stored))
	}
}
