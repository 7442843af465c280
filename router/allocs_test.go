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
// 1,650 bytes, what is remembered of it included, whoever observes it: nothing else is made of it
// until something fails. Metadata that the source gives away are not made again. The message is
// made before.
func TestAllocationsOfAMessage(t *testing.T) {
	const (
		messages     = 1000
		warmingUp    = 100 // goroutines, and the topic
		payloadBytes = 1 << 10
	)
	for name, test := range map[string]struct {
		given, observed bool
		atMost          float64
		atMostBytes     uint64
	}{
		"nobody observes": {atMost: 6, atMostBytes: 1650},
		"observed":        {observed: true, atMost: 6, atMostBytes: 1650},
		"given":           {given: true, observed: true, atMost: 2, atMostBytes: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			input, to := newSource(), discard{newSink(nil)}
			config, route := router.Config{Poison: to}, farmRoute(input, to)
			if test.given {
				route.From = &giver{input}
			}
			if test.observed {
				config.Observer = router.ObserverFunc(func(router.Event) {})
			}
			start(t, config, route)
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
				input.messages <- msg
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
			if got > test.atMost {
				t.Errorf("%v allocations, want at most %v", got, test.atMost)
			}
			if bytes > test.atMostBytes {
				t.Errorf("%d bytes, want at most %d", bytes, test.atMostBytes)
			}
		})
	}
}
