package command

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Each flag and argument that takes an endpoint takes its external ID.
func TestExternalIDsOfCommands(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	name := f.files("task.zip", mark)[0]
	tried := []string{}
	try := func(place string, args ...string) string {
		t.Helper()
		tried = append(tried, place)
		return f.want(statusOK, args...)
	}
	try("send --from", "send", "--from", terminalID, "--to", f.software.ID, name)
	try("send --to", "send", "--from", f.terminal.ID, "--to", softwareID, name)
	for _, e := range f.gate.Ledger() {
		if e.SenderID != f.terminal.ID || e.EndpointID != f.software.ID {
			t.Errorf("from %s to %s", e.SenderID, e.EndpointID)
		}
	}
	if text := try("tail --endpoint", "tail", "--endpoint", softwareID, "--count", "2"); strings.Count(text, " external_id="+softwareID) != 2 {
		t.Errorf("tail: %s", text)
	}
	try("endpoints put EXTERNAL-ID", "endpoints", "put", "urn:example:new", "--receive", taskData)
	try("endpoints delete EXTERNAL-ID", "endpoints", "delete", "--yes", "urn:example:new")
	t.Chdir(filepath.Dir(f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: \"127.0.0.1:0\"}\n")))
	ask := []string{"why", "--config", "agrimill.yaml", "--type", taskData, "--from", terminalID}
	f.beside(t, ask)
	testkit.Eventually(t, "the tenants are known", func() bool {
		status, _, _ := f.agrimill(ask...)
		return status == statusOK
	})
	testkit.Contains(t, try("why --from", ask...), f.terminal.ID)
	places := endpointPlaces(newRootCommand(&program{}))
	slices.Sort(tried)
	testkit.Equal(t, slices.Sorted(slices.Values(places)), tried)
}

// endpointPlaces are the flags and arguments of a command and those below it that take an endpoint.
func endpointPlaces(cmd *cobra.Command) (places []string) {
	path := strings.TrimPrefix(cmd.CommandPath(), "agrimill ")
	if strings.Contains(cmd.Use, "EXTERNAL-ID") || strings.Contains(cmd.Use, "ENDPOINT") {
		places = append(places, path+" EXTERNAL-ID")
	}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if kind, _ := pflag.UnquoteUsage(flag); kind == "ENDPOINT" {
			places = append(places, path+" --"+flag.Name)
		}
	})
	for _, sub := range cmd.Commands() {
		places = append(places, endpointPlaces(sub)...)
	}
	return places
}
