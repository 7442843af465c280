package nats_test

import (
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/testkit"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

// putRaw stores what somebody else has published, with the bytes of a header.
func (f *field) putRaw(header, payload string) {
	f.Helper()
	conn := testkit.Must(net.Dial("tcp", strings.TrimPrefix(f.server.URL(), "nats://")))(f)
	defer func() { _ = conn.Close() }()
	publish := fmt.Sprintf("HPUB %s %d %d\r\n%s%s\r\n", fieldSubject, len(header), len(header)+len(payload), header, payload)
	if header == "" {
		publish = fmt.Sprintf("PUB %s %d\r\n%s\r\n", fieldSubject, len(payload), payload)
	}
	testkit.Must(conn.Write([]byte("CONNECT {\"headers\":true,\"verbose\":false}\r\n" + publish + "PING\r\n")))(f)
	buf := make([]byte, 4096)
	for got := ""; !strings.Contains(got, "PONG"); {
		n, err := conn.Read(buf)
		if err != nil || strings.Contains(got, "-ERR") {
			f.Fatal(got, err)
		}
		got += string(buf[:n])
	}
}

// What becomes of messages that others have published. Lost: nothing, but for headers of the server. Kept: the message, in the
// stream until it is acked. Said: each message that cannot be read, by its place, at each attempt. Others pass it.
func TestOutsideMessages(t *testing.T) {
	const begin, end = "NATS/1.0\r\n", "\r\n"
	for name, c := range map[string]struct {
		header, payload string
		uuid            string // empty: derived from its place
		metadata        map[string]string
		unreadable      bool
	}{
		"no header":              {payload: "x"},
		"nothing":                {},
		"an empty header":        {header: begin + end, payload: "x"},
		"a header without value": {header: begin + "A:\r\n" + end, metadata: map[string]string{"A": ""}},
		"the same header twice":  {header: begin + "A: 1\r\nA: 2\r\n" + end, metadata: map[string]string{"A": "1, 2"}},
		"bytes":                  {header: begin + "A: \xff\xfe\r\n" + end, payload: "\x00\xff", metadata: map[string]string{"A": "\xff\xfe"}},
		"an odd UUID":            {header: begin + "_watermill_message_uuid: no UUID\r\n" + end, payload: "x", uuid: "no UUID"},
		"an empty UUID":          {header: begin + "_watermill_message_uuid:\r\n" + end, payload: "x"},
		"control headers":        {header: begin + "Nats-Msg-Id: 7\r\nA: 1\r\n" + end, metadata: map[string]string{"A": "1"}},
		"a status of its own":    {header: begin + "Status: 409\r\n" + end, metadata: map[string]string{"Status": "409"}},
		"an unknown encoding":    {header: begin + "A: %zz\r\n" + end, metadata: map[string]string{"A": "%zz"}},
		"odd router metadata":    {header: begin + "x-router-sent-timestamp: yesterday\r\n" + end, metadata: map[string]string{"x-router-sent-timestamp": "yesterday"}},
		"no colon":               {header: begin + "A 1\r\n" + end, payload: "x", unreadable: true},
		"one of two is readable": {header: begin + "A: 1\r\nno colon\r\n" + end, payload: "x", unreadable: true},
		"no header at all":       {header: "HTTP/1.1 200\r\n\r\n", payload: "x", unreadable: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newField(t)
			f.putRaw(c.header, c.payload)
			f.putRaw("", "behind")
			log := testkit.NewLog()
			s := testkit.Must(nats.New(nats.Config{Connection: sinknats.Connection{URL: f.server.URL()}, SubjectPrefix: sinknats.NoSubjectPrefix, Durable: "out", CloseTimeout: time.Second}, log))(t)
			defer func() { _ = s.Close() }()
			messages := testkit.Must(s.Subscribe(t.Context(), fieldSubject))(t)
			msg := f.next(messages)
			if !c.unreadable {
				if string(msg.Payload) != c.payload || !maps.Equal(msg.Metadata, c.metadata) || msg.UUID == "" || c.uuid != "" && msg.UUID != c.uuid {
					t.Errorf("got %q with %q, UUID %q; want %q with %q, UUID %q", msg.Payload, msg.Metadata, msg.UUID, c.payload, c.metadata, c.uuid)
				}
				msg.Ack()
				msg = f.next(messages)
			}
			if string(msg.Payload) != "behind" {
				t.Errorf("got %q, want the message behind", msg.Payload)
			}
			msg.Ack()
			left := 0
			if c.unreadable {
				left = 1
			}
			testkit.Eventually(t, fmt.Sprintf("%d is left", left), func() bool {
				n, err := s.Backlog(t.Context())
				return err == nil && n == int64(left)
			})
			lines := log.Lines(watermill.ErrorLogLevel)
			if said := len(lines) > 0; said != c.unreadable || said && fmt.Sprint(lines[0].Fields["sequence"]) != "1" {
				t.Errorf("the log says %s", log)
			}
		})
	}
}
