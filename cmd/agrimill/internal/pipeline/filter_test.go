package pipeline

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
)

func TestFilter(t *testing.T) {
	const tenant, endpoint = "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0001", "6d1a2d18-0d5d-4c3c-9a5f-8d8d6b8a0002"
	msg := message.NewMessage("1", nil)
	msg.Metadata = message.Metadata{
		gateway.KeyMessageType: "iso:11783:-10:taskdata:zip", gateway.KeyTenantID: tenant,
		gateway.KeyReceivingEndpointID: endpoint, gateway.KeyFilename: "Field [7]/north.ZIP",
	}
	for name, test := range map[string]struct {
		filter config.Filter
		want   bool
	}{
		"type":              {config.Filter{Type: []string{"iso:*"}}, true},
		"one of":            {config.Filter{Type: []string{"img:*", "iso:*:zip"}}, true},
		"question mark":     {config.Filter{Type: []string{"iso:1178?:-10:taskdata:zip"}}, true},
		"whole":             {config.Filter{Type: []string{"iso:"}}, false},
		"case of a type":    {config.Filter{Type: []string{"ISO:*"}}, false},
		"filename":          {config.Filter{Filename: []string{"*.zip"}}, true},
		"brackets":          {config.Filter{Filename: []string{"field [7]*"}}, true},
		"dot is no joker":   {config.Filter{Filename: []string{"*.z.p"}}, false},
		"star for nothing":  {config.Filter{Filename: []string{"*field [7]/north.zip*"}}, true},
		"tenant":            {config.Filter{Tenant: []string{"6D1A2D18-0d5d-4c3c-9a5f-8d8d6b8a0001"}}, true},
		"endpoint":          {config.Filter{Endpoint: []string{endpoint}}, true},
		"another endpoint":  {config.Filter{Endpoint: []string{tenant}}, false},
		"all of them":       {config.Filter{Type: []string{"iso:*"}, Endpoint: []string{endpoint}, Filename: []string{"*.ZIP"}}, true},
		"all of them but 1": {config.Filter{Type: []string{"iso:*"}, Tenant: []string{endpoint}}, false},
		"nothing like it":   {config.Filter{Type: []string{"\xff*"}}, false},
	} {
		if got := newFilter(test.filter, "", false)(msg); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if newFilter(config.Filter{}, "", false) != nil {
		t.Error("an empty filter is one")
	}
	// On the way to the gateway, the sender counts: the message's own, or the route's.
	filter := newFilter(config.Filter{Endpoint: []string{endpoint}}, endpoint, true)
	out := message.NewMessage("1", nil)
	if !filter(out) {
		t.Error("the sender of the route does not count")
	}
	out.Metadata[gateway.KeyEndpointID] = tenant
	if filter(out) {
		t.Error("the sender of the message does not count")
	}
}
