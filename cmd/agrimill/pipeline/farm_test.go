package pipeline

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/config"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
)

// A route looks into payloads only if its configuration says so.
func TestSetFarm(t *testing.T) {
	p := &Pipeline{}
	var plain router.Route
	if err := p.setFarm(config.Route{}, &plain); err != nil || plain.Select != nil || plain.Transform != nil || plain.Middleware != nil {
		t.Errorf("got %+v, %v, want nothing set", plain, err)
	}
	var route router.Route
	err := p.setFarm(config.Route{
		Filter:    config.Filter{Farm: &farm.FilterConfig{Machine: []string{"mow*"}}},
		Transform: farm.TransformConfig{Records: &farm.RecordsConfig{BatchRecords: 2}},
	}, &route)
	if err != nil || len(route.Middleware) != 1 {
		t.Fatalf("got %+v, %v", route, err)
	}
	msg := message.NewMessage("1", farmdatatest.Archive(t, 5))
	if ok, err := route.Select(msg); !ok || err != nil {
		t.Errorf("got %t, %v, want a match", ok, err)
	}
	if out, err := route.Transform(msg); len(out) != 3 || err != nil {
		t.Errorf("%d messages, %v, want 3", len(out), err)
	}
	if err := p.setFarm(config.Route{Filter: config.Filter{Farm: &farm.FilterConfig{DDI: []string{"x"}}}}, &route); err == nil {
		t.Error("a mistake is accepted")
	}
}
