package gatewaytest

import (
	"slices"

	"github.com/agrimill/agrimill/gateway"
)

// Routing: a message goes from endpoint A to endpoint B of the same tenant if
// A may send its type, B may receive it, and there is a route from A to B.
// Routes exist between all endpoints of a tenant (but not from an endpoint to
// itself) until the user withdraws them. A published message goes to those that
// also subscribe to its type; a direct recipient needs no subscription.

type tenant struct {
	id        string
	endpoints []*endpoint // in order of creation
	rules     map[routeKey]routeRule
}

type routeKey struct{ from, to string }

// routeRule is the user's setting for the route between two endpoints: open or
// withdrawn as a whole, with exceptions for message types.
type routeRule struct {
	withdrawn bool
	except    map[string]bool
}

type endpoint struct {
	id, externalID string
	tenant         *tenant
	app            *Application
	kind           gateway.EndpointType
	name           string // set by the application, or generated
	userName       string // set by the user; takes precedence if not empty
	capabilities   []gateway.EndpointCapability
	directions     map[string]directions
	subscriptions  map[string]bool
	deletable      bool
	connectionsURI string
	deleted        bool
}

func (e *endpoint) configure(capabilities []gateway.EndpointCapability, subscriptions []gateway.EndpointSubscription) {
	e.capabilities = append([]gateway.EndpointCapability{}, capabilities...) // never null on the wire
	e.directions = map[string]directions{}
	for _, c := range capabilities {
		d := e.directions[c.MessageType]
		d.add(c.Direction)
		e.directions[c.MessageType] = d
	}
	e.subscriptions = map[string]bool{}
	for _, sub := range subscriptions {
		e.subscriptions[sub.MessageType] = true
	}
}

func (e *endpoint) displayName() string {
	if e.userName != "" {
		return e.userName
	}
	return e.name
}

// types lists the message types that the endpoint can send or receive, sorted.
func (e *endpoint) types(admit func(directions) bool) []string {
	list := []string{} // never null on the wire
	for messageType, d := range e.directions {
		if admit(d) {
			list = append(list, messageType)
		}
	}
	slices.Sort(list)
	return list
}

// routed reports whether messages of the type can currently be routed.
func routed(from, to *endpoint, messageType string) bool {
	if from == to || from.tenant != to.tenant || from.deleted || to.deleted ||
		!from.directions[messageType].send || !to.directions[messageType].receive {
		return false
	}
	rule := from.tenant.rules[routeKey{from.id, to.id}]
	return rule.withdrawn == rule.except[messageType]
}

// routedTypes lists the message types that can be routed, sorted.
func routedTypes(from, to *endpoint) []string {
	var list []string
	for messageType := range from.directions {
		if routed(from, to, messageType) {
			list = append(list, messageType)
		}
	}
	slices.Sort(list)
	return list
}

// recipients resolves the receivers of a message. If none of the direct recipients is reachable, nobody receives it, not
// even subscribers, because the response says that nothing was delivered; if some are, they and the subscribers do, and the
// error says that not all did. Publishing without any subscriber is not an error.
func recipients(sender *endpoint, messageType string, publish bool, direct []string) (receivers []*endpoint, err error) {
	if !sender.directions[messageType].send {
		return nil, badRequest("Sending of %s not allowed", messageType)
	}
	reachable := 0
	for _, id := range direct {
		i := slices.IndexFunc(sender.tenant.endpoints, func(e *endpoint) bool { return e.id == id })
		if i < 0 || !routed(sender, sender.tenant.endpoints[i], messageType) {
			continue
		}
		reachable++
		if e := sender.tenant.endpoints[i]; !slices.Contains(receivers, e) {
			receivers = append(receivers, e)
		}
	}
	switch {
	case reachable == 0 && (len(direct) > 0 || !publish):
		return nil, badRequest(messageNoRecipients)
	case reachable < len(direct):
		err = badRequest(messagePartialDelivery)
	}
	if publish {
		for _, e := range sender.tenant.endpoints {
			if e.subscriptions[messageType] && routed(sender, e, messageType) && !slices.Contains(receivers, e) {
				receivers = append(receivers, e)
			}
		}
	}
	return receivers, err
}

// SetRoute acts as the user who opens or withdraws (!open) the route from one endpoint to another of the same tenant,
// for all or only the given message types. Applications that see a change receive ENDPOINTS_LIST_CHANGED.
func (s *Server) SetRoute(from, to string, open bool, messageTypes ...string) {
	s.helper()
	s.must("SetRoute", s.setRoute(from, to, open, messageTypes))
}

func (s *Server) setRoute(from, to string, open bool, messageTypes []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, b := s.endpoints[from], s.endpoints[to]
	if a == nil || b == nil || a.tenant != b.tenant || a == b {
		return badRequest("a route requires two endpoints of one tenant")
	}
	s.changeLocked(a.tenant, func() {
		key := routeKey{from, to}
		if len(messageTypes) == 0 {
			a.tenant.rules[key] = routeRule{withdrawn: !open}
			return
		}
		old := a.tenant.rules[key]
		rule := routeRule{withdrawn: old.withdrawn, except: map[string]bool{}}
		for messageType := range old.except {
			rule.except[messageType] = true
		}
		for _, messageType := range messageTypes {
			if open == rule.withdrawn {
				rule.except[messageType] = true
			} else {
				delete(rule.except, messageType)
			}
		}
		a.tenant.rules[key] = rule
	})
	return nil
}
