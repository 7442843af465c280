package msgctx

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
)

// Apart returns what a handler of Watermill's Router made as a sink has to store it that tells copies by [gateway.KeyDedupID]:
// without it if messages that are not the same have it in common, because each has the metadata of the one that they were made of.
func Apart(messages []*message.Message) []*message.Message {
	if len(messages) < 2 || message.HandlerNameFromCtx(messages[0].Context()) == "" {
		return messages
	}
	uuids := make(map[string]string, len(messages))
	for _, msg := range messages {
		id := msg.Metadata[gateway.KeyDedupID]
		if uuid, ok := uuids[id]; ok && id != "" && uuid != msg.UUID {
			return unnamed(messages)
		}
		uuids[id] = msg.UUID
	}
	return messages
}

// unnamed returns copies without [gateway.KeyDedupID].
func unnamed(messages []*message.Message) []*message.Message {
	copies := make([]*message.Message, len(messages))
	for i, msg := range messages {
		copies[i] = msg.CopyWithContext()
		delete(copies[i].Metadata, gateway.KeyDedupID)
	}
	return copies
}
