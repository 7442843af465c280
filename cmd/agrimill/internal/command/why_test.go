package command

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The chain is walked beside a running agrimill, and one link after the other is taken away in the
// gateway.
func TestWhy(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	other := f.gate.AddApplication(gatewaytest.ApplicationConfig{})
	f.gate.Authorize(other, f.gate.Tenant())
	tractor := f.gate.AddEndpoint(gatewaytest.EndpointConfig{App: other, ExternalID: "urn:other:tractor-7", Name: "Tractor 7", Send: []string{taskData, "img:png"}})
	t.Chdir(filepath.Dir(f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: \"127.0.0.1:0\"}\n")))
	ask := []string{"why", "--config", "agrimill.yaml", "--tenant", f.gate.Tenant()}
	f.beside(t, append(ask, "--type", taskData))
	testkit.Eventually(t, "the stream is open", func() bool {
		_, stdout, _ := f.agrimill(append(ask, "--type", taskData)...)
		return regexp.MustCompile(`(?m)^stream +ok +`).MatchString(stdout)
	})

	text := f.want(statusOK, append(ask, "--type", taskData, "--from", "tractor 7")...)
	for _, want := range []string{
		`(?m)^authorization +ok +`, `(?m)^endpoint +ok +.*"Farm software" \(` + f.software.ID, `(?m)^capability +ok +`, `(?m)^subscription +unknown +`,
		`(?m)^gateway route +ok +.*"Tractor 7" \(` + tractor.ID + `\)$`, `(?m)^stream +ok +`, `(?m)^route +ok +taken by farm-data, task-data$`, `Nothing is missing`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	missing := func(link, remedy string, args ...string) {
		t.Helper()
		answer := decode[why.Answer](f.world, f.want(statusFailed, append(append(ask, "--json"), args...)...))
		if answer.Missing != link {
			t.Errorf("%q: %q is missing, want %q: %+v", args, answer.Missing, link, answer)
		}
		if text := f.want(statusFailed, append(ask, args...)...); !strings.Contains(text, "The "+link+" is missing: ") || !strings.Contains(text, remedy) {
			t.Errorf("%q: %s", args, text)
		}
	}
	missing(why.LinkGatewayRoute, "manufacturer", "--type", shapes, "--from", tractor.ID)
	missing(why.LinkGatewayRoute, "agrimill tenants", "--type", taskData, "--from", "Tractor 8")
	missing(why.LinkCapability, "direction RECEIVE", "--type", "img:png")
	missing(why.LinkAuthorization, "authorize", "--type", taskData, "--tenant", uuid.NewString())
	f.gate.DeleteEndpointByUser(f.software.ID)
	f.gate.DeleteEndpointByUser(f.terminal.ID)
	testkit.Eventually(t, "the endpoints are known to be gone", func() bool {
		_, stdout, _ := f.agrimill(append(ask, "--type", taskData)...)
		return strings.Contains(stdout, "no endpoint in the tenant")
	})
	missing(why.LinkEndpoint, "endpoints", "--type", taskData)
}

// A question has a type, and of several tenants one; who asks needs the address alone.
func TestWhyQuestions(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	file := f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: \"127.0.0.1:0\"}\n" +
		"endpoints: [{tenant: " + f.gate.Tenant() + ", external_id: \"" + softwareID + "\", capabilities: [{type: \"doc:pdf\", direction: RECEIVE}]}]\n")
	t.Chdir(filepath.Dir(file))
	address := f.beside(t, []string{"status", "--config", "agrimill.yaml"})
	ask := []string{"why", "--admin", address}
	testkit.Eventually(t, "the tenant is known", func() bool {
		status, stdout, _ := f.agrimill(append(ask, "--type", "doc:pdf", "--json")...)
		return status == statusFailed && strings.Contains(stdout, `"missing": "subscription"`) // the only tenant need not be named
	})
	for _, args := range [][]string{{}, {"--tenant", "7", "--type", taskData}, {"--type", taskData, "more"}} {
		f.want(statusUsage, append(ask, args...)...)
	}
	f.gate.Authorize(f.gate.Application(), f.gate.AddTenant())
	testkit.Eventually(t, "there are two tenants", func() bool {
		_, _, stderr := f.agrimill(append(ask, "--type", "doc:pdf")...)
		return strings.Contains(stderr, "2 tenants")
	})
}
