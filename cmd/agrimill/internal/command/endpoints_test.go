package command

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestEndpointsPut(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	app := f.gate.Application()
	f.env["AGRIMILL_APPLICATION_ID"], f.env["AGRIMILL_SOFTWARE_VERSION_ID"] = app.ID, app.SoftwareVersionID
	put := []string{
		"endpoints", "put", "urn:example:new", "--name", "Möhren", "--send", "doc:pdf", "--receive", "doc:pdf", "--receive", "img:png",
		"--send-receive", taskData, "--subscribe", "img:png", "--subscribe", "img:png",
	}
	text := f.want(statusOK, put...)
	if !strings.HasPrefix(text, "created endpoint ") || !strings.Contains(text, "(urn:example:new) in tenant "+f.gate.Tenant()) {
		t.Errorf("created: %q", text)
	}
	report := decode[putReport](f.world, f.want(statusOK, append(put, "--json", "--tenant", f.gate.Tenant(), "--kind", "virtual_communication_unit")...))
	want := []gateway.EndpointCapability{
		{MessageType: taskData, Direction: gateway.DirectionSendReceive}, {MessageType: "doc:pdf", Direction: gateway.DirectionSendReceive},
		{MessageType: "img:png", Direction: gateway.DirectionReceive},
	}
	got := map[string]gateway.Direction{}
	for _, c := range report.Endpoint.Capabilities {
		got[c.MessageType] = c.Direction
	}
	for _, c := range want {
		if got[c.MessageType] != c.Direction {
			t.Errorf("%s: %q, want %q", c.MessageType, got[c.MessageType], c.Direction)
		}
	}
	if report.Created || report.Endpoint.ExternalID != "urn:example:new" || len(got) != len(want) {
		t.Errorf("report: %+v", report)
	}
	testkit.Contains(t, f.want(statusOK, "tenants", "--full"), "Möhren")

	for _, test := range []struct{ args, says string }{
		{"endpoints put", "exactly one EXTERNAL-ID"},
		{"endpoints put a b", "exactly one EXTERNAL-ID"},
		{"endpoints put urn:", "EXTERNAL-ID must have two parts"},
		{"endpoints delete urn: --yes", "EXTERNAL-ID must have two parts"},
		{"endpoints put urn:a:b --name /", "--name must"},
		{"endpoints put urn:a:b --kind telemetry_platform", "must be cloud_software or"},
		{"endpoints put urn:a:b --tenant 17", "--tenant must be the ID (UUID)"},
		{"endpoints put urn:a:b --application-id 17", "--application-id must be a UUID"},
		{"endpoints put urn:a:b --connections-uri nowhere", "--connections-uri must be"},
		{"endpoints put urn:a:b --send=", "--send is empty"},
		{"endpoints put urn:a:b --receive doc:pdf,img:png", `"doc:pdf,img:png" is no message type: there are no wildcards; repeat the flag`},
		{"endpoints put urn:a:b --send doc:*", `"doc:*" is no message type`},
		{"endpoints put urn:a:b --receive doc:pdf --subscribe img:png", "--subscribe img:png has no effect: the endpoint cannot receive it; add --receive img:png"},
		{"endpoints put urn:a:b --send doc:pdf --subscribe doc:pdf", "--subscribe doc:pdf has no effect"},
	} {
		if status, _, stderr := f.agrimill(strings.Fields(test.args)...); status != statusUsage || !strings.Contains(stderr, test.says) {
			t.Errorf("%s: status %d, %s", test.args, status, stderr)
		}
	}
	f.env["AGRIMILL_SOFTWARE_VERSION_ID"] = ""
	if status, _, stderr := f.agrimill(put...); status != statusUsage || !strings.Contains(stderr, "put: --software-version-id is required\n") {
		t.Errorf("status %d, %s", status, stderr)
	}
	if n := f.gate.Stats(gatewaytest.OpPutEndpoint).Requests; n != 2 {
		t.Errorf("%d requests, want the 2 that were right", n)
	}

	other := f.gate.AddTenant()
	f.gate.Authorize(app, other)
	if status, _, stderr := f.agrimill(append(put, "--software-version-id", app.SoftwareVersionID)...); status != statusUsage || !strings.Contains(stderr, "2 tenants") {
		t.Errorf("of two tenants: status %d, %s", status, stderr)
	}
	status, _, stderr := f.agrimill(append(put, "--software-version-id", app.SoftwareVersionID, "--tenant", f.gate.AddTenant())...)
	if status != statusFailed || !strings.Contains(stderr, "has not authorized") {
		t.Errorf("a foreign tenant: status %d, %s", status, stderr)
	}
}

func TestEndpointsDelete(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	endpoints := func() int {
		list := decode[[]gateway.TenantInfo](f.world, f.want(statusOK, "tenants", "--json", "--mine"))
		return len(list[0].Endpoints)
	}
	f.want(statusUsage, "endpoints", "delete", "farm")
	if status, _, stderr := f.agrimill("endpoints", "delete", terminalID); status != statusUsage || !strings.Contains(stderr, "add --yes") {
		t.Errorf("nobody to ask: status %d, %s", status, stderr)
	}
	f.world.terminal = true
	for _, answer := range []string{"", "\n", "n\n", "yes, but\n"} {
		f.stdin = strings.NewReader(answer)
		if status, _, stderr := f.agrimill("endpoints", "delete", terminalID); status != statusFailed ||
			!strings.Contains(stderr, "Delete endpoint "+terminalID) || !strings.Contains(stderr, "nothing was done") {
			t.Errorf("%q: status %d, %s", answer, status, stderr)
		}
	}
	// A signal while the question is open.
	reader, writer := io.Pipe()
	f.stdin = reader
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := &watcher{text: "[y/N]", found: cancel}
	if status := f.program(t.Output(), asked).run(ctx, []string{"endpoints", "delete", terminalID}); status != statusFailed {
		t.Errorf("cancelled: status %d", status)
	}
	testkit.NoError(t, writer.Close())
	if n := endpoints(); n != 2 {
		t.Fatalf("%d endpoints are left", n)
	}

	f.stdin = strings.NewReader("y\n")
	if text := f.want(statusOK, "endpoints", "delete", terminalID); text != "deleted endpoint "+terminalID+" in tenant "+f.gate.Tenant()+"\n" {
		t.Errorf("%q", text)
	}
	f.world.terminal = false
	f.want(statusOK, "endpoints", "delete", softwareID, "--yes", "--tenant", f.gate.Tenant())
	if n := endpoints(); n != 0 {
		t.Errorf("%d endpoints are left", n)
	}
	f.want(statusFailed, "endpoints", "delete", softwareID, "--yes")
}
