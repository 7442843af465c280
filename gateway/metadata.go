package gateway

// Names of the request headers of POST /messages, as written in the specification, and the metadata keys of every Watermill
// message that is sent or delivered. On the wire `router` is replaced by [Config.ServiceName]; in metadata never, so that
// handlers and sinks do not depend on the deployment.
const (
	// KeyIsPublish is "true" if the message goes to everyone subscribed to its type, too.
	KeyIsPublish = "x-router-is-publish"
	// KeyDirectRecipients is a comma-separated list of endpoint IDs (UUIDs).
	KeyDirectRecipients = "x-router-direct-recipients"
	// KeySentTimestamp is the sender's time of sending, ISO 8601.
	KeySentTimestamp = "x-router-sent-timestamp"
	// KeyEndpointID is the endpoint ID of the sender (UUID).
	KeyEndpointID = "x-router-endpoint-id"
	// KeyTeamsetContextID is the teamset context, at most 100 characters.
	KeyTeamsetContextID = "x-router-teamset-context-id"
	// KeyMessageType is the message type, at most 100 characters.
	KeyMessageType = "x-router-message-type"
	// KeyTenantID is the tenant on whose behalf the message is sent (UUID).
	KeyTenantID = "x-router-tenant-id"
	// KeyContextID is the application-generated ID of the payload: a UUID on sent messages; on received ones the sender's
	// app_message_id, which legacy senders fill with arbitrary strings.
	KeyContextID = "x-router-context-id"
	// KeyFilename is the file name attached to the message, at most 100 characters.
	KeyFilename = "x-router-filename"
)

// Metadata keys of received messages only. They are never sent.
const (
	// KeyEventType is the event type the message came from, e.g. MESSAGE_RECEIVED.
	KeyEventType = "x-router-event-type"
	// KeyMessageID is the service-generated message ID of a MESSAGE_RECEIVED event.
	KeyMessageID = "x-router-message-id"
	// KeyMessageIDs is the comma-separated list of the message IDs of a FILE_RECEIVED event.
	KeyMessageIDs = "x-router-message-ids"
	// KeyReceivingEndpointID is the service-generated ID of the receiving endpoint.
	KeyReceivingEndpointID = "x-router-receiving-endpoint-id"
	// KeyReceivedTimestamp is the time the service received the message, ISO 8601.
	KeyReceivedTimestamp = "x-router-received-timestamp"
	// KeyPayloadSize is the size of the payload in bytes, as a decimal number.
	KeyPayloadSize = "x-router-payload-size"
)

// Metadata keys of a message whose payload is not in the message itself.
const (
	// KeyPayloadMode is absent if the payload is in the message, else [PayloadModeClaimCheck] or [PayloadModeLazy].
	KeyPayloadMode = "x-router-payload-mode"
	// KeyPayloadReference is the claim-check reference of the payload.
	KeyPayloadReference = "x-router-payload-reference"
	// KeyPayloadSHA256 is the SHA-256 of the stored payload, in lower-case hexadecimal.
	KeyPayloadSHA256 = "x-router-payload-sha256"
)

// KeyDedupID is the metadata key of a message's deduplication ID: two messages for the same topic with the same ID are
// copies. The router sets it; sinks and the publisher use it. It is never sent as a header.
const KeyDedupID = "x-router-dedup-id"

// KeyReceivedDedupID is what [KeyDedupID] was when the message was read from a broker. The
// sources set it, in its place: what is made of a message is no copy of it.
const KeyReceivedDedupID = "x-router-received-dedup-id"

// Values of [KeyPayloadMode].
const (
	PayloadModeClaimCheck = "claim-check"
	PayloadModeLazy       = "lazy"
)
