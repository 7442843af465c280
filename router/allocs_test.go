package router_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
)

// A message that a route passes on costs at most 6 allocations, of which 4 are its metadata, and
// 1,650 bytes, what is remembered of it included, whoever observes it: nothing else is made of it until something fails. The message
// is made before.
func TestAllocationsOfAMessage(t *testing.T) {
	const (
		messages     = 1000
		atMost       = 6
		atMostBytes  = 1650
		warmingUp    = 100 // goroutines, and the topic
		payloadBytes = 1 << 10
	)
	for name, observer := range map[string]router.Observer{
		"nobody observes": nil,
		"observed":        router.ObserverFunc(func(router.Event) {}),
	} {
		t.Run(name, func(t *testing.T) {
			from, to := newSource(), discard{newSink(nil)}
			start(t, router.Config{Poison: to, Observer: observer}, router.Route{Name: "farm", From: from, Topic: "in", To: to})
			var ready []*message.Message
			for i := range warmingUp + messages + 1 {
				msg := farmMessage(fmt.Sprintf("6f0e3a0c-3a5e-4a6c-9b57-%012d", i), "b1a7c9de-5f1b-4b7e-9c53-3f2e1d0c9000",
					fmt.Sprintf("0d4c1e2f-93a1-4f6e-8a44-%012d", i), "")
				msg.Payload = make([]byte, payloadBytes)
				for _, key := range []string{
					gateway.KeySentTimestamp, gateway.KeyReceivedTimestamp, gateway.KeyFilename, gateway.KeyTeamsetContextID, gateway.KeyPayloadSize,
				} {
					msg.Metadata[key] = "value"
				}
				ready = append(ready, msg)
			}
			handle := func() {
				msg := ready[0]
				ready = ready[1:]
				from.messages <- msg
				<-msg.Acked()
			}
			for range warmingUp {
				handle()
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := testing.AllocsPerRun(messages, handle)
			runtime.ReadMemStats(&after)
			bytes := (after.TotalAlloc - before.TotalAlloc) / messages
			t.Logf("%v allocations, %d bytes", got, bytes)
			if raceDetector {
				return // it needs memory of its own
			}
			if got > atMost {
				t.Errorf("%v allocations, want at most %d", got, atMost)
			}
			if bytes > atMostBytes {
				t.Errorf("%d bytes, want at most %d", bytes, atMostBytes)
			}
		})
	}
}
