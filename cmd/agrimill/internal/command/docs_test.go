package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// TestDocumentedCommands runs every command line of the documentation, and every example of the help, of which each command
// has one. A line that is there several times is run once.
func TestDocumentedCommands(t *testing.T) {
	files := testkit.Must(filepath.Glob("../../../../docs/*.md"))(t)
	where := map[string]string{}
	found := 0
	for _, file := range append(files, "../../../../README.md") {
		if file == gettingStartedPage { // TestPages runs it as a whole
			continue
		}
		for _, line := range documented(t, file) {
			found++
			where[strings.TrimPrefix(line, "./")] = filepath.Base(file)
		}
	}
	if found < 30 {
		t.Errorf("only %d command lines found", found)
	}
	for _, cmd := range commands(newRootCommand(&program{})) {
		path := cmd.CommandPath()
		if !cmd.HasSubCommands() && !cmd.HasExample() {
			t.Errorf("%s has no example", path)
		}
		for line := range strings.Lines(cmd.Example) {
			line = strings.TrimSpace(line)
			if !strings.HasPrefix(line, path) {
				t.Errorf("not an example of %s: %s", path, line)
			}
			where[line] = "help of " + path
		}
	}
	for _, line := range slices.Sorted(maps.Keys(where)) {
		t.Run(where[line], func(t *testing.T) { runDocumented(t, line) })
	}
}

// commands are all commands of the program's own, groups included.
func commands(root *cobra.Command) (list []*cobra.Command) {
	for _, cmd := range root.Commands() {
		if cmd.Name() != "help" && cmd.Name() != "completion" {
			list = append(list, cmd)
			list = append(list, commands(cmd)...)
		}
	}
	return list
}

// TestHelpOfEveryCommand: help is complete and fits a terminal, and docs/agrimill.md
// names every command.
func TestHelpOfEveryCommand(t *testing.T) {
	const page = "../../../../docs/agrimill.md"
	text := testkit.Must(os.ReadFile(page))(t)
	w := &world{T: t}
	for _, cmd := range commands(newRootCommand(&program{})) {
		path := cmd.CommandPath()
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") || strings.ToLower(cmd.Short[:1]) != cmd.Short[:1] {
			t.Errorf("%s: the short help is %q", path, cmd.Short)
		}
		args := strings.Fields(path)[1:]
		help := w.want(statusOK, append(args, "--help")...)
		if other := w.want(statusOK, append([]string{"help"}, args...)...); other != help {
			t.Errorf("%s --help:\n%s\nagrimill help:\n%s", path, help, other)
		}
		for line := range strings.Lines(help) {
			if len([]rune(line)) > 101 && !strings.HasPrefix(line, "  agrimill ") {
				t.Errorf("%s: a line too long for a terminal: %s", path, line)
			}
		}
		if !cmd.HasSubCommands() && !strings.Contains(string(text), "`"+path) && !strings.Contains(string(text), "./"+path) {
			t.Errorf("%s does not mention %s", page, path)
		}
	}
}

// runDocumented runs one command line, in which ./agrimill or agrimill is the program,
// where everything is that the documentation speaks of: a queue with the messages
// 17, 18 and 19, a gateway with endpoints and messages that wait, and files.
func runDocumented(t *testing.T, line string) {
	t.Helper()
	line, _, _ = strings.Cut(line, " | ")
	line, _, _ = strings.Cut(line, " > ")
	line, input, _ := strings.Cut(line, " < ")
	args := words(t, line)[1:]
	command := args[0]
	if command == "inspect" && args[1] == "trace" {
		command = inspectTrace
	}
	w := documentedWorld(t, command)
	if input != "" {
		file := testkit.Must(os.Open(input))(t)
		defer func() { _ = file.Close() }()
		w.stdin = file
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	output := &endless{}
	switch args[0] {
	case "emulator":
		args = append(args, "--listen", "127.0.0.1:0") // not a port that may be taken
		output.until, output.stop = "emulator ready", cancel
	case "record":
		args = append(args, "--listen", "127.0.0.1:0")
		output.until, output.stop = "Ctrl-C ends it", cancel
	case "init":
		w.terminal = false // nobody answers
	case "demo":
		args = append(args, "--address", "127.0.0.1:0")
		output.until, output.stop = "Ctrl-C ends the demo", cancel
	case "run":
		output.until, output.stop = "agrimill is running", cancel
	case "tail":
		output.until, output.stop = "_RECEIVED", cancel
	}
	if command == "trace" || command == "status" || command == inspectTrace || command == "why" {
		w.beside(t, args)
	}
	if slices.Contains(args, "--trace") {
		w.beside(t, []string{"trace", "--config", "agrimill.yaml", "field 1.zip"})
	}
	if status := w.program(output, output).run(ctx, args); status != statusOK {
		t.Errorf("agrimill %q: status %d:\n%s", args, status, output.text)
	}
}

// beside runs agrimill.yaml until the test ends, and waits until a command that asks it has its answer.
func (w *world) beside(t *testing.T, command []string) (address string) {
	t.Helper()
	address = fmt.Sprintf("127.0.0.1:%d", testkit.FreePorts(t, 1)[0])
	text := testkit.Must(os.ReadFile("agrimill.yaml"))(t)
	must(t, os.WriteFile("agrimill.yaml", bytes.Replace(text, []byte("127.0.0.1:0"), []byte(address), 1), 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	program := w.program(io.Discard, io.Discard)
	go func() { // ends with the test
		defer close(ended)
		program.run(ctx, []string{"run", "agrimill.yaml"})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	// Before that a command may find nothing wrong, because there is nobody to ask.
	testkit.Eventually(t, "agrimill is ready", func() bool {
		response, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	testkit.Eventually(t, fmt.Sprintf("%q has its answer", command), func() bool {
		status, _, _ := w.agrimill(command...)
		return status == statusOK
	})
	return address
}

// endless is the output of a program that runs until it is stopped.
type endless struct {
	mu    sync.Mutex
	text  []byte
	until string // when this was written
	stop  func()
}

func (e *endless) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.text = append(e.text, p...)
	if e.stop != nil && strings.Contains(string(e.text), e.until) {
		e.stop()
	}
	return len(p), nil
}

// inspectTrace is a command that needs more than inspect does.
const inspectTrace = "inspect trace"

func documentedWorld(t *testing.T, command string) *world {
	t.Helper()
	w := &world{T: t, env: map[string]string{}}
	sink := "{log: {}}"
	if slices.Contains([]string{"poison", "run", "check", inspectTrace}, command) {
		w = newWorld(t, 16, taskData, shapes, taskData)
		sink = fmt.Sprintf(`{nats: {url: %q, user: %s, password: "${NATS_PASSWORD}"}}`, w.server.URL(), user)
	}
	f := newFarm(t, gatewaytest.Config{})
	f.gate.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:example:farm", Receive: []string{"doc:pdf"}})
	sent := mark
	if command == inspectTrace {
		sent = string(farmdatatest.Archive(t, 3))
	}
	waiting := 5
	if command == "run" {
		waiting = 0 // it is stopped at once, and would not have finished them
	}
	for i := range waiting {
		f.put(taskData, fmt.Sprintf("field %d.zip", i), sent)
	}
	maps.Copy(w.env, f.env)
	file := w.configure(fmt.Sprintf("sinks: {farm: %s}\npoison: {sink: farm}\nadmin: {address: \"127.0.0.1:0\"}\n", sink))
	t.Chdir(filepath.Dir(file))
	taskData, harvest := mark, ""
	if command == "inspect" {
		taskData, harvest = string(farmdatatest.Archive(t, 3)), string(farmdatatest.Harvest(t))
	}
	for name, content := range map[string]string{
		"taskdata.zip": taskData, "harvest.zip": harvest, "report.pdf": mark, "client-secret": f.env["AGRIMILL_CLIENT_SECRET"],
		"cases.yaml":   "cases: [{name: no farm data, message: {event: ENDPOINT_DELETED}, expect: []}]\n",
		"events.jsonl": `{"event":"MESSAGE_RECEIVED","message_type":"doc:pdf","filename":"field 1.zip"}` + "\n",
	} {
		must(t, os.WriteFile(name, []byte(content), 0o600))
	}
	if command == "emulator" { // record makes a new one
		must(t, os.WriteFile("session.jsonl", []byte(`{"gateway_recording":1}`), 0o600))
	}
	// A person is there and says yes.
	w.terminal, w.stdin = true, strings.NewReader("y\n")
	return w
}

// documented returns the lines of a Markdown file that call agrimill, those in
// blocks and those in the text. Blocks of the language bash are left out: they build
// upon each other, and the test of their page runs them as a whole.
func documented(t *testing.T, file string) []string {
	t.Helper()
	text := testkit.Must(os.ReadFile(file))(t)
	text = regexp.MustCompile("(?ms)^```bash\n.*?^```$").ReplaceAll(text, nil)
	var lines []string
	for _, match := range regexp.MustCompile("(?m)^(\\./agrimill .*)$|`(\\./agrimill [^`]+)`").FindAllSubmatch(text, -1) {
		lines = append(lines, string(match[1])+string(match[2]))
	}
	return lines
}

// words splits a command line as a shell does. Single quotes are all there is.
func words(t *testing.T, line string) []string {
	t.Helper()
	var list []string
	for i, part := range strings.Split(line, "'") {
		switch {
		case i%2 == 1 && strings.HasSuffix(line[:strings.Index(line, "'"+part+"'")], " "):
			list = append(list, part)
		case i%2 == 1 || strings.ContainsAny(part, "\"$\\<>&;*?|`"):
			t.Fatalf("this test does not read shell like %q", line)
		default:
			list = append(list, strings.Fields(part)...)
		}
	}
	return list
}
