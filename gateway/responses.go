package gateway

import (
	"encoding/json"
	"strconv"
)

// Answers are read in two steps: first every required field that is missing is
// collected, so that the error names them all, then the values are decoded by
// the same code that decodes events. Unknown fields are ignored.

var endpointInfoFields = []string{
	"id", "name", "endpoint_type", "application_id", "tenant_id", "owned_by_your_application", "capabilities",
}

var endpointFields = []string{
	"id", "external_id", "endpoint_type", "tenant_id", "application_id", "software_version_id", "capabilities",
}

// missing collects the paths of required fields.
type missing []string

func (m *missing) need(o object, path string, fields ...string) {
	for _, f := range fields {
		if !o.has(f) {
			*m = append(*m, path+f)
		}
	}
}

// each visits the objects of an array that is there; wrong types are left to
// the second step.
func (m *missing) each(o object, path, field string, visit func(o object, path string)) {
	var list []json.RawMessage
	if json.Unmarshal(o[field], &list) != nil {
		return
	}
	for i, raw := range list {
		if item, ok := parseObject(raw); ok {
			visit(item, path+field+"["+strconv.Itoa(i)+"].")
		}
	}
}

func (m *missing) endpointInfo(o object, path string) {
	m.need(o, path, endpointInfoFields...)
	if c, ok := parseObject(o["capabilities"]); ok {
		m.need(c, path+"capabilities.", "can_send", "can_receive")
	}
}

func (m *missing) tenant(o object, path string) {
	m.need(o, path, "tenant_id", "endpoints")
	m.each(o, path, "endpoints", m.endpointInfo)
}

// decodeResponse runs both steps.
func decodeResponse(body []byte, require func(m *missing, o object), read func(d *objectDecoder)) error {
	o, ok := parseObject(body)
	if !ok {
		return &ResponseError{Reason: "not a JSON object"}
	}
	var m missing
	require(&m, o)
	if len(m) > 0 {
		return &ResponseError{Missing: m}
	}
	d := &objectDecoder{object: o, err: new(*DecodeError)}
	read(d)
	if e := *d.err; e != nil {
		return &ResponseError{Reason: e.Field + " " + e.Reason}
	}
	return nil
}

func decodeTenants(body []byte) (tenants []TenantInfo, err error) {
	err = decodeResponse(body, func(m *missing, o object) {
		m.need(o, "", "tenants")
		m.each(o, "", "tenants", m.tenant)
	}, func(d *objectDecoder) {
		list := d.array("tenants")
		tenants = make([]TenantInfo, 0, len(list))
		for i, raw := range list {
			t := d.descend("tenants["+strconv.Itoa(i)+"]", raw)
			if t == nil {
				return
			}
			tenants = append(tenants, TenantInfo{
				TenantID:  t.str("tenant_id", required|isUUID),
				Endpoints: t.endpoints("endpoints"),
			})
		}
	})
	if err != nil {
		return nil, err
	}
	return tenants, nil
}

func decodeEndpoints(body []byte) (endpoints []TenantEndpointInfo, err error) {
	err = decodeResponse(body, func(m *missing, o object) {
		m.need(o, "", "endpoints")
		m.each(o, "", "endpoints", m.endpointInfo)
	}, func(d *objectDecoder) {
		endpoints = d.endpoints("endpoints")
	})
	if err != nil {
		return nil, err
	}
	return endpoints, nil
}

func decodeEndpoint(body []byte) (e Endpoint, err error) {
	err = decodeResponse(body, func(m *missing, o object) {
		m.need(o, "", endpointFields...)
		m.each(o, "", "capabilities", func(o object, path string) {
			m.need(o, path, "message_type", "direction")
		})
	}, func(d *objectDecoder) {
		e = Endpoint{
			ID:                d.str("id", required|isUUID),
			ExternalID:        d.str("external_id", required),
			EndpointType:      EndpointType(d.str("endpoint_type", required)),
			TenantID:          d.str("tenant_id", required),
			ApplicationID:     d.str("application_id", required|isUUID),
			SoftwareVersionID: d.str("software_version_id", required|isUUID),
			ConnectionsURI:    d.str("connections_uri", 0),
		}
		if d.has("allow_delete_by_user") {
			e.AllowDeleteByUser = d.bool("allow_delete_by_user")
		}
		list := d.array("capabilities")
		e.Capabilities = make([]EndpointCapability, 0, len(list))
		for i, raw := range list {
			c := d.descend("capabilities["+strconv.Itoa(i)+"]", raw)
			if c == nil {
				return
			}
			e.Capabilities = append(e.Capabilities, EndpointCapability{
				MessageType: c.str("message_type", required),
				Direction:   Direction(c.str("direction", required)),
			})
		}
	})
	if err != nil {
		return Endpoint{}, err
	}
	return e, nil
}
