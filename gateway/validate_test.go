package gateway

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestSendMessageRequestRules(t *testing.T) {
	const limit = 1000
	text := func(n int) string { return strings.Repeat("ü", n) }
	tests := []struct {
		name   string
		change func(*SendMessageRequest)
		field  string // empty: valid
	}{
		{"complete", func(*SendMessageRequest) {}, ""},
		{"tenant missing", func(r *SendMessageRequest) { r.TenantID = "" }, "TenantID"},
		{"tenant not a UUID", func(r *SendMessageRequest) { r.TenantID = testTenant[1:] }, "TenantID"},
		{"tenant in braces", func(r *SendMessageRequest) { r.TenantID = "{" + testTenant + "}" }, "TenantID"},
		{"tenant as URN", func(r *SendMessageRequest) { r.TenantID = "urn:uuid:" + testTenant }, "TenantID"},
		{"tenant in capitals", func(r *SendMessageRequest) { r.TenantID = strings.ToUpper(testTenant) }, ""},
		{"endpoint missing", func(r *SendMessageRequest) { r.EndpointID = "" }, "EndpointID"},
		{"endpoint not a UUID", func(r *SendMessageRequest) { r.EndpointID = "farm:1" }, "EndpointID"},
		{"type missing", func(r *SendMessageRequest) { r.MessageType = "" }, "MessageType"},
		{"type of 100 characters", func(r *SendMessageRequest) { r.MessageType = text(100) }, ""},
		{"type of 101 characters", func(r *SendMessageRequest) { r.MessageType = text(101) }, "MessageType"},
		{"type with a line break", func(r *SendMessageRequest) { r.MessageType = "a\r\nx-evil: 1" }, "MessageType"},
		{"recipient", func(r *SendMessageRequest) { r.DirectRecipients = []string{testRecipient, testContext} }, ""},
		{"recipient not a UUID", func(r *SendMessageRequest) { r.DirectRecipients = []string{testRecipient, "x"} }, "DirectRecipients[1]"},
		{"two recipients in one", func(r *SendMessageRequest) { r.DirectRecipients = []string{testRecipient + "," + testContext} }, "DirectRecipients[0]"},
		{"context not a UUID", func(r *SendMessageRequest) { r.ContextID = "legacy" }, "ContextID"},
		{"context", func(r *SendMessageRequest) { r.ContextID = testContext }, ""},
		{"year 9999", func(r *SendMessageRequest) { r.SentAt = time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC) }, ""},
		{"year 10000", func(r *SendMessageRequest) { r.SentAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, "SentAt"},
		{"teamset of 100 characters", func(r *SendMessageRequest) { r.TeamsetContextID = text(100) }, ""},
		{"teamset of 101 characters", func(r *SendMessageRequest) { r.TeamsetContextID = text(101) }, "TeamsetContextID"},
		{"teamset with NUL", func(r *SendMessageRequest) { r.TeamsetContextID = "a\x00b" }, "TeamsetContextID"},
		{"filename of 100 characters", func(r *SendMessageRequest) { r.Filename = text(100) }, ""},
		{"filename of 101 characters", func(r *SendMessageRequest) { r.Filename = text(101) }, "Filename"},
		{"filename with LF", func(r *SendMessageRequest) { r.Filename = "a\nb" }, "Filename"},
		{"filename with CR", func(r *SendMessageRequest) { r.Filename = "a\rb" }, "Filename"},
		{"filename with a tab", func(r *SendMessageRequest) { r.Filename = "a\tb" }, "Filename"},
		{"filename with DEL", func(r *SendMessageRequest) { r.Filename = "a\x7fb" }, "Filename"},
		{"filename not UTF-8", func(r *SendMessageRequest) { r.Filename = "a\xffb" }, "Filename"},
		{"filename after a space", func(r *SendMessageRequest) { r.Filename = " a" }, "Filename"},
		{"filename before a space", func(r *SendMessageRequest) { r.Filename = "a " }, "Filename"},
		{"filename with a space", func(r *SendMessageRequest) { r.Filename = "a b: c.zip" }, ""},
		{"no payload", func(r *SendMessageRequest) { r.Payload = nil }, ""},
		{"payload at the limit", func(r *SendMessageRequest) { r.Payload = make([]byte, limit) }, ""},
		{"payload past the limit", func(r *SendMessageRequest) { r.Payload = make([]byte, limit+1) }, "Payload"},
		{"size of another payload", func(r *SendMessageRequest) { r.Size = 5 }, "Size"},
		{"size of the payload", func(r *SendMessageRequest) { r.Size = int64(len(r.Payload)) }, ""},
		{"body and payload", func(r *SendMessageRequest) { r.Body = bytesBody(nil) }, "Body"},
		{"body of unknown size", func(r *SendMessageRequest) { r.Body, r.Payload, r.Size = bytesBody(nil), nil, -1 }, "Size"},
		{"body at the limit", func(r *SendMessageRequest) { r.Body, r.Payload, r.Size = bytesBody(nil), nil, limit }, ""},
		{"body past the limit", func(r *SendMessageRequest) { r.Body, r.Payload, r.Size = bytesBody(nil), nil, limit+1 }, "Payload"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := testMessageRequest()
			tt.change(&r)
			err := r.validate(&Config{MaxPayloadSize: limit})
			checkValidation(t, err, tt.field)
			if got, want := errors.Is(err, ErrTooLarge), tt.field == "Payload"; got != want {
				t.Errorf("matches ErrTooLarge: %v, want %v", got, want)
			}
		})
	}
}

func checkValidation(t *testing.T, err error, field string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Fatalf("got %v, want no error", err)
		}
		return
	}
	var v *ValidationError
	if !errors.As(err, &v) || v.Field != field || v.Rule == "" {
		t.Fatalf("got %v, want a ValidationError of %s", err, field)
	}
	wantIs(t, err, ErrInvalid)
}

func TestConfirmationRules(t *testing.T) {
	good := MessageConfirmation{MessageID: testMessage, EndpointID: testEndpoint}
	checkValidation(t, validateConfirmations(nil), "confirmations")
	checkValidation(t, validateConfirmations([]MessageConfirmation{good}), "")
	checkValidation(t, validateConfirmations([]MessageConfirmation{good, {EndpointID: testEndpoint}}), "confirmations[1].message_id")
	checkValidation(t, validateConfirmations([]MessageConfirmation{{MessageID: testMessage, EndpointID: `"`}}), "confirmations[0].endpoint_id")
}

func TestEventTypeRules(t *testing.T) {
	checkValidation(t, validateEventTypes(nil), "")
	checkValidation(t, validateEventTypes(EventTypes()), "")
	checkValidation(t, validateEventTypes([]EventType{EventMessageReceived, "MESSAGE"}), "Types[1]")
	checkValidation(t, validateEventTypes([]EventType{EventMessageReceived, EventMessageReceived}), "Types[1]")
}
