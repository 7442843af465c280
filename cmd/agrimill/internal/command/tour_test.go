//go:build browser

package command

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/browsertest"
)

// TestBrowserTour is what the demo shows to someone new, with its own faults: the page says that files are poisoned, and that NATS is
// down, and what to do. A file is found with the reason, the route is repaired in the file of the demo, the poisoned files are
// replayed, and all is right.
func TestBrowserTour(t *testing.T) {
	d := startDemo(t, "--rate", "10", "--poison", "--break", "nats")
	page := browsertest.Open(t, "http://"+d.address()+"/")
	says := func(picture string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			page.Wait(fmt.Sprintf(`document.querySelector("#sentence").textContent.includes(%q)`, part))
		}
		page.Picture("tour-" + picture)
	}
	enter := func(room string) {
		t.Helper()
		tabTo(page, `#rooms a[href="#/`+room+`"]`)
		page.Keys("\r")
	}
	says("1-poisoned", "messages have been in the poison queue for ", "See why")

	// What breaks is said with what happens to the data, and so is its end.
	d.enter()
	d.says("BROKEN")
	says("2-broken", `The sink "farm" (nats `, "has been down for", "nothing is lost. Repair it; agrimill continues by itself.")
	d.enter()
	d.says("REPAIRED")
	says("3-repaired", "messages have been in the poison queue for ")

	// Which file is it, and why?
	enter("problems")
	page.Wait(`(document.querySelector("#poison-rows .file")?.textContent ?? "") !== ""`)
	file := page.Eval(`document.querySelector("#poison-rows .file").textContent`)
	tabTo(page, "#trace-query")
	page.Keys(file + "\r")
	for _, want := range []string{file, "poisoned", "teamset", "endpoint “"} {
		page.Wait(fmt.Sprintf(`document.querySelector("#trace-messages")?.textContent.includes(%q)`, want))
	}
	page.Picture("tour-4-found")

	// The route is repaired in the file, which is reloaded by itself.
	text := testkit.Must(os.ReadFile(d.file))(t)
	testkit.Contains(t, string(text), "{teamset}.shapes")
	must(t, os.WriteFile(d.file, []byte(strings.Replace(string(text), "{teamset}.shapes", "{teamset|none}.shapes", 1)), 0o600))
	enter("configuration")
	page.Wait(`document.querySelector("#reloads").textContent.includes("routes[1].to.topic: {teamset}.shapes → {teamset|none}.shapes")`)
	page.Picture("tour-5-reloaded")

	enter("problems")
	tabTo(page, "#token")
	page.Keys(demoToken)
	page.Wait(`document.querySelector("#poison-groups li .replay")?.disabled === false`)
	tabTo(page, "#poison-groups li .replay")
	page.Keys("\r")
	page.Wait(`document.querySelector("#confirm").open`)
	tabTo(page, "#confirm-yes")
	page.Keys("\r")
	page.Wait(`/^[\d,]+ delivered$/.test(document.querySelector("#replay-result").textContent) && document.querySelectorAll("#poison-rows tr").length === 0`)
	page.Picture("tour-6-replayed")
	enter("overview")
	says("7-right", "All is right: messages are received, stored and confirmed.")
	page.Clean("http://"+d.address(), "502 (Bad Gateway)") // of the poison queue, while NATS was down
	d.ends()
}
