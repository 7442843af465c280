package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Wrong usage ends with status 2, says what is wrong and where to read on, and
// writes nothing to stdout. No server is needed to find out.
func TestWrongUsage(t *testing.T) {
	w := &world{T: t, env: map[string]string{"NATS_URL": "nats://127.0.0.1:1"}}
	for _, test := range []struct{ args, says, see string }{
		{"", "a command is needed: ", "bridge"},
		{"queue", `no command "queue"; there are: `, "bridge"},
		{"poisn list", `no command "poisn"; did you mean poison?`, "bridge"},
		{"poison", "drop, list, replay, show", "bridge poison"},
		{"poison lst", `no command "lst"; did you mean list?`, "bridge poison"},
		{"poison zzz", `no command "zzz"; there are: drop, list, replay, show`, "bridge poison"},
		{"help poison lst", `no command "lst"; did you mean list?`, "bridge help"},
		{"help poison list queue", `no command "queue"`, "bridge help"},
		{"version now", `unexpected argument "now"`, "bridge version"},
		{"poison list 17", `unexpected argument "17"`, "bridge poison list"},
		{"poison list --nonsense", "--nonsense", "bridge poison list"},
		{"poison list -json", "flags have two dashes: --json", "bridge poison list"},
		{"poison list --limit", "needs an argument", "bridge poison list"},
		{"poison list --limit many", "invalid argument", "bridge poison list"},
		{"poison list --class fatal", "must be permanent or handler", "bridge poison list"},
		{"poison list --since yesterday", "must be a duration", "bridge poison list"},
		{"poison list --since -1h", "must be a duration", "bridge poison list"},
		{"poison list --limit -1", "--limit must not be negative", "bridge poison list"},
		{"poison list --stream a.b", "Stream", "bridge poison list"},
		{"poison list --subject-prefix a.*", "SubjectPrefix", "bridge poison list"},
		{"poison list --nats nats://" + user + ":" + password + "@127.0.0.1:1", "--nats must not hold credentials", "bridge poison list"},
		{"poison show", "exactly one ID", "bridge poison show"},
		{"poison show 1 2", "exactly one ID", "bridge poison show"},
		{"poison show seventeen", `"seventeen" is no ID`, "bridge poison show"},
		{"poison show 1 --json --payload -", "exclude each other", "bridge poison show"},
		{"poison show 1 --claim-check payloads", "claim check", "bridge poison show"},
		{"poison replay", "say which messages", "bridge poison replay"},
		{"poison replay --limit 1", "say which messages", "bridge poison replay"},
		{"poison replay 17 --all", "say which messages", "bridge poison replay"},
		{"poison replay 17 --route farm", "say which messages", "bridge poison replay"},
		{"poison replay 0", "is no ID", "bridge poison replay"},
		{"poison replay --all --to-topic {nonsense}", "--to-topic", "bridge poison replay"},
		{"poison replay --all --timeout -1s", "--timeout", "bridge poison replay"},
		{"poison drop", "say which messages", "bridge poison drop"},
		{"poison drop --all", "add --yes", "bridge poison drop"},
		{"poison drop -- --all", `"--all" is no ID`, "bridge poison drop"},
	} {
		status, stdout, stderr := w.bridge(strings.Fields(test.args)...)
		if status != statusUsage || stdout != "" || !strings.Contains(stderr, test.says) ||
			!strings.Contains(stderr, "\nUsage: bridge") || !strings.HasSuffix(stderr, "\nSee: "+test.see+" --help\n") {
			t.Errorf("%s: status %d, stdout %q, stderr:\n%s", test.args, status, stdout, stderr)
		}
	}
}

// Help is on stdout, wherever it is asked for, and names everything there is.
func TestHelp(t *testing.T) {
	w := &world{T: t}
	for _, test := range []struct{ a, b, says string }{
		{"help", "--help", "Exit status: 0 all is done, 1 something failed, 2 wrong usage or invalid"},
		{"help poison", "poison -h", "delete poisoned messages for good"},
		{"help poison list", "poison list --help", "NATS_PASSWORD"},
		{"help poison list", "poison list -h", "--since TIME"},
		{"help poison show", "poison show 17 -h", "--payload FILE"},
		{"help poison replay", "poison replay -h", "--to-topic TEMPLATE"},
		{"help poison drop", "poison drop -h", "needed with --all"},
		{"help version", "version -h", "--json"},
	} {
		a := w.want(statusOK, strings.Fields(test.a)...)
		b := w.want(statusOK, strings.Fields(test.b)...)
		if a != b || !strings.Contains(a, test.says) {
			t.Errorf("%s:\n%s\n%s:\n%s", test.a, a, test.b, b)
		}
	}
}

// What a person sees first.
func TestRootHelp(t *testing.T) {
	w := &world{T: t}
	text := w.want(statusOK, "help")
	_, text, _ = strings.Cut(text, "Usage:\n")
	const want = `  bridge COMMAND

The pipeline:
  check       try a configuration: the gateway, endpoints and sinks
  run         carry messages until it is told to stop
  validate    tell every mistake in a configuration

The gateway:
  endpoints   create, change and delete endpoints of the application
  send        send files through the gateway
  tail        show events as they come
  tenants     list tenants, their endpoints, and what can be routed

What could not be handled:
  poison      look after the poison queue in NATS JetStream

Other:
  completion  make the shell complete commands, flags and values
  emulator    run a gateway in memory, to try things out
  help        say more about a command
  schema      print the JSON Schema of the configuration
  version     say which version this is

Flags:
  -h, --help   help for bridge

"bridge COMMAND --help" says more about a command.
`
	if text != want {
		t.Errorf("%s", text)
	}
}

func TestVersion(t *testing.T) {
	w := &world{T: t}
	if text := w.want(statusOK, "version"); !strings.HasPrefix(text, "bridge ") || !strings.HasSuffix(text, "\n") {
		t.Errorf("%q", text)
	}
	if info := decode[versionInfo](w, w.want(statusOK, "version", "--json")); info.Version == "" || info.Go == "" {
		t.Errorf("%+v", info)
	}
}

// A server that is not there, a wrong password and a stream that does not exist
// are failures, told without secrets.
func TestConnection(t *testing.T) {
	w := &world{T: t, env: map[string]string{"NATS_URL": "nats://" + user + ":" + password + "@127.0.0.1:1"}}
	w.want(statusFailed, "poison", "list")
	w.env = map[string]string{"NATS_URL": "nats://" + user + ":" + password + "@[::1"}
	w.want(statusUsage, "poison", "list")

	w = newWorld(t, 0)
	address := w.env["NATS_URL"]
	for _, args := range [][]string{{"--stream", "NOTHING"}, {"--subject-prefix", "other"}} {
		status, _, stderr := w.bridge(append([]string{"poison", "list"}, args...)...)
		if status != statusFailed || !strings.Contains(stderr, "see --stream and --subject-prefix") {
			t.Errorf("%q: status %d, stderr %q", args, status, stderr)
		}
	}
	w.env = map[string]string{"NATS_URL": strings.Replace(address, "nats://", "nats://"+user+":"+password+"@", 1)}
	w.want(statusOK, "poison", "list")
	w.env = map[string]string{"NATS_USER": user, "NATS_PASSWORD": password + "!"}
	w.want(statusFailed, "poison", "list", "--nats", address)
	w.env["NATS_TOKEN"] = password
	w.want(statusUsage, "poison", "list", "--nats", address) // two kinds of credentials
	// Files that are named by flags come before the environment.
	status, _, stderr := w.bridge("poison", "list", "--nats", address, "--creds", filepath.Join(t.TempDir(), "none.creds"))
	if status != statusFailed || !strings.Contains(stderr, "none.creds") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	nkey := filepath.Join(t.TempDir(), "seed")
	if err := os.WriteFile(nkey, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	w.want(statusFailed, "poison", "list", "--nats", address, "--nkey", nkey)
}

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"90m":                       now.Add(-90 * time.Minute),
		"2d":                        now.AddDate(0, 0, -2),
		"0s":                        now,
		"2026-11-19":                time.Date(2026, 11, 19, 0, 0, 0, 0, time.UTC),
		"2026-11-20T09:00:00+01:00": time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC),
	} {
		if got, err := parseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "-2d", "NaNd", "1e30d", "20.11.2026", "12"} {
		if got, err := parseSince(text, now); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
