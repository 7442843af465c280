//go:build browser

package admin_test

import (
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/browsertest"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// axe returns the npm package axe-core, which finds what people with a disability cannot use.
func axe(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("NPM IS ABSENT, THE PAGE IS NOT CHECKED WITH AXE: %v", err)
	}
	dir := t.TempDir()
	testkit.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "axe"))))
	install := exec.CommandContext(testkit.Context(t), "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	return string(testkit.Must(os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js")))(t))
}

// TestBrowserAxe: axe finds nothing, with everything open that the page has, nor on the page that asks for a token.
func TestBrowserAxe(t *testing.T) {
	script := axe(t)
	check := func(page *browsertest.Tab, what string) {
		t.Helper()
		page.Eval("(() => {" + script + "\nreturn typeof axe; })()")
		for _, width := range []int64{1400, 820, 390} {
			for _, dark := range []bool{false, true} {
				page.Resize(width, 900, width < 500)
				page.Dark(dark)
				page.Eval(`(window.violations = null, axe.run().then(r => { window.violations = r.violations.map(v => v.id + ": " + v.nodes.map(n => n.target + " " + n.failureSummary).join("; ")).join("\n") || "none"; window.passes = r.passes.length; }).catch(err => { window.violations = String(err); }), "runs")`)
				page.Wait(`window.violations !== null`)
				if got := page.Eval(`window.violations`); got != "none" {
					t.Errorf("%s, %d pixels wide, dark %t: %s", what, width, dark, got)
				}
				if got := page.Eval(`String(window.passes > 15)`); got != "true" {
					t.Errorf("%s: axe has looked at nearly nothing", what)
				}
			}
		}
	}

	j := testkit.Must(journal.New(journal.Config{}))(t)
	j.Event(&gateway.MessageReceived{ID: "message-number-1", TenantID: "tenant-1", Filename: "Field 7.zip"})
	until, archive := time.Now().Add(time.Hour), farmdatatest.Archive(t, 30)
	source := &plainSource{
		open:  []subscriber.Open{{TenantID: "tenant-1", EndpointID: "1", InFlight: 3, Oldest: until.Add(-2 * time.Hour)}},
		queue: many(30), journal: j, history: aDay(t),
		stored: func(context.Context) iter.Seq2[admin.StoredCopy, error] {
			return func(yield func(admin.StoredCopy, error) bool) {
				yield(admin.StoredCopy{Place: "farm.task in stream FARM, sequence 7", Metadata: map[string]string{"x-router-filename": "Field 7.zip"}, Payload: archive}, nil)
			}
		},
		settings: []admin.Setting{{Path: "gateway.base_url", Value: "https://gateway.example", Source: "agrimill.yaml:3"}, {Path: "journal.max_age", Value: "24h0m0s", Source: "agrimill.yaml:9", Restart: true}},
		tenants: func(context.Context) ([]admin.Tenant, error) {
			return []admin.Tenant{{ID: "tenant-1", Scopes: []string{"all"}, Endpoints: []admin.Endpoint{{ID: "1", Name: "Barn", Mine: true, Sends: []string{taskData}}}}}, nil
		},
		snapshot: admin.Snapshot{
			Poison: admin.Poison{Sink: "farm", Topic: "poison"}, Config: admin.ConfigState{Error: "line 3: no such key"},
			Gateway: admin.Gateway{Host: "gateway.example", State: admin.GatewayDisconnected, LastError: "refused", RateLimited: true},
			Sinks:   []admin.Sink{{Name: "up", Up: true, CheckedAt: time.Now()}, {Name: "down", CheckedAt: time.Now(), Error: "no route to host"}, {Name: "new"}},
		},
	}
	for i, state := range []router.RouteState{router.StateRunning, router.StateOutage, router.StateFailed, router.StateStarting, router.StateEnded} {
		source.snapshot.Routes = append(source.snapshot.Routes, admin.Route{
			RouteHealth: router.RouteHealth{Name: fmt.Sprint("route ", i), State: state, Until: until, LastError: "it failed", LastErrorAt: time.Now()}, To: admin.Place{Sink: "up"},
		})
	}
	server := serve(t, admin.Config{Token: testToken}, source)
	page := open(t, server, "overview")
	page.Wait(`document.querySelectorAll(".node").length > 8`)
	check(page, "the overview")
	enter(page, "problems")
	page.Wait(rows + ` === 25`)
	page.Type("#token", testToken)
	page.Click("#poison-rows tr:nth-child(2) .look")
	page.Wait(`!document.querySelector("#contents").hidden`)
	check(page, "the problems")
	enter(page, "farms")
	page.Wait(`document.querySelectorAll("#waiting li").length === 1 && document.querySelectorAll("#tenants-rows tr").length === 1`)
	page.Click("#tenants-rows .name")
	page.Wait(`!document.querySelector("#farm").hidden`)
	check(page, "the farms")
	enter(page, "routes")
	page.Wait(`document.querySelectorAll("#history-routes .graph svg").length === 12 && document.querySelectorAll("#routes-rows tr").length === 5`)
	check(page, "the routes")
	enter(page, "configuration")
	page.Wait(`document.querySelectorAll("#config-rows tr").length === 2`)
	check(page, "the configuration")
	page.Type("#trace-query", "field\n")
	page.Wait(`document.querySelectorAll("#trace-messages > li").length === 1`)
	page.Click("#trace-messages .look")
	page.Wait(`document.querySelector("#trace-messages > li").contains(document.querySelector("#contents")) && document.querySelector("#contents-values tr") !== null`)
	check(page, "the contents of a message that was found")

	page = browsertest.Open(t, origin(serve(t, admin.Config{ReadToken: readToken}, source))+"/")
	page.Wait(`!document.querySelector("#login").hidden`)
	check(page, "the page that asks for a token")
}
