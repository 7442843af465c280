package gateway_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// nextOf reads the next event and decodes it.
func nextOf(s *gateway.EventStream) (gateway.Event, error) {
	raw, err := s.Next()
	if err != nil {
		return nil, err
	}
	return gateway.DecodeEvent(raw.Type, raw.Data)
}

// again opens a stream of one event type, lets the event happen when it is not
// replayed, and decodes it.
func (w *specWorld) again(name gateway.EventType, happen func()) func(t *testing.T) error {
	return func(t *testing.T) error {
		t.Helper()
		s := w.stream(t, name)
		defer func() { _ = s.Close() }()
		if happen != nil {
			happen()
		}
		_, err := nextOf(s)
		return err
	}
}

func first[E gateway.Event](t *testing.T, w *specWorld, name gateway.EventType, happen func()) E {
	t.Helper()
	s := w.stream(t, name)
	defer func() { _ = s.Close() }()
	if happen != nil {
		happen()
	}
	e, ok := next(t, s).(E)
	if !ok || e.Type() != name {
		t.Fatalf("got %+v, want %s", e, name)
	}
	return e
}

func TestSpecMessageReceived(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	req := w.message("payload")
	req.ContextID, req.TeamsetContextID, req.Filename = "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "Gespann 7", "a.zip"
	req.SentAt = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	w.send(t, req)
	m := first[*gateway.MessageReceived](t, w, gateway.EventMessageReceived, nil)
	w.fields(t, []field{
		{"event_type", m.Type(), gateway.EventMessageReceived, true},
		{"id", m.ID, w.Ledger()[0].MessageID, true},
		{"app_message_id", m.AppMessageID, req.ContextID, true},
		{"message_type", m.MessageType, specType, true},
		{"sent_at", m.SentAt, req.SentAt, true},
		{"received_at", time.Since(m.ReceivedAt) < time.Minute, true, false},
		{"receiving_endpoint_id", m.ReceivingEndpointID, w.receiver.ID, true},
		{"filename", m.Filename, req.Filename, false},
		{"tenant_id", m.TenantID, w.Tenant(), false},
		{"teamset_context_id", m.TeamsetContextID, req.TeamsetContextID, false},
	}, top, w.again(gateway.EventMessageReceived, nil))

	t.Run("id confirms", func(t *testing.T) {
		testkit.NoError(t, w.client.ConfirmMessages(t.Context(), m.TenantID, []gateway.MessageConfirmation{{MessageID: m.ID, EndpointID: m.ReceivingEndpointID}}))
		if !w.Ledger()[0].Confirmed() {
			t.Error("not confirmed")
		}
	})
	t.Run("app_message_id of a legacy sender", func(t *testing.T) {
		testkit.Must(w.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: specType, ContextID: "any string: 17"}))(t)
		if m := first[*gateway.MessageReceived](t, w, gateway.EventMessageReceived, nil); m.AppMessageID != "any string: 17" {
			t.Errorf("got %q", m.AppMessageID)
		}
	})
	t.Run("payload", func(t *testing.T) {
		if string(m.Payload) != "payload" || m.PayloadURI != "" {
			t.Errorf("got %q and %q", m.Payload, m.PayloadURI)
		}
		w.eitherPayloadOrURI(t, gateway.EventMessageReceived)
	})
	t.Run("payload_uri", func(t *testing.T) {
		w := newSpecWorld(t, gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
		w.send(t, w.message("payload"))
		m := first[*gateway.MessageReceived](t, w, gateway.EventMessageReceived, nil)
		if m.Payload != nil || m.PayloadURI == "" {
			t.Fatalf("got %q and %q", m.Payload, m.PayloadURI)
		}
		data, err := fetch(t.Context(), w.client, m.PayloadURI, -1)
		if err != nil || string(data) != "payload" {
			t.Errorf("%q, %v", data, err)
		}
		w.eitherPayloadOrURI(t, gateway.EventMessageReceived)
	})
}

// eitherPayloadOrURI: an event with both, or with neither, is none.
func (w *specWorld) eitherPayloadOrURI(t *testing.T, name gateway.EventType) {
	t.Helper()
	defer w.wire.set(nil)
	for _, edit := range []func(map[string]any){
		func(o map[string]any) { o["payload"], o["payload_uri"] = "eA==", "https://payloads.example/1" },
		func(o map[string]any) { delete(o, "payload"); delete(o, "payload_uri") },
	} {
		w.wire.set(func(x *wire) { x.event = edit })
		var decode *gateway.DecodeError
		if err := w.again(name, nil)(t); !errors.As(err, &decode) {
			t.Errorf("got %v", err)
		}
	}
}

func TestSpecFileReceived(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{ChunkSize: 10})
	req := w.message("a payload of three chunks")
	req.TeamsetContextID, req.Filename = "Gespann 7", "a.zip"
	w.send(t, req)
	var ids []string
	for _, e := range w.Ledger() {
		ids = append(ids, e.MessageID)
	}
	f := first[*gateway.FileReceived](t, w, gateway.EventFileReceived, nil)
	w.fields(t, []field{
		{"event_type", f.Type(), gateway.EventFileReceived, true},
		{"receiving_endpoint_id", f.ReceivingEndpointID, w.receiver.ID, true},
		{"message_type", f.MessageType, specType, true},
		{"size", f.Size, int64(len(req.Payload)), true},
		{"message_ids", f.MessageIDs, ids, true},
		{"filename", f.Filename, req.Filename, false},
		{"tenant_id", f.TenantID, w.Tenant(), false},
		{"teamset_context_id", f.TeamsetContextID, req.TeamsetContextID, false},
	}, top, w.again(gateway.EventFileReceived, nil))

	t.Run("size is not negative", func(t *testing.T) {
		w.wire.set(func(x *wire) { x.event = func(o map[string]any) { o["size"] = -1 } })
		defer w.wire.set(nil)
		var decode *gateway.DecodeError
		if err := w.again(gateway.EventFileReceived, nil)(t); !errors.As(err, &decode) || decode.Field != "size" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("payload", func(t *testing.T) {
		if string(f.Payload) != string(req.Payload) || f.PayloadURI != "" {
			t.Errorf("got %q and %q", f.Payload, f.PayloadURI)
		}
		w.eitherPayloadOrURI(t, gateway.EventFileReceived)
	})
	t.Run("payload_uri", func(t *testing.T) {
		w := newSpecWorld(t, gatewaytest.Config{ChunkSize: 10, InlineLimit: gatewaytest.NoInline})
		again := req
		again.TenantID, again.EndpointID = w.Tenant(), w.sender.ID
		w.send(t, again)
		f := first[*gateway.FileReceived](t, w, gateway.EventFileReceived, nil)
		data, err := fetch(t.Context(), w.client, f.PayloadURI, f.Size)
		if err != nil || string(data) != string(req.Payload) || f.Payload != nil {
			t.Errorf("%q, %v", data, err)
		}
		w.Advance(15 * time.Minute)
		_, err = fetch(t.Context(), w.client, f.PayloadURI, f.Size)
		wantError(t, err, gateway.ErrPayloadExpired)
	})
	t.Run("last, after the chunks", func(t *testing.T) {
		s := w.stream(t)
		for _, id := range ids {
			if m := nextMessage(t, s); m.ID != id {
				t.Errorf("got %s, want %s", m.ID, id)
			}
		}
		if e := next(t, s); e.Type() != gateway.EventFileReceived {
			t.Errorf("got %+v", e)
		}
	})
	t.Run("message_ids all confirm the file", func(t *testing.T) {
		pairs := []gateway.MessageConfirmation{}
		for _, id := range f.MessageIDs {
			pairs = append(pairs, gateway.MessageConfirmation{MessageID: id, EndpointID: f.ReceivingEndpointID})
		}
		testkit.NoError(t, w.client.ConfirmMessages(t.Context(), f.TenantID, pairs[:2]))
		first[*gateway.FileReceived](t, w, gateway.EventFileReceived, nil) // not yet
		testkit.NoError(t, w.client.ConfirmMessages(t.Context(), f.TenantID, pairs[2:]))
		w.nothingElse(t, w.stream(t), w.Application())
	})
}

func TestSpecEndpointDeleted(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	var gone gateway.Endpoint
	happen := func() {
		gone = w.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:farm:gone"})
		w.DeleteEndpointByUser(gone.ID)
	}
	e := first[*gateway.EndpointDeleted](t, w, gateway.EventEndpointDeleted, happen)
	w.fields(t, []field{
		{"event_type", e.Type(), gateway.EventEndpointDeleted, true},
		{"id", e.ID, gone.ID, true},
		{"external_id", e.ExternalID, "urn:farm:gone", true},
	}, top, w.again(gateway.EventEndpointDeleted, happen))
}

func TestSpecEndpointsListChanged(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	open := false
	happen := func() {
		w.SetRoute(w.sender.ID, w.receiver.ID, open)
		open = !open
	}
	e := first[*gateway.EndpointsListChanged](t, w, gateway.EventEndpointsListChanged, happen)
	complete := testkit.Must(w.client.ListTenantEndpoints(t.Context(), w.Tenant()))(t)
	w.fields(t, []field{
		{"event_type", e.Type(), gateway.EventEndpointsListChanged, true},
		{"tenant_id", e.TenantID, w.Tenant(), true},
		{"endpoints", e.Endpoints, complete, true},
	}, top, w.again(gateway.EventEndpointsListChanged, happen), "endpoints")

	// A cached list is replaced: what the new one lacks is gone.
	t.Run("endpoints replace a cached list", func(t *testing.T) {
		d := gateway.NewDirectory(w.client)
		testkit.NoError(t, d.Sync(t.Context()))
		s := w.stream(t, gateway.EventEndpointsListChanged)
		w.DeleteEndpointByUser(w.receiver.ID)
		d.HandleEvent(next(t, s))
		if mine := d.Mine(w.Tenant()); len(mine) != 1 || mine[0].ID != w.sender.ID {
			t.Errorf("got %+v", mine)
		}
	})
}

func TestSpecListChangedVisibility(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	other := w.AddApplication(gatewaytest.ApplicationConfig{})
	w.Authorize(other, w.Tenant())
	s := testkit.Must(other.Client().ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{}))(t)
	t.Cleanup(func() { _ = s.Close() })
	list := func(t *testing.T) []gateway.TenantEndpointInfo {
		t.Helper()
		e, ok := next(t, s).(*gateway.EndpointsListChanged)
		if !ok {
			t.Fatalf("got %+v", e)
		}
		return e.Endpoints
	}
	var third gateway.Endpoint
	t.Run("nothing before the first own endpoint", func(t *testing.T) {
		third = w.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{specType}})
		w.SetRoute(w.sender.ID, w.receiver.ID, false)
		w.nothingElse(t, s, other)
	})
	t.Run("from the first own endpoint on", func(t *testing.T) {
		w.AddEndpoint(gatewaytest.EndpointConfig{App: other, Send: []string{specType}})
		if l := list(t); len(l) != 4 {
			t.Errorf("%d endpoints", len(l))
		}
	})
	t.Run("an endpoint is added", func(t *testing.T) {
		w.AddEndpoint(gatewaytest.EndpointConfig{})
		if l := list(t); len(l) != 5 {
			t.Errorf("%d endpoints", len(l))
		}
	})
	t.Run("capabilities change", func(t *testing.T) {
		w.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:farm:sender", Send: []string{specOther}})
		l := list(t)
		i := slices.IndexFunc(l, func(e gateway.TenantEndpointInfo) bool { return e.ID == w.sender.ID })
		testkit.Equal(t, l[i].Capabilities.CanSend, []string{specOther})
	})
	t.Run("routes change", func(t *testing.T) {
		mine := w.VisibleEndpoints(other, w.Tenant())
		i := slices.IndexFunc(mine, func(e gateway.TenantEndpointInfo) bool { return e.OwnedByYourApplication })
		w.SetRoute(mine[i].ID, third.ID, false)
		if l := list(t); len(l[i].RoutedEndpoints.CanSendTo[third.ID]) != 0 {
			t.Errorf("got %+v", l[i])
		}
	})
	t.Run("an endpoint is deleted", func(t *testing.T) {
		w.DeleteEndpointByUser(third.ID)
		if l := list(t); len(l) != 4 {
			t.Errorf("%d endpoints", len(l))
		}
	})
}

func TestSpecAuthorizationAdded(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	var tenant string
	happen := func() {
		tenant = w.AddTenant()
		w.Authorize(w.Application(), tenant)
	}
	e := first[*gateway.AuthorizationAdded](t, w, gateway.EventAuthorizationAdded, happen)
	w.fields(t, []field{
		{"event_type", e.Type(), gateway.EventAuthorizationAdded, true},
		{"tenant", e.Tenant, gateway.TenantInfo{ID: tenant, Endpoints: []gateway.TenantEndpointInfo{}}, true},
		{"scope", e.Scope, "endpoints:manage", true},
	}, top, w.again(gateway.EventAuthorizationAdded, happen))

	t.Run("scopes are distinct", func(t *testing.T) {
		s := w.stream(t, gateway.EventAuthorizationAdded)
		happen()
		w.AuthorizeScope(w.Application(), tenant, "other:scope")
		d := gateway.NewDirectory(w.client)
		for range 2 {
			d.HandleEvent(next(t, s))
		}
		testkit.Equal(t, d.Scopes(tenant), []string{"endpoints:manage", "other:scope"})
	})
}

func TestSpecAuthorizationRevoked(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	var tenant string
	happen := func() {
		tenant = w.AddTenant()
		w.Authorize(w.Application(), tenant)
		w.Revoke(w.Application(), tenant, "endpoints:manage")
	}
	e := first[*gateway.AuthorizationRevoked](t, w, gateway.EventAuthorizationRevoked, happen)
	w.fields(t, []field{
		{"event_type", e.Type(), gateway.EventAuthorizationRevoked, true},
		{"tenant_id", e.TenantID, tenant, true},
		{"scope", e.Scope, "endpoints:manage", true},
	}, top, w.again(gateway.EventAuthorizationRevoked, happen))

	t.Run("only this scope", func(t *testing.T) {
		d := gateway.NewDirectory(w.client)
		s := w.stream(t, gateway.EventAuthorizationAdded, gateway.EventAuthorizationRevoked)
		tenant := w.AddTenant()
		w.Authorize(w.Application(), tenant)
		w.AuthorizeScope(w.Application(), tenant, "other:scope")
		w.Revoke(w.Application(), tenant, "endpoints:manage")
		for range 3 {
			d.HandleEvent(next(t, s))
		}
		if !slices.Equal(d.Scopes(tenant), []string{"other:scope"}) || !d.Authorized(tenant, "other:scope") || d.Authorized(tenant, "endpoints:manage") {
			t.Errorf("scopes %v", d.Scopes(tenant))
		}
	})
}
