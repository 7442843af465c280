//go:build faults

package faulttest

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/streamproxy"
	"github.com/agrimill/agrimill/subscriber"
)

// between sends messages and, between them, the raw bytes of each text, on one
// stream that stays open.
func (w *world) between(p *pipeline, texts []string) {
	w.Helper()
	testkit.NoError(w, w.gateway.WaitStreams(w.Context(), 1))
	for i, text := range texts {
		w.send(messages*(i+1)/len(texts) - messages*i/len(texts))
		if n := w.gateway.EmitRaw(w.gateway.Application(), []byte(text)); n != 1 {
			w.Fatalf("%d streams are open", n)
		}
	}
	w.send(1)
	w.waitConfirmed()
	if got := p.sub.Stats().Stream.Connects; got != 1 {
		w.Errorf("the stream was opened %d times", got)
	}
}

// undisturbed keeps a busy machine from being taken for a silent stream or a dead connection: what is
// emitted while the stream is reconnected does not come again.
func undisturbed(p *parts) {
	p.Gateway.StreamIdleTimeout, p.Gateway.PingInterval = testkit.Patience, gateway.Off
}

// roomy is undisturbed with room for all that between sends: of a window that is full something is left on a busy machine, and
// the stream is opened again for it.
func roomy(p *parts) {
	undisturbed(p)
	p.Subscriber.MaxInFlight = 3 * messages
}

// Events that are broken in every way. Each is reported and put into the
// quarantine; the stream continues.
func TestRow24MalformedEvents(t *testing.T) {
	protocols(t, worldConfig{}, func(t *testing.T, w *world) {
		const id, endpoint = "11111111-2222-4333-8444-555555555555", "66666666-7777-4888-8999-aaaaaaaaaaaa"
		fields := func(rest string) string {
			return `{"event_type":"MESSAGE_RECEIVED","id":"` + id + `","app_message_id":"x","message_type":"app:test:json",` +
				`"sent_at":"2026-01-01T00:00:00Z","receiving_endpoint_id":"` + endpoint + `"` + rest + `}`
		}
		data := []string{
			``, `{`, `}`, `null`, `[]`, `"text"`, `0`, `{}`, "\x00", `{"event_type":7}`, `{"event_type":"MESSAGE_RECEIVED"}`,
			fields(``), // neither payload nor address
			fields(`,"payload":"AAAA","payload_uri":"http://127.0.0.1:1/x"`),
			fields(`,"payload":"***"`), fields(`,"payload":17`), fields(`,"payload_uri":"::"`), fields(`,"payload":"AAAA"`)[:80],
			strings.Replace(fields(`,"payload":"AAAA"`), `"`+id+`"`, `12`, 1),
			strings.Replace(fields(`,"payload":"AAAA"`), `"id":"`+id+`",`, ``, 1),
			strings.Replace(fields(`,"payload":"AAAA"`), `2026-01-01T00:00:00Z`, `yesterday`, 1),
			strings.Repeat(`{"a":`, 20_000) + strings.Repeat(`}`, 20_000),
			strings.Repeat(`[`, 100_000),
		}
		p := w.start(roomy)
		var texts []string
		for _, d := range data {
			texts = append(texts, "event: MESSAGE_RECEIVED\ndata: "+d+"\n\n")
		}
		w.between(p, texts)
		w.between(p, texts) // the same once more: they are known by then
		testkit.Eventually(w, "all are in the quarantine", func() bool { return p.sub.Stats().QuarantineWaiting == 0 })
		// Some have IDs, of messages that the gateway does not know.
		w.judge(expectation{quarantined: len(data), unknown: true})
		if got := p.sub.Stats().Malformed; got != int64(2*len(data)) || p.health().Poisoned != 0 {
			t.Errorf("%d of %d malformed events were reported, %d poisoned", got, 2*len(data), p.health().Poisoned)
		}
	})
}

// breaking is a proxy that breaks the events of files that are called "break …", each
// in its own way, until sound. It speaks HTTP/1.1.
func (w *world) breaking(sound *atomic.Bool) (baseURL string) {
	w.Helper()
	ways := [][2]string{
		{`"sent_at":"2`, `"sent_at":"about 2`}, {`"sent_at":"`, `"sent_at":1,"x":"`}, {`"app_message_id"`, `"app_message"`},
		{`{"event_type":"MESSAGE`, `{"event_type":"MASSAGE`}, {`"message_type":`, `"message_type":[],"x":`},
	}
	return streamproxy.Start(w, w.gateway.BaseURL(), func(event []byte) []byte {
		if sound.Load() || !bytes.Contains(event, []byte(`"filename":"break `)) {
			return event
		}
		_, number, _ := bytes.Cut(event, []byte(`"filename":"break `))
		way := ways[int(number[0]-'0')%len(ways)]
		return bytes.Replace(event, []byte(way[0]), []byte(way[1]), 1)
	})
}

// The process is killed while it puts events into the quarantine. The next one
// does not know what is there already.
func TestRow24KilledInTheQuarantine(t *testing.T) { inWorld(t, worldConfig{}, killedInTheQuarantine) }

func killedInTheQuarantine(t *testing.T, w *world) {
	o := order{BaseURL: w.breaking(&atomic.Bool{}), InFlight: 50}
	quarantined := 0
	for _, at := range []point{pointQuarantine, pointQuarantined, pointConfirm} {
		for i := range messages / 4 {
			if i%5 != 2 {
				w.send(1)
				continue
			}
			quarantined++
			w.sendRequest(gatewaytest.SendRequest{MessageType: messageType, Payload: w.bytes(30), Filename: fmt.Sprint("break ", i%7)})
		}
		o.Point, o.After = at, 1+w.rng.Int64N(20)
		if at == pointConfirm {
			o.After = 1
		}
		if code := w.waitChild(w.startChild(o)); code != -1 {
			t.Errorf("%s: the child ended with code %d, want it killed", at, code)
		}
	}
	w.lastChild(o, w.waitConfirmed)
	w.judge(expectation{quarantined: quarantined})
}

// Events of real messages break on their way. They are in the quarantine before
// they are confirmed, also when it was down for a while. What the quarantine
// cannot have, because the payload is elsewhere, is not confirmed until it comes
// sound.
func TestRow24BrokenOnTheWay(t *testing.T) {
	both(t, worldConfig{protocol: http1, gateway: gatewaytest.Config{InlineLimit: 1000}}, func(t *testing.T, w *world) {
		var sound atomic.Bool
		proxy := w.breaking(&sound)
		p := w.start(func(p *parts) {
			p.Gateway.BaseURL = proxy
		})
		testkit.NoError(t, w.gateway.WaitStreams(t.Context(), 1))
		broken, elsewhere := 0, 0
		for i := range messages {
			switch {
			case i%40 == 7:
				elsewhere++
				w.sendRequest(gatewaytest.SendRequest{MessageType: messageType, Payload: w.bytes(1500), Filename: fmt.Sprint("break ", i%10)})
			case i%5 == 2:
				broken++
				w.sendRequest(gatewaytest.SendRequest{MessageType: messageType, Payload: w.bytes(30), Filename: fmt.Sprint("break ", i%7)})
			default:
				w.send(1)
			}
			switch i {
			case messages / 4, messages / 2:
				w.gateway.CutStreams()
			case messages / 3:
				w.broker.hang()
			}
		}
		w.pause(time.Second)
		w.broker.resume()
		w.waitConfirmedSome(messages - elsewhere)
		testkit.Eventually(w, "all are in the quarantine", func() bool { return p.sub.Stats().Quarantined >= int64(broken+elsewhere) })
		if n := w.confirmed(); n != messages-elsewhere {
			t.Errorf("%d messages are confirmed, want all but the %d whose payload is elsewhere", n, elsewhere)
		}
		sound.Store(true)
		w.gateway.CutStreams()
		v := w.settle(expectation{quarantined: broken + elsewhere})
		t.Logf("%d in the quarantine, %+v", v.quarantined, p.sub.Stats())
	})
}

// Event types and fields that nobody knows, and a name that is not that of the
// data.
func TestRow25UnknownEvents(t *testing.T) {
	protocols(t, worldConfig{}, func(t *testing.T, w *world) {
		p := w.start(roomy)
		w.between(p, []string{
			"event: HARVEST_DONE\ndata: {\"event_type\":\"HARVEST_DONE\",\"id\":1}\n\n",
			"data: {\"event_type\":\"HARVEST_DONE\"}\n\n",
			"event: ENDPOINTS_LIST_CHANGED\ndata: {\"event_type\":\"ENDPOINTS_LIST_CHANGED\",\"tenant_id\":\"" + w.gateway.Tenant() + "\",\"new\":{\"a\":[1,2]}}\n\n",
			"event: MESSAGE_RECEIVED\ndata: {\"event_type\":\"FILE_RECEIVED\"}\n\n",
			"event: \ndata: x\n\n", "event: message\ndata: x\n\n", "data\n\n",
			"event: ENDPOINT_DELETED\ndata: {\"event_type\":\"ENDPOINT_DELETED\",\"id\":\"" + w.receivers[0].ID + "x\"}\n\n",
		})
		// Three are unknown events. The others are no objects, or not what their name says.
		testkit.Eventually(w, "the others are in the quarantine", func() bool { return p.sub.Stats().Quarantined == 5 })
		w.judge(expectation{quarantined: 5})
	})
}

// Embedded payloads of every size up to the cap, and lines without an end.
func TestRow26HugeEvents(t *testing.T) {
	const largest = 11 << 20 // its base64 is just below the client's cap of 16 MiB
	cfg := worldConfig{
		heap:    1 << 30, // gateway, broker and reader hold the payloads as well
		gateway: gatewaytest.Config{InlineLimit: 64 << 20, ChunkSize: 64 << 20},
		nats:    func(o *server.Options) { o.MaxPayload, o.MaxPending = 32<<20, 128<<20 },
	}
	protocols(t, cfg, func(t *testing.T, w *world) {
		p := w.start(func(p *parts) {
			// This row is not about silence, and a slow machine needs its time for hundreds of megabytes.
			undisturbed(p)
			p.Gateway.RequestTimeout = testkit.Patience
			p.NATS.PublishTimeout = testkit.Patience
		})
		testkit.NoError(t, w.gateway.WaitStreams(t.Context(), 1))
		var tooLarge int64
		sizes := []int{1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1<<20 - 1, 1 << 20, 5 << 20, largest}
		if w.http2 {
			sizes = []int{1, 64 << 10, 1<<20 - 1, largest} // TLS with the race detector takes its time
		}
		for _, size := range sizes {
			w.send(messages / len(sizes))
			w.sendPayload(messageType, fill(w, size))
			if size < 1<<20 {
				continue
			}
			for _, text := range []string{"data: ", ": a comment ", "event: ", "nothing that is known: "} {
				w.gateway.EmitRaw(w.gateway.Application(), []byte(text+strings.Repeat("x", 17<<20)+"\n\n"))
				if text == "data: " || text == "event: " {
					tooLarge++
				}
			}
		}
		// One that is real, and is left with the gateway.
		w.sendPayload(messageType, fill(w, largest+2<<20))
		w.send(1)
		tooLarge++
		total := len(w.gateway.Ledger())
		w.waitConfirmedSome(total - 1)
		// Of those that were made up, the ones with data look the same, and so do those with a name.
		testkit.Eventually(w, "all three are noticed", func() bool { return p.sub.Stats().Quarantined >= 3 })
		large := w.gateway.Ledger()[total-2]
		w.judge(expectation{quarantined: 3, open: func(e gatewaytest.LedgerEntry) bool { return e.MessageID == large.MessageID }})
		s := p.sub.Stats()
		if s.Stream.Connects != 1 || s.TooLarge != tooLarge {
			t.Errorf("%d connects, %d events were too large; want one and %d", s.Stream.Connects, s.TooLarge, tooLarge)
		}
	})
}

// The grammar of event streams between the service's own events, and a proxy
// that hands on single bytes. The vectors are in package sse.
func TestRow27Grammar(t *testing.T) {
	t.Parallel()
	t.Run("line endings", func(t *testing.T) {
		protocols(t, worldConfig{}, func(t *testing.T, w *world) {
			p := w.start(roomy)
			w.between(p, []string{
				"event: NEW\rdata: 1\r\r", "event: NEW\r\ndata: 1\r\n\r\n", "event: NEW\ndata: 1\ndata: 2\ndata\ndata:\n\n",
				":\n\n\n\n", ": comment\r\r\n\n", "\r\n\r\n\r\r\n\n", "retry: 5\n\n", "retry: x\n\n", "id: 7\n\n", "id: a\x00b\n\n",
				"\xef\xbb\xbfevent: NEW\ndata: 1\n\n", "event:NEW\ndata:1\n\n", "event: NEW\nunknown: x\ndata: 1\n\n", "event: NEW\n\n",
			})
			// All have names that are unknown, but for the one behind the byte order mark.
			testkit.Eventually(w, "that one is in the quarantine", func() bool { return p.sub.Stats().Quarantined == 1 })
			w.judge(expectation{quarantined: 1})
		})
	})
	t.Run("bytewise", func(t *testing.T) {
		protocols(t, worldConfig{}, func(t *testing.T, w *world) {
			scheme, address, _ := strings.Cut(w.gateway.BaseURL(), "://")
			proxy := w.toxiproxy(address)
			proxy.add(`{"name":"bytes","type":"slicer","attributes":{"average_size":1,"size_variation":0,"delay":0}}`)
			w.start(func(p *parts) {
				undisturbed(p)
				p.Gateway.BaseURL = scheme + "://" + proxy.address()
			})
			w.send(messages / 10)
			w.settle(expectation{})
		})
	})
}

// Fields that would be headers, subjects or paths, if they were let.
func TestRow28Injection(t *testing.T) {
	values := []string{
		"a\r\nNats-Msg-Id: x", "a\nb", "a\rb", "a\x00b", "a: b", ": ", "=?utf-8?B?YQ==?=", " padded ", "\ttab", "größe-麦.zip", "💾",
		"*", ">", "a.b.>", "..", "../../etc/passwd", "a/b\\c", strings.Repeat("long ", 2000), "%s%d%n", "$JS.API.STREAM.DELETE.AGRIMILL",
		"\u202e\u0000\u0001\u007f", "-", "_", "{type}", "agrimill-key-Nats-Msg-Id", "\u2028", "\"quoted\"", "'; --",
	}
	both(t, worldConfig{}, func(t *testing.T, w *world) {
		p := w.start(func(p *parts) {
			if w.kind != kindKafka {
				p.Route.ToTopic = "{tenant}.{type}.{receiver}.{filename|none}"
			}
			p.Subscriber.Order = subscriber.Unordered
		})
		poisoned := 0
		for i := range messages / 2 {
			name, team := values[i%len(values)], values[(i*7+3)%len(values)]
			if w.kind != kindKafka && len(name) > 4096 {
				poisoned++ // there is no subject that long
			}
			context := fmt.Sprintf("%d %s", i, values[(i*11+5)%len(values)])
			w.sendRequest(gatewaytest.SendRequest{
				MessageType: messageType, Payload: w.bytes(30), Filename: name, TeamsetContextID: team, ContextID: context,
			})
		}
		w.settle(expectation{poisoned: poisoned})
		for _, e := range w.gateway.Ledger() {
			for _, r := range w.oracle.archive.find(identity{e.EndpointID, e.MessageID}) {
				got := [3]string{r.metadata[gateway.KeyFilename], r.metadata[gateway.KeyTeamsetContextID], r.metadata[gateway.KeyContextID]}
				if want := [3]string{e.Filename, e.TeamsetContextID, e.ContextID}; got != want {
					t.Errorf("stored with %q, sent with %q", got, want)
				}
			}
		}
		if h := p.health(); h.Poisoned != uint64(poisoned) {
			t.Errorf("%d poisoned, want %d: %s", h.Poisoned, poisoned, h.LastError)
		}
	})
}
