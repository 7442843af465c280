package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"path"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestSpecEndpoint(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	req := w.putRequest()
	req.AllowDeleteByUser, req.ConnectionsURI = true, "https://fmis.example/connections?x=1"
	put := func(t *testing.T) error {
		t.Helper()
		_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:1", req)
		return err
	}
	e := w.put(t, "urn:farm:1", req)
	w.fields(t, []field{
		{"id", isUUID(e.ID), true, true},
		{"external_id", e.ExternalID, "urn:farm:1", true},
		{"endpoint_type", e.EndpointType, gateway.EndpointTypeCloudSoftware, true},
		{"tenant_id", e.TenantID, w.Tenant(), true},
		{"application_id", e.ApplicationID, w.Application().ID, true},
		{"software_version_id", e.SoftwareVersionID, w.Application().SoftwareVersionID, true},
		{"capabilities", e.Capabilities, req.Capabilities, true},
		{"allow_delete_by_user", e.AllowDeleteByUser, true, false},
		{"connections_uri", e.ConnectionsURI, req.ConnectionsURI, false},
	}, top, put, "capabilities")

	// Left out, the optional ones have their defaults; the tenant is a plain
	// string, the other IDs are UUIDs.
	w.wire.set(func(x *wire) {
		x.answer = func(o map[string]any) {
			delete(o, "allow_delete_by_user")
			delete(o, "connections_uri")
			o["tenant_id"] = "no UUID"
		}
	})
	if e = w.put(t, "urn:farm:1", req); e.AllowDeleteByUser || e.ConnectionsURI != "" || e.TenantID != "no UUID" {
		t.Errorf("got %+v", e)
	}
	for _, id := range []string{"id", "application_id", "software_version_id"} {
		w.wire.set(func(x *wire) { x.answer = func(o map[string]any) { o[id] = "no UUID" } })
		wantError(t, put(t), gateway.ErrBadResponse)
	}
}

func TestSpecPutEndpointRequest(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{Application: gatewaytest.ApplicationConfig{Capabilities: []gateway.EndpointCapability{
		{MessageType: specType, Direction: gateway.DirectionSendReceive}, {MessageType: specOther, Direction: gateway.DirectionSendReceive},
	}}})
	// refused sends the request with one change on its way, past the client's own
	// validation, and wants the service to refuse it too.
	refused := func(t *testing.T, change func(map[string]any), target error) {
		t.Helper()
		w.wire.set(func(x *wire) {
			x.request = func(r *http.Request) {
				editBody(t, r, change)
			}
		})
		_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:refused", w.putRequest())
		w.wire.set(nil)
		wantError(t, err, target)
	}
	invalid := func(t *testing.T, change func(*gateway.PutEndpointRequest)) {
		t.Helper()
		req := w.putRequest()
		change(&req)
		_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:refused", req)
		wantInvalid(t, err, path.Base(t.Name()))
	}
	set := func(key string, value any) func(map[string]any) { return func(o map[string]any) { o[key] = value } }
	without := func(key string) func(map[string]any) { return func(o map[string]any) { delete(o, key) } }

	t.Run("name", func(t *testing.T) {
		req := w.putRequest()
		for _, name := range []string{"x", strings.Repeat("ж", 200), "Größe 農場 7-_.,:", "5 m² ½ Ⅳ", "हिंदी"} {
			req.Name = name
			if e := w.put(t, "urn:farm:1", req); w.listed(t, e.ID).Name != name {
				t.Errorf("name %q became %q", name, w.listed(t, e.ID).Name)
			}
		}
		for _, name := range []string{strings.Repeat("ж", 201), "   ", "\t", "semi;colon", "a/b", "a\tb", "a\nb", "a\u00a0b", "5 €", "🚜", "a\xff"} {
			invalid(t, func(r *gateway.PutEndpointRequest) { r.Name = name })
			refused(t, set("name", name), gateway.ErrBadRequest)
		}
		refused(t, set("name", ""), gateway.ErrBadRequest)
	})
	t.Run("name omitted is generated", func(t *testing.T) {
		req := w.putRequest()
		req.Name = ""
		e := w.put(t, "urn:farm:unnamed", req)
		testkit.NoError(t, gateway.ValidateEndpointName(w.listed(t, e.ID).Name))
	})
	t.Run("name need not be unique", func(t *testing.T) {
		a, b := w.put(t, "urn:farm:a", w.putRequest()), w.put(t, "urn:farm:b", w.putRequest())
		if w.listed(t, a.ID).Name != w.listed(t, b.ID).Name || a.ID == b.ID {
			t.Error("two endpoints cannot share a name")
		}
	})
	t.Run("name of the user wins", func(t *testing.T) {
		req := w.putRequest()
		e := w.put(t, "urn:farm:named", req)
		w.SetUserName(e.ID, "mine")
		req.Name = "second"
		w.put(t, "urn:farm:named", req)
		if got := w.listed(t, e.ID).Name; got != "mine" {
			t.Errorf("name %q", got)
		}
		w.SetUserName(e.ID, "")
		if got := w.listed(t, e.ID).Name; got != "second" {
			t.Errorf("name %q after the user switched back", got)
		}
	})
	for _, id := range []struct {
		name    string
		set     func(*gateway.PutEndpointRequest, string)
		foreign error
	}{
		{"application_id", func(r *gateway.PutEndpointRequest, v string) { r.ApplicationID = v }, gateway.ErrForbidden},
		{"software_version_id", func(r *gateway.PutEndpointRequest, v string) { r.SoftwareVersionID = v }, gateway.ErrBadRequest},
	} {
		t.Run(id.name, func(t *testing.T) {
			for _, value := range []string{"", "no UUID"} {
				invalid(t, func(r *gateway.PutEndpointRequest) { id.set(r, value) })
				refused(t, set(id.name, value), gateway.ErrBadRequest)
			}
			refused(t, without(id.name), gateway.ErrBadRequest)
			refused(t, set(id.name, uuid.NewString()), id.foreign)
		})
	}
	t.Run("capabilities", func(t *testing.T) {
		req := w.putRequest()
		if e := w.put(t, "urn:farm:1", req); !reflect.DeepEqual(e.Capabilities, req.Capabilities) {
			t.Errorf("got %v", e.Capabilities)
		}
		req.Capabilities = nil // required: an empty list goes out
		if e := w.put(t, "urn:farm:1", req); len(e.Capabilities) != 0 {
			t.Errorf("got %v", e.Capabilities)
		}
		refused(t, without("capabilities"), gateway.ErrBadRequest)
		// Not a subset of those of the software version.
		req.Capabilities = []gateway.EndpointCapability{{MessageType: "doc:pdf", Direction: gateway.DirectionSend}}
		_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:1", req)
		wantError(t, err, gateway.ErrBadRequest)
	})
	t.Run("subscriptions", func(t *testing.T) {
		refused(t, without("subscriptions"), gateway.ErrBadRequest)
		req := w.putRequest()
		e := w.put(t, "urn:farm:subscribed", req)
		count := func() (n int) {
			for _, entry := range w.Ledger() {
				if entry.EndpointID == e.ID {
					n++
				}
			}
			return n
		}
		w.send(t, w.message("x"))
		req.Subscriptions = nil
		w.put(t, "urn:farm:subscribed", req)
		w.send(t, w.message("x"))
		if n := count(); n != 1 {
			t.Errorf("%d messages, want the one sent while subscribed", n)
		}
	})
	t.Run("endpoint_type", func(t *testing.T) {
		invalid(t, func(r *gateway.PutEndpointRequest) { r.EndpointType = "" })
		refused(t, without("endpoint_type"), gateway.ErrBadRequest)
		refused(t, set("endpoint_type", "tractor"), gateway.ErrBadRequest)
	})
	t.Run("allow_delete_by_user", func(t *testing.T) {
		req := w.putRequest()
		if e := w.put(t, "urn:farm:flag", req); e.AllowDeleteByUser {
			t.Error("the default is not false")
		}
		req.AllowDeleteByUser = true
		if e := w.put(t, "urn:farm:flag", req); !e.AllowDeleteByUser {
			t.Error("the flag was lost")
		}
		// The user may force it, also right after the creation.
		for _, allowed := range []bool{false, true} {
			req.AllowDeleteByUser = allowed
			e := w.put(t, "urn:farm:short", req)
			w.DeleteEndpointByUser(e.ID)
			wantError(t, w.client.DeleteEndpoint(t.Context(), w.Tenant(), "urn:farm:short"), gateway.ErrNotFound)
		}
	})
	t.Run("connections_uri", func(t *testing.T) {
		req := w.putRequest()
		req.ConnectionsURI = "https://fmis.example/c?x=1#y"
		if e := w.put(t, "urn:farm:uri", req); e.ConnectionsURI != req.ConnectionsURI {
			t.Errorf("got %q", e.ConnectionsURI)
		}
		for _, uri := range []string{"not a uri", "/connections", "https://["} {
			invalid(t, func(r *gateway.PutEndpointRequest) { r.ConnectionsURI = uri })
			refused(t, set("connections_uri", uri), gateway.ErrBadRequest)
		}
	})
	for _, e := range w.VisibleEndpoints(w.Application(), w.Tenant()) {
		if e.ExternalID == "urn:farm:refused" {
			t.Error("a request that was refused created its endpoint")
		}
	}
}

func TestSpecEndpointCapability(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	for _, row := range []struct {
		name          string
		send, receive []string
	}{
		{"SEND", []string{specType}, []string{}},
		{"RECEIVE", []string{}, []string{specType}},
		{"SEND_RECEIVE", []string{specType}, []string{specType}},
	} {
		t.Run(row.name, func(t *testing.T) {
			req := w.putRequest()
			req.Capabilities[0].Direction = gateway.Direction(row.name)
			e := w.put(t, "urn:farm:1", req)
			testkit.Equal(t, e.Capabilities, req.Capabilities)
			c := w.listed(t, e.ID).Capabilities
			if !reflect.DeepEqual(c.CanSend, row.send) || !reflect.DeepEqual(c.CanReceive, row.receive) {
				t.Errorf("got %+v", c)
			}
		})
	}
	t.Run("direction", func(t *testing.T) {
		req := w.putRequest()
		for _, bad := range []gateway.Direction{"", "send", "BOTH"} {
			req.Capabilities[0].Direction = bad
			_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:1", req)
			wantInvalid(t, err, "capabilities[0].direction")
		}
		requiredInCapability(t, w, "direction")
	})
	t.Run("message_type", func(t *testing.T) {
		req := w.putRequest()
		req.Capabilities[0].MessageType = ""
		_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:1", req)
		wantInvalid(t, err, "capabilities[0].message_type")
		requiredInCapability(t, w, "message_type")
	})
}

// wantInvalid wants a request to be refused before it is sent, for one field alone.
func wantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	var rule *gateway.ValidationError
	if !errors.Is(err, gateway.ErrInvalid) || !errors.As(err, &rule) || rule.Field != field {
		t.Errorf("got %v, want a ValidationError of %s", err, field)
	}
}

func requiredInCapability(t *testing.T, w *specWorld, key string) {
	t.Helper()
	w.wire.set(func(x *wire) {
		x.answer = func(o map[string]any) {
			list, _ := o["capabilities"].([]any)
			delete(list[0].(map[string]any), key)
		}
	})
	defer w.wire.set(nil)
	_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:1", w.putRequest())
	wantError(t, err, gateway.ErrBadResponse)
	testkit.Contains(t, err.Error(), "capabilities[0]."+key)
}

func TestSpecEndpointSubscription(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	t.Run("message_type", func(t *testing.T) {
		req := w.putRequest()
		req.Subscriptions[0].MessageType = ""
		_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:1", req)
		wantInvalid(t, err, "subscriptions[0].message_type")
	})
	t.Run("segments", func(t *testing.T) {
		// Any number of segments; what they say is nobody's business.
		for _, messageType := range []string{"x", "a:b", "iso:11783:-10:device_description:protobuf", "gps:info", "-:ü:"} {
			e := w.AddEndpoint(gatewaytest.EndpointConfig{
				ExternalID: "urn:farm:segments", Send: []string{messageType}, Receive: []string{messageType}, Subscribe: []string{messageType},
			})
			to := w.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:farm:target", Receive: []string{messageType}, Subscribe: []string{messageType}})
			req := w.message("x")
			req.EndpointID, req.MessageType = e.ID, messageType
			w.send(t, req)
			last := w.Ledger()[len(w.Ledger())-1]
			if last.EndpointID != to.ID || last.MessageType != messageType {
				t.Errorf("%q became %+v", messageType, last)
			}
		}
	})
}

func TestSpecEndpointTypes(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	for _, row := range []struct {
		name     string
		create   bool
		observed gateway.EndpointType
	}{
		{"cloud_software", true, "cloud_software"},
		{"virtual_communication_unit", true, "virtual_communication_unit"},
		{"communication_unit", false, "communication_unit"},
		{"telemetry_platform", false, "telemetry_platform"},
		{"farming_software", true, "cloud_software"},
	} {
		t.Run(row.name, func(t *testing.T) {
			id := ""
			if row.create {
				req := w.putRequest()
				req.EndpointType = gateway.EndpointType(row.name)
				e := w.put(t, "urn:farm:1", req)
				if e.EndpointType != row.observed {
					t.Errorf("created as %s", e.EndpointType)
				}
				id = e.ID
			} else {
				req := w.putRequest()
				req.EndpointType = gateway.EndpointType(row.name)
				_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:2", req)
				wantError(t, err, gateway.ErrInvalid)
				// The service refuses it as well, when asked all the same.
				w.wire.set(func(x *wire) {
					x.request = func(r *http.Request) {
						editBody(t, r, func(o map[string]any) { o["endpoint_type"] = row.name })
					}
				})
				_, _, err = w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:2", w.putRequest())
				w.wire.set(nil)
				wantError(t, err, gateway.ErrBadRequest)
				id = w.AddEndpoint(gatewaytest.EndpointConfig{Type: gateway.EndpointType(row.name)}).ID
			}
			if got := w.listed(t, id).EndpointType; got != row.observed {
				t.Errorf("listed as %s", got)
			}
		})
	}
}

func TestSpecTenantEndpointInfo(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	e := w.listed(t, w.sender.ID)
	w.fields(t, []field{
		{"id", e.ID, w.sender.ID, true},
		{"external_id", e.ExternalID, "urn:farm:sender", false},
		{"name", e.Name, "Sender", true},
		{"endpoint_type", e.EndpointType, gateway.EndpointTypeCloudSoftware, true},
		{"application_id", e.ApplicationID, w.Application().ID, true},
		{"tenant_id", e.TenantID, w.Tenant(), true},
		{"owned_by_your_application", e.OwnedByYourApplication, true, true},
		{"capabilities", len(e.Capabilities.CanSend), 2, true},
		{"routed_endpoints", e.RoutedEndpoints != nil, true, false},
	}, func(o map[string]any) map[string]any { return item(o, "endpoints", w.sender.ID) }, w.unreadable)

	t.Run("of another application", func(t *testing.T) {
		other := w.AddApplication(gatewaytest.ApplicationConfig{})
		w.Authorize(other, w.Tenant())
		foreign := w.AddEndpoint(gatewaytest.EndpointConfig{App: other, Name: "Foreign", Receive: []string{specType}})
		e := w.listed(t, foreign.ID)
		if e.OwnedByYourApplication || e.ExternalID != "" || e.RoutedEndpoints != nil || e.ApplicationID != other.ID || e.Name != "Foreign" {
			t.Errorf("got %+v", e)
		}
	})
}

func TestSpecTenantEndpointCapabilities(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	c := w.listed(t, w.sender.ID).Capabilities
	w.fields(t, []field{
		{"can_send", c.CanSend, []string{specOther, specType}, true},
		{"can_receive", c.CanReceive, []string{}, true},
	}, func(o map[string]any) map[string]any { return child(item(o, "endpoints", w.sender.ID), "capabilities") }, w.unreadable, "can_send", "can_receive")
}

func TestSpecRoutedEndpoints(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	types := []string{specOther, specType}
	w.fields(t, []field{
		{"can_send_to", w.listed(t, w.sender.ID).RoutedEndpoints.CanSendTo, gateway.EndpointRouteMap{w.receiver.ID: types}, false},
		{"can_receive_from", w.listed(t, w.receiver.ID).RoutedEndpoints.CanReceiveFrom, gateway.EndpointRouteMap{w.sender.ID: types}, false},
	}, func(o map[string]any) map[string]any {
		return child(item(o, "endpoints", w.sender.ID), "routed_endpoints")
	}, w.unreadable)

	t.Run("currently possible", func(t *testing.T) {
		w.SetRoute(w.sender.ID, w.receiver.ID, false, specOther)
		testkit.Equal(t, w.listed(t, w.sender.ID).RoutedEndpoints.CanSendTo, gateway.EndpointRouteMap{w.receiver.ID: {specType}})
	})
	t.Run("keyed by endpoint ID", func(t *testing.T) {
		w.wire.set(func(x *wire) {
			x.answer = func(o map[string]any) {
				child(item(o, "endpoints", w.sender.ID), "routed_endpoints")["can_send_to"] = map[string]any{"no UUID": []string{}}
			}
		})
		defer w.wire.set(nil)
		var entry *gateway.EntryError
		if err := w.unreadable(t); !errors.As(err, &entry) || entry.EndpointID != w.sender.ID {
			t.Errorf("got %v", err)
		}
	})
}

func TestSpecTenantInfo(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	tenants, err := w.client.ListAuthorizedTenants(t.Context())
	if err != nil || len(tenants) != 1 {
		t.Fatal(tenants, err)
	}
	w.fields(t, []field{
		{"tenant_id", tenants[0].ID, w.Tenant(), true},
		{"endpoints", len(tenants[0].Endpoints), 2, true},
	}, func(o map[string]any) map[string]any {
		list, _ := o["tenants"].([]any)
		return list[0].(map[string]any)
	}, func(t *testing.T) error {
		tenants, err := w.client.ListAuthorizedTenants(t.Context())
		switch {
		case err == nil && len(tenants) == 0:
			return &gateway.EntryError{Field: "tenant_id", Reason: "was skipped, and the tenant with it"}
		case err == nil && len(tenants[0].Unreadable) > 0:
			return tenants[0].Unreadable[0]
		}
		return err
	}, "endpoints")

	t.Run("empty without an own endpoint", func(t *testing.T) {
		other := w.AddApplication(gatewaytest.ApplicationConfig{})
		w.Authorize(other, w.Tenant())
		client := other.Client()
		tenants, err := client.ListAuthorizedTenants(t.Context())
		if err != nil || len(tenants) != 1 || tenants[0].ID != w.Tenant() || tenants[0].Endpoints == nil || len(tenants[0].Endpoints) != 0 {
			t.Errorf("got %+v, %v", tenants, err)
		}
		w.AddEndpoint(gatewaytest.EndpointConfig{App: other})
		if tenants, err = client.ListAuthorizedTenants(t.Context()); err != nil || len(tenants[0].Endpoints) != 3 {
			t.Errorf("got %+v, %v", tenants, err)
		}
	})
}

func TestSpecOtherShapes(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	missing := func(t *testing.T, key string, call func(context.Context) error) {
		t.Helper()
		w.wire.set(func(x *wire) { x.answer = func(o map[string]any) { delete(o, key) } })
		defer w.wire.set(nil)
		err := call(t.Context())
		wantError(t, err, gateway.ErrBadResponse)
		testkit.Contains(t, err.Error(), key)
	}
	t.Run("EndpointsListResponse", func(t *testing.T) {
		missing(t, "endpoints", func(ctx context.Context) error {
			_, err := w.client.ListTenantEndpoints(ctx, w.Tenant())
			return err
		})
	})
	t.Run("TenantsListResponse", func(t *testing.T) {
		missing(t, "tenants", func(ctx context.Context) error {
			_, err := w.client.ListAuthorizedTenants(ctx)
			return err
		})
	})
	pair := gateway.MessageConfirmation{MessageID: uuid.NewString(), EndpointID: w.receiver.ID}
	var sent map[string]any
	confirm := func(t *testing.T, change func(map[string]any), list ...gateway.MessageConfirmation) error {
		t.Helper()
		w.wire.set(func(x *wire) {
			x.request = func(r *http.Request) {
				editBody(t, r, func(o map[string]any) {
					if change != nil {
						change(o)
					}
					sent = o
				})
			}
		})
		defer w.wire.set(nil)
		return w.client.ConfirmMessages(t.Context(), w.Tenant(), list)
	}
	t.Run("ConfirmMessagesRequest", func(t *testing.T) {
		testkit.NoError(t, confirm(t, nil, pair, pair))
		if list, _ := sent["confirmations"].([]any); len(list) != 2 || len(sent) != 1 {
			t.Errorf("sent %v", sent)
		}
		wantError(t, confirm(t, nil), gateway.ErrInvalid)
		wantError(t, confirm(t, func(o map[string]any) { o["confirmations"] = []any{} }, pair), gateway.ErrBadRequest)
		wantError(t, confirm(t, func(o map[string]any) { delete(o, "confirmations") }, pair), gateway.ErrBadRequest)
	})
	t.Run("MessageConfirmation", func(t *testing.T) {
		first := func(o map[string]any) map[string]any {
			list, _ := o["confirmations"].([]any)
			return list[0].(map[string]any)
		}
		if err := confirm(t, nil, pair); err != nil || !reflect.DeepEqual(first(sent), map[string]any{"message_id": pair.MessageID, "endpoint_id": pair.EndpointID}) {
			t.Errorf("sent %v, %v", sent, err)
		}
		for _, key := range []string{"message_id", "endpoint_id"} {
			wantError(t, confirm(t, func(o map[string]any) { delete(first(o), key) }, pair), gateway.ErrBadRequest)
			wantError(t, confirm(t, func(o map[string]any) { first(o)[key] = "no UUID" }, pair), gateway.ErrBadRequest)
		}
		wantError(t, confirm(t, nil, gateway.MessageConfirmation{MessageID: pair.MessageID}), gateway.ErrInvalid)
		wantError(t, confirm(t, nil, gateway.MessageConfirmation{EndpointID: pair.EndpointID}), gateway.ErrInvalid)
	})
	t.Run("ErrorResponse", func(t *testing.T) {
		call := func(want error) *gateway.Error {
			err := w.client.DeleteEndpoint(t.Context(), w.Tenant(), "urn:farm:none")
			wantError(t, err, want)
			return err.(*gateway.Error)
		}
		if e := call(gateway.ErrNotFound); e.Message == "" || !e.ErrorResponse || !strings.Contains(e.Error(), e.Message) {
			t.Errorf("got %+v", e)
		}
		w.wire.set(func(x *wire) { x.answer = func(o map[string]any) { delete(o, "message") } })
		defer w.wire.set(nil)
		if e := call(gateway.ErrIntermediary); e.Message != "" || e.ErrorResponse { // anybody may have said that
			t.Errorf("got %+v", e)
		}
	})
	t.Run("PayloadURI", func(t *testing.T) {
		w := newSpecWorld(t, gatewaytest.Config{InlineLimit: 10})
		w.send(t, w.message("embedded"))
		w.send(t, w.message("not embedded"))
		s := w.stream(t, gateway.EventMessageReceived)
		if m := nextMessage(t, s); m.PayloadURI != "" || string(m.Payload) != "embedded" {
			t.Errorf("got %+v", m)
		}
		m := nextMessage(t, s)
		if m.Payload != nil || !strings.HasPrefix(m.PayloadURI, w.PayloadURL()) || strings.HasPrefix(m.PayloadURI, w.BaseURL()) {
			t.Fatalf("got %+v, want another host", m)
		}
		data, err := fetch(t.Context(), w.client, m.PayloadURI, -1)
		if err != nil || string(data) != "not embedded" {
			t.Errorf("%q, %v", data, err)
		}
		requests := w.wire.seen("GET", "/payloads/")
		if len(requests) != 1 || requests[0].URL.String() != m.PayloadURI || requests[0].Header.Get("Authorization") != "" {
			t.Errorf("requests %v", requests)
		}
	})
}
