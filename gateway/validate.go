package gateway

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agrimill/agrimill/internal/validate"
)

// This file contains every rule that is checked before something is sent, one
// function per rule. Lengths count characters (Unicode code points).

// Limits of the specification, in characters.
const (
	maxMessageType   = 100
	maxTeamsetID     = 100
	maxContextID     = 50 // of a service that accepts other strings than UUIDs
	maxFilename      = 100
	maxEndpointName  = 200
	minConfirmations = 1
)

func invalid(field, rule string) error { return &ValidationError{Field: field, Rule: rule} }

func validateUUID(field, value string) error {
	switch {
	case value == "":
		return invalid(field, "is required")
	case !validUUID([]byte(value)):
		return invalid(field, "must be a UUID")
	}
	return nil
}

func validateRequired(field, value string) error {
	if value == "" {
		return invalid(field, "is required")
	}
	return nil
}

func validateMaxChars(field, value string, limit int) error {
	// The number of bytes is an upper bound for the count and costs nothing.
	if len(value) > limit && utf8.RuneCountInString(value) > limit {
		return invalid(field, "must have at most "+strconv.Itoa(limit)+" characters")
	}
	return nil
}

// validateHeaderValue rejects what could split a request (control characters) and what would not arrive unmodified: invalid
// UTF-8, and leading or trailing white space. Characters beyond ASCII are sent as raw UTF-8.
func validateHeaderValue(field, value string) error {
	for i := range len(value) {
		if c := value[i]; c < 0x20 || c == 0x7f {
			return invalid(field, "must not contain control characters")
		}
	}
	if !utf8.ValidString(value) {
		return invalid(field, "must be valid UTF-8")
	}
	if value != "" && (value[0] == ' ' || value[len(value)-1] == ' ') {
		return invalid(field, "must not begin or end with a space")
	}
	return nil
}

// validateText is the rule for the three free-text header values.
func validateText(field, value string, limit int) error {
	return cmp.Or(validateHeaderValue(field, value), validateMaxChars(field, value, limit))
}

func validateTimestamp(field string, t time.Time) error {
	if y := t.UTC().Year(); !t.IsZero() && (y < 1 || y > 9999) {
		return invalid(field, "must be in the years 1 to 9999")
	}
	return nil
}

// ValidateEndpointName checks the name of an endpoint: 1 to 200 letters of any script with their marks, digits and other
// numbers, spaces and - _ . , : and not only spaces. The error is a [*ValidationError].
func ValidateEndpointName(name string) error {
	const field = "name"
	if name == "" {
		return invalid(field, "must have at least 1 character")
	}
	if !utf8.ValidString(name) {
		return invalid(field, "must be valid UTF-8")
	}
	for _, r := range name {
		if !unicode.In(r, unicode.Letter, unicode.Mark, unicode.Number) && !strings.ContainsRune(" -_.,:", r) {
			return invalid(field, "must consist of letters, digits, spaces and - _ . , :")
		}
	}
	if strings.Trim(name, " ") == "" {
		return invalid(field, "must not be only white space")
	}
	return validateMaxChars(field, name, maxEndpointName)
}

// Validate checks every rule of the specification for PUT /endpoints/{externalId} and reports all fields that violate one.
// The capabilities of the software version only the service knows. The error matches [ErrInvalid]; errors.As finds the
// first [*ValidationError].
func (r PutEndpointRequest) Validate() error {
	var e validate.Errors
	if r.Name != "" { // omitted: the service generates one
		addInvalid(&e, ValidateEndpointName(r.Name))
	}
	addInvalid(&e, validateUUID("application_id", r.ApplicationID))
	addInvalid(&e, validateUUID("software_version_id", r.SoftwareVersionID))
	for i, c := range r.Capabilities {
		field := "capabilities[" + strconv.Itoa(i) + "]"
		addInvalid(&e, validateRequired(field+".message_type", c.MessageType))
		switch c.Direction {
		case DirectionSend, DirectionReceive, DirectionSendReceive:
		default:
			addInvalid(&e, invalid(field+".direction", "must be SEND, RECEIVE or SEND_RECEIVE"))
		}
	}
	for i, s := range r.Subscriptions {
		addInvalid(&e, validateRequired("subscriptions["+strconv.Itoa(i)+"].message_type", s.MessageType))
	}
	addInvalid(&e, validateCreatableType(r.EndpointType))
	addInvalid(&e, validateURI("connections_uri", r.ConnectionsURI))
	return e.Err(ErrInvalid)
}

func validateCreatableType(t EndpointType) error {
	const field = "endpoint_type"
	switch string(t) {
	case "":
		return invalid(field, "is required")
	case string(EndpointTypeCloudSoftware), string(EndpointTypeVirtualCommunicationUnit), deprecatedEndpointType:
		return nil
	case string(EndpointTypeCommunicationUnit), string(EndpointTypeTelemetryPlatform):
		return invalid(field, "must not be a legacy type: it can be read but not created")
	}
	return invalid(field, "must be cloud_software or virtual_communication_unit")
}

// deprecatedEndpointType is [EndpointTypeFarmingSoftware].
const deprecatedEndpointType = "farming_software"

func validateURI(field, value string) error {
	if value == "" {
		return nil
	}
	if u, err := url.Parse(value); err != nil || !u.IsAbs() {
		return invalid(field, "must be an absolute URI")
	}
	return nil
}

// validate checks a message before it is sent.
func (r *SendMessageRequest) validate(cfg *Config) error {
	return cmp.Or(
		validateUUID("TenantID", r.TenantID),
		validateUUID("EndpointID", r.EndpointID),
		validateRequired("MessageType", r.MessageType),
		validateText("MessageType", r.MessageType, maxMessageType),
		r.validateIDs(cfg.AnyContextID),
		validateTimestamp("SentAt", r.SentAt),
		validateText("TeamsetContextID", r.TeamsetContextID, maxTeamsetID),
		validateText("Filename", r.Filename, maxFilename),
		r.validatePayload(cfg.MaxPayloadSize),
	)
}

func (r *SendMessageRequest) validateIDs(anyContextID bool) error {
	for i, id := range r.DirectRecipients {
		if err := validateUUID("DirectRecipients["+strconv.Itoa(i)+"]", id); err != nil {
			return err
		}
	}
	switch {
	case anyContextID:
		return validateText("ContextID", r.ContextID, maxContextID)
	case r.ContextID != "":
		return validateUUID("ContextID", r.ContextID)
	}
	return nil
}

func (r *SendMessageRequest) validatePayload(limit int64) error {
	switch {
	case r.Body != nil && r.Payload != nil:
		return invalid("Body", "must not be set together with Payload")
	case r.Body == nil && r.Size != 0 && r.Size != int64(len(r.Payload)):
		return invalid("Size", "must be the size of Payload, or zero")
	case r.Size < 0:
		return invalid("Size", "must not be negative: the exact size is needed before sending")
	case max(r.Size, int64(len(r.Payload))) > limit:
		return &ValidationError{Field: "Payload", Rule: "must have at most " + strconv.FormatInt(limit, 10) + " bytes", tooLarge: true}
	}
	return nil
}

func validateConfirmations(confirmations []MessageConfirmation) error {
	if len(confirmations) < minConfirmations {
		return invalid("confirmations", "must have at least 1 item")
	}
	for i := range confirmations {
		c := &confirmations[i]
		if !validUUID([]byte(c.MessageID)) {
			return validateUUID("confirmations["+strconv.Itoa(i)+"].message_id", c.MessageID)
		}
		if !validUUID([]byte(c.EndpointID)) {
			return validateUUID("confirmations["+strconv.Itoa(i)+"].endpoint_id", c.EndpointID)
		}
	}
	return nil
}

func validateEventTypes(types []EventType) error {
	for i, t := range types {
		if !t.Known() {
			return invalid("Types["+strconv.Itoa(i)+"]", "must be one of the six event types")
		}
		if slices.Contains(types[:i], t) {
			return invalid("Types["+strconv.Itoa(i)+"]", "must not be repeated")
		}
	}
	return nil
}
