package farm_test

import (
	"bytes"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/farmdata/isoxml"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router/farm"
)

func newEFDI(t *testing.T, config farm.EFDIConfig) message.HandlerFunc {
	t.Helper()
	return testkit.Must(farm.NewTransform(farm.TransformConfig{EFDI: &config}))(t)
}

// readings are the records of a log as text, the times as instants, with what their columns say.
func readings(t *testing.T, log *farmdata.Log, location *time.Location) (lines []string) {
	t.Helper()
	records, findings := farmdatatest.Read(t, log)
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	for _, r := range records {
		at := r.Stamp.Wall
		if r.Stamp.Local {
			at = time.Date(at.Year(), at.Month(), at.Day(), at.Hour(), at.Minute(), at.Second(), at.Nanosecond(), location)
		}
		var line strings.Builder
		line.WriteString(at.UTC().Format(time.RFC3339Nano))
		line.WriteString(strconv.FormatFloat(r.Position.North, 'g', -1, 64) + " " + strconv.FormatFloat(r.Position.East, 'g', -1, 64))
		for _, v := range r.Values {
			line.WriteString(" " + v.Column.DDI.String() + v.Column.ElementID + v.Column.Name + v.Column.Unit + v.Column.Device + strconv.FormatFloat(v.Scaled(), 'g', -1, 64))
		}
		lines = append(lines, line.String())
	}
	return lines
}

// What TaskData says, the EFDI that is made of it says, too, in as many parts as it takes, to whoever has read the description
// before; and a repetition makes the same.
func TestEFDI(t *testing.T) {
	const records = 2000
	archive := farmdatatest.Archive(t, records)
	read := testkit.Must(isoxml.Open(t.Context(), bytes.NewReader(archive), int64(len(archive)), isoxml.Config{}))(t)
	location := testkit.Must(time.LoadLocation("Europe/Berlin"))(t)
	want := readings(t, read.Sets[0].Logs[0], location)
	transform := newEFDI(t, farm.EFDIConfig{Location: "Europe/Berlin", PartBytes: 20_000})
	var made [2][]string
	for i := range made {
		msg := received(archive)
		msg.Metadata.Set(gateway.KeyFilename, "acre.zip")
		msg.Metadata.Set(gateway.KeyTeamsetContextID, "of the archive")
		out, err := transform(msg)
		if err != nil || len(out) < 4 {
			t.Fatalf("%d messages, %v", len(out), err)
		}
		read := newRecords(t, newDevices(t, farm.DevicesConfig{Wait: time.Hour}))
		if described, err := read(out[0]); err != nil || len(described) > 0 || out[0].Metadata[gateway.KeyMessageType] != farm.TypeDeviceDescription {
			t.Fatalf("%d messages of the description, %v", len(described), err)
		}
		var got []string
		for n, m := range out[1:] {
			if len(m.Payload) > 20_000 || m.Metadata[gateway.KeyMessageType] != farm.TypeTimeLog || m.Metadata[farm.KeyPart] != strconv.Itoa(n) ||
				m.Metadata[gateway.KeyFilename] != "acre-TLG00001-"+strconv.Itoa(n)+".bin" || m.Metadata[farm.KeyTask] != "TSK1" ||
				m.Metadata[gateway.KeyTeamsetContextID] != out[0].Metadata[gateway.KeyTeamsetContextID] || m.Metadata[gateway.KeyTeamsetContextID] == "of the archive" {
				t.Errorf("part %d: %d bytes, %v", n, len(m.Payload), m.Metadata)
			}
			got = append(got, logOf(t, out[0].Payload, m.Payload, location)...)
			decoded, err := read(m)
			if err != nil || len(decoded) == 0 || decoded[0].Metadata[farm.KeyDevices] != farm.DevicesDescribed {
				t.Errorf("part %d: %d messages of records, %v", n, len(decoded), err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d records, want %d; the first are %q and %q", len(got), len(want), got[0], want[0])
		}
		for _, m := range out {
			made[i] = append(made[i], m.UUID, m.Metadata[gateway.KeyTeamsetContextID])
		}
	}
	if !slices.Equal(made[0], made[1]) {
		t.Errorf("a repetition makes other messages: %v", made)
	}
}

// Other devices are another teamset, and so are those of another receiver.
func TestEFDITeamsets(t *testing.T) {
	transform := newEFDI(t, farm.EFDIConfig{})
	seen := map[string]string{}
	other := farmdatatest.Zip(t, "TASKDATA.XML", strings.Replace(farmdatatest.TaskDataXML, "Working width", "Width", 1))
	for name, msg := range map[string]*message.Message{"one": received(farmdatatest.Archive(t, 1)), "other devices": received(other), "another receiver": received(other)} {
		if name == "another receiver" {
			msg.Metadata.Set(gateway.KeyReceivingEndpointID, "another")
		}
		out, err := transform(msg)
		if err != nil || len(out) == 0 {
			t.Fatalf("%d messages, %v", len(out), err)
		}
		team := out[0].Metadata[gateway.KeyTeamsetContextID]
		if before := seen[team]; before != "" || team == "" {
			t.Errorf("%s has the teamset %q of %q", name, team, before)
		}
		seen[team] = name
	}
}

// uuids are those of the messages that a transform makes of one.
func uuids(t *testing.T, transform message.HandlerFunc, msg *message.Message) (ids []string) {
	t.Helper()
	out := testkit.Must(transform(msg))(t)
	for _, m := range out {
		ids = append(ids, m.UUID)
	}
	return ids
}

// Time logs that differ have different UUIDs: those of another time zone, of other parts, and of another teamset where there are
// no devices to make one of.
func TestEFDIUUIDs(t *testing.T) {
	archive := farmdatatest.Archive(t, 100)
	seen := map[string]string{}
	for name, config := range map[string]farm.EFDIConfig{"UTC": {}, "Berlin": {Location: "Europe/Berlin"}, "parts": {PartBytes: 1000}} {
		for _, id := range uuids(t, newEFDI(t, config), received(archive))[1:] { // the description is the same
			if before := seen[id]; before != "" {
				t.Errorf("%s has a UUID of %s", name, before)
			}
			seen[id] = name
		}
	}
	if !slices.Equal(uuids(t, newEFDI(t, farm.EFDIConfig{}), received(archive)),
		uuids(t, newEFDI(t, farm.EFDIConfig{Location: "UTC", PartBytes: farm.DefaultPartBytes}), received(archive))) {
		t.Error("the defaults make others than what they are")
	}
	bare := farmdatatest.Zip(t, "TLG00001.XML", farmdatatest.LogHeader, "TLG00001.BIN", string(farmdatatest.Log(3)))
	for _, team := range []string{"one", "two"} {
		msg := received(bare)
		msg.Metadata.Set(gateway.KeyTeamsetContextID, team)
		out, err := newEFDI(t, farm.EFDIConfig{})(msg)
		if err != nil || len(out) != 1 || out[0].Metadata[gateway.KeyTeamsetContextID] != team || seen[out[0].UUID] != "" {
			t.Errorf("without devices: %d messages, %v, %v", len(out), err, out)
		}
		seen[out[0].UUID] = team
	}
}

// What metadata say about the message received alone, those of the messages made of it do not.
func TestEFDIMetadata(t *testing.T) {
	for event, want := range map[string]string{"": "", string(gateway.EventMessageReceived): "of the archive"} {
		msg := received(farmdatatest.Archive(t, 100))
		msg.Metadata.Set(gateway.KeyContextID, "of the archive")
		msg.Metadata.Set(gateway.KeyFilename, strings.Repeat("x", 100)+".zip")
		msg.Metadata.Set(farm.KeyReadable, "no")
		msg.Metadata.Set(farm.KeyReason, "limit")
		if event != "" {
			msg.Metadata.Set(gateway.KeyEventType, event)
		}
		out, err := newEFDI(t, farm.EFDIConfig{PartBytes: 1000})(msg)
		if err != nil || len(out) < 3 {
			t.Fatalf("%d messages, %v", len(out), err)
		}
		names := map[string]bool{}
		for _, m := range out {
			names[m.Metadata[gateway.KeyFilename]] = true
			if m.Metadata[gateway.KeyContextID] != want || m.Metadata[farm.KeyReadable] != "" || m.Metadata[farm.KeyReason] != "" ||
				len(m.Metadata[gateway.KeyFilename]) > 100 || !strings.HasSuffix(m.Metadata[gateway.KeyFilename], ".bin") {
				t.Errorf("%q: got %v", event, m.Metadata)
			}
		}
		if len(names) != len(out) {
			t.Errorf("%d names of %d messages", len(names), len(out))
		}
	}
}

// EFDI passes at once: nobody needs its devices here. Its descriptions are learned for others.
func TestEFDIDoesNotWait(t *testing.T) {
	devices := newDevices(t, farm.DevicesConfig{Wait: time.Hour})
	transform := newEFDI(t, farm.EFDIConfig{ReadConfig: farm.ReadConfig{Devices: devices}})
	for _, kind := range []string{farm.TypeTimeLog, ""} {
		log := received(farmdatatest.TimeLog(t, 3))
		log.Metadata.Set(gateway.KeyMessageType, kind)
		if out, err := transform(log); err != nil || len(out) != 1 || out[0] != log || devices.Waiting() > 0 {
			t.Errorf("a time log of the type %q: %d messages, %v, %d wait", kind, len(out), err, devices.Waiting())
		}
	}
	testkit.Must(transform(received(farmdatatest.Description(t))))(t)
	if _, state, err := devices.Lookup(received(nil)); err != nil || state != farm.DevicesDescribed {
		t.Errorf("got %s, %v, want a description", state, err)
	}
}

// A log of which nothing can be read is told by the description.
func TestEFDIOfUnreadableLog(t *testing.T) {
	for name, files := range map[string][]string{
		"cut":       {"TLG00001.XML", farmdatatest.LogHeader, "TLG00001.BIN", string(farmdatatest.Log(1)[:10])},
		"no header": {"TLG00001.BIN", string(farmdatatest.Log(1))},
	} {
		out, err := newEFDI(t, farm.EFDIConfig{})(received(farmdatatest.Zip(t, append([]string{"TASKDATA.XML", farmdatatest.TaskDataXML}, files...)...)))
		if err != nil || len(out) != 1 || out[0].Metadata[farm.KeyFindings] != "1" {
			t.Errorf("%s: %d messages, %v, %v", name, len(out), err, out)
		}
	}
}

// An ID of a megabyte, once in the payload, that a record has many times is not written many times.
func TestEFDIOfHugeRecords(t *testing.T) {
	id := strings.Repeat("x", 1<<20)
	log := farmdatatest.Log(1)
	values := len(log) - 11 // behind the number of values
	log[values] = 255
	for range 253 {
		log = append(log, log[values+1:values+6]...)
	}
	archive := farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", strings.Replace(farmdatatest.LogHeader, "DET-1", id, 1), "TLG00001.BIN", string(log))
	var before, after runtime.MemStats
	transform := newEFDI(t, farm.EFDIConfig{})
	runtime.ReadMemStats(&before)
	out, err := transform(received(archive))
	runtime.ReadMemStats(&after)
	if err != nil || len(out) != 1 || !strings.Contains(out[0].Metadata[farm.KeyReason], "limit: a record would take more") {
		t.Errorf("%d messages, %v", len(out), err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("took %d bytes", took)
	}
}

// What is EFDI passes, and so does what cannot be read, or would be too much.
func TestEFDIOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		config  farm.EFDIConfig
		payload []byte
		reason  string
	}{
		"a time log":          {farm.EFDIConfig{}, farmdatatest.TimeLog(t, 3), ""},
		"a description":       {farm.EFDIConfig{}, farmdatatest.Description(t), ""},
		"a picture":           {farm.EFDIConfig{}, []byte("a picture"), "neither"},
		"too much":            {farm.EFDIConfig{MaxOutput: 1000}, farmdatatest.Archive(t, 100), "limit: it would take more than 1000 bytes"},
		"one record too much": {farm.EFDIConfig{PartBytes: 40}, farmdatatest.Archive(t, 1), "limit: a record would take more than 40 bytes"},
		"too long":            {farm.EFDIConfig{ReadConfig: farm.ReadConfig{MaxTime: 1}}, farmdatatest.Archive(t, 1000), "limit: reading takes longer"},
	} {
		msg := received(test.payload)
		out, err := newEFDI(t, test.config)(msg)
		if err != nil || len(out) != 1 || out[0] != msg || !strings.Contains(msg.Metadata[farm.KeyReason], test.reason) || (test.reason == "") != (msg.Metadata[farm.KeyReason] == "") {
			t.Errorf("%s: %d messages, %v, %v", name, len(out), err, msg.Metadata)
		}
	}
	cut := farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", farmdatatest.LogHeader, "TLG00001.BIN", string(farmdatatest.Log(3)[:50]))
	out, err := newEFDI(t, farm.EFDIConfig{})(received(cut))
	if err != nil || len(out) != 2 || out[1].Metadata[farm.KeyFindings] != "1" {
		t.Errorf("of a log that is cut: %d messages, %v", len(out), err)
	}
	bad := farm.TransformConfig{Summary: &farm.ReadConfig{}, EFDI: &farm.EFDIConfig{Location: "Nowhere/At_all", PartBytes: -1, MaxOutput: -1}}
	for _, field := range []string{"EFDI cannot be combined", "EFDI.Location", "EFDI.PartBytes", "EFDI.MaxOutput"} {
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("got %v, want a mistake of %s", err, field)
		}
	}
}

// logOf reads a time log with the description of its devices.
func logOf(t *testing.T, description, log []byte, location *time.Location) []string {
	t.Helper()
	devices := testkit.Must(efdi.Open(t.Context(), bytes.NewReader(description), int64(len(description)), efdi.TaskData, efdi.Config{}))(t)
	set := testkit.Must(efdi.Open(t.Context(), bytes.NewReader(log), int64(len(log)), efdi.TimeLog, efdi.Config{Devices: devices.Devices}))(t)
	return readings(t, set.Logs[0], location)
}
