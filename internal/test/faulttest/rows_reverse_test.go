//go:build faults

package faulttest

import (
	"net/http"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The service fails in every way while messages go to it.
func TestRow31Outward(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		o := newOutward(w)
		n := messages
		if w.kind == kindKafka {
			n = messages / 4 // one at a time
		}
		for _, f := range []gatewaytest.Fault{
			{Status: 429, Times: 5, Header: http.Header{"Retry-After": {"0"}}}, {Status: 500, Times: 20}, {Status: 503, Times: 20},
			{Refuse: true, Times: 20}, {DropAnswer: true, Times: 20}, {Status: 500, AfterWork: true, Times: 20}, {Hang: true, Times: 2},
			{Status: 401, Times: 5},
		} {
			f.Skip = o.rng.IntN(n / 2)
			i := o.gateway.Inject(gatewaytest.OpSendMessage, f)
			time.AfterFunc(10*time.Second, i.Lift)
		}
		o.put(n / 2)
		p := o.run()
		o.put(n / 2)
		o.waitAll()
		defer func() { t.Logf("%+v", p.health()) }()
		testkit.Eventually(o, "all are done", func() bool {
			h := p.health()
			return h.InFlight == 0 && h.Delivered+h.Poisoned+h.Duplicates >= uint64(len(o.context))
		})
		o.judgeOutward(int(o.unanswered.Load()))
		if h := p.health(); h.Poisoned != uint64(len(o.partial)) {
			t.Errorf("%d messages are in the poison queue, want the %d that arrived in part", h.Poisoned, len(o.partial))
		}
	})
}

// The source is down, its acknowledgments are lost, and the process is
// restarted (rows 16, 17 and 22, outward).
func TestRow31SourceFaults(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		o := newOutward(w)
		n := messages
		if w.kind == kindKafka {
			n = messages / 4
		}
		o.put(n / 4)
		p := o.run()
		for i := range 3 {
			switch i {
			case 0:
				o.broker.cut()
			case 1:
				o.broker.hang()
				o.pause(500 * time.Millisecond)
				o.broker.resume()
			case 2:
				if err := p.stop(); err != nil {
					t.Errorf("stop: %v", err)
				}
				p = o.run()
			}
			o.put(n / 4)
		}
		o.waitAll()
		o.waitPoisoned()
		if err := p.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		o.judgeOutward(n / 4)
	})
}
