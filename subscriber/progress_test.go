package subscriber_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// What happens to messages before a subscription gets them is told: held, joined to their file, fetched, and that
// nobody takes them.
func TestProgress(t *testing.T) {
	t.Parallel()
	f, cfg := fileFixture(t, gatewaytest.Config{})
	cfg.FileHold = time.Hour
	var mu sync.Mutex
	told := map[subscriber.ProgressKind][]string{}
	fetched := map[string]int64{}
	cfg.Hooks.Progress = func(p subscriber.Progress) {
		mu.Lock()
		defer mu.Unlock()
		id := ""
		switch event := p.Event.(type) {
		case *gateway.MessageReceived:
			id = event.ID
		case *gateway.FileReceived:
			id = fmt.Sprint(len(event.MessageIDs))
		}
		if told[p.Kind] = append(told[p.Kind], id); p.Kind == subscriber.ProgressFetched {
			fetched[id] = p.Bytes
		}
	}
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, typeFile)
	testkit.Eventually(t, "connected", func() bool { return f.server.Streams() == 1 })
	event := func(id, messageType string) []byte {
		return fmt.Appendf(nil, "event: MESSAGE_RECEIVED\ndata: "+
			`{"event_type":"MESSAGE_RECEIVED","id":%q,"app_message_id":%q,"message_type":%q,"sent_at":"2026-01-01T00:00:00Z","payload":"eA==","receiving_endpoint_id":%q,"tenant_id":%q}`+"\n\n",
			id, contextID, messageType, f.receiver.ID, f.server.Tenant())
	}
	const first, second, other = "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a001", "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a002", "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a003"
	f.server.EmitRaw(f.server.Application(), slices.Concat(event(first, typeFile), event(second, typeFile), event(other, "nobody:takes:this")))
	testkit.Eventually(t, "both are held", func() bool { return sub.Stats().HeldNow == 2 })
	f.server.EmitRaw(f.server.Application(), fmt.Appendf(nil, "event: FILE_RECEIVED\ndata: "+
		`{"event_type":"FILE_RECEIVED","receiving_endpoint_id":%q,"message_type":%q,"size":2,"message_ids":[%q,%q],"payload":"eHg=","tenant_id":%q}`+"\n\n",
		f.receiver.ID, typeFile, first, second, f.server.Tenant()))
	f.next(messages).Ack()
	testkit.Eventually(t, "the file is told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told[subscriber.ProgressJoined]) > 0
	})
	mu.Lock()
	defer mu.Unlock()
	for kind, want := range map[subscriber.ProgressKind][]string{
		subscriber.ProgressHeld: {first, second}, subscriber.ProgressJoined: {"2"}, subscriber.ProgressUntaken: {other}, subscriber.ProgressFetched: nil,
	} {
		if !slices.Equal(told[kind], want) {
			t.Errorf("%v: %q, want %q", kind, told[kind], want)
		}
	}
}

// A payload that is downloaded is told before anybody gets the message, with its size.
func TestProgressOfDownload(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
	cfg := f.config()
	fetched := make(chan int64, 1)
	cfg.Hooks.Progress = func(p subscriber.Progress) {
		if p.Kind == subscriber.ProgressFetched {
			fetched <- p.Bytes
		}
	}
	messages := f.subscribe(f.subscriber(cfg), subscriber.AllData)
	f.send(typeFile, []byte("twelve bytes"))
	f.next(messages).Ack()
	select {
	case n := <-fetched:
		if n != 12 {
			t.Errorf("%d bytes", n)
		}
	default:
		t.Error("nothing was told")
	}
}
