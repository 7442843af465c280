package gateway

import (
	"reflect"
	"testing"
)

// What one bad part of an event costs: lost is what the event is without, and said is where and why.
func TestDecodeWhatIsLost(t *testing.T) {
	m, f, l := EventMessageReceived, EventFileReceived, EventEndpointsListChanged
	without := func(change func(any)) func(Event) {
		return func(e Event) { change(e) }
	}
	nothing := func(Event) {}
	endpoint := func(change func(*TenantEndpointInfo)) func(Event) {
		return func(e Event) { change(&e.(*EndpointsListChanged).Endpoints[0]) }
	}
	list := func(key, value string) string {
		return "[" + endpointData(func(f fields) fields { return f.with(key, value) }) + "]"
	}
	for _, tt := range []struct {
		what       string
		name       EventType
		key, value string
		lost       func(Event)
		field      string
		reason     string
	}{
		{"an optional time that is none", m, "received_at", `"soon"`, without(func(e any) { e.(*MessageReceived).ReceivedAt = utc(1, 1, 1, 0, 0, 0, 0) }), "received_at", reasonNotDateTime},
		{"an optional time of another kind", m, "received_at", `1795178096`, without(func(e any) { e.(*MessageReceived).ReceivedAt = utc(1, 1, 1, 0, 0, 0, 0) }), "received_at", reasonNotString},
		{"an optional string of another kind", m, "filename", `true`, without(func(e any) { e.(*MessageReceived).Filename = "" }), "filename", reasonNotString},
		{"an optional string that is a list", m, "tenant_id", `["x"]`, without(func(e any) { e.(*MessageReceived).TenantID = "" }), "tenant_id", reasonNotString},
		{"an optional string that is an object", m, "teamset_context_id", `{}`, without(func(e any) { e.(*MessageReceived).TeamsetContextID = "" }), "teamset_context_id", reasonNotString},
		{"an address beside a payload that is none", m, "payload_uri", `"/relative"`, nothing, "payload_uri", reasonNotURI},
		{"an address beside a payload of another kind", m, "payload_uri", `7`, nothing, "payload_uri", reasonNotString},
		{"an optional string of a file", f, "filename", `false`, without(func(e any) { e.(*FileReceived).Filename = "" }), "filename", reasonNotString},
		{"an unknown field", m, "new", `{"a":[1]}`, nothing, "", ""},
		{"an optional field that is null", m, "filename", `null`, without(func(e any) { e.(*MessageReceived).Filename = "" }), "", ""},
		{"an optional field that is empty", m, "received_at", `""`, without(func(e any) { e.(*MessageReceived).ReceivedAt = utc(1, 1, 1, 0, 0, 0, 0) }), "", ""},

		{"an optional field of an endpoint", l, "endpoints", list("external_id", `[]`), endpoint(func(e *TenantEndpointInfo) { e.ExternalID = "" }), "endpoints[0].external_id", reasonNotString},
		{"the routes of an endpoint", l, "endpoints", list("routed_endpoints", `[]`), endpoint(func(e *TenantEndpointInfo) { e.RoutedEndpoints = nil }), "endpoints[0].routed_endpoints", reasonNotObject},
		{"the routes of an endpoint in one direction", l, "endpoints", list("routed_endpoints", `{"can_receive_from":7,"can_send_to":{"`+uuidB+`":["img:jpeg"]}}`), nothing, "endpoints[0].routed_endpoints.can_receive_from", reasonNotObject},
		{"a route to no endpoint", l, "endpoints", list("routed_endpoints", `{"can_send_to":{"x":[]}}`), endpoint(func(e *TenantEndpointInfo) { e.RoutedEndpoints = &RoutedEndpoints{} }), "endpoints[0].routed_endpoints.can_send_to", "has a key that " + reasonNotUUID},
		{"a required field of an endpoint", l, "endpoints", list("application_id", `"x"`), func(e Event) { e.(*EndpointsListChanged).Endpoints = []TenantEndpointInfo{} }, "endpoints[0].application_id", reasonNotUUID},
	} {
		got, err := decode(t, tt.name, validData(tt.name).with(tt.key, tt.value).json())
		want, _ := decode(t, tt.name, validData(tt.name).json())
		tt.lost(want)
		var said []*EntryError
		switch e := got.(type) {
		case *MessageReceived:
			said, e.Unreadable = e.Unreadable, nil
		case *FileReceived:
			said, e.Unreadable = e.Unreadable, nil
		case *EndpointsListChanged:
			said, e.Unreadable = e.Unreadable, nil
			e.Data = want.(*EndpointsListChanged).Data
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", tt.what, got, err, want)
		}
		switch {
		case tt.field == "" && len(said) > 0, tt.field != "" && (len(said) != 1 || said[0].Field != tt.field || said[0].Reason != tt.reason):
			t.Errorf("%s: got %v, want %s %s", tt.what, said, tt.field, tt.reason)
		}
	}
}

// The size that a file announces is that of an embedded payload: another one is a mistake in
// either of them, as with a payload that is downloaded.
func TestDecodeSizeOfAnEmbeddedPayload(t *testing.T) {
	file := validData(EventFileReceived).without("payload_uri").with("payload", `"aGVsbG8="`)
	for _, size := range []string{"5", `"5"`, "5.0"} {
		event, err := decode(t, EventFileReceived, file.with("size", size).json())
		if err != nil || event.(*FileReceived).Size != 5 {
			t.Errorf("size %s: got %+v, %v", size, event, err)
		}
	}
	for _, size := range []string{"0", "4", "6", "5000000000", `"7"`} {
		_, err := decode(t, EventFileReceived, file.with("size", size).json())
		wantDecodeError(t, err, EventFileReceived, "size", reasonNotSize)
	}
	_, err := decode(t, EventFileReceived, file.with("payload", `""`).with("size", "7").json())
	wantDecodeError(t, err, EventFileReceived, "size", reasonNotSize)
}

// A byte order mark before the object is no part of it.
func TestDecodeByteOrderMark(t *testing.T) {
	for _, name := range EventTypes() {
		if event, err := decode(t, name, append([]byte("\ufeff"), validData(name).json()...)); err != nil || event.Type() != name {
			t.Errorf("%s: got %+v, %v", name, event, err)
		}
	}
}
