package demo

import (
	"errors"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
)

func TestReport(t *testing.T) {
	poison := nats.Subject("", router.DefaultPoisonTopic)
	fate := func(data string) Fate { return Fate{File: File{Data: []byte(data)}, Received: true, Confirmed: true} }
	unconfirmed, lost := fate("1"), fate("1")
	unconfirmed.Confirmed, lost.Received = false, false
	twins := []Fate{fate("1"), fate("1")}
	for _, tt := range []struct {
		name  string
		files []Fate
		found string // content; a leading ! is in the poison queue
		err   error
		want  string
	}{
		{"everything", twins, "1 1", nil, "OK sent=2 received=2 stored=2 confirmed=2 poisoned=0 mismatched=0"},
		{"nothing was sent", nil, "", nil, "FAILED sent=0 received=0 stored=0 confirmed=0 poisoned=0 mismatched=0"},
		{"one was not received", []Fate{lost}, "1", nil, "FAILED sent=1 received=0 stored=1 confirmed=1 poisoned=0 mismatched=0"},
		{"one was not confirmed", []Fate{unconfirmed}, "1", nil, "FAILED sent=1 received=1 stored=1 confirmed=0 poisoned=0 mismatched=0"},
		{"one of two equal ones", twins, "1", nil, "FAILED sent=2 received=2 stored=1 confirmed=2 poisoned=0 mismatched=0"},
		{"one twice", twins[:1], "1 1", nil, "FAILED sent=1 received=1 stored=1 confirmed=1 poisoned=0 mismatched=1"},
		{"other bytes", twins[:1], "2", nil, "FAILED sent=1 received=1 stored=0 confirmed=1 poisoned=0 mismatched=1"},
		{"poisoned", twins[:1], "!1", nil, "FAILED sent=1 received=1 stored=0 confirmed=1 poisoned=1 mismatched=0"},
		{"an error of two lines", twins, "1 1", errors.New("a\nb"), "FAILED sent=2 received=2 stored=2 confirmed=2 poisoned=0 mismatched=0: a; b"},
	} {
		r := Report{Files: append([]Fate{}, tt.files...)}
		for content := range strings.FieldsSeq(tt.found) {
			if data, poisoned := strings.CutPrefix(content, "!"); poisoned {
				r.found(poison, []byte(data))
			} else {
				r.found("agrimill.tenant.tasks", []byte(content))
			}
		}
		if got, ok := r.Line(tt.err); got != tt.want || ok != strings.HasPrefix(tt.want, "OK") {
			t.Errorf("%s:\ngot  %s, %t\nwant %s", tt.name, got, ok, tt.want)
		}
	}
}
