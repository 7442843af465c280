package gatewaytest_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// remote sends a payload of 3 000 bytes in chunks of 1 000 and returns the URI
// of the whole.
func remote(t *testing.T, cfg gatewaytest.Config) (*gatewaytest.Server, *caller, []byte, string) {
	t.Helper()
	cfg.ChunkSize, cfg.InlineLimit = 1000, gatewaytest.NoInline
	s, c := start(t, cfg)
	sender, _ := pairOf(s)
	payload := payloadOf(3000)
	want(t, c.post(sender.ID, payload, nil), http.StatusOK)
	uri := c.listen("?types=FILE_RECEIVED").next(gateway.EventFileReceived).text("payload_uri")
	if uri == "" {
		t.Fatal("no payload_uri")
	}
	return s, c, payload, uri
}

func TestPayloadHost(t *testing.T) {
	s, c, payload, uri := remote(t, gatewaytest.Config{})
	if !strings.HasPrefix(uri, s.PayloadURL()) || s.PayloadURL() == s.BaseURL() {
		t.Errorf("%s is not on a host of its own", uri)
	}
	r := want(t, c.fetch(uri, nil), http.StatusOK)
	if !bytes.Equal(r.body, payload) || r.header.Get("Content-Length") != "3000" || r.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("header %v", r.header)
	}
	if r := want(t, c.do("HEAD", uri, nil, nil), http.StatusOK); len(r.body) != 0 || r.header.Get("Content-Length") != "3000" {
		t.Errorf("HEAD: header %v", r.header)
	}
	if n := s.Stats(gatewaytest.OpPayload).WithAuthorization; n != 1 {
		t.Errorf("%d requests with authorization, want the one HEAD", n)
	}
	testkit.Contains(t, uri, "signature=")
}

func TestPayloadURIExpires(t *testing.T) {
	for _, lifetime := range []time.Duration{15 * time.Minute, time.Minute} {
		s, c, _, uri := remote(t, gatewaytest.Config{PayloadLifetime: lifetime})
		s.Advance(lifetime - time.Second)
		want(t, c.fetch(uri, nil), http.StatusOK)
		s.Advance(time.Second)
		wantMessage(t, c.fetch(uri, nil), http.StatusForbidden, "expired")
		// A new delivery makes a fresh URI.
		c.token = s.IssueToken(c.app)
		fresh := c.listen("?types=FILE_RECEIVED").next(gateway.EventFileReceived).text("payload_uri")
		want(t, c.fetch(fresh, nil), http.StatusOK)
	}
}

// A payload outlives its confirmation by its URI, unless told otherwise.
func TestPayloadReleased(t *testing.T) {
	for _, release := range []bool{false, true} {
		s, c, _, uri := remote(t, gatewaytest.Config{ReleaseConfirmed: release})
		testkit.NoError(t, s.WaitStreams(testContext(t), 1))
		for _, e := range s.Ledger() {
			want(t, c.confirm(gateway.MessageConfirmation{MessageID: e.MessageID, EndpointID: e.EndpointID}), http.StatusAccepted)
		}
		// Enough of them for the feed to be swept.
		sender := s.Ledger()[0].SenderID
		for range 200 {
			testkit.Must(s.Send(gatewaytest.SendRequest{From: sender, MessageType: typeA, Payload: []byte("x")}))(t)
		}
		for _, e := range s.Ledger() {
			want(t, c.confirm(gateway.MessageConfirmation{MessageID: e.MessageID, EndpointID: e.EndpointID}), http.StatusAccepted)
		}
		status := c.fetch(uri, nil).status
		if release && status != http.StatusNotFound || !release && status != http.StatusOK {
			t.Errorf("release %v: %d", release, status)
		}
	}
}
