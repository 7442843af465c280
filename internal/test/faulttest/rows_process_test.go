//go:build faults

package faulttest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The process is killed at every point of the pipeline, and started again.
func TestRow21Killed(t *testing.T) {
	both(t, worldConfig{gateway: gatewaytest.Config{InlineLimit: 1000}}, func(t *testing.T, w *world) {
		var prey atomic.Pointer[child]
		w.gateway.OnConfirm(func(gatewaytest.LedgerEntry) {
			if c := prey.Swap(nil); c != nil {
				_ = c.cmd.Process.Kill()
			}
		})
		poisoned := 0
		const inFlight = 50
		o := order{Store: t.TempDir() + "/dedup", InFlight: inFlight}
		for _, at := range childPoints {
			for i := range messages / len(childPoints) {
				switch {
				case i%20 == 3:
					w.sendPayload(messageType, append([]byte(brokenPayload), w.bytes(10)...))
					poisoned++
				case i%10 == 5:
					w.sendSize(1, 1500)
				default:
					w.send(1)
				}
			}
			o.Point, o.After = at, 1+w.rng.Int64N(30)
			switch at {
			case pointConnected, pointConfirm, pointConfirmed:
				o.After = 1
			case pointDownload, pointDownloading, pointPoison, pointPoisoned:
				o.After = 1 + w.rng.Int64N(4)
			}
			c := w.startChild(o)
			if at == pointConfirmTaken {
				prey.Store(c)
			}
			if code := w.waitChild(c); code != -1 {
				t.Errorf("%s: the child ended with code %d, want it killed", at, code)
			}
		}
		w.lastChild(o, w.waitConfirmed)
		v := w.judge(expectation{poisoned: poisoned})
		if v.duplicates > inFlight*len(childPoints) {
			t.Errorf("%d raw duplicates by %d kills", v.duplicates, len(childPoints))
		}
	})
}

// The same on the way back: what the gateway got twice has the same context ID.
func TestRow21KilledOutward(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		o := newOutward(w)
		points := outPoints
		if w.kind == kindKafka { // where each one has to be missed first
			points = []point{pointHandled, pointPublish, pointAnswered, pointPublished}
		}
		o.killedOutward(points, messages/4/len(points), 20)
		o.judgeOutward(outInFlight * len(points))
	})
}

// SIGTERM with a full pipeline: what is stored is confirmed, and the process ends
// by itself. A second SIGTERM ends it at once.
func TestRow22Terminated(t *testing.T) {
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		c := w.startChild(order{})
		w.send(messages / 2)
		testkit.Eventually(w, "it flows", func() bool { return w.confirmed() > messages/20 })
		w.send(messages / 4)
		testkit.NoError(t, c.terminate())
		if code := w.waitChild(c); code != childStoppedNormal {
			t.Errorf("SIGTERM: exit code %d", code)
		}
		testkit.NoError(t, w.oracle.look())
		if stored, confirmed := len(w.oracle.archive.all()), w.confirmed(); stored != confirmed {
			t.Errorf("%d messages are stored and %d confirmed after a graceful stop", stored, confirmed)
		}

		// Nothing can be stored, so there is something to wait for.
		c = w.startChild(order{})
		w.says(c, "ready")
		w.send(100)
		w.waitConfirmed()
		w.broker.hang()
		w.send(messages / 4)
		w.pause(300 * time.Millisecond)
		testkit.NoError(t, c.terminate())
		w.says(c, "stopping")
		testkit.NoError(t, c.terminate())
		if code := w.waitChild(c); code != -1 { // else it would wait as long as the broker hangs
			t.Errorf("the second SIGTERM: exit code %d", code)
		}
		w.broker.resume()
		w.startChild(order{})
		w.settle(expectation{})
	})
}

// Two processes of one application at once, and one after the other restarted.
func TestRow33TwoProcesses(t *testing.T) {
	t.Parallel()
	for name, streams := range map[string]gatewaytest.StreamPolicy{"every stream": gatewaytest.EveryStream, "one stream": gatewaytest.OneStream} {
		t.Run(name, func(t *testing.T) {
			protocols(t, worldConfig{gateway: gatewaytest.Config{Streams: streams}}, func(t *testing.T, w *world) {
				running := []*child{w.startChild(order{}), w.startChild(order{})}
				for i := range 4 {
					w.flow(messages/4, 300*time.Millisecond)
					old := i % 2
					w.says(running[old], "ready")
					testkit.NoError(t, running[old].terminate())
					w.send(10)
					if code := w.waitChild(running[old]); code != childStoppedNormal {
						t.Errorf("exit code %d", code)
					}
					running[old] = w.startChild(order{})
				}
				w.settle(expectation{})
			})
		})
	}
}

// lastChild does what the ones before, which were killed, have left, and is stopped when it has.
func (w *world) lastChild(o order, done func()) {
	w.Helper()
	o.Point = ""
	c := w.startChild(o)
	w.says(c, "ready")
	done()
	if err := c.terminate(); err != nil {
		w.Error(err)
	}
	if code := w.waitChild(c); code != childStoppedNormal {
		w.Errorf("the last child ended with code %d", code)
	}
}

// says waits until a child says what is wanted next.
func (w *world) says(c *child, want string) {
	w.Helper()
	select {
	case line := <-c.lines:
		if line != want {
			w.Fatalf("the child says %q, want %q", line, want)
		}
	case <-time.After(testkit.Patience):
		w.Fatalf("the child does not say %q", want)
	}
}

// waitChild waits for the end of a child.
func (w *world) waitChild(c *child) int {
	w.Helper()
	done := make(chan int, 1)
	go func() { done <- c.wait() }()
	select {
	case code := <-done:
		return code
	case <-time.After(testkit.Patience):
		w.Error("the child does not end")
		_ = c.cmd.Process.Kill()
		return <-done
	}
}
