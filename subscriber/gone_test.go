package subscriber_test

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// deliveries acks all messages and records when each came.
type deliveries struct {
	mu    sync.Mutex
	began time.Time
	after map[string]time.Duration // by the ID of the message
}

func (g *offlineGateway) ackAll(cfg subscriber.Config) (*subscriber.Subscriber, *deliveries) {
	g.Helper()
	sub, messages := g.subscribe(cfg)
	all := &deliveries{began: time.Now(), after: map[string]time.Duration{}}
	go func() { // ends with the subscription
		for msg := range messages {
			all.mu.Lock()
			all.after[msg.Metadata.Get(gateway.KeyMessageID)] = time.Since(all.began)
			all.mu.Unlock()
			msg.Ack()
		}
	}()
	return sub, all
}

// latest returns when the last of these messages came, and how many of them have.
func (d *deliveries) latest(messages ...int) (at time.Duration, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range messages {
		if after, came := d.after[offlineID(offlineMessageID, m)]; came {
			at = max(at, after)
			n++
		}
	}
	return at, n
}

// Payloads that are gone, whatever status says so, hold up their own endpoint for about half a minute and no other, and
// cost one reconnect and few requests. One that is there again within
// that time is delivered, in its place.
func TestGonePayloadHoldsItsEndpointUpShortly(t *testing.T) {
	const messages = 20
	for name, test := range map[string]struct {
		gone      int           // the first ones of the endpoint
		status    int           // that says so
		until     time.Duration // when they are there again; 0 for never
		elsewhere bool          // the other payloads are not embedded
		requests  int           // that are refused, at most
		streams   int
	}{
		"404":                   {1, 404, 0, true, 12, 2},
		"410":                   {1, 410, 0, true, 12, 2},
		"403":                   {1, 403, 0, true, 12, 2},
		"beside embedded ones":  {1, 410, 0, false, 12, 2},
		"half of the endpoint":  {10, 410, 0, true, 60, 4},
		"half, beside embedded": {10, 404, 0, false, 60, 4},
		"there again":           {1, 410, 20 * time.Second, true, 12, 2},
		"there again, half":     {10, 404, 20 * time.Second, true, 60, 4},
		"expired once":          {10, 403, time.Nanosecond, true, 20, 4},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			began := time.Now()
			g := newOfflineGateway(t, func(w http.ResponseWriter, _ *http.Request, p offlinePayload) {
				n, _ := strconv.Atoi(p.of)
				again := test.until > 0 && (time.Since(began) > test.until+2*time.Second && p.stream > 1)
				if n < test.gone && !again {
					w.WriteHeader(test.status)
					return
				}
				_, _ = w.Write([]byte("payload"))
			})
			sub, all := g.ackAll(subscriber.Config{})
			var same, others, gone []int
			for i := range 2 * messages {
				payload := []byte("embedded")
				if test.elsewhere || i < test.gone {
					payload = nil
				}
				g.message(i, i/messages, i, typeJSON, payload)
				switch {
				case i < test.gone:
					gone = append(gone, i)
				case i < messages:
					same = append(same, i)
				default:
					others = append(others, i)
				}
			}
			time.Sleep(20 * time.Minute)
			synctest.Wait()
			if at, n := all.latest(others...); n != len(others) || at > time.Second {
				t.Errorf("%d of %d messages of another endpoint after %v", n, len(others), at)
			}
			within := 31 * time.Second
			for i := 2; i < g.streams; i++ { // what the reconnect has overtaken waits for the next one
				within += time.Duration(i) * 8 * time.Second
			}
			if at, n := all.latest(same...); n != len(same) || at > within {
				t.Errorf("%d of %d messages of the endpoint after %v, want all within %v", n, len(same), at, within)
			}
			want := 0
			if test.until > 0 {
				want = len(gone)
			}
			if _, n := all.latest(gone...); n != want || sub.Stats().SetAside != int64(len(gone)-want) {
				t.Errorf("%d of %d come, %d are set aside", n, want, sub.Stats().SetAside)
			}
			if first, _ := all.latest(gone...); want > 0 {
				if next, _ := all.latest(same[0]); next < first {
					t.Errorf("the next message came %v before them", first-next)
				}
			}
			if n := g.requests[test.status]; n > test.requests || g.streams > test.streams {
				t.Errorf("%d requests and %d streams, want at most %d and %d", n, g.streams, test.requests, test.streams)
			}
		})
	}
}

// A payload host that cannot serve is left alone for as long as it asks, whatever comes meanwhile.
func TestPayloadHostIsLeftAloneForAsLongAsItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const asked = 40 * time.Second
		var refused time.Time
		g := newOfflineGateway(t, func(w http.ResponseWriter, _ *http.Request, _ offlinePayload) {
			if refused.IsZero() {
				refused = time.Now()
				w.Header().Set("Retry-After", "40")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if waited := time.Since(refused); waited < asked {
				t.Errorf("asked again after %v, want %v", waited, asked)
			}
			_, _ = w.Write([]byte("payload"))
		})
		_, all := g.ackAll(subscriber.Config{})
		for i := range 10 {
			g.message(i, i, i, typeJSON, nil)
			time.Sleep(time.Second)
		}
		time.Sleep(asked)
		synctest.Wait()
		if _, n := all.latest(0, 1, 2, 3, 4, 5, 6, 7, 8, 9); n != 10 {
			t.Errorf("%d of 10 came", n)
		}
	})
}

// A payload whose address leads where it may not is asked for again with a fresh one.
func TestPayloadThatIsRedirectedGetsAFreshURI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newOfflineGateway(t, func(w http.ResponseWriter, _ *http.Request, p offlinePayload) {
			if p.stream == 1 {
				w.Header().Set("Location", "http://127.0.0.1/")
				w.WriteHeader(http.StatusFound)
				return
			}
			_, _ = w.Write([]byte("payload"))
		})
		sub, all := g.ackAll(subscriber.Config{})
		g.message(0, 0, 0, typeJSON, nil)
		g.message(1, 0, 1, typeJSON, []byte("next"))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if _, n := all.latest(0, 1); n != 2 || sub.Stats().SetAside != 0 {
			t.Errorf("%d of 2 came, %d are set aside", n, sub.Stats().SetAside)
		}
	})
}

// When a payload host refuses everything for longer than that, what was set aside is requested again once the host
// has served another payload.
func TestPayloadsOfAHostThatRefusedEverythingComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refuses atomic.Bool
		refuses.Store(true)
		g := newOfflineGateway(t, func(w http.ResponseWriter, _ *http.Request, _ offlinePayload) {
			if refuses.Load() {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			_, _ = w.Write([]byte("payload"))
		})
		sub, all := g.ackAll(subscriber.Config{})
		for i := range 10 {
			g.message(i, i%3, i, typeJSON, nil)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := sub.Stats().SetAside; got != 10 {
			t.Errorf("%d are set aside", got)
		}
		refuses.Store(false)
		g.message(10, 1, 10, typeJSON, nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if _, n := all.latest(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10); n != 11 || g.unconfirmed() != 0 {
			t.Errorf("%d came, %d are not confirmed", n, g.unconfirmed())
		}
		if g.streams > 5 {
			t.Errorf("%d streams", g.streams)
		}
	})
}

// Payload addresses that live for a second: the stream is reconnected for fresh ones as long as they help, each
// address is asked for about once, and nothing is set aside, however many come and however slow their host is.
func TestPayloadsWhoseAddressesLiveShortly(t *testing.T) {
	for name, test := range map[string]struct {
		took     time.Duration // an answer of the host
		within   time.Duration
		requests int // at most
	}{
		"fast host":      {0, time.Second, 200},
		"50 ms":          {50 * time.Millisecond, 3 * time.Second, 300},
		"300 ms":         {300 * time.Millisecond, 25 * time.Second, 700},
		"almost as long": {900 * time.Millisecond, 45 * time.Second, 700},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			g := newOfflineGateway(t, func(w http.ResponseWriter, _ *http.Request, p offlinePayload) {
				expired := time.Since(p.sent) > time.Second
				time.Sleep(test.took)
				if expired {
					w.WriteHeader(http.StatusForbidden)
					return
				}
				_, _ = w.Write([]byte("payload"))
			})
			sub, all := g.ackAll(subscriber.Config{})
			var messages []int
			for i := range 200 {
				messages = append(messages, i)
				g.message(i, i%5, i, typeJSON, nil)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if at, n := all.latest(messages...); n != len(messages) || at > test.within || g.unconfirmed() != 0 {
				t.Errorf("%d of %d after %v, want all within %v", n, len(messages), at, test.within)
			}
			requests := 0
			for _, n := range g.requests {
				requests += n
			}
			if requests > test.requests || sub.Stats().SetAside != 0 {
				t.Errorf("%d requests, %d set aside; want at most %d, none", requests, sub.Stats().SetAside, test.requests)
			}
		})
	}
}

// Payloads that are gone one after the other hold up their own endpoints not much longer, and the reconnects for them
// become rare.
func TestPayloadsThatAreGoneOneAfterTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOfflineGateway(t, func(w http.ResponseWriter, _ *http.Request, _ offlinePayload) { w.WriteHeader(http.StatusGone) })
		_, all := g.ackAll(subscriber.Config{})
		const every, lasts = 20 * time.Second, 20 * time.Minute
		sent := make(map[int]time.Duration)
		for i := 0; time.Since(all.began) < lasts; i += 2 {
			g.message(i, i, i, typeJSON, nil)
			g.message(i+1, i, i+1, typeJSON, []byte("next"))
			sent[i+1] = time.Since(all.began)
			time.Sleep(every)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		for i, at := range sent {
			if came, n := all.latest(i); n != 1 || came-at > 100*time.Second {
				t.Errorf("the message behind payload %d, sent after %v, came %v later", i-1, at, came-at)
			}
		}
		if g.streams > 10+int(lasts/time.Minute) {
			t.Errorf("%d streams in %v", g.streams, lasts)
		}
	})
}
