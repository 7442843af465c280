package command

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Wrong usage ends with status 2, says what is wrong and where to read on, and
// writes nothing to stdout. No server is needed to find out.
func TestWrongUsage(t *testing.T) {
	w := &world{T: t}
	for _, test := range []struct{ args, says, see string }{
		{"", "a command is required: ", "agrimill"},
		{"queue", `unknown command "queue"; available: `, "agrimill"},
		{"poisn list", `unknown command "poisn"; did you mean poison?`, "agrimill"},
		{"poison", "drop, list, replay, show", "agrimill poison"},
		{"poison lst", `unknown command "lst"; did you mean list?`, "agrimill poison"},
		{"poison zzz", `unknown command "zzz"; available: drop, list, replay, show`, "agrimill poison"},
		{"help poison lst", `unknown command "lst"; did you mean list?`, "agrimill help"},
		{"help poison list queue", `unknown command "queue"`, "agrimill help"},
		{"inspect", "exactly one FILE", "agrimill inspect"},
		{"inspect a b", "exactly one FILE", "agrimill inspect"},
		{"inspect a --output xml", "must be table, json or svg", "agrimill inspect"},
		{"version now", `unexpected argument "now"`, "agrimill version"},
		{"status agrimill.yaml more", `unexpected argument "more"`, "agrimill status"},
		{"status --config agrimill.yaml more", `unexpected argument "more"`, "agrimill status"},
		{"status agrimill.yaml --admin 127.0.0.1:1", "--admin and --config exclude each other", "agrimill status"},
		{"poison list 17", `unexpected argument "17"`, "agrimill poison list"},
		{"poison list --nonsense", "--nonsense", "agrimill poison list"},
		{"poison list -json", "flags have two dashes: --json", "agrimill poison list"},
		{"poison list --limit", "needs an argument", "agrimill poison list"},
		{"poison list --limit many", `--limit must be a whole number, not "many"`, "agrimill poison list"},
		{"poison list --json=x", `--json must be true or false, not "x"`, "agrimill poison list"},
		{"poison replay 1 --timeout 5", `--timeout must be a duration such as 90s or 5m, not "5"`, "agrimill poison replay"},
		{"status --admin ftp://x", "--admin must be host:port", "agrimill status"},
		{"status --admin localhost:http", "--admin must be host:port", "agrimill status"},
		{"poison list --class fatal", "must be permanent or handler", "agrimill poison list"},
		{"poison list --since yesterday", "must be a duration", "agrimill poison list"},
		{"poison list --since -1h", "must be a duration", "agrimill poison list"},
		{"poison list --limit -1", "--limit must not be negative", "agrimill poison list"},
		{"poison show", "exactly one ID", "agrimill poison show"},
		{"poison show 1 2", "exactly one ID", "agrimill poison show"},
		{"poison show seventeen", `"seventeen" is not an ID`, "agrimill poison show"},
		{"poison show 1 --json --payload -", "--json cannot be combined with --payload -", "agrimill poison show"},
		{"poison replay", "select messages by ID", "agrimill poison replay"},
		{"poison replay --limit 1", "select messages by ID", "agrimill poison replay"},
		{"poison replay 17 --all", "select messages by ID", "agrimill poison replay"},
		{"poison replay 17 --route farm", "select messages by ID", "agrimill poison replay"},
		{"poison replay 0", "is not an ID", "agrimill poison replay"},
		{"poison replay --all", "--config is required", "agrimill poison replay"},
		{"poison replay --all --timeout -1s", "--timeout", "agrimill poison replay"},
		{"poison drop", "select messages by ID", "agrimill poison drop"},
		{"poison drop --all", "add --yes", "agrimill poison drop"},
		{"poison drop -- --all", `"--all" is not an ID`, "agrimill poison drop"},
		{"''", "an argument is empty", "agrimill"},
		{"trace ''", "an argument is empty", "agrimill trace"},
		{"poison show ''", "an argument is empty", "agrimill poison show"},
		{"status --config ''", "--config is empty", "agrimill status"},
		{"status --config=", "--config is empty", "agrimill status"},
		{"send a --to x --to ''", "--to is empty", "agrimill send"},
		{"tail --save=", "--save is empty", "agrimill tail"},
		{"completion bash ''", "an argument is empty", "agrimill completion bash"},
		{"run agrimill.yaml --address foo", `--address must be host:port or off, not "foo"`, "agrimill run"},
		{"emulator --listen foo", `--listen must be host:port, not "foo"`, "agrimill emulator"},
		{"emulator --service a/b", "agrimill emulator: --service must be usable in a header name", "agrimill emulator"},
		{"record --listen foo --base-url http://x --token-url http://x x.jsonl", `--listen must be host:port, not "foo"`, "agrimill record"},
		{"record --listen 127.0.0.1:0 --base-url foo --token-url http://x x.jsonl", "agrimill record: --base-url and --token-url (or AGRIMILL_BASE_URL", "agrimill record"},
		{"tenants --base-url foo --token-url http://x --client-id x --client-secret-file none", "--client-secret-file: open none", "agrimill tenants"},
	} {
		args := strings.Fields(test.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "''", "")
		}
		status, stdout, stderr := w.agrimill(args...)
		if status != statusUsage || stdout != "" || !strings.Contains(stderr, test.says) ||
			!strings.Contains(stderr, "\nUsage: agrimill") || !strings.HasSuffix(stderr, "\nSee: "+test.see+" --help\n") {
			t.Errorf("%s: status %d, stdout %q, stderr:\n%s", test.args, status, stdout, stderr)
		}
	}
}

// What a person sees first.
func TestRootHelp(t *testing.T) {
	w := &world{T: t}
	text := w.want(statusOK, "help")
	_, text, _ = strings.Cut(text, "Usage:\n")
	const want = `  agrimill COMMAND

The pipeline:
  check       test the connections of a configuration
  init        write a configuration to begin with
  run         run the pipeline until it is stopped
  status      say whether a running agrimill is all right
  test        test what a configuration does with messages
  trace       show what became of a message
  validate    report every mistake in a configuration
  why         find out why nothing arrives

The gateway:
  endpoints   create, update and delete the application's endpoints
  send        send files through the gateway
  tail        show events as they arrive
  tenants     list tenants, their endpoints and routes

The poison queue:
  poison      manage the poison queue in NATS JetStream or Kafka

Other:
  completion  generate shell completion for commands, flags and values
  demo        run everything in one process, with sample farms, to look around
  emulator    run an in-memory gateway to try things out
  help        show the help of a command
  inspect     show what is in TaskData or EFDI
  man         write manual pages for all commands
  record      record what a gateway answers to a program, for a test
  schema      print the JSON Schema of the configuration
  version     print the version

Flags:
  -h, --help      help for agrimill
      --version   print the version

"agrimill COMMAND --help" shows the help of a command.
`
	if text != want {
		t.Errorf("%s", text)
	}
}

func TestVersion(t *testing.T) {
	w := &world{T: t}
	text := w.want(statusOK, "version")
	if !strings.HasPrefix(text, "agrimill ") || !strings.HasSuffix(text, " "+runtime.Version()+"\n") {
		t.Errorf("%q", text)
	}
	if flag := w.want(statusOK, "--version"); flag != text {
		t.Errorf("--version says %q, version %q", flag, text)
	}
	if text := readVersion(Build{"v1.2.3", "0123abc"}).String(); text != "agrimill v1.2.3 (0123abc) "+runtime.Version() {
		t.Errorf("%q", text)
	}
	if info := decode[versionInfo](w, w.want(statusOK, "version", "--json")); info.Version == "" || info.Go == "" {
		t.Errorf("%+v", info)
	}
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

// full takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// Help and version that cannot be written are not a success.
func TestHelpIsNotWritten(t *testing.T) {
	w := &world{T: t}
	for _, args := range []string{"help", "--help", "help run", "run --help", "version", "--version", "schema"} {
		var stderr bytes.Buffer
		status := w.program(full{}, &stderr).run(t.Context(), strings.Fields(args))
		if status != statusFailed || !strings.Contains(stderr.String(), "no space left on device") || strings.Contains(stderr.String(), "Usage") {
			t.Errorf("%s: status %d, %s", args, status, stderr.String())
		}
	}
}
