package gateway

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// decodeObject decodes any event with encoding/json.
func decodeObject(name EventType, data []byte) (Event, error) {
	o, ok := parseObject(data)
	if name != "" && !name.Known() {
		// Nothing is known about its data, except that it may name the type.
		if ok {
			if t, has := o.peek("event_type"); has && t != string(name) {
				return nil, &DecodeError{EventType: name, Field: "event_type", Reason: reasonNotEventName}
			}
		}
		return &UnknownEvent{EventType: name, Data: bytes.Clone(data)}, nil
	}
	if !ok {
		e := &DecodeError{EventType: name, Reason: reasonNotJSON}
		if json.Valid(data) {
			e.Reason = "data " + reasonNotObject
		}
		return nil, e
	}
	d := newObjectDecoder(o)
	eventType := EventType(d.str("event_type"))
	if name == "" {
		if name = eventType; name == "" {
			d.fail("event_type", reasonEmpty)
		}
	}
	if d.err == nil && eventType != name {
		d.fail("event_type", reasonNotEventName)
	}
	if d.err == nil && !name.Known() {
		return &UnknownEvent{EventType: name, Data: bytes.Clone(data)}, nil
	}
	var event Event
	if d.err == nil {
		event = d.event(name, data)
	}
	if e := d.err; e != nil {
		if name.Known() {
			e.EventType = name
			recoverIDs(e, o)
		}
		return nil, e
	}
	return event, nil
}

func (d *objectDecoder) event(t EventType, data []byte) Event {
	switch t {
	case EventMessageReceived:
		m := &MessageReceived{
			ID:                  d.id("id"),
			AppMessageID:        d.text("app_message_id"),
			MessageType:         d.text("message_type"),
			ReceivingEndpointID: d.id("receiving_endpoint_id"),
			Filename:            optional(d, "filename", (*objectDecoder).text),
			TenantID:            optional(d, "tenant_id", (*objectDecoder).text),
			TeamsetContextID:    optional(d, "teamset_context_id", (*objectDecoder).text),
		}
		m.SentAt = d.time("sent_at")
		m.ReceivedAt = optional(d, "received_at", (*objectDecoder).time)
		m.Payload, m.PayloadURI = d.payload()
		m.Unreadable = d.unreadable
		return m
	case EventFileReceived:
		f := &FileReceived{
			ReceivingEndpointID: d.id("receiving_endpoint_id"),
			MessageType:         d.text("message_type"),
			Size:                d.size("size"),
			MessageIDs:          d.messageIDs("message_ids"),
			Filename:            optional(d, "filename", (*objectDecoder).text),
			TenantID:            optional(d, "tenant_id", (*objectDecoder).text),
			TeamsetContextID:    optional(d, "teamset_context_id", (*objectDecoder).text),
		}
		f.Payload, f.PayloadURI = d.payload()
		if f.Payload != nil && int64(len(f.Payload)) != f.Size {
			d.fail("size", reasonNotSize)
		}
		f.Unreadable = d.unreadable
		return f
	case EventEndpointDeleted:
		return &EndpointDeleted{
			ID:         d.id("id"),
			ExternalID: d.text("external_id"),
			Data:       bytes.Clone(data),
		}
	case EventEndpointsListChanged:
		e := &EndpointsListChanged{TenantID: d.id("tenant_id"), Data: bytes.Clone(data)}
		if !d.isNull("endpoints") {
			e.Endpoints, e.Unreadable = d.endpoints("endpoints")
		}
		return e
	case EventAuthorizationAdded:
		return &AuthorizationAdded{
			Tenant: d.tenant("tenant"),
			Scope:  d.text("scope"),
			Data:   bytes.Clone(data),
		}
	default: // EventAuthorizationRevoked; checked by the caller
		return &AuthorizationRevoked{
			TenantID: d.id("tenant_id"),
			Scope:    d.text("scope"),
			Data:     bytes.Clone(data),
		}
	}
}

func (d *objectDecoder) tenant(key string) TenantInfo {
	t := d.child(key)
	if t == nil {
		return TenantInfo{}
	}
	info := TenantInfo{ID: t.id("tenant_id")}
	info.Endpoints, info.Unreadable = t.endpoints("endpoints")
	return info
}

// endpoints returns a required list, never nil, and what was skipped.
func (d *objectDecoder) endpoints(key string) ([]TenantEndpointInfo, []*EntryError) {
	raw := d.array(key)
	list := make([]TenantEndpointInfo, 0, len(raw))
	var unreadable []*EntryError
	for i, r := range raw {
		// Each entry has its own error, so that none hides the others.
		e := &objectDecoder{path: d.path, decoded: new(decoded)}
		entry := e.descend(key+"["+strconv.Itoa(i)+"]", r)
		var info TenantEndpointInfo
		if entry != nil {
			info = entry.endpointInfo()
		}
		if e.err == nil {
			list = append(list, info)
		}
		for _, bad := range e.skipped() {
			if entry != nil {
				bad.EndpointID = entry.uuid("id")
			}
			unreadable = append(unreadable, bad)
		}
	}
	return list, unreadable
}

func (d *objectDecoder) endpointInfo() TenantEndpointInfo {
	info := TenantEndpointInfo{
		ID:                     d.id("id"),
		ExternalID:             optional(d, "external_id", (*objectDecoder).text),
		Name:                   d.text("name"),
		EndpointType:           EndpointType(d.text("endpoint_type")),
		ApplicationID:          d.id("application_id"),
		TenantID:               d.id("tenant_id"),
		OwnedByYourApplication: d.bool("owned_by_your_application"),
	}
	if c := d.child("capabilities"); c != nil {
		info.Capabilities.CanSend = c.strings("can_send")
		info.Capabilities.CanReceive = c.strings("can_receive")
	}
	info.RoutedEndpoints = optional(d, "routed_endpoints", (*objectDecoder).routed)
	return info
}

// recoverIDs fills in what can be read of an otherwise invalid event.
func recoverIDs(e *DecodeError, o object) {
	switch e.EventType {
	case EventMessageReceived:
		if id := o.uuid("id"); id != "" {
			e.MessageIDs = []string{id}
		}
	case EventFileReceived:
		// All or none: some of them would confirm only a part of the file.
		quiet := newObjectDecoder(o)
		if ids := quiet.messageIDs("message_ids"); quiet.err == nil {
			e.MessageIDs = ids
		}
	default:
		return
	}
	e.EndpointID = o.uuid("receiving_endpoint_id")
	e.TenantID, _ = o.peek("tenant_id")
}
