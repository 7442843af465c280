package gatewaytest_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// The whole round trip over the wire: token, two endpoints, a message, its
// event, the confirmation, and a second stream that does not see it again.
func TestRoundTrip(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})

	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {c.app.ClientID}, "client_secret": {c.app.ClientSecret}}
	r := want(t, c.do("POST", s.TokenURL(), []byte(form.Encode()), map[string]string{
		"Content-Type": "application/x-www-form-urlencoded", "Authorization": "",
	}), http.StatusOK)
	var token struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
	}
	if err := json.Unmarshal(r.body, &token); err != nil || token.AccessToken == "" || token.ExpiresIn != 3600 {
		t.Fatalf("token response %s", r.body)
	}
	c.token = token.AccessToken

	var sender, receiver gateway.Endpoint
	if err := json.Unmarshal(want(t, c.put("urn:farm:sender", nil), http.StatusCreated).body, &sender); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(want(t, c.put("urn:farm:receiver", nil), http.StatusCreated).body, &receiver); err != nil {
		t.Fatal(err)
	}
	r = want(t, c.post(sender.ID, []byte("payload"), map[string]string{gateway.KeyFilename: "täsk.zip"}), http.StatusOK)
	if len(r.body) != 0 {
		t.Fatalf("the body of the 200 is %q", r.body)
	}

	l := c.listen("")
	e := l.next(gateway.EventMessageReceived)
	payload, err := base64.StdEncoding.DecodeString(e.text("payload"))
	if err != nil || string(payload) != "payload" {
		t.Fatalf("payload %q, %v", payload, err)
	}
	for field, value := range map[string]string{
		"message_type": typeA, "sent_at": "2026-05-01T10:20:30.5+02:00", "receiving_endpoint_id": receiver.ID,
		"filename": "täsk.zip", "tenant_id": s.Tenant(),
	} {
		if e.text(field) != value {
			t.Errorf("%s is %q, want %q", field, e.text(field), value)
		}
	}
	if _, both := e.data["payload_uri"]; both {
		t.Error("payload and payload_uri are both present")
	}
	r = want(t, c.confirm(e.pair()), http.StatusAccepted)
	if len(r.body) != 0 {
		t.Fatalf("the body of the 202 is %q", r.body)
	}
	if err := s.WaitConfirmed(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	l.close()

	c.listen("").nothingBefore(s, c.app)

	entries := s.Ledger()
	if len(entries) != 1 {
		t.Fatalf("%d ledger entries", len(entries))
	}
	got := entries[0]
	if got.SHA256 != sha256.Sum256([]byte("payload")) || got.SHA256 != got.PayloadSHA256 || got.Size != 7 || got.Chunks != 1 {
		t.Errorf("ledger: %+v", got)
	}
	if len(got.Deliveries) != 1 || len(got.Confirmations) != 1 || got.DeliverySeqs[0] >= got.ConfirmationSeqs[0] || got.AcceptedSeq >= got.DeliverySeqs[0] {
		t.Errorf("ledger: %+v", got)
	}
	if !strings.EqualFold(got.MessageID, e.text("id")) || got.EndpointID != receiver.ID || got.SenderID != sender.ID {
		t.Errorf("ledger: %+v", got)
	}
}
