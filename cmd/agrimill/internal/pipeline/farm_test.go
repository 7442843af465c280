package pipeline

import (
	"errors"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/expr"
	"github.com/agrimill/agrimill/router/farm"
)

// Expressions are asked before a payload is read, and set what the topic is made of.
func TestExpressionsOfARoute(t *testing.T) {
	p := &Pipeline{}
	cfg := config.Route{
		Filter: config.Filter{Expr: `filename.endsWith(".zip")`, Farm: &farm.FilterConfig{Machine: []string{"mow*"}, Unreadable: farm.UnreadableMatch}},
		Set:    map[string]string{"readable": `metadata[?"x-farm-readable"].orValue("yes")`},
	}
	var route router.Route
	testkit.NoError(t, errors.Join(p.setExpressions(cfg, &route), p.setFarm(cfg, &route)))
	handler := message.PassthroughHandler
	for _, m := range slices.Backward(route.Middleware) {
		handler = m(handler)
	}
	for name, test := range map[string]struct {
		filename string
		payload  []byte
		selected bool
		readable string
	}{
		"both":           {"a.zip", farmdatatest.Archive(t, 5), true, "yes"},
		"cannot be read": {"a.zip", []byte("PK no archive"), true, "no"},
		"another name":   {"a.pdf", farmdatatest.Archive(t, 5), false, "yes"},
		"no payload":     {"a.zip", nil, true, "no"},
	} {
		msg := message.NewMessage("1", test.payload)
		msg.Metadata[gateway.KeyFilename] = test.filename
		if selected, err := route.Filter(msg); selected != test.selected || err != nil {
			t.Errorf("%s: selected %t, %v", name, selected, err)
		}
		out := testkit.Must(handler(msg))(t)
		if got := out[0].Metadata["readable"]; got != test.readable {
			t.Errorf("%s: readable %q", name, got)
		}
	}
	// Both have to be true.
	cfg.Filter.Farm.Machine = []string{"tractor*"}
	var other router.Route
	testkit.NoError(t, errors.Join(p.setExpressions(cfg, &other), p.setFarm(cfg, &other)))
	msg := message.NewMessage("1", farmdatatest.Archive(t, 5))
	msg.Metadata[gateway.KeyFilename] = "a.zip"
	if selected, err := other.Filter(msg); selected || err != nil {
		t.Errorf("another machine: selected %t, %v", selected, err)
	}
	for _, bad := range []config.Route{{Filter: config.Filter{Expr: "tenant"}}, {Set: map[string]string{"a": "1"}}} {
		if err := (&Pipeline{}).setExpressions(bad, &router.Route{}); !errors.Is(err, expr.ErrBadExpression) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	var plain router.Route
	if err := p.setFarm(config.Route{}, &plain); err != nil || plain.Filter != nil || plain.Transform != nil || plain.Middleware != nil {
		t.Errorf("got %+v, %v, want nothing set: no payload is looked into", plain, err)
	}
	if err := p.setFarm(config.Route{Filter: config.Filter{Farm: &farm.FilterConfig{DDI: []string{"x"}}}}, &plain); err == nil {
		t.Error("a mistake is accepted")
	}
}
