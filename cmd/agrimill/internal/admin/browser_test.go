//go:build browser

package admin_test

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/browsertest"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// The page's own words for what a test waits for.
const (
	running = `document.querySelector("#state").dataset.state === "running"`
	// degraded is it as long as something is in the poison queue.
	degraded = `document.querySelector("#state").dataset.state === "degraded"`

	rows   = `document.querySelectorAll("#poison-rows tr").length`
	result = `document.querySelector("#replay-result").textContent`
)

// node is a node of the picture, found by its label.
func node(label string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".node")].find(n => n.getAttribute("aria-label") === %q)`, label)
}

// state is what a node shows as its state: the one behind the colour, and the word.
func state(label, name, word string) string {
	return fmt.Sprintf(`(%[1]s?.dataset.state === %[2]q && %[1]s.querySelector(".word").textContent === %[3]q)`, node(label), name, word)
}

// fact is what a node tells under a term.
func fact(label, term string) string {
	return fmt.Sprintf(`[...(%s?.querySelectorAll("dt") ?? [])].find(d => d.textContent === %q)?.nextElementSibling.textContent`, node(label), term)
}

func origin(server *admin.Server) string { return "http://" + server.Addr() }

// open opens a room of the page.
func open(t *testing.T, server *admin.Server, room string) *browsertest.Tab {
	t.Helper()
	return browsertest.Open(t, origin(server)+"/#/"+room)
}

// enter goes to another room, with the keyboard.
func enter(page *browsertest.Tab, room string) {
	page.Helper()
	page.Eval(`document.querySelector('#rooms a[href="#/` + room + `"]').focus()`)
	page.Keys("\r")
	page.Wait(`document.querySelector('#rooms a[aria-current="page"]').hash === "#/` + room + `"`)
}

// press presses what is there to be pressed, with the keyboard.
func press(page *browsertest.Tab, selector string) {
	page.Helper()
	page.Wait(`document.querySelector("` + selector + `")?.disabled === false`)
	page.Eval(`document.querySelector("` + selector + `").focus()`)
	page.Keys("\r")
}

// look takes the pictures of a state of the page.
func look(page *browsertest.Tab, name string) {
	page.Helper()
	page.Picture(name + "-light")
	page.Dark(true)
	page.Picture(name + "-dark")
	page.Resize(390, 844, true)
	page.Picture(name + "-phone-dark")
	page.Dark(false)
	page.Picture(name + "-phone")
	page.Resize(1360, 1000, false)
}

func TestBrowserPage(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken, Gatherer: b.registry}, b)
	b.send(4, taskData, "")
	b.send(3, shapes, hostileFilename)
	b.waitConfirmed(7)

	page := browsertest.Open(t, origin(server)+"/")
	page.Wait(degraded)
	page.Wait(state("Gateway", "connected", "connected"))
	page.Wait(state("Subscriber", "running", "running"))
	page.Wait(state("Route task data", "running", "running"))
	page.Wait(state("Route back", "running", "running"))
	page.Wait(state("Sink farm", "up", "up"))
	page.Wait(fact("Route task data", "delivered") + ` === "4"`)
	page.Wait(`document.querySelectorAll("#wires g").length === 7`)

	// Numbers change with the messages, and there is a rate.
	b.send(20, taskData, "")
	page.Wait(fact("Route task data", "delivered") + ` === "24"`)
	page.Wait(`document.querySelector("#t-confirmed").textContent === "27"`)
	page.Wait(`parseFloat(` + node("Route task data") + `.querySelector(".rate b").textContent) > 0`)
	page.Wait(`document.querySelector("#wires .pulse.on") !== null`)
	look(page, "page")

	// What would be HTML is text.
	enter(page, "problems")
	page.Wait(rows + ` === 3`)
	page.Wait(`document.querySelector("#poison-rows .reason").textContent.includes("type conversion error")`)
	page.Wait(`document.querySelector("#poison-rows .file").textContent === "\\u202e<svg onload=window.pwned=2>.zip"`)
	page.Wait(fmt.Sprintf(`document.querySelector("#poison-rows .route").textContent === %q`, hostileRoute))
	look(page, "problems")
	enter(page, "farms")
	page.Wait(`document.querySelectorAll("#tenants tbody tr").length === 2`)
	page.Wait(fmt.Sprintf(`[...document.querySelectorAll("#tenants .name")].some(n => n.textContent === %q)`, hostileEndpoint))
	page.Wait(fmt.Sprintf(`[...document.querySelectorAll(".node h3")].some(n => n.textContent === %q)`, hostileRoute))
	noElements(t, page, "main img:not(#contents-map), main b:not(.rate b), main svg:not(#chart, #wires, .graph svg)")
	for _, text := range []string{page.Eval("document.documentElement.outerHTML")} {
		if strings.Contains(text, secret) || strings.Contains(text, testToken) {
			t.Error("the page shows a secret")
		}
	}
	look(page, "farms")
	enter(page, "routes")
	page.Wait(`document.querySelectorAll("#history-routes .graph svg").length === 12`)
	page.Wait(`document.querySelectorAll("#routes-rows tr").length === 3 && document.querySelector("#routes-rows th .ext").textContent.startsWith("shapes")`) // it has poisoned
	page.Eval(`document.querySelector("#routes-head button").focus()`)
	page.Keys("\r")
	page.Wait(`document.querySelector("#routes-rows th .ext").textContent === "back" && document.querySelector("#routes-head th").getAttribute("aria-sort") === "ascending"`)
	look(page, "routes")
	page.Clean(origin(server))
}

// aDay returns the history of a day with a busy morning, a quiet night, an outage and a route back, which ends now.
func aDay(t *testing.T) *history.History {
	t.Helper()
	end := time.Now()
	now := end.Add(-26 * time.Hour)
	clock := func() time.Time { return now }
	j := testkit.Must(journal.New(journal.Config{Now: clock}))(t)
	h, o := history.New(clock), j.Observer(nil)
	counts := map[string]*history.Counts{"field-data": {}, "images": {}, "prescriptions": {}}
	chance := rand.New(rand.NewPCG(7, 7))
	id, minutes := 0, int(end.Sub(now)/time.Minute)
	update := func(age time.Duration, backlog int64) {
		var samples []history.Sample
		for name, c := range counts {
			sample := history.Sample{Route: name, FromGateway: name != "prescriptions", Counts: *c, Backlog: -1, Age: age}
			switch {
			case !sample.FromGateway:
				sample.Backlog, sample.Age = backlog, -1
			case name == "images": // the outage is that of the other one
				sample.Age = min(age, time.Second)
			}
			samples = append(samples, sample)
		}
		h.Update(samples, j)
	}
	for minute := range minutes {
		busy := 1 + 0.8*math.Sin(float64(minute)/140) + 0.4*math.Sin(float64(minute)/9)
		left := minutes - minute
		outage := left < 24 && left > 17
		began := now
		for name, c := range counts {
			c.Delivered += uint64(max(40*busy*map[string]float64{"field-data": 3, "images": 1, "prescriptions": 0.3}[name]*(0.8+0.4*chance.Float64()), 0))
			if outage && name == "field-data" {
				c.Retries += 9
				continue
			}
			if name == "images" && minute%97 == 3 {
				c.Poisoned += uint64(minute % 4)
			}
			id++
			metadata := message.Metadata{}
			event := &gateway.MessageReceived{ID: fmt.Sprintf("11111111-aaaa-4000-8000-%012d", id), TenantID: "t"}
			if name != "prescriptions" {
				metadata[gateway.KeyMessageID] = event.ID
				j.Event(event)
			}
			if name == "images" {
				now = now.Add(time.Duration(40+chance.IntN(90)) * time.Millisecond)
				j.Progress(subscriber.Progress{Kind: subscriber.ProgressFetched, Event: event, Bytes: 7})
			}
			msg := message.NewMessage(event.ID, nil)
			msg.Metadata = metadata
			route := router.Event{Route: name, Message: msg, Context: context.Background(), Kind: router.EventStarted}
			now = now.Add(time.Duration(1+chance.IntN(9)) * time.Millisecond)
			o.Observe(route)
			store := time.Duration(2+chance.IntN(40)) * time.Millisecond
			now = now.Add(store + time.Duration(chance.IntN(7))*time.Millisecond)
			route.Kind, route.Delay = router.EventStored, store
			o.Observe(route)
			route.Kind, route.Delay = router.EventDelivered, 0
			o.Observe(route)
			now = now.Add(time.Duration(80+chance.IntN(60)) * time.Millisecond)
			j.Confirmed("t", []gateway.MessageConfirmation{{MessageID: event.ID}})
		}
		age := time.Duration(chance.IntN(900)) * time.Millisecond
		if outage {
			age = time.Duration(24-left) * time.Minute
		}
		update(age, int64(max(0, 60*busy-50)))
		now = began.Add(time.Minute)
	}
	now = end
	update(200*time.Millisecond, 3)
	return h
}

// TestBrowserHistory looks at the last hour and day of a pipeline, on a phone, a tablet and a desktop.
func TestBrowserHistory(t *testing.T) {
	source := &plainSource{snapshot: admin.Snapshot{State: admin.StateRunning, Name: "farm"}, history: aDay(t)}
	server := serve(t, admin.Config{}, source)
	page := open(t, server, "routes")
	page.Wait(running)
	page.Wait(`document.querySelectorAll("#history-routes .graph svg").length === 12`)
	described := `[...document.querySelectorAll("#history-routes svg")].every(s => s.getAttribute("role") === "img" && /: peak .*; lately |: none/.test(s.getAttribute("aria-label")))`
	page.Wait(described)
	page.Wait(`[...document.querySelectorAll("#history-routes .past:nth-child(1) tbody th")].map(n => n.textContent).join("|") === "Wait for the route|Filter and transform|Store in the sink|End to end, until delivered|Then confirm"`)
	page.Wait(`document.querySelector("#history-routes .past:nth-child(2) tbody").textContent.startsWith("Fetch the payload")`)
	page.Wait(`document.querySelector("#history-routes .past:nth-child(3) .lag .what").textContent === "Backlog in the source"`)
	lag := `document.querySelector("#history-routes .past:nth-child(1) .lag svg").getAttribute("aria-label")`
	page.Wait(lag + `.includes("peak 6 min 0 s")`)
	hour := page.Eval(`document.querySelector("#history-routes .throughput .line").getAttribute("d").length`)
	checkWidths(t, page, "history-hour")

	// The day, with the keyboard only.
	page.Eval(`document.querySelector("#history-day").focus()`)
	page.Keys("\r")
	page.Wait(`document.querySelector("#history-day").getAttribute("aria-pressed") === "true" && document.querySelector("#history-hour").getAttribute("aria-pressed") === "false"`)
	page.Wait(`document.querySelector("#history-routes .throughput .line").getAttribute("d").length !== ` + hour)
	page.Wait(described)
	checkWidths(t, page, "history-day")

	// Alone, for the documentation.
	page.Eval(`document.activeElement.blur() ?? document.querySelectorAll("main > section:not(#history), main > form, body > header, body > nav, body > footer, .past:nth-child(n + 3)").forEach(n => n.hidden = true)`)
	for _, width := range []int64{1400, 820, 390} {
		for _, dark := range []bool{false, true} {
			page.Resize(width, 400, false)
			page.Dark(dark)
			page.Picture(fmt.Sprintf("history-%d-%s", width, map[bool]string{false: "light", true: "dark"}[dark]))
		}
	}
	page.Clean(origin(server))
}

// TestBrowserFilter selects a tenant and an endpoint, with the keyboard only: figures, what waits, the history, messages, the poison
// queue and endpoints are theirs, and the page says what is not.
func TestBrowserFilter(t *testing.T) {
	const hostile = `no <img src=x onerror="window.pwned=3"> field`
	queue := &memoryQueue{}
	h, j := history.New(nil), testkit.Must(journal.New(journal.Config{}))(t)
	o := j.Observer(nil)
	h.Update([]history.Sample{{Route: "tasks", FromGateway: true, Backlog: -1}, {Route: "back", Backlog: 9}}, j)
	for i := range 30 {
		tenant, endpoint := fmt.Sprint("tenant-", i%2), fmt.Sprintf("endpoint-%d-%d", i%2, i%3)
		queue.add(fmt.Sprint("m", i), message.Metadata{
			gateway.KeyTenantID: tenant, gateway.KeyReceivingEndpointID: endpoint, router.KeyPoisonRoute: "tasks", gateway.KeyMessageType: taskData,
			router.KeyPoisonReason: map[bool]string{true: hostile, false: "not a number"}[i%3 == 0],
		})
		event := &gateway.MessageReceived{ID: fmt.Sprint("message-number-", i), TenantID: tenant, ReceivingEndpointID: endpoint, Filename: fmt.Sprintf("Field %d.zip", i)}
		j.Event(event)
		msg := message.NewMessage(event.ID, nil)
		msg.Metadata = message.Metadata{gateway.KeyMessageID: event.ID, gateway.KeyTenantID: tenant, gateway.KeyReceivingEndpointID: endpoint}
		kind := router.EventPoisoned // 3 of 5 of each endpoint, or 2
		if i%4 < 2 {
			kind = router.EventDelivered
		}
		for _, kind := range []router.EventKind{router.EventStarted, kind} {
			o.Observe(router.Event{Route: "tasks", Kind: kind, Message: msg, Context: t.Context()})
		}
		j.Confirmed(tenant, []gateway.MessageConfirmation{{EndpointID: endpoint, MessageID: event.ID}})
	}
	since := time.Now().Add(-90 * time.Second)
	waiting := []subscriber.Open{
		{TenantID: "tenant-0", EndpointID: "endpoint-0-0", InFlight: 40, Oldest: since.Add(-time.Hour), Routes: []subscriber.OpenRoute{{Name: "tasks", Count: 40, Oldest: since.Add(-time.Hour)}}},
		{TenantID: "tenant-1", EndpointID: "endpoint-1-1", InFlight: 2, Held: 5, Pending: 1, Oldest: since, Routes: []subscriber.OpenRoute{{Name: "tasks", Count: 2, Oldest: since}}},
	}
	snapshot := admin.Snapshot{
		State: admin.StateRunning, Poison: admin.Poison{Sink: "farm", Topic: "poison"}, Gateway: admin.Gateway{Host: "gateway.example", State: admin.GatewayConnected},
		Subscriber: admin.Subscriber{
			Totals:  admin.Totals{Received: 30, Confirmed: 30, Nacked: 4},
			Current: admin.Current{InFlight: 42, PendingConfirmations: 1, Held: 5, OldestUnconfirmed: since.Add(-time.Hour)},
			Waits: []admin.Waits{{Kind: subscriber.WaitKey, Count: 2, Longest: []admin.Wait{
				{What: "endpoint-0-0", Count: 40, Since: since.Add(-time.Hour)}, {What: "endpoint-1-1", Count: 2, Since: since},
			}}},
		},
		Routes: []admin.Route{
			{RouteHealth: router.RouteHealth{Name: "tasks", State: router.StateRunning, InFlight: 42, Delivered: 16, Poisoned: 14}, Direction: admin.FromGateway, From: admin.Place{Kind: "gateway"}, To: admin.Place{Kind: "nats", Sink: "farm"}},
			{RouteHealth: router.RouteHealth{Name: "back", State: router.StateRunning}, Direction: admin.ToGateway, From: admin.Place{Kind: "nats", Sink: "farm"}, To: admin.Place{Kind: "gateway", Detail: "endpoint-1-0"}},
		},
		Sinks: []admin.Sink{{Name: "farm", Kind: "nats", Up: true, CheckedAt: since}},
	}
	snapshot.AddOpen(waiting)
	source := &plainSource{snapshot: snapshot, queue: queue, journal: j, history: h, open: waiting}
	h.Update(admin.SamplesFrom(snapshot, waiting), j)
	source.tenants = func(context.Context) (list []admin.Tenant, _ error) {
		for i := range 2 {
			tenant := admin.Tenant{ID: fmt.Sprint("tenant-", i)}
			for k := range 3 {
				tenant.Endpoints = append(tenant.Endpoints, admin.Endpoint{ID: fmt.Sprintf("endpoint-%d-%d", i, k), Name: fmt.Sprint("Barn ", k), Mine: k < 2, Type: "account"})
			}
			list = append(list, tenant)
		}
		return list, nil
	}
	server := serve(t, admin.Config{}, source)
	page := open(t, server, "problems")
	page.Wait(rows + ` === 25 && document.querySelector("#only-note").hidden`)
	page.Wait(`document.querySelector("#flow").textContent.includes("→ gateway endpoint “Barn 0” (endpoint-1-0)")`)
	page.Wait(fmt.Sprintf(`[...document.querySelectorAll("#poison-rows .reason .text")].some(n => n.textContent === %q)`, hostile))
	noElements(t, page, "#poison img")
	text := func(id, want string) {
		page.Helper()
		page.Wait(`document.querySelector("` + id + `").textContent.startsWith("` + want + `")`)
	}
	chose := func(what string) {
		page.Helper()
		page.Clear("#only")
		page.Type("#only", what+"\n")
	}
	lag := `document.querySelector("#history-routes .past:nth-child(2) .lag svg")?.getAttribute("aria-label")`
	found := `document.querySelectorAll("#trace-messages > li").length`
	page.Type("#trace-query", "field\n")
	page.Wait(found + ` === 20`)
	text("#t-received", "30")
	page.Wait(fact("Route tasks", "oldest pending") + `?.startsWith("1\u00a0h") && ` + fact("Subscriber", "in flight") + ` === "42" && ` + fact("Subscriber", "blocked endpoints") + `?.startsWith("2, endpoint-0-0")`)
	enter(page, "routes")
	page.Wait(lag + `?.includes("peak 1 h 1 min")`)

	chose("tenant-1")
	text("#t-received", "15")
	text("#t-stored", "8")
	text("#t-confirmed", "15")
	text("#t-open", "8")
	text("#t-poisoned", "7")
	page.Wait(`document.querySelector("#account").textContent.startsWith("Received 15, delivered 8. Not delivered: 7 poisoned. Now: 5 held back for their file, 2 with the routes, 1 to be confirmed.")`)
	page.Wait(fact("Route tasks", "oldest pending") + `?.startsWith("1\u00a0min") && ` + fact("Route tasks", "pending") + ` === "2" && ` + fact("Route tasks", "delivered") + ` === "8" && ` + fact("Route tasks", "poisoned") + ` === "7"`)
	page.Wait(fact("Subscriber", "in flight") + ` === "2" && ` + fact("Subscriber", "blocked endpoints") + `?.startsWith("1, endpoint-1-1") && ` + fact("Subscriber", "nacked, all tenants") + ` === "4"`)
	page.Wait(`document.querySelector("#history-since").textContent.includes("of what is selected") && document.querySelector("#history-routes .past:nth-child(2) .sum").textContent === "8 delivered, 7 poisoned"`)
	page.Wait(lag + `?.includes("peak 1 min 3") && document.querySelector("#history-routes .past:nth-child(1) .lag .what").textContent === "Backlog: unknown by tenant"`)
	page.Wait(found + ` === 15 && document.querySelector("#why-tenant").value === "tenant-1"`)
	page.Wait(`document.querySelector("#only-note").textContent.includes("What cannot be distinguished says “all tenants”")`)
	enter(page, "problems")
	page.Wait(rows + ` === 15 && [...document.querySelectorAll("#poison-rows .where")].every(n => /endpoint “Barn \d” \(endpoint-1-\d\)/.test(n.textContent))`)
	page.Wait(`[...document.querySelectorAll("#poison-groups .number")].map(n => n.textContent).join(" ") === "10 5"`)
	enter(page, "farms")
	page.Wait(`document.querySelectorAll("#tenants tbody tr").length === 3 && document.querySelector("#tenants-count").textContent === "3 of 6 endpoints"`)

	// Who waits longest, and one endpoint in full.
	page.Wait(`document.querySelector("#waiting").textContent.startsWith("Barn 1 8 messages, the oldest for ")`)
	page.Eval(`document.querySelector("#waiting li:only-child button").focus()`)
	page.Keys("\r")
	page.Wait(`document.activeElement.id === "farm" && document.querySelector("#h-farm").textContent === "Barn 1" && document.querySelector("#farm-facts").textContent.includes("endpoint-1-1")`)
	page.Picture("farm")
	page.Keys("\t\t\r") // over Close
	page.Wait(`document.querySelector("#only").value === "Barn 1 (endpoint-1-1)" && document.querySelectorAll("#tenants tbody tr").length === 1`)
	text("#t-received", "5")
	text("#t-open", "8")
	enter(page, "problems")
	page.Wait(rows + ` === 5 && ` + found + ` === 5`)
	checkWidths(t, page, "filter")
	page.Eval(`document.querySelector("#only-all").focus()`)
	page.Keys("\r")
	page.Wait(rows + ` === 25 && ` + found + ` === 20 && document.querySelector("#only-note").hidden && document.activeElement.id === "only"`)
	text("#t-received", "30")

	// A name that several have, and one that none has, select nothing.
	chose("barn 1")
	text("#only-note", "2 endpoints have this name")
	chose("barn 9")
	text("#only-note", "No tenant and no endpoint")
	text("#t-received", "30")
	enter(page, "routes")
	page.Wait(`document.querySelector("#history-since").textContent.includes("all tenants together")`)

	// Without a journal the page says what it cannot know, beside the figure.
	h.Update(admin.SamplesFrom(snapshot, waiting), nil)
	chose("tenant-0")
	text("#t-received-note", "unknown by tenant: the journal is off")
	text("#t-open", "40")
	page.Wait(fact("Route tasks", "delivered") + ` === "needs the journal" && ` + fact("Route tasks", "pending") + ` === "40"`)
	page.Clean(origin(server))
}

// TestBrowserConfig looks up a value of the configuration that is running, and where it was set.
func TestBrowserConfig(t *testing.T) {
	source := &plainSource{snapshot: admin.Snapshot{State: admin.StateRunning, Config: admin.ConfigState{LoadedAt: time.Now(), Reloads: []admin.Reload{
		{At: time.Now(), Changes: []string{"routes[0].to.topic: a → <b>"}}, {At: time.Now(), Error: "line 3: no such key"},
	}}}, settings: []admin.Setting{
		{Path: "gateway.base_url", Value: "https://gateway.example", Source: "/etc/agrimill/agrimill.yaml:3"},
		{Path: "gateway.client_secret", Value: "[redacted]", Source: "/etc/agrimill/agrimill.yaml:5", File: "/run/secrets/client"},
		{Path: "gateway.scopes", Value: []any{}},
		{Path: "journal.max_bytes", Value: 200000, Source: "/etc/agrimill/agrimill.yaml:71", Restart: true, InFile: 300000},
		{Path: "routes[0].filter.expr", Value: "<img src=x onerror='window.pwned=7'>", Source: "/etc/agrimill/agrimill.yaml:40"},
		{Path: "sinks.farm.nats.url", Value: "[from the environment]", Source: "/etc/agrimill/agrimill.yaml:20", Environment: true},
	}}
	server := serve(t, admin.Config{}, source)
	page := open(t, server, "configuration")
	page.Wait(running)
	table := `[...document.querySelectorAll("#config-rows tr")].map(r => [...r.children].map(c => c.textContent).join("|")).join("\n")`
	page.Wait(table + `?.startsWith("gateway.base_url|https://gateway.example|/etc/agrimill/agrimill.yaml:3\ngateway.client_secret|[redacted]|/etc/agrimill/agrimill.yaml:5, read from /run/secrets/client\njournal.max_bytes|200000|/etc/agrimill/agrimill.yaml:71, the file has 300000: restart")`)
	page.Wait(`[...document.querySelectorAll("#reloads ul")].map(n => n.textContent).join("|") === "Refused: line 3: no such key|routes[0].to.topic: a → <b>"`)
	page.Click("#config-differing")
	page.Wait(table + ` === "journal.max_bytes|200000|/etc/agrimill/agrimill.yaml:71, the file has 300000: restart"`)
	page.Click("#config-differing")
	page.Click("#config-defaults")
	page.Wait(table + `.includes("gateway.scopes|[]|default")`)
	look(page, "config")
	page.Type("#config-query", "FARM.nats")
	page.Wait(table + ` === "sinks.farm.nats.url|[from the environment]|/etc/agrimill/agrimill.yaml:20, environment"`)
	noElements(t, page, "#config img")
	page.Clean(origin(server))
}

// TestBrowserTrace finds a file by a part of its name, with the keyboard only, and sees where it was
// stored; what was poisoned with the reason; and that something is not known.
func TestBrowserTrace(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{}, b)
	b.send(1, taskData, "Field 12 north.zip")
	b.send(1, shapes, hostileFilename)
	b.waitConfirmed(2)

	page := browsertest.Open(t, origin(server)+"/")
	page.Wait(degraded)
	find := func(what string) {
		page.Clear("#trace-query")
		page.Type("#trace-query", what+"\n")
	}
	steps := `[...document.querySelectorAll("#trace-messages ol li .where")].map(n => n.textContent).join(" ")`
	find("12 NORTH")
	page.Wait(steps + ` === "received started stored delivered confirmed never saw it"`)
	page.Wait(`document.querySelector("#trace-messages p.where").textContent === "delivered by task data; confirmed"`)
	page.Wait(`document.querySelector("#trace-messages").textContent.includes("in stream AGRIMILL, sequence ")`)
	look(page, "trace")

	find("svg onload")
	page.Wait(steps + `.endsWith("poisoned confirmed never saw it")`)
	page.Wait(`document.querySelector("#trace-messages h3").textContent === "\\u202e<svg onload=window.pwned=2>.zip"`)
	page.Wait(`document.querySelector("#trace-messages").textContent.includes("type conversion error")`)
	noElements(t, page, "#trace img, #trace svg")

	find("nobody sent this")
	page.Wait(`document.querySelector("#trace-result").textContent.startsWith("Nothing is known of it.")`)
	page.Clean(origin(server))
}

// TestBrowserWhy asks, with the keyboard only, why a type does not arrive: one that does, one that no
// endpoint receives, and from a sender that nobody sees.
func TestBrowserWhy(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{}, b)
	page := open(t, server, "messages")
	page.Wait(running)
	page.Wait(`[...document.querySelectorAll("#why-tenants option")].some(o => o.value === "` + b.gate.Tenant() + `")`)
	ask := func(messageType, from string) {
		for field, text := range map[string]string{"tenant": b.gate.Tenant(), "from": from} {
			page.Clear("#why-" + field)
			page.Type("#why-"+field, text)
		}
		page.Clear("#why-type")
		page.Type("#why-type", messageType+"\n")
	}
	states := `[...document.querySelectorAll("#why-links .state")].map(n => n.dataset.state).join(" ")`
	ask(taskData, "")
	page.Wait(states + ` === "ok ok ok unknown ok ok ok"`)
	page.Wait(`document.querySelector("#why-result").textContent.startsWith("Nothing is missing")`)
	ask(shapes+":none", "")
	page.Wait(`document.querySelector("#why-result").textContent.startsWith("The capability is missing: none of this application's endpoints in the tenant can receive the type. Next: add the type")`)
	ask(taskData, "<img src=x onerror='window.pwned=4'>")
	page.Wait(`document.querySelector("#why-result").textContent.startsWith("The gateway route is missing: this application cannot see such a sender in the tenant. Next: ")`)
	look(page, "why")
	noElements(t, page, "#why img")
	page.Clean(origin(server))
}

// TestBrowserProtected opens a page that needs a token to read, with the keyboard only: a wrong token is refused
// and forgotten, the right one shows everything and stays in the page.
func TestBrowserProtected(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken, ReadToken: readToken}, b)
	b.send(1, taskData, "Field 12 north.zip")
	b.send(1, shapes, "shapes.zip")
	b.waitConfirmed(2)
	page := browsertest.Open(t, origin(server)+"/")
	page.Wait(`document.activeElement.id === "token" && document.querySelector("#main").hidden && document.querySelector("#state").textContent === "protected"`)
	look(page, "protected")
	checkWidths(t, page, "")
	page.Keys("wrong-" + readToken + "\r")
	page.Wait(`document.querySelector("#login-result").textContent === "The token is wrong."`)
	page.Picture("protected-refused")
	page.Keys(readToken + "\r") // over the wrong one, which is selected
	page.Wait(degraded)
	page.Wait(`document.querySelector("#login").hidden && !document.querySelector("#main").hidden && document.activeElement.id === "main"`)
	page.Type("#trace-query", "north\n")
	page.Wait(`document.querySelectorAll("#trace-messages > li").length === 1 && document.querySelector("#trace-json").href.startsWith("blob:")`)

	// It may only read.
	enter(page, "problems")
	page.Wait(rows + ` === 1`)
	page.Wait(`!document.querySelector("#poison-rows tr:last-child button").disabled`)
	page.Click("#poison-rows tr:last-child button")
	page.Wait(result + ` === "Refused: this token may only read."`)
	keepsNothing(t, page, readToken)
	page.Clean(origin(server), "401 (Unauthorized)", "403 (Forbidden)")
}

// TestBrowserIngress has an ingress answer for the gateway, sees what the page says of
// it, and that it says so no more when it is over.
func TestBrowserIngress(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{}, b)
	page := browsertest.Open(t, origin(server)+"/")
	page.Wait(running)
	web := []byte("<html>default backend</html>")
	faults := []*gatewaytest.Injection{
		b.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 404, Body: web, ContentType: "text/html"}),
		b.gate.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: 403, Body: web, ContentType: "text/html"}),
	}
	b.send(3, taskData, "")
	page.Wait(fact("Gateway", "confirm messages") + ` === "not the gateway: 404 text/html"`)
	page.Wait(`document.querySelector("#state").dataset.state === "degraded"`)
	b.gate.CutStreams()
	page.Wait(state("Gateway", "disconnected", "disconnected"))
	page.Wait(fact("Gateway", "refused for") + ` !== undefined`)
	page.Wait(`/^4\sm/.test(` + fact("Gateway", "ends in") + `)`)
	look(page, "ingress")
	for _, fault := range faults {
		fault.Lift()
	}
	page.Wait(running)
	page.Wait(fact("Gateway", "refused for") + ` === undefined && ` + fact("Gateway", "confirm messages") + ` === undefined`)
	page.Clean(origin(server))
}

// TestBrowserSinkBreaks breaks the broker, sees it, repairs it, and sees everything
// arrive.
func TestBrowserSinkBreaks(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{}, b)
	page := browsertest.Open(t, origin(server)+"/")
	b.send(3, taskData, "")
	page.Wait(running)
	page.Wait(fact("Route task data", "delivered") + ` === "3"`)

	b.nats.Stop()
	b.send(5, taskData, "")
	page.Wait(state("Sink farm", "down", "down"))
	page.Wait(state("Route task data", "outage", "outage, waiting"))
	page.Wait(`document.querySelector("#state").dataset.state === "degraded" && document.querySelector("#state").textContent === "degraded"`)
	page.Wait(`document.querySelector("#t-open").textContent === "5"`)
	page.Wait(node("Route task data") + `.querySelector(".error").hidden === false`)
	page.Wait(fact("Subscriber", "oldest unconfirmed") + ` !== "none"`)
	page.Wait(`document.title.startsWith("(degraded)")`)
	page.Wait(`/^The sink "farm" \(nats [^)]*\) has been down for .*\. The route "task data" waits with 5 messages; nothing is lost\. /.test(document.querySelector("#sentence").textContent)`)
	page.Wait(`document.querySelector("#account").textContent.startsWith("8 events, 3 deliveries. Now: 5 with the routes")`)
	page.Wait(`document.querySelectorAll("#problems li").length >= 2 && document.querySelector("#chart .area").getAttribute("d") !== ""`)
	// All of that is on the first screen, and the search is a key away.
	for _, size := range [][2]int64{{1400, 900}, {390, 844}} {
		page.Resize(size[0], size[1], size[0] < 500)
		if got := page.Eval(`["#trace-query", "#sentence", "#problems", "#tiles"].filter(id => document.querySelector(id).getBoundingClientRect().bottom > innerHeight)`); got != "" {
			t.Errorf("%v: not on the first screen: %s", size, got)
		}
	}
	page.Resize(1360, 1000, false)
	page.Keys("/")
	page.Wait(`document.activeElement.id === "trace-query"`)
	look(page, "broken")

	b.nats.Restart()
	page.Wait(running)
	page.Wait(state("Sink farm", "up", "up"))
	page.Wait(fact("Route task data", "delivered") + ` === "8"`)
	page.Wait(`document.querySelector("#t-open").textContent === "0"`)
	page.Wait(`document.querySelector("#sentence").textContent === "All is right: messages are received, stored and confirmed."`)
	page.Picture("repaired-light")
	b.waitConfirmed(8)
	if n := b.stored(); n != 8 {
		t.Errorf("%d messages are stored, want 8", n)
	}
	// The poison queue is in the NATS that was away: who asks for it meanwhile, which the page does every 15 s, is told so.
	page.Clean(origin(server), "502 (Bad Gateway) "+origin(server)+"/api/poison")
}

func TestBrowserReplay(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken}, b)
	b.send(4, shapes, "field.zip")
	b.waitConfirmed(4)
	page := open(t, server, "problems")
	page.Wait(rows + ` === 4`)

	// Nothing can be pressed without a token.
	page.Wait(`[...document.querySelectorAll("#poison-rows button, #replay-selected")].every(b => b.disabled)`)
	page.Click("#poison-rows input")
	page.Wait(`document.querySelector("#replay-selected").disabled`)

	// The wrong one is refused.
	page.Type("#token", "wrong-"+testToken)
	page.Click("#replay-selected")
	page.Click("#confirm-yes")
	page.Wait(result + ` === "Refused: the token is missing or wrong."`)
	page.Wait(rows + ` === 4`)
	page.Picture("replay-refused")

	// The right one, with the route as it was: the message is back, and says so.
	page.Clear("#token")
	page.Type("#token", testToken)
	page.Click("#poison-rows tr:last-child button")
	page.Wait(result + `?.startsWith("1 failed again, back in the queue")`)
	page.Wait(result + `.includes("Message 4: filter expression: type conversion error")`)
	page.Wait(`[...document.querySelectorAll("#poison-rows .attempts")].some(n => n.textContent === "2 in 2 rounds")`)

	// Repaired: one by its button, the others by selection, with the keyboard.
	b.repair()
	page.Click("#poison-rows tr:last-child button")
	page.Wait(result + ` === "1 delivered"`)
	page.Wait(rows + ` === 3`)
	page.Eval(`document.querySelector("#pick-all").focus()`)
	page.Keys(" ")
	page.Wait(`document.querySelector("#replay-selected").textContent === "Replay selected (3)"`)
	page.Picture("replay-selected")
	press := func(selector string) { press(page, selector) }
	press("#replay-selected")
	page.Wait(`document.querySelector("#h-confirm").textContent === "Replay 3 messages?" && document.querySelector("#confirm-some").hidden`)
	press("#confirm button:not(.primary)") // not yet
	page.Wait(`!document.querySelector("#confirm").open && document.querySelector("#replay-selected").textContent === "Replay selected (3)"`)
	press("#replay-selected")
	press("#confirm-yes")
	page.Wait(result + ` === "3 delivered"`)
	page.Wait(rows + ` === 0`)
	page.Wait(`document.querySelector("#poison-empty").textContent.startsWith("The queue is empty.")`)
	page.Picture("replay-done")
	if n := b.stored(); n != 4 {
		t.Errorf("%d messages are stored, want 4", n)
	}

	// The token went into a header and stays nowhere.
	keepsNothing(t, page, testToken)
	page.Clean(origin(server), "401 (Unauthorized)")
}

// An operator sees what is in a file: where it is from, as a map, and its values. The names in it come from
// elsewhere.
func TestBrowserContents(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken}, b)
	hostile := strings.NewReplacer("Working width", "Width &lt;img src=x onerror=&quot;window.pwned=1&quot;&gt;", "Long acre", "&lt;/svg&gt;&lt;script&gt;window.pwned=1&lt;/script&gt;").Replace(farmdatatest.TaskDataXML)
	b.sendPayload(shapes, hostileFilename, farmdatatest.Zip(t, "TASKDATA.XML", hostile, "TLG00001.XML", farmdatatest.LogHeader, "TLG00001.BIN", string(farmdatatest.Log(300))))
	b.waitConfirmed(1)
	b.sendPayload(shapes, "words.svg", []byte("<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned=5'/>\trow\r\n<img src=x onerror='window.pwned=6'>"))
	b.waitConfirmed(2)
	var picture bytes.Buffer
	testkit.NoError(t, png.Encode(&picture, image.NewGray(image.Rect(0, 0, 40, 20))))
	b.sendPayload(shapes, "picture.png", picture.Bytes())
	b.waitConfirmed(3)
	page := open(t, server, "problems")
	page.Wait(rows + ` === 3`)
	page.Wait(`[...document.querySelectorAll("#poison-rows .look")].every(b => b.disabled)`)
	page.Type("#token", testToken)
	page.Eval(`document.querySelector("#poison-rows tr .look").focus()`)
	page.Keys("\r")
	const line = `document.querySelector("#contents-line").textContent`
	page.Wait(line + `?.startsWith("TaskData 4.2: 1 task, 1 device, 1 field, 1 log, 300 records")`)
	page.Wait(`document.querySelector("#contents-map").complete && document.querySelector("#contents-map").naturalWidth > 0`)
	page.Wait(`document.querySelectorAll("#contents-values tr").length === 2`)
	page.Wait(`document.querySelector("#contents-values tr").textContent.includes("0043 Width <img src=x") && document.querySelector("#contents-values tr").textContent.includes("9 m")`)
	page.Wait(`document.activeElement.id === "contents"`)
	look(page, "contents")
	checkWidths(t, page, "")
	noElements(t, page, "img[src=x]")
	page.Click("#contents-close")
	page.Wait(`document.querySelector("#contents").hidden && document.activeElement.classList.contains("look")`)
	page.Click("#poison-rows tr:nth-child(2) .look")
	page.Wait(line + `.includes("neither TaskData nor EFDI")`)
	page.Wait(`document.querySelector("#contents-map").hidden`)
	page.Wait(`document.querySelector("#contents-text").textContent === "<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned=5'/>    row\n<img src=x onerror='window.pwned=6'>"`)
	page.Click("#contents-metadata summary")
	page.Wait(`document.querySelector("#contents-pairs").textContent.includes("x-router-poison-attempts")`)
	look(page, "preview")
	page.Click("#poison-rows tr:nth-child(3) .look")
	page.Wait(`document.querySelector("#contents-map").complete && document.querySelector("#contents-map").naturalWidth === 40 && document.querySelector("#contents-text").hidden`)
	noElements(t, page, "img[src=x]")
	page.Clean(origin(server))
}

// TestBrowserContentsOfFound: what is in a file that was received and delivered is shown where the file was found by its name, with
// the keyboard only, and on a phone.
func TestBrowserContentsOfFound(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken}, b)
	b.sendPayload(taskData, "Long acre.zip", farmdatatest.Archive(t, 300))
	b.sendPayload(taskData, "Short acre.zip", []byte("only words"))
	b.waitConfirmed(2)
	page := browsertest.Open(t, origin(server)+"/")
	page.Wait(running)
	const found = `document.querySelectorAll("#trace-messages > li").length`
	page.Type("#trace-query", "long acre\n")
	page.Wait(found + ` === 1`)
	page.Wait(`document.querySelector("#trace-messages .look").disabled`)
	page.Type("#token", testToken+"\n")
	page.Wait(`document.activeElement.classList.contains("look")`)
	page.Keys("\r")
	const line = `document.querySelector("#contents-line").textContent`
	page.Wait(line + `?.startsWith("TaskData 4.2: 1 task, 1 device, 1 field, 1 log, 300 records")`)
	page.Wait(`document.querySelector("#contents-map").complete && document.querySelector("#contents-map").naturalWidth > 0`)
	page.Wait(`document.querySelectorAll("#contents-values tr").length === 2 && document.querySelector("#contents-values tr").textContent.includes("Working width")`)
	page.Wait(`/^From agrimill\..* in stream .*, sequence \d+ \(stored by task data in sink farm\)$/.test(document.querySelector("#contents-place").textContent)`)
	page.Wait(`document.querySelector("#trace-messages > li").contains(document.querySelector("#contents")) && document.activeElement.id === "contents"`)
	look(page, "contents-found")
	checkWidths(t, page, "")
	page.Click("#contents-close")
	page.Wait(`document.querySelector("#contents").hidden && document.activeElement.classList.contains("look")`)
	page.Click("#trace-messages .look")
	page.Wait(line + `?.startsWith("TaskData")`)
	// Another search takes the panel away, and it is there for what that finds.
	page.Eval(`(document.querySelector("#trace-query").value = "", true)`)
	page.Type("#trace-query", "short acre\n")
	page.Wait(found + ` === 1 && document.querySelector("#trace-messages h3").textContent === "Short acre.zip" && document.querySelector("#contents").hidden`)
	page.Click("#trace-messages .look")
	page.Wait(`document.querySelector("#contents-text").textContent === "only words" && document.querySelector("#contents-map").hidden`)
	page.Clean(origin(server))
}

// TestBrowserBehindProxy: the page works below a path of a reverse proxy that has its users
// log in and knows them by a cookie.
func TestBrowserBehindProxy(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken, Hosts: []string{"farm.localhost"}}, b)
	target := testkit.Must(url.Parse(origin(server) + "/"))(t)
	page := http.StripPrefix("/agrimill", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch cookie, err := r.Cookie("login"); {
		case r.URL.Path == "/login":
			http.SetCookie(w, &http.Cookie{Name: "login", Value: "farmer", Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
			http.Redirect(w, r, "/agrimill/", http.StatusFound)
		case err != nil || cookie.Value != "farmer":
			http.Redirect(w, r, "/login", http.StatusFound)
		default:
			page.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(proxy.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(proxy.URL, "http://"), ":")
	front := "http://farm.localhost:" + port

	tab := browsertest.Open(t, front+"/agrimill/")
	tab.Wait(running)
	enter(tab, "problems")
	b.send(1, shapes, "field.zip")
	b.waitConfirmed(1)
	tab.Wait(rows + ` === 1`)
	b.repair()
	tab.Type("#token", testToken)
	tab.Click("#poison-rows tr:last-child button")
	tab.Wait(result + ` === "1 delivered"`)
	tab.Clean(front)
}

// TestBrowserLargeQueue has 2,400 poisoned messages for two reasons: the page groups them, shows a
// group or what is searched for, and replays and drops one whole, with the keyboard only.
func TestBrowserLargeQueue(t *testing.T) {
	queue := many(2400)
	var gate sync.Mutex
	source := &plainSource{
		snapshot: admin.Snapshot{Poison: admin.Poison{Sink: "farm", Topic: "poison"}}, queue: queue,
		replay: func(ctx context.Context, ids []string) (router.ReplayReport, error) {
			gate.Lock()
			defer gate.Unlock()
			return router.ReplayReport{Sent: len(ids)}, queue.Delete(ctx, ids[0])
		},
	}
	server := serve(t, admin.Config{Token: testToken}, source)
	page := open(t, server, "problems")
	numbers := `[...document.querySelectorAll("#poison-groups .number")].map(n => n.textContent).join(" ")`
	page.Wait(numbers + ` === "1,800 600 1"`)
	page.Wait(`document.querySelector("#poison-groups .what .ext").textContent === "cannot read …: byte …"`)
	page.Wait(rows + ` === 25`)
	look(page, "poison-groups")

	group := func(place int, does string) string {
		return fmt.Sprintf("#poison-groups li:nth-child(%d) .%s", place, does)
	}
	press := func(selector string) { press(page, selector) }
	types := `[...new Set([...document.querySelectorAll("#poison-rows .reason .text")].map(n => n.textContent))].join("|")`
	press(group(2, "show"))
	page.Wait(types + ` === "no such field"`)
	page.Type("#poison-query", "field 2399\n")
	page.Wait(rows + ` === 1`)
	press("#poison-all")
	page.Wait(rows + ` === 25`)
	if got := page.Eval(`[...document.querySelectorAll("#poison-groups .replay")].every(b => b.disabled) + " " + document.querySelector("` + group(3, "replay") + `").hidden`); got != "true true" {
		t.Errorf("without a token, replay is disabled, and hidden for what is foreign: %s", got)
	}

	// Of a group the first ones, whose outcome is then known for all.
	page.Type("#token", testToken)
	press(group(2, "replay"))
	page.Wait(`document.querySelector("#h-confirm").textContent === "Replay 600 messages?"`)
	look(page, "poison-confirm")
	page.Type("#confirm-first", "1\n")
	page.Wait(result + ` === "1 delivered" && document.querySelector("#job-title").textContent.startsWith("Replay of 1 message, ")`)
	page.Wait(numbers + ` === "1,800 599 1"`)

	// The rest waits, and goes on without the page, which shows where it is when it is there again.
	gate.Lock()
	press(group(2, "replay"))
	press("#confirm-yes")
	page.Wait(`document.querySelector("#job-title").textContent.startsWith("Replay of 599 messages, since ") && !document.querySelector("#poison-progress").hidden`)
	page.Wait(`[...document.querySelectorAll("#poison-groups .replay, #poison-groups .drop")].every(b => b.disabled)`)
	look(page, "poison-job")
	page.Reload()
	page.Wait(`document.querySelector("#job-title").textContent.startsWith("Replay of 599 messages, since ")`)
	gate.Unlock()
	page.Wait(result + ` === "599 delivered"`)
	page.Wait(numbers + ` === "1,800 1"`)

	// A job is stopped, and what it has not tried stays.
	gate.Lock()
	page.Type("#token", testToken)
	press(group(1, "replay"))
	press("#confirm-yes")
	page.Wait(`!document.querySelector("#poison-progress").hidden`)
	press("#poison-stop")
	gate.Unlock()
	page.Wait(result + `.includes("Ended early: stopped.")`)

	page.Wait(fmt.Sprintf(`(%s).replace(",", "") === "%d 1"`, numbers, len(queue.messages)-1))
	press(group(1, "drop"))
	page.Wait(`document.querySelector("#h-confirm").textContent.startsWith("Drop 1,")`)
	// What comes while the dialog asks, nobody has agreed to drop.
	queue.add("new", queue.messages[len(queue.messages)-1].Message.Metadata)
	press("#confirm-yes")
	page.Wait(result + `.endsWith(" dropped")`)
	page.Wait(rows + ` === 2`)
	page.Clean(origin(server))
}

func TestBrowserWithoutToken(t *testing.T) {
	server := serve(t, admin.Config{}, &plainSource{snapshot: admin.Snapshot{Poison: admin.Poison{Sink: "farm", Topic: "poison"}}, queue: queueOf(60)})
	page := open(t, server, "problems")
	page.Wait(rows + ` === 25`)
	page.Wait(`document.querySelector("#replay-form").hidden && !document.querySelector("#replay-off").hidden`)
	page.Wait(`[...document.querySelectorAll("#poison button, #poison input")].every(b => b.hidden)`)
	page.Wait(`document.querySelector("#poison-range").textContent === "1 to 25" && document.querySelector("#poison-prev").disabled`)
	page.Click("#poison-next")
	page.Wait(`document.querySelector("#poison-range").textContent === "26 to 50"`)
	page.Click("#poison-next")
	page.Wait(`document.querySelector("#poison-range").textContent === "51 to 60" && document.querySelector("#poison-next").disabled`)
	page.Wait(rows + ` === 10`)
	page.Click("#poison-prev")
	page.Wait(`document.querySelector("#poison-range").textContent === "26 to 50"`)
	page.Clean(origin(server))
}

func TestBrowserWithoutQueue(t *testing.T) {
	server := serve(t, admin.Config{Token: testToken}, &plainSource{snapshot: admin.Snapshot{Poison: admin.Poison{Sink: "farm", Topic: "poison"}}})
	page := open(t, server, "problems")
	page.Wait(`document.querySelector("#poison-empty").textContent.includes("cannot be listed")`)
	enter(page, "farms")
	page.Wait(`document.querySelector("#tenants-empty").textContent.startsWith("No tenant") && document.querySelector("#waiting-note").textContent === "Nothing waits."`)
	page.Clean(origin(server))

	// Were the script to make HTML out of a text, the browser would refuse it.
	for _, attempt := range []string{
		`document.body.innerHTML = "<i>x</i>"`, `document.body.insertAdjacentHTML("beforeend", "<i>x</i>")`,
		`document.body.append(Object.assign(document.createElement("script"), {text: "1"}))`,
	} {
		if got := page.Eval(`(() => { try { ` + attempt + `; return "done"; } catch (e) { return "refused"; } })()`); got != "refused" {
			t.Errorf("%s is %s", attempt, got)
		}
	}
}

// TestBrowserServerGoes checks that the page says so when the server is gone, and
// continues when it is back.
func TestBrowserServerGoes(t *testing.T) {
	source := &plainSource{snapshot: admin.Snapshot{State: admin.StateRunning, Name: "first"}}
	server := testkit.Must(admin.New(admin.Config{Address: "127.0.0.1:0"}, source))(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	page := browsertest.Open(t, origin(server)+"/")
	page.Wait(running)
	page.Wait(`document.querySelector("#gone").hidden`)

	stop()
	testkit.NoError(t, <-served)
	page.Wait(`!document.querySelector("#gone").hidden && document.querySelector("#gone").textContent.includes("No response from agrimill since")`)
	page.Wait(`document.querySelector("#state").textContent === "no response" && document.querySelector("main").classList.contains("stale")`)
	page.Wait(`document.title.startsWith("(no response)")`)
	page.Picture("gone")

	again := serve(t, admin.Config{Address: server.Addr()}, &plainSource{
		snapshot: admin.Snapshot{
			State: admin.StateStopped, Name: "second", Error: "the subscription was refused",
			Dedup: admin.Dedup{Store: "bbolt", Error: "the disk is full", Since: time.Now().Add(-time.Hour)},
		},
	})
	page.Wait(`document.querySelector("#gone").hidden && !document.querySelector("main").classList.contains("stale")`)
	page.Wait(`document.querySelector("#name").textContent === "second" && document.querySelector("#state").textContent === "stopped"`)
	page.Wait(`document.querySelector("#sentence").textContent.startsWith("agrimill has stopped: the subscription was refused. ")`)
	// The second is what a request gets, perhaps of the icon, for which the connection was just made when
	// the server went.
	page.Clean(origin(again), "ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE")
}

// setClock is a source whose clock is set back after some time, from when on nothing is delivered.
type setClock struct {
	*plainSource
	began time.Time
	back  atomic.Int64 // when, in nanoseconds since began; 0: not yet
}

func (s *setClock) Snapshot() admin.Snapshot {
	snapshot := s.snapshot
	snapshot.Time = time.Now()
	delivered := snapshot.Time.Sub(s.began)
	if back := time.Duration(s.back.Load()); back != 0 {
		delivered = back
		snapshot.Time = snapshot.Time.Add(-2 * time.Hour)
	}
	snapshot.Routes = []admin.Route{{RouteHealth: router.RouteHealth{Name: "farm", State: router.StateRunning, Delivered: uint64(delivered / time.Millisecond)}}}
	return judged(snapshot)
}

// TestBrowserClockIsSetBack checks that rates are those of now when the clock of the server was set back.
func TestBrowserClockIsSetBack(t *testing.T) {
	source := &setClock{plainSource: &plainSource{snapshot: admin.Snapshot{State: admin.StateRunning, Started: time.Now().Add(-24 * time.Hour)}}, began: time.Now()}
	server := serve(t, admin.Config{}, source)
	page := browsertest.Open(t, origin(server)+"/")
	rate := node("Route farm") + `.querySelector(".rate b").textContent`
	page.Wait(running)
	page.Wait(`parseFloat(` + rate + `) > 0`)
	source.back.Store(int64(time.Since(source.began)))
	page.Wait(rate + ` === "0"`)
	page.Clean(origin(server))
}

// unlabelled lists the fields and buttons unnamed for a screen reader.
const unlabelled = `[...document.querySelectorAll("button, input, select, table, section, article, nav")].filter(n => !(
	n.getAttribute("aria-label") || n.getAttribute("aria-labelledby") || n.labels?.length || n.querySelector("caption") ||
	n.closest("details")?.querySelector("summary") || (n.matches("button") && n.textContent.trim()))).map(n => n.outerHTML)`

// pale lists the texts whose contrast with what is behind them is below 4.5 to 1
// (WCAG 2, level AA).
const pale = `(() => {
	const channels = (color) => color.match(/[\d.]+/g).map(Number);
	const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => sum + w * ((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)(c[i] / 255), 0);
	const behind = (n) => { for (; n; n = n.parentElement) { const c = channels(getComputedStyle(n).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
	return [...document.querySelectorAll("body *")].filter(n => n.checkVisibility() && !n.disabled && !n.closest("#wires, #chart, .graph svg") &&
		[...n.childNodes].some(c => c.nodeType === 3 && c.textContent.trim())).map(n => {
		const [a, b] = [light(channels(getComputedStyle(n).color)), light(behind(n))].sort((x, y) => y - x);
		return [(a + 0.05) / (b + 0.05), n];
	}).filter(([ratio]) => ratio < 4.5).map(([ratio, n]) => ratio.toFixed(2) + " " + n.outerHTML.slice(0, 120));
})()`

// TestBrowserIsAccessible looks at a page with every tone on it.
func TestBrowserIsAccessible(t *testing.T) {
	route := func(name string, state router.RouteState) admin.Route {
		return admin.Route{RouteHealth: router.RouteHealth{Name: name, State: state, Poisoned: 1, Waiting: 2, LastError: "it failed", LastErrorAt: time.Now()}, To: admin.Place{Sink: "up"}}
	}
	waiting, now := route("waits", router.StateOutage), time.Now()
	waiting.Until, waiting.To.Sink = now.Add(time.Hour-30*time.Second), "down"
	waiting.Refused = []router.RefusedTopic{{Topic: strings.Repeat("topic.", 30), Since: now.Add(-time.Hour), Until: now.Add(time.Hour)}, {Topic: "b", Since: now}}
	waiting.WaitingForCopies, waiting.CopyWaits = 5, []router.CopyWait{{Instance: "barn-2", Count: 5, Since: now.Add(-time.Hour), Until: now.Add(time.Hour)}}
	source := &plainSource{
		queue: queueOf(2),
		tenants: func(context.Context) ([]admin.Tenant, error) {
			return []admin.Tenant{{ID: strings.Repeat("long", 30), Endpoints: []admin.Endpoint{{ID: "1", Name: strings.Repeat("name", 50), Mine: true, Sends: []string{taskData, shapes}}}}}, nil
		},
		snapshot: admin.Snapshot{
			Checks:  []admin.Check{{Name: "gateway", Message: "refused", Since: now}, {Name: "sink down", Message: "no route to host", Since: now}, {Name: "dedup", Message: "no space left on device", Since: now}},
			Config:  admin.ConfigState{Error: "line 3: no such key"},
			Gateway: admin.Gateway{Host: strings.Repeat("gateway.", 20), State: admin.GatewayDisconnected, LastError: "refused", RateLimited: true},
			Routes: []admin.Route{
				route("runs", router.StateRunning), waiting, route("failed", router.StateFailed),
				route("starts", router.StateStarting), route(strings.Repeat("x", 200), router.StateEnded),
			},
			Dedup: admin.Dedup{Store: "bbolt", Target: "dedup.db", Since: now, Error: "no space"},
			Sinks: []admin.Sink{{Name: "up", Up: true, CheckedAt: time.Now()}, {Name: "down", CheckedAt: time.Now(), Error: "no route to host"}, {Name: "new"}},
		},
	}
	server := serve(t, admin.Config{Token: testToken}, source)
	page := open(t, server, "overview")
	page.Wait(`document.querySelectorAll("#problems li").length === 5`)
	page.Eval(`document.querySelectorAll(".meter i").forEach(n => n.style.transition = "none")`)
	for _, width := range []int64{320, 390, 700, 900, 1030, 1100, 1200, 1360, 1920} {
		page.Resize(width, 900, width < 500)
		for _, dark := range []bool{false, true} {
			page.Dark(dark)
			if got := page.Eval(`JSON.stringify(` + pale + `)`); got != "[]" {
				t.Errorf("%d pixels wide, dark %t: pale texts: %s", width, dark, got)
			}
		}
		if got := page.Eval(`[...document.querySelectorAll(".node, .tile")].filter(n => n.scrollWidth > n.clientWidth).map(n => n.textContent)`); got != "" {
			t.Errorf("%d pixels wide: what is in a box is wider than that: %s", width, got)
		}
		if got := page.Eval(`document.documentElement.scrollWidth - window.innerWidth`); got != "0" && !strings.HasPrefix(got, "-") {
			t.Errorf("%d pixels wide: the page is %s pixels wider than the window", width, got)
		}
	}
	for room, whole := range map[string]string{
		"problems": rows + ` === 2`, "farms": `document.querySelectorAll("#tenants tbody tr").length === 1`, "routes": `document.querySelectorAll("#routes-rows tr").length === 5`,
		"messages": `document.querySelector("#rooms a[aria-current]") !== null`, "configuration": `document.querySelector("#config-empty").textContent === "Nothing of that."`,
	} {
		page.Resize(1360, 1000, false)
		enter(page, room)
		page.Wait(whole)
		checkWidths(t, page, "")
	}
	page.Resize(1360, 1000, false)
	enter(page, "overview")
	page.Resize(900, 900, false)
	page.Dark(false)
	page.Picture("tones-900")
	page.Resize(1030, 900, false)
	page.Picture("tones-1030")
	page.Resize(1360, 1000, false)
	page.Picture("tones")
	// What waits is told with what for, since when and until when.
	facts := page.Eval(node("Route waits") + `.textContent`)
	for _, want := range []string{"next attemptin 59", "refused topics2, topic.", "for 1\u00a0h", "waiting for copies5, of barn-2 for"} {
		testkit.Contains(t, facts, want)
	}
	// All that is wrong is in the list, the worst first, and says what that means and what to do.
	page.Wait(`document.querySelectorAll("#problems li").length === 5`)
	problems := page.Eval(`document.querySelector("#problems").textContent`)
	for _, want := range []string{
		"has been disconnected", "New messages stay with the gateway; nothing is lost.", "The sink \"down\" has been down", "Free space on that disk", "The configuration file has been refused",
		"has asked for fewer requests",
	} {
		testkit.Contains(t, problems, want)
	}
	// Every state has a word beside its colour.
	for label, word := range map[string]string{
		"Gateway": "disconnected", "Subscriber": "waiting", "Route runs": "running", "Route waits": "outage, waiting", "Route failed": "failed",
		"Route starts": "starting", "Sink up": "up", "Sink down": "down", "Sink new": "not checked yet",
	} {
		if got := page.Eval(node(label) + `.querySelector(".word").textContent`); got != word {
			t.Errorf("%s: %q, want %q", label, got, word)
		}
	}
	page.Clean(origin(server))
}

// checkWidths checks that a page fits into windows of each width, light and dark, that its texts can be read, and that all that
// can be operated has a label. With a name it takes a picture of each.
func checkWidths(t *testing.T, page *browsertest.Tab, picture string) {
	t.Helper()
	for _, width := range []int64{390, 820, 1400} {
		for tone, dark := range map[string]bool{"light": false, "dark": true} {
			page.Resize(width, 900, width < 500)
			page.Dark(dark)
			if got := page.Eval(`document.documentElement.scrollWidth - window.innerWidth`); got != "0" && !strings.HasPrefix(got, "-") {
				t.Errorf("%d pixels wide, %s: the page is %s pixels wider than the window", width, tone, got)
			}
			if got := page.Eval(`JSON.stringify(` + pale + `)`); got != "[]" {
				t.Errorf("%d pixels wide, %s: pale texts: %s", width, tone, got)
			}
			if picture != "" {
				page.Picture(fmt.Sprintf("%s-%d-%s", picture, width, tone))
			}
		}
	}
	page.Dark(false)
	page.Resize(1400, 900, false)
	if got := page.Eval(`JSON.stringify(` + unlabelled + `)`); got != "[]" {
		t.Errorf("without a label: %s", got)
	}
}

// keepsNothing checks that a token went into headers and is nowhere else.
func keepsNothing(t *testing.T, page *browsertest.Tab, token string) {
	t.Helper()
	if got := page.Eval(`JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}, location.href])`); strings.Contains(got, token) || !strings.HasPrefix(got, `["",{},{},`) {
		t.Errorf("the browser keeps %s", got)
	}
	for _, url := range page.Requests() {
		if strings.Contains(url, token) {
			t.Errorf("the token is in the address %s", url)
		}
	}
}

// noElements checks that no element was made out of a text, and that nothing was executed.
func noElements(t *testing.T, page *browsertest.Tab, selector string) {
	t.Helper()
	if got := page.Eval("document.querySelectorAll(`" + selector + "`).length + ' ' + window.pwned"); got != "0 undefined" {
		t.Errorf("elements out of texts: %s", got)
	}
}
