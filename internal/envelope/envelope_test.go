package envelope

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
)

func messageWith(uuid string, payload []byte, metadata message.Metadata) *message.Message {
	msg := message.NewMessage(uuid, payload)
	msg.Metadata = metadata
	return msg
}

func TestRoundTrip(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for name, msg := range map[string]*message.Message{
		"plain":       messageWith("u", []byte("p"), message.Metadata{"a": "1", "b": "2"}),
		"nothing":     messageWith("", nil, nil),
		"no metadata": messageWith("u", []byte("p"), nil),
		"empty names": messageWith("u", []byte(magic), message.Metadata{"": "", "a": ""}),
		"hostile": messageWith("a\r\nb\x00", []byte("\x00\xff"), message.Metadata{
			"a\r\nX: y": "b\r\n\r\nGET /", "\x00": "\xff\xfe", "ключ": "значение — 農場", " outer ": " spaces ", "long": long, "Nats-Msg-Id": "1",
		}),
	} {
		t.Run(name, func(t *testing.T) {
			packed := testkit.Must(Pack(msg))(t)
			again, err := Pack(msg)
			if err != nil || !bytes.Equal(packed, again) {
				t.Errorf("packed again it differs (%v)", err)
			}
			uuid, metadata, payload, err := Unpack(packed)
			if err != nil {
				t.Fatal(err)
			}
			if uuid != msg.UUID || !maps.Equal(metadata, msg.Metadata) || !bytes.Equal(payload, msg.Payload) {
				t.Errorf("got %q, %q, %q", uuid, metadata, payload)
			}
		})
	}
}

func TestReservedKeysDoNotTravel(t *testing.T) {
	packed := testkit.Must(Pack(messageWith("u", nil, message.Metadata{
		"x-router-payload-reference": "1", "X-Router-Tenant-Id": "2", "x-route": "3", payloadSize: "4",
	})))(t)
	if want := testkit.Must(Pack(messageWith("u", nil, message.Metadata{"x-route": "3"})))(t); !bytes.Equal(packed, want) {
		t.Errorf("packed %q, want %q", packed, want)
	}
	// A sender with a Pack of his own.
	forged := appendString([]byte(magic), "u")
	forged = appendNumber(forged, 2)
	for _, k := range []string{"X-Router-Direct-Recipients", "x-router-payload-mode"} {
		forged = appendString(appendString(forged, k), "claim-check")
	}
	_, metadata, _, err := Unpack(forged)
	if err != nil || len(metadata) != 0 {
		t.Errorf("unpacked %q, %v", metadata, err)
	}
}

func TestUnpackRefuses(t *testing.T) {
	good := testkit.Must(Pack(messageWith("uuid", []byte("payload"), message.Metadata{"key": "value"})))(t)
	head := len(good) - len("payload")
	for n := range head {
		want := ErrMalformed
		if n < len(magic) {
			want = ErrNotEnvelope
		}
		if _, _, _, err := Unpack(good[:n]); !errors.Is(err, want) {
			t.Errorf("cut after %d bytes: %v, want %v", n, err, want)
		}
	}
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	entry := appendString(appendString(nil, "k"), "v")
	for name, data := range map[string][]byte{
		"huge uuid":       slices.Concat([]byte(magic), number(1<<32-1), []byte("u")),
		"huge count":      slices.Concat([]byte(magic), number(0), number(1<<32-1), entry),
		"count too high":  slices.Concat([]byte(magic), number(0), number(2), entry),
		"key twice":       slices.Concat([]byte(magic), number(0), number(2), entry, entry),
		"keys not sorted": slices.Concat([]byte(magic), number(0), number(2), entry, appendString(appendString(nil, "a"), "v")),
		"huge head":       slices.Concat([]byte(magic), number(maxHead), make([]byte, maxHead), number(0)),
	} {
		if _, _, _, err := Unpack(data); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want %v", name, err, ErrMalformed)
		}
	}
	if _, err := Pack(messageWith("u", nil, message.Metadata{"k": strings.Repeat("x", maxHead)})); err == nil {
		t.Error("a head that Unpack would refuse was packed")
	}
}

// A part of an envelope is not taken for the whole; one without a size, of an older sender, is.
func TestUnpackTellsParts(t *testing.T) {
	whole := testkit.Must(Pack(messageWith("uuid", []byte("payload"), message.Metadata{"key": "value", "z": ""})))(t)
	head := len(whole) - len("payload")
	for n := head; n < len(whole); n++ {
		if _, _, _, err := Unpack(whole[:n]); !errors.Is(err, ErrPart) {
			t.Errorf("cut after %d bytes: %v, want %v", n, err, ErrPart)
		}
	}
	if _, _, _, err := Unpack(append(slices.Clip(whole), 0)); !errors.Is(err, ErrPart) {
		t.Errorf("with a byte more: %v, want %v", err, ErrPart)
	}
	older := slices.Concat([]byte(magic), appendString(nil, "u"), appendNumber(nil, 0), []byte("pay"))
	if uuid, _, payload, err := Unpack(older); err != nil || uuid != "u" || string(payload) != "pay" {
		t.Errorf("without a size: %q, %q, %v", uuid, payload, err)
	}
}

func FuzzUnpack(f *testing.F) {
	good := testkit.Must(Pack(messageWith("uuid", []byte("payload"), message.Metadata{"a": "1", "b": "\x00"})))(f)
	f.Add(good)
	f.Add(good[:20])
	f.Add(slices.Concat([]byte(magic), appendString(nil, "u"), appendNumber(nil, 0), []byte("older")))
	f.Add([]byte(magic))
	f.Add([]byte(`{"not":"an envelope"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		uuid, metadata, payload, err := Unpack(data)
		if err != nil {
			if !errors.Is(err, ErrNotEnvelope) && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrPart) {
				t.Fatalf("error %v", err)
			}
			return
		}
		for k := range metadata {
			if isReserved(k) {
				t.Fatalf("reserved key %q", k)
			}
		}
		// There is one way to write a message, reserved keys aside.
		packed := testkit.Must(Pack(messageWith(uuid, payload, metadata)))(t)
		entry := appendString(appendString(nil, payloadSize), strconv.Itoa(len(payload)))
		longest, written := len(data), bytes.Contains(data[len(magic)+4+len(uuid):len(data)-len(payload)], entry)
		if !written { // by an older sender
			longest += len(entry)
		}
		if written && len(packed) == len(data) && !bytes.Equal(packed, data) || len(packed) > longest {
			t.Fatalf("%q was unpacked, and packed again it is %q", data, packed)
		}
	})
}
