package router_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// What one field of a poison record costs that is missing, unreadable or of an unknown kind: itself. A
// message with at most a reason and a class is none of the poison queue.
func TestParsePoisonedFields(t *testing.T) {
	sound := message.Metadata{
		router.KeyPoisonRoute: "fields", router.KeyPoisonTopic: "all", router.KeyPoisonReason: "no", router.KeyPoisonClass: "handler",
		router.KeyPoisonAttempts: "3", router.KeyPoisonCount: "2",
		router.KeyPoisonFirst: "2026-03-01T10:15:00Z", router.KeyPoisonLast: "2026-03-02T10:15:00.5Z",
	}
	first, last := time.Date(2026, 3, 1, 10, 15, 0, 0, time.UTC), time.Date(2026, 3, 2, 10, 15, 0, 500_000_000, time.UTC)
	whole := router.Poisoned{Route: "fields", Topic: "all", Reason: "no", Class: "handler", Attempts: 3, Count: 2, First: first, Last: last}
	for name, test := range map[string]struct {
		change     func(meta message.Metadata)
		want       func(p *router.Poisoned)
		unreadable []string
		foreign    bool
	}{
		"all of it":              {},
		"attempts that are none": {change: set(router.KeyPoisonAttempts, "many"), want: func(p *router.Poisoned) { p.Attempts = 0 }, unreadable: []string{router.KeyPoisonAttempts}},
		"attempts missing":       {change: unset(router.KeyPoisonAttempts), want: func(p *router.Poisoned) { p.Attempts = 0 }, unreadable: []string{router.KeyPoisonAttempts}},
		"attempts below zero":    {change: set(router.KeyPoisonAttempts, "-1"), want: func(p *router.Poisoned) { p.Attempts = 0 }, unreadable: []string{router.KeyPoisonAttempts}},
		"count too large":        {change: set(router.KeyPoisonCount, "99999999999999999999"), want: func(p *router.Poisoned) { p.Count = 0 }, unreadable: []string{router.KeyPoisonCount}},
		"first is no time":       {change: set(router.KeyPoisonFirst, "yesterday"), want: func(p *router.Poisoned) { p.First = time.Time{} }, unreadable: []string{router.KeyPoisonFirst}},
		"last is empty":          {change: set(router.KeyPoisonLast, ""), want: func(p *router.Poisoned) { p.Last = time.Time{} }, unreadable: []string{router.KeyPoisonLast}},
		"last without seconds":   {change: set(router.KeyPoisonLast, "2026-03-02T10:15Z"), want: func(p *router.Poisoned) { p.Last = last.Truncate(time.Minute) }},
		"an unknown class":       {change: set(router.KeyPoisonClass, "cosmic"), want: func(p *router.Poisoned) { p.Class = "cosmic" }},
		"only the route": {
			change:     unset(router.KeyPoisonTopic, router.KeyPoisonReason, router.KeyPoisonClass, router.KeyPoisonAttempts, router.KeyPoisonCount, router.KeyPoisonFirst, router.KeyPoisonLast),
			want:       func(p *router.Poisoned) { *p = router.Poisoned{Route: "fields"} },
			unreadable: []string{router.KeyPoisonAttempts, router.KeyPoisonCount, router.KeyPoisonFirst, router.KeyPoisonLast},
		},
		"only what an event in the quarantine has": {
			change: func(meta message.Metadata) {
				clear(meta)
				meta[router.KeyPoisonReason], meta[router.KeyPoisonClass] = "no", "malformed"
			},
			want:    func(p *router.Poisoned) { *p = router.Poisoned{Reason: "no", Class: "malformed"} },
			foreign: true,
		},
		"none of it": {
			change:  func(meta message.Metadata) { clear(meta) },
			want:    func(p *router.Poisoned) { *p = router.Poisoned{} },
			foreign: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("1", nil)
			for key, value := range sound {
				msg.Metadata[key] = value
			}
			if test.change != nil {
				test.change(msg.Metadata)
			}
			want := whole
			if test.want != nil {
				test.want(&want)
			}
			want.Unreadable = test.unreadable
			got, ours := router.ParsePoisoned(msg)
			got.Message = nil
			testkit.Equal(t, got, want)
			if ours == test.foreign {
				t.Errorf("it counts as a record of the poison queue: %v", ours)
			}
		})
	}
}

func set(key, value string) func(message.Metadata) {
	return func(meta message.Metadata) { meta[key] = value }
}

func unset(keys ...string) func(message.Metadata) {
	return func(meta message.Metadata) {
		for _, key := range keys {
			delete(meta, key)
		}
	}
}
