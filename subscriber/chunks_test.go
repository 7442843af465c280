package subscriber_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// Some senders number the context IDs of the chunks of a payload: <context ID>-0, -1, …
func TestNumberedContextIDsAreOfOnePayload(t *testing.T) {
	t.Parallel()
	f, cfg := fileFixture(t, gatewaytest.Config{})
	cfg.WholeFileHold = 100 * time.Millisecond
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, subscriber.AllData)
	testkit.Eventually(t, "connected", func() bool { return f.server.Streams() == 1 })
	ids := ""
	var chunks []byte
	for i := range 3 {
		id := fmt.Sprintf("6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a00%d", i)
		ids += fmt.Sprintf(",%q", id)
		chunks = fmt.Appendf(chunks, "event: MESSAGE_RECEIVED\ndata: "+
			`{"event_type":"MESSAGE_RECEIVED","id":%q,"app_message_id":"%s-%d","message_type":%q,"sent_at":"2026-01-01T00:00:00Z","payload":"eA==","receiving_endpoint_id":%q,"tenant_id":%q}`+"\n\n",
			id, contextID, i, typeFile, f.receiver.ID, f.server.Tenant())
	}
	f.server.EmitRaw(f.server.Application(), chunks)
	testkit.Eventually(t, "all are held", func() bool { return sub.Stats().HeldNow == 3 })
	f.nothing(messages)
	f.server.EmitRaw(f.server.Application(), fmt.Appendf(nil, "event: FILE_RECEIVED\ndata: "+
		`{"event_type":"FILE_RECEIVED","receiving_endpoint_id":%q,"message_type":%q,"size":3,"message_ids":[%s],"payload":"eHh4","tenant_id":%q}`+"\n\n",
		f.receiver.ID, typeFile, ids[1:], f.server.Tenant()))
	file := f.next(messages)
	if got := file.Metadata.Get(gateway.KeyContextID); got != contextID {
		t.Errorf("context ID = %q, want %q", got, contextID)
	}
	file.Ack()
	f.nothing(messages)
}
