package pipeline_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// sendLarge publishes n messages that are not embedded in their events.
func (w *world) sendLarge(n int) {
	w.Helper()
	for i := range n {
		payload := append(fmt.Appendf(nil, "%s%d", mark, i), bytes.Repeat([]byte{'.'}, 64<<10)...)
		testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: pictures, Payload: payload}))(w)
	}
}

// What was taken in when the signal came is finished, if it gets on; what is left is counted, each message once.
func TestStopCountsWhatItLeaves(t *testing.T) {
	t.Parallel()
	const secondRoute = "  - {name: other, from: {gateway: all}, to: {sink: second}}\n"
	for name, test := range map[string]struct {
		change func(text string) string
		before func(w *world, b *agrimill)
		during func(w *world, b *agrimill) // while it drains; nil: nothing
		left   pipeline.UnfinishedError
	}{
		"a download that ends": {
			before: func(w *world, b *agrimill) {
				hang := w.gate.Inject(gatewaytest.OpPayload, gatewaytest.Fault{HangAfter: 1000})
				w.Cleanup(hang.Lift)
				w.sendLarge(3)
				testkit.Eventually(w, "a payload is under way", func() bool { return hang.Hits() > 0 && b.received() == 3 })
			},
			during: func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"a download that does not end": {
			change: func(text string) string { return strings.Replace(text, "timeout: 2m", "timeout: 2s", 1) },
			before: func(w *world, b *agrimill) {
				hang := w.gate.Inject(gatewaytest.OpPayload, gatewaytest.Fault{HangAfter: 1000})
				w.Cleanup(hang.Lift)
				w.sendLarge(3)
				testkit.Eventually(w, "a payload is under way", func() bool { return hang.Hits() > 0 && b.received() == 3 })
			},
			left: pipeline.UnfinishedError{Open: 3},
		},
		"confirmations that take longer than the routes leave of the time": {
			change: func(text string) string { return strings.Replace(text, "timeout: 2m", "timeout: 30s", 1) },
			before: func(w *world, b *agrimill) {
				w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Delay: 5 * time.Second})
				w.send(taskData, 1)
				testkit.Eventually(w, "it is stored", func() bool { return b.Snapshot().Routes[0].Delivered == 1 })
			},
		},
		"payloads that cannot be downloaded": {
			before: func(w *world, b *agrimill) {
				down := w.gate.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: 503})
				w.sendLarge(4)
				testkit.Eventually(w, "the host fails", func() bool { return down.Hits() > 3 && b.received() == 4 })
			},
			left: pipeline.UnfinishedError{Open: 4},
		},
		"messages held for a file": {
			change: func(text string) string {
				return strings.Replace(text, "subscriber:\n", "subscriber:\n  files: ["+pictures+"]\n  file_hold: 10m\n", 1)
			},
			before: func(w *world, b *agrimill) {
				w.send(pictures, 3)
				w.send(taskData, 1)
				testkit.Eventually(w, "they are held", func() bool { return b.Snapshot().Subscriber.Held == 3 && len(w.confirmed()) == 1 })
			},
			left: pipeline.UnfinishedError{Held: 3},
		},
		"one route of two has stored them": {
			change: func(text string) string {
				return strings.Replace(text, "sinks:\n", "sinks:\n  second: {nats: {url: \"nats://127.0.0.1:1\", connect_timeout: 100ms}}\n", 1) + secondRoute
			},
			before: func(w *world, b *agrimill) {
				w.send(taskData, 5)
				testkit.Eventually(w, "one of them is stored", func() bool { return b.Snapshot().Routes[0].Delivered > 0 && b.received() == 5 })
			},
			left: pipeline.UnfinishedError{Open: 5},
		},
		"confirmations that are refused": {
			before: func(w *world, b *agrimill) {
				w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503})
				w.send(taskData, 6)
				testkit.Eventually(w, "they are stored", func() bool { return b.Snapshot().Routes[0].Delivered == 6 })
			},
			left: pipeline.UnfinishedError{Unconfirmed: 6},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			w := newWorld(t)
			text := w.head() + w.natsSink() + allRoute
			if test.change != nil {
				text = test.change(text)
			}
			if test.left != (pipeline.UnfinishedError{}) { // all of the time is taken
				text = strings.Replace(text, "timeout: 2m", "timeout: 5s", 1)
			}
			b := w.start(text)
			testkit.Eventually(w, "the stream is open", func() bool { return b.Snapshot().Gateway.State == admin.GatewayConnected })
			b.logs.contains(`msg="sink opened"`, "sink=farm") // what has nowhere to go is not waited for
			test.before(w, b)
			if test.during != nil {
				b.cancel()
				testkit.Eventually(w, "it drains", func() bool { return b.Snapshot().State == admin.StateDraining })
				test.during(w, b)
			}
			if test.left == (pipeline.UnfinishedError{}) {
				b.mustStop()
				w.waitConfirmed()
				return
			}
			b.stopsUnfinished(test.left)
		})
	}
}

// What fits neither its sink nor the poison queue is still with the gateway: the status and the end say so, until it
// is stored.
func TestStopCountsWhatIsSetAside(t *testing.T) {
	t.Parallel()
	const (
		one    = allRoute
		two    = allRoute + "  - {name: other, from: {gateway: all}, to: {sink: farm, topic: other}}\n"
		poison = "routes:\n  - {name: farm-data, from: {gateway: all}, to: {sink: farm, topic: \"{filename}\"}}\n"
	)
	for name, test := range map[string]struct {
		routes string
		times  int64 // how often something was set aside
		small  int   // messages beside it, which are stored or poisoned
		reload bool  // to a sink that takes it
		again  bool  // reload what is there
		want   int
	}{
		"by two routes":                     {routes: two, times: 2, small: 2, want: 1},
		"beside poisoned messages":          {routes: poison, times: 1, small: 3, want: 1},
		"and a reload that changes nothing": {routes: one, times: 1, again: true, want: 1},
		"and a reload that makes room":      {routes: one, times: 1, small: 2, reload: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			w := newWorld(t, func(c *gatewaytest.Config) { c.ChunkSize = 4 << 20 })
			b := w.start(w.head() + w.natsSink() + test.routes)
			b.waitReady()
			payload := append([]byte(mark), bytes.Repeat([]byte{'.'}, 1<<20)...) // more than NATS takes
			testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: pictures, Payload: payload}))(t)
			state := func() admin.Subscriber { return b.Snapshot().Subscriber }
			testkit.Eventually(w, "it is set aside", func() bool { return state().SetAside >= test.times && state().SetAsideNow == 1 })
			if s := state(); s.OldestUnconfirmed.IsZero() || s.InFlight != 0 {
				t.Errorf("%d are in flight, the oldest waits since %v", s.InFlight, s.OldestUnconfirmed)
			}
			w.send(taskData, test.small)
			testkit.Eventually(w, "the others are confirmed", func() bool { return len(w.confirmed()) == test.small })
			switch {
			case test.again:
				b.reload(w.head() + w.natsSink() + test.routes)
			case test.reload:
				bucket := strings.Replace(w.natsSink(), "sinks:\n", fmt.Sprintf("sinks:\n  bucket: {blob: {url: \"file://%s\"}}\n", t.TempDir()), 1)
				b.reload(w.head() + bucket + strings.Replace(test.routes, "sink: farm", "sink: bucket", 1))
				w.waitConfirmed()
				testkit.Eventually(w, "nothing is set aside", func() bool { return state().SetAsideNow == 0 && state().OldestUnconfirmed.IsZero() })
			}
			if test.want == 0 {
				b.mustStop()
				return
			}
			b.stopsUnfinished(pipeline.UnfinishedError{SetAside: test.want})
		})
	}
}
