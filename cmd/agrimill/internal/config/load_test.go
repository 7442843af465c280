package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const small = `gateway:
  base_url: http://127.0.0.1:8081
  token_url: http://127.0.0.1:8081/token
  client_id: ${ID}
  client_secret: ${SECRET}
sinks:
  farm:
    nats: {url: "nats://127.0.0.1:4222"}
routes:
  - name: farm-data
    from: {gateway: all}
    to: {sink: farm}
poison: {sink: farm}
`

// farmSink is the sink of small.
const farmSink = "  farm:\n    nats: {url: \"nats://127.0.0.1:4222\"}\n"

// environment is a map as Options.Env.
func environment(values map[string]string) Options {
	return Options{Env: func(name string) string { return values[name] }}
}

var smallEnv = environment(map[string]string{"ID": "app", "SECRET": "hidden-secret"})

// problemsOf reads a configuration that has mistakes.
func problemsOf(t *testing.T, text string, options Options) *Problems {
	t.Helper()
	_, err := Parse("agrimill.yaml", []byte(text), options)
	var problems *Problems
	if !errors.As(err, &problems) {
		t.Fatalf("err = %v, want a %T", err, problems)
	}
	if got := problems.Errors(); got <= 0 {
		t.Fatalf("problems.Errors() = %d, want more than 0", got)
	}
	return problems
}

// onlyProblem reads a configuration that has one mistake.
func onlyProblem(t *testing.T, text string, options Options) string {
	t.Helper()
	problems := problemsOf(t, text, options)
	if len(problems.List) != 1 {
		t.Fatalf("problems.List has %d elements, want 1: %v", len(problems.List), problems)
	}
	return problems.List[0].String()
}

func parse(t *testing.T, text string, options Options) *Config {
	t.Helper()
	c := testkit.Must(Parse("agrimill.yaml", []byte(text), options))(t)
	return c
}

func TestSmall(t *testing.T) {
	c := parse(t, small, smallEnv)
	if len(c.Warnings) != 0 {
		t.Fatalf("c.Warnings = %+v, want none", c.Warnings)
	}
	testkit.Equal(t, []any{
		c.Gateway.ClientID, string(c.Gateway.ClientSecret), c.Gateway.StreamIdleTimeout, c.Sinks["farm"].Kind(), c.Sinks["farm"].NATS.Stream,
		c.Routes[0].To.Topic, c.Routes[0].From.GatewayTopic(), c.Poison.Topic, c.Dedup.Store, c.Subscriber.Payload.Mode, c.Admin.Address,
	}, []any{
		"app", "hidden-secret", 2 * time.Minute, "nats", "AGRIMILL",
		"{tenant|none}.{type|none}", subscriber.AllData, "poison", DedupMemory, subscriber.PayloadInline, admin.DefaultAddress,
	})
}

// Every mistake of a file is reported at once, with its place.
func TestEveryMistake(t *testing.T) {
	_, err := Load(filepath.Join("testdata", "broken.yaml"), smallEnv)
	var problems *Problems
	if !errors.As(err, &problems) {
		t.Fatalf("err = %v, want a %T", err, problems)
	}
	got := strings.ReplaceAll(problems.Error(), "testdata"+string(filepath.Separator), "") + "\n"
	golden := filepath.Join("testdata", "broken.txt")
	if os.Getenv("UPDATE") != "" {
		testkit.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want := testkit.Must(os.ReadFile(golden))(t)
	if got != string(want) {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
	if strings.Contains(got, "hunter") {
		t.Fatalf("got %q, want no %q in it: a secret of the file", got, "hunter")
	}
}

func TestOneMistake(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"unknown key":     {"poison: {", "poisen: {sink: farm}\npoison: {", `agrimill.yaml:13:1: poisen: is not a known key; did you mean poison?`},
		"misplaced":       {"poison: {", "max_in_flight: 1\npoison: {", "agrimill.yaml:13:1: max_in_flight: is not a known key; it belongs to subscriber.max_in_flight, routes[].from.nats.max_in_flight or routes[].from.kafka.max_in_flight"},
		"renamed backoff": {"poison: {", "retry: {max_interval: 1m}\npoison: {", "agrimill.yaml:13:9: retry.max_interval: is not a known key; it is now max_backoff"},
		"renamed start":   {"poison: {", "retry: {min_backoff: 1s}\npoison: {", "agrimill.yaml:13:9: retry.min_backoff: is not a known key; it is now initial_backoff"},
		"never there":     {"poison: {", "retry: {min: 1s}\npoison: {", "agrimill.yaml:13:9: retry.min: is not a known key; use initial_backoff, max_attempts or max_backoff"},
		"dashes":          {"client_secret: ", "client-secret: ", "agrimill.yaml:5:3: gateway.client-secret: is not a known key; did you mean gateway.client_secret?"},
		"unset variable":  {"${ID}", "${NOPE}", "agrimill.yaml:4:14: gateway.client_id: needs the environment variable NOPE, which is unset or empty; set it, or write ${NOPE:-default}"},
		"unset, elsewhere": {"sinks:\n", "  application_id: ${NOPE}\n  software_version_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d02\nendpoints: [{external_id: \"urn:example:x\", capabilities: [{type: x}]}]\nsinks:\n",
			"agrimill.yaml:6:19: gateway.application_id: needs the environment variable NOPE, which is unset or empty; set it, or write ${NOPE:-default}"},
		"half variable":   {"${ID}", "${ID", "agrimill.yaml:4:14: gateway.client_id: has ${ without }; write $${ for a literal ${"},
		"bad variable":    {"${ID}", "${1D}", "agrimill.yaml:4:14: gateway.client_id: has ${1D}, which is not the name of an environment variable; write ${NAME} or ${NAME:-default}, or $${ for a literal ${"},
		"nested variable": {"${ID}", "${ID:-${NO}}", "agrimill.yaml:4:14: gateway.client_id: has ${ID:-${NO}, which is not the name of an environment variable; write ${NAME} or ${NAME:-default}, or $${ for a literal ${"},
		"merged twice":    {"{url: \"nats://127.0.0.1:4222\"}", "{<<: {stream: A,\n    stream: B}}", "agrimill.yaml:9:5: sinks.farm.nats.stream: is a duplicate of line 8; remove one"},
		"mistyped sink":   {"to: {sink: farm}", "to: {sink: laek}", `agrimill.yaml:13:16: routes[0].to.sink: names an unknown sink: "laek"; did you mean lake?`},
		"no secret":       {"  client_secret: ${SECRET}\n", "", "agrimill.yaml:2:3: gateway.client_secret: is required; set client_secret: ${NAME} or client_secret_file"},
		"missing file":    {"client_secret: ${SECRET}", "client_secret_file: nowhere/secret", "agrimill.yaml:5:23: gateway.client_secret_file: cannot be read: no such file or directory"},
		"no value":        {"poison: {", "log:\npoison: {", "agrimill.yaml:13:5: log: has no value; remove the key for the default"},
		"no endpoint":     {"poison: {", "endpoints: [~]\npoison: {", "agrimill.yaml:13:13: endpoints[0]: has no value; remove the key for the default"},
		"no section":      {`nats: {url: "nats://127.0.0.1:4222"}`, "nats:", "agrimill.yaml:8:10: sinks.farm.nats: has no value; write {} for the defaults, or remove the key"},
		"unknown sink":    {"to: {sink: farm}", "to: {sink: Fram}", `agrimill.yaml:12:16: routes[0].to.sink: names an unknown sink: "Fram"; did you mean farm?`},
		"template":        {"to: {sink: farm}", `to: {sink: farm, topic: "{type"}`, `agrimill.yaml:12:29: routes[0].to.topic: has { without }`},
		"nats subject":    {"to: {sink: farm}", `to: {sink: farm, topic: "all.*.{type}"}`, "agrimill.yaml:12:29: routes[0].to.topic: cannot be a topic of the nats sink: not a NATS subject of tokens separated by single dots, none of them a wildcard"},
		"poison topic":    {"to: {sink: farm}", "to: {sink: farm, topic: poison}", "agrimill.yaml:12:29: routes[0].to.topic: is the topic of the poison queue; choose a different one here or in poison.topic"},
		"no routes":       {"routes:\n  - name: farm-data\n    from: {gateway: all}\n    to: {sink: farm}\n", "routes: []\n", "agrimill.yaml:9:9: routes: is empty; add a route: - {name: …, from: {gateway: all}, to: {sink: …}}"},
		"no poison":       {"poison: {sink: farm}", "", "agrimill.yaml:1:1: poison: is required"},
		"tag":             {"gateway: all", "gateway: !include all", "agrimill.yaml:11:21: routes[0].from.gateway: has the tag !include; tags are not supported; remove it"},
		"only by type":    {"from: {gateway: all}", "from: {gateway: \"a:b\"}\n    filter: {type: \"c:*\"}", "agrimill.yaml:12:20: routes[0].filter.type: matches nothing: the route receives only a:b; remove the filter, or use from: {gateway: all}"},
		"from nothing":    {"poison: {", "subscriber: {event_types: [ENDPOINT_DELETED]}\npoison: {", "agrimill.yaml:11:21: routes[0].from.gateway: receives nothing: subscriber.event_types does not include MESSAGE_RECEIVED or FILE_RECEIVED; add it there"},
		"subscription":    {"poison: {", "endpoints: [{external_id: \"a:b\", subscriptions: [t, u], capabilities: [{type: t}, {type: u, direction: SEND}], application_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01, software_version_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01}]\npoison: {", `agrimill.yaml:13:53: endpoints[0].subscriptions[1]: has no effect: the endpoint has no capability to receive u; add {type: "u", direction: RECEIVE} to its capabilities`},
		"no claim check":  {"poison: {", "subscriber: {payload: claim_check}\npoison: {", "agrimill.yaml:13:23: subscriber.payload: is claim_check, but there is no section claim_check; add claim_check: {url: …}"},
		"bucket":          {"poison: {", "claim_check: {url: \"ftp://x\"}\npoison: {", "agrimill.yaml:13:20: claim_check.url: has a scheme that this build does not support: ftp; use file or mem"},
		"dedup":           {"poison: {", "dedup: {store: bbolt}\npoison: {", "agrimill.yaml:13:8: dedup.bbolt: is required by dedup.store; add bbolt: {path: /var/lib/agrimill/dedup.db}"},
		"no gateway":      {"from: {gateway: all}\n    to: {sink: farm}\n", "from: {nats: {subject: a}}\n    to: {gateway: {}}\nha: {nats_kv: {}}\n", "agrimill.yaml:13:5: ha: needs a route from the gateway: only such a route wants the lease; remove it; instances share what they consume from NATS and Kafka"},
		"short lease":     {"poison: {", "ha: {nats_kv: {}, ttl: 500ms}\npoison: {", "agrimill.yaml:13:24: ha.ttl: must be at least 1s"},
		"short sessions":  {"poison: {", "dedup: {nats_kv: {}}\nha: {nats_kv: {}, ttl: 1s}\npoison: {", "agrimill.yaml:14:24: ha.ttl: must be at least 2s beside dedup.nats_kv, whose sessions live that long"},
		"lease name":      {"poison: {", "ha: {nats_kv: {name: a b}}\npoison: {", "agrimill.yaml:13:22: ha.nats_kv.name: may have letters, digits and - _ = . in it"},
		"no place":        {"poison: {", "ha: {}\npoison: {", "agrimill.yaml:13:5: ha.nats_kv: is required"},
		"not in NATS":     {"nats: {url: \"nats://127.0.0.1:4222\"}", "kafka: {brokers: \"b:1\"}\nha: {nats_kv: {}}\ndedup: {nats_kv: {}}", "agrimill.yaml:9:5: ha: makes everything stop while NATS cannot be reached, although no route from the gateway has a sink there; set ha.stop_without_nats: true to accept that"},
		"half a wildcard": {"poison: {", "  - {name: x, from: {nats: {subject: \"a.b*\", durable: d}}, to: {gateway: {}}}\npoison: {", "agrimill.yaml:13:38: routes[1].from.nats.subject: must be a NATS subject: tokens without white space, separated by dots; * as a token matches one, > at the end the rest"},
		"one consumer":    {"poison: {", "  - {name: x, from: {nats: {subject: a, durable: d}}, to: {gateway: {}}}\n  - {name: y, from: {nats: {subject: b, durable: d}}, to: {gateway: {}}}\npoison: {", "agrimill.yaml:14:50: routes[2].from.nats.durable: is shared with routes[1]: each would get only some of the messages; use a different one for each route"},
		"one group":       {"poison: {", "  - {name: x, from: {kafka: {brokers: \"b:1\", topics: [t, u], group: g}}, to: {gateway: {}}}\n  - {name: y, from: {kafka: {brokers: \"b:1\", topics: u, group: g}}, to: {gateway: {}}}\npoison: {", "agrimill.yaml:14:64: routes[2].from.kafka.group: is shared with routes[1]: each would get only some of the messages; use a different one for each route"},
		"set type":        {"to: {sink: farm}", "set: {x-router-message-type: '\"a\"'}\n    to: {gateway: {type: b, endpoint: 0d7f8f4e-2f5b-4a55-8f0a-3c9b7a6d1e02}}\n  - {name: b, from: {gateway: all}, to: {sink: farm}}", "agrimill.yaml:13:26: routes[0].to.gateway.type: replaces what set.x-router-message-type says; remove one of them, or write {type} here"},
		"efdi type":       {"to: {sink: farm}", "transform: {efdi: {}}\n    to: {gateway: {type: b, endpoint: 0d7f8f4e-2f5b-4a55-8f0a-3c9b7a6d1e02}}\n  - {name: b, from: {gateway: all}, to: {sink: farm}}", "agrimill.yaml:13:26: routes[0].to.gateway.type: is one type for the device descriptions and the time logs of transform.efdi; write {type}"},
		"no topics":       {"poison: {", "  - {name: x, from: {kafka: {brokers: \"b:1\", topics: [], group: g}}, to: {gateway: {}}}\npoison: {", "agrimill.yaml:13:54: routes[1].from.kafka.topics: must name a topic"},
		"topics collide":  {"poison: {", "  - {name: x, from: {kafka: {brokers: \"b:1\", topics: [a.b, a_b]}}, to: {gateway: {}}}\npoison: {", "agrimill.yaml:13:54: routes[1].from.kafka.topics: means the topic a_b beside a.b: of names that differ only in . and _, Kafka takes one; use another name for one of them"},
		"topic collides":  {"poison: {", "  - {name: x, from: {gateway: all}, to: {sink: lake, topic: a_b}}\n  - {name: y, from: {kafka: {brokers: \"b:1\", topics: agrimill_a.b}}, to: {gateway: {}}}\npoison: {", "agrimill.yaml:15:54: routes[2].from.kafka.topics: means the topic agrimill_a.b beside agrimill.a_b: of names that differ only in . and _, Kafka takes one; use another name for one of them"},
		"bucket of dedup": {"poison: {", "dedup: {nats_kv: {bucket: a.b}}\npoison: {", "agrimill.yaml:13:27: dedup.nats_kv.bucket: must have letters, digits, - and _ only"},
		"bucket of ha":    {"poison: {", "ha: {nats_kv: {bucket: a.b}}\npoison: {", "agrimill.yaml:13:24: ha.nats_kv.bucket: must have letters, digits, - and _ only"},
		"bucket of two":   {"poison: {", "dedup: {nats_kv: {url: \"nats://h\", bucket: same}}\ndevices: {nats_kv: {url: \"nats://h\", bucket: same}}\npoison: {", "agrimill.yaml:14:46: devices.nats_kv.bucket: is that of dedup.nats_kv.bucket; give each a bucket of its own"},
		"file of two":     {"poison: {", "dedup: {bbolt: {path: one.db}}\njournal: {path: \"state/../one.db\"}\npoison: {", "agrimill.yaml:14:17: journal.path: is that of dedup.bbolt.path; give each a file of its own"},
		"own bucket":      {"poison: {", "devices: {nats_kv: {bucket: a.b}}\npoison: {", "agrimill.yaml:13:29: devices.nats_kv.bucket: must have letters, digits, - and _ only"},
		"own topic":       {"poison: {", "devices: {kafka: {brokers: \"b:1\", topic: a..b}}\npoison: {", "agrimill.yaml:13:42: devices.kafka.topic: must be a Kafka topic of letters, digits, '-', '_' and single dots"},
		"one stream":      {"    to: {sink: farm}", "    to: {sink: farm}\n  - {name: b, from: {gateway: all}, to: {sink: zoo}}\nx-s: &s {url: \"nats://127.0.0.1:4222\"}", ""},
		"own alias":       {"poison: {", "endpoints: &a [*a]\npoison: {", ""},
		"two documents":   {"poison: {sink: farm}", "poison: {sink: farm}\n---\na: b", ""},
		"syntax":          {"poison: {", "poison: {{", ""},
		"tab":             {"    from:", "\tfrom:", "agrimill.yaml:11:1: is not valid YAML: while scanning a plain scalar: found a tab character that violates indentation; indent with spaces"},
		"flow":            {"poison: {", "admin: {token: ${ID}}\npoison: {", "agrimill.yaml:13:17: is not valid YAML: while parsing a flow mapping: did not find expected ',' or '}'; put \"${NAME}\" in quotes inside { } and [ ]"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Contains(t, small, test.from)
			text := strings.Replace(small, test.from, test.to, 1)
			if name == "topic collides" || name == "mistyped sink" {
				text = strings.Replace(text, "sinks:\n", "sinks:\n  lake: {kafka: {brokers: \"b:1\"}}\n", 1)
			}
			if name == "one stream" {
				text = strings.Replace(text, "sinks:\n", "sinks:\n  zoo: {nats: {subject_prefix: zoo}}\n", 1)
				test.want = "agrimill.yaml:7:15: sinks.zoo.nats.stream: is also used by sinks.farm, which has a different subject_prefix; use different streams, or the same subject_prefix for both"
			}
			got := onlyProblem(t, text, smallEnv)
			if test.want == "" {
				testkit.Contains(t, got, "agrimill.yaml:1")
				t.Log(got)
				return
			}
			if got != test.want {
				t.Fatalf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Two streams of an account cannot have one subject. Whether connections with different credentials are in one account is not known.
func TestStreamsOfOneAccount(t *testing.T) {
	with := func(zoo string) string {
		text := strings.Replace(small, "sinks:\n", "sinks:\n  zoo: {nats: {"+zoo+"}}\n", 1)
		return strings.Replace(text, "poison:", "  - {name: b, from: {gateway: all}, to: {sink: zoo}}\npoison:", 1)
	}
	const want = "agrimill.yaml:7:15: sinks.zoo.nats.subject_prefix: has subjects of sinks.farm, which has a different stream: NATS keeps a subject in one; use a different subject_prefix, or one stream for both"
	if got := onlyProblem(t, with("stream: ZOO"), smallEnv); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	testkit.Contains(t, onlyProblem(t, with("stream: ZOO, subject_prefix: agrimill.zoo"), smallEnv), "has subjects of sinks.farm")
	for _, zoo := range []string{"stream: ZOO, subject_prefix: zoo", "stream: ZOO, user: zoo", "subject_prefix: zoo, token: ${SECRET}", "url: \"nats://zoo:4222\", stream: ZOO"} {
		testkit.Must(Parse("agrimill.yaml", []byte(with(strings.Replace(zoo, "${SECRET}", "\"${SECRET}\"", 1))), smallEnv))(t)
	}
}

// What one bad, missing or empty value says, with its place and the remedy. Nothing is taken for a default that somebody
// wrote otherwise.
func TestBadValues(t *testing.T) {
	dir := t.TempDir()
	files := strings.NewReplacer("FILE(", dir+string(filepath.Separator), ")", "")
	for name, text := range map[string]string{"blank": " \n", "bytes": "a\x00b\n", "newline": "hidden-secret-2\n", "crlf": "hidden-secret-2\r\n\r\n"} {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	nats := func(settings string) [2]string { return [2]string{farmSink, "  farm: {nats: {" + settings + "}}\n"} }
	more := func(section string) [2]string {
		return [2]string{"poison: {sink: farm}", "poison: {sink: farm}\n" + section}
	}
	for _, c := range []struct {
		replace [2]string // from and to; nothing replaces all
		want    string    // nothing: it is read
	}{
		{[2]string{"", ""}, "is empty"},
		{[2]string{"", "# nothing\n"}, "is empty"},
		{[2]string{"", "---\n"}, "is empty"},
		{[2]string{"", "null"}, "is empty"},
		{[2]string{"", "[]"}, "must be a section with keys, not a list"},
		{[2]string{"", "\xff\xfe"}, "is not UTF-8; save the file as UTF-8"},
		{[2]string{"", "\ufeff" + small}, ""},
		{[2]string{"", strings.ReplaceAll(small, "\n", "\r\n")}, ""},
		{[2]string{"", strings.TrimRight(small, "\n")}, ""},

		{[2]string{"from: {gateway: all}", "from:"}, "routes[0].from: has no value; remove the key for the default"},
		{[2]string{"{gateway: all}", "{gateway: \"\"}"}, "routes[0].from.gateway: is empty; write a value, or remove it"},
		{[2]string{"{sink: farm}", "{sink: farm, topic: }"}, "routes[0].to.topic: has no value; remove the key for the default"},
		{[2]string{"{sink: farm}", "{sink: farm, topic: \"\"}"}, "routes[0].to.topic: is empty; write a value, or remove it"},
		{[2]string{"{sink: farm}", "{sink: farm, topic: \"${NO:-}\"}"}, ""},
		{[2]string{"name: farm-data", "name: \"${NO:-}\""}, "routes[0].name: is empty; write a value, or remove it"},
		{nats(`url: ""`), "sinks.farm.nats.url: is empty; write a value, or remove it"},
		{nats(`max_age: ""`), "sinks.farm.nats.max_age: is empty; write a value, or remove it"},
		{nats(`storage: ""`), "sinks.farm.nats.storage: is empty; write a value, or remove it"},
		{nats(`nope: 1`), "sinks.farm.nats.nope: is not a known key"},
		{nats(`url: a, url: b`), "sinks.farm.nats.url: is a duplicate of line 7; remove one"},

		{nats(`replicas: 1.5`), `sinks.farm.nats.replicas: must be a whole number, not "1.5"`},
		{nats(`replicas: -1`), "sinks.farm.nats.replicas: must be 1 to 5"},
		{nats(`replicas: 99999999999999999999`), "sinks.farm.nats.replicas: must be a whole number, not \"99999999999999999999\"; at most 9223372036854775807"},
		{nats(`max_message_size: 3GiB`), "sinks.farm.nats.max_message_size: must be a size, not \"3GiB\"; at most 2147483647"},
		{nats(`max_bytes: 5 apples`), "sinks.farm.nats.max_bytes: must be a size, not \"5 apples\"; write a number of bytes, or one with KiB, MiB or GiB"},
		{nats(`max_bytes: "1,5GiB"`), "sinks.farm.nats.max_bytes: must be a size, not \"1,5GiB\"; write a number of bytes"},
		{nats(`max_bytes: -1`), "sinks.farm.nats.max_bytes: must be a size, not \"-1\""},
		{nats(`max_age: 10`), "sinks.farm.nats.max_age: must be a duration, not \"10\"; add a unit: 10s"},
		{nats(`max_age: 10 fortnights`), "sinks.farm.nats.max_age: must be a duration, not \"10 fortnights\"; write a number with ms, s, m, h or d"},
		{nats(`max_age: 1000000d`), "sinks.farm.nats.max_age: must be a duration, not \"1000000d\"; at most 100000d"},
		{nats(`max_age: 1.5d`), "sinks.farm.nats.max_age: must be a duration, not \"1.5d\"; write whole days, e.g. 7d"},
		{nats(`max_age: -1h`), "sinks.farm.nats.max_age: must be a duration, not \"-1h\""},
		{nats(`max_age: 0, replicas: 0`), ""},
		{nats(`discard_old: yes`), "sinks.farm.nats.discard_old: must be true or false, not \"yes\"; write true"},
		{nats(`storage: tape`), "sinks.farm.nats.storage: must be file or memory, not \"tape\""},

		{[2]string{"${ID}", "${EMPTY}"}, "gateway.client_id: needs the environment variable EMPTY, which is unset or empty"},
		{[2]string{"${ID}", "${}"}, "gateway.client_id: has ${}, which is not the name of an environment variable"},
		{[2]string{"${SECRET}", "${NO:-}"}, "gateway.client_secret: is required; set client_secret: ${NAME} or client_secret_file"},
		{[2]string{"client_secret: ${SECRET}", `client_secret_file: ""`}, "gateway.client_secret_file: is empty; write a value, or remove it"},
		{[2]string{"client_secret: ${SECRET}", "client_secret_file: FILE(blank)"}, "gateway.client_secret_file: must be a file with a single line, the client secret"},
		{[2]string{"client_secret: ${SECRET}", "client_secret_file: FILE(newline)"}, ""},
		{[2]string{"client_secret: ${SECRET}", "client_secret_file: FILE(crlf)"}, ""},
		{nats(`user: u, password_file: ""`), "sinks.farm.nats.password_file: is empty; write a value, or remove it"},
		{nats(`user: u, password: ""`), "sinks.farm.nats.password: is empty; write a value, or remove it"},
		{more(`admin: {token_file: FILE(bytes)}`), "admin.token_file: must be a file with a single line, the token"},
		{more(`admin: {token: ""}`), "admin.token: is empty; write a value, or remove it"},
		{more(`claim_check: {url: ""}`), "claim_check.url: is empty; write a value, or remove it"},
		{more(`claim_check: {url: "${NO:-}"}`), "claim_check.url: is "},
		{more(`dedup: {bbolt: {path: ""}}`), "dedup.bbolt.path: is empty; write a value, or remove it"},
		{more(`dedup: {bbolt: {path: "${NO:-}"}}`), "dedup.bbolt.path: is "},
		{more(`journal: {path: ""}`), "journal.path: is empty; write a value, or remove it"},
		{more(`tracing: {otlp_endpoint: ""}`), "tracing.otlp_endpoint: is empty; write a value, or remove it"},
		{more(`endpoints: [{}]`), "endpoints[0].external_id: is required"},
		{more(`subscriber: {files: [""]}`), "subscriber.files[0]: is empty; write a value, or remove it"},
	} {
		text := files.Replace(c.replace[1])
		if c.replace[0] != "" {
			text = strings.Replace(small, c.replace[0], text, 1)
		}
		got := ""
		if _, err := Parse("agrimill.yaml", []byte(text), smallEnv); err != nil {
			got, _, _ = strings.Cut(err.Error(), "\n")
		}
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%.80q: got %q, want %q", c.replace[1], got, c.want)
		}
		if c.want != "" && c.want != "is empty" && !regexp.MustCompile(`^agrimill\.yaml:\d+:\d+: `).MatchString(got) && !strings.Contains(got, "UTF-8") {
			t.Errorf("%.80q: got %q, want a place in it", c.replace[1], got)
		}
	}
}

// Each sink says itself which topics and paths it can store, also those of the poison queue.
func TestTopicsOfEachSink(t *testing.T) {
	kinds := map[string]string{
		"nats": "{nats: {}}", "kafka": "{kafka: {brokers: \"b:9092\"}}", "blob": "{blob: {url: \"file:///data/archive\"}}", "log": "{log: {}}",
	}
	long := strings.Repeat("l", 230)
	for _, c := range []struct{ topic, takenBy string }{
		{"{tenant}.{type}", "nats kafka blob log"},
		{"{filename|any text: * > / ..}", "nats kafka blob log"},
		{"a.{type|none}", "nats kafka blob log"},
		{"t/{type|none}", "nats log"},
		{"t*", "log"},
		{"a//b", "nats log"},
		{"a..{type}", "log"},
		{"{type}.", "log"},
		{"a b", "log"},
		{"ü.{type}", "nats log"},
		{"a_b.{type}", "nats kafka blob log"},
		{"a:b.{type}", "nats blob log"},
		{"%{type}", "nats log"},
		{long + ".{type}", "nats kafka blob log"},
		{long + ".{tenant}", "nats blob log"}, // an ID has 36 letters
		{strings.Repeat("s.", 600) + "{type}", "nats log"},
		{strings.Repeat("l", 3000), "blob log"},
	} {
		for _, kind := range []string{"nats", "kafka", "blob", "log"} {
			for path, replacement := range map[string][2]string{
				"routes[0].to.topic": {"to: {sink: farm}", "to: {sink: farm, topic: \"" + c.topic + "\"}"},
				"poison.topic":       {"poison: {sink: farm", "poison: {sink: farm, topic: \"" + c.topic + "\""},
			} {
				if path == "poison.topic" && strings.Contains(c.topic, "{") {
					continue
				}
				text := strings.Replace(small, farmSink, "  farm: "+kinds[kind]+"\n", 1)
				text = strings.Replace(text, replacement[0], replacement[1], 1)
				_, err := Parse("agrimill.yaml", []byte(text), smallEnv)
				want := ""
				if !strings.Contains(c.takenBy, kind) {
					want = path + ": cannot be a topic of the " + kind + " sink: "
				}
				if got := fmt.Sprint(err); (want == "") != (err == nil) || !strings.Contains(got, want) {
					t.Errorf("%s, %s %.40q: got %.200s, want %q", kind, path, c.topic, got, want)
				}
			}
		}
	}
}

// A layout of a bucket, and its address, are refused where nothing could be stored, or elsewhere than meant.
func TestBuckets(t *testing.T) {
	for _, c := range []struct{ blob, want string }{
		{"url: \"file:///data/archive\"", ""},
		{"url: \"file://./archive\"", ""},
		{"url: \"file://localhost/archive\"", ""},
		{"url: \"file:///archive?create_dir=true&dir_file_mode=0750\"", ""},
		{"url: \"file://archive\"", "sinks.farm.blob.url: must have three slashes before the directory, such as file:///var/lib/agrimill"},
		{"url: \"file://var/lib/archive?create_dir=true\"", "sinks.farm.blob.url: must have three slashes"},
		{"url: \"file:///archive#2026\"", "sinks.farm.blob.url: must not have a fragment, which nobody reads: write # in a name as %23"},
		{"url: \"file:archive\"", "sinks.farm.blob.url: must have three slashes"},
		{"url: \"file://\"", "sinks.farm.blob.url: must name a directory"},
		{"url: \"file://.\"", "sinks.farm.blob.url: must name a directory"},
		{"url: \"file:///archive?created_dir=true\"", "sinks.farm.blob.url: has a wrong setting: invalid query parameter \"created_dir\""},
		{"url: \"file:///archive?dir_file_mode=rwx\"", "sinks.farm.blob.url: has a wrong setting: "},
		{"url: \"file:///archive\", path: \"/{topic}/{id}\"", "sinks.farm.blob.path: makes keys that no bucket takes: invalid object key: it has a path element that is empty, '.' or '..'"},
		{"url: \"file:///archive\", path: \"../{topic}/{id}\"", "sinks.farm.blob.path: makes keys that no bucket takes"},
		{"url: \"file:///archive\", path: \"a//{topic}/{id}\"", "sinks.farm.blob.path: makes keys that no bucket takes"},
		{"url: \"file:///archive\", path: \"{topic}/{id}/{filename}\"", "warning: sinks.farm.blob.path: needs {filename}: messages without it go to the poison queue"},
	} {
		text := strings.Replace(small, farmSink, "  farm: {blob: {"+c.blob+"}}\n", 1)
		config, err := Parse("agrimill.yaml", []byte(text), smallEnv)
		got := fmt.Sprint(err)
		if err == nil {
			got = ""
			for _, w := range config.Warnings {
				got += w.String()
			}
		}
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", c.blob, got, c.want)
		}
	}
	text := strings.Replace(small, "poison: {", "claim_check: {url: \"file://payloads\"}\npoison: {", 1)
	if got, want := onlyProblem(t, text, smallEnv), "agrimill.yaml:13:20: claim_check.url: must have three slashes before the directory, such as file:///var/lib/agrimill"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A filter is told of if nobody takes what it refuses, and nobody said what is to happen to it.
func TestWarnsOfWhatFiltersDrop(t *testing.T) {
	const (
		warning  = "routes[0].filter: makes messages that it refuses be confirmed and dropped: no other route takes all of them; add a route without a filter for the rest, or say with subscriber.unmatched what is to happen: confirm or quarantine"
		endpoint = "endpoints: [{external_id: \"a:b\", capabilities: [{type: \"img:png\", direction: RECEIVE}, {type: \"img:bmp\", direction: SEND_RECEIVE}, {type: \"a:b\", direction: SEND}], subscriptions: [\"img:png\", \"img:bmp\"], " +
			"application_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01, software_version_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01}]\n"
		pictures = "filter: {type: \"img:*\"}"
		zips     = "filter: {filename: \"*.zip\"}"
		cel      = "filter: {expr: 'msgtype == \"img:png\"'}"
	)
	other := func(from string) string {
		return "  - {name: other, from: {gateway: " + from + "}, to: {sink: farm}}\n"
	}
	for _, c := range []struct{ name, from, filter, more, want string }{
		{"everything is taken", "all", "", "", ""},
		{"types", "all", pictures, "", warning},
		{"file names", "\"img:png\"", zips, "", warning},
		{"expression", "all", cel, "", warning},
		{"farm data", "all", "filter: {farm: {machine: [Mower]}}", "", warning},
		{"the rest is taken", "all", cel, other("all"), ""},
		{"the rest of the type is taken", "\"img:png\"", zips, other("\"img:png\""), ""},
		{"all of any type is taken", "\"img:png\"", zips, other("everything"), ""},
		{"another type is taken", "\"img:png\"", zips, other("\"img:bmp\""), warning},
		{"one event of two is taken", "all", cel, other("FILE_RECEIVED"), warning},
		{"the rest is no data", "everything", cel, other("all"), ""},
		{"no data", "ENDPOINT_DELETED", cel, "", ""},
		{"all that is received is taken", "all", pictures, endpoint, ""},
		{"one type of two is taken", "all", "filter: {type: \"img:png\"}", endpoint, warning},
		{"the other type is taken", "all", "filter: {type: \"img:png\"}", other("\"img:bmp\"") + endpoint, ""},
		{"said", "all", cel, "subscriber: {unmatched: confirm}\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.NewReplacer("gateway: all", "gateway: "+c.from, "{sink: farm}\npoison", "{sink: farm}\n    "+c.filter+"\n"+c.more+"poison").Replace(small)
			got := []string{}
			for _, w := range parse(t, text, smallEnv).Warnings {
				got = append(got, w.Path+": "+w.Message+"; "+w.Suggestion)
			}
			if want := strings.Fields(c.want); len(got) != min(1, len(want)) || len(got) == 1 && got[0] != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Templates with values that messages of the route may lack are told, and types that no endpoint
// subscribes to.
func TestWarnsOfWhatIsMissing(t *testing.T) {
	const endpoint = "endpoints: [{external_id: \"a:b\", capabilities: [{type: \"img:png\", direction: RECEIVE}], subscriptions: [%s], " +
		"application_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01, software_version_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01}]\n"
	for _, c := range []struct{ from, to, more, want string }{
		{"all", "{sink: farm, topic: \"{tenant}.{type}.{receiver}.{event}\"}", "", ""},
		{"all", "{sink: farm, topic: \"{filename}\"}", "", "routes[0].to.topic: needs {filename}: messages without it go to the poison queue; write {filename|none}, or another text for them"},
		{"all", "{sink: farm, topic: \"{filename|none}\"}", "", ""},
		{"all", "{sink: farm, topic: \"{context}\"}", "", "routes[0].to.topic: needs {context}:"}, // files have none
		{"MESSAGE_RECEIVED", "{sink: farm, topic: \"{context}\"}", "", ""},
		{"all", "{sink: farm, topic: \"{meta:team}\"}", "", "routes[0].to.topic: needs {meta:team}:"},
		{"all", "{sink: farm, topic: \"{meta:team}\"}\n    set: {team: tenant}", "", ""},
		{"everything", "{sink: farm, topic: \"{event}.{type}\"}", "", "routes[0].to.topic: needs {type}:"},
		{"ENDPOINT_DELETED", "{sink: farm, topic: \"{tenant}\"}", "", "routes[0].to.topic: needs {tenant}:"},
		{"all", "{gateway: {tenant: 5b7c2f1e-6f0a-4b53-9a3e-1f0f3f1d2c11, endpoint: 0d7f8f4e-2f5b-4a55-8f0a-3c9b7a6d1e02, type: \"{teamset}\"}}", "", "routes[0].to.gateway.type: needs {teamset}:"},

		{"img:png", "{sink: farm}", "", ""}, // endpoints are made elsewhere
		{"img:png", "{sink: farm}", fmt.Sprintf(endpoint, `"img:png"`), ""},
		{"img:png", "{sink: farm}", fmt.Sprintf(endpoint, ""), "routes[0].from.gateway: receives only what is sent to an endpoint directly: none of the endpoints subscribes to message type img:png; add it to an endpoint's subscriptions"},
		{"img:bmp", "{sink: farm}", fmt.Sprintf(endpoint, ""), "routes[0].from.gateway: may receive nothing: none of the endpoints receives message type img:bmp"},
		{"img:*", "{sink: farm}", "", "routes[0].from.gateway: is one message type, without wildcards: \"img:*\"; use all, with filter: {type: …}"},
		{"img:*", "{sink: farm}", fmt.Sprintf(endpoint, ""), "routes[0].from.gateway: is one message type, without wildcards"},
		{"all", "{sink: farm}", strings.ReplaceAll(fmt.Sprintf(endpoint, `"img:png"`), "img:png", "img:*"), "endpoints[0].capabilities[0].type: is one message type, without wildcards: \"img:*\"; list each type"},
		{"all", "{sink: farm}", strings.ReplaceAll(fmt.Sprintf(endpoint, `"img:png"`), "img:png", "img:png,img:bmp"), "endpoints[0].capabilities[0].type: is one message type, without wildcards"},
	} {
		text := strings.NewReplacer("gateway: all", fmt.Sprintf("gateway: %q", c.from), "{sink: farm}\npoison", c.to+"\n"+c.more+"poison").Replace(small)
		got := parse(t, text, smallEnv).Warnings
		switch {
		case c.want == "" && len(got) > 0:
			t.Errorf("%s → %s: %v", c.from, c.to, got)
		case c.want != "" && (len(got) != 1 || !strings.Contains(got[0].String(), c.want)):
			t.Errorf("%s → %s: %v, want %q", c.from, c.to, got, c.want)
		}
	}
}

// A message type that no configured endpoint receives is misspelled, wherever the file names one. Without endpoints
// they are managed elsewhere, and any type may exist.
func TestMisspelledMessageTypes(t *testing.T) {
	const endpoint = "endpoints: [{external_id: \"urn:a:b\", application_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01, software_version_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01, " +
		"subscriptions: [\"img:png\"], capabilities: [{type: \"img:png\", direction: RECEIVE}, {type: \"shp:shape:zip\"}, {type: \"gps:info\", direction: SEND}]}]\n"
	files := func(list string) string { return "subscriber: {files: " + list + "}\n" }
	contents := func(more string) [2]string {
		return [2]string{"4222\"}", "4222\", cloud_events: {content_types: {\"img:pgn\": image/png}}}" + more}
	}
	const none, unknown = "", "is not a message type that the endpoints receive"
	const use = "; use img:png or shp:shape:zip"
	for _, c := range []struct {
		more    string
		replace [2]string
		want    string
	}{
		{endpoint + files(`["img:png", "shp:shape:zip"]`), [2]string{}, none},
		{endpoint + files(`["img:png", "img:pgn"]`), [2]string{}, "subscriber.files[1]: " + unknown + ": \"img:pgn\"; did you mean img:png?"},
		{endpoint + files(`"IMG:PNG"`), [2]string{}, "subscriber.files: " + unknown + ": \"IMG:PNG\"; did you mean img:png?"},
		{endpoint + files(`["gps:info"]`), [2]string{}, "subscriber.files[0]: " + unknown + ": \"gps:info\"" + use},
		{endpoint + files(`["*"]`), [2]string{}, "subscriber.files[0]: " + unknown + ": \"*\"" + use},
		{endpoint + files(`["all"]`), [2]string{}, "subscriber.files[0]: " + unknown + ": \"all\"" + use},
		{files(`["img:pgn"]`), [2]string{}, none},
		{files(`["img:pgn"]`), [2]string{"gateway: all", `gateway: "img:png"`}, "subscriber.files[0]: is not a message type that a route receives: \"img:pgn\"; did you mean img:png?"},
		{files(`["img:png"]`), [2]string{"gateway: all", `gateway: "img:png"`}, none},
		{files(`["img:png"]`), [2]string{"gateway: all", "gateway: ENDPOINT_DELETED"}, "subscriber.files[0]: is not a message type that a route receives: \"img:png\""},

		{endpoint, [2]string{"{gateway: all}", "{gateway: all}\n    filter: {type: [\"img:*\", \"ihm:*\"]}"}, "routes[0].filter.type[1]: warning: " + unknown + ": \"ihm:*\""},
		{endpoint, [2]string{"{gateway: all}", "{gateway: all}\n    filter: {type: \"img:*\"}"}, none},
		{"", [2]string{"{gateway: all}", "{gateway: all}\n    filter: {type: \"ihm:*\"}"}, none},
		{endpoint, contents(""), "sinks.farm.nats.cloud_events.content_types.img:pgn: warning: " + unknown + ": \"img:pgn\"; did you mean img:png?"},
		{"", contents(""), none},
	} {
		text := strings.Replace(small, c.replace[0], c.replace[1], 1) + c.more
		config, err := Parse("agrimill.yaml", []byte(text), smallEnv)
		var got []string
		if err != nil {
			got = append(got, err.Error())
		} else {
			for _, p := range config.Warnings {
				if strings.Contains(p.Message, "message type that") {
					got = append(got, p.Path+": warning: "+strings.SplitN(p.String(), p.Path+": ", 2)[1])
				}
			}
		}
		all := strings.Join(got, "\n")
		if c.want == none && len(got) > 0 || !strings.Contains(all, c.want) {
			t.Errorf("%s%q: got %q, want %q", c.more, c.replace[1], all, c.want)
		}
	}
}

func TestWarnings(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"secret":      {"${SECRET}", "written-here", "agrimill.yaml:5:18: warning: gateway.client_secret: is a secret in plain text; take it from the environment with ${NAME}, or from a file with client_secret_file"},
		"shell":       {"${ID}", "$ID", "agrimill.yaml:4:14: warning: gateway.client_id: is taken as it is: $ID; write ${ID} for the environment variable"},
		"default":     {"${SECRET}", "${NOPE:-written-here}", "agrimill.yaml:5:18: warning: gateway.client_secret: is a secret in plain text; take it from the environment with ${NAME}, or from a file with client_secret_file"},
		"password":    {"nats://127", "nats://me:written-here@127", "agrimill.yaml:8:17: warning: sinks.farm.nats.url: contains a password in plain text; take it from the environment with ${NAME}"},
		"memory":      {"poison: {", "claim_check: {url: \"mem://\"}\npoison: {", "agrimill.yaml:13:20: warning: claim_check.url: is in memory: its contents are lost when agrimill exits; use file:///… or another persistent bucket"},
		"deprecated":  {"poison: {", "endpoints: [{external_id: \"a:b\", type: farming_software, capabilities: [{type: t}], application_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01, software_version_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01}]\npoison: {", "agrimill.yaml:13:40: warning: endpoints[0].type: is deprecated; the service will reject it in the future; write cloud_software"},
		"unused":      {"routes:", "  other: {log: {}}\nroutes:", "agrimill.yaml:9:10: warning: sinks.other: is not used by any route; remove it, or name it in a route's to.sink"},
		"log":         {"to: {sink: farm}", "to: {sink: l}\n  - {name: b, from: {gateway: all}, to: {sink: farm}}\nx-sinks: {}", ""},
		"plain":       {"base_url: http://127.0.0.1:8081", "base_url: http://gateway.example", "agrimill.yaml:2:13: warning: gateway.base_url: is not encrypted: the client secret, tokens and data can be read in transit; use https"},
		"circle":      {"poison: {", "  - {name: back, from: {nats: {subject: \"agrimill.*.>\"}}, to: {gateway: {tenant: 5b7c2f1e-6f0a-4b53-9a3e-1f0f3f1d2c11, endpoint: 0d7f8f4e-2f5b-4a55-8f0a-3c9b7a6d1e02}}}\npoison: {", "agrimill.yaml:12:9: warning: routes[0].to.topic: publishes to subjects that route back sends back to the gateway; use a separate subject for the way back"},
		"own, NATS":   {"poison: {", "  - {name: b, from: {nats: {subject: \"agrimill.*\"}}, to: {sink: farm, topic: copies.x}}\npoison: {", "agrimill.yaml:13:38: warning: routes[1].from.nats.subject: takes what is in the poison queue: what this route poisons comes back to it, without end; leave the topic of the poison queue out"},
		"own, stream": {"poison: {", "  - {name: b, from: {nats: {stream: orders, subject: \">\"}}, to: {sink: farm, topic: copies.x}}\n  - {name: c, from: {nats: {stream: AGRIMILL, subject: \">\"}}, to: {sink: farm, topic: copies.y}}\npoison: {", "agrimill.yaml:14:56: warning: routes[2].from.nats.subject: takes what is in the poison queue: what this route poisons comes back to it, without end; leave the topic of the poison queue out"},
		"own, Kafka":  {"nats: {url: \"nats://127.0.0.1:4222\"}\nroutes:", "kafka: {brokers: \"b:1\"}\nroutes:\n  - {name: b, from: {kafka: {brokers: \"b:1\", topics: agrimill.poison, group: g}}, to: {sink: farm, topic: copies}}", "agrimill.yaml:10:54: warning: routes[0].from.kafka.topics: takes what is in the poison queue: what this route poisons comes back to it, without end; leave the topic of the poison queue out"},
		"ha, Kafka":   {"nats: {url: \"nats://127.0.0.1:4222\"}", "kafka: {brokers: \"b:1\"}\nha: {nats_kv: {}, stop_without_nats: true}", "agrimill.yaml:1:1: warning: dedup: is known to one instance only: what the former holder stored and did not confirm is stored again by the next one; use dedup.nats_kv"},
		"ha, both":    {"poison: {", "  - {name: b, from: {gateway: all}, to: {sink: k}}\nha: {nats_kv: {}}\npoison: {", "agrimill.yaml:1:1: warning: dedup: is known to one instance only: what the former holder stored and did not confirm is stored again by the next one; use dedup.nats_kv"},
		"ha, window":  {"4222\"}", "4222\", dedup_window: 14s}\nha: {nats_kv: {}}", "agrimill.yaml:8:56: warning: sinks.farm.nats.dedup_window: is shorter than 3 times ha.ttl: what a former holder had begun to store may be stored once more; set at least 15s"},
		"ha, long":    {"poison: {", "  - {name: b, from: {gateway: farm}, to: {sink: farm}}\nha: {nats_kv: {}, ttl: 5m}\npoison: {", "agrimill.yaml:8:11: warning: sinks.farm.nats.dedup_window: is shorter than 3 times ha.ttl: what a former holder had begun to store may be stored once more; set at least 15m0s"},
		"ha, devices": {"poison: {", "ha: {nats_kv: {}}\ndevices: {}\npoison: {", "agrimill.yaml:14:10: warning: devices: are known to one instance only: the next holder decodes time logs without them until they come again; use devices.nats_kv or devices.kafka"},
		"ha, name":    {"poison: {", "ha: {nats_kv: {}}\ndedup: {instance: a}\npoison: {", "agrimill.yaml:14:19: warning: dedup.instance: must not be the same for two instances that run at the same time; leave it out, or take it from the environment"},
		"no tenant":   {"poison: {", "  - {name: back, from: {nats: {subject: \"machines.>\"}}, to: {gateway: {endpoint: 0d7f8f4e-2f5b-4a55-8f0a-3c9b7a6d1e02}}}\npoison: {", "agrimill.yaml:13:71: warning: routes[1].to.gateway: names the sending endpoint but not its tenant: messages without the header x-router-tenant-id go to the poison queue; set tenant to the ID of the endpoint's tenant"},
		"event type":  {"gateway: all", "gateway: message_received", `agrimill.yaml:11:21: warning: routes[0].from.gateway: is treated as a message type: "message_received"; did you mean MESSAGE_RECEIVED?`},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Contains(t, small, test.from)
			text := strings.Replace(small, test.from, test.to, 1)
			if name == "log" {
				text = strings.Replace(text, "sinks:\n", "sinks:\n  l: {log: {}}\n", 1)
				test.want = "agrimill.yaml:13:16: warning: routes[0].to.sink: stores nothing: messages sent there are confirmed and lost; use a log sink only to inspect messages"
			}
			if name == "ha, both" {
				text = strings.Replace(text, "sinks:\n", "sinks:\n  k: {kafka: {brokers: \"b:1\"}}\n", 1)
			}
			c := parse(t, text, smallEnv)
			if len(c.Warnings) != 1 {
				t.Fatalf("c.Warnings has %d elements, want 1: %v", len(c.Warnings), c.Warnings)
			}
			if got := c.Warnings[0].String(); got != test.want {
				t.Fatalf("c.Warnings[0].String() = %q, want %q", got, test.want)
			}
			if got := fmt.Sprint(c.Warnings); strings.Contains(got, "written-here") {
				t.Fatalf("c.Warnings = %q, want no %q in it", got, "written-here")
			}
		})
	}
}

// OpenTelemetry's variables stand in for the section, and what is wrong with them is a
// warning: they may be there for all programs.
func TestTracingFromEnvironment(t *testing.T) {
	const endpoint, general = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
	const file = "tracing: {otlp_endpoint: \"http://file:4318\", service_name: file}\n"
	for name, test := range map[string]struct {
		text          string
		env           map[string]string
		want, service string
		warning       string
	}{
		"nothing":  {"", nil, "", DefaultTracingName, ""},
		"general":  {"", map[string]string{general: "http://a:4318", "OTEL_SERVICE_NAME": "farm"}, "http://a:4318", "farm", ""},
		"signal":   {"", map[string]string{general: "http://a:4318", endpoint: "https://b/x"}, "https://b/x", DefaultTracingName, ""},
		"file":     {file, map[string]string{general: "http://a:4318", "OTEL_SERVICE_NAME": "farm"}, "", "file", ""},
		"disabled": {"", map[string]string{general: "http://a:4318", "OTEL_SDK_DISABLED": "true"}, "", DefaultTracingName, ""},
		"none":     {"", map[string]string{general: "http://a:4318", "OTEL_TRACES_EXPORTER": "none"}, "", DefaultTracingName, ""},
		"otlp":     {"", map[string]string{general: "http://a:4318", "OTEL_TRACES_EXPORTER": "console, otlp"}, "http://a:4318", DefaultTracingName, ""},
		"no URL":   {"", map[string]string{general: "a:4318"}, "", DefaultTracingName, "agrimill.yaml:1:1: warning: tracing.otlp_endpoint: tracing is off: OTEL_EXPORTER_OTLP_ENDPOINT must be an absolute http or https address; e.g. http://127.0.0.1:4318"},
		"grpc":     {"", map[string]string{general: "http://a:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://a:4317", DefaultTracingName, "agrimill.yaml:1:1: warning: tracing.otlp_endpoint: uses http/protobuf: OTEL_EXPORTER_OTLP_PROTOCOL is grpc, which agrimill does not support; set the collector's address for OTLP over HTTP"},
		"json":     {"", map[string]string{general: "http://a:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "http://a:4318", DefaultTracingName, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := parse(t, small+test.text, Options{Env: func(name string) string {
				if value := test.env[name]; value != "" {
					return value
				}
				return smallEnv.Env(name)
			}})
			if string(c.Tracing.Environment) != test.want {
				t.Fatalf("c.Tracing.Environment = %q, want %q", c.Tracing.Environment, test.want)
			}
			if c.Tracing.ServiceName != test.service {
				t.Fatalf("c.Tracing.ServiceName = %q, want %q", c.Tracing.ServiceName, test.service)
			}
			var warnings []string
			for _, w := range c.Warnings {
				warnings = append(warnings, w.String())
			}
			if got := strings.Join(warnings, "\n"); got != test.warning {
				t.Fatalf("warnings = %q, want %q", got, test.warning)
			}
		})
	}
}

func TestSubstitution(t *testing.T) {
	env := environment(map[string]string{"ID": "a: [b", "SECRET": "hidden\r\n", "N": "7", "WAIT": "3s", "ON": "true", "SIZE": "2MiB", "SERVICE": "service"})
	c := parse(t, strings.Replace(small, "client_id: ${ID}", "client_id: x-${ID}-${NO:-d}-$${ID}-$1\n  service_name: '${SERVICE}'\n  stream_idle_timeout: ${WAIT}\n  max_event_size: ${SIZE}", 1)+
		"subscriber: {max_in_flight: \"${N}\", envelope: \"${ON}\"}\n", env)
	testkit.Equal(t, []any{
		c.Gateway.ClientID, c.Gateway.ServiceName, c.Gateway.StreamIdleTimeout, c.Gateway.MaxEventSize, c.Subscriber.MaxInFlight, c.Subscriber.Envelope, c.Gateway.ClientSecret,
	}, []any{"x-a: [b-d-${ID}-$1", "service", 3 * time.Second, 2 << 20, 7, true, Secret("hidden")}) // a value never becomes structure
}

// 0 and nothing are the default, and a default of 0 has a meaning.
func TestZeroIsDefault(t *testing.T) {
	c := parse(t, strings.Replace(small, "4222\"}", "4222\", replicas: 0, stream: \"${NO:-}\", max_age: 0s, dedup_window: 0s}", 1)+
		"shutdown: {timeout: 0s}\nsubscriber: {max_in_flight: 0, chunk_size: 0}\ntracing: {sample_ratio: 0}\nadmin: {token: \"${NO:-}\"}\n", smallEnv)
	if len(c.Warnings) != 0 {
		t.Fatalf("c.Warnings = %+v, want none", c.Warnings)
	}
	plain := parse(t, small, smallEnv)
	testkit.Equal(t, c.Sinks, plain.Sinks)
	testkit.Equal(t, c.Shutdown, plain.Shutdown)
	testkit.Equal(t, c.Subscriber, plain.Subscriber)
	if c.Tracing.SampleRatio != 0 {
		t.Fatalf("c.Tracing.SampleRatio = %v, want 0", c.Tracing.SampleRatio)
	}
	if c.Admin.Token != "" {
		t.Fatalf("c.Admin.Token = %v, want none", c.Admin.Token)
	}
}

// A value from the environment is in no problem: it may be a secret in the wrong place.
func TestEnvironmentIsNotTold(t *testing.T) {
	got := onlyProblem(t, small+"retry: {max_attempts: \"${SECRET}\"}\n", smallEnv)
	if want := `agrimill.yaml:14:23: retry.max_attempts: must be a whole number, not the value from the environment`; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestSecretsFromFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("secret", "from-a-file\r\n")
	write("bom", "\ufefffrom-a-file\n")
	write("empty", "\n")
	write("lines", "a\nb\n")
	write("large", strings.Repeat("x", maxSecretSize+1))
	load := func(line string) (*Config, error) {
		t.Helper()
		write("agrimill.yaml", strings.Replace(small, "client_secret: ${SECRET}", line, 1))
		return Load(filepath.Join(dir, "agrimill.yaml"), smallEnv)
	}
	for _, path := range []string{"secret", "./secret", "bom", filepath.Join(dir, "secret")} {
		c := testkit.Must(load("client_secret_file: " + path))(t)
		if len(c.Warnings) != 0 {
			t.Fatalf("c.Warnings = %+v, want none", c.Warnings)
		}
		if string(c.Gateway.ClientSecret) != "from-a-file" {
			t.Fatalf("c.Gateway.ClientSecret = %q, want from-a-file", c.Gateway.ClientSecret)
		}
	}
	for line, want := range map[string]string{
		"client_secret_file: empty":                              "must be a file with a single line, the client secret",
		"client_secret_file: lines":                              "must be a file with a single line, the client secret",
		"client_secret_file: large":                              "is too large",
		"client_secret_file: .":                                  "cannot be read: is a directory",
		"client_secret: ${SECRET}\n  client_secret_file: secret": "cannot be combined with client_secret; remove one",
		"client_secret: ${SECRET}\n  tls: {ca_file: secret}":     "gateway.tls.ca_file: contains no PEM certificate",
		"client_secret: ${SECRET}\n  tls: {cert_file: secret}":   "gateway.tls.cert_file: needs key_file",
	} {
		_, err := load(line)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("err = %v, want %q in it: %v", err, want, line)
		}
		if got := err.Error(); strings.Contains(got, "from-a-file") {
			t.Fatalf("err.Error() = %q, want no %q in it", got, "from-a-file")
		}
	}
}

// Where the secrets are not, everything else can be checked.
func TestAllowMissing(t *testing.T) {
	text := strings.Replace(small, "client_secret: ${SECRET}", "client_secret_file: /nowhere/secret\n  tls: {ca_file: /nowhere/ca.pem}", 1) +
		"retry: {max_attempts: \"${ATTEMPTS}\"}\nadmin: {token: \"${TOKEN}\"}\n"
	problems := problemsOf(t, text, environment(nil))
	if len(problems.List) != 5 {
		t.Fatalf("problems.List has %d elements, want 5: %v", len(problems.List), problems)
	}
	options := environment(nil)
	options.AllowMissing = true
	c := parse(t, text, options)
	if len(c.Warnings) != 5 {
		t.Fatalf("c.Warnings has %d elements, want 5: %v", len(c.Warnings), c.Warnings)
	}
	testkit.Equal(t, []string{c.Warnings[0].String(), c.Warnings[4].String()}, []string{
		"agrimill.yaml:4:14: warning: gateway.client_id: needs the environment variable ID, which is unset or empty; set it, or write ${ID:-default}",
		"agrimill.yaml:16:16: warning: admin.token: needs the environment variable TOKEN, which is unset or empty; set it",
	})
	parse(t, strings.Replace(text, `nats: {url: "nats://127.0.0.1:4222"}`, "kafka: {brokers: [\"${BROKER}\"]}", 1), options)
	parse(t, strings.Replace(text, "  client_id:", "  application_id: ${APP}\n  software_version_id: ${VERSION}\n  client_id:", 1)+
		"endpoints: [{external_id: \"urn:x:y\", capabilities: [{type: t}]}]\n", options)
	testkit.Contains(t, onlyMistake(problemsOf(t, text+"nope: {}\n", options)), "nope: is not a known key")
}

// onlyMistake returns the one problem that is no warning.
func onlyMistake(problems *Problems) string {
	if problems.Errors() == 1 {
		for _, p := range problems.List {
			if p.Severity == SeverityError {
				return p.String()
			}
		}
	}
	return problems.Error()
}

func TestAnchors(t *testing.T) {
	c := parse(t, `x-nats: &nats {url: "nats://10.0.0.1", connect_timeout: 1s}
x-more: &more {replicas: 3, stream: NO}
`+strings.Replace(small, `nats: {url: "nats://127.0.0.1:4222"}`, "nats: {<<: [*nats, *more], stream: MINE}\n  twin: {nats: {<<: *nats, subject_prefix: twin}}", 1)+
		"  # twin is used\ndedup: {nats_kv: *nats}\nlog: {level: debug}\n", smallEnv)
	farm := c.Sinks["farm"].NATS // whose own stream comes before the one that is merged
	testkit.Equal(t, []any{farm.URL, farm.ConnectTimeout, farm.Replicas, farm.Stream, c.Dedup.Store, c.Dedup.NATSKV.URL},
		[]any{"nats://10.0.0.1", time.Second, 3, "MINE", DedupNATSKV, "nats://10.0.0.1"})
}

// A file cannot make reading it expensive.
func TestHostile(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("x-a0: &a0 [{name: x}]\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&bomb, "x-a%d: &a%d [*a%d, *a%d]\n", i, i, i-1, i-1)
	}
	var merges strings.Builder
	merges.WriteString("x-a0: &a0 {name: x}\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&merges, "x-a%d: &a%d {<<: [*a%d, *a%d]}\n", i, i, i-1, i-1)
	}
	for name, text := range map[string]string{
		"scalar":        "hello",
		"list":          "- a\n- b",
		"not UTF-8":     "gateway:\n  base_url: \xff\xfe",
		"NUL":           "gateway: \"\x00\"",
		"deep flow":     strings.Repeat("[", 100_000),
		"deep block":    strings.Repeat("- ", 50_000),
		"deep sections": "routes: " + strings.Repeat("{to: ", 200) + "x" + strings.Repeat("}", 200),
		"large":         strings.Repeat("# x\n", MaxFileSize/4+1),
		"aliases":       bomb.String() + "routes: *a39\n",
		"merges":        merges.String() + "gateway: {<<: *a39}\n",
		"own merge":     "x-a: &a {<<: *a}\ngateway: *a\n",
		"own list":      "routes: &a [*a, *a]\n",
		"complex key":   "? [a, b]\n: c\n",
		"many mistakes": "gateway: {" + strings.Repeat("x, ", 10_000) + "}",
		"huge numbers":  small + "retry: {max_attempts: 99999999999999999999}\nsubscriber: {chunk_size: 99999999999999999999999, stream_down_for: 99999999h, file_hold: 999999999d}\n",
	} {
		t.Run(name, func(t *testing.T) {
			problems := problemsOf(t, text, smallEnv)
			if len(problems.List) > maxProblems {
				t.Fatalf("len(problems.List) = %d, want at most %d", len(problems.List), maxProblems)
			}
			for _, p := range problems.List {
				if p.Message == "" {
					t.Fatalf("p.Message = %q, want some", p.Message)
				}
				if got, want := len(p.Message), 4<<10; got >= want {
					t.Fatalf("len(p.Message) = %d, want less than %d", got, want)
				}
			}
			t.Log(problems.List[0])
		})
	}
	for path, want := range map[string]string{
		"/dev/zero": "is too large", t.TempDir(): "cannot be read: is a directory",
		filepath.Join(t.TempDir(), "no.yaml"): "no.yaml: cannot be read: no such file or directory",
	} {
		if _, err := Load(path, smallEnv); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", path, err, want)
		}
	}
}

// Nothing that prints a configuration prints a secret.
func TestSecretsAreNotPrinted(t *testing.T) {
	c := parse(t, strings.Replace(small, "nats://127.0.0.1:4222", "nats://me:${SECRET}@127.0.0.1:4222,nats://127.0.0.1:1?x=${SECRET}#${SECRET}", 1)+
		"admin: {token: \"${SECRET}\"}\ntracing: {headers: {key: \"${SECRET}\"}}\n"+
		"claim_check: {url: \"mem://payloads?key=${SECRET}\"}\n", smallEnv)
	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(handler).Info("config", "config", c, "secret", c.Gateway.ClientSecret, "sink", c.Sinks["farm"].NATS, "all", c)
	}
	text := testkit.Must(json.Marshal(c))(t)
	nats := c.Sinks["farm"].NATS
	for _, out := range []string{
		log.String(), string(text), fmt.Sprint(c, *nats), fmt.Sprintf("%+v %#v %q %x %s %d", c.Gateway, c.Gateway, c.Gateway.ClientSecret, c.Gateway.ClientSecret, *nats, c.Gateway.ClientSecret),
		fmt.Sprintf("%v %#v %+v", nats, nats, nats), printed(c), printed(*c),
		fmt.Sprint(c.Tracing, c.Admin), fmt.Errorf("x: %v", c.Admin.Token).Error(),
	} {
		if strings.Contains(out, "hidden-secret") {
			t.Fatalf("out = %q, want no %q in it", out, "hidden-secret")
		}
		if strings.Contains(out, fmt.Sprintf("%x", "hidden-secret")) {
			t.Fatalf("out = %q, want no secret in hexadecimal", out)
		}
	}
	testkit.Contains(t, fmt.Sprint(c.Gateway), "[redacted]")
	for address, want := range map[string]string{
		nats.URL: "nats://redacted@127.0.0.1:4222,nats://127.0.0.1:1?redacted", "http://[::1": "[redacted]",
		"farm:secret@host:4222, 127.0.0.1:4222,localhost": "redacted@host:4222,127.0.0.1:4222,localhost",
		"nats://farm:12/secret@host":                      "[redacted]", "nats://farm:12?secret@host": "[redacted]", "farm:12#secret@host": "[redacted]", "farm:12%secret@host": "[redacted]",
	} {
		if got := URL(address).String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	testkit.Contains(t, nats.URL, "hidden-secret")
	if got := Secret("").String(); got != "" {
		t.Fatalf("String = %q, want none", got)
	}
}

// printed returns v as each verb of package fmt prints it.
func printed(v any) (all string) {
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		all += fmt.Sprintf(verb, v)
	}
	return all
}

func TestProblem(t *testing.T) {
	p := Problem{Severity: SeverityError, File: "f", Message: "is bad"}
	if got, want := p.String(), "f: is bad"; got != want {
		t.Fatalf("p.String() = %q, want %q", got, want)
	}
	text := testkit.Must(json.Marshal(Problem{Severity: SeverityWarning, File: "f", Line: 1, Column: 2, Path: "a.b", Message: "m", Suggestion: "s"}))(t)
	if got, want := string(text), `{"severity":"warning","file":"f","line":1,"column":2,"path":"a.b","message":"m","suggestion":"s"}`; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

// The examples can be used as they are.
func TestExamples(t *testing.T) {
	for name, want := range map[string]struct{ endpoints, sinks, routes, warnings, lines int }{
		"minimal.yaml": {1, 1, 1, 0, 20}, "full.yaml": {2, 4, 9, 1, 1000}, // the warning is about the log sink
	} {
		path := filepath.Join("..", "..", "examples", name)
		c := testkit.Must(Load(path, exampleEnvironment))(t)
		text := testkit.Must(os.ReadFile(path))(t)
		if len(c.Endpoints) != want.endpoints || len(c.Sinks) != want.sinks || len(c.Routes) != want.routes || len(c.Warnings) != want.warnings || bytes.Count(text, []byte("\n")) > want.lines {
			t.Errorf("%s has %d endpoints, %d sinks, %d routes, %d lines, warnings %v", name, len(c.Endpoints), len(c.Sinks), len(c.Routes), bytes.Count(text, []byte("\n")), c.Warnings)
		}
	}
	c := testkit.Must(Load(filepath.Join("..", "..", "examples", "full.yaml"), exampleEnvironment))(t)

	// What it says is mostly the defaults.
	testkit.Equal(t, c.Publisher, parse(t, small, smallEnv).Publisher)
	testkit.Equal(t, c.Retry, parse(t, small, smallEnv).Retry)
}

func FuzzParse(f *testing.F) {
	f.Add(small)
	for _, path := range []string{"testdata/broken.yaml", "../../examples/full.yaml", "../../examples/minimal.yaml"} {
		data := testkit.Must(os.ReadFile(path))(f)
		f.Add(string(data))
	}
	f.Add("x-a: &a {<<: *a}\ngateway: *a\n")
	f.Add("routes: &a [*a]\n")
	f.Add("gateway: {client_secret: \"${A:-${B}}\"}")
	f.Fuzz(func(t *testing.T, text string) {
		options := Options{Env: func(name string) string {
			if name == "SECRET" {
				return "hidden-secret"
			}
			return ""
		}}
		c, err := Parse("agrimill.yaml", []byte(text), options)
		var problems *Problems
		switch {
		case err == nil:
			if len(c.Routes) == 0 || c.Poison.Sink == "" || c.Gateway.ClientSecret == "" {
				t.Fatal("incomplete, and taken")
			}
		case !errors.As(err, &problems) || problems.Errors() == 0:
			t.Fatalf("error of another kind: %v", err)
		case strings.Contains(err.Error(), "hidden-secret"):
			t.Fatal("tells a secret")
		case len(problems.List) > maxProblems:
			t.Fatal("too many problems")
		}
	})
}

// What became of a key is told wherever it was, and of no key that there is.
func TestFormerKeys(t *testing.T) {
	for _, c := range []struct{ section, want string }{
		{"subscriber: {nack: {initial: 1s}}", "subscriber.nack: is not a known key; remove it: it is always 100ms, doubling up to 30s"},
		{"subscriber: {max_inline: 1}", "subscriber.max_inline: is not a known key; use gateway.max_payload_size"},
		{"dedup: {bbolt: {path: x, max_entries: 1}}", "dedup.bbolt.max_entries: is not a known key; it is now dedup.max_entries"},
		{"dedup: {nats_kv: {session_ttl: 6s}}", "dedup.nats_kv.session_ttl: is not a known key; remove it: it is always 10s, and at most half of ha.ttl"},
		{"x-s: &s {max_pending: 1}\nsinks: {farm: {nats: {<<: *s}}}", "sinks.farm.nats.max_pending: is not a known key; remove it: it is always 4096"},
	} {
		text := small + c.section + "\n"
		if strings.Contains(c.section, "sinks:") {
			text = strings.Replace(small, "sinks:\n"+farmSink, c.section+"\n", 1)
		}
		if got := onlyProblem(t, text, smallEnv); !strings.Contains(got, " "+c.want) {
			t.Errorf("%s: got %q, want %q in it", c.section, got, c.want)
		}
	}
	walk(reflect.TypeFor[Config](), "", func(path string, _ field) {
		if text := formerKey(strings.ReplaceAll(path, "<name>", "farm")); text != "" {
			t.Errorf("%s is a key, and formerly %q", path, text)
		}
	})
}
