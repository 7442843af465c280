package demo

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newWorld is closed when the test ends.
func newWorld(t *testing.T, options Options) *World {
	t.Helper()
	w := testkit.Must(Start(options))(t)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// Each fault breaks the part that it names, no other, and its repair brings the part back.
func TestFaults(t *testing.T) {
	w := newWorld(t, Options{})
	client := w.Gateway.HTTPClient()
	defer client.CloseIdleConnections()
	get := func(url string) bool {
		response, err := client.Get(url)
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode != http.StatusServiceUnavailable
	}
	parts := map[string]func() bool{
		"nats": func() bool {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.NATS.URL(), "nats://"))
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		},
		"gateway": func() bool { return get(w.Gateway.BaseURL() + "/tenants") },
		"confirmations": func() bool {
			response, err := client.Post(w.Gateway.BaseURL()+"/confirmations", "application/json", strings.NewReader("{}"))
			if err != nil {
				return false
			}
			_ = response.Body.Close()
			return response.StatusCode != http.StatusServiceUnavailable
		},
		"payloads": func() bool { return get(w.Gateway.PayloadURL() + "/absent") },
	}
	check := func(broken string) {
		t.Helper()
		for name, works := range parts {
			affected := name == broken || broken == "gateway" && name != "nats"
			if works() == affected {
				t.Errorf("%q is broken: %s works: %t", broken, name, affected)
			}
		}
	}
	check("")
	faults := Faults()
	if len(faults) != len(parts) {
		t.Errorf("%d faults, want %d", len(faults), len(parts))
	}
	for _, fault := range faults {
		repair := fault.Break(w)
		check(fault.Name)
		if err := repair(); err != nil {
			t.Errorf("%s: %v", fault.Name, err)
		}
		check("")
	}
}

// Every machine of every farm sends, each file under a name of its own, and what is to be poisoned has no teamset.
func TestTraffic(t *testing.T) {
	w := newWorld(t, Options{Poison: true})
	names, senders := map[string]bool{}, map[string]bool{}
	without := 0
	const turns = 60
	for turn := range turns {
		request := w.next(turn)
		names[request.Filename], senders[request.EndpointID] = true, true
		if request.TeamsetContextID == "" {
			without++
			if request.MessageType != "shp:shape:zip" {
				t.Errorf("a %s is to be poisoned", request.MessageType)
			}
		}
	}
	if len(names) != turns || len(senders) != 6 || without != turns/poisonEvery {
		t.Errorf("%d names, %d machines and %d without a teamset in %d turns", len(names), len(senders), without, turns)
	}
}

// Machines keep what the gateway does not take, and send it again; a farm where nobody receives anything is left out.
func TestMachinesKeepTheirFiles(t *testing.T) {
	files := []File{newFile("a.pdf", []byte("a")), newFile("b.pdf", []byte("b"))}
	w := newWorld(t, Options{Files: files})
	w.Gateway.AddEndpoint(gatewaytest.EndpointConfig{Tenant: w.Farms[1].Tenant, Receive: []string{"doc:pdf"}, Subscribe: []string{"doc:pdf"}})
	refused := w.Gateway.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Times: 3})
	ctx, stop := context.WithCancel(t.Context())
	sent := make(chan struct{})
	go func() { // ends with ctx
		defer close(sent)
		w.Send(ctx, 1000)
	}()
	err := w.Gateway.Wait(ctx, func(ledger []gatewaytest.LedgerEntry) bool { return len(ledger) >= 4 })
	stop()
	<-sent
	if err != nil {
		t.Fatal(err)
	}
	if refused.Hits() != 3 {
		t.Errorf("%d requests were refused, want 3", refused.Hits())
	}
	var got []string
	for _, entry := range w.Gateway.Ledger()[:4] {
		got = append(got, entry.Filename)
		if entry.TenantID != w.Farms[1].Tenant {
			t.Errorf("tenant %s", entry.TenantID)
		}
	}
	if text := strings.Join(got, " "); text != "a.pdf a.pdf b.pdf b.pdf" { // of two machines
		t.Errorf("sent %s", text)
	}
}
