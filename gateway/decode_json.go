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
	d := &objectDecoder{object: o, err: new(*DecodeError)}
	eventType := EventType(d.str("event_type", required))
	if name == "" {
		if name = eventType; name == "" {
			d.fail("event_type", reasonEmpty)
		}
	}
	if *d.err == nil && eventType != name {
		d.fail("event_type", reasonNotEventName)
	}
	if *d.err == nil && !name.Known() {
		return &UnknownEvent{EventType: name, Data: bytes.Clone(data)}, nil
	}
	var event Event
	if *d.err == nil {
		event = d.event(name)
	}
	if e := *d.err; e != nil {
		if name.Known() {
			e.EventType = name
			recoverIDs(e, o)
		}
		return nil, e
	}
	return event, nil
}

func (d *objectDecoder) event(t EventType) Event {
	switch t {
	case EventMessageReceived:
		m := &MessageReceived{
			ID:                  d.str("id", required|isUUID),
			AppMessageID:        d.str("app_message_id", required),
			MessageType:         d.str("message_type", required),
			ReceivingEndpointID: d.str("receiving_endpoint_id", required|isUUID),
			Filename:            d.str("filename", 0),
			TenantID:            d.str("tenant_id", 0),
			TeamsetContextID:    d.str("teamset_context_id", 0),
		}
		m.SentAt = d.time("sent_at", required)
		m.ReceivedAt = d.time("received_at", 0)
		m.Payload, m.PayloadURI = d.payload()
		return m
	case EventFileReceived:
		f := &FileReceived{
			ReceivingEndpointID: d.str("receiving_endpoint_id", required|isUUID),
			MessageType:         d.str("message_type", required),
			Size:                d.size("size"),
			MessageIDs:          d.messageIDs("message_ids"),
			Filename:            d.str("filename", 0),
			TenantID:            d.str("tenant_id", 0),
			TeamsetContextID:    d.str("teamset_context_id", 0),
		}
		f.Payload, f.PayloadURI = d.payload()
		return f
	case EventEndpointDeleted:
		return &EndpointDeleted{
			ID:         d.str("id", required|isUUID),
			ExternalID: d.str("external_id", required),
		}
	case EventEndpointsListChanged:
		e := &EndpointsListChanged{TenantID: d.str("tenant_id", required|isUUID)}
		if !d.isNull("endpoints") {
			e.Endpoints, e.Unreadable = d.endpoints("endpoints")
		}
		return e
	case EventAuthorizationAdded:
		return &AuthorizationAdded{
			Tenant: d.tenant("tenant"),
			Scope:  d.str("scope", required),
		}
	default: // EventAuthorizationRevoked; checked by the caller
		return &AuthorizationRevoked{
			TenantID: d.str("tenant_id", required|isUUID),
			Scope:    d.str("scope", required),
		}
	}
}

func (d *objectDecoder) tenant(key string) TenantInfo {
	t := d.child(key)
	if t == nil {
		return TenantInfo{}
	}
	info := TenantInfo{TenantID: t.str("tenant_id", required|isUUID)}
	info.Endpoints, info.Unreadable = t.endpoints("endpoints")
	return info
}

// endpoints returns a required list, never nil, and the entries that were skipped.
func (d *objectDecoder) endpoints(key string) ([]TenantEndpointInfo, []*EntryError) {
	raw := d.array(key)
	list := make([]TenantEndpointInfo, 0, len(raw))
	var unreadable []*EntryError
	for i, r := range raw {
		// Each entry has its own error, so that none hides the others.
		e := &objectDecoder{path: d.path, err: new(*DecodeError)}
		entry := e.descend(key+"["+strconv.Itoa(i)+"]", r)
		var info TenantEndpointInfo
		if entry != nil {
			info = entry.endpointInfo()
		}
		if bad := e.entryError(); bad != nil {
			if entry != nil {
				bad.EndpointID = entry.uuid("id")
			}
			unreadable = append(unreadable, bad)
			continue
		}
		list = append(list, info)
	}
	return list, unreadable
}

func (d *objectDecoder) endpointInfo() TenantEndpointInfo {
	info := TenantEndpointInfo{
		ID:                     d.str("id", required|isUUID),
		ExternalID:             d.str("external_id", 0),
		Name:                   d.str("name", required),
		EndpointType:           EndpointType(d.str("endpoint_type", required)),
		ApplicationID:          d.str("application_id", required|isUUID),
		TenantID:               d.str("tenant_id", required|isUUID),
		OwnedByYourApplication: d.bool("owned_by_your_application"),
	}
	if c := d.child("capabilities"); c != nil {
		info.Capabilities.CanSend = c.strings("can_send", 0)
		info.Capabilities.CanReceive = c.strings("can_receive", 0)
	}
	if d.has("routed_endpoints") {
		if c := d.child("routed_endpoints"); c != nil {
			info.RoutedEndpoints = &RoutedEndpoints{
				CanSendTo:      c.routes("can_send_to"),
				CanReceiveFrom: c.routes("can_receive_from"),
			}
		}
	}
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
		quiet := &objectDecoder{object: o, err: new(*DecodeError)}
		if ids := quiet.messageIDs("message_ids"); *quiet.err == nil {
			e.MessageIDs = ids
		}
	default:
		return
	}
	e.EndpointID = o.uuid("receiving_endpoint_id")
	e.TenantID, _ = o.peek("tenant_id")
}
