package farm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/farmfile"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func received(payload []byte) *message.Message {
	msg := message.NewMessage("received", payload)
	msg.Metadata.Set(gateway.KeyTenantID, "farm-1")
	msg.Metadata.Set(gateway.KeyReceivingEndpointID, "endpoint-1")
	return msg
}

func selects(t testing.TB, config farm.FilterConfig, msg *message.Message) bool {
	t.Helper()
	f := testkit.Must(farm.NewFilter(config))(t)
	return testkit.Must(f.Select(msg))(t)
}

func TestFilter(t *testing.T) {
	here := &farm.Box{South: 52, West: 7, North: 53, East: 8}
	const archive, timeLog = 1, 2
	for name, test := range map[string]struct {
		config farm.FilterConfig
		match  int // of the two forms
	}{
		"nothing":               {farm.FilterConfig{}, archive | timeLog},
		"machine by NAME":       {farm.FilterConfig{Machine: []string{"a00086000de02812"}}, archive},
		"machine by part of it": {farm.FilterConfig{Machine: []string{"a0128*", "a00086000d*"}}, archive},
		"machine by designator": {farm.FilterConfig{Machine: []string{"mow?r"}}, archive},
		"another machine":       {farm.FilterConfig{Machine: []string{"mow"}}, 0},
		"task":                  {farm.FilterConfig{Task: []string{"tsk1"}}, archive},
		"task by designator":    {farm.FilterConfig{Task: []string{"Mow*"}}, archive},
		"another task":          {farm.FilterConfig{Task: []string{"TSK2"}}, 0},
		"field":                 {farm.FilterConfig{Field: []string{"long acre"}}, archive},
		"farm":                  {farm.FilterConfig{Farm: []string{"FRM1"}}, archive},
		"customer":              {farm.FilterConfig{Customer: []string{"Ada Miller"}}, archive},
		"customer by name":      {farm.FilterConfig{Customer: []string{"miller"}}, archive},
		"another customer":      {farm.FilterConfig{Customer: []string{"Ada"}}, 0},
		"DDI":                   {farm.FilterConfig{DDI: []string{"8d"}}, archive | timeLog},
		"one of the DDIs":       {farm.FilterConfig{DDI: []string{"0001", "0043"}}, archive | timeLog},
		"another DDI":           {farm.FilterConfig{DDI: []string{"0044"}}, 0},
		"span":                  {farm.FilterConfig{From: "2026-05-04T00:00:00Z", To: "2026-05-05T00:00:00Z"}, archive | timeLog},
		"span of local time":    {farm.FilterConfig{From: "2026-05-04T06:00:00", To: "2026-05-04T07:00:00"}, archive | timeLog},
		"open span":             {farm.FilterConfig{From: "2026-05-04T06:30:09Z"}, archive | timeLog},
		"after the last record": {farm.FilterConfig{From: "2026-05-04T06:30:10Z"}, 0},
		"the end is outside":    {farm.FilterConfig{To: "2026-05-04T06:30:00Z"}, 0},
		"box":                   {farm.FilterConfig{Box: here}, archive | timeLog},
		"box of the field only": {farm.FilterConfig{Box: &farm.Box{South: 52.5009, West: 7.5019, North: 52.6, East: 7.6}}, archive},
		"another box":           {farm.FilterConfig{Box: &farm.Box{South: 53, West: 7, North: 54, East: 8}}, 0},
		"box around the world":  {farm.FilterConfig{Box: &farm.Box{South: 52, West: 7, North: 53, East: 6}}, archive | timeLog},
		"box across the date":   {farm.FilterConfig{Box: &farm.Box{South: 52, West: 170, North: 53, East: -170}}, 0},
		"all of them": {farm.FilterConfig{Machine: []string{"mower"}, Task: []string{"TSK1"}, Field: []string{"PFD1"}, Farm: []string{"FRM1"},
			Customer: []string{"CTR1"}, DDI: []string{"0043"}, From: "2026-05-04T00:00:00Z", Box: here}, archive},
		"all of them but one": {farm.FilterConfig{Machine: []string{"mower"}, DDI: []string{"0044"}, Box: here}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for form, payload := range map[int][]byte{archive: farmdatatest.Archive(t, 10), timeLog: farmdatatest.TimeLog(t, 10)} {
				if got, want := selects(t, test.config, received(payload)), test.match&form != 0; got != want {
					t.Errorf("form %d: got %t, want %t", form, got, want)
				}
				// Whatever else it is, it is readable.
				test.config.Unreadable = farm.UnreadableMatch
				if got, want := selects(t, test.config, received(payload)), test.match&form != 0; got != want {
					t.Errorf("form %d, unreadable payloads match: got %t, want %t", form, got, want)
				}
			}
		})
	}
}

// A DDI is found in each of the places that have a value of it, and in none of those that only describe it, such as the header of a
// log that no record has a value of.
func TestFilterFindsDDIs(t *testing.T) {
	const log = `<TSK A="TSK1" G="4"><TLG A="TLG00001" C="1"/></TSK>`
	const width = `<DLV A="0043" B="" C="DET1"/><DLV A="008D" B="" C="DET1"/>`
	for name, test := range map[string]struct {
		xml, header string
		match       bool
	}{
		"process data": {`<DVC A="DVC1"><DPD A="1" B="0007" C="1" D="1"/></DVC>`, "", false},
		"property":     {`<DVC A="DVC1"><DPT A="1" B="0007" C="5"/></DVC>`, "", false},
		"product":      {`<PDT A="PDT1" B="Urea" D="0007"/>`, "", false},
		"total":        {`<TSK A="TSK1" G="4"><TIM A="2026-05-04T06:30:00" D="4"><DLV A="0007" B="5" C="DET1"/></TIM></TSK>`, "", true},
		"zone":         {`<TSK A="TSK1" G="1"><TZN A="1"><PDV A="0007" B="5"/></TZN></TSK>`, "", true},
		"zone without": {`<TSK A="TSK1" G="1"><TZN A="1"><PDV A="0007"/></TZN></TSK>`, "", false},
		"cells":        {`<TSK A="TSK1" G="1"><TZN A="1"><PDV A="0007"/></TZN><GRD A="52" B="8" C="0.1" D="0.1" E="1" F="1" G="GRD00001" I="2" J="1"/></TSK>`, "", true},
		"allocation":   {`<TSK A="TSK1" G="1"><PAN A="PDT1" B="0007" C="5"/></TSK>`, "", true},
		"log":          {log, `<DLV A="0043" B="" C="DET1"/><DLV A="0007" B="" C="DET1"/>`, true},
		"log, never":   {log, width + `<DLV A="0007" B="" C="DET1"/>`, false},
		"header":       {log, width + `<DLV A="0007" B="5" C="DET1"/>`, true},
		"nowhere":      {log, width, false},
	} {
		files := []string{"TASKDATA.XML", `<ISO11783_TaskData VersionMajor="4">` + test.xml + `</ISO11783_TaskData>`}
		if test.header != "" {
			files = append(files, "TLG00001.XML", `<TIM A="" D="4"><PTN A="" B="" D=""/>`+test.header+`</TIM>`, "TLG00001.BIN", string(farmdatatest.Log(2)))
		}
		if got := selects(t, farm.FilterConfig{DDI: []string{"0007"}}, received(farmdatatest.Zip(t, files...))); got != test.match {
			t.Errorf("%s: got %t, want %t", name, got, test.match)
		}
	}
}

// The span of a task is that of its times, as its clock showed them.
func TestFilterByTimesOfTasks(t *testing.T) {
	for name, test := range map[string]struct {
		time, from, to string
		match          bool
	}{
		"local, of an offset":        {`A="2026-05-04T06:30:00+02:00" B="2026-05-04T07:30:00+02:00"`, "2026-05-04T06:00:00", "2026-05-04T06:45:00", true},
		"local, two hours earlier":   {`A="2026-05-04T06:30:00+02:00" B="2026-05-04T07:30:00+02:00"`, "2026-05-04T04:00:00", "2026-05-04T05:45:00", false},
		"an instant of an offset":    {`A="2026-05-04T06:30:00+02:00" B="2026-05-04T07:30:00+02:00"`, "2026-05-04T04:00:00Z", "2026-05-04T05:45:00Z", true},
		"within a duration":          {`A="2026-05-04T06:30:00" C="36000"`, "2026-05-04T12:00:00", "", true},
		"after a duration":           {`A="2026-05-04T06:30:00" C="36000"`, "2026-05-04T16:30:01", "", false},
		"an end and a duration":      {`A="2026-05-04T06:30:00" B="2026-05-04T07:30:00" C="36000"`, "2026-05-04T12:00:00", "", false},
		"an end without a beginning": {`B="2026-05-04T07:30:00"`, "2026-05-04T07:00:00", "2026-05-04T08:00:00", true},
		"after such an end":          {`B="2026-05-04T07:30:00"`, "2026-05-04T08:00:00", "", false},
		"a duration before an end":   {`B="2026-05-04T07:30:00" C="3600"`, "2026-05-04T06:00:00", "2026-05-04T07:00:00", true},
		"a beginning without an end": {`A="2026-05-04T06:30:00"`, "2026-05-04T12:00:00", "", false},
	} {
		payload := farmdatatest.Zip(t, "TASKDATA.XML", `<ISO11783_TaskData VersionMajor="4"><TSK A="TSK1" G="4"><TIM `+test.time+` D="4"/></TSK></ISO11783_TaskData>`)
		if got := selects(t, farm.FilterConfig{From: test.from, To: test.to}, received(payload)); got != test.match {
			t.Errorf("%s: got %t, want %t", name, got, test.match)
		}
	}
}

// A boundary or a grid across the 180th meridian is where it is, and not around the world.
func TestFilterAcrossTheDateLine(t *testing.T) {
	boxOf := func(west, east float64) *farm.Box { return &farm.Box{South: -18, West: west, North: -16, East: east} }
	for name, test := range map[string]struct {
		box  *farm.Box
		want map[string]bool
	}{
		"around Greenwich":   {boxOf(-1, 1), map[string]bool{}},
		"west of the line":   {boxOf(179, 180), map[string]bool{"across": true, "west": true}},
		"east of the line":   {boxOf(-180, -179), map[string]bool{"across": true, "east": true}},
		"across the line":    {boxOf(179, -179), map[string]bool{"across": true, "west": true, "east": true}},
		"between":            {boxOf(-178, 178), map[string]bool{}},
		"the world":          {boxOf(-180, 180), map[string]bool{"across": true, "west": true, "east": true}},
		"of another country": {&farm.Box{South: 50, West: 179, North: 60, East: -179}, map[string]bool{}},
	} {
		for field, corners := range map[string][2]string{"across": {"179.9", "-179.9"}, "west": {"179.8", "179.9"}, "east": {"-179.9", "-179.8"}} {
			var points string
			for _, c := range [][2]string{{"-17", corners[0]}, {"-17", corners[1]}, {"-17.1", corners[1]}, {"-17.1", corners[0]}} {
				points += `<PNT A="2" C="` + c[0] + `" D="` + c[1] + `"/>`
			}
			size := map[bool]string{false: "0.1", true: "0.2"}[field == "across"]
			for form, xml := range map[string]string{
				"field": `<PFD A="PFD1"><PLN A="1"><LSG A="1">` + points + `</LSG></PLN></PFD>`,
				"grid":  `<TSK A="TSK1"><GRD A="-17.1" B="` + corners[0] + `" C="0.1" D="` + size + `" E="1" F="1" G="GRD00001" I="1"/></TSK>`,
			} {
				payload := farmdatatest.Zip(t, "TASKDATA.XML", `<ISO11783_TaskData VersionMajor="4">`+xml+`</ISO11783_TaskData>`)
				if got := selects(t, farm.FilterConfig{Box: test.box}, received(payload)); got != test.want[field] {
					t.Errorf("box %s, %s %s the line: got %v, want %v", name, form, field, got, test.want[field])
				}
			}
		}
	}
}

// What cannot be read, or not far enough, is no match unless that is wished; it is no error, and what
// the route makes of it says why.
func TestUnreadable(t *testing.T) {
	archive := farmdatatest.Archive(t, 10)
	elsewhere := received(nil)
	elsewhere.Metadata.Set(gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck)
	elsewhere.Metadata.Set(gateway.KeyPayloadReference, "somewhere")
	cut := farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", farmdatatest.LogHeader, "TLG00001.BIN", string(farmdatatest.Log(3)[:50]))
	for name, test := range map[string]struct {
		msg    *message.Message
		config farm.FilterConfig
		reason string
	}{
		"no farm data": {received([]byte("a picture")), farm.FilterConfig{Machine: []string{"x"}}, "neither TaskData nor EFDI"},
		"nothing":      {received(nil), farm.FilterConfig{}, "neither TaskData nor EFDI"},
		"too large":    {received(archive), farm.FilterConfig{ReadConfig: farm.ReadConfig{MaxBytes: 10}}, "larger than 10 bytes"},
		"too long":     {received(farmdatatest.TimeLog(t, 1000)), farm.FilterConfig{DDI: []string{"1"}, ReadConfig: farm.ReadConfig{MaxTime: 1}}, "takes longer than 1ns"},
		"too long to open": {received(farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML)),
			farm.FilterConfig{Machine: []string{"a0*"}, ReadConfig: farm.ReadConfig{MaxTime: 1}}, "takes longer than 1ns"},
		"elsewhere": {elsewhere, farm.FilterConfig{}, "nothing to open it with"},
		"a cut log": {received(cut), farm.FilterConfig{DDI: []string{"0044"}}, "TLG00001.BIN: cut"},
	} {
		t.Run(name, func(t *testing.T) {
			if selects(t, test.config, test.msg) {
				t.Error("it matches")
			}
			test.config.Unreadable = farm.UnreadableMatch
			f := testkit.Must(farm.NewFilter(test.config))(t)
			if ok, err := f.Select(test.msg); !ok || err != nil {
				t.Errorf("got %t, %v, want a match", ok, err)
			}
			out, err := f.Middleware(func(msg *message.Message) ([]*message.Message, error) { return []*message.Message{msg.Copy()}, nil })(test.msg)
			if err != nil || len(out) != 1 || out[0].Metadata[farm.KeyReadable] != "no" || !strings.Contains(out[0].Metadata[farm.KeyReason], test.reason) {
				t.Errorf("got %+v, %v, want the reason %q", out[0].Metadata, err, test.reason)
			}
			if test.msg.Metadata[farm.KeyReadable] != "" {
				t.Error("the filter wrote into the message that it looked at")
			}
		})
	}
	// What was found decides, whatever is lost beside it.
	for _, config := range []farm.FilterConfig{{DDI: []string{"0043"}}, {Machine: []string{"mower"}}} {
		if !selects(t, config, received(cut)) {
			t.Errorf("%+v is not found before the damage", config)
		}
	}
	// A damaged binary log hides no machine.
	if selects(t, farm.FilterConfig{Machine: []string{"harvester"}, Unreadable: farm.UnreadableMatch}, received(cut)) {
		t.Error("a machine may be in a cut log")
	}
}

// store is where payloads are that are not in their messages.
type store struct {
	mu      sync.Mutex
	payload []byte
	err     error
	opened  int
}

func (s *store) Open(context.Context, string) (io.ReadCloser, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	if s.err != nil {
		return nil, 0, s.err
	}
	return io.NopCloser(bytes.NewReader(s.payload)), -1, nil
}

func checkedIn() *message.Message {
	msg := received(nil)
	msg.Metadata.Set(gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck)
	msg.Metadata.Set(gateway.KeyPayloadReference, "a")
	return msg
}

// A payload in the claim check is read there. If that is down, the message waits; it is not to blame.
func TestPayloadElsewhere(t *testing.T) {
	s := &store{payload: farmdatatest.Archive(t, 3), err: errors.New("connection refused")}
	read := farm.ReadConfig{Payloads: s}
	f := testkit.Must(farm.NewFilter(farm.FilterConfig{Machine: []string{"mower"}, ReadConfig: read}))(t)
	records := testkit.Must(farm.NewRecords(farm.RecordsConfig{ReadConfig: read}))(t)
	if _, err := f.Select(checkedIn()); router.ClassOf(err) != router.ClassOutage {
		t.Errorf("the filter: %v, want an outage", err)
	}
	if _, err := records(checkedIn()); router.ClassOf(err) != router.ClassOutage {
		t.Errorf("the transform: %v, want an outage", err)
	}
	s.err = nil
	if ok, err := f.Select(checkedIn()); !ok || err != nil {
		t.Errorf("got %t, %v, want a match", ok, err)
	}
	out, err := records(checkedIn())
	if err != nil || len(out) != 1 || out[0].Metadata[gateway.KeyPayloadMode] != "" || out[0].Metadata[gateway.KeyPayloadReference] != "" {
		t.Errorf("got %+v, %v, want one message with its own payload", out, err)
	}
	small := testkit.Must(farm.NewFilter(farm.FilterConfig{ReadConfig: farm.ReadConfig{Payloads: s, MaxBytes: 100}}))(t)
	if ok, err := small.Select(checkedIn()); ok || err != nil {
		t.Errorf("got %t, %v, want no match of what is too large", ok, err)
	}
}

// Under a Router the payload is read once for a message, however often the sink fails, and a filter that may not match
// drops and acknowledges.
func TestRouterReadsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{payload: farmdatatest.Archive(t, 3)}
		f := testkit.Must(farm.NewFilter(farm.FilterConfig{Machine: []string{"mower"}, ReadConfig: farm.ReadConfig{Payloads: s}}))(t)
		source := gochannel.NewGoChannel(gochannel.Config{}, nil)
		failures := 5
		to := sinks.FromPublisher("broker", publisherFunc(func(string, ...*message.Message) error {
			if failures--; failures >= 0 {
				return router.Outage(errors.New("down"))
			}
			return nil
		}), sinks.PublisherConfig{})
		r, err := router.New(router.Config{Poison: to}, nil)
		if err == nil {
			err = r.Add(router.Route{Name: "farm", From: source, Topic: "data", To: to, ToTopic: "data", Filter: f.Select,
				Middleware: []message.HandlerMiddleware{f.Middleware}})
		}
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- r.Run(ctx) }()
		<-r.Running()
		match, other := checkedIn(), received([]byte("a picture"))
		match.UUID, other.UUID = "match", "other"
		testkit.NoError(t, source.Publish("data", match, other))
		time.Sleep(time.Hour)
		synctest.Wait()
		health := r.Health()[0]
		if s.opened != 1 || failures >= 0 || health.Delivered != 1 || health.Filtered != 1 {
			t.Errorf("opened %d times, %d failures left, health %+v; want 1, none, one delivered and one filtered", s.opened, failures, health)
		}
		stop()
		testkit.NoError(t, <-result)
	})
}

type publisherFunc func(topic string, messages ...*message.Message) error

func (f publisherFunc) Publish(topic string, messages ...*message.Message) error {
	return f(topic, messages...)
}
func (publisherFunc) Close() error { return nil }

func TestRecords(t *testing.T) {
	records := testkit.Must(farm.NewRecords(farm.RecordsConfig{BatchRecords: 2}))(t)
	msg := received(farmdatatest.Archive(t, 5))
	msg.Metadata.Set(gateway.KeyMessageType, "iso:11783:-10:taskdata:zip")
	msg.Metadata.Set(gateway.KeyFilename, "long acre.zip")
	out, err := records(msg)
	if err != nil || len(out) != 3 {
		t.Fatalf("%d messages, %v, want 3", len(out), err)
	}
	const first = `{"log":"TLG00001","task":"TSK1","path":"TASKDATA","part":0,"records":2,"columns":{` +
		`"0043_DET-1":{"ddi":"0043","name":"Working width","unit":"m","element":"Body","device":"Mower"},` +
		`"008D_DET-1":{"ddi":"008D","name":"Actual work state","unit":"","element":"Body","device":"Mower"}}}
{"record":0,"time":"2026-05-04T06:30:00","north":52.5001,"east":7.5001,"status":4,"values":{"0043_DET-1":9,"008D_DET-1":0}}
{"record":1,"time":"2026-05-04T06:30:01","north":52.50011,"east":7.50011,"status":4,"values":{"0043_DET-1":9,"008D_DET-1":1}}
`
	if got := string(out[0].Payload); got != first {
		t.Errorf("got\n%s\nwant\n%s", got, first)
	}
	for key, want := range map[string]string{gateway.KeyTenantID: "farm-1", gateway.KeyMessageType: farm.TypeRecords,
		farm.KeySourceType: "iso:11783:-10:taskdata:zip", gateway.KeyFilename: "long acre-TLG00001-2.jsonl", farm.KeyLog: "TLG00001",
		farm.KeyTask: "TSK1", farm.KeyPart: "2", farm.KeyRecords: "1", farm.KeyReadable: ""} {
		if got := out[2].Metadata[key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	// A repetition makes the same messages with the same IDs; another receiver has others.
	again := testkit.Must(records(received(farmdatatest.Archive(t, 5))))(t)
	elsewhere := received(farmdatatest.Archive(t, 5))
	elsewhere.Metadata.Set(gateway.KeyReceivingEndpointID, "endpoint-2")
	others := testkit.Must(records(elsewhere))(t)
	ids := map[string]bool{}
	for i := range out {
		if out[i].UUID != again[i].UUID || !bytes.Equal(out[i].Payload, again[i].Payload) {
			t.Errorf("message %d differs when it is made again", i)
		}
		ids[out[i].UUID], ids[others[i].UUID] = true, true
	}
	if len(ids) != 6 {
		t.Errorf("%d different IDs, want 6", len(ids))
	}
	if msg.Metadata[farm.KeySourceType] != "" || msg.Metadata[gateway.KeyFilename] != "long acre.zip" {
		t.Error("the metadata of the message received changed")
	}
}

// A value that the header of a log has once for all records is a value of each record that has none of its own.
func TestRecordsHaveValuesOfTheHeader(t *testing.T) {
	records := testkit.Must(farm.NewRecords(farm.RecordsConfig{BatchRecords: 1}))(t)
	header := strings.Replace(farmdatatest.LogHeader, `</TIM>`, `<DLV A="0086" B="-250" C="DET-1"/><DLV A="008D" B="3" C="DET-1"/></TIM>`, 1)
	out, err := records(received(farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", header, "TLG00001.BIN", string(farmdatatest.Log(2)))))
	if err != nil || len(out) != 2 {
		t.Fatalf("%d messages, %v, want one for each record", len(out), err)
	}
	const want = `{"log":"TLG00001","task":"TSK1","path":"","part":1,"records":1,"columns":{` +
		`"0043_DET-1":{"ddi":"0043","name":"Working width","unit":"m","element":"Body","device":"Mower"},` +
		`"0086_DET-1":{"ddi":"0086","name":"Device element offset X","unit":"mm","element":"Body","device":"Mower"},` +
		`"008D_DET-1":{"ddi":"008D","name":"Actual work state","unit":"","element":"Body","device":"Mower"}}}
{"record":1,"time":"2026-05-04T06:30:01","north":52.50011,"east":7.50011,"status":4,"values":{"0086_DET-1":-250,"0043_DET-1":9,"008D_DET-1":1}}
`
	if got := string(out[1].Payload); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// What the receiver says about a position is in the record: zero is a value, and all bits of a byte are none.
func TestRecordsHaveWhatTheReceiverSays(t *testing.T) {
	t.Parallel()
	records := testkit.Must(farm.NewRecords(farm.RecordsConfig{}))(t)
	const header = `<TIM A="" D="4"><PTN A="" B="" C="" D="" E="1.5" F="" G=""/></TIM>`
	record := func(hdop, satellites byte) string {
		return string(farmdatatest.Log(1)[:14]) + string([]byte{0xFB, 0xFF, 0xFF, 0xFF, 4, hdop, 0, satellites, 0})
	}
	out, err := records(received(farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", header, "TLG00001.BIN", record(12, 0)+record(0, 255))))
	if err != nil || len(out) != 1 {
		t.Fatalf("%d messages, %v, want one", len(out), err)
	}
	const want = `{"record":0,"time":"2026-05-04T06:30:00","north":52.5001,"east":7.5001,"up":-0.005,"status":4,"pdop":1.5,"hdop":1.2,"satellites":0,"values":{}}
{"record":1,"time":"2026-05-04T06:30:00","north":52.5001,"east":7.5001,"up":-0.005,"status":4,"pdop":1.5,"hdop":0,"values":{}}
`
	if _, got, _ := bytes.Cut(out[0].Payload, []byte("\n")); string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	list := farmdatatest.Marshal(t, &efdipb.GPSList{Entry: []*efdipb.GPSEntry{{North: 52, East: 7, Status: 4, FieldStatus: 2}}})
	out, err = records(received(list))
	if err != nil || len(out) != 1 || !strings.Contains(string(out[0].Payload), `"status":4,"field_status":2,`) {
		t.Errorf("a list of positions: %v, %d messages, the first %s", err, len(out), out[0].Payload)
	}
}

// Of columns with the same name the first one of the header counts as the first, whichever has a value first: as on maps.
func TestRecordsNameColumnsAsTheHeaderDoes(t *testing.T) {
	records := testkit.Must(farm.NewRecords(farm.RecordsConfig{}))(t)
	header := strings.Replace(farmdatatest.LogHeader, "008D", "0043", 1)
	log := string(farmdatatest.Log(1)[:15]) + "\x01\x01\x28\x23\x00\x00"
	out, err := records(received(farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", header, "TLG00001.BIN", log)))
	if err != nil || len(out) != 1 || !strings.Contains(string(out[0].Payload), `"values":{"0043_DET-1_2":9}`) {
		t.Errorf("got %d messages, %v, want one with a value of the second column", len(out), err)
	}
}

func TestRecordsOfTimeLog(t *testing.T) {
	records := testkit.Must(farm.NewRecords(farm.RecordsConfig{BatchBytes: 1}))(t)
	msg := received(farmdatatest.TimeLog(t, 3))
	msg.Metadata.Set(gateway.KeyMessageType, "iso:11783:-10:time_log:protobuf")
	out, err := records(msg)
	if err != nil || len(out) != 3 {
		t.Fatalf("%d messages, %v, want one for each record", len(out), err)
	}
	const want = `{"record":2,"time":"2026-05-04T06:30:02Z","north":52.50012,"east":7.50012,"status":0,"values":{"0043_DET-1":9000,"008D_DET-1":0}}`
	if lines := strings.Split(string(out[2].Payload), "\n"); lines[1] != want {
		t.Errorf("got %s, want %s", lines[1], want)
	}
}

// What cannot be read passes as it is, and says why. Damage inside of a log is told beside its records.
func TestTransformsOfDamage(t *testing.T) {
	records := testkit.Must(farm.NewRecords(farm.RecordsConfig{MaxOutput: 1000}))(t)
	summary := testkit.Must(farm.NewSummary(farm.ReadConfig{}))(t)
	for name, transform := range map[string]message.HandlerFunc{"records": records, "summary": summary} {
		out, err := transform(received([]byte("a picture")))
		if err != nil || len(out) != 1 || string(out[0].Payload) != "a picture" || out[0].Metadata[farm.KeyReadable] != "no" || out[0].UUID != "received" {
			t.Errorf("%s: got %+v, %v, want it as it is, marked", name, out, err)
		}
	}
	large := farmdatatest.Archive(t, 100)
	out, err := records(received(large))
	if err != nil || len(out) != 1 || !bytes.Equal(out[0].Payload, large) || !strings.Contains(out[0].Metadata[farm.KeyReason], "more than 1000 bytes") {
		t.Errorf("too much output: %d messages, %v, %v", len(out), out[0].Metadata, err)
	}
	out, err = records(received(farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", farmdatatest.LogHeader,
		"TLG00001.BIN", string(farmdatatest.Log(3)[:50]))))
	var header farm.BatchHeader
	if err == nil {
		err = json.Unmarshal(bytes.SplitN(out[0].Payload, []byte("\n"), 2)[0], &header)
	}
	if err != nil || header.Records != 1 || len(header.Findings) != 1 || !strings.Contains(header.Findings[0], "cut") {
		t.Errorf("got %+v, %v, want one record and one finding", header, err)
	}
	out, err = records(received(farmdatatest.Description(t)))
	if err != nil || len(out) != 0 {
		t.Errorf("data without logs: got %v, %v, want nothing", out, err)
	}
}

// Findings count for the size of a message as records do, however long the names of files are.
func TestRecordsOfManyFindings(t *testing.T) {
	folder := strings.Repeat("x", 10_000) + "/"
	late := strings.Repeat("\xfe\xff\xff\xff\x98\x3a\x00", 300) // beyond the end of the day
	records := testkit.Must(farm.NewRecords(farm.RecordsConfig{}))(t)
	out := testkit.Must(records(received(farmdatatest.Zip(t, folder+"TLG00001.XML", `<TIM A="" D="4"/>`, folder+"TLG00001.BIN", late))))(t)
	read, found := 0, 0
	for _, m := range out {
		var header farm.BatchHeader
		testkit.NoError(t, json.Unmarshal(bytes.SplitN(m.Payload, []byte("\n"), 2)[0], &header))
		read, found = read+header.Records, found+len(header.Findings)
		if len(m.Payload) > farm.DefaultBatchBytes+100_000 {
			t.Errorf("got a message of %d bytes, want about %d", len(m.Payload), farm.DefaultBatchBytes)
		}
	}
	if read != 300 || found < 300 {
		t.Errorf("got %d records and %d findings, want 300", read, found)
	}
}

// work is the figures of a work.
func work(name string, w content.Work) string {
	text := fmt.Sprintf("%s: %g %s, %g %s, %g %s", name, w.Area.Value, w.Area.From, w.Distance.Value, w.Distance.From, w.Time.Value, w.Time.From)
	for _, r := range w.Rates {
		text += fmt.Sprintf("; %s: %g %s, %g %s", r.DDI, r.Mean.Value, r.Unit, r.Total.Value, r.TotalUnit)
	}
	return text
}

// A message of EFDI whose type is that of another one is read as what it is, and not as one that has nothing.
func TestMessagesOfAWrongType(t *testing.T) {
	transform := testkit.Must(farm.NewSummary(farm.ReadConfig{}))(t)
	for form, payload := range map[content.Form][]byte{
		content.EFDITimeLog: farmdatatest.TimeLog(t, 2), content.EFDIPositions: farmdatatest.Marshal(t, &efdipb.GPSList{Entry: []*efdipb.GPSEntry{{North: 52, East: 8}}}),
		content.EFDITaskData: farmdatatest.Marshal(t, &efdipb.TaskData{VersionMajor: 4, Device: []*efdipb.Device{{Id: &efdipb.UID{Number: 1}, Designator: "Mower"}}}),
	} {
		for _, messageType := range []string{farm.TypeDeviceDescription, farm.TypeTimeLog, "gps:info"} {
			msg := received(payload)
			msg.Metadata.Set(gateway.KeyMessageType, messageType)
			out, err := transform(msg)
			if err != nil || len(out) != 1 || !strings.HasPrefix(string(out[0].Payload), `{"form":"`+string(form)+`"`) {
				t.Errorf("%s as %s: got %d messages, %v: %v", form, messageType, len(out), err, out)
			}
		}
	}
}

func TestSummary(t *testing.T) {
	const rest = ": 3000 totals, 600 totals, 40 totals; 0007: 10000 mg/m², 30 kg"
	const all = ": 8000 totals, 1500 totals, 100 totals; 0007: 17500 mg/m², 140 kg"
	const first = ": 5000 totals, 900 totals, 60 totals; 0007: 22000 mg/m², 110 kg"
	want := []string{"Mowing Long acre Mower" + first, "Rest Long acre Mower" + rest,
		"task Mowing" + first, "task Rest" + rest, "field Long acre" + all, "device Mower" + all, "product Grass" + first}
	transform := testkit.Must(farm.NewTransform(farm.TransformConfig{Summary: &farm.ReadConfig{}}))(t)
	var ids []string
	for range 2 {
		out, err := transform(received(farmdatatest.ArchiveOfTotals(t, 5)))
		if err != nil || len(out) != 1 {
			t.Fatalf("%d messages, %v, want 1", len(out), err)
		}
		var summary content.Summary
		testkit.NoError(t, json.Unmarshal(out[0].Payload, &summary))
		set := summary.Sets[0]
		var got []string
		for _, w := range set.Totals {
			got = append(got, work(w.Task.Name+" "+w.Field.Name+" "+w.Device.Name, w))
		}
		for _, by := range []content.By{content.ByTask, content.ByField, content.ByDevice, content.ByProduct} {
			for _, w := range set.Sums[by] {
				name := map[content.By]string{content.ByTask: w.Task.Name, content.ByField: w.Field.Name, content.ByDevice: w.Device.Name}[by]
				if by == content.ByProduct {
					name = w.Products[0].Name
				}
				got = append(got, work(string(by)+" "+name, w))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		if got := set.Logs[0].Records; got != 5 || out[0].Metadata[gateway.KeyMessageType] != farm.TypeSummary || out[0].Metadata[gateway.KeyFilename] != "farm-summary.json" {
			t.Errorf("%d records, metadata %v; want 5, a summary", got, out[0].Metadata)
		}
		ids = append(ids, out[0].UUID)
	}
	if ids[0] != ids[1] {
		t.Errorf("the IDs are %q, want the same", ids)
	}
}

func TestConfig(t *testing.T) {
	for field, err := range map[string]error{
		"MaxBytes":     farm.FilterConfig{ReadConfig: farm.ReadConfig{MaxBytes: -1}}.Validate(),
		"MaxTime":      farm.ReadConfig{MaxTime: -1}.Validate(),
		"Machine":      farm.FilterConfig{Machine: []string{"a", ""}}.Validate(),
		"DDI":          farm.FilterConfig{DDI: []string{"43h"}}.Validate(),
		"From":         farm.FilterConfig{From: "yesterday"}.Validate(),
		"To":           farm.FilterConfig{From: "2026-05-04T00:00:00Z", To: "2026-05-04T00:00:00Z"}.Validate(),
		"To must have": farm.FilterConfig{From: "2026-05-04T00:00:00Z", To: "2026-05-05T00:00:00"}.Validate(),
		"Box.South":    farm.FilterConfig{Box: &farm.Box{South: 2, North: 1}}.Validate(),
		"Box.West":     farm.FilterConfig{Box: &farm.Box{West: 181}}.Validate(),
		"Unreadable":   farm.FilterConfig{Unreadable: "perhaps"}.Validate(),
		"BatchRecords": farm.RecordsConfig{BatchRecords: -1}.Validate(),
		"BatchBytes":   farm.RecordsConfig{BatchBytes: -1}.Validate(),
		"MaxOutput":    farm.RecordsConfig{MaxOutput: -1}.Validate(),
		"Summary":      farm.TransformConfig{Records: &farm.RecordsConfig{}, Summary: &farm.ReadConfig{}}.Validate(),
	} {
		if !errors.Is(err, farm.ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v, want an ErrConfig", field, err)
		}
	}
	if _, err := farm.NewFilter(farm.FilterConfig{Unreadable: "perhaps"}); !errors.Is(err, farm.ErrConfig) {
		t.Errorf("got %v, want an ErrConfig", err)
	}
	if transform, err := farm.NewTransform(farm.TransformConfig{}); transform != nil || err != nil {
		t.Errorf("got %v, want nothing to do", err)
	}
}

// Of every real file, the records are those that the reader gives, and each line is JSON.
func TestRealFiles(t *testing.T) {
	records := testkit.Must(farm.NewRecords(farm.RecordsConfig{ReadConfig: farm.ReadConfig{MaxTime: time.Hour}}))(t)
	for _, file := range farmdatatest.Files(t, "../..", "farm/*.zip", "farm/*.pb", "isoxml/*.zip") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			payload := testkit.Must(os.ReadFile(file))(t)
			msg := received(payload)
			msg.Metadata.Set(gateway.KeyMessageType, farmfile.MessageType(file))
			out := testkit.Must(records(msg))(t)
			data, err := content.Open(t.Context(), bytes.NewReader(payload), int64(len(payload)), content.Config{})
			if err != nil {
				if len(out) != 1 || out[0].Metadata[farm.KeyReadable] != "no" {
					t.Errorf("%d messages, want it as it is", len(out))
				}
				return
			}
			summary := testkit.Must(content.Summarize(t.Context(), data))(t)
			var want, got int64
			for _, set := range summary.Sets {
				for _, log := range set.Logs {
					want += log.Records
				}
			}
			for _, m := range out {
				for i, line := range bytes.Split(bytes.TrimSuffix(m.Payload, []byte("\n")), []byte("\n")) {
					if !json.Valid(line) {
						t.Fatalf("no JSON: %s", line)
					}
					if i > 0 {
						got++
					}
				}
			}
			if got != want {
				t.Errorf("%d records in %d messages, want %d", got, len(out), want)
			}
		})
	}
}

// FuzzTransforms: whatever a payload is, a filter decides and transforms make something of it.
func FuzzTransforms(f *testing.F) {
	f.Add(farmdatatest.Archive(f, 3))
	f.Add(farmdatatest.TimeLog(f, 3))
	f.Add(farmdatatest.Description(f))
	records := testkit.Must(farm.NewRecords(farm.RecordsConfig{BatchRecords: 2}))(f)
	filter := testkit.Must(farm.NewFilter(farm.FilterConfig{Task: []string{"TSK*"}, DDI: []string{"0043"}, From: "2026-01-01T00:00:00", Box: &farm.Box{North: 90, East: 90}}))(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		testkit.Must(filter.Select(received(b)))(t)
		out := testkit.Must(records(received(b)))(t)
		for _, m := range out {
			for key, value := range m.Metadata {
				if strings.ContainsAny(value, "\r\n\x00") {
					t.Errorf("%s is %q", key, value)
				}
			}
			for line := range bytes.Lines(m.Payload) {
				if m.Metadata[farm.KeyReadable] == "" && !json.Valid(line) {
					t.Fatalf("no JSON: %s", line)
				}
			}
		}
	})
}

// As CloudEvents, what transforms make says of which kind it is.
func TestContentTypes(t *testing.T) {
	mapping := testkit.Must(cloudevents.New(cloudevents.Config{}))(t)
	for messageType, want := range map[string]string{
		farm.TypeRecords: "application/x-ndjson", farm.TypeSummary: "application/json",
		farm.TypeGeoJSON: "application/geo+json", farm.TypeGeoParquet: "application/vnd.apache.parquet",
	} {
		msg := message.NewMessage("id", nil)
		msg.Metadata[gateway.KeyEventType], msg.Metadata[gateway.KeyMessageType] = string(gateway.EventMessageReceived), messageType
		attributes := mapping.Attributes(msg)
		if !slices.Contains(attributes, cloudevents.Attribute{Name: cloudevents.ContentType, Value: want}) {
			t.Errorf("%s: got %v, want %s", messageType, attributes, want)
		}
	}
}
