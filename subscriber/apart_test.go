package subscriber

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// apartWorld is a window with a subscription.
type apartWorld struct {
	*apart
	now         time.Time
	sub         *subscription
	first, last *delivery
	downloads   *downloadQueue
}

func newApartWorld(order Order, size int) *apartWorld {
	cfg := Config{Order: order, MaxInFlight: size, MaxInFlightBytes: 1000}
	cfg.setDefaults()
	now := time.Now()
	return &apartWorld{
		apart: newApart(cfg), now: now, downloads: newDownloadQueue(cfg.Payload),
		sub: &subscription{queues: map[string]*keyQueue{}, acked: now},
	}
}

// arrive adds a message of a tenant, with an order key of its own.
func (w *apartWorld) arrive(tenant, host string) *delivery {
	d := w.new(tenant, host)
	d.waits, d.since, d.arrived, d.linked = []*subscription{w.sub}, w.now, w.now, true
	if d.payload != nil {
		d.payload.download = w.downloads.add(w.now, d, host, false)
	}
	d.order = fmt.Sprintf("%p", d)
	w.sub.queues[d.order] = &keyQueue{items: []*delivery{d}, since: w.now}
	if d.prev = w.last; d.prev == nil {
		w.first = d
	} else {
		d.prev.next = d
	}
	w.last = d
	return d
}

func (w *apartWorld) new(tenant, host string) *delivery {
	d := &delivery{event: &gateway.MessageReceived{}, tenant: tenant, tenantID: tenant}
	d.keys = d.key1[:]
	if host != "" {
		d.payload = newPayload("https://"+host+"/", -1)
	}
	return d
}

func (w *apartWorld) leave(d *delivery) {
	d.linked = false
	if w.last == d {
		w.last = d.prev
	}
	if d.prev == nil {
		w.first = d.next
	} else {
		d.prev.next = d.next
	}
	if d.next != nil {
		d.next.prev = d.prev
	}
	d.prev, d.next = nil, nil
}

// pass lets time pass and sets apart what has stalled.
func (w *apartWorld) pass(d time.Duration) (moved int) {
	w.now = w.now.Add(d)
	move, _ := w.review(w.now, w.first)
	for _, d := range move {
		w.leave(d)
		w.add(d)
	}
	return len(move)
}

func (w *apartWorld) ack(d *delivery) {
	w.apart.acked(w.now, w.sub, d, d.since)
	w.leave(d)
}

func (w *apartWorld) fail(d *delivery) {
	j := d.payload.download
	j.place.Remove()
	w.downloads.finished(w.now, j, downloadFailed)
}

// shuts reports whether a message would be left now.
func (w *apartWorld) shuts(tenant, host string) bool {
	w.shutBad()
	return w.apart.shuts(w.sub, w.new(tenant, host))
}

// What stalls gives up its place, but at most half as many as fit into the window. Only then is
// its tenant shut, and nobody else.
func TestHalfOfTheWindowIsSetApart(t *testing.T) {
	for _, order := range []Order{OrderByKey, Unordered} {
		t.Run(order.String(), func(t *testing.T) {
			w := newApartWorld(order, 20)
			var bad []*delivery
			for range 4 {
				bad = append(bad, w.arrive("bad", ""))
			}
			w.now = w.now.Add(stallAfter / 2)
			w.ack(w.arrive("good", ""))
			if moved := w.pass(stallAfter / 4); moved != 0 {
				t.Fatalf("%d of what has just arrived are set apart", moved)
			}
			if moved := w.pass(stallAfter / 4); moved != 4 || w.over || w.shuts("bad", "") {
				t.Fatalf("%d are set apart, want 4; shut: %v", moved, w.shut)
			}
			for range 16 {
				bad = append(bad, w.arrive("bad", ""))
			}
			w.pass(stallAfter)
			w.ack(w.arrive("good", ""))
			w.pass(stallAfter)
			if got := len(w.items); got != 10 {
				t.Fatalf("%d are set apart", got)
			}
			if w.shuts("good", "") || w.shuts("new", "") || !w.shuts("bad", "") {
				t.Errorf("shut: %v", w.shut)
			}
			// It is open again when most of it gets on.
			for i, d := range bad {
				if w.pass(stallAfter); w.reopens() != (i >= 15) {
					t.Fatalf("opened again after %d of 20: %v", i, w.reopens())
				}
				if d.apart {
					w.remove(d)
				} else {
					w.leave(d)
				}
			}
		})
	}
}

// Handlers that take their time do so for everybody: nothing has stalled.
func TestSlowHandlersHaveNotStalled(t *testing.T) {
	w := newApartWorld(Unordered, 20)
	var window []*delivery
	for i := range 1000 {
		window = append(window, w.arrive(fmt.Sprint(i%3), ""))
		w.now = w.now.Add(stallAfter / 5)
		if len(window) < 20 {
			continue
		}
		w.ack(window[0]) // after four seconds
		window = window[1:]
		if moved := w.pass(0); moved != 0 || w.over {
			t.Fatalf("message %d: %d are set apart", i, moved)
		}
	}
}

// Payloads that are set apart make room there for handlers that hang, which cannot be left.
func TestPayloadsMakeRoomForHandlersThatHang(t *testing.T) {
	w := newApartWorld(Unordered, 20)
	for i := range 10 {
		w.fail(w.arrive(fmt.Sprint("payload ", i), "host"))
	}
	w.pass(stallAfter)
	for range 15 {
		w.arrive("hangs", "")
	}
	w.now = w.now.Add(stallAfter / 2)
	w.ack(w.arrive("good", ""))
	w.now = w.now.Add(stallAfter)
	_, leave := w.review(w.now, w.first)
	w.shutBad()
	if len(w.items) != 10 || len(leave) != 10 {
		t.Fatalf("%d are set apart, of which %d are to be left, want 10", len(w.items), len(leave))
	}
	for _, d := range leave {
		w.remove(d)
	}
	if moved := w.pass(stallAfter); moved != 10 {
		t.Errorf("%d of those that hang are set apart, want 10", moved)
	}
}

// What has little beside a tenant that has much is shut, too, when that one has been shut for some
// time and there is still no room: together they may have more than it.
func TestManyThatHaveLittleAreShut(t *testing.T) {
	w := newApartWorld(Unordered, 100)
	for range 50 {
		w.fail(w.arrive("much", "host"))
	}
	for i := range 50 {
		w.fail(w.arrive(fmt.Sprint("little ", i), "host"))
	}
	w.pass(0)
	w.pass(stallAfter)
	if !w.shuts("much", "host") || w.shuts("little 0", "host") {
		t.Fatalf("shut: %v", w.shut)
	}
	w.pass(helpsAfter)
	if !w.shuts("little 0", "host") || w.shuts("good", "host") {
		t.Errorf("shut: %v", w.shut)
	}
}

// When nothing is acked at all, a few more are let in, to see whether it is everybody. Nobody is
// shut for long.
func TestOutageShutsNobody(t *testing.T) {
	w := newApartWorld(Unordered, 20)
	for range 20 {
		w.arrive("a", "")
	}
	if moved := w.pass(2 * stallAfter); moved != 5 || !w.over {
		t.Errorf("%d are set apart", moved)
	}
	for range 5 {
		w.arrive("b", "")
		w.pass(stallAfter)
	}
	if len(w.items) != 5 || w.shuts("a", "") || w.shuts("b", "") {
		t.Errorf("%d are set apart; shut: %v", len(w.items), w.shut)
	}
	if w.pass(hopelessWindow); !w.shuts("a", "") || w.shuts("c", "") {
		t.Errorf("shut: %v", w.shut)
	}
}

// When all that the handlers have is one tenant's, and they have acked another's before, it is shut
// as soon as more of it come than may be set apart: the next ones may be another's.
func TestTenantThatHasEverythingIsShut(t *testing.T) {
	for _, c := range []struct {
		name  string
		first string        // whose is acked before
		took  time.Duration // until it is
		since time.Duration // it was
		among string        // whose is among those that hang
		after time.Duration // when it is shut
	}{
		{name: "others were acked", first: "other", after: aloneAfter},
		{name: "of messages without a tenant", first: " ", after: aloneAfter},
		{name: "nobody's were", after: hopelessWindow},
		{name: "only its own were", first: "bad", after: hopelessWindow},
		{name: "too long ago", first: "other", since: 2 * servedFor, after: hopelessWindow},
		{name: "handlers take their time", first: "other", took: 5 * time.Second, after: 10 * time.Second},
		{name: "another one's hang, too", first: "other", among: "second", after: hopelessWindow},
	} {
		for _, order := range []Order{OrderByKey, Unordered} {
			t.Run(c.name+" "+order.String(), func(t *testing.T) {
				w := newApartWorld(order, 20)
				if c.first != "" {
					d := w.arrive(strings.TrimSpace(c.first), "")
					w.now = w.now.Add(c.took)
					w.ack(d)
				}
				w.now = w.now.Add(c.since)
				for range 20 {
					w.arrive("bad", "")
				}
				began := w.now
				if w.pass(stallAfter); len(w.items) != 5 || w.shuts("bad", "") {
					t.Fatalf("%d are set apart; shut: %v", len(w.items), w.shut)
				}
				for range 4 {
					w.arrive("bad", "")
				}
				if c.among == "" {
					c.among = "bad"
				}
				w.arrive(c.among, "")
				for !w.shuts("bad", "") && w.now.Sub(began) < time.Hour {
					w.pass(stallAfter / 4)
				}
				if after := w.now.Sub(began); after < c.after || after > c.after+stallAfter {
					t.Errorf("shut after %v, want %v", after, c.after)
				}
				if w.shuts("other", "") || len(w.items) != 10 {
					t.Errorf("%d are set apart; shut: %v", len(w.items), w.shut)
				}
			})
		}
	}
}

// Two windows of one tenant's messages, which hang, arrive in a row, and behind them what the
// others have: it is delivered within seconds, and all the rest comes when the first ones are
// acked. Of the only tenant, nothing is left: the stream is held back.
func TestMoreThanAWindowOfOneTenant(t *testing.T) {
	for _, only := range []bool{false, true} {
		for _, order := range []Order{OrderByKey, Unordered} {
			t.Run(fmt.Sprintf("only %v %v", only, order), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testMoreThanAWindow(t, order, only) })
			})
		}
	}
}

func testMoreThanAWindow(t *testing.T, order Order, only bool) {
	const window, all = 20, 2 + 2*20
	w := newResyncWorld(t, Config{MaxInFlight: window, Order: order})
	messages, err := w.Subscribe(t.Context(), AllData)
	if err != nil {
		t.Fatal(err)
	}
	hang := make(chan struct{})
	end := sync.OnceFunc(func() { close(hang) })
	defer end()
	go func() { // ends with the subscription
		for msg := range messages {
			if strings.HasPrefix(msg.Metadata[gateway.KeyTenantID], "good") {
				msg.Ack()
			} else {
				go func() { <-hang; msg.Ack() }()
			}
		}
	}()
	arrive := func(ctx context.Context, i int) {
		tenant := "bad"
		switch {
		case only && i == 0:
			return
		case i == 0 || i == all-1 && !only:
			tenant = fmt.Sprint("good ", i)
		}
		w.intake(ctx, &gateway.MessageReceived{
			ID: fmt.Sprintf("%08x-2222-4333-8444-555555555555", i), ReceivingEndpointID: fmt.Sprintf("%08x-7777-4888-8999-aaaaaaaaaaaa", i),
			AppMessageID: fmt.Sprint(i), TenantID: tenant, MessageType: "type", Payload: []byte("small"),
		}, 0)
		synctest.Wait()
	}
	ctx, cancel := context.WithTimeout(t.Context(), hopelessWindow/3)
	defer cancel()
	synctest.Wait()
	w.connect()
	for i := range all {
		arrive(ctx, i)
	}
	left := w.Stats().Abandoned
	if only {
		if ctx.Err() == nil || left != 0 {
			t.Errorf("%d of the only tenant are left", left)
		}
		return
	}
	time.Sleep(time.Second) // it is confirmed
	if got := w.client.confirmed.Load(); got != 2 || ctx.Err() != nil || left == 0 {
		t.Fatalf("%d of the others are confirmed, want 2; %d are left", got, left)
	}
	if got := w.reconnects(); len(got) != 0 {
		t.Errorf("reconnects are asked for after %v, although it hangs still", got)
	}
	end()
	time.Sleep(time.Second)
	if got := w.reconnects(); len(got) != 1 {
		t.Fatalf("reconnects are asked for after %v, want 1", got)
	}
	w.connect()
	for i := range all {
		arrive(t.Context(), i)
	}
	time.Sleep(time.Second)
	if got := w.client.confirmed.Load(); got < all {
		t.Errorf("%d are confirmed, want %d", got, all)
	}
}

// A control event that is acked is nobody's: the only tenant is not shut because of it.
func TestControlEventsAreNobodys(t *testing.T) {
	w := newApartWorld(Unordered, 20)
	d := w.arrive("", "")
	d.keys = nil
	w.ack(d)
	for range 20 {
		w.arrive("only", "")
	}
	w.pass(stallAfter)
	if w.pass(hopelessWindow / 2); w.shuts("only", "") {
		t.Errorf("shut: %v", w.shut)
	}
}

// Payloads of one tenant that cannot be downloaded shut neither its other messages, nor other
// tenants.
func TestPayloadsShutTheirTenant(t *testing.T) {
	w := newApartWorld(Unordered, 4)
	for range 4 {
		w.fail(w.arrive("bad", "host"))
	}
	w.pass(stallAfter)
	if !w.shuts("bad", "host") || w.shuts("bad", "") || w.shuts("good", "host") {
		t.Errorf("shut: %v", w.shut)
	}
}

// A tenant is not shut because its payloads are slow for a moment, when those of all are.
func TestSlowPayloadsShutNobody(t *testing.T) {
	w := newApartWorld(Unordered, 20)
	for i := range 20 {
		w.fail(w.arrive(fmt.Sprint(i%4), "host"))
	}
	w.pass(0)
	if w.pass(stallAfter / 2); len(w.bad) != 0 {
		t.Errorf("bad: %v", w.bad)
	}
	other := w.new("other", "host")
	w.apart.downloaded(w.now, other)
	if w.pass(stallAfter / 4); len(w.bad) != 4 {
		t.Errorf("bad: %v, although another one's are downloaded", w.bad)
	}
}

// A tenant of which little has stalled beside another's is not shut.
func TestOnlyWhatHasMoreThanItsShareIsShut(t *testing.T) {
	w := newApartWorld(Unordered, 20)
	for range 19 {
		w.fail(w.arrive("bad", "host"))
	}
	w.fail(w.arrive("good", "host"))
	w.pass(0)
	w.pass(stallAfter)
	if !w.shuts("bad", "host") || w.shuts("good", "host") {
		t.Errorf("shut: %v", w.shut)
	}
}

// A subscription that acks nothing of what others acked is shut as a whole.
func TestHangingSubscriptionIsShut(t *testing.T) {
	w := newApartWorld(Unordered, 4)
	other := &subscription{}
	for i := range 4 {
		d := w.arrive(fmt.Sprint(i), "")
		d.acked = append(d.acked, other)
	}
	w.pass(stallAfter)
	d := w.new("new", "")
	w.shutBad()
	if !w.apart.shuts(w.sub, d) || w.apart.shuts(other, d) {
		t.Errorf("shut: %v", w.shut)
	}
}

// A subscription that acks what came long before what others acked is shut when it has more than
// half of the window, until it has worked off three quarters. Half a window of it is set apart.
func TestSlowSubscriptionIsShut(t *testing.T) {
	for _, most := range []int{10, 11} { // half of the window, and more
		w := newApartWorld(Unordered, 20)
		other := &subscription{queues: map[string]*keyQueue{}, acked: w.now}
		var window []*delivery
		for range most {
			window = append(window, w.arrive("a", ""))
		}
		w.now = w.now.Add(stallAfter * 3 / 2)
		w.ack(window[0]) // it gets on
		window = append(window[1:], w.arrive("a", ""))
		quick := w.arrive("a", "")
		quick.waits = []*subscription{other}
		w.apart.acked(w.now, other, quick, quick.since)
		w.leave(quick)
		moved := w.pass(0)
		w.shutBad()
		if shut := w.apart.shuts(w.sub, w.new("new", "")); shut != (most > 10) || shut != (moved > 0) || moved > 10 {
			t.Fatalf("%d of a slow subscription: shut %v, %d moved", most, shut, moved)
		}
		if w.apart.shuts(other, w.new("new", "")) {
			t.Error("the other one is shut, too")
		}
		if most == 10 {
			continue
		}
		for len(window) > 0 {
			if w.pass(stallAfter); w.reopens() != (len(window) <= 2) {
				t.Fatalf("open again with %d: %v", len(window), w.reopens())
			}
			d := window[0]
			window = window[1:]
			w.apart.acked(w.now, w.sub, d, d.since)
			if d.apart {
				w.remove(d)
			} else {
				w.leave(d)
			}
		}
	}
}

// The only subscription is never slow, and neither is one that gets something only now and then.
func TestNoSubscriptionIsSlowAlone(t *testing.T) {
	w := newApartWorld(Unordered, 20)
	for range 20 {
		w.arrive("a", "")
	}
	for range 10 {
		w.now = w.now.Add(stallAfter * 2)
		w.ack(w.first)
		w.judge(w.now, w.first)
		if len(w.slow) > 0 {
			t.Fatal("the only subscription is slow")
		}
	}
	for w.first != nil {
		w.leave(w.first)
	}
	w.now = w.now.Add(time.Hour)
	w.reached = w.now // of another one
	for range 20 {
		w.arrive("a", "")
	}
	if w.judge(w.now, w.first); len(w.slow) > 0 {
		t.Error("what has just come makes it slow")
	}
}

// Half of the bytes are set apart at most; what is larger goes alone.
func TestSetApartBytesAreBounded(t *testing.T) {
	w := newApartWorld(Unordered, 100)
	for i := range 11 {
		d := w.arrive("a", "host")
		if d.bytes = 100; i == 0 {
			d.bytes = 900
		}
		w.fail(d)
	}
	if moved := w.pass(stallAfter); moved != 1 || w.bytes != 900 || !w.over {
		t.Errorf("%d are set apart, with %d bytes", moved, w.bytes)
	}
	w.remove(w.onlyItem())
	if moved := w.pass(stallAfter); moved != 5 || w.bytes != 500 {
		t.Errorf("%d are set apart, with %d bytes", moved, w.bytes)
	}
}

func (w *apartWorld) onlyItem() *delivery {
	for d := range w.items {
		return d
	}
	return nil
}

// With a window of one message there is never a second one in a handler, but a payload that
// cannot be downloaded makes room.
func TestWindowOfOne(t *testing.T) {
	w := newApartWorld(Unordered, 1)
	d := w.arrive("a", "")
	if moved := w.pass(time.Hour); moved != 0 {
		t.Error("set apart")
	}
	w.leave(d)
	w.fail(w.arrive("a", "host"))
	if moved := w.pass(time.Hour); moved != 1 {
		t.Error("not set apart")
	}
}

// However many stall, half of the window is set apart, and what is known of them is bounded.
func TestManyThatStall(t *testing.T) {
	w := newApartWorld(Unordered, 1000)
	for i := range max(many(), 20_000) {
		w.fail(w.arrive(fmt.Sprint("bad ", i), fmt.Sprint("host ", i)))
		if i%1000 == 999 {
			w.pass(stallAfter)
			w.pass(stallAfter)
			w.shutBad()
			for d := w.first; d != nil; d = w.first {
				w.leave(d)
			}
		}
	}
	if len(w.items) != 500 || len(w.shut) != 10_000 || len(w.bad) > 1500 || len(w.stalled) > 3000 {
		t.Errorf("%d are set apart, %d shut, %d bad, %d have stalled", len(w.items), len(w.shut), len(w.bad), len(w.stalled))
	}
}
