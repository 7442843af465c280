package gateway

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"time"

	"github.com/agrimill/agrimill/internal/isotime"
)

// object is a JSON object whose values have not been decoded. It is a map rather than
// a tagged struct because encoding/json matches the names of struct fields
// case-insensitively and merges the values of repeated names.
type object map[string]json.RawMessage

// parseObject reports whether data is one JSON object.
func parseObject(data []byte) (object, bool) {
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, false
	}
	return o, o != nil
}

// peek returns a field that is a string.
func (o object) peek(key string) (string, bool) {
	var s *string
	if raw, ok := o[key]; !ok || json.Unmarshal(raw, &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}

// uuid returns a field that is a UUID, or an empty string.
func (o object) uuid(key string) string {
	if s, ok := o.peek(key); ok && validUUID([]byte(s)) {
		return s
	}
	return ""
}

// has reports whether a field is present; null counts as absent.
func (o object) has(key string) bool {
	raw, ok := o[key]
	return ok && string(raw) != "null"
}

// rule is a requirement for a string field.
type rule int

const (
	required rule = 1 << iota
	isUUID
)

// objectDecoder reads the fields of an object. The first error sticks; anything
// read after it must be ignored.
type objectDecoder struct {
	object
	path string        // "" or ending in "."
	err  **DecodeError // shared with the decoders of nested objects
}

func (d *objectDecoder) fail(key, reason string) {
	if *d.err == nil {
		*d.err = &DecodeError{Field: d.path + key, Reason: reason}
	}
}

// need returns a required field, or nil.
func (d *objectDecoder) need(key string) json.RawMessage {
	if !d.has(key) {
		d.fail(key, reasonMissing)
		return nil
	}
	return d.object[key]
}

func (d *objectDecoder) str(key string, r rule) string {
	if !d.has(key) {
		if r&required != 0 {
			d.fail(key, reasonMissing)
		}
		return ""
	}
	s, ok := d.peek(key)
	switch {
	case !ok:
		d.fail(key, reasonNotString)
	case r&isUUID != 0 && !validUUID([]byte(s)):
		d.fail(key, reasonNotUUID)
	}
	return s
}

func (d *objectDecoder) bool(key string) bool {
	var b bool
	if raw := d.need(key); raw != nil && json.Unmarshal(raw, &b) != nil {
		d.fail(key, reasonNotBool)
	}
	return b
}

func (d *objectDecoder) size(key string) int64 {
	var n int64
	if raw := d.need(key); raw != nil && json.Unmarshal(raw, &n) != nil {
		d.fail(key, reasonNotInteger)
	}
	if n < 0 {
		d.fail(key, reasonNegative)
	}
	return n
}

func (d *objectDecoder) time(key string, r rule) time.Time {
	s := d.str(key, r)
	if !d.has(key) || *d.err != nil {
		return time.Time{}
	}
	t, ok := isotime.Parse([]byte(s))
	if !ok {
		d.fail(key, reasonNotDateTime)
	}
	return t
}

// payload returns the embedded payload or its URI.
func (d *objectDecoder) payload() ([]byte, string) {
	switch {
	case d.has("payload") && d.has("payload_uri"):
		d.fail("payload_uri", reasonWithPayload)
	case d.has("payload_uri"):
		uri := d.str("payload_uri", required)
		if *d.err == nil && !validPayloadURI(uri) {
			d.fail("payload_uri", reasonNotURI)
		}
		return nil, uri
	case d.has("payload"):
		s := d.str("payload", required)
		payload, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			d.fail("payload", reasonNotBase64)
		}
		return payload, ""
	default:
		d.fail("payload", reasonNoPayload)
	}
	return nil, ""
}

// isNull reports whether a field is present and null.
func (o object) isNull(key string) bool { return string(o[key]) == "null" }

// array returns a required array. null counts as an empty one, because some
// languages serialize empty lists that way.
func (d *objectDecoder) array(key string) []json.RawMessage {
	if d.isNull(key) {
		return nil
	}
	var list []json.RawMessage
	if raw := d.need(key); raw != nil && json.Unmarshal(raw, &list) != nil {
		d.fail(key, reasonNotArray)
	}
	return list
}

// messageIDs returns the required message IDs of a file. Here null is not
// an empty list, because the file could never be confirmed.
func (d *objectDecoder) messageIDs(key string) []string {
	if d.need(key) == nil {
		return nil
	}
	return d.strings(key, isUUID)
}

// strings returns a required array of strings, never nil.
func (d *objectDecoder) strings(key string, r rule) []string {
	raw := d.array(key)
	list := make([]string, 0, len(raw))
	for _, v := range raw {
		var s *string
		if json.Unmarshal(v, &s) != nil || s == nil {
			d.fail(key, "holds a value that "+reasonNotString)
			break
		}
		if r&isUUID != 0 && !validUUID([]byte(*s)) {
			d.fail(key, "holds a value that "+reasonNotUUID)
			break
		}
		list = append(list, *s)
	}
	return list
}

// routes returns an optional map of endpoint IDs to message types.
func (d *objectDecoder) routes(key string) EndpointRouteMap {
	if !d.has(key) {
		return nil
	}
	c := d.child(key)
	if c == nil {
		return nil
	}
	m := make(EndpointRouteMap, len(c.object))
	for id := range c.object {
		if !validUUID([]byte(id)) {
			d.fail(key, "has a key that "+reasonNotUUID)
			break
		}
		// Error paths must not contain untrusted input, such as id.
		value := &objectDecoder{object: object{"": c.object[id]}, path: d.path + key, err: d.err}
		m[id] = value.strings("", 0)
	}
	return m
}

// child returns a required object, or nil after an error.
func (d *objectDecoder) child(key string) *objectDecoder {
	raw := d.need(key)
	if raw == nil {
		return nil
	}
	return d.descend(key, raw)
}

func (d *objectDecoder) descend(name string, raw json.RawMessage) *objectDecoder {
	o, ok := parseObject(raw)
	if !ok {
		d.fail(name, reasonNotObject)
		return nil
	}
	return &objectDecoder{object: o, path: d.path + name + ".", err: d.err}
}

// validPayloadURI reports whether s is a URI that can be downloaded.
func validPayloadURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != ""
}
