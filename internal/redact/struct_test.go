package redact_test

import (
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/redact"
)

type inner struct{ Addresses []string }

func TestStruct(t *testing.T) {
	value := struct {
		inner
		inNone  string
		Name    string
		URL     string
		Wait    time.Duration
		Made    func()
		Pointer *inner
		Nested  inner
		Any     any
	}{
		inner: inner{[]string{"a:1"}}, inNone: "unseen", Name: "x", URL: "nats://u:p@h/?q=s", Wait: time.Second, Made: func() {},
		Nested: inner{[]string{"nats://u:p@h", "b"}}, Any: 7,
	}
	if got, want := redact.Struct(value), "{Name:x URL:nats://h/?… Wait:1s Made:set Pointer:<nil> Nested:{Addresses:[nats://h b]} Any:set}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
