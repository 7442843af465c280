package gateway

// EntryError describes why an entry of a list of tenants or endpoints could not be
// read. Such an entry is skipped and hides none of the others. The error quotes
// none of the data.
type EntryError struct {
	// Field is the path of the offending field, for example
	// "tenants[1].endpoints[0].capabilities.can_send".
	Field string
	// Reason describes the problem.
	Reason string
	// EndpointID is the ID of an endpoint that was skipped; empty if it could
	// not be read, and for tenants.
	EndpointID string
}

// Error returns the field and the reason.
func (e *EntryError) Error() string { return "gateway: entry skipped: " + e.Field + " " + e.Reason }

// entryError converts the first error of the decoder of one entry.
func (d *objectDecoder) entryError() *EntryError {
	e := *d.err
	if e == nil {
		return nil
	}
	return &EntryError{Field: e.Field, Reason: e.Reason}
}
