package nats_test

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

func FuzzMarshaler(f *testing.F) {
	f.Add("uuid", "name", "value", []byte("payload"))
	f.Add("", "Nats-Msg-Id", "=?utf-8?B?YWJj?=", []byte(nil))
	f.Add("\r\n", "agrimill-key-%0D", " \xff", []byte("x"))
	f.Fuzz(func(t *testing.T, uuid, name, value string, payload []byte) {
		msg := message.NewMessage(uuid, payload)
		msg.Metadata[name] = value
		msg.Metadata[name+"x"] = value
		msg.Metadata[sinks.KeyDedupID] = value
		raw, err := nats.Marshaler{}.Marshal("subject", msg)
		if err != nil {
			t.Fatal(err)
		}
		if _, control := raw.Header[natsgo.MsgIdHdr]; control != (msg.Metadata[sinks.KeyDedupID] != "") {
			t.Fatalf("Nats-Msg-Id: %q", raw.Header[natsgo.MsgIdHdr])
		}
		// Over the wire: what nats.go writes, as nats.go reads it.
		wire := natsgo.NewMsg("subject")
		wire.Data = raw.Data
		for k, values := range raw.Header {
			if len(values) != 1 || !isWireSafe(k) || !isWireSafe(values[0]) {
				t.Fatalf("header %q: %q", k, values)
			}
			wire.Header[k] = values
		}
		back, err := nats.Marshaler{}.Unmarshal(wire)
		if err != nil {
			t.Fatal(err)
		}
		if back.UUID != msg.UUID || !bytes.Equal(back.Payload, msg.Payload) || !maps.Equal(back.Metadata, msg.Metadata) {
			t.Fatalf("got %q %q %q, want %q %q %q", back.UUID, back.Metadata, back.Payload, msg.UUID, msg.Metadata, msg.Payload)
		}
	})
}

// isWireSafe reports whether a header name or value survives: no control
// characters, no white space at the ends.
func isWireSafe(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return s == "" || s[0] != ' ' && s[len(s)-1] != ' '
}

// FuzzUnmarshal: messages of others do no harm, and what we read we can write
// and read again.
func FuzzUnmarshal(f *testing.F) {
	f.Add("agrimill-key-Nats-A", "=?utf-8?B?DQo=?=")
	f.Add("agrimill-key-%", "=?utf-8?B?!?=")
	f.Fuzz(func(t *testing.T, name, value string) {
		msg, err := nats.Marshaler{}.Unmarshal(&natsgo.Msg{Header: natsgo.Header{name: {value}}})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := nats.Marshaler{}.Marshal("subject", msg)
		if err != nil {
			t.Fatal(err)
		}
		back, err := nats.Marshaler{}.Unmarshal(raw)
		if err != nil || !maps.Equal(back.Metadata, msg.Metadata) || back.UUID != msg.UUID {
			t.Fatalf("got %q, want %q", back.Metadata, msg.Metadata)
		}
	})
}

func TestUnmarshalMessagesOfOthers(t *testing.T) {
	msg, err := nats.Marshaler{}.Unmarshal(&natsgo.Msg{
		Data: []byte("x"),
		Header: natsgo.Header{
			"plain": {"a"}, "several": {"a", "b"}, "none": {}, "Nats-Stream": {"S"}, "nats-lower": {"x"},
			"word":               {"=?utf-8?B?YWJj?="}, // would not have been encoded by us
			"real":               {"=?utf-8?B?DQo=?="},
			"agrimill-key-plain": {"a"}, // neither
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := message.Metadata{
		"plain": "a", "several": "a, b", "none": "", "word": "=?utf-8?B?YWJj?=", "real": "\r\n", "agrimill-key-plain": "a",
	}
	if !maps.Equal(msg.Metadata, want) {
		t.Errorf("got %q, want %q", msg.Metadata, want)
	}
	if msg, err := (nats.Marshaler{}).Unmarshal(&natsgo.Msg{}); err != nil || msg.Metadata == nil || msg.UUID != "" {
		t.Errorf("empty message: %v, %v", msg, err)
	}
	if got := slices.Sorted(maps.Keys(want)); len(got) != 6 {
		t.Error("names collide")
	}
}
