package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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

// environment is a map as Options.Env.
func environment(values map[string]string) Options {
	return Options{Env: func(name string) string { return values[name] }}
}

var smallEnv = environment(map[string]string{"ID": "app", "SECRET": "hidden-secret"})

// problemsOf reads a configuration that has mistakes.
func problemsOf(t *testing.T, text string, options Options) *Problems {
	t.Helper()
	_, err := Parse("bridge.yaml", []byte(text), options)
	var problems *Problems
	require.ErrorAs(t, err, &problems)
	require.Positive(t, problems.Errors())
	return problems
}

// onlyProblem reads a configuration that has one mistake.
func onlyProblem(t *testing.T, text string, options Options) string {
	t.Helper()
	problems := problemsOf(t, text, options)
	require.Len(t, problems.List, 1, problems)
	return problems.List[0].String()
}

func parse(t *testing.T, text string, options Options) *Config {
	t.Helper()
	c, err := Parse("bridge.yaml", []byte(text), options)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSmall(t *testing.T) {
	c := parse(t, small, smallEnv)
	require.Empty(t, c.Warnings)
	require.Equal(t, "app", c.Gateway.ClientID)
	require.Equal(t, "hidden-secret", c.Gateway.ClientSecret.Reveal())
	require.Equal(t, 2*time.Minute, c.Gateway.StreamIdleTimeout)
	require.Equal(t, "nats", c.Sinks["farm"].Kind())
	require.Equal(t, "AGRIMILL", c.Sinks["farm"].NATS.Stream)
	require.Equal(t, "{tenant|none}.{type|none}", c.Routes[0].To.Topic)
	require.Equal(t, subscriber.AllData, c.Routes[0].From.GatewayTopic())
	require.Equal(t, "poison", c.Poison.Topic)
	require.Equal(t, DedupMemory, c.Dedup.Store)
	require.Equal(t, PayloadInline, c.Subscriber.Payload)
	require.Equal(t, DefaultAdminAddress, c.Admin.Address)
}

// Every mistake of a file is told at once, with its place.
func TestEveryMistake(t *testing.T) {
	_, err := Load(filepath.Join("testdata", "broken.yaml"), smallEnv)
	var problems *Problems
	require.ErrorAs(t, err, &problems)
	got := strings.ReplaceAll(problems.Error(), "testdata"+string(filepath.Separator), "") + "\n"
	golden := filepath.Join("testdata", "broken.txt")
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
	require.NotContains(t, got, "hunter", "a secret of the file")
}

func TestOneMistake(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"unknown key":    {"poison: {", "poisen: {sink: farm}\npoison: {", `bridge.yaml:13:1: poisen: is not a key here; did you mean poison?`},
		"misplaced":      {"poison: {", "max_in_flight: 1\npoison: {", "bridge.yaml:13:1: max_in_flight: is not a key here; it belongs to subscriber.max_in_flight or routes[].from.nats.max_in_flight"},
		"dashes":         {"client_secret: ", "client-secret: ", "bridge.yaml:5:3: gateway.client-secret: is not a key here; did you mean gateway.client_secret?"},
		"unset variable": {"${ID}", "${NOPE}", "bridge.yaml:4:14: gateway.client_id: needs the environment variable NOPE, which is not set; set it, or write ${NOPE:-default}"},
		"half variable":  {"${ID}", "${ID", "bridge.yaml:4:14: gateway.client_id: has ${ without }; write $${ for the characters themselves"},
		"bad variable":   {"${ID}", "${1D}", "bridge.yaml:4:14: gateway.client_id: has ${1D}, which is no name of an environment variable; write ${NAME} or ${NAME:-default}, or $${ for the characters themselves"},
		"no secret":      {"  client_secret: ${SECRET}\n", "", "bridge.yaml:2:3: gateway.client_secret: is required; write client_secret: ${NAME}, or client_secret_file"},
		"missing file":   {"client_secret: ${SECRET}", "client_secret_file: nowhere/secret", "bridge.yaml:5:23: gateway.client_secret_file: cannot be read: no such file or directory"},
		"no value":       {"poison: {", "log:\npoison: {", "bridge.yaml:13:5: log: has no value; remove the key for the default"},
		"no section":     {`nats: {url: "nats://127.0.0.1:4222"}`, "nats:", "bridge.yaml:8:10: sinks.farm.nats: has no value; write {} for the defaults, or remove the key"},
		"unknown sink":   {"to: {sink: farm}", "to: {sink: Fram}", `bridge.yaml:12:16: routes[0].to.sink: names a sink that is not there: "Fram"; did you mean farm?`},
		"template":       {"to: {sink: farm}", `to: {sink: farm, topic: "{type"}`, `bridge.yaml:12:29: routes[0].to.topic: { without }`},
		"nats subject":   {"to: {sink: farm}", `to: {sink: farm, topic: "all.*.{type}"}`, "bridge.yaml:12:29: routes[0].to.topic: is no topic for NATS: parts without white space, '*' and '>', joined by single dots"},
		"no routes":      {"routes:\n  - name: farm-data\n    from: {gateway: all}\n    to: {sink: farm}\n", "routes: []\n", "bridge.yaml:9:9: routes: is empty; add a route: - {name: …, from: {gateway: all}, to: {sink: …}}"},
		"no poison":      {"poison: {sink: farm}", "", "bridge.yaml:1:1: poison: is required"},
		"tag":            {"gateway: all", "gateway: !include all", "bridge.yaml:11:21: routes[0].from.gateway: has the tag !include, and tags mean nothing here; remove it"},
		"only by type":   {"from: {gateway: all}", "from: {gateway: \"a:b\"}\n    filter: {type: \"c:*\"}", "bridge.yaml:12:20: routes[0].filter.type: lets nothing through: the route takes only a:b; remove the filter, or take all"},
		"from nothing":   {"poison: {", "subscriber: {event_types: [ENDPOINT_DELETED]}\npoison: {", "bridge.yaml:11:21: routes[0].from.gateway: gets nothing: subscriber.event_types lacks MESSAGE_RECEIVED or FILE_RECEIVED; add it there"},
		"no claim check": {"poison: {", "subscriber: {payload: claim_check}\npoison: {", "bridge.yaml:13:23: subscriber.payload: is claim_check, but there is no section claim_check; add claim_check: {url: …}"},
		"bucket":         {"poison: {", "claim_check: {url: \"ftp://x\"}\npoison: {", "bridge.yaml:13:20: claim_check.url: has a scheme that the bridge was built without: ftp; there is file or mem"},
		"dedup":          {"poison: {", "dedup: {store: bbolt}\npoison: {", "bridge.yaml:13:8: dedup.bbolt: is required by dedup.store; add bbolt: {path: /var/lib/agrimill/dedup.db}"},
		"number":         {"poison: {", "retry: {max_attempts: \"3x\"}\npoison: {", `bridge.yaml:13:23: retry.max_attempts: must be a whole number, not "3x"`},
		"yes":            {"poison: {", "admin: {pprof: yes}\npoison: {", `bridge.yaml:13:16: admin.pprof: must be true or false, not "yes"; write true`},
		"size":           {"poison: {", "subscriber: {max_inline: -1}\npoison: {", `bridge.yaml:13:26: subscriber.max_inline: must be a size, not "-1"; write a number of bytes, or one with KiB, MiB or GiB`},
		"one consumer":   {"poison: {", "  - {name: x, from: {nats: {subject: a, durable: d}}, to: {gateway: {}}}\n  - {name: y, from: {nats: {subject: b, durable: d}}, to: {gateway: {}}}\npoison: {", "bridge.yaml:14:50: routes[2].from.nats.durable: is that of routes[1] too: each would get only a part of the messages; give each route one of its own"},
		"one group":      {"poison: {", "  - {name: x, from: {kafka: {brokers: \"b:1\", topics: [t, u], group: g}}, to: {gateway: {}}}\n  - {name: y, from: {kafka: {brokers: \"b:1\", topics: u, group: g}}, to: {gateway: {}}}\npoison: {", "bridge.yaml:14:64: routes[2].from.kafka.group: is that of routes[1] too: each would get only a part of the messages; give each route one of its own"},
		"one stream":     {"    to: {sink: farm}", "    to: {sink: farm}\n  - {name: b, from: {gateway: all}, to: {sink: zoo}}\nx-s: &s {url: \"nats://127.0.0.1:4222\"}", ""},
		"own alias":      {"poison: {", "endpoints: &a [*a]\npoison: {", ""},
		"two documents":  {"poison: {sink: farm}", "poison: {sink: farm}\n---\na: b", ""},
		"syntax":         {"poison: {", "poison: {{", ""},
		"tab":            {"    from:", "\tfrom:", "bridge.yaml:11:1: is not YAML: while scanning a plain scalar: found a tab character that violates indentation; indent with spaces"},
		"flow":           {"poison: {", "admin: {token: ${ID}}\npoison: {", "bridge.yaml:13:17: is not YAML: while parsing a flow mapping: did not find expected ',' or '}'; put \"${NAME}\" in quotes inside { } and [ ]"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, small, test.from)
			text := strings.Replace(small, test.from, test.to, 1)
			if name == "one stream" {
				text = strings.Replace(text, "sinks:\n", "sinks:\n  zoo: {nats: {subject_prefix: zoo}}\n", 1)
				test.want = "bridge.yaml:7:15: sinks.zoo.nats.stream: is that of sinks.farm too, which has another subject_prefix; give each a stream of its own, or both one subject_prefix"
			}
			got := onlyProblem(t, text, smallEnv)
			if test.want == "" {
				require.Contains(t, got, "bridge.yaml:1", "no place")
				t.Log(got)
				return
			}
			require.Equal(t, test.want, got)
		})
	}
}

func TestWarnings(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"secret":     {"${SECRET}", "written-here", "bridge.yaml:5:18: warning: gateway.client_secret: is a secret in the file itself; take it from the environment with ${NAME}, or from a file with client_secret_file"},
		"default":    {"${SECRET}", "${NOPE:-written-here}", "bridge.yaml:5:18: warning: gateway.client_secret: is a secret in the file itself; take it from the environment with ${NAME}, or from a file with client_secret_file"},
		"password":   {"nats://127", "nats://me:written-here@127", "bridge.yaml:8:17: warning: sinks.farm.nats.url: holds a password in the file itself; take it from the environment with ${NAME}"},
		"memory":     {"poison: {", "claim_check: {url: \"mem://\"}\npoison: {", "bridge.yaml:13:20: warning: claim_check.url: is in memory: what goes there is gone when the bridge ends; use file:///… or another bucket that lasts"},
		"deprecated": {"poison: {", "endpoints: [{external_id: \"a:b\", type: farming_software, capabilities: [{type: t}], application_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01, software_version_id: 3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01}]\npoison: {", "bridge.yaml:13:40: warning: endpoints[0].type: is deprecated, and will be refused some day; write cloud_software"},
		"unused":     {"routes:", "  other: {log: {}}\nroutes:", "bridge.yaml:9:10: warning: sinks.other: is used by no route; remove it, or write it to a route's to.sink"},
		"log":        {"to: {sink: farm}", "to: {sink: l}\n  - {name: b, from: {gateway: all}, to: {sink: farm}}\nx-sinks: {}", ""},
		"plain":      {"base_url: http://127.0.0.1:8081", "base_url: http://gateway.example", "bridge.yaml:2:13: warning: gateway.base_url: is not encrypted: the client secret, tokens and data can be read on the way; use https"},
		"circle":     {"poison: {", "  - {name: back, from: {nats: {subject: \"agrimill.>\"}}, to: {gateway: {tenant: 5b7c2f1e-6f0a-4b53-9a3e-1f0f3f1d2c11, endpoint: 0d7f8f4e-2f5b-4a55-8f0a-3c9b7a6d1e02}}}\npoison: {", "bridge.yaml:12:9: warning: routes[0].to.topic: goes to subjects that the route back sends back to the gateway; give the way back a subject of its own"},
		"no tenant":  {"poison: {", "  - {name: back, from: {nats: {subject: \"machines.>\"}}, to: {gateway: {endpoint: 0d7f8f4e-2f5b-4a55-8f0a-3c9b7a6d1e02}}}\npoison: {", "bridge.yaml:13:71: warning: routes[1].to.gateway: names the sending endpoint, but not its tenant: a message without the header x-router-tenant-id goes to the poison queue; add tenant, the ID of the endpoint's tenant"},
		"event type": {"gateway: all", "gateway: message_received", `bridge.yaml:11:21: warning: routes[0].from.gateway: is taken for a message type: "message_received"; did you mean MESSAGE_RECEIVED?`},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, small, test.from)
			text := strings.Replace(small, test.from, test.to, 1)
			if name == "log" {
				text = strings.Replace(text, "sinks:\n", "sinks:\n  l: {log: {}}\n", 1)
				test.want = "bridge.yaml:13:16: warning: routes[0].to.sink: stores nothing: what goes there is confirmed and gone; use a log sink only for looking"
			}
			c := parse(t, text, smallEnv)
			require.Len(t, c.Warnings, 1, c.Warnings)
			require.Equal(t, test.want, c.Warnings[0].String())
			require.NotContains(t, fmt.Sprint(c.Warnings), "written-here")
		})
	}
}

func TestSubstitution(t *testing.T) {
	env := environment(map[string]string{"ID": "a: [b", "SECRET": "hidden", "N": "7", "WAIT": "3s", "ON": "true", "SIZE": "2MiB"})
	c := parse(t, strings.Replace(small, "client_id: ${ID}", "client_id: x-${ID}-${NO:-d}-$${ID}-$1\n  user_agent: '${ID}'\n  request_timeout: ${WAIT}\n  max_event_size: ${SIZE}", 1)+
		"subscriber: {max_in_flight: \"${N}\", envelope: \"${ON}\"}\n", env)
	require.Equal(t, "x-a: [b-d-${ID}-$1", c.Gateway.ClientID, "a value never becomes structure")
	require.Equal(t, "a: [b", c.Gateway.UserAgent)
	require.Equal(t, 3*time.Second, c.Gateway.RequestTimeout)
	require.Equal(t, Size(2<<20), c.Gateway.MaxEventSize)
	require.Equal(t, 7, c.Subscriber.MaxInFlight)
	require.True(t, c.Subscriber.Envelope)
}

// 0 and nothing are the default, and a default of 0 has a meaning.
func TestZeroIsDefault(t *testing.T) {
	c := parse(t, strings.Replace(small, "4222\"}", "4222\", replicas: 0, stream: \"\", max_age: 0s, dedup_window: 0s}", 1)+
		"shutdown: {timeout: 0s}\nsubscriber: {max_in_flight: 0, max_inline: 0}\ntracing: {sample_ratio: 0}\nadmin: {token: \"${NO:-}\"}\n", smallEnv)
	require.Empty(t, c.Warnings)
	plain := parse(t, small, smallEnv)
	require.Equal(t, plain.Sinks, c.Sinks)
	require.Equal(t, plain.Shutdown, c.Shutdown)
	require.Equal(t, plain.Subscriber, c.Subscriber)
	require.Zero(t, c.Tracing.SampleRatio)
	require.False(t, c.Admin.Token.IsSet())
}

// A value from the environment is in no problem: it may be a secret in the wrong place.
func TestEnvironmentIsNotTold(t *testing.T) {
	got := onlyProblem(t, small+"retry: {max_attempts: \"${SECRET}\"}\n", smallEnv)
	require.Equal(t, `bridge.yaml:14:23: retry.max_attempts: must be a whole number, not what the environment says`, got)
}

func TestSecretsFromFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("secret", "from-a-file\r\n")
	write("empty", "\n")
	write("lines", "a\nb\n")
	write("large", strings.Repeat("x", maxSecretSize+1))
	load := func(line string) (*Config, error) {
		t.Helper()
		write("bridge.yaml", strings.Replace(small, "client_secret: ${SECRET}", line, 1))
		return Load(filepath.Join(dir, "bridge.yaml"), smallEnv)
	}
	for _, path := range []string{"secret", "./secret", filepath.Join(dir, "secret")} {
		c, err := load("client_secret_file: " + path)
		require.NoError(t, err)
		require.Empty(t, c.Warnings)
		require.Equal(t, "from-a-file", c.Gateway.ClientSecret.Reveal())
	}
	for line, want := range map[string]string{
		"client_secret_file: empty":                              "must be a file with one line, the client secret",
		"client_secret_file: lines":                              "must be a file with one line, the client secret",
		"client_secret_file: large":                              "is too large",
		"client_secret_file: .":                                  "cannot be read: is a directory",
		"client_secret: ${SECRET}\n  client_secret_file: secret": "excludes client_secret; remove one",
		"client_secret: ${SECRET}\n  tls: {ca_file: secret}":     "gateway.tls.ca_file: holds no certificate (PEM)",
		"client_secret: ${SECRET}\n  tls: {cert_file: secret}":   "gateway.tls.cert_file: needs key_file",
	} {
		_, err := load(line)
		require.ErrorContains(t, err, want, line)
		require.NotContains(t, err.Error(), "from-a-file")
	}
}

// Where the secrets are not, everything else can be checked.
func TestAllowMissing(t *testing.T) {
	text := strings.Replace(small, "client_secret: ${SECRET}", "client_secret_file: /nowhere/secret\n  tls: {ca_file: /nowhere/ca.pem}", 1) +
		"retry: {max_attempts: \"${ATTEMPTS}\"}\nadmin: {token: \"${TOKEN}\"}\n"
	problems := problemsOf(t, text, environment(nil))
	require.Len(t, problems.List, 5, problems)
	options := environment(nil)
	options.AllowMissing = true
	c := parse(t, text, options)
	require.Len(t, c.Warnings, 5, c.Warnings)
	require.Equal(t, "bridge.yaml:4:14: warning: gateway.client_id: needs the environment variable ID, which is not set; set it, or write ${ID:-default}", c.Warnings[0].String())
	require.Equal(t, "bridge.yaml:16:16: warning: admin.token: needs the environment variable TOKEN, which is not set; set it", c.Warnings[4].String())
	parse(t, strings.Replace(text, `nats: {url: "nats://127.0.0.1:4222"}`, "kafka: {brokers: [\"${BROKER}\"]}", 1), options)
	parse(t, strings.Replace(text, "  client_id:", "  application_id: ${APP}\n  software_version_id: ${VERSION}\n  client_id:", 1)+
		"endpoints: [{external_id: \"urn:x:y\", capabilities: [{type: t}]}]\n", options)
	require.Contains(t, onlyMistake(problemsOf(t, text+"nope: {}\n", options)), "nope: is not a key here")
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
`+strings.Replace(small, `nats: {url: "nats://127.0.0.1:4222"}`, "nats: {<<: [*nats, *more], stream: MINE}\n  twin: {nats: *nats}", 1)+
		"  # twin is used\ndedup: {nats_kv: *nats}\nlog: {level: debug}\n", smallEnv)
	require.Equal(t, URL("nats://10.0.0.1"), c.Sinks["farm"].NATS.URL)
	require.Equal(t, time.Second, c.Sinks["farm"].NATS.ConnectTimeout)
	require.Equal(t, 3, c.Sinks["farm"].NATS.Replicas)
	require.Equal(t, "MINE", c.Sinks["farm"].NATS.Stream, "what stands there comes before what is merged")
	require.Equal(t, DedupNATSKV, c.Dedup.Store)
	require.Equal(t, URL("nats://10.0.0.1"), c.Dedup.NATSKV.URL)
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
		"empty":         "",
		"comment":       "# nothing\n",
		"null":          "null",
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
		"huge numbers":  small + "retry: {max_attempts: 99999999999999999999}\nsubscriber: {max_inline: 99999999999999999999999, recent_for: 99999999h, file_hold: 999999999d}\n",
	} {
		t.Run(name, func(t *testing.T) {
			problems := problemsOf(t, text, smallEnv)
			require.LessOrEqual(t, len(problems.List), maxProblems)
			for _, p := range problems.List {
				require.NotEmpty(t, p.Message)
				require.Less(t, len(p.Message), 4<<10)
			}
			t.Log(problems.List[0])
		})
	}
	_, err := Load("/dev/zero", smallEnv)
	require.ErrorContains(t, err, "is too large")
	_, err = Load(t.TempDir(), smallEnv)
	require.ErrorContains(t, err, "cannot be read: is a directory")
	_, err = Load(filepath.Join(t.TempDir(), "no.yaml"), smallEnv)
	require.ErrorContains(t, err, "no.yaml: cannot be read: no such file or directory")
}

// Nothing that prints a configuration prints a secret.
func TestSecretsAreNotPrinted(t *testing.T) {
	c := parse(t, strings.Replace(small, "nats://127.0.0.1:4222", "nats://me:${SECRET}@127.0.0.1:4222,nats://127.0.0.1:1?x=${SECRET}#${SECRET}", 1)+
		"admin: {token: \"${SECRET}\"}\ntracing: {headers: {key: \"${SECRET}\"}}\n", smallEnv)
	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(handler).Info("config", "config", c, "secret", c.Gateway.ClientSecret, "url", c.Sinks["farm"].NATS.URL, "all", *c)
	}
	text, err := json.Marshal(c)
	require.NoError(t, err)
	nats := c.Sinks["farm"].NATS
	for _, printed := range []string{
		log.String(), string(text), fmt.Sprint(c, *nats), fmt.Sprintf("%+v %#v %q %x %s %d", c.Gateway, c.Gateway, c.Gateway.ClientSecret, c.Gateway.ClientSecret, nats.URL, nats.URL),
		fmt.Sprintf("%v %#v %x", nats.URL, nats.URL, nats.URL), fmt.Sprint(c.Tracing, c.Admin), fmt.Errorf("x: %v", c.Admin.Token).Error(),
	} {
		require.NotContains(t, printed, "hidden-secret")
		require.NotContains(t, printed, fmt.Sprintf("%x", "hidden-secret"))
	}
	require.Contains(t, fmt.Sprint(c.Gateway), "[redacted]")
	require.Equal(t, "nats://redacted@127.0.0.1:4222,nats://127.0.0.1:1?redacted", nats.URL.String())
	require.Contains(t, string(nats.URL), "hidden-secret")
	require.Equal(t, "[redacted]", URL("http://[::1").String())
	require.Empty(t, Secret{}.String())
}

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"iso:*", "iso:11783", true}, {"iso:*", "is", false}, {"*", "", true}, {"", "", true}, {"", "x", false},
		{"*.zip", "a.zip", true}, {"*.zip", "a.zip.exe", false}, {"a?c", "abc", true}, {"a?c", "ac", false},
		{"a*b*c", "a-b-b-c", true}, {"a*b*c", "a-b", false}, {"[a]/*", "[a]/b/c", true}, {"?", "é", true},
	} {
		require.Equal(t, test.want, match(test.pattern, test.text), "%q %q", test.pattern, test.text)
	}
}

func TestProblem(t *testing.T) {
	p := Problem{Severity: SeverityError, File: "f", Message: "is bad"}
	require.Equal(t, "f: is bad", p.String())
	text, err := json.Marshal(Problem{Severity: SeverityWarning, File: "f", Line: 1, Column: 2, Path: "a.b", Message: "m", Suggestion: "s"})
	require.NoError(t, err)
	require.JSONEq(t, `{"severity":"warning","file":"f","line":1,"column":2,"path":"a.b","message":"m","suggestion":"s"}`, string(text))
}

// The examples can be used as they are.
func TestExamples(t *testing.T) {
	env := environment(map[string]string{
		"AGRIMILL_BASE_URL": "http://127.0.0.1:8081", "AGRIMILL_TOKEN_URL": "http://127.0.0.1:8081/oauth/token", "AGRIMILL_CLIENT_ID": "bridge",
		"AGRIMILL_CLIENT_SECRET": "secret", "AGRIMILL_APPLICATION_ID": "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01",
		"AGRIMILL_SOFTWARE_VERSION_ID": "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d02", "AGRIMILL_ADMIN_TOKEN": "long-enough-this-one", "OTLP_KEY": "key",
	})
	c, err := Load(filepath.Join("..", "examples", "minimal.yaml"), env)
	require.NoError(t, err)
	require.Empty(t, c.Warnings)
	require.Len(t, c.Endpoints, 1)
	require.Equal(t, "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01", c.Endpoints[0].ApplicationID)
	text, err := os.ReadFile(filepath.Join("..", "examples", "minimal.yaml"))
	require.NoError(t, err)
	require.LessOrEqual(t, bytes.Count(text, []byte("\n")), 20, "lines of the minimal configuration")

	c, err = Load(filepath.Join("..", "examples", "full.yaml"), env)
	require.NoError(t, err)
	require.Len(t, c.Sinks, 4)
	require.Len(t, c.Routes, 6)
	require.Len(t, c.Warnings, 1, "the log sink")

	// What it says is mostly the defaults.
	require.Equal(t, parse(t, small, smallEnv).Publisher, c.Publisher)
	require.Equal(t, parse(t, small, smallEnv).Retry, c.Retry)
}

func FuzzParse(f *testing.F) {
	f.Add(small)
	for _, path := range []string{"testdata/broken.yaml", "../examples/full.yaml", "../examples/minimal.yaml"} {
		data, err := os.ReadFile(path)
		require.NoError(f, err)
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
		c, err := Parse("bridge.yaml", []byte(text), options)
		var problems *Problems
		switch {
		case err == nil:
			if len(c.Routes) == 0 || c.Poison.Sink == "" || !c.Gateway.ClientSecret.IsSet() {
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

func ExampleLoad() {
	env := map[string]string{
		"AGRIMILL_BASE_URL": "https://gateway.example", "AGRIMILL_TOKEN_URL": "https://login.gateway.example/token",
		"AGRIMILL_CLIENT_ID": "farm", "AGRIMILL_CLIENT_SECRET": "not to be seen",
		"AGRIMILL_APPLICATION_ID": "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01", "AGRIMILL_SOFTWARE_VERSION_ID": "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d02",
	}
	c, err := Load("../examples/minimal.yaml", Options{Env: func(name string) string { return env[name] }})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Gateway.ClientSecret, c.Routes[0].To.Topic, c.Sinks["farm"].NATS.Stream)
	// Output: [redacted] {tenant|none}.{type|none} AGRIMILL
}

func ExampleParse() {
	_, err := Parse("bridge.yaml", []byte(`
gateway:
  base_url: https://gateway.example
  token_ur: https://login.gateway.example/token
  client_id: farm
  client_secret_file: /dev/null
sinks:
  lake: {nats: {url: "nats://127.0.0.1:4222"}}
routes:
  - name: farm-data
    from: {gateway: all}
    to: {sink: laek, topic: "{type}"}
poison: {sink: lake}
`), Options{})
	var problems *Problems
	if errors.As(err, &problems) {
		for _, p := range problems.List {
			fmt.Println(p)
		}
	}
	// Output:
	// bridge.yaml:4:3: gateway.token_ur: is not a key here; did you mean gateway.token_url?
	// bridge.yaml:6:23: gateway.client_secret_file: must be a file with one line, the client secret
	// bridge.yaml:12:16: routes[0].to.sink: names a sink that is not there: "laek"; did you mean lake?
}
