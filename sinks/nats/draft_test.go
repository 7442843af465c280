package nats

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A draft that is used again has nothing of the message before.
func TestDraftIsUsedAgain(t *testing.T) {
	var d draft
	d.msg = &natsgo.Msg{}
	for _, c := range []struct {
		id  string
		msg *message.Message
	}{
		{"id 1", &message.Message{UUID: "1", Payload: []byte("a"), Metadata: message.Metadata{"one": "1", "two": "2"}}},
		{"", &message.Message{UUID: "2", Payload: []byte("b"), Metadata: message.Metadata{"three": "3"}}},
		{"id 3", &message.Message{UUID: "3", Metadata: message.Metadata{"one": "x", "two": "y", "three": "z", "four": ""}}},
	} {
		d.msg.Reply = "inbox"
		if !d.reset() {
			t.Fatal("it is not used again")
		}
		if c.id != "" {
			c.msg.Metadata[gateway.KeyDedupID] = "id"
		}
		Marshaler{}.write(&d, "subject", c.id, c.msg)
		want := testkit.Must(Marshaler{}.Marshal("subject", c.msg))(t)
		if c.id != "" {
			want.Header.Set(natsgo.MsgIdHdr, c.id)
		}
		testkit.Equal(t, d.msg, want)
		if size := want.Size() - len(want.Subject) - len(want.Data); d.headerSize != size {
			t.Errorf("the header takes %d bytes, want %d", d.headerSize, size)
		}
	}
}

// A payload that was given back is not read any more.
func TestWithdrawn(t *testing.T) {
	s := &Sink{config: Config{SubjectPrefix: "agrimill"}, drafts: drafts{own: &Marshaler{}}}
	s.stream.Store(&jetstream.StreamConfig{})
	f := testkit.Must(s.prepare("topic", message.NewMessage("1", []byte("payload"))))(t)
	if payload, ok := f.payload(nil); !ok || string(payload) != "payload" {
		t.Errorf("payload = %q, %v", payload, ok)
	}
	f.withdraw()
	if payload, ok := f.payload(nil); ok || payload != nil {
		t.Errorf("withdrawn, payload = %q, %v", payload, ok)
	}
}
