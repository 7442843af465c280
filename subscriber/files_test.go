package subscriber_test

import (
	"bytes"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

const chunkSize = 50_000

func fileFixture(t *testing.T, cfg gatewaytest.Config) (*fixture, subscriber.Config) {
	t.Helper()
	cfg.ChunkSize = chunkSize
	f := newFixture(t, cfg)
	c := f.config()
	c.Files = []string{typeFile}
	c.ChunkSize = chunkSize
	return f, c
}

func (f *fixture) wantFile(msg *message.Message, payload []byte, chunks int, contextID string) {
	f.Helper()
	if !bytes.Equal(msg.Payload, payload) {
		f.Errorf("the file has %d bytes that are not what was sent", len(msg.Payload))
	}
	if got := msg.Metadata.Get(gateway.KeyEventType); got != "FILE_RECEIVED" {
		f.Errorf("event type = %s", got)
	}
	if got := strings.Count(msg.Metadata.Get(gateway.KeyMessageIDs), ",") + 1; got != chunks {
		f.Errorf("%d message IDs, want %d", got, chunks)
	}
	if got := msg.Metadata.Get(gateway.KeyContextID); got != contextID {
		f.Errorf("context ID = %q, want %q", got, contextID)
	}
}

const contextID = "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1c001"

func (f *fixture) sendFile(payload []byte, contextID string) []string {
	f.Helper()
	return f.sendRequest(gatewaytest.SendRequest{
		From: f.sender.ID, MessageType: typeFile, Payload: payload, ContextID: contextID, Filename: "TASKDATA.ZIP",
	})
}

func TestFileIsDeliveredOnceAndConfirmsItsChunks(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]gatewaytest.FileOrder{
		"chunks first": gatewaytest.FileLast, "file first": gatewaytest.FileFirst, "file between": gatewaytest.FileBetween,
	} {
		t.Run(name, func(t *testing.T) {
			f, cfg := fileFixture(t, gatewaytest.Config{FileOrder: order})
			sub, messages := f.receive(cfg)
			payload := random(4*chunkSize + 1)
			f.sendFile(payload, contextID)
			msg := f.next(messages)
			want := contextID
			if order == gatewaytest.FileFirst {
				want = "" // the file itself does not tell it
			}
			f.wantFile(msg, payload, 5, want)
			f.nothing(messages)
			if f.confirmed() != 0 {
				t.Error("a chunk was confirmed before the file was acked")
			}
			msg.Ack()
			f.waitConfirmed(5)
			if n := sub.Stats().InFiles; n != 5 {
				t.Errorf("%d messages were confirmed with their file, want 5", n)
			}
			testkit.Eventually(f, "nothing is held", func() bool { return sub.Stats().HeldNow == 0 })
			// Everything comes again: the file and its chunks are confirmed again.
			f.server.RedeliverUnconfirmed()
			f.server.CutStreams()
			f.nothing(messages)
		})
	}
}

func TestChunkWithoutItsFileIsDeliveredAfterTheHold(t *testing.T) {
	t.Parallel()
	f, cfg := fileFixture(t, gatewaytest.Config{})
	cfg.FileHold = 300 * time.Millisecond
	cfg.WholeFileHold = 50 * time.Millisecond
	sub, messages := f.receive(cfg)
	// Small and alone: on the shorter hold.
	start := time.Now()
	f.sendFile([]byte("small"), "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1c003")
	msg := f.next(messages)
	if string(msg.Payload) != "small" || msg.Metadata.Get(gateway.KeyEventType) != "MESSAGE_RECEIVED" {
		t.Fatalf("got %q as %s", msg.Payload, msg.Metadata.Get(gateway.KeyEventType))
	}
	if held := time.Since(start); held < 40*time.Millisecond {
		t.Errorf("delivered after %v, want the hold of 50 ms", held)
	}
	msg.Ack()
	f.waitConfirmed(1)
	// A message that may be a chunk waits for the whole hold.
	start = time.Now()
	f.server.EmitRaw(f.server.Application(), []byte(`event: MESSAGE_RECEIVED
data: {"event_type":"MESSAGE_RECEIVED","id":"6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a001","app_message_id":"a","message_type":"`+typeFile+`","sent_at":"2026-01-01T00:00:00Z","payload":"eA==","receiving_endpoint_id":"`+f.receiver.ID+`","tenant_id":"`+f.server.Tenant()+`"}

event: MESSAGE_RECEIVED
data: {"event_type":"MESSAGE_RECEIVED","id":"6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a002","app_message_id":"a","message_type":"`+typeFile+`","sent_at":"2026-01-01T00:00:00Z","payload":"eA==","receiving_endpoint_id":"`+f.receiver.ID+`","tenant_id":"`+f.server.Tenant()+`"}

`))
	f.ackN(messages, 2)
	if held := time.Since(start); held < 250*time.Millisecond {
		t.Errorf("two messages of one context ID were delivered after %v, want the hold of 300 ms", held)
	}
	testkit.Eventually(f, "confirmed", func() bool { return sub.Stats().Confirmed == 3 })
}

func TestHoldIsBoundedAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxHeld, parts, whole = 2, 20, 30
		f := &fixture{T: t}
		payload := random(parts * chunkSize)
		g := newOfflineGateway(t, func(w http.ResponseWriter, _ *http.Request, _ offlinePayload) { _, _ = w.Write(payload) })
		sub, messages := g.subscribe(subscriber.Config{Files: []string{typeFile}, ChunkSize: chunkSize, MaxHeld: maxHeld, MaxInFlight: 4})
		// More chunks than may be held or open: the file still comes through.
		var ids []int
		for i := range parts {
			ids = append(ids, i)
			g.message(i, 1, 1, typeFile, payload[i*chunkSize:(i+1)*chunkSize])
		}
		g.file(parts, 1, typeFile, len(payload), ids...)
		msg := f.next(messages)
		if got := msg.Metadata.Get(gateway.KeyEventType); got != string(gateway.EventFileReceived) || !bytes.Equal(msg.Payload, payload) {
			t.Errorf("a %s of %d bytes came", got, len(msg.Payload))
		}
		msg.Ack()
		time.Sleep(time.Minute)
		if n := g.unconfirmed(); n != 0 {
			t.Errorf("%d of %d chunks are not confirmed", n, parts)
		}
		// More whole messages than may be held: all are delivered, in the end.
		for i := range whole {
			g.message(100+i, i, 100+i, typeFile, []byte{byte(i)})
		}
		seen := map[byte]bool{}
		for began := time.Now(); len(seen) < whole && time.Since(began) < time.Hour; {
			select {
			case msg := <-messages:
				seen[msg.Payload[0]] = true
				msg.Ack()
			case <-time.After(100 * time.Millisecond):
			}
			if n := sub.Stats().HeldNow; n > maxHeld {
				t.Fatalf("%d are held, want at most %d", n, maxHeld)
			}
		}
		time.Sleep(time.Minute)
		if n := g.unconfirmed(); len(seen) != whole || n != 0 {
			t.Errorf("%d of %d came, and %d are not confirmed", len(seen), whole, n)
		}
	})
}

func TestSmallFileThatComesAlone(t *testing.T) {
	t.Parallel()
	f, cfg := fileFixture(t, gatewaytest.Config{FileTypes: []string{typeFile}})
	messages := f.subscribe(f.subscriber(cfg), typeFile)
	f.sendFile([]byte("small"), contextID)
	first := f.next(messages)
	first.Nack()
	msg := f.next(messages)
	f.wantFile(msg, []byte("small"), 1, "")
	if uuid.Validate(msg.UUID) != nil || msg.UUID != first.UUID {
		t.Errorf("UUID %q, and %q with the redelivery", first.UUID, msg.UUID)
	}
	msg.Ack()
	f.waitConfirmed(1)
}

func TestFileWithoutMessagesIsDelivered(t *testing.T) {
	t.Parallel()
	f, cfg := fileFixture(t, gatewaytest.Config{})
	sub, messages := f.receive(cfg)
	testkit.Eventually(f, "connected", func() bool { return f.server.Streams() == 1 })
	event := []byte(`event: FILE_RECEIVED
data: {"event_type":"FILE_RECEIVED","receiving_endpoint_id":"` + f.receiver.ID + `","message_type":"` + typeFile + `","size":1,"message_ids":[],"payload":"eA=="}

`)
	f.server.EmitRaw(f.server.Application(), append(event, event...))
	// They cannot be told apart, so both are delivered; there is nothing to confirm. What tells copies by the UUID keeps both.
	first := f.next(messages)
	first.Nack()
	if got := f.ackN(messages, 2); got[0].UUID != first.UUID || got[1].UUID == first.UUID {
		t.Errorf("the UUIDs are %s, %s with the redelivery, and %s", first.UUID, got[0].UUID, got[1].UUID)
	}
	testkit.Eventually(f, "closed", func() bool { return sub.Stats().InFlight == 0 })
	if stats := sub.Stats(); stats.PendingConfirmations != 0 || stats.Rejected != 0 {
		t.Errorf("stats = %+v", stats)
	}
}

// While intake waits for room, the file of what is held may be the next event on the stream.
func TestHoldStopsWhileIntakeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parts = 10
		f := &fixture{T: t}
		g := newOfflineGateway(t, nil)
		sub, messages := g.subscribe(subscriber.Config{Files: []string{typeFile}, MaxInFlight: 1, FileHold: time.Minute})
		for round := range 8 { // what wins the race for room must not matter
			first := round * 100
			g.message(first, 1, first, typeJSON, []byte("slow"))
			slow := f.next(messages)
			received := sub.Stats().Received
			var ids []int
			for i := range parts {
				ids = append(ids, first+1+i)
				g.message(first+1+i, 2, first+1, typeFile, []byte("part"))
			}
			g.fileOf(first+1+parts, 2, typeFile, []byte("file"), ids...)
			testkit.Eventually(t, "the file waits for room", func() bool { return sub.Stats().Received == received+parts+1 })
			time.Sleep(90 * time.Second)
			slow.Ack()
			file := f.next(messages)
			if got := file.Metadata.Get(gateway.KeyEventType); got != string(gateway.EventFileReceived) {
				t.Errorf("a %s came", got)
			}
			file.Ack()
			testkit.Eventually(t, "all is confirmed", func() bool { return g.unconfirmed() == 0 && sub.Stats().InFlight == 0 })
		}
	})
}

// A stream whose head does not come is not read: no confirmation is sent that waits for a file, which would never come then.
func TestConfirmationsWaitForAFileWhileTheHeadIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: t}
		g := newOfflineGateway(t, nil)
		var hangs atomic.Bool
		g.opens = func(r *http.Request) bool {
			if !hangs.Load() {
				return true
			}
			select {
			case <-time.After(time.Minute): // an intermediary gives up
			case <-r.Context().Done():
			}
			return false
		}
		_, messages := g.subscribe(subscriber.Config{ChunkSize: chunkSize})
		g.message(1, 1, 1, typeJSON, random(chunkSize))
		f.next(messages).Ack()
		hangs.Store(true)
		g.cut <- struct{}{}
		time.Sleep(10 * time.Minute)
		if n := g.unconfirmed(); n != 1 {
			t.Errorf("%d messages are unconfirmed, want that of the chunk", n)
		}
		g.fileOf(2, 1, typeJSON, random(chunkSize+1), 1)
		hangs.Store(false)
		file := f.next(messages)
		if got := file.Metadata.Get(gateway.KeyEventType); got != string(gateway.EventFileReceived) {
			t.Errorf("a %s came", got)
		}
		file.Ack()
		testkit.Eventually(t, "all is confirmed", func() bool { return g.unconfirmed() == 0 })
	})
}

// A file that lists a message twice is confirmed, or stored in the quarantine and then confirmed, like any other.
func TestFileThatListsAMessageTwice(t *testing.T) {
	for name, refused := range map[string]bool{"acked": false, "refused by all": true} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			f := &fixture{T: t}
			g := newOfflineGateway(t, nil)
			store := &shelf{}
			sub, messages := g.subscribe(subscriber.Config{
				Unmatched: subscriber.UnmatchedQuarantine, Quarantine: subscriber.QuarantineConfig{Publisher: store},
			})
			g.fileOf(3, 1, typeFile, []byte("file"), 1, 1)
			msg := f.next(messages)
			if refused && !subscriber.Refuse(msg) {
				t.Error("it cannot be refused")
			}
			msg.Ack()
			time.Sleep(time.Minute)
			if stored := len(store.all()); (stored == 1) != refused || stored > 1 || sub.Stats().Confirmed != 1 {
				t.Errorf("%d in the quarantine, %d confirmed, want 1", stored, sub.Stats().Confirmed)
			}
		})
	}
}
