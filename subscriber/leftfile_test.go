package subscriber

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
)

const fileEndpoint = "66666666-7777-4888-8999-aaaaaaaaaaaa"

func filePart(i byte) *gateway.MessageReceived {
	return &gateway.MessageReceived{
		ID: "0000000" + string('0'+i) + "-2222-4333-8444-555555555555", AppMessageID: "payload", ReceivingEndpointID: fileEndpoint,
		TenantID: "tenant", MessageType: "type", Payload: []byte("as large as a chunk"),
	}
}

func fileOf(parts ...byte) *gateway.FileReceived {
	e := &gateway.FileReceived{ReceivingEndpointID: fileEndpoint, TenantID: "tenant", MessageType: "type", Payload: []byte("all of it")}
	for _, i := range parts {
		e.MessageIDs = append(e.MessageIDs, filePart(i).ID)
	}
	return e
}

// leaves makes sub leave what comes for the endpoint until the next connection.
func (w *resyncWorld) leaves(sub int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subscriptions[sub].shares.left.add(fileEndpoint)
}

// come lets events arrive.
func (w *resyncWorld) come(events ...gateway.Event) {
	for _, e := range events {
		w.intake(w.Context(), e, 0)
		synctest.Wait()
	}
}

// none waits for long, and nothing comes.
func (w *resyncWorld) none(messages <-chan *message.Message, after time.Duration) {
	w.Helper()
	select {
	case msg := <-messages:
		w.Fatalf("message %v came", msg.Metadata)
	case <-time.After(after):
	}
}

// The parts of a file that was left do not come alone, whether they arrive before or after it.
func TestPartsOfALeftFileDoNotComeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, Config{Files: []string{"type"}, ChunkSize: 10, FileHold: 10 * time.Second})
		messages, err := w.Subscribe(t.Context(), AllData)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.connect()
		w.come(filePart(1))
		w.leaves(0)
		w.come(fileOf(1, 2), filePart(2))
		w.mu.Lock()
		w.subscriptions[0].shares.left.clear() // what is left is not left because of its key
		w.mu.Unlock()
		w.none(messages, time.Hour)
		w.connect()
		w.come(filePart(1), filePart(2), fileOf(1, 2))
		msg := w.next(messages)
		if string(msg.Payload) != "all of it" {
			t.Errorf("%q came", msg.Payload)
		}
		msg.Ack()
		w.none(messages, time.Hour)
		if got := w.client.confirmed.Load(); got != 2 {
			t.Errorf("%d are confirmed, want 2", got)
		}
		// A part that comes when its file was left on an earlier connection waits as always.
		w.leaves(0)
		w.come(fileOf(3, 4))
		time.Sleep(time.Second)
		w.connect()
		w.come(filePart(3))
		if msg := w.next(messages); msg.Metadata[gateway.KeyMessageID] != filePart(3).ID {
			t.Errorf("%v came", msg.Metadata)
		} else {
			msg.Ack()
		}
	})
}

// Who has acked the parts of a file gets no copies of them when the file is left for another
// subscription, and they are confirmed with the file.
func TestAckedPartsOfALeftFileDoNotComeAgain(t *testing.T) {
	for _, twice := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newResyncWorld(t, Config{ChunkSize: 10})
			parts, err := w.Subscribe(t.Context(), string(gateway.EventMessageReceived))
			if err != nil {
				t.Fatal(err)
			}
			files, err := w.Subscribe(t.Context(), string(gateway.EventFileReceived))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			w.connect()
			w.come(filePart(1), filePart(2))
			w.next(parts).Ack()
			w.next(parts).Ack()
			w.leaves(1)
			w.come(fileOf(1, 2))
			if twice {
				w.connect()
				w.come(filePart(1))
				w.leaves(1)
				w.come(fileOf(1, 2), filePart(2))
				w.none(parts, time.Minute)
			}
			time.Sleep(time.Minute)
			if got := w.client.confirmed.Load(); got != 0 {
				t.Errorf("%d are confirmed, although their file was left", got)
			}
			w.connect()
			w.come(filePart(1), filePart(2), fileOf(1, 2))
			w.next(files).Ack()
			w.none(parts, time.Second)
			if got := w.client.confirmed.Load(); got != 2 {
				t.Errorf("%d are confirmed, want 2", got)
			}
			w.none(parts, time.Minute)
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.ledger.ackedBy) > 0 {
				t.Errorf("%d are remembered", len(w.ledger.ackedBy))
			}
		})
	}
}
