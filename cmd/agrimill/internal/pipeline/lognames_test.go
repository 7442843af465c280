package pipeline_test

import (
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// A line of the log that has an ID says who that is, as people call it.
func TestLogNames(t *testing.T) {
	t.Parallel()
	w, b := newRunning(t)
	testkit.Eventually(t, "the endpoints are known", func() bool {
		tenants, err := b.Tenants(t.Context())
		return err == nil && len(tenants) == 1 && len(tenants[0].Endpoints) == 2
	})
	log := b.Logger().With("part", "test")
	log.Info("a key waits", "key", w.receiver.ID, "count", 3)
	b.logs.contains(`msg="a key waits" part=test key=` + w.receiver.ID + ` count=3 key_name="the endpoint \"farm software\""`)
	log.Info("an event is odd", "tenant_id", w.gate.Tenant(), "first_endpoint_id", w.sender.ID)
	b.logs.contains(` tenant_name="the tenant of \"`, ` and 1 more" first_endpoint_name="the endpoint`)
	log.Info("others are not known", "tenant_id", w.sender.ID, "subscription", "none", "last", true)
	b.logs.contains(`tenant_id=` + w.sender.ID + " subscription=none last=true\n")
	log.Info("a subscription waits", "subscription", "all data, tenant "+w.gate.Tenant())
	b.logs.contains(` subscription_name="the route `, ` for the tenant of `)
}
