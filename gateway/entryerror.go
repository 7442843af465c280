package gateway

// EntryError describes why a part of an event or a response could not be read: an entry of a list
// of tenants or endpoints, or an optional field. Only that part is skipped. The error quotes none
// of the data.
type EntryError struct {
	// Field is the path of the offending field, for example
	// "tenants[1].endpoints[0].capabilities.can_send" or "received_at".
	Field string
	// Reason describes the problem.
	Reason string
	// EndpointID is the ID of the endpoint in a list that was skipped, or whose optional field
	// was; empty if it could not be read, and otherwise.
	EndpointID string
}

// Error returns the field and the reason.
func (e *EntryError) Error() string { return "gateway: skipped: " + e.Field + " " + e.Reason }

// skipped returns what a caller leaves out that goes on without what could not be decoded.
func (d *decoded) skipped() []*EntryError {
	if e := d.err; e != nil {
		return []*EntryError{{Field: e.Field, Reason: e.Reason}}
	}
	return d.unreadable
}
