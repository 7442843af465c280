package subscriber_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// What an event that is odd costs, and where it goes. What its fields cost is in gateway.TestDecodeWhatIsLost.
func TestWhatAnOddEventCosts(t *testing.T) {
	id := offlineID(offlineMessageID, 1)
	data := func(fields string) string {
		return fmt.Sprintf(`{"event_type":"MESSAGE_RECEIVED","id":%q,"app_message_id":"a","message_type":%q,"sent_at":"2026-01-01T00:00:00Z","receiving_endpoint_id":%q%s}`,
			id, typeJSON, offlineID(offlineEndpointID, 1), fields)
	}
	tenant := fmt.Sprintf(`,"tenant_id":%q`, offlineID(offlineTenantID, 0))
	message := func(fields string) string { return "event: MESSAGE_RECEIVED\ndata: " + data(fields) + "\n\n" }
	file := func(fields string) string {
		return fmt.Sprintf("event: FILE_RECEIVED\ndata: {\"event_type\":\"FILE_RECEIVED\",\"message_type\":%q,\"receiving_endpoint_id\":%q,\"payload\":\"eA==\"%s}\n\n",
			typeFile, offlineID(offlineEndpointID, 1), fields)
	}
	for name, test := range map[string]struct {
		text      string
		payload   string // that is delivered; "-": nothing is
		confirmed bool
		aside     string // why the quarantine has it
		untaken   bool   // by who takes data
		counted   int64  // parts that are unreadable
	}{
		"unknown type":                {"event: NEW\ndata: {\"event_type\":\"NEW\",\"x\":1}\n\n", `{"event_type":"NEW","x":1}`, false, "", true, 0},
		"unknown type, no object":     {"event: NEW\ndata: [1]\n\n", `[1]`, false, "", true, 0},
		"unknown type, its name only": {"event: message_received\ndata: {}\n\n", `{}`, false, "", true, 0},
		"known type, unknown name":    {"event: NEW\ndata: " + data(tenant+`,"payload":"eA=="`) + "\n\n", "-", false, "event_type", false, 0}, // not known to be a message
		"no name":                     {"data: " + data(tenant+`,"payload":"eA=="`) + "\n\n", "x", true, "", false, 0},
		"no name, no type":            {"data: {\"x\":1}\n\n", "-", false, "event_type", false, 0},
		"no object":                   {"event: MESSAGE_RECEIVED\ndata: 7\n\n", "-", false, "data", false, 0},
		"cut off":                     {"event: MESSAGE_RECEIVED\ndata: " + data(tenant)[:100] + "\n\n", "-", false, "data", false, 0},
		"absent tenant":               {message(`,"payload":"eA=="`), "x", true, "", false, 0},
		"null tenant":                 {message(`,"tenant_id":null,"payload":"eA=="`), "x", true, "", false, 0},
		"unreadable tenant":           {message(`,"tenant_id":[],"payload":"eA=="`), "x", true, "", false, 1},
		"tenant that is a number":     {message(`,"tenant_id":7,"payload":"eA=="`), "x", true, "", false, 0},
		"tenant that is no UUID":      {message(`,"tenant_id":"farm","payload":"eA=="`), "x", true, "", false, 0},
		"all optional unreadable":     {message(`,"tenant_id":[],"received_at":{},"filename":{},"teamset_context_id":false,"payload":"eA=="`), "x", true, "", false, 4},
		"empty payload":               {message(tenant + `,"payload":""`), "", true, "", false, 0},
		"no payload":                  {message(tenant), "-", false, "payload", false, 0}, // nobody has it
		"null payload":                {message(tenant + `,"payload":null`), "-", false, "payload", false, 0},
		"unreadable payload":          {message(tenant + `,"payload":"*"`), "-", true, "payload", false, 0},
		"payload and its address":     {message(tenant + `,"payload":"eA==","payload_uri":"http://payloads.example/1"`), "-", false, "payload", false, 0}, // confirming would discard one
		"file without IDs":            {file(`,"size":1,"message_ids":null`), "-", false, "message_ids", false, 0},
		"file of another size":        {file(fmt.Sprintf(`,"size":7,"message_ids":[%q]`, id)), "-", false, "size is not the length of payload", false, 0},
		"twice":                       {message(tenant+`,"payload":"eA=="`) + message(tenant+`,"payload":"eA=="`), "x", true, "", false, 0},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			g := newOfflineGateway(t, func(w http.ResponseWriter, r *http.Request, _ offlinePayload) {
				t.Errorf("got a request for %s", r.URL)
			})
			store := &shelf{}
			sub, everything := g.subscribeTo(subscriber.Config{Quarantine: subscriber.QuarantineConfig{Publisher: store}}, subscriber.Everything)
			var got []string
			go func() { // ends with the subscription
				for msg := range everything {
					got = append(got, string(msg.Payload))
					msg.Ack()
				}
			}()
			g.raw(test.text, id)
			g.message(2, 1, 2, typeJSON, []byte("next"))
			time.Sleep(15 * time.Second)
			synctest.Wait()
			want := []string{test.payload, "next"}
			if test.payload == "-" {
				want = want[1:]
			}
			if slices.Sort(want); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
				t.Errorf("got %q, want %q", got, want)
			}
			if confirmed := g.events[0].confirmed[id]; confirmed != test.confirmed || !g.events[1].confirmed[offlineID(offlineMessageID, 2)] {
				t.Errorf("confirmed: %v, want %v; the next: %v", confirmed, test.confirmed, g.events[1].confirmed)
			}
			if stored := store.all(); len(stored) > 1 || (len(stored) == 1) != (test.aside != "") ||
				len(stored) == 1 && !strings.Contains(stored[0].Metadata.Get(subscriber.KeyQuarantineReason), test.aside) {
				t.Errorf("the quarantine has %+v, want one because of %q", stored, test.aside)
			}
			if stats := sub.Stats(); stats.Unreadable != test.counted || stats.Stream.Connects != 1 {
				t.Errorf("%d parts are unreadable, want %d; %d connects, want 1", stats.Unreadable, test.counted, stats.Stream.Connects)
			}
		})
	}
}

// What an answer to confirmations that is not the one of the specification costs: nothing is taken for confirmed that
// is not, nothing is dropped, and all is sent again until the service says so.
func TestWhatAnOddAnswerToConfirmationsCosts(t *testing.T) {
	for name, test := range map[string]struct {
		status    int
		kind      string
		body      string
		confirmed bool // the answer counts
	}{
		"202, empty":        {202, "", "", true},
		"202, text":         {202, "text/plain", "accepted", true},
		"202, unknown JSON": {202, "application/json", `{"accepted":1,"unknown":["` + offlineID(offlineMessageID, 1) + `"]}`, true},
		"202, not JSON":     {202, "application/json", `{`, true},
		"202, page":         {202, "text/html", "<html>portal</html>", false},
		"200, empty":        {200, "", "", true},
		"200, JSON":         {200, "application/json", `{}`, true},
		"200, page":         {200, "text/html", "<html>portal</html>", false},
		"204":               {204, "", "", true},
		"207, partly":       {207, "application/json", `{"failed":1}`, false},
		"304":               {304, "", "", false},
		"302":               {302, "", "", false},
		"404, page":         {404, "text/html", "<html>not found</html>", false},
		"404, message":      {404, "application/json", `{"message":"unknown message"}`, false},
		"400, page":         {400, "text/html", "<html>bad request</html>", false},
		"400, empty":        {400, "", "", false},
		"403, empty":        {403, "", "", false},
		"409, message":      {409, "application/json", `{"message":"conflict"}`, false},
		"403, page":         {403, "text/html", "<html>forbidden</html>", false},
		"405, page":         {405, "text/html", "<html>not allowed</html>", false},
		"413, page":         {413, "text/html", "<html>too large</html>", false},
		"413, message":      {413, "application/json", `{"message":"too large"}`, false},
		"429, empty":        {429, "", "", false},
		"503, empty":        {503, "", "", false},
		"500, message":      {500, "application/json", `{"message":"no"}`, false},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			g := newOfflineGateway(t, nil)
			answered := 0
			g.answer = func(w http.ResponseWriter) bool {
				answered++
				if test.status >= 500 {
					w.Header().Set("Retry-After", "99999999")
				}
				if test.kind != "" {
					w.Header().Set("Content-Type", test.kind)
				}
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(test.body))
				return test.confirmed
			}
			sub, _ := g.ackAll(subscriber.Config{})
			for i := range 3 {
				g.message(i, 1, i, typeJSON, []byte("x"))
			}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			stats, want := sub.Stats(), int64(0)
			if test.confirmed {
				want = 3
			}
			if stats.Confirmed != want || stats.PendingConfirmations != int(3-want) || stats.Rejected != 0 {
				t.Errorf("%d are confirmed, %d pending, %d dropped; want %d confirmed, the others pending", stats.Confirmed, stats.PendingConfirmations, stats.Rejected, want)
			}
			if requests := 30; answered > requests || test.confirmed && answered != 1 {
				t.Errorf("%d requests in 20 s", answered)
			}
			g.mu.Lock()
			g.answer = nil
			g.mu.Unlock()
			time.Sleep(2 * time.Minute)
			if n := g.unconfirmed(); n != 0 || sub.Stats().Rejected != 0 {
				t.Errorf("%d are not confirmed once the service accepts them, %d are dropped", n, sub.Stats().Rejected)
			}
		})
	}
}

// What an answer of a payload host costs that is not the payload: it is not delivered in its place, and the payload
// is asked for again until it comes. Only the size of a file and the kind of the answer tell.
func TestWhatAnOddPayloadCosts(t *testing.T) {
	answer := func(status int, header, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			if name, value, some := strings.Cut(header, ": "); some {
				w.Header().Set(name, value)
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	const payload = "the payload"
	page := answer(200, "Content-Type: text/html; charset=utf-8", "<html>log in</html>")
	for name, test := range map[string]struct {
		file   bool // of a size that the event tells
		answer func(http.ResponseWriter)
		taken  bool // as the payload
	}{
		"page":                     {false, page, false},
		"page, for a file":         {true, page, false},
		"page of the file's size":  {true, answer(200, "Content-Type: text/html", payload), true},
		"empty, for a file":        {true, answer(200, "", ""), false},
		"no content, for a file":   {true, answer(204, "", ""), false},
		"empty":                    {false, answer(200, "", ""), true},
		"no content":               {false, answer(204, "", ""), false},
		"longer, for a file":       {true, answer(200, "", payload+"!"), false},
		"shorter, for a file":      {true, answer(200, "", payload[1:]), false},
		"cut off":                  {false, answer(200, "Content-Length: 12", payload), false},
		"cut off, for a file":      {true, answer(200, "Content-Length: 11", payload[1:]), false},
		"encoded":                  {false, answer(200, "Content-Encoding: gzip", payload), false},
		"encoded, for a file":      {true, answer(200, "Content-Encoding: br", payload), false},
		"unknown encoding":         {false, answer(200, "Content-Encoding: new", payload), false},
		"no encoding":              {false, answer(200, "Content-Encoding: identity", payload), true},
		"a part that nobody wants": {false, answer(206, "Content-Range: bytes 0-10/20", payload), false},
		"accepted, not there yet":  {false, answer(202, "", payload), false},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			var odd atomic.Bool
			odd.Store(true)
			g := newOfflineGateway(t, func(w http.ResponseWriter, _ *http.Request, p offlinePayload) {
				if odd.Load() && p.of == "1" {
					test.answer(w)
					return
				}
				w.Header().Set("Content-Type", "application/octet-stream")
				_, _ = w.Write([]byte(payload))
			})
			sub, messages := g.subscribe(subscriber.Config{})
			var got []string
			go func() { // ends with the subscription
				for msg := range messages {
					got = append(got, string(msg.Payload))
					msg.Ack()
				}
			}()
			if test.file {
				g.file(1, 1, typeFile, len(payload), 1)
			} else {
				g.message(1, 1, 1, typeJSON, nil)
			}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			if n := len(got); (n == 1) != test.taken || n == 0 && g.unconfirmed() != 1 {
				t.Errorf("got %q, %d unconfirmed, want the answer taken: %v", got, g.unconfirmed(), test.taken)
			}
			odd.Store(false)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if g.unconfirmed() != 0 || len(got) != 1 || !test.taken && got[0] != payload {
				t.Errorf("got %q, %d unconfirmed, once the host serves the payload", got, g.unconfirmed())
			}
			requests := 0
			for _, n := range g.requests {
				requests += n
			}
			if requests > 20 || sub.Stats().SetAside != 0 {
				t.Errorf("%d requests, %d are set aside", requests, sub.Stats().SetAside)
			}
		})
	}
}
