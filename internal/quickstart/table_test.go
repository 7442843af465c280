package main

import (
	"errors"
	"github.com/agrimill/agrimill/internal/testkit"
	"strings"
	"testing"
)

func TestLastLine(t *testing.T) {
	whole := outcome{sent: true, received: true, stored: true, confirmed: true}
	change := func(f func(*outcome)) outcome {
		o := whole
		f(&o)
		return o
	}
	tests := []struct {
		name   string
		report report
		err    error
		want   string
	}{
		{"everything arrived", report{payloads: []outcome{whole, whole}}, nil,
			"OK sent=2 received=2 stored=2 confirmed=2 poisoned=0 mismatched=0"},
		{"nothing was sent", report{}, nil,
			"FAILED sent=0 received=0 stored=0 confirmed=0 poisoned=0 mismatched=0"},
		{"one was not sent", report{payloads: []outcome{whole, {}}}, nil,
			"FAILED sent=1 received=1 stored=1 confirmed=1 poisoned=0 mismatched=0"},
		{"one was not received", report{payloads: []outcome{change(func(o *outcome) { o.received = false })}}, nil,
			"FAILED sent=1 received=0 stored=1 confirmed=1 poisoned=0 mismatched=0"},
		{"one was not stored", report{payloads: []outcome{change(func(o *outcome) { o.stored = false })}}, nil,
			"FAILED sent=1 received=1 stored=0 confirmed=1 poisoned=0 mismatched=0"},
		{"one was not confirmed", report{payloads: []outcome{change(func(o *outcome) { o.confirmed = false })}}, nil,
			"FAILED sent=1 received=1 stored=1 confirmed=0 poisoned=0 mismatched=0"},
		{"one was poisoned", report{payloads: []outcome{whole}, poisoned: 1}, nil,
			"FAILED sent=1 received=1 stored=1 confirmed=1 poisoned=1 mismatched=0"},
		{"one was altered", report{payloads: []outcome{whole}, mismatched: 1}, nil,
			"FAILED sent=1 received=1 stored=1 confirmed=1 poisoned=0 mismatched=1"},
		{"an error on two lines", report{payloads: []outcome{whole}}, errors.New("a\nb"),
			"FAILED sent=1 received=1 stored=1 confirmed=1 poisoned=0 mismatched=0: a b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := tt.report.lastLine(tt.err)
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if want := strings.HasPrefix(tt.want, "OK"); ok != want {
				t.Errorf("ok = %t, want %t", ok, want)
			}
		})
	}
}

func TestTable(t *testing.T) {
	r := report{payloads: []outcome{
		{name: "Möhren.zip", messageType: "iso:11783:-10:taskdata:zip", size: 2271815, chunks: 3, subject: "agrimill.t.zip", stored: true, confirmed: true},
		{name: "x", messageType: "img:png", size: 0},
	}}
	var got strings.Builder
	testkit.NoError(t, r.writeTable(&got))
	want := strings.TrimPrefix(`
FILE        MESSAGE TYPE                BYTES    CHUNKS  SUBJECT         STORED  CONFIRMED
Möhren.zip  iso:11783:-10:taskdata:zip  2271815  3       agrimill.t.zip  yes     yes
x           img:png                     0        0       -               no      no
`, "\n")
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}
