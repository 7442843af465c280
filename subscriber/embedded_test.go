package subscriber_test

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// A payload that cannot be had from its address is taken from the event when that comes again with it.
func TestPayloadThatComesAgainInItsEvent(t *testing.T) {
	hangs := func(_ http.ResponseWriter, r *http.Request, _ offlinePayload) { <-r.Context().Done() }
	expired := func(w http.ResponseWriter, _ *http.Request, _ offlinePayload) { w.WriteHeader(http.StatusNotFound) }
	for name, test := range map[string]struct {
		mode   subscriber.PayloadMode
		answer func(http.ResponseWriter, *http.Request, offlinePayload)
	}{
		"hangs":         {subscriber.PayloadInline, hangs},
		"expired":       {subscriber.PayloadInline, expired},
		"expired, lazy": {subscriber.PayloadLazy, expired},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			g := newOfflineGateway(t, test.answer)
			_, messages := g.subscribe(subscriber.Config{Payload: subscriber.PayloadConfig{Mode: test.mode}})
			id, began, got := offlineID(offlineMessageID, 1), time.Now(), ""
			var took time.Duration
			go func() { // ends with the subscription
				for msg := range messages {
					if r, _, err := subscriber.OpenPayload(msg); err != nil {
						msg.Nack()
					} else if data, err := io.ReadAll(r); err == nil {
						got, took = got+string(data), time.Since(began)
						msg.Ack()
					}
				}
			}()
			g.add(offlineEvent{messages: []string{id}, confirmed: map[string]bool{}, write: func(stream int) string {
				event := map[string]any{
					"event_type": gateway.EventMessageReceived, "id": id, "app_message_id": "a", "message_type": typeJSON, "sent_at": "2026-01-01T00:00:00Z",
					"receiving_endpoint_id": offlineID(offlineEndpointID, 1), "tenant_id": offlineID(offlineTenantID, 0),
				}
				if stream == 1 {
					return offlineText(event, nil, 1, stream)
				}
				return offlineText(event, []byte("embedded"), 1, stream)
			}})
			time.Sleep(11 * time.Second)
			select {
			case g.cut <- struct{}{}: // unless its payload was asked for again
			default:
			}
			time.Sleep(20 * time.Minute)
			synctest.Wait()
			if got != "embedded" || took > 12*time.Second || g.unconfirmed() != 0 {
				t.Errorf("got %q after %v, %d unconfirmed, want the payload of the event", got, took, g.unconfirmed())
			}
		})
	}
}
