package gatewaytest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// scanner reads events as a Go client does that knows nothing of large lines.
type scanner struct {
	t     *testing.T
	lines *bufio.Scanner
}

func (c *caller) scan() *scanner {
	c.t.Helper()
	res := testkit.Must(c.http.Do(c.request("GET", "/events", nil, nil)))(c.t)
	c.t.Cleanup(func() { _ = res.Body.Close() })
	return &scanner{t: c.t, lines: bufio.NewScanner(res.Body)} // with the limit that it has by itself
}

func (s *scanner) next(name gateway.EventType) event {
	s.t.Helper()
	var e event
	for s.lines.Scan() {
		line := s.lines.Text()
		switch {
		case strings.HasPrefix(line, "event: "):
			e.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			testkit.NoError(s.t, json.Unmarshal([]byte(line[len("data: "):]), &e.data))
		case line == "" && e.name == string(name):
			return e
		case line == "" && e.name != "":
			s.t.Fatalf("event %s, want %s", e.name, name)
		}
	}
	s.t.Fatalf("waiting for %s: %v", name, s.lines.Err())
	return e
}

// Clients that read the stream with a bufio.Scanner end at a line of 64 KiB. With
// the default settings they can read every event, payloads of any size included.
func TestScannerReadsEveryEventWithDefaultSettings(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, receiver := pairOf(s)
	stream := c.scan()
	longest := map[string]string{
		gateway.KeyFilename: strings.Repeat("🚜", 100), gateway.KeyTeamsetContextID: strings.Repeat("\u2028", 100),
	}
	for _, size := range []int{0, 1, 32<<10 - 1, 32 << 10, 32<<10 + 1, 48 << 10, 64 << 10, 1 << 20} {
		payload := payloadOf(size)
		want(t, c.post(sender.ID, payload, longest), http.StatusOK)
		e := stream.next(gateway.EventMessageReceived)
		if !bytes.Equal(c.content(e), payload) {
			t.Errorf("the payload of %d bytes came as another", size)
		}
		if _, embedded := e.data["payload"]; embedded != (size <= 32<<10) {
			t.Errorf("payload of %d bytes embedded: %v", size, embedded)
		}
	}
	whole := payloadOf(3<<20 + 1)
	want(t, c.post(sender.ID, whole, longest), http.StatusOK)
	for range 4 {
		stream.next(gateway.EventMessageReceived)
	}
	if e := stream.next(gateway.EventFileReceived); !bytes.Equal(c.content(e), whole) {
		t.Error("the file came as another")
	}
	tenant := s.AddTenant()
	s.Authorize(c.app, tenant)
	stream.next(gateway.EventAuthorizationAdded)
	s.Revoke(c.app, tenant, gateway.ScopeEndpointsManage)
	stream.next(gateway.EventAuthorizationRevoked)
	want(t, c.delete(receiver.ExternalID), http.StatusNoContent)
	stream.next(gateway.EventEndpointDeleted)
	stream.next(gateway.EventEndpointsListChanged)
}

// FILE_RECEIVED names every message. The largest payload has 256 of them.
func TestScannerReadsTheFileOfAsManyChunksAsThereCanBe(t *testing.T) {
	s, c := start(t, gatewaytest.Config{ChunkSize: 1 << 10})
	sender, _ := pairOf(s)
	stream := c.scan()
	want(t, c.post(sender.ID, payloadOf(256<<10), map[string]string{gateway.KeyFilename: strings.Repeat("🚜", 100)}), http.StatusOK)
	for range 256 {
		stream.next(gateway.EventMessageReceived)
	}
	if e := stream.next(gateway.EventFileReceived); len(ids(e)) != 256 {
		t.Errorf("a file of %d messages", len(ids(e)))
	}
}
