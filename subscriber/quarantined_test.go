package subscriber

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// newQuarantineWorld has a subscription and a connection.
func newQuarantineWorld(t *testing.T, store message.Publisher, cfg Config) *resyncWorld {
	cfg.Quarantine.Publisher = store
	w := newResyncWorld(t, cfg)
	testkit.Must(w.Subscribe(t.Context(), AllData))(t)
	synctest.Wait()
	w.connect()
	return w
}

// breaks lets an event arrive that cannot be decoded.
func (w *resyncWorld) breaks(eventType gateway.EventType, id string) {
	raw := gateway.RawEvent{Type: eventType, Data: []byte(`{"event_type":"` + string(eventType) + `","id":"` + id + `","payload":"","tenant_id":"tenant","receiving_endpoint_id":"` + fileEndpoint + `"}`)}
	_, err := gateway.DecodeEvent(raw.Type, raw.Data)
	w.malformed(w.Context(), raw, err)
}

// A store that hangs, and is back when the notice is tried, gets the event itself as well.
func TestQuarantineIsBackWithTheNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tried := 0
		w := newQuarantineWorld(t, publisherFunc(func(messages ...*message.Message) error {
			if tried++; tried > 1+noticeAfter {
				return nil
			}
			<-messages[0].Context().Done()
			return messages[0].Context().Err()
		}), Config{})
		w.breaks(gateway.EventMessageReceived, filePart(1).ID)
		time.Sleep(time.Hour)
		if s := w.Stats(); s.SetAside != 0 || s.Quarantined != 1 || w.client.confirmed.Load() != 1 {
			t.Errorf("%d set aside, %d stored, %d confirmed; want 0, 1, 1", s.SetAside, s.Quarantined, w.client.confirmed.Load())
		}
	})
}

// An event that the service does not deliver again is not left with it, be it broken or not.
func TestBrokenEventThatComesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &unmatchedStore{}
		w := newQuarantineWorld(t, store, Config{MaxInFlight: 4})
		w.mu.Lock()
		w.recall()
		w.mu.Unlock()
		w.breaks(gateway.EventMessageReceived, filePart(1).ID) // comes again
		w.breaks(gateway.EventEndpointDeleted, "none")
		synctest.Wait()
		if got := store.all(); len(got) != 1 || got[0].Metadata[KeyQuarantineEventType] != string(gateway.EventEndpointDeleted) {
			t.Fatalf("%d are stored of what was read as the stream was ended, want the one that does not come again", len(got))
		}
		w.connect()
		store.failing(func(*message.Message) error { return errUnmatchedStore })
		go func() {
			for i := range 10 { // more than fit
				w.breaks(gateway.EventEndpointDeleted, string('0'+rune(i)))
			}
		}()
		time.Sleep(time.Minute)
		store.failing(nil)
		time.Sleep(time.Minute)
		if s := w.Stats(); len(store.all()) != 11 || s.Left != 0 {
			t.Errorf("%d are stored, %d left; want 11, 0", len(store.all()), s.Left)
		}
	})
}

// What has all of a message is confirmed once it is stored, however it says that the payload is nowhere else.
func TestWholeMessageIsConfirmedOnceItIsStored(t *testing.T) {
	for name, tt := range map[string]struct {
		mark, uri string
		bare      bool // without a payload
		want      int64
	}{
		"absent":                    {want: 1},
		"null":                      {uri: `,"payload_uri":null`, want: 1},
		"an empty text":             {uri: `,"payload_uri":""`, want: 1},
		"behind a byte order mark":  {mark: "\ufeff", want: 1},
		"elsewhere":                 {uri: `,"payload_uri":"https://payloads.example/1"`},
		"elsewhere, and not a text": {uri: `,"payload_uri":{}`},
		"nowhere":                   {bare: true},
		"nowhere, said twice":       {bare: true, uri: `,"payload":null,"payload_uri":null`},
		"under another name":        {bare: true, uri: `,"Payload_URI":"https://payloads.example/1"`},
		"elsewhere, then not":       {bare: true, uri: `,"payload_uri":"https://payloads.example/1","payload_uri":""`},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			w := newQuarantineWorld(t, &unmatchedStore{}, Config{})
			payload := `,"payload":"cGF5bG9hZA=="`
			if tt.bare {
				payload = ""
			}
			raw := gateway.RawEvent{Type: gateway.EventMessageReceived, Data: []byte(tt.mark + `{"event_type":"MESSAGE_RECEIVED","id":"` + filePart(1).ID +
				`","app_message_id":"a","message_type":"t","sent_at":"some time","tenant_id":"tenant","receiving_endpoint_id":"` + fileEndpoint + `"` + payload + tt.uri + `}`)}
			_, err := gateway.DecodeEvent(raw.Type, raw.Data)
			w.malformed(w.Context(), raw, err)
			time.Sleep(time.Hour)
			if got := w.client.confirmed.Load(); got != tt.want || w.Stats().Quarantined != 1 {
				t.Errorf("%d stored, %d confirmed; want 1 and %d", w.Stats().Quarantined, got, tt.want)
			}
		})
	}
}
