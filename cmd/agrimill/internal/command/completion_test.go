package command

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The shell offers commands, and the values of flags that have only some.
func TestCompletion(t *testing.T) {
	w := &world{T: t}
	for _, test := range []struct {
		args   []string
		offers []string
	}{
		{[]string{"poison", ""}, []string{"drop", "list", "replay", "show"}},
		{[]string{"te"}, []string{"tenants", "test"}},
		{[]string{"help", "poison", ""}, []string{"drop", "list", "replay", "show"}},
		{[]string{"poison", "list", "--class", ""}, []string{"handler", "permanent"}},
		{[]string{"tail", "--event", ""}, []string{
			"AUTHORIZATION_ADDED", "AUTHORIZATION_REVOKED", "ENDPOINTS_LIST_CHANGED", "ENDPOINT_DELETED", "FILE_RECEIVED", "MESSAGE_RECEIVED",
		}},
		{[]string{"tenants", "--auth-style", ""}, []string{"basic", "params"}},
		{[]string{"tenants", "--config", ""}, []string{"yaml", "yml"}}, // endings of files
		{[]string{"status", ""}, []string{"yaml", "yml"}},
		{[]string{"nothing", ""}, nil},
	} {
		_, stdout, _ := w.agrimill(append([]string{"__complete"}, test.args...)...)
		var offered []string
		for line := range strings.Lines(stdout) {
			if value, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); value != "" && !strings.HasPrefix(value, ":") {
				offered = append(offered, value)
			}
		}
		slices.Sort(offered)
		if !slices.Equal(offered, test.offers) {
			t.Errorf("%q: %q, want %q", test.args, offered, test.offers)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if text := w.want(statusOK, "completion", shell); !strings.Contains(text, "agrimill") {
			t.Errorf("%s: %q", shell, text)
		}
	}
	w.want(statusUsage, "completion", "bash", "more")
	help := w.want(statusOK, "completion", "--help")
	for _, place := range []string{
		"/etc/bash_completion.d/agrimill", "~/.local/share/bash-completion/completions/agrimill", `"${fpath[1]}/_agrimill"`,
		"~/.config/fish/completions/agrimill.fish", "$PROFILE",
	} {
		testkit.Contains(t, help, place)
	}
}

// With a running agrimill the shell offers tenants, endpoints, routes and messages; what others chose cannot write on the terminal.
// Without one it offers nothing, and says nothing.
func TestCompletionFromARunningAgrimill(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.put(taskData, "Field 7.zip", mark)
	f.put(taskData, "Field\x1b[31m 8.zip", mark)
	t.Chdir(filepath.Dir(f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: \"127.0.0.1:0\", read_token: a-token-that-may-read}\n")))
	address := f.beside(t, []string{"trace", "--config", "agrimill.yaml", "field 7"})
	must(t, os.WriteFile("token", []byte("a-token-that-may-read\n"), 0o600))
	offered := func(args ...string) []string {
		status, stdout, stderr := f.agrimill(append([]string{"__complete"}, args...)...)
		if status != statusOK || strings.Contains(stdout, "\x1b") || strings.Contains(stderr, "agrimill:") {
			t.Errorf("%q: status %d\n%s\n%s", args, status, stdout, stderr)
		}
		var values []string
		for line := range strings.Lines(stdout) {
			if value, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(value, ":") {
				values = append(values, value)
			}
		}
		return values
	}
	message := decode[[]journal.Trace](f.world, f.want(statusOK, "trace", "--config", "agrimill.yaml", "--json", "field 7"))[0].Messages[0]
	for _, test := range []struct {
		args, want []string
	}{
		{[]string{"trace", "--admin", address, "--admin-token-file", "token", "Fi"}, []string{"Field 7.zip"}},
		{[]string{"trace", "--config", "agrimill.yaml", message.MessageIDs[0][:8]}, []string{message.MessageIDs[0]}},
		{[]string{"trace", "--config", "agrimill.yaml", "Field 7.zip", "Fi"}, nil},
		{[]string{"why", "--config", "agrimill.yaml", "--tenant", ""}, []string{f.gate.Tenant()}},
		{[]string{"send", "--config", "agrimill.yaml", "--tenant", ""}, []string{f.gate.Tenant()}},
		{[]string{"send", "--config", "agrimill.yaml", "--from", softwareID}, []string{softwareID}},
		{[]string{"endpoints", "delete", "--config", "agrimill.yaml", softwareID}, []string{softwareID}},
		{[]string{"poison", "list", "--config", "agrimill.yaml", "--route", "t"}, []string{"task-data"}},
		{[]string{"poison", "show", "--config", "agrimill.yaml", ""}, nil},             // the queue is in a log
		{[]string{"trace", "--admin", address, ""}, nil},                               // without the token
		{[]string{"trace", "--admin", address, "--admin-token-file", "none", ""}, nil}, // without the file
		{[]string{"trace", "--admin", "127.0.0.1:1", ""}, nil},
		{[]string{"trace", "--config", "none.yaml", ""}, nil},
	} {
		if test.want != nil { // the shell does not wait long for an answer
			testkit.Eventually(t, fmt.Sprintf("%q offers %q", test.args, test.want), func() bool { return slices.Equal(offered(test.args...), test.want) })
		} else if got := offered(test.args...); len(got) > 0 {
			t.Errorf("%q: %q, want nothing", test.args, got)
		}
	}
}

// Somebody who pressed tab does not wait for a process that does not answer.
func TestCompletionFromAHangingAgrimill(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	w := &world{T: t}
	if stdout := w.want(statusOK, "__complete", "trace", "--admin", strings.TrimPrefix(server.URL, "http://"), ""); !strings.HasPrefix(stdout, ":") {
		t.Errorf("offered %q", stdout)
	}
}
