package emulator_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/emulator"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Who has to know the credentials before the emulator runs gives them to it.
func TestApplicationFromTheEnvironment(t *testing.T) {
	env := map[string]string{
		emulator.EnvClientID: "agrimill", emulator.EnvClientSecret: "known before",
		emulator.EnvApplicationID:     "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01",
		emulator.EnvSoftwareVersionID: "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d02",
	}
	config := gatewaytest.Config{ChunkSize: emulator.DefaultChunkSize, Application: emulator.ApplicationFrom(func(name string) string { return env[name] })}
	testkit.NoError(t, emulator.Check(config))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, in := io.Pipe()
	result := make(chan error, 1)
	go func() { result <- emulator.Serve(ctx, config, "", in, io.Discard) }()
	line := testkit.Must(bufio.NewReader(out).ReadBytes('\n'))(t)
	var d emulator.Description
	testkit.NoError(t, json.Unmarshal(line, &d))
	if d.ClientID != env[emulator.EnvClientID] || d.ApplicationID != env[emulator.EnvApplicationID] || d.SoftwareVersionID != env[emulator.EnvSoftwareVersionID] {
		t.Errorf("the emulator says %+v", d)
	}
	client := testkit.Must(gateway.New(gateway.Config{BaseURL: d.BaseURL, TokenURL: d.TokenURL, ClientID: "agrimill", ClientSecret: "known before"}))(t)
	if tenants, err := client.ListAuthorizedTenants(t.Context()); err != nil || len(tenants) != 1 {
		t.Errorf("%d tenants, %v", len(tenants), err)
	}
	testkit.NoError(t, client.Close())
	stop()
	testkit.NoError(t, <-result)
}

// A variable that cannot be used is named as it was written.
func TestBadEnvironment(t *testing.T) {
	const id = "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01"
	for _, c := range []struct{ name, value, want string }{
		{emulator.EnvApplicationID, "nonsense", "EMULATOR_APPLICATION_ID must be a UUID"},
		{emulator.EnvApplicationID, "{" + id + "}", "EMULATOR_APPLICATION_ID must be a UUID"},
		{emulator.EnvSoftwareVersionID, " ", "EMULATOR_SOFTWARE_VERSION_ID must be a UUID"},
		{emulator.EnvSoftwareVersionID, id + "\n", "EMULATOR_SOFTWARE_VERSION_ID must be a UUID"},
		{emulator.EnvSoftwareVersionID, id, ""},
		{emulator.EnvApplicationID, "", ""},
	} {
		err := emulator.Check(gatewaytest.Config{
			ChunkSize: 1, Application: emulator.ApplicationFrom(func(name string) string { return map[string]string{c.name: c.value}[name] }),
		})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%q: got %v, want %q", c.name, c.value, err, c.want)
		}
	}
}

// A shell reads what was written, whatever is in a value.
func TestEnvironment(t *testing.T) {
	const secret = `a 'quoted' $HOME "secret"`
	script := emulator.Description{ClientSecret: secret}.Environment() + "printf %s \"$AGRIMILL_CLIENT_SECRET\""
	out, err := exec.CommandContext(t.Context(), "bash", "-euc", script).Output()
	if err != nil || string(out) != secret {
		t.Errorf("the shell has %q, %v; want %q", out, err, secret)
	}
}
