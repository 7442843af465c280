package gateway

import (
	"errors"
	"fmt"
	"testing"
)

func TestRefused(t *testing.T) {
	answer := func(status int) *Error { return &Error{Op: opSend, StatusCode: status, ErrorResponse: true} }
	unproven := answer(403)
	unproven.unproven = true
	tests := []struct {
		name string
		err  error
		want bool
	}{
		{"nil", nil, false},
		{"unknown", errors.New("x"), false},
		{"breaks a rule", invalid("x", "y"), true},
		{"partial delivery", &Error{Op: opSend, StatusCode: 400, ErrorResponse: true, routing: routingPartial}, true},
		{"no recipients", &Error{Op: opSend, StatusCode: 400, ErrorResponse: true, routing: routingNoRecipients}, true},
		{"400", answer(400), true},
		{"400, wrapped", fmt.Errorf("x: %w", answer(400)), true},
		{"401", answer(401), false},
		{"403", answer(403), true},
		{"403 that nobody else escapes", unproven, false},
		{"404 for a message", answer(404), false},
		{"404 for an endpoint", &Error{Op: opTenants, StatusCode: 404, ErrorResponse: true}, true},
		{"408", answer(408), false},
		{"413", answer(413), true},
		{"429", answer(429), false},
		{"500", answer(500), false},
		{"501", answer(501), false},
		{"400 of an intermediary", &Error{Op: opSend, StatusCode: 400}, false},
		{"200 as a web page", &Error{Op: opSend, StatusCode: 200, Err: errWebPage()}, false},
		{"payload expired", &Error{StatusCode: 403, Err: ErrPayloadExpired}, false},
		{"token refused with 400", errors.Join(ErrToken, ErrBadRequest), false},
		{"token refused", &Error{Op: opSend, Err: tokenRefusal(answerHead{status: 401}, "invalid_client")}, false},
		{"closed", &Error{Op: opSend, Err: ErrClosed}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Refused(tt.err); got != tt.want {
				t.Errorf("Refused = %v, want %v", got, tt.want)
			}
			if tt.want && Retryable(tt.err) {
				t.Error("refused, and worth repeating")
			}
		})
	}
}
