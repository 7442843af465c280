package gateway

import "strconv"

// Responses are decoded by the same code that decodes events. Unknown fields are ignored. The
// entries of a list of tenants or endpoints are decoded independently: an invalid one is reported
// and skipped.

// decodeResponse decodes a response whose body is one JSON object.
func decodeResponse(body []byte, read func(d *objectDecoder)) error {
	o, ok := parseObject(body)
	if !ok {
		return &ResponseError{Reason: "not a JSON object"}
	}
	d := newObjectDecoder(o)
	read(d)
	if e := d.err; e != nil {
		return &ResponseError{Reason: e.Field + " " + e.Reason}
	}
	return nil
}

// decodeTenants also returns errors for the tenants that were skipped because their ID could not be read. One whose endpoints
// cannot be read is included: it is still authorized.
func decodeTenants(body []byte) (tenants []TenantInfo, unreadable []*EntryError, err error) {
	err = decodeResponse(body, func(d *objectDecoder) {
		list := d.array("tenants")
		tenants = make([]TenantInfo, 0, len(list))
		for i, raw := range list {
			e := newObjectDecoder(nil)
			var info TenantInfo
			if t := e.descend("tenants["+strconv.Itoa(i)+"]", raw); t != nil {
				info.ID = t.id("tenant_id")
				if e.err == nil {
					info.Endpoints, info.Unreadable = t.endpoints("endpoints")
				}
			}
			switch {
			case e.err == nil:
				tenants = append(tenants, info)
			case !validUUID([]byte(info.ID)):
				unreadable = append(unreadable, e.skipped()...)
			default:
				tenants = append(tenants, TenantInfo{ID: info.ID, Unreadable: e.skipped()})
			}
		}
	})
	return tenants, unreadable, err
}

func decodeEndpoints(body []byte) (endpoints []TenantEndpointInfo, unreadable []*EntryError, err error) {
	err = decodeResponse(body, func(d *objectDecoder) {
		endpoints, unreadable = d.endpoints("endpoints")
	})
	return endpoints, unreadable, err
}

func decodeEndpoint(body []byte) (e Endpoint, unreadable []*EntryError, err error) {
	err = decodeResponse(body, func(d *objectDecoder) {
		e = Endpoint{
			ID:                d.id("id"),
			ExternalID:        d.text("external_id"),
			EndpointType:      EndpointType(d.text("endpoint_type")),
			TenantID:          d.text("tenant_id"),
			ApplicationID:     d.id("application_id"),
			SoftwareVersionID: d.id("software_version_id"),
			AllowDeleteByUser: optional(d, "allow_delete_by_user", (*objectDecoder).bool),
			ConnectionsURI:    optional(d, "connections_uri", (*objectDecoder).str),
		}
		list := d.array("capabilities")
		e.Capabilities = make([]EndpointCapability, 0, len(list))
		for i, raw := range list {
			c := d.descend("capabilities["+strconv.Itoa(i)+"]", raw)
			if c == nil {
				return
			}
			e.Capabilities = append(e.Capabilities, EndpointCapability{
				MessageType: c.text("message_type"),
				Direction:   Direction(c.text("direction")),
			})
		}
		unreadable = d.unreadable
	})
	return e, unreadable, err
}
