//go:build browser

package admin_test

import (
	"fmt"
	"testing"

	"github.com/agrimill/agrimill/examples/bridge/admin"
	"github.com/agrimill/agrimill/internal/browsertest"
)

// node is a node of the picture, found by its label.
func node(label string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".node")].find(n => n.getAttribute("aria-label") === %q)`, label)
}

// fact is what a node tells under a term.
func fact(label, term string) string {
	return fmt.Sprintf(`[...(%s?.querySelectorAll("dt") ?? [])].find(d => d.textContent === %q)?.nextElementSibling.textContent`, node(label), term)
}

func TestBrowserPage(t *testing.T) {
	b := newBridge(t)
	server := serve(t, admin.Config{Token: testToken, Gatherer: b.registry}, b)
	b.run()
	b.send(40, taskData, "")
	b.send(3, shapes, hostileFilename)
	b.waitConfirmed(43)

	origin := "http://" + server.Addr()
	page := browsertest.Open(t, origin+"/")
	page.Wait(`document.querySelector("#state").dataset.state === "running"`)
	page.Wait(fact("Route task data", "delivered") + ` === "40"`)
	page.Wait(`document.querySelectorAll("#poison-rows tr").length === 3`)
	page.Wait(`document.querySelectorAll("#tenants tbody tr").length === 2`)
	page.Picture("page-light")
	page.Dark(true)
	page.Picture("page-dark")
	page.Resize(390, 844, true)
	page.Picture("page-phone-dark")
	page.Dark(false)
	page.Picture("page-phone")
	page.Clean(origin)
}
