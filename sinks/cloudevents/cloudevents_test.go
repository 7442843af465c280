package cloudevents_test

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

func attributes(t *testing.T, config cloudevents.Config, msg *message.Message) map[string]string {
	t.Helper()
	mapping := testkit.Must(cloudevents.New(config))(t)
	got := map[string]string{}
	for _, a := range mapping.Attributes(msg) {
		if _, twice := got[a.Name]; twice {
			t.Errorf("%s twice", a.Name)
		}
		got[a.Name] = a.Value
	}
	return got
}

func TestAttributes(t *testing.T) {
	full := message.Metadata{
		gateway.KeyEventType: string(gateway.EventFileReceived), gateway.KeyMessageType: "iso:11783:-10:taskdata:zip",
		gateway.KeyTenantID: "t/1", gateway.KeyReceivingEndpointID: "e", gateway.KeyFilename: "Hof Grün.zip",
		gateway.KeySentTimestamp: "2026-01-02T03:04:05.678+01:00", gateway.KeyReceivedTimestamp: "2026-01-02T04:00:00Z",
		gateway.KeyDedupID: "dedup", gateway.KeyMessageID: "message",
	}
	with := func(base message.Metadata, pairs ...string) message.Metadata {
		m := maps.Clone(base)
		for i := 0; i < len(pairs); i += 2 {
			if m[pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
				delete(m, pairs[i])
			}
		}
		return m
	}
	fullWant := map[string]string{
		"specversion": "1.0", "type": "iso:11783:-10:taskdata:zip", "source": "/t%2F1/e", "id": "dedup",
		"subject": "Hof Grün.zip", "time": "2026-01-02T03:04:05.678+01:00", "datacontenttype": "application/octet-stream",
	}
	want := func(pairs ...string) map[string]string { return with(message.Metadata(fullWant), pairs...) }
	tests := map[string]struct {
		config cloudevents.Config
		meta   message.Metadata
		want   map[string]string
	}{
		"full": {meta: full, want: want()},
		"configured": {
			config: cloudevents.Config{
				Source: "https://example.com/{tenant}", TypePrefix: "com.example.", Subject: "{type}/{filename}",
				ContentTypes: map[string]string{"iso:11783:-10:taskdata:zip": "application/zip"},
			},
			meta: full,
			want: want("source", "https://example.com/t%2F1", "type", "com.example.iso:11783:-10:taskdata:zip",
				"subject", "iso:11783:-10:taskdata:zip/Hof Grün.zip", "datacontenttype", "application/zip"),
		},
		"message ID":   {meta: with(full, gateway.KeyDedupID, ""), want: want("id", "message")},
		"received":     {meta: with(full, gateway.KeySentTimestamp, "yesterday"), want: want("time", "2026-01-02T04:00:00Z")},
		"as ISO 8601":  {meta: with(full, gateway.KeySentTimestamp, "20260102T0304Z"), want: want("time", "2026-01-02T03:04:00Z")},
		"left at zero": {meta: with(full, gateway.KeySentTimestamp, "0001-01-01T00:00:00Z"), want: want("time", "2026-01-02T04:00:00Z")},
		"nothing at all": {
			config: cloudevents.Config{Source: "/{tenant}"},
			want:   map[string]string{"specversion": "1.0", "type": "untyped", "source": "/none/none", "id": "uuid", "datacontenttype": "application/octet-stream"},
		},
		"control event": {
			meta: message.Metadata{gateway.KeyEventType: string(gateway.EventEndpointDeleted)},
			want: map[string]string{"specversion": "1.0", "type": string(gateway.EventEndpointDeleted), "source": "/none/none", "id": "uuid", "datacontenttype": "application/json"},
		},
		"claim check": {
			meta: with(full, gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck, gateway.KeyPayloadReference, "a/b"),
			want: want("dataref", "a/b"),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("uuid", nil)
			msg.Metadata = test.meta
			if got := attributes(t, test.config, msg); !maps.Equal(got, test.want) {
				t.Errorf("got  %v\nwant %v", got, test.want)
			}
		})
	}
}

func TestIDOfAMessageWithoutAny(t *testing.T) {
	got := attributes(t, cloudevents.Config{}, message.NewMessage("", []byte("a")))["id"]
	if same := attributes(t, cloudevents.Config{}, message.NewMessage("", []byte("a")))["id"]; got == "" || same != got {
		t.Errorf("IDs %q and %q", got, same)
	}
	if other := attributes(t, cloudevents.Config{}, message.NewMessage("", []byte("b")))["id"]; other == got {
		t.Errorf("two payloads have the ID %q", got)
	}
}

func TestConfig(t *testing.T) {
	for _, config := range []cloudevents.Config{
		{Source: "{"}, {Subject: "{unknown}"}, {ContentTypes: map[string]string{"a": "zip"}}, {ContentTypes: map[string]string{"a": "a/b\r\nx"}},
	} {
		if err := config.Validate(); !errors.Is(err, cloudevents.ErrConfig) {
			t.Errorf("%+v: %v", config, err)
		}
	}
	testkit.NoError(t, (cloudevents.Config{}).Validate())
}

func FuzzEncodeHeader(f *testing.F) {
	for _, seed := range []string{"", "plain", "Hof Grün.zip", `a"b%20`, "\r\n\x00", "\xff", "\x8a\xc7", "€ 1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		encoded := cloudevents.EncodeHeader(s)
		for i := range len(encoded) {
			if c := encoded[i]; c <= ' ' || c >= 0x7f || c == '"' {
				t.Fatalf("%q has byte %#x", encoded, c)
			}
		}
		if back, err := url.PathUnescape(encoded); err != nil || back != strings.ToValidUTF8(s, "\uFFFD") {
			t.Fatalf("%q becomes %q and comes back as %q, %v", s, encoded, back, err)
		}
	})
}

func ExampleMapping_Attributes() {
	mapping, err := cloudevents.New(cloudevents.Config{TypePrefix: "com.example."})
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := message.NewMessage("5f7c", []byte("…"))
	msg.Metadata[gateway.KeyMessageType] = "img:png"
	msg.Metadata[gateway.KeyTenantID] = "farm"
	fmt.Println(mapping.Attributes(msg))
	// Output: [{specversion 1.0} {type com.example.img:png} {source /farm/none} {id 5f7c} {datacontenttype application/octet-stream}]
}
