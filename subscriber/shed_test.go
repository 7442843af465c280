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
	"github.com/agrimill/agrimill/internal/testkit"
)

// Two windows of one tenant's messages, which hang, arrive in a row, and behind them what the others have: it is delivered
// within seconds, and all the rest comes when the first ones are acked.
func TestMoreThanAWindowOfOneTenant(t *testing.T) {
	for _, order := range []Order{OrderByKey, Unordered} {
		testkit.RunBubble(t, order.String(), func(t *testing.T) { testMoreThanAWindow(t, order) })
	}
}

func testMoreThanAWindow(t *testing.T, order Order) {
	const window, all = 20, 2 + 2*20
	w := newResyncWorld(t, Config{MaxInFlight: window, Order: order})
	messages := testkit.Must(w.Subscribe(t.Context(), AllData))(t)
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
	arrive := func(ctx context.Context) {
		for i := range all {
			tenant := "bad"
			if i == 0 || i == all-1 {
				tenant = fmt.Sprint("good ", i)
			}
			w.arriveOf(ctx, i, tenant)
			synctest.Wait()
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	synctest.Wait()
	w.connect()
	arrive(ctx)
	left := w.Stats().Left
	time.Sleep(time.Second) // it is confirmed
	if got := w.client.confirmed.Load(); got != 2 || ctx.Err() != nil || left == 0 {
		t.Fatalf("%d of the others are confirmed, want 2; %d are left", got, left)
	}
	if got := w.reconnects(); len(got) != 0 {
		t.Errorf("reconnects are asked for after %v, although it hangs still", got)
	}
	end()
	time.Sleep(4 * time.Second)
	if got := w.reconnects(); len(got) != 1 {
		t.Fatalf("reconnects are asked for after %v, want 1", got)
	}
	w.connect()
	arrive(t.Context())
	time.Sleep(time.Second)
	if got := w.client.confirmed.Load(); got < all {
		t.Errorf("%d are confirmed, want %d", got, all)
	}
}
