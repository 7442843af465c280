package gatewaytest_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

const noRecipients = "No recipients for this sender and info type"

// What gateway/TestSpecMessageHeaders and TestSpecLimits do not send.
func TestMessageHeaders(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, receiver := pairOf(s)
	for _, test := range []struct {
		key, value string
		status     int
		message    string
	}{
		{gateway.KeyIsPublish, "yes", 400, "neither true nor false"},
		{gateway.KeyIsPublish, "True", 200, ""},
		{gateway.KeyIsPublish, "TRUE", 200, ""},
		{gateway.KeyIsPublish, "1", 200, ""},
		{gateway.KeyIsPublish, "False", 400, noRecipients},
		{gateway.KeyIsPublish, "0", 400, noRecipients},
		{gateway.KeySentTimestamp, "2026-05-01T10:20:30", 400, "not a date-time"},
		{gateway.KeySentTimestamp, "2026-05-01T10:20:30Z", 200, ""},
		{gateway.KeyEndpointID, uuid.NewString(), 403, "does not belong"},
		{gateway.KeyEndpointID, strings.ToUpper(sender.ID), 200, ""},
		{gateway.KeyMessageType, "doc:pdf", 400, "Sending of doc:pdf not allowed"},
		{gateway.KeyTenantID, "{" + s.Tenant() + "}", 400, "not a UUID"},
		{gateway.KeyTenantID, uuid.NewString(), 403, "not authorized"},
		{gateway.KeyDirectRecipients, receiver.ID + " , " + receiver.ID, 200, ""},
		{"Content-Type", "", 400, "Content-Type"},
		{"Content-Type", "text/plain", 400, "Content-Type"},
	} {
		t.Run(fmt.Sprintf("%s=%.20s", test.key, test.value), func(t *testing.T) {
			before := len(s.Ledger())
			r := c.post(sender.ID, []byte("x"), map[string]string{test.key: test.value})
			if test.status == http.StatusOK {
				want(t, r, http.StatusOK)
				return
			}
			wantMessage(t, r, test.status, test.message)
			if len(s.Ledger()) != before {
				t.Error("something was delivered all the same")
			}
		})
	}
}

// A sender that dies half-way through its body has sent nothing.
func TestBodyShorterThanContentLength(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, _ := pairOf(s)
	conn := testkit.Must((&net.Dialer{}).DialContext(testContext(t), "tcp", strings.TrimPrefix(s.BaseURL(), "http://")))(t)
	defer conn.Close()
	req := c.request("POST", "/messages", []byte("0123456789"), c.messageHeaders(sender.ID, nil))
	var wire bytes.Buffer
	testkit.NoError(t, req.Write(&wire))
	testkit.Must(conn.Write(wire.Bytes()[:wire.Len()-5]))(t)
	testkit.NoError(t, conn.(*net.TCPConn).CloseWrite())
	res := testkit.Must(http.ReadResponse(bufio.NewReader(conn), req))(t)
	defer res.Body.Close()
	if res.StatusCode != http.StatusBadRequest || len(s.Ledger()) != 0 {
		t.Errorf("status %d, %d ledger entries", res.StatusCode, len(s.Ledger()))
	}
}

func payloadOf(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return b
}

// fetch downloads a payload_uri without any authorization.
func (c *caller) fetch(uri string, header map[string]string) reply {
	c.t.Helper()
	h := map[string]string{"Authorization": ""}
	for name, value := range header {
		h[name] = value
	}
	return c.do("GET", uri, nil, h)
}

// content is the payload of an event, embedded or remote.
func (c *caller) content(e event) []byte {
	c.t.Helper()
	if uri := e.text("payload_uri"); uri != "" {
		if _, both := e.data["payload"]; both {
			c.t.Fatal("payload and payload_uri are both present")
		}
		return want(c.t, c.fetch(uri, nil), http.StatusOK).body
	}
	return testkit.Must(base64.StdEncoding.DecodeString(e.text("payload")))(c.t)
}

func ids(e event) (list []string) {
	items, _ := e.data["message_ids"].([]any)
	for _, item := range items {
		id, _ := item.(string)
		list = append(list, id)
	}
	return list
}

func TestChunks(t *testing.T) {
	for name, test := range map[string]struct {
		size   int
		chunks int
		inline int64
		remote bool
	}{
		"one chunk exactly":    {1000, 1, 0, false},
		"one byte more":        {1001, 2, 0, false},
		"three and a bit":      {3001, 4, 0, false},
		"everything by URI":    {3001, 4, gatewaytest.NoInline, true},
		"only the file by URI": {2500, 3, 1000, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := start(t, gatewaytest.Config{ChunkSize: 1000, InlineLimit: test.inline})
			sender, receiver := pairOf(s)
			payload := payloadOf(test.size)
			context := uuid.NewString()
			want(t, c.post(sender.ID, payload, map[string]string{
				gateway.KeyContextID: context, gateway.KeyFilename: "t.zip", gateway.KeyTeamsetContextID: "team 1",
			}), http.StatusOK)
			l := c.listen("")
			var joined []byte
			var messageIDs []string
			for range test.chunks {
				e := l.next(gateway.EventMessageReceived)
				joined = append(joined, c.content(e)...)
				messageIDs = append(messageIDs, e.text("id"))
				if e.text("app_message_id") != context || e.text("teamset_context_id") != "team 1" {
					t.Errorf("chunk %s", e.raw)
				}
			}
			if !bytes.Equal(joined, payload) {
				t.Fatal("the chunks are not the payload")
			}
			if test.chunks == 1 {
				l.nothingBefore(s, c.app)
				return
			}
			e := l.next(gateway.EventFileReceived)
			if !bytes.Equal(c.content(e), payload) || !slices.Equal(ids(e), messageIDs) || int(e.data["size"].(float64)) != test.size {
				t.Errorf("file %s", e.raw)
			}
			if e.text("filename") != "t.zip" || e.text("teamset_context_id") != "team 1" || e.text("receiving_endpoint_id") != receiver.ID || e.text("tenant_id") != s.Tenant() || e.text("message_type") != typeA {
				t.Errorf("file %s", e.raw)
			}
			if test.remote != (e.text("payload_uri") != "") {
				t.Errorf("file %s", e.raw)
			}
			l.close()

			// One chunk confirmed is not the file confirmed.
			want(t, c.confirm(gateway.MessageConfirmation{MessageID: messageIDs[0], EndpointID: receiver.ID}), http.StatusAccepted)
			l = c.listen("")
			for _, id := range messageIDs[1:] {
				if e := l.next(gateway.EventMessageReceived); e.text("id") != id {
					t.Fatalf("chunk %s, want %s", e.text("id"), id)
				}
			}
			if e := l.next(gateway.EventFileReceived); !slices.Equal(ids(e), messageIDs) {
				t.Errorf("file %s", e.raw)
			}
			l.close()
			for _, id := range messageIDs {
				want(t, c.confirm(gateway.MessageConfirmation{MessageID: id, EndpointID: receiver.ID}), http.StatusAccepted)
			}
			c.listen("").nothingBefore(s, c.app)

			for n, entry := range s.Ledger() {
				if entry.Chunk != n || entry.Chunks != test.chunks || entry.PayloadSHA256 != sha256.Sum256(payload) || entry.PayloadSize != int64(test.size) {
					t.Errorf("entry %+v", entry)
				}
				if entry.SHA256 != sha256.Sum256(payload[n*1000:min((n+1)*1000, test.size)]) || len(entry.FileDeliveries) != 2 {
					t.Errorf("entry %+v", entry)
				}
			}
		})
	}
}

func TestFileOrder(t *testing.T) {
	m, f := gateway.EventMessageReceived, gateway.EventFileReceived
	for order, names := range map[gatewaytest.FileOrder][]gateway.EventType{
		gatewaytest.FileLast: {m, m, m, f}, gatewaytest.FileFirst: {f, m, m, m}, gatewaytest.FileBetween: {m, f, m, m},
	} {
		s, c := start(t, gatewaytest.Config{ChunkSize: 10, FileOrder: order})
		sender, _ := pairOf(s)
		want(t, c.post(sender.ID, payloadOf(25), nil), http.StatusOK)
		l := c.listen("")
		for _, name := range names {
			l.next(name)
		}
	}
}

func TestFileTypes(t *testing.T) {
	s, c := start(t, gatewaytest.Config{FileTypes: []string{typeA}, ChunkSize: 100})
	sender, receiver := pairOf(s)
	want(t, c.post(sender.ID, []byte("small"), nil), http.StatusOK)
	l := c.listen("")
	e := l.next(gateway.EventFileReceived)
	if string(c.content(e)) != "small" || len(ids(e)) != 1 {
		t.Fatalf("file %s", e.raw)
	}
	l.nothingBefore(s, c.app)
	want(t, c.confirm(gateway.MessageConfirmation{MessageID: ids(e)[0], EndpointID: receiver.ID}), http.StatusAccepted)
	entry := s.Ledger()[0]
	if !entry.Delivered() || !entry.Confirmed() || len(entry.FileDeliveries) != 0 {
		t.Errorf("entry %+v", entry)
	}
	want(t, c.post(sender.ID, payloadOf(150), nil), http.StatusOK)
	l.next(gateway.EventMessageReceived)
	l.next(gateway.EventMessageReceived)
	l.next(gateway.EventFileReceived)
}

// Send is POST /messages without HTTP, and can be a legacy sender.
func TestSend(t *testing.T) {
	s, c := start(t, gatewaytest.Config{ChunkSize: 10})
	sender, receiver := pairOf(s)
	messageIDs, err := s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeA, Payload: payloadOf(25), ContextID: `legacy "1"`})
	if err != nil || len(messageIDs) != 3 {
		t.Fatal(messageIDs, err)
	}
	l := c.listen("?types=MESSAGE_RECEIVED")
	for _, id := range messageIDs {
		if e := l.next(gateway.EventMessageReceived); e.text("id") != id || e.text("app_message_id") != `legacy "1"` {
			t.Errorf("event %s", e.raw)
		}
	}
	for _, test := range []struct {
		req    gatewaytest.SendRequest
		status int
	}{
		{gatewaytest.SendRequest{From: uuid.NewString(), MessageType: typeA}, 403},
		{gatewaytest.SendRequest{From: sender.ID}, 400},
		{gatewaytest.SendRequest{From: sender.ID, MessageType: "other"}, 400},
		{gatewaytest.SendRequest{From: sender.ID, MessageType: typeA, Recipients: []string{uuid.NewString()}}, 400},
		{gatewaytest.SendRequest{From: receiver.ID, MessageType: typeA}, 400},
	} {
		_, err := s.Send(test.req)
		var status *gatewaytest.StatusError
		if !errors.As(err, &status) || status.Status != test.status {
			t.Errorf("Send(%+v) = %v, want %d", test.req, err, test.status)
		}
	}
	messageIDs, err = s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeA, Recipients: []string{receiver.ID, uuid.NewString()}})
	if len(messageIDs) != 1 || err == nil {
		t.Errorf("partial delivery: %v, %v", messageIDs, err)
	}
}
