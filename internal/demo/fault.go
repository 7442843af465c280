package demo

import (
	"net/http"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// Fault is something that breaks.
type Fault struct {
	// Name is what --break takes, Broken and Repaired what a person reads then.
	Name, Broken, Repaired string

	breaks func(w *World) (repair func() error)
}

// Faults are those there are.
func Faults() []Fault {
	status := func(operation gatewaytest.Operation) func(w *World) func() error {
		return func(w *World) func() error {
			injected := w.Gateway.Inject(operation, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Message: "broken by the demo"})
			return func() error {
				injected.Lift()
				return nil
			}
		}
	}
	return []Fault{
		{
			"nats", "NATS is down: messages wait unconfirmed, and the gateway keeps them",
			"NATS is back: what waited is stored and confirmed", func(w *World) func() error {
				w.NATS.Stop()
				return w.NATS.Start
			},
		},
		{
			"gateway", "the gateway is down: machines keep their files, and agrimill reconnects",
			"the gateway is back: machines send what they kept", func(w *World) func() error {
				w.Gateway.Stop()
				return w.Gateway.Restart
			},
		},
		{
			"confirmations", "the gateway answers confirmations with 503: messages are stored, and their confirmations wait",
			"the gateway takes confirmations again: those that waited are sent", status(gatewaytest.OpConfirm),
		},
		{
			"payloads", "downloads are answered with 503: files above 32 KiB wait, and what comes after them for the same farm",
			"downloads work again: what waited is downloaded, stored and confirmed", status(gatewaytest.OpPayload),
		},
	}
}

// Break breaks the part of a World that the fault is about. repair must be called before anything else is broken, and
// before the World is closed.
func (f Fault) Break(w *World) (repair func() error) { return f.breaks(w) }
