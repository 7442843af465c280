package command

import (
	"slices"
	"strings"
	"testing"
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
		if !strings.Contains(help, place) {
			t.Errorf("the help does not name %s:\n%s", place, help)
		}
	}
}
