//go:build faults

package faulttest

import (
	"strings"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/agrimill/agrimill/internal/testkit"
)

// toxic is a proxy for faults of the network that the other proxies do not have.
type toxic struct {
	w     *world
	proxy *toxiproxy.Proxy
}

// toxiproxy starts a proxy to an address (host:port). It is stopped when the
// test ends.
func (w *world) toxiproxy(upstream string) *toxic {
	w.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	t := &toxic{w: w, proxy: toxiproxy.NewProxy(server, "gateway", "127.0.0.1:0", upstream)}
	testkit.NoError(w, t.proxy.Start())
	w.Cleanup(t.proxy.Stop)
	return t
}

func (t *toxic) address() string { return t.proxy.Listen }

// add adds a toxic, as the HTTP API of toxiproxy describes it.
func (t *toxic) add(text string) {
	t.w.Helper()
	testkit.Must(t.proxy.Toxics.AddToxicJson(strings.NewReader(text)))(t.w)
}

// cut closes all connections.
func (t *toxic) cut() {
	t.w.Helper()
	t.proxy.Stop()
	testkit.NoError(t.w, t.proxy.Start())
}
