package command

import (
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

const tested = `
gateway: {base_url: http://127.0.0.1:1, token_url: http://127.0.0.1:1/token, client_id: c, client_secret: "${SECRET}"}
sinks:
  farm: {nats: {url: "nats://127.0.0.1:1"}}
  lake: {kafka: {brokers: ["127.0.0.1:1"]}}
routes:
  - name: files
    from: {gateway: all}
    filter: {type: "iso:*", expr: 'int(metadata[?"size"].orValue("0")) < 10'}
    set: {team: '"team " + tenant'}
    to: {sink: farm, topic: "{tenant}.{meta:team}"}
  - name: logs
    from: {gateway: all}
    filter: {farm: {machine: ["mow*"]}}
    transform: {records: {batch_records: 2}}
    to: {sink: lake, topic: "logs.{type}"}
  - name: back
    from: {nats: {url: "nats://127.0.0.1:1", stream: s, durable: d, subject: "out.>"}}
    to: {gateway: {type: "{meta:kind}", tenant: 2983fc33-5edb-4372-ac0f-bf5087e00010, endpoint: 2983fc33-5edb-4372-ac0f-bf5087e00011}}
poison: {sink: farm}
`

// Each case says what a route does with a message, or how that differs from what was expected.
func TestTest(t *testing.T) {
	w := &world{T: t}
	file := save(t, "agrimill.yaml", []byte(tested))
	archive := base64.StdEncoding.EncodeToString(farmdatatest.Archive(t, 5))
	for name, test := range map[string]struct {
		message, expect string
		want            string // what differs; "" passes
	}{
		"published":           {`{type: "iso:a", tenant: t1}`, `[{route: files, topic: "t1.team%20t1", metadata: {team: team t1, other: ""}, messages: 1}, {route: logs, outcome: filtered}]`, ""},
		"escaped by the sink": {`{type: "iso:a", tenant: "t.1"}`, `[{route: files, topic: "t%2E1.team%20t%2E1"}]`, ""},
		"not expected":        {`{type: "iso:a", tenant: t1}`, `[]`, `route files: not expected: 1 message published to "t1.team%20t1"`},
		"another topic":       {`{type: "iso:a", tenant: t1}`, `[{route: files, topic: t2}]`, `route files: topic: got "t1.team%20t1", want "t2"`},
		"other metadata":      {`{type: "iso:a", tenant: t1}`, `[{route: files, metadata: {team: "2"}}]`, `route files: metadata team: got "team t1", want "2"`},
		"another number":      {`{type: "iso:a", tenant: t1}`, `[{route: files, messages: 2}]`, `route files: messages: got 1, want 2`},
		"filtered":            {`{type: "img:a", tenant: t1}`, `[]`, ""},
		"filtered, though":    {`{type: "img:a"}`, `[{route: files}]`, `route files: got: filtered; want: published`},
		"by expression":       {`{type: "iso:a", tenant: t1, metadata: {size: "10"}}`, `[{route: files, outcome: filtered}]`, ""},
		"expression fails":    {`{type: "iso:a", tenant: t1, metadata: {size: big}}`, `[{route: files, outcome: poisoned, class: permanent, reason: filter expression}]`, ""},
		"no topic":            {`{type: "iso:a"}`, `[{route: files, outcome: poisoned, reason: tenant}]`, ""},
		"poisoned, though":    {`{type: "iso:a"}`, `[]`, `route files: not expected: poisoned (permanent): `},
		"another class":       {`{type: "iso:a"}`, `[{route: files, outcome: poisoned, class: handler, reason: nothing like it}]`, `route files: class: got "permanent", want "handler"`},
		"farm data":           {`{type: "x:y", payload_base64: ` + archive + `}`, `[{route: logs, messages: 3, topic: logs.farm__3Arecords__3Ajsonl}]`, ""},
		"no farm data":        {`{type: "x:y", payload: text}`, `[]`, ""},
		"not subscribed":      {`{event: ENDPOINT_DELETED}`, `[]`, ""},
		"not subscribed, but": {`{event: ENDPOINT_DELETED}`, `[{route: files}]`, `route files does not get the message`},
		"from a broker":       {`{route: back, metadata: {kind: "doc:pdf"}}`, `[{route: back, topic: "doc:pdf"}]`, ""},
		"gateway only":        {`{type: "iso:a", tenant: t1, metadata: {kind: "doc:pdf"}}`, `[{route: files}, {route: back}]`, `route back does not get the message`},
		"no message type":     {`{route: back, metadata: {kind: "` + strings.Repeat("k", 101) + `"}}`, `[{route: back, outcome: poisoned, class: permanent, reason: 100 characters}]`, ""},
		"no such route":       {`{route: bak}`, `[]`, `no such route: "bak"`},
	} {
		cases := save(t, "cases.yaml", fmt.Appendf(nil, "cases:\n  - name: %q\n    message: %s\n    expect: %s\n", name, test.message, test.expect))
		status, verdict := statusOK, "ok   "
		if test.want != "" {
			status, verdict = statusFailed, "FAIL "
		}
		out := w.want(status, "test", file, cases)
		if !strings.HasPrefix(out, verdict) || !strings.Contains(out, test.want) {
			t.Errorf("%s: want %q in\n%s", name, test.want, out)
		}
	}
}

// A message without a place in a bucket goes to the poison queue, as in a run.
func TestTestKnowsTheLayoutOfABucket(t *testing.T) {
	w := &world{T: t}
	file := save(t, "agrimill.yaml", []byte(strings.NewReplacer(`{nats: {url: "nats://127.0.0.1:1"}}`, `{blob: {url: "file:///archive", path: "{topic}/{id}-{filename}"}}`,
		"{tenant}.{meta:team}", "{tenant}.archive").Replace(tested)))
	cases := save(t, "cases.yaml", []byte(`cases:
  - {name: named, message: {type: "iso:a", tenant: t1, filename: a.zip}, expect: [{route: files, topic: t1.archive}]}
  - {name: nameless, message: {type: "iso:a", tenant: t1}, expect: [{route: files, outcome: poisoned, class: permanent, reason: filename}]}
`))
	w.want(statusOK, "test", file, cases)
}

// Mistakes in a file with cases are reported before any of them runs.
func TestBadCases(t *testing.T) {
	w := &world{T: t}
	file := save(t, "agrimill.yaml", []byte(tested))
	for text, want := range map[string]string{
		``:                       "no documents",
		`cases: []`:              "has no cases",
		`cases: [{naem: x}]`:     "naem",
		`cases: [{message: {}}]`: "cases[0]: name is required",
		`cases: [{name: x}]`:     "expect is required",
		`cases: [{name: x, expect: [{outcome: filtered}]}]`:                                "expect[0]: route is required",
		`cases: [{name: x, expect: [{route: a}, {route: a}]}]`:                             "expect[1]: route a is expected twice",
		`cases: [{name: x, expect: [{route: a, outcome: gone}]}]`:                          "outcome must be published, filtered or poisoned",
		`cases: [{name: x, expect: [{route: a, outcome: filtered, topic: t}]}]`:            "do not apply",
		`cases: [{name: x, expect: [{route: a, class: permanent}]}]`:                       "do not apply",
		`cases: [{name: x, expect: [], message: {payload: a, payload_file: b}}]`:           "exclude each other",
		`cases: [{name: x, expect: [], message: {payload_base64: "***"}}]`:                 "payload_base64",
		`cases: [{name: x, expect: [], message: {payload_file: nowhere/to-be-found.zip}}]`: "to-be-found.zip",
	} {
		if _, err := readCases(save(t, "cases.yaml", []byte(text))); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), ".yaml") && !strings.Contains(err.Error(), "to-be-found") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	good := save(t, "good.yaml", []byte(`cases: [{name: x, expect: [], message: {event: ENDPOINT_DELETED}}]`))
	w.want(statusUsage, "test", file)
	w.want(statusUsage, "test", file, save(t, "bad.yaml", []byte(`cases: 1`)))
	_, _, stderr := w.agrimill("test", file, save(t, "odd.yaml", []byte(`routes: 1`)))
	if !strings.Contains(stderr, "unknown key routes") || strings.Contains(stderr, "testCase") {
		t.Errorf("got %s", stderr)
	}
	w.want(statusUsage, "test", save(t, "broken.yaml", []byte(`routes: 1`)), good)
}

// The report for CI has every case, and what differs.
func TestTestReport(t *testing.T) {
	w := &world{T: t}
	file, report := save(t, "agrimill.yaml", []byte(tested)), filepath.Join(t.TempDir(), "report.xml")
	cases := save(t, "cases.yaml", []byte(`cases:
  - {name: passes, message: {event: ENDPOINT_DELETED}, expect: []}
  - {name: "fails <&>", message: {type: "iso:\u0001", tenant: t1}, expect: []}
`))
	out := w.want(statusFailed, "test", "--junit", report, file, cases)
	testkit.Contains(t, out, "2 cases: 1 passed, 1 failed\n")
	data := testkit.Must(os.ReadFile(report))(t)
	var got struct {
		Suites []testSuite `xml:"testsuite"`
	}
	if err := xml.Unmarshal(data, &got); err != nil {
		t.Fatalf("%v:\n%s", err, data)
	}
	if len(got.Suites) != 1 || got.Suites[0].Tests != 2 || got.Suites[0].Failures != 1 {
		t.Fatalf("got\n%s", data)
	}
	if c := got.Suites[0].Cases[1]; c.Name != "fails <&>" || c.Failure == nil || !strings.Contains(c.Failure.Text, "route files: not expected") {
		t.Errorf("got\n%s", data)
	}
}

// Every route of the examples has a case, and all pass.
func TestExamplesHaveCases(t *testing.T) {
	w := &world{T: t}
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "*.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		cfg := testkit.Must(config.Load(file, config.Options{Env: func(name string) string { return w.env[name] }, AllowMissing: true}))(t)
		cases := filepath.Join(filepath.Dir(file), "tests", filepath.Base(file))
		w.want(statusOK, "test", file, cases)
		data := testkit.Must(os.ReadFile(cases))(t)
		var parsed struct{ Cases []testCase }
		must(t, yaml.Load(data, &parsed))
		published := map[string]bool{}
		for _, c := range parsed.Cases {
			for _, e := range c.Expect {
				published[e.Route] = published[e.Route] || e.Outcome == "" || e.Outcome == "published"
			}
		}
		for _, route := range cfg.Routes {
			if !published[route.Name] {
				t.Errorf("%s: no case publishes by route %s", cases, route.Name)
			}
		}
	}
}
