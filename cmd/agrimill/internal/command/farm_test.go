package command

import (
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// External IDs of the endpoints of a farm.
const (
	terminalID = "urn:example:terminal"
	softwareID = "urn:example:software"
)

// farm is a gateway with a sender and a receiver, and agrimill as its
// application.
type farm struct {
	*world
	gate               *gatewaytest.Server
	terminal, software gateway.Endpoint
}

// newFarm has a terminal that sends everything that software subscribes to.
func newFarm(t *testing.T, config gatewaytest.Config) *farm {
	t.Helper()
	f := &farm{world: &world{T: t}, gate: gatewaytest.New(t, config)}
	settings := f.gate.ClientConfig()
	f.env = map[string]string{
		"AGRIMILL_BASE_URL": settings.BaseURL, "AGRIMILL_TOKEN_URL": settings.TokenURL, "AGRIMILL_CLIENT_ID": settings.ClientID,
		"AGRIMILL_CLIENT_SECRET": string(settings.ClientSecret), "AGRIMILL_SERVICE": settings.ServiceName,
	}
	f.env["AGRIMILL_APPLICATION_ID"], f.env["AGRIMILL_SOFTWARE_VERSION_ID"] = f.gate.Application().ID, f.gate.Application().SoftwareVersionID
	types := []string{taskData, shapes, "doc:pdf", "application:octet-stream"}
	f.terminal = f.gate.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: terminalID, Name: "Terminal", Send: types})
	f.software = f.gate.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: softwareID, Name: "Farm software", Receive: types, Subscribe: types})
	return f
}
