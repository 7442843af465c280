package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

const (
	uuidA = "2a0b8a2e-6f0e-4b39-a1ea-0123456789ab"
	uuidB = "7D4B2F60-1111-4222-8333-444455556666"
	uuidC = "00000000-0000-0000-0000-000000000000"
)

// validData has one full and valid example of each event type, as ordered
// pairs, so that tests can leave out, change and repeat fields.
func validData(t EventType) fields {
	switch t {
	case EventMessageReceived:
		return fields{
			{"event_type", `"MESSAGE_RECEIVED"`},
			{"id", `"` + uuidA + `"`},
			{"app_message_id", `"any string"`},
			{"message_type", `"iso:11783:-10:taskdata:zip"`},
			{"sent_at", `"2026-11-20T12:34:56.789Z"`},
			{"received_at", `"2026-11-20T12:34:57+01:00"`},
			{"payload", `"aGVsbG8="`},
			{"receiving_endpoint_id", `"` + uuidB + `"`},
			{"filename", `"TASKDATA.ZIP"`},
			{"tenant_id", `"` + uuidC + `"`},
			{"teamset_context_id", `"team 1"`},
		}
	case EventFileReceived:
		return fields{
			{"event_type", `"FILE_RECEIVED"`},
			{"receiving_endpoint_id", `"` + uuidB + `"`},
			{"message_type", `"img:jpeg"`},
			{"size", `5000000000`},
			{"message_ids", `["` + uuidA + `", "` + uuidC + `"]`},
			{"payload_uri", `"https://payloads.example/x/y?sig=secret"`},
			{"filename", `"field.jpg"`},
			{"tenant_id", `"a plain string"`},
			{"teamset_context_id", `""`},
		}
	case EventEndpointDeleted:
		return fields{
			{"event_type", `"ENDPOINT_DELETED"`},
			{"id", `"` + uuidA + `"`},
			{"external_id", `"urn:farm:1"`},
		}
	case EventEndpointsListChanged:
		return fields{
			{"event_type", `"ENDPOINTS_LIST_CHANGED"`},
			{"tenant_id", `"` + uuidC + `"`},
			{"endpoints", `[` + endpointData(nil) + `]`},
		}
	case EventAuthorizationAdded:
		return fields{
			{"event_type", `"AUTHORIZATION_ADDED"`},
			{"tenant", `{"tenant_id":"` + uuidC + `","endpoints":[` + endpointData(nil) + `]}`},
			{"scope", `"endpoints:manage"`},
		}
	default:
		return fields{
			{"event_type", `"AUTHORIZATION_REVOKED"`},
			{"tenant_id", `"` + uuidC + `"`},
			{"scope", `"endpoints:manage"`},
		}
	}
}

func endpointData(change func(fields) fields) string {
	f := fields{
		{"id", `"` + uuidA + `"`},
		{"external_id", `"urn:farm:1"`},
		{"name", `"Müllers Büro"`},
		{"endpoint_type", `"cloud_software"`},
		{"application_id", `"` + uuidB + `"`},
		{"tenant_id", `"` + uuidC + `"`},
		{"owned_by_your_application", `true`},
		{"capabilities", `{"can_send":["img:jpeg"],"can_receive":[]}`},
		{"routed_endpoints", `{"can_send_to":{"` + uuidB + `":["img:jpeg"]}}`},
	}
	if change != nil {
		f = change(f)
	}
	return string(f.json())
}

type fields [][2]string

func (f fields) json() []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range f {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:%s", p[0], p[1])
	}
	b.WriteByte('}')
	return b.Bytes()
}

// with returns f with one field set, at its place or at the end.
func (f fields) with(key, value string) fields {
	out := append(fields(nil), f...)
	for i := range out {
		if out[i][0] == key {
			out[i][1] = value
			return out
		}
	}
	return append(out, [2]string{key, value})
}

func (f fields) without(key string) fields {
	var out fields
	for _, p := range f {
		if p[0] != key {
			out = append(out, p)
		}
	}
	return out
}

func utc(y int, m time.Month, d, h, min, s, ns int) time.Time {
	return time.Date(y, m, d, h, min, s, ns, time.UTC)
}

func wantEndpoint() TenantEndpointInfo {
	return TenantEndpointInfo{
		ID: uuidA, ExternalID: "urn:farm:1", Name: "Müllers Büro", EndpointType: EndpointTypeCloudSoftware,
		ApplicationID: uuidB, TenantID: uuidC, OwnedByYourApplication: true,
		Capabilities:    TenantEndpointCapabilities{CanSend: []string{"img:jpeg"}, CanReceive: []string{}},
		RoutedEndpoints: &RoutedEndpoints{CanSendTo: EndpointRouteMap{uuidB: {"img:jpeg"}}},
	}
}

// decode decodes with and without the fast path, and fails when that makes a difference, when the data
// is changed, and when the event changes with the data.
func decode(t testing.TB, name EventType, data []byte) (Event, error) {
	t.Helper()
	given := bytes.Clone(data)
	event, err := DecodeEvent(name, given)
	if !bytes.Equal(given, data) {
		t.Errorf("the data was changed from %.500q to %.500q", data, given)
	}
	for i := range given {
		given[i] = 'X'
	}
	slow, slowErr := decodeObject(name, data)
	if !reflect.DeepEqual(event, slow) || !reflect.DeepEqual(err, slowErr) {
		t.Errorf("the two decoders differ on %s %.2000q:\nfast %#v, %v\nslow %#v, %v", name, data, event, err, slow, slowErr)
	}
	if (event == nil) == (err == nil) {
		t.Errorf("got event %v and error %v", event, err)
	}
	return event, err
}

func TestDecodeEvent(t *testing.T) {
	want := map[EventType]Event{
		EventMessageReceived: &MessageReceived{
			ID: uuidA, AppMessageID: "any string", MessageType: "iso:11783:-10:taskdata:zip",
			SentAt:     utc(2026, 11, 20, 12, 34, 56, 789_000_000),
			ReceivedAt: utc(2026, 11, 20, 11, 34, 57, 0),
			Payload:    []byte("hello"), ReceivingEndpointID: uuidB,
			Filename: "TASKDATA.ZIP", TenantID: uuidC, TeamsetContextID: "team 1",
		},
		EventFileReceived: &FileReceived{
			ReceivingEndpointID: uuidB, MessageType: "img:jpeg", Size: 5_000_000_000,
			MessageIDs: []string{uuidA, uuidC}, PayloadURI: "https://payloads.example/x/y?sig=secret",
			Filename: "field.jpg", TenantID: "a plain string",
		},
		EventEndpointDeleted: &EndpointDeleted{ID: uuidA, ExternalID: "urn:farm:1", Data: validData(EventEndpointDeleted).json()},
		EventEndpointsListChanged: &EndpointsListChanged{TenantID: uuidC, Endpoints: []TenantEndpointInfo{wantEndpoint()},
			Data: validData(EventEndpointsListChanged).json()},
		EventAuthorizationAdded: &AuthorizationAdded{
			Tenant: TenantInfo{ID: uuidC, Endpoints: []TenantEndpointInfo{wantEndpoint()}},
			Scope:  ScopeEndpointsManage,
			Data:   validData(EventAuthorizationAdded).json(),
		},
		EventAuthorizationRevoked: &AuthorizationRevoked{TenantID: uuidC, Scope: ScopeEndpointsManage, Data: validData(EventAuthorizationRevoked).json()},
	}
	for _, name := range EventTypes() {
		data := validData(name).json()
		for _, given := range []EventType{name, ""} {
			got, err := decode(t, given, data)
			if err != nil {
				t.Errorf("%s, name %q: %v", name, given, err)
			} else if !reflect.DeepEqual(got, want[name]) {
				t.Errorf("%s, name %q:\n got %+v\nwant %+v", name, given, got, want[name])
			}
		}
		if got := want[name].Type(); got != name {
			t.Errorf("Type of %T is %q, want %q", want[name], got, name)
		}
	}
}

func TestDecodeTakesTheFastPath(t *testing.T) {
	full := validData(EventMessageReceived)
	for _, f := range []fields{
		full,
		full.with("new_string", `"x"`).with("new_number", "17").with("new_flag", "true").with("another", "false").with("nothing", "null"),
		full.with("filename", `"Übersicht 日本.zip"`),
		full.with("filename", "null").with("payload_uri", `"http://h/p"`).without("payload"),
		full.without("filename").without("tenant_id").without("teamset_context_id").without("received_at"),
		full.with("payload", `""`).without("payload_uri"),
	} {
		if decodeFlat(f.json()) == nil {
			t.Errorf("not taken by the fast path: %s", f.json())
		}
	}
	var indented bytes.Buffer
	testkit.NoError(t, json.Indent(&indented, full.json(), " ", "\t"))
	if decodeFlat(indented.Bytes()) == nil {
		t.Errorf("not taken by the fast path: %s", indented.Bytes())
	}
}

// A field whose name differs in case is an unknown one. What is required, and what null means, TestSpec… has of
// each event and each endpoint.
func TestDecodeNamesAreCaseSensitive(t *testing.T) {
	for _, name := range EventTypes() {
		full := validData(name)
		for _, p := range full {
			_, absent := decode(t, name, full.without(p[0]).json())
			if _, err := decode(t, name, full.without(p[0]).with(strings.ToUpper(p[0]), p[1]).json()); !reflect.DeepEqual(err, absent) {
				t.Errorf("%s with %s in capitals: got %v, want %v", name, p[0], err, absent)
			}
		}
	}
}

func wantDecodeError(t *testing.T, err error, name EventType, field, reason string) {
	t.Helper()
	var e *DecodeError
	if !errors.As(err, &e) {
		t.Errorf("%s: got error %v, want %s %s", name, err, field, reason)
		return
	}
	if e.EventType != name || e.Field != field || e.Reason != reason {
		t.Errorf("got %q %q %q, want %q %q %q", e.EventType, e.Field, e.Reason, name, field, reason)
	}
}

// wantLeftOut decodes an event with a list of two endpoints, one of which is bad:
// the other is there, and the bad one is reported.
func wantLeftOut(t *testing.T, name EventType, list, field, reason string) {
	t.Helper()
	data := validData(name).with("endpoints", list)
	if name == EventAuthorizationAdded {
		data = validData(name).with("tenant", `{"tenant_id":"`+uuidC+`","endpoints":`+list+`}`)
	}
	event, err := decode(t, name, data.json())
	if err != nil {
		t.Errorf("%s: %v: a bad endpoint hides the other", name, err)
		return
	}
	var got TenantInfo
	switch e := event.(type) {
	case *EndpointsListChanged:
		got = TenantInfo{Endpoints: e.Endpoints, Unreadable: e.Unreadable}
	case *AuthorizationAdded:
		got = e.Tenant
	}
	if len(got.Endpoints) != 1 || len(got.Unreadable) != 1 || got.Unreadable[0].Field != field || got.Unreadable[0].Reason != reason {
		t.Errorf("%s: got %+v, want %s %s", name, got, field, reason)
	}
}

func TestDecodeRejects(t *testing.T) {
	m, f, l, a := EventMessageReceived, EventFileReceived, EventEndpointsListChanged, EventAuthorizationAdded
	tests := []struct {
		name         EventType
		key, value   string
		field, error string // field "" means key
	}{
		{m, "event_type", `"FILE_RECEIVED"`, "", reasonNotEventName},
		{m, "event_type", `7`, "", reasonNotString},
		{m, "id", `7`, "", reasonNotString},
		{m, "id", `""`, "", reasonNotUUID},
		{m, "id", `"2a0b8a2e6f0e4b39a1ea0123456789ab"`, "", reasonNotUUID},
		{m, "id", `"{a0b8a2e-6f0e-4b39-a1ea-0123456789a}"`, "", reasonNotUUID},
		{m, "id", `"2a0b8a2e-6f0e-4b39-a1ea-0123456789ag"`, "", reasonNotUUID},
		{m, "id", `"2a0b8a2e-6f0e-4b39-a1eaa0123456789ab"`, "", reasonNotUUID},
		{m, "id", `"urn:uuid:` + uuidA + `"`, "", reasonNotUUID},
		{m, "receiving_endpoint_id", `"x"`, "", reasonNotUUID},
		{m, "app_message_id", `["x"]`, "", reasonNotString},
		{m, "message_type", `{}`, "", reasonNotString},
		{m, "sent_at", `""`, "", reasonNotDateTime},
		{m, "sent_at", `"yesterday"`, "", reasonNotDateTime},
		{m, "sent_at", `"2026-02-30T00:00:00Z"`, "", reasonNotDateTime},
		{m, "sent_at", `"2026-11-20"`, "", reasonNotDateTime},
		{m, "sent_at", `1732100000`, "", reasonNotString},
		{m, "payload", `"aGVsbG8=="`, "", reasonNotBase64},
		{m, "payload", `"===="`, "", reasonNotBase64},
		{m, "payload", `"aGV_bG+="`, "", reasonNotBase64},
		{m, "payload", `"aGVsb"`, "", reasonNotBase64},
		{m, "payload", `17`, "", reasonNotString},
		{m, "payload", `null`, "", reasonNoPayload},
		{m, "payload_uri", `"https://h/p"`, "", reasonWithPayload},
		{f, "payload_uri", `null`, "payload", reasonNoPayload},
		{f, "payload_uri", `""`, "payload", reasonNoPayload},
		{f, "payload_uri", `"/relative"`, "", reasonNotURI},
		{f, "payload_uri", `"//host/p"`, "", reasonNotURI},
		{f, "payload_uri", `"https:///p"`, "", reasonNotURI},
		{f, "payload_uri", `"https://:80/p"`, "", reasonNotURI},
		{f, "payload_uri", `"ftp://h/p"`, "", reasonNotURI},
		{f, "payload_uri", `"file:///etc/passwd"`, "", reasonNotURI},
		{f, "payload_uri", `"https://h/%zz"`, "", reasonNotURI},
		{f, "payload_uri", `7`, "", reasonNotString},
		{f, "size", `-1`, "", reasonNegative},
		{f, "size", `1.5`, "", reasonNotInteger},
		{f, "size", `"-1"`, "", reasonNegative},
		{f, "size", `""`, "", reasonNotInteger},
		{f, "size", `"null"`, "", reasonNotInteger},
		{f, "size", `"7 kB"`, "", reasonNotInteger},
		{f, "size", `1e300`, "", reasonNotInteger},
		{f, "size", `"0x7"`, "", reasonNotInteger},
		{f, "size", `9223372036854775808`, "", reasonNotInteger},
		{f, "message_ids", `"` + uuidA + `"`, "", reasonNotArray},
		{f, "message_ids", `{}`, "", reasonNotArray},
		{f, "message_ids", `["` + uuidA + `","x"]`, "", "holds a value that " + reasonNotUUID},
		{f, "message_ids", `["` + uuidA + `",7]`, "", "holds a value that " + reasonNotString},
		{f, "message_ids", `["` + uuidA + `",null]`, "", "holds a value that " + reasonNotString},
		{EventEndpointDeleted, "id", `"x"`, "", reasonNotUUID},
		{EventAuthorizationRevoked, "tenant_id", `"x"`, "", reasonNotUUID},
		{l, "tenant_id", `"x"`, "", reasonNotUUID},
		{l, "endpoints", `{}`, "", reasonNotArray},
		{a, "tenant", `[]`, "", reasonNotObject},
		{a, "tenant", `{"tenant_id":"x","endpoints":[]}`, "tenant.tenant_id", reasonNotUUID},
		{a, "tenant", `{"tenant_id":"` + uuidA + `"}`, "tenant.endpoints", reasonMissing},
	}
	for _, tt := range tests {
		data := validData(tt.name).with(tt.key, tt.value).json()
		_, err := decode(t, tt.name, data)
		field := tt.field
		if field == "" {
			field = tt.key
		}
		wantDecodeError(t, err, tt.name, field, tt.error)
	}
}

// One endpoint that is not as specified is left out of its list.
func TestDecodeLeavesABadEndpointOut(t *testing.T) {
	wantLeftOut(t, EventEndpointsListChanged, "[7,"+endpointData(nil)+"]", "endpoints[0]", reasonNotObject)
	wantLeftOut(t, EventAuthorizationAdded, "[null,"+endpointData(nil)+"]", "tenant.endpoints[0]", reasonNotObject)
	for _, endpoint := range []struct{ key, value, field, error string }{
		{"id", `"x"`, "id", reasonNotUUID},
		{"application_id", `"x"`, "application_id", reasonNotUUID},
		{"tenant_id", `"x"`, "tenant_id", reasonNotUUID},
		{"owned_by_your_application", `"true"`, "owned_by_your_application", reasonNotBool},
		{"capabilities", `[]`, "capabilities", reasonNotObject},
		{"capabilities", `{"can_send":[]}`, "capabilities.can_receive", reasonMissing},
		{"capabilities", `{"can_send":[1],"can_receive":[]}`, "capabilities.can_send", "holds a value that " + reasonNotString},
	} {
		bad := endpointData(func(f fields) fields { return f.with(endpoint.key, endpoint.value) })
		wantLeftOut(t, EventEndpointsListChanged, "["+bad+","+endpointData(nil)+"]", "endpoints[0]."+endpoint.field, endpoint.error)
	}
}

// null for a list is an empty one, but where that cannot be what is meant.
func TestDecodeNullForAList(t *testing.T) {
	nulls := endpointData(func(f fields) fields {
		return f.with("capabilities", `{"can_send":null,"can_receive":null}`).
			with("routed_endpoints", `{"can_send_to":{"`+uuidA+`":null},"can_receive_from":null}`)
	})
	event := testkit.Must(decode(t, EventAuthorizationAdded, validData(EventAuthorizationAdded).with("tenant", `{"tenant_id":"`+uuidC+`","endpoints":[`+nulls+`]}`).json()))(t)
	e := event.(*AuthorizationAdded).Tenant.Endpoints[0]
	if e.Capabilities.CanSend == nil || e.Capabilities.CanReceive == nil || len(e.Capabilities.CanSend)+len(e.Capabilities.CanReceive) != 0 {
		t.Errorf("capabilities %+v", e.Capabilities)
	}
	if types, ok := e.RoutedEndpoints.CanSendTo[uuidA]; !ok || types == nil || len(types) != 0 {
		t.Errorf("routes %+v", e.RoutedEndpoints)
	}
	event, err := decode(t, EventAuthorizationAdded, validData(EventAuthorizationAdded).with("tenant", `{"tenant_id":"`+uuidC+`","endpoints":null}`).json())
	if err != nil || event.(*AuthorizationAdded).Tenant.Endpoints == nil {
		t.Errorf("got %+v, %v, want an empty list", event, err)
	}
	for list, unknown := range map[string]bool{"null": true, "[]": false} {
		event, err = decode(t, EventEndpointsListChanged, validData(EventEndpointsListChanged).with("endpoints", list).json())
		if err != nil || (event.(*EndpointsListChanged).Endpoints == nil) != unknown {
			t.Errorf("endpoints %s: got %+v, %v", list, event, err)
		}
	}
	_, err = decode(t, EventFileReceived, validData(EventFileReceived).with("message_ids", "null").json())
	wantDecodeError(t, err, EventFileReceived, "message_ids", reasonMissing)
}

func TestDecodeAccepts(t *testing.T) {
	m, f := EventMessageReceived, EventFileReceived
	var ids []string // more than the fast path has room for
	for i := range 300 {
		ids = append(ids, fmt.Sprintf("%08x-0000-4000-8000-000000000000", i))
	}
	tests := []struct {
		name       EventType
		key, value string
		get        func(Event) any
		want       any
	}{
		{m, "payload", `""`, func(e Event) any { return e.(*MessageReceived).Payload }, []byte{}},
		{m, "payload", `"aGVsbG8"`, func(e Event) any { return e.(*MessageReceived).Payload }, []byte("hello")},
		{m, "payload", `" aGVs bG8= "`, func(e Event) any { return e.(*MessageReceived).Payload }, []byte("hello")},
		{m, "payload", `"_-8="`, func(e Event) any { return e.(*MessageReceived).Payload }, []byte{0xff, 0xef}},
		{m, "payload", `"_-8"`, func(e Event) any { return e.(*MessageReceived).Payload }, []byte{0xff, 0xef}},
		{m, "payload", `"aGVs\nbG8="`, func(e Event) any { return e.(*MessageReceived).Payload }, []byte("hello")}, // as encoding/base64
		{m, "payload", `"aGVsbG9="`, func(e Event) any { return e.(*MessageReceived).Payload }, []byte("hello")},   // trailing bits too
		{m, "payload", `"\u0061GVsbG8="`, func(e Event) any { return e.(*MessageReceived).Payload }, []byte("hello")},
		{m, "payload_uri", `null`, func(e Event) any { return e.(*MessageReceived).PayloadURI }, ""},
		{m, "payload_uri", `""`, func(e Event) any { return e.(*MessageReceived).Payload }, []byte("hello")},
		{m, "app_message_id", `17`, func(e Event) any { return e.(*MessageReceived).AppMessageID }, "17"},
		{m, "filename", `-1.50`, func(e Event) any { return e.(*MessageReceived).Filename }, "-1.50"},
		{m, "tenant_id", `1`, func(e Event) any { return e.(*MessageReceived).TenantID }, "1"},
		{m, "received_at", `""`, func(e Event) any { return e.(*MessageReceived).ReceivedAt }, time.Time{}},
		{m, "app_message_id", `""`, func(e Event) any { return e.(*MessageReceived).AppMessageID }, ""},
		{m, "app_message_id", `"\u0000\"\\\u00fc\ud83d\ude9c"`, func(e Event) any { return e.(*MessageReceived).AppMessageID }, "\x00\"\\ü🚜"},
		{m, "app_message_id", `"\ud83d"`, func(e Event) any { return e.(*MessageReceived).AppMessageID }, "\uFFFD"},
		{m, "app_message_id", "\"a\xffb\"", func(e Event) any { return e.(*MessageReceived).AppMessageID }, "a\uFFFDb"},
		{m, "tenant_id", `""`, func(e Event) any { return e.(*MessageReceived).TenantID }, ""},
		{m, "sent_at", `"2026-11-20T12:34:56Z"`, func(e Event) any { return e.(*MessageReceived).SentAt }, utc(2026, 11, 20, 12, 34, 56, 0)},
		{m, "sent_at", `"2024-02-29t12:34:56.1234567891z"`, func(e Event) any { return e.(*MessageReceived).SentAt }, utc(2024, 2, 29, 12, 34, 56, 123456789)},
		{m, "sent_at", `"2026-11-20T12:34:56.5-02:30"`, func(e Event) any { return e.(*MessageReceived).SentAt }, utc(2026, 11, 20, 15, 4, 56, 500_000_000)},
		{m, "sent_at", `"2026-11-20T12:34:56+0100"`, func(e Event) any { return e.(*MessageReceived).SentAt }, utc(2026, 11, 20, 11, 34, 56, 0)},
		{m, "sent_at", `"2026-11-20T12:34:56+01"`, func(e Event) any { return e.(*MessageReceived).SentAt }, utc(2026, 11, 20, 11, 34, 56, 0)},
		{m, "sent_at", `"2026-11-20T12:34:56"`, func(e Event) any { return e.(*MessageReceived).SentAt }, utc(2026, 11, 20, 12, 34, 56, 0)},
		{m, "sent_at", `"2026-11-20T12:34Z"`, func(e Event) any { return e.(*MessageReceived).SentAt }, utc(2026, 11, 20, 12, 34, 0, 0)},
		{m, "sent_at", `"20261120T123456,5+0100"`, func(e Event) any { return e.(*MessageReceived).SentAt }, utc(2026, 11, 20, 11, 34, 56, 500_000_000)},
		{m, "received_at", `"2026-12-31t23:59:60z"`, func(e Event) any { return e.(*MessageReceived).ReceivedAt }, utc(2027, 1, 1, 0, 0, 0, 0)},
		{m, "received_at", `"2026-12-31 24:00:00"`, func(e Event) any { return e.(*MessageReceived).ReceivedAt }, utc(2027, 1, 1, 0, 0, 0, 0)},
		{m, "sent_at", `"1969-12-31T23:59:59Z"`, func(e Event) any { return e.(*MessageReceived).SentAt }, utc(1969, 12, 31, 23, 59, 59, 0)},
		{m, "unknown", `[{"deep":[[{}]]}]`, func(e Event) any { return e.(*MessageReceived).ID }, uuidA},
		{f, "size", `"7"`, func(e Event) any { return e.(*FileReceived).Size }, int64(7)},
		{f, "size", `7.0`, func(e Event) any { return e.(*FileReceived).Size }, int64(7)},
		{f, "size", `"7.0"`, func(e Event) any { return e.(*FileReceived).Size }, int64(7)},
		{f, "size", `1e3`, func(e Event) any { return e.(*FileReceived).Size }, int64(1000)},
		{f, "payload", `""`, func(e Event) any { return e.(*FileReceived).PayloadURI }, "https://payloads.example/x/y?sig=secret"},
		{f, "size", `0`, func(e Event) any { return e.(*FileReceived).Size }, int64(0)},
		{f, "size", `9223372036854775807`, func(e Event) any { return e.(*FileReceived).Size }, int64(math.MaxInt64)},
		{f, "size", `-0`, func(e Event) any { return e.(*FileReceived).Size }, int64(0)},
		{f, "message_ids", `["` + strings.Join(ids, `","`) + `"]`, func(e Event) any { return e.(*FileReceived).MessageIDs }, ids},
		{m, "message_type", `"a", "message_type": "b"`, func(e Event) any { return e.(*MessageReceived).MessageType }, "b"}, // the last one
		{f, "message_ids", `[]`, func(e Event) any { return e.(*FileReceived).MessageIDs }, []string{}},
		{f, "payload_uri", `"HTTP://10.0.0.1:8080/a%2Fb?x=%20#f"`, func(e Event) any { return e.(*FileReceived).PayloadURI }, "HTTP://10.0.0.1:8080/a%2Fb?x=%20#f"},
		{f, "payload_uri", `"https:\/\/h\/p"`, func(e Event) any { return e.(*FileReceived).PayloadURI }, "https://h/p"},
		{EventEndpointsListChanged, "endpoints", `[]`, func(e Event) any { return e.(*EndpointsListChanged).Endpoints }, []TenantEndpointInfo{}},
	}
	for _, tt := range tests {
		event, err := decode(t, tt.name, validData(tt.name).with(tt.key, tt.value).json())
		if err != nil {
			t.Errorf("%s %s: %v", tt.key, tt.value, err)
		} else if got := tt.get(event); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s %s: got %#v, want %#v", tt.key, tt.value, got, tt.want)
		}
	}
}

func TestDecodeNotAnObject(t *testing.T) {
	for _, name := range append(EventTypes(), "") {
		for _, data := range []string{"", " ", "{", "{}x", `{"a":1,}`, `{"id"}`, "{'a':1}", "\x00", "{\"a\":\"\n\"}", `{"a":01}`, `{"a":nul}`, `{"a":"\x"}`,
			strings.Repeat(`{"a":`, 20_000),
			`{"a":` + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001) + "}"} {
			_, err := decode(t, name, []byte(data))
			wantDecodeError(t, err, name, "", reasonNotJSON)
		}
		for _, data := range []string{"null", "7", `"x"`, "[]", "[{}]"} {
			_, err := decode(t, name, []byte(data))
			wantDecodeError(t, err, name, "", "data "+reasonNotObject)
		}
	}
	_, err := decode(t, EventMessageReceived, []byte(strings.Repeat("[", 10_000_000)))
	wantDecodeError(t, err, EventMessageReceived, "", reasonNotJSON)
}

func TestDecodeUnknownType(t *testing.T) {
	for _, tt := range []struct {
		name EventType
		data string
		want EventType
	}{
		{"NEW", `{"event_type":"NEW","x":1}`, "NEW"},
		{"NEW", `{"x":1}`, "NEW"},
		{"NEW", `not even JSON`, "NEW"},
		{"NEW", ``, "NEW"},
		{"message_received", `{}`, "message_received"},
		{"", `{"event_type":"NEW"}`, "NEW"},
	} {
		got, err := decode(t, tt.name, []byte(tt.data))
		if err != nil || got.Type() != tt.want || string(got.(*UnknownEvent).Data) != tt.data {
			t.Errorf("%q %s: got %+v, %v, want %s", tt.name, tt.data, got, err, tt.want)
		}
	}
	_, err := decode(t, "NEW", validData(EventMessageReceived).json())
	wantDecodeError(t, err, "NEW", "event_type", reasonNotEventName)
	_, err = decode(t, "", []byte(`{"x":1}`))
	wantDecodeError(t, err, "", "event_type", reasonMissing)
	_, err = decode(t, "", []byte(`{"event_type":""}`))
	wantDecodeError(t, err, "", "event_type", reasonEmpty)
}

func TestDecodeErrorRecoversIDs(t *testing.T) {
	for _, tt := range []struct {
		what string
		name EventType
		data fields
		want DecodeError
	}{
		{"all", EventMessageReceived, validData(EventMessageReceived).without("sent_at"),
			DecodeError{EndpointID: uuidB, MessageIDs: []string{uuidA}, TenantID: uuidC}},
		{"no type", EventMessageReceived, validData(EventMessageReceived).without("event_type"),
			DecodeError{EndpointID: uuidB, MessageIDs: []string{uuidA}, TenantID: uuidC}},
		{"bad id", EventMessageReceived, validData(EventMessageReceived).with("id", `"x"`),
			DecodeError{EndpointID: uuidB, TenantID: uuidC}},
		{"bad endpoint", EventMessageReceived, validData(EventMessageReceived).with("receiving_endpoint_id", `7`),
			DecodeError{MessageIDs: []string{uuidA}, TenantID: uuidC}},
		{"file", EventFileReceived, validData(EventFileReceived).with("size", `-1`),
			DecodeError{EndpointID: uuidB, MessageIDs: []string{uuidA, uuidC}, TenantID: "a plain string"}},
		{"file with a bad id among them", EventFileReceived, validData(EventFileReceived).with("message_ids", `["`+uuidA+`",""]`),
			DecodeError{EndpointID: uuidB, TenantID: "a plain string"}},
		{"no message", EventEndpointDeleted, validData(EventEndpointDeleted).without("external_id"), DecodeError{}},
	} {
		_, err := decode(t, tt.name, tt.data.json())
		var got *DecodeError
		if !errors.As(err, &got) {
			t.Errorf("%s: got error %v", tt.what, err)
			continue
		}
		if got.EndpointID != tt.want.EndpointID || got.TenantID != tt.want.TenantID || !reflect.DeepEqual(got.MessageIDs, tt.want.MessageIDs) {
			t.Errorf("%s: got %+v, want %+v", tt.what, *got, tt.want)
		}
	}
}

// No error text holds payload, an address with its secret, or anything else
// that came from outside.
func TestDecodeErrorTextQuotesNothing(t *testing.T) {
	const secret = "S3CRET"
	for _, name := range []EventType{EventMessageReceived, EventFileReceived} {
		for _, p := range validData(name) {
			for _, value := range []string{
				`"` + secret + `"`, `"https://` + secret + `:x/"`, `["` + secret + `"]`, `{"` + secret + `":1}`, secret, `"` + secret,
			} {
				data := validData(name).with(p[0], value).json()
				if _, err := decode(t, name, data); err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("%s %s: %v", p[0], value, err)
				}
			}
		}
	}
	err := &DecodeError{EventType: EventType("a\nb" + strings.Repeat("x", 1000)), Reason: reasonNotJSON}
	if text := err.Error(); strings.Contains(text, "\n") || len(text) > 200 {
		t.Errorf("error text %q", text)
	}
	err = &DecodeError{EventType: EventFileReceived, Field: "size", Reason: reasonNegative}
	if got, want := err.Error(), "gateway: decode FILE_RECEIVED: size is negative"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestValidUUID(t *testing.T) {
	for _, good := range []string{uuidA, uuidB, uuidC} {
		if !validUUID([]byte(good)) {
			t.Errorf("%s is not valid", good)
		}
		for i := range good {
			for c := range 256 {
				b := []byte(good)
				b[i] = byte(c)
				want := strings.ContainsRune("0123456789abcdefABCDEF", rune(c))
				if good[i] == '-' {
					want = c == '-'
				}
				if got := validUUID(b); got != want {
					t.Errorf("%q: got %v", b, got)
				}
			}
			if validUUID([]byte(good[:i])) {
				t.Errorf("%q is valid", good[:i])
			}
		}
		if validUUID([]byte(good + "0")) {
			t.Errorf("%s0 is valid", good)
		}
	}
}

func TestPlain(t *testing.T) {
	for n := range 40 {
		good := bytes.Repeat([]byte("a"), n)
		if !plain(good) {
			t.Errorf("%q is not plain", good)
		}
		for i := range good {
			for _, c := range []byte{0, 1, 0x1f, '\\', 0x80, 0xff} {
				bad := bytes.Clone(good)
				bad[i] = c
				if plain(bad) {
					t.Errorf("%q is plain", bad)
				}
			}
			for _, c := range []byte{0x20, '[', ']', 0x7f, '/', 0x5d, 0x5b, 0x21} {
				fine := bytes.Clone(good)
				fine[i] = c
				if !plain(fine) {
					t.Errorf("%q is not plain", fine)
				}
			}
			if fine := string(good[:i]) + "ü" + string(good[i:]); !plain([]byte(fine)) {
				t.Errorf("%q is not plain", fine)
			}
		}
	}
}

func TestDecodeAllocations(t *testing.T) {
	data := validData(EventMessageReceived).with("received_at", `"2026-11-20T12:34:57Z"`).json()
	if got := testing.AllocsPerRun(1000, func() {
		testkit.Must(DecodeEvent(EventMessageReceived, data))(t)
	}); got > 3 {
		t.Errorf("%v allocations, want 3: the event, its strings, its payload", got)
	}
}

// FuzzDecodeEvent holds the fast path against encoding/json: same event, same
// error; and encoding/json against the plainest reading of the data there is.
func FuzzDecodeEvent(f *testing.F) {
	for i, name := range EventTypes() {
		f.Add(uint8(i), validData(name).json())
	}
	m := validData(EventMessageReceived)
	for _, value := range []string{`"AAAA\n"`, "\"AAAA\nBBB\"", "\"AA\n\n\"", `"AA=="`, `"AB=="`, `"A==="`, `"=AAA"`, `"AAAA=AAA"`, `"` + strings.Repeat("Ab+/", 40) + `"`,
		`"` + strings.Repeat("A", 60) + "\xff" + strings.Repeat("A", 59) + `"`, `"` + strings.Repeat("-_", 60) + `"`} {
		f.Add(uint8(0), m.with("payload", value).json())
	}
	f.Add(uint8(0), m.with("x", `{"a":[1,2,{"b":null}]}`).with("y", "1.5e-7").json())
	f.Add(uint8(0), append(m, m...).json())
	f.Add(uint8(0), append(m, [2]string{"payload", "null"}, [2]string{"payload_uri", `"https://h/p"`}).json())
	f.Add(uint8(6), m.json())
	f.Add(uint8(1), validData(EventFileReceived).with("size", "000").json())
	names := append(EventTypes(), "", "NEW")
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		name := names[int(which)%len(names)]
		event, err := decode(t, name, data)
		var e *DecodeError
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("error %v is not a DecodeError", err)
		}
		got, ok := event.(*MessageReceived)
		if !ok {
			return
		}
		var plain map[string]any
		if err := json.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), &plain); err != nil {
			t.Fatalf("accepted what is not JSON: %v", err)
		}
		want := func(key, got string) {
			_, number := plain[key].(float64)
			skipped := slices.ContainsFunc(event.(*MessageReceived).Unreadable, func(e *EntryError) bool { return e.Field == key })
			if s, _ := plain[key].(string); s != got && !number && !(skipped && got == "") {
				t.Errorf("%s: got %q, want %q", key, got, s)
			}
		}
		want("event_type", string(EventMessageReceived))
		want("id", got.ID)
		want("app_message_id", got.AppMessageID)
		want("message_type", got.MessageType)
		want("receiving_endpoint_id", got.ReceivingEndpointID)
		want("filename", got.Filename)
		want("tenant_id", got.TenantID)
		want("teamset_context_id", got.TeamsetContextID)
		want("payload_uri", got.PayloadURI)
		if s, ok := plain["payload"].(string); (ok && (s != "" || got.PayloadURI == "")) != (got.Payload != nil) {
			t.Errorf("payload there: %v, decoded: %v", ok, got.Payload != nil)
		} else if payload, err := base64.StdEncoding.DecodeString(s); err == nil && !bytes.Equal(payload, got.Payload) {
			t.Errorf("payload %q, want %q, %v", got.Payload, payload, err)
		}
	})
}
