package subscriber

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
)

// What is open is told by tenant and endpoint, and how long each route keeps the oldest: what one route has acked
// waits for the other one alone, and then for its confirmation.
func TestOpenByEndpointAndRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, Config{Order: Unordered})
		farm := testkit.Must(w.Subscribe(msgctx.WithSubscription(t.Context(), &msgctx.Subscription{Route: "farm"}), AllData))(t)
		copies := testkit.Must(w.Subscribe(msgctx.WithSubscription(t.Context(), &msgctx.Subscription{Route: "copy"}), AllData))(t)
		arrive := func(tenant string, n int) time.Time {
			w.intake(w.Context(), &gateway.MessageReceived{
				ID: fmt.Sprintf("%08d-2222-4333-8444-555555555555", n), AppMessageID: fmt.Sprint(n), ReceivingEndpointID: "E-" + strings.ToLower(tenant),
				TenantID: tenant, MessageType: "type", Payload: []byte("small"),
			}, 0)
			return time.Now()
		}
		want := func(what string, wanted ...Open) {
			t.Helper()
			synctest.Wait()
			if got := w.Open(); fmt.Sprint(got) != fmt.Sprint(wanted) {
				t.Errorf("%s:\ngot  %v\nwant %v", what, got, wanted)
			}
		}
		want("nothing")
		first := arrive("one", 1)
		synctest.Wait()
		time.Sleep(time.Minute)
		second := arrive("ONE", 2)
		other := arrive("Two", 3)
		one := Open{TenantID: "one", EndpointID: "E-one", InFlight: 2, Oldest: first, Routes: []OpenRoute{{"copy", 2, first}, {"farm", 2, first}}}
		two := Open{TenantID: "Two", EndpointID: "E-two", InFlight: 1, Oldest: other, Routes: []OpenRoute{{"copy", 1, other}, {"farm", 1, other}}}
		want("three messages", one, two)

		// One route is done with the first message of one tenant; the other one keeps it.
		w.next(farm).Ack()
		one.Routes = []OpenRoute{{"copy", 2, first}, {"farm", 1, second}}
		want("one is done with the first", one, two)

		w.next(copies).Ack()
		synctest.Wait()
		got := w.Open()
		if len(got) != 2 || got[0].InFlight != 1 || got[0].Pending != 1 || fmt.Sprint(got[0].Routes) != fmt.Sprint([]OpenRoute{{"copy", 1, second}, {"farm", 1, second}}) {
			t.Errorf("both are done with the first, which waits for its confirmation: %v", got)
		}
		w.next(farm).Ack()
		w.next(farm).Ack()
		for range 2 {
			switch msg := w.next(copies); msg.Metadata[gateway.KeyTenantID] {
			case "ONE":
				msg.Nack() // parked: it waits, and is open
			default:
				msg.Ack()
			}
		}
		synctest.Wait()
		for _, o := range w.Open() {
			if o.TenantID == "one" && (o.InFlight != 1 || len(o.Routes) != 1 || o.Routes[0] != OpenRoute{"copy", 1, second}) {
				t.Errorf("nacked: %+v", o)
			}
			if o.TenantID == "Two" && (o.InFlight != 0 || o.Pending != 1 || len(o.Routes) != 0) {
				t.Errorf("acked: %+v", o)
			}
		}
	})
}
