package nats_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
	"github.com/agrimill/agrimill/sinks/nats"
)

func FuzzMarshaler(f *testing.F) {
	f.Add("uuid", "name", "value", []byte("payload"))
	f.Add("", "Nats-Msg-Id", "=?utf-8?B?YWJj?=", []byte(nil))
	f.Add("u", "ce-id", "v", []byte("x"))
	f.Add("u", "Content-Typ", "e", []byte("x"))
	f.Add("u", "agrimill-key-ce-id", "\x00", []byte("x"))
	f.Add("\r\n", "agrimill-key-%0D", " \xff", []byte("x"))
	f.Fuzz(func(t *testing.T, uuid, name, value string, payload []byte) {
		msg := message.NewMessage(uuid, payload)
		msg.Metadata[name] = value
		msg.Metadata[name+"x"] = value
		msg.Metadata[gateway.KeyDedupID] = value
		raw := testkit.Must(nats.Marshaler{}.Marshal("subject", msg))(t)
		if _, control := raw.Header[natsgo.MsgIdHdr]; control != (msg.Metadata[gateway.KeyDedupID] != "") {
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
		back := testkit.Must(nats.Marshaler{}.Unmarshal(wire))(t)
		event := marshalEvent(t, msg)
		if again, err := (nats.Marshaler{CloudEvents: event.mapping}).Unmarshal(event.raw); err != nil || again.UUID != msg.UUID || !maps.Equal(again.Metadata, msg.Metadata) {
			t.Fatalf("as a CloudEvent: got %q, %v, want %q", again.Metadata, err, msg.Metadata)
		}
		if back.UUID != msg.UUID || !bytes.Equal(back.Payload, msg.Payload) || !maps.Equal(back.Metadata, msg.Metadata) {
			t.Fatalf("got %q %q %q, want %q %q %q", back.UUID, back.Metadata, back.Payload, msg.UUID, msg.Metadata, msg.Payload)
		}
	})
}

// silent makes no NATS message of what has that payload, without saying why.
type silent struct{ nats.Marshaler }

func (m silent) Marshal(subject string, msg *message.Message) (*natsgo.Msg, error) {
	if string(msg.Payload) == "silent" {
		return nil, nil
	}
	return m.Marshaler.Marshal(subject, msg)
}

// A Marshaler that makes nothing of a message, and does not say why, has rejected it.
func TestMarshalerMakesNothing(t *testing.T) {
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: natstest.Start(t).URL()}, Marshaler: silent{}}, nil)
	testkit.ErrorIs(t, sink.Publish("topic", newMessage("silent")), sinks.ErrRejected)
	testkit.NoError(t, sink.Publish("topic", newMessage("x")))
}

// renamer sends each message to the subject that is its payload.
type renamer struct{ nats.Marshaler }

func (m renamer) Marshal(_ string, msg *message.Message) (*natsgo.Msg, error) {
	return m.Marshaler.Marshal(string(msg.Payload), msg)
}

// A subject that no stream can have is refused, and not tried again without end.
func TestMarshalerMakesABadSubject(t *testing.T) {
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: natstest.Start(t).URL()}, Marshaler: renamer{}}, nil)
	for _, subject := range []string{"", "agrimill.a b", "agrimill.*", "agrimill.>", "agrimill..a", "agrimill."} {
		testkit.ErrorIs(t, sink.Publish("topic", newMessage(subject)), sinks.ErrRejected)
	}
	testkit.NoError(t, sink.Publish("topic", newMessage("agrimill.topic")))
}

type eventMessage struct {
	mapping *cloudevents.Mapping
	raw     *natsgo.Msg
}

// marshalEvent writes msg as a CloudEvent.
func marshalEvent(t *testing.T, msg *message.Message) eventMessage {
	t.Helper()
	mapping := testkit.Must(cloudevents.New(cloudevents.Config{}))(t)
	raw := testkit.Must(nats.Marshaler{CloudEvents: mapping}.Marshal("subject", msg))(t)
	for k, values := range raw.Header {
		if len(values) != 1 || !isWireSafe(k) || !isWireSafe(values[0]) {
			t.Fatalf("header %q: %q", k, values)
		}
	}
	return eventMessage{mapping, raw}
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
		msg := testkit.Must(nats.Marshaler{}.Unmarshal(&natsgo.Msg{Header: natsgo.Header{name: {value}}}))(t)
		raw := testkit.Must(nats.Marshaler{}.Marshal("subject", msg))(t)
		back, err := nats.Marshaler{}.Unmarshal(raw)
		if err != nil || !maps.Equal(back.Metadata, msg.Metadata) || back.UUID != msg.UUID {
			t.Fatalf("got %q, want %q", back.Metadata, msg.Metadata)
		}
	})
}

// ExampleMarshaler_cloudEvents shows the headers of a CloudEvent.
func ExampleMarshaler_cloudEvents() {
	mapping, err := cloudevents.New(cloudevents.Config{TypePrefix: "com.example."})
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := message.NewMessage("5f7c", []byte("payload"))
	msg.Metadata[gateway.KeyMessageType] = "img:png"
	msg.Metadata[gateway.KeyTenantID] = "farm"
	raw, err := nats.Marshaler{CloudEvents: mapping}.Marshal("subject", msg)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(raw.Header)) {
		fmt.Println(name, raw.Header[name][0])
	}
	// Output:
	// _watermill_message_uuid 5f7c
	// ce-id 5f7c
	// ce-source /farm/none
	// ce-specversion 1.0
	// ce-type com.example.img:png
	// content-type application/octet-stream
	// x-router-message-type img:png
	// x-router-tenant-id farm
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

// TestTraceContextIsPlain checks that any consumer with OpenTelemetry can continue
// a trace: the W3C headers are headers of their own, as they are.
func TestTraceContextIsPlain(t *testing.T) {
	events := testkit.Must(cloudevents.New(cloudevents.Config{}))(t)
	msg := message.NewMessage("1", nil)
	msg.Metadata = message.Metadata{
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"tracestate":  "vendor=t61rcWkgMzE,other@system=00f067aa0ba902b7",
		"baggage":     "season=2026;unit=year, field=north%20side",
	}
	for _, m := range []nats.Marshaler{{}, {CloudEvents: events}} {
		raw := testkit.Must(m.Marshal("subject", msg))(t)
		for name, value := range msg.Metadata {
			if got := raw.Header.Get(name); got != value {
				t.Errorf("%s is %q, want %q", name, got, value)
			}
		}
	}
}
