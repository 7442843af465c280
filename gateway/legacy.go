package gateway

import "strings"

// LegacyCode is a row of the legacy error code table. The current service
// sends no codes; the table helps with reading old documents and logs.
type LegacyCode struct {
	// Code is, for example, VAL_000004.
	Code string
	// Message is the text; %name% is a placeholder for a value.
	Message string
	// Meaning explains it.
	Meaning string
}

// LookupLegacyCode finds the legacy code of a message text. Placeholders match
// any non-empty value; the text must match as a whole, apart from leading and trailing
// white space. The client itself never uses it.
func LookupLegacyCode(message string) (LegacyCode, bool) {
	message = strings.TrimSpace(message)
	for _, c := range LegacyCodes() {
		if matchTemplate(c.Message, message) {
			return c, true
		}
	}
	return LegacyCode{}, false
}

// matchTemplate matches text against a template with %placeholders%.
func matchTemplate(template, text string) bool {
	literal, rest, found := strings.Cut(template, "%")
	if !strings.HasPrefix(text, literal) {
		return false
	}
	text = text[len(literal):]
	if !found {
		return text == ""
	}
	_, rest, _ = strings.Cut(rest, "%") // the name
	for n := 1; n <= len(text); n++ {
		if matchTemplate(rest, text[n:]) {
			return true
		}
	}
	return false
}

// LegacyCodes returns the whole table in the order of the specification.
func LegacyCodes() []LegacyCode {
	return []LegacyCode{
		{"SYS_000001", "Unexpected internal error for message %messageId%", "Internal error. Retry, then contact support"},
		{"VAL_000001", "Malformed request: protobuf/json can not be parsed for message %messageId%", "Body cannot be parsed"},
		{"VAL_000002", "Malformed message header for message %messageId%", "Required header fields missing or invalid"},
		{"VAL_000003", "Unsupported message for message %messageId% of type %technicalMessageType%", "Message type not recognized"},
		{"VAL_000004", MessageNoRecipients, "No addressed recipient reachable. Nothing delivered"},
		{"VAL_000005", MessagePartialDelivery, "Some recipients reachable. Delivered to those"},
		{"VAL_000006", "Publish only, no error even if no partner found", "Published without a specific recipient. No error even if nobody receives it"},
		{"VAL_000007", "No recipients found for message %applicationMessageId% of type %technicalMessageType%", "No valid recipients resolved"},
		{"VAL_000008", "Message %applicationMessageId% could not be delivered to endpoint %endpoints%", "Delivery to the endpoints failed, for example offline"},
		{"VAL_000009", "Duplicate message %applicationMessageId%", "Application message ID already processed"},
		{"VAL_000010", "Message %applicationMessageId% exceeds maximum size", "Payload too large"},
		{"VAL_000011", "Chunk %chunkNumber% of %chunkTotal% for context %chunkContextId% is invalid", "Chunk malformed or out of order. Resend the whole sequence"},
		{"VAL_000012", "Chunk context %chunkContextId% has expired", "Transfer took too long. Resend all chunks"},
		{"VAL_000013", "Chunk %chunkNumber% of %chunkTotal% for context %chunkContextId% already received", "Chunk already uploaded"},
		{"VAL_000050", "Subscription for %technicalMessageType% not valid", "Subscription invalid or not set up"},
		{"VAL_000051", "Capability for %technicalMessageType% not valid", "Endpoint lacks the capability"},
		{"VAL_000052", "Sending of %technicalMessageType% not allowed", "Endpoint may not send this type"},
		{"VAL_000201", "Registration code is invalid", "Registration code (TAN) invalid, expired or used"},
		{"VAL_000202", "Registration code has expired", "TAN expired"},
		{"VAL_000203", "Endpoint already exists", "Endpoint with this external ID already exists for the tenant and application"},
		{"VAL_000204", "Application not found", "Application ID unknown"},
		{"VAL_000205", "Certification not found", "certificationVersionId of the legacy onboarding request cannot be resolved"},
		{"VAL_000206", "Onboarding request is invalid", "Onboarding body malformed or incomplete"},
		{"VAL_000207", "Gateway type not supported", "Requested gateway type (MQTT or HTTP) not supported for the operation"},
		{"VAL_000208", "Reonboarding not possible", "Endpoint cannot be reonboarded, possibly permanently revoked"},
		{"VAL_000209", "Revoke not possible", "Endpoint cannot be revoked in its current state"},
		{"VAL_000300", "VCU onboarding failed", "Virtual CU could not be onboarded"},
		{"VAL_000301", "VCU not found", "VCU does not exist or is not accessible"},
		{"VAL_000302", "VCU limit reached", "Maximum number of VCUs for the endpoint reached"},
		{"VAL_000303", "Not allowed to send message type %technicalMessageType%", "VCU registered on an endpoint that is not a telemetry platform endpoint"},
	}
}
