package archtest

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
)

// TestFieldsAreThoseOfTheSpecification compares the JSON names of the client's
// types with the fields of the specification, and which of them may be left
// out. Events have no JSON names: they are decoded by hand.
func TestFieldsAreThoseOfTheSpecification(t *testing.T) {
	t.Parallel()
	specification := readSpecification(t)
	for heading, value := range map[string]any{
		"Endpoint (returned by PUT /endpoints/{externalId})":       gateway.Endpoint{},
		"PutEndpointRequest (body of PUT /endpoints/{externalId})": gateway.PutEndpointRequest{},
		"EndpointCapability":         gateway.EndpointCapability{},
		"EndpointSubscription":       gateway.EndpointSubscription{},
		"TenantEndpointInfo":         gateway.TenantEndpointInfo{},
		"TenantEndpointCapabilities": gateway.TenantEndpointCapabilities{},
		"RoutedEndpoints":            gateway.RoutedEndpoints{},
		"TenantInfo":                 gateway.TenantInfo{},
		"Errors":                     gateway.ErrorResponse{},
	} {
		var want, got []string
		for _, sec := range specification {
			if sec.heading != heading {
				continue
			}
			for _, r := range sec.tables[0].rows {
				name := r.cells[0]
				if r.cells[2] != "yes" {
					name += " (optional)"
				}
				want = append(want, name)
			}
		}
		typ := reflect.TypeOf(value)
		for i := range typ.NumField() {
			name, options, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name == "-" {
				continue // not on the wire: how the client read the rest
			}
			if options == "omitempty" {
				name += " (optional)"
			}
			got = append(got, name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v has the fields\n%v, want\n%v", heading, typ, got, want)
		}
	}
}

// TestNamesAreThoseOfTheSpecification compares the constants of the client with
// the values of the specification.
func TestNamesAreThoseOfTheSpecification(t *testing.T) {
	t.Parallel()
	find := func(heading string, table int) (rows []tableRow) {
		for _, sec := range readSpecification(t) {
			if sec.heading == heading && table < len(sec.tables) {
				rows = sec.tables[table].rows
			}
		}
		if rows == nil {
			t.Fatalf("the specification has no table %d under %q", table, heading)
		}
		return rows
	}
	equal := func(what string, got, want []string) {
		t.Helper()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	var headers []string
	for _, r := range find("POST /messages (sendMessages)", 0) {
		if name := r.cells[0]; name != "content-length" {
			headers = append(headers, name)
		}
	}
	equal("headers", []string{
		gateway.KeyIsPublish, gateway.KeyDirectRecipients, gateway.KeySentTimestamp, gateway.KeyEndpointID, gateway.KeyTeamsetContextID,
		gateway.KeyMessageType, gateway.KeyTenantID, gateway.KeyContextID, gateway.KeyFilename,
	}, headers)

	var events, known []string
	for _, r := range find("Events", 0) {
		events = append(events, r.cells[0])
	}
	for _, name := range gateway.EventTypes() {
		known = append(known, string(name))
	}
	equal("event types", known, events)

	enumerations := find("Enumerations", 0)
	equal("endpoint types to read", []string{
		string(gateway.EndpointTypeCloudSoftware), string(gateway.EndpointTypeVirtualCommunicationUnit),
		string(gateway.EndpointTypeCommunicationUnit), string(gateway.EndpointTypeTelemetryPlatform),
	}, codeSpans(enumerations[0].cells[1]))
	var creatable []string
	for _, name := range append(codeSpans(enumerations[0].cells[1]), codeSpans(enumerations[1].cells[1])...) {
		id := "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
		req := gateway.PutEndpointRequest{ApplicationID: id, SoftwareVersionID: id, EndpointType: gateway.EndpointType(name)}
		if req.Validate() == nil && !slices.Contains(creatable, name) {
			creatable = append(creatable, name)
		}
	}
	equal("endpoint types to create", creatable, codeSpans(enumerations[1].cells[1]))

	var texts []string
	for _, r := range find("Routing failures on POST /messages (status 400)", 0) {
		texts = append(texts, r.cells[0])
	}
	equal("routing failures", []string{gateway.MessageNoRecipients, gateway.MessagePartialDelivery}, texts)
}
