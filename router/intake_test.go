package router_test

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agrimill/agrimill/router"
)

// TestWatermillNames holds that middlewares of others find what Watermill's Router
// puts into the context of messages.
func TestWatermillNames(t *testing.T) {
	from, to := newSource(), newSink(nil)
	route := farmRoute(from, to)
	names := make(chan []string, 1)
	route.Middleware = []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			names <- []string{
				message.HandlerNameFromCtx(ctx), message.SubscribeTopicFromCtx(ctx), message.SubscriberNameFromCtx(ctx),
			}
			return h(msg)
		}
	}}
	start(t, router.Config{Poison: newSink(nil)}, route)
	msg := farmMessage("1", "e", "c", "p")
	from.messages <- msg
	assert.Equal(t, "ack", verdict(t, msg))
	assert.Equal(t, []string{route.Name, route.Topic, "*router_test.source"}, <-names)
}

// TestMessagesAreHandledAtOnce holds that no message waits for another one, however
// many there are, and that their goroutines do not stay.
func TestMessagesAreHandledAtOnce(t *testing.T) {
	const n = 300
	var begun sync.WaitGroup
	begun.Add(n)
	proceed := make(chan struct{})
	from, to := newSource(), newSink(func(string, *message.Message) error {
		begun.Done()
		<-proceed
		return nil
	})
	r := start(t, router.Config{Poison: newSink(nil)}, farmRoute(from, to))
	messages := make([]*message.Message, n)
	for i := range messages {
		id := strings.Repeat("x", i+1)
		messages[i] = farmMessage(id, "e", id, "p")
		from.messages <- messages[i]
	}
	begun.Wait()
	assert.Equal(t, n, r.Health()[0].InFlight)
	close(proceed)
	for _, msg := range messages {
		assert.Equal(t, "ack", verdict(t, msg))
	}
	require.Eventually(t, func() bool { return handlers() <= 80 }, 20*time.Second, time.Millisecond)
	require.NoError(t, r.stop())
}

// handlers counts the goroutines that handle messages or wait for some.
func handlers() int {
	stacks := make([]byte, 4<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*intake).read(")
}
