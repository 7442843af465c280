//go:build faults

package faulttest

import (
	"fmt"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// ingressAnswers are what an ingress, a firewall or a portal answers in place of the
// service.
func ingressAnswers() []gatewaytest.Fault {
	faults := []gatewaytest.Fault{{Status: 404, Message: "no Route matched with those values"}, {Status: 405}}
	for _, status := range []int{404, 403, 400, 405, 409, 413, 200} {
		faults = append(faults, gatewaytest.Fault{
			Status: status, Body: fmt.Appendf(nil, "<html><h1>%d</h1></html>", status), ContentType: "text/html",
		})
	}
	return faults
}

// An ingress answers for every operation in turn, as while the service is being
// deployed. Nothing is ended, dropped or poisoned because of it.
func TestRow35IngressAnswers(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		p := w.start()
		operations := []gatewaytest.Operation{gatewaytest.OpEvents, gatewaytest.OpConfirm, gatewaytest.OpToken, gatewaytest.OpListTenants}
		faults := ingressAnswers()
		n := messages / (len(faults) * (len(operations) + 1))
		for _, fault := range faults {
			for _, op := range append(operations, gatewaytest.OpAny) {
				if op == gatewaytest.OpAny {
					w.send(n)
				}
				ingress := w.gateway.Inject(op, fault)
				w.gateway.CutStreams()
				if op == gatewaytest.OpToken || op == gatewaytest.OpAny {
					w.gateway.ExpireTokens()
				}
				w.send(n)
				w.pause(100 * time.Millisecond)
				ingress.Lift()
			}
		}
		w.send(n)
		w.settle(expectation{})
		if s, h := p.sub.Stats(), p.health(); s.Rejected > 0 || h.Poisoned > 0 || p.sub.Err() != nil {
			t.Errorf("%d confirmations dropped, %d messages poisoned, %v", s.Rejected, h.Poisoned, p.sub.Err())
		}
		select {
		case err := <-p.run:
			p.run <- err
			t.Errorf("the pipeline stopped: %v", err)
		default:
		}
		testkit.Eventually(w, "the intermediary has gone", func() bool { return len(p.client.Intermediaries().Now) == 0 })
		if p.client.Intermediaries().Answers == 0 {
			t.Error("no intermediary was seen")
		}
	})
}

// The same while messages go to the service: none is taken for sent that is not.
func TestRow35IngressAnswersOutward(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		o := newOutward(w)
		p := o.run()
		for _, fault := range ingressAnswers() {
			for _, op := range []gatewaytest.Operation{gatewaytest.OpSendMessage, gatewaytest.OpToken} {
				ingress := o.gateway.Inject(op, fault)
				if op == gatewaytest.OpToken {
					o.gateway.ExpireTokens()
				}
				o.put(10)
				o.pause(200 * time.Millisecond)
				ingress.Lift()
			}
		}
		o.put(10)
		o.waitAll()
		o.waitPoisoned()
		if err := p.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		o.judgeOutward(int(o.unanswered.Load())) // none, if the machine is not slow
	})
}
