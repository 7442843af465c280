package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/agrimill/agrimill/internal/isotime"
)

// object is a JSON object whose values have not been decoded. It is a map rather than
// a tagged struct because encoding/json matches the names of struct fields
// case-insensitively and merges the values of repeated names.
type object map[string]json.RawMessage

// parseObject reports whether data is one JSON object. Some encoders begin it with a byte order mark.
func parseObject(data []byte) (object, bool) {
	var o object
	if err := json.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), &o); err != nil {
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

// filled is has for a field in which an empty string counts as absent, too.
func (o object) filled(key string) bool { return o.has(key) && string(o[key]) != `""` }

// objectDecoder reads the fields of an object. The first error sticks; what is read after it is void.
type objectDecoder struct {
	object
	path string // "" or ending in "."
	*decoded
}

// decoded is what the decoders of an object and of those nested in it share.
type decoded struct {
	err        *DecodeError
	unreadable []*EntryError // what was skipped
}

// skipped returns what a caller leaves out that goes on without what could not be decoded.
func (d *decoded) skipped() []*EntryError {
	if e := d.err; e != nil {
		return []*EntryError{{Field: e.Field, Reason: e.Reason}}
	}
	return d.unreadable
}

func newObjectDecoder(o object) *objectDecoder {
	return &objectDecoder{object: o, decoded: new(decoded)}
}

func (d *objectDecoder) fail(key, reason string) {
	if d.err == nil {
		d.err = &DecodeError{Field: d.path + key, Reason: reason}
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

// optional reads a field that may be absent, null or an empty string, or skips it.
func optional[T any](d *objectDecoder, key string, read func(*objectDecoder, string) T) (value T) {
	if !d.filled(key) {
		return value
	}
	own := &objectDecoder{object: d.object, path: d.path, decoded: new(decoded)}
	if v := read(own, key); own.err == nil {
		value = v
	}
	d.unreadable = append(d.unreadable, own.skipped()...)
	return value
}

// str returns a required string.
func (d *objectDecoder) str(key string) string {
	s, ok := d.peek(key)
	if d.need(key) != nil && !ok {
		d.fail(key, reasonNotString)
	}
	return s
}

// text returns a required string of any form, which some languages serialize as a number.
func (d *objectDecoder) text(key string) string {
	if raw := d.object[key]; len(raw) > 0 && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9') {
		return string(raw)
	}
	return d.str(key)
}

// id returns a required UUID.
func (d *objectDecoder) id(key string) string {
	s := d.str(key)
	if !validUUID([]byte(s)) {
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

// size returns a required integer, which some languages serialize as a string or with a fraction of zero.
func (d *objectDecoder) size(key string) int64 {
	raw := d.need(key)
	if s, ok := d.peek(key); ok {
		raw = json.RawMessage(s)
	}
	const exact = 1 << 53 // all integers up to here are numbers of 64 bits with a fraction, too
	var n *int64
	var f *float64
	switch {
	case raw == nil:
		return 0
	case json.Unmarshal(raw, &n) == nil && n != nil:
	case json.Unmarshal(raw, &f) == nil && f != nil && *f == math.Trunc(*f) && math.Abs(*f) <= exact:
		n = new(int64(*f))
	default:
		d.fail(key, reasonNotInteger)
		return 0
	}
	if *n < 0 {
		d.fail(key, reasonNegative)
	}
	return *n
}

func (d *objectDecoder) time(key string) time.Time {
	s := d.str(key)
	t, ok := isotime.Parse([]byte(s))
	if !ok {
		d.fail(key, reasonNotDateTime)
	}
	return t
}

// payload returns the embedded payload or its URI. An empty one counts as absent if the other is present.
func (d *objectDecoder) payload() ([]byte, string) {
	switch {
	case !d.filled("payload") && d.filled("payload_uri"):
		return nil, d.uri("payload_uri")
	case !d.has("payload"):
		d.fail("payload", reasonNoPayload)
		return nil, ""
	}
	if optional(d, "payload_uri", (*objectDecoder).uri) != "" {
		d.fail("payload_uri", reasonWithPayload)
	}
	payload, err := decodeBase64(d.str("payload"))
	if err != nil {
		d.fail("payload", reasonNotBase64)
	}
	return payload, ""
}

func (d *objectDecoder) uri(key string) string {
	s := d.str(key)
	if !validPayloadURI(s) {
		d.fail(key, reasonNotURI)
	}
	return s
}

// decodeBase64 also accepts the URL alphabet, no padding, and white space. The result is not nil.
func decodeBase64(s string) ([]byte, error) {
	if payload, err := base64.StdEncoding.DecodeString(s); err == nil {
		return payload, nil
	}
	s = strings.Join(strings.Fields(s), "")
	encoding := base64.StdEncoding
	if strings.ContainsAny(s, "-_") {
		encoding = base64.URLEncoding
	}
	if len(s)%4 != 0 {
		encoding = encoding.WithPadding(base64.NoPadding)
	}
	return encoding.DecodeString(s)
}

// isNull reports whether a field is present and null.
func (o object) isNull(key string) bool { return string(o[key]) == "null" }

// array returns a required array. null counts as an empty one: some languages serialize it that way.
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

// messageIDs returns the required message IDs of a file, which could never be confirmed with null.
func (d *objectDecoder) messageIDs(key string) []string {
	if d.need(key) == nil {
		return nil
	}
	list := d.strings(key)
	for _, id := range list {
		if !validUUID([]byte(id)) {
			d.fail(key, "holds a value that "+reasonNotUUID)
			break
		}
	}
	return list
}

// strings returns a required array of strings, never nil.
func (d *objectDecoder) strings(key string) []string {
	raw := d.array(key)
	list := make([]string, 0, len(raw))
	for _, v := range raw {
		var s *string
		if json.Unmarshal(v, &s) != nil || s == nil {
			d.fail(key, "holds a value that "+reasonNotString)
			break
		}
		list = append(list, *s)
	}
	return list
}

// routed returns an object of route maps.
func (d *objectDecoder) routed(key string) *RoutedEndpoints {
	c := d.child(key)
	if c == nil {
		return nil
	}
	return &RoutedEndpoints{
		CanSendTo:      optional(c, "can_send_to", (*objectDecoder).routes),
		CanReceiveFrom: optional(c, "can_receive_from", (*objectDecoder).routes),
	}
}

// routes returns a map of endpoint IDs to message types.
func (d *objectDecoder) routes(key string) EndpointRouteMap {
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
		value := &objectDecoder{object: object{"": c.object[id]}, path: d.path + key, decoded: d.decoded}
		m[id] = value.strings("")
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
	return &objectDecoder{object: o, path: d.path + name + ".", decoded: d.decoded}
}

// validPayloadURI reports whether s is a URI that can be downloaded.
func validPayloadURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != ""
}
