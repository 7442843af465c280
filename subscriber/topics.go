package subscriber

import "github.com/agrimill/agrimill/gateway"

// Topics that select more than one kind of event. Every other topic is either an
// event type (MESSAGE_RECEIVED, FILE_RECEIVED, ENDPOINT_DELETED,
// ENDPOINTS_LIST_CHANGED, AUTHORIZATION_ADDED, AUTHORIZATION_REVOKED) or a
// message type, which selects the messages and files of exactly that type: there
// are no wildcards.
const (
	// AllData selects every MESSAGE_RECEIVED and FILE_RECEIVED event.
	AllData = "ALL_DATA"
	// Everything selects every event, including event types unknown to this
	// version.
	Everything = "EVERYTHING"
)

// Takes reports whether a subscription to topic gets an event of the given event type and, for
// MESSAGE_RECEIVED and FILE_RECEIVED, message type.
func Takes(topic string, event gateway.EventType, messageType string) bool {
	if topic == Everything || topic == string(event) {
		return true
	}
	if event != gateway.EventMessageReceived && event != gateway.EventFileReceived {
		return false
	}
	return topic == AllData || topic == messageType
}
