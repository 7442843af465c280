//go:build browser

package admin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// manyFarms is an agrimill with 100 routes, and 10,000 endpoints in 200 tenants.
func manyFarms() *plainSource {
	now := time.Now()
	source := &plainSource{
		queue:    queueOf(60),
		snapshot: admin.Snapshot{State: admin.StateRunning, Poison: admin.Poison{Sink: "farm", Topic: "poison"}, Gateway: admin.Gateway{Host: "gateway.example", State: admin.GatewayConnected}},
	}
	for i := range 100 {
		state := router.StateRunning
		if i%33 == 32 {
			state = router.StateOutage
		}
		name := fmt.Sprintf("route-%02d", i)
		source.snapshot.Routes = append(source.snapshot.Routes, admin.Route{
			RouteHealth: router.RouteHealth{Name: name, State: state, Delivered: uint64(i), LastSuccess: now}, Direction: admin.FromGateway,
			From: admin.Place{Kind: "gateway", Detail: "iso:11783:-10:taskdata:zip"}, To: admin.Place{Kind: "nats", Sink: fmt.Sprint("sink-", i%5), Detail: "{tenant}.{type}"},
		})
		for _, key := range []string{"filter.expr", "from.gateway", "name", "to.sink", "to.topic"} {
			source.settings = append(source.settings, admin.Setting{Path: fmt.Sprintf("routes[%d].%s", i, key), Value: name, Source: fmt.Sprint("agrimill.yaml:", i)})
		}
	}
	for i := range 5 {
		source.snapshot.Sinks = append(source.snapshot.Sinks, admin.Sink{Name: fmt.Sprint("sink-", i), Kind: "nats", Up: true, CheckedAt: now})
	}
	var tenants []admin.Tenant
	for i := range 200 {
		tenant := admin.Tenant{ID: fmt.Sprintf("10000000-0000-4000-8000-%012d", i), Scopes: []string{"messages"}}
		for k := range 50 {
			id := fmt.Sprintf("20000000-0000-4000-8000-%06d%06d", i, k)
			tenant.Endpoints = append(tenant.Endpoints, admin.Endpoint{
				ID: id, ExternalID: fmt.Sprintf("urn:farm:%d:machine:%d", i, k), Name: fmt.Sprintf("Tractor %d of farm %d", k, i), Type: "virtual_communication_unit", Mine: k < 2,
				Sends: []string{taskData, shapes, "img:png"}, Receives: []string{taskData, shapes},
			})
			source.open = append(source.open, subscriber.Open{TenantID: tenant.ID, EndpointID: id, InFlight: 1 + k, Oldest: now.Add(-time.Duration(i*50+k) * time.Second)})
		}
		tenants = append(tenants, tenant)
	}
	source.tenants = func(context.Context) ([]admin.Tenant, error) { return tenants, nil }
	return source
}

// longTasks counts what has kept the browser from responding, since before the page was loaded, and names the longest.
const longTasks = `new PerformanceObserver(list => { for (const task of list.getEntries()) window.longest = Math.max(window.longest ?? 0, task.duration); }).observe({type: "longtask", buffered: true})`

// TestBrowserScale: with 10,000 endpoints and 100 routes the page has at most 3,000 elements in every room, after all of them were
// open, and reads no list again that has not changed. How long it takes depends on the machine, and is printed.
func TestBrowserScale(t *testing.T) {
	source := manyFarms()
	server := serve(t, admin.Config{Token: testToken}, source)
	page := open(t, server, "overview")
	page.Eval(longTasks)
	page.Wait(running + ` && !document.querySelector("#flow-more").hidden`)
	page.Wait(`performance.getEntriesByName("first-contentful-paint").length === 1`)
	t.Logf("first paint after %s ms, the style after %s ms, the modules after %s ms, the first status after %s ms",
		page.Eval(`Math.round(performance.getEntriesByName("first-contentful-paint")[0].startTime)`),
		page.Eval(`Math.round(performance.getEntriesByType("resource").find(e => e.name.endsWith(".css")).responseEnd)`),
		page.Eval(`Math.round(Math.max(...performance.getEntriesByType("resource").filter(e => e.name.endsWith(".js")).map(e => e.responseEnd)))`),
		page.Eval(`Math.round(performance.getEntriesByType("resource").find(e => e.name.includes("api/status")).responseEnd)`))
	rooms := []struct{ name, whole string }{
		{"overview", `document.querySelectorAll("#c-sinks .node").length === 5`},
		{"farms", `document.querySelectorAll("#waiting li").length === 12 && document.querySelector("#tenants-count").textContent === "200 tenants, 10,000 endpoints"`},
		{"routes", `document.querySelectorAll("#routes-rows tr").length === 100 && document.querySelector("#routes-rows .state").dataset.state === "outage"`},
		{"problems", rows + ` === 25`},
		{"messages", `document.querySelectorAll("#why-tenants option").length === 50`},
		{"configuration", `document.querySelectorAll("#config-rows tr").length === 100 && document.querySelector("#config-empty").textContent.startsWith("400 more")`},
	}
	for _, room := range rooms {
		enter(page, room.name)
		page.Wait(room.whole)
		t.Logf("%s: %s elements, longest task %s ms", room.name, page.Eval(`document.querySelectorAll("*").length`), page.Eval(`Math.round(window.longest ?? 0)`))
		if got := page.Eval(`document.querySelectorAll("*").length <= 3000`); got != "true" {
			t.Errorf("%s: more than 3,000 elements", room.name)
		}
	}
	for _, room := range rooms { // again, because pictures take long themselves
		enter(page, room.name)
		page.Wait(room.whole)
		look(page, "scale-"+room.name)
	}

	// The list leads to its end, and to what is searched for.
	enter(page, "farms")
	page.Eval(`document.querySelector("#tenants").scrollTop = 1e9`)
	page.Wait(`[...document.querySelectorAll("#tenants .name")].some(n => n.textContent === "Tractor 49 of farm 199") && document.querySelectorAll("#tenants tbody tr").length < 60`)
	page.Type("#tenants-query", "tractor 7 of farm 19")
	page.Wait(`document.querySelector("#tenants-count").textContent === "11 of 10,000 endpoints" && document.querySelectorAll("#tenants tbody tr").length === 11`)
	t.Logf("with pictures, a scroll and a search the longest task has taken %s ms", page.Eval(`Math.round(window.longest ?? 0)`))

	// What is asked for again is not sent again: the browser has seen the whole list once, and then that it is the same.
	sizes := `JSON.stringify(performance.getEntriesByType("resource").filter(e => e.name.endsWith("api/tenants")).map(e => e.responseStatus))`
	page.Wait(sizes + `.includes("304")`)
	if got := page.Eval(sizes); strings.Count(got, "200") != 1 {
		t.Errorf("the tenants, which have not changed, were read %s", got)
	}
	if slices.Contains(strings.Fields(page.Eval(`[...document.querySelectorAll("#tenants-rows tr")].map(n => n.getAttribute("aria-rowindex")).join(" ")`)), "null") {
		t.Error("a row has no index")
	}
	page.Clean(origin(server))
}
