// Package why finds out why nothing arrives. It walks the chain that a message takes from another
// endpoint to a sink, from the authorization of a tenant to the filter of a route, and names the first
// link that is missing.
package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/gateway"
)

// Question is what does not arrive.
type Question struct {
	// Tenant is the ID (UUID) of the tenant.
	Tenant string `json:"tenant"`
	Type   string `json:"type"`
	// From is the ID, external ID or name of the sending endpoint; empty for any.
	From string `json:"from,omitempty"`
}

// State is the state of a link.
type State string

// The states of a link.
const (
	// StateOK: it is there.
	StateOK State = "ok"
	// StateMissing: it is not, so nothing arrives.
	StateMissing State = "missing"
	// StateUnknown: nobody tells.
	StateUnknown State = "unknown"
	// StateUnchecked: it depends on one that is missing.
	StateUnchecked State = "unchecked"
)

// Names of links, in the order of the chain.
const (
	LinkAuthorization = "authorization"
	LinkEndpoint      = "endpoint"
	LinkCapability    = "capability"
	LinkSubscription  = "subscription"
	LinkGatewayRoute  = "gateway route"
	LinkStream        = "stream"
	LinkRoute         = "route"
)

// Link is one link of the chain. Detail and Remedy may have names of tenants and endpoints, which
// others chose.
type Link struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Detail string `json:"detail"`
	// Remedy is what to do; empty unless the link is missing or unknown.
	Remedy string `json:"remedy,omitempty"`
}

// Answer is the chain. Missing is the name of the first link that is missing, empty if none is.
type Answer struct {
	Question
	Links   []Link `json:"links"`
	Missing string `json:"missing,omitempty"`
}

// Facts is what is known.
type Facts struct {
	// Tenants are those of the gateway. If they could not be had, TenantsErr says why.
	Tenants    []gateway.TenantInfo
	TenantsErr string
	// Declared are the endpoints that the configuration provides.
	Declared []Declared
	// Unmatched says what happens to messages that every route's filter refuses, e.g. confirmed and
	// dropped.
	Unmatched string
	Routes    []Route
	// Stream is the state of the event stream; its Name is ignored.
	Stream Link
}

// Declared is an endpoint that the configuration provides.
type Declared struct {
	// Tenant is empty for every tenant, and {tenant} in ExternalID stands for its ID.
	Tenant, ExternalID string
	Subscriptions      []string
}

// Route is a route from the gateway.
type Route struct {
	Name string
	// Topic is what it is subscribed to, as in the configuration.
	Topic string
	// Takes reports whether it is subscribed to messages of the type.
	Takes func(messageType string) bool
	// Refuses returns the key of the filter that refuses messages of the type to the endpoint,
	// empty if none does.
	Refuses func(tenant, messageType, endpoint string) string
	// Depends are the keys of the filter that depend on more than that.
	Depends []string
	// Waits says why the route waits at present; empty if it does not, or nothing is known.
	Waits string
}

// Walk answers q.
func Walk(q Question, facts Facts) Answer {
	w := walk{Question: q, facts: facts}
	authorized := w.check(true, LinkAuthorization, w.authorization)
	mine := w.check(authorized, LinkEndpoint, w.endpoint)
	able := w.check(mine, LinkCapability, w.capability)
	w.check(mine, LinkSubscription, w.subscription)
	w.check(able, LinkGatewayRoute, w.gatewayRoute)
	w.check(true, LinkStream, func() Link { return facts.Stream })
	w.check(true, LinkRoute, w.route)
	answer := Answer{Question: q, Links: w.links}
	if i := slices.IndexFunc(w.links, func(l Link) bool { return l.State == StateMissing }); i >= 0 {
		answer.Missing = w.links[i].Name
	}
	return answer
}

type walk struct {
	Question
	facts  Facts
	links  []Link
	tenant *gateway.TenantInfo
	own    []gateway.TenantEndpointInfo // endpoints of this application
	able   []gateway.TenantEndpointInfo // of these, those that can receive the type
}

// check adds a link, looked at only if those that it depends on are there, and reports whether it is there.
func (w *walk) check(there bool, name string, look func() Link) bool {
	link := Link{State: StateUnchecked, Detail: "depends on a link that is not known to be there"}
	if there {
		link = look()
	}
	link.Name = name
	w.links = append(w.links, link)
	return link.State == StateOK
}

func ok(detail string) Link { return Link{State: StateOK, Detail: detail} }
func missing(detail, remedy string) Link {
	return Link{State: StateMissing, Detail: detail, Remedy: remedy}
}
func unknown(detail, remedy string) Link {
	return Link{State: StateUnknown, Detail: detail, Remedy: remedy}
}

func (w *walk) authorization() Link {
	if w.facts.TenantsErr != "" {
		return unknown("the gateway does not tell its tenants: "+w.facts.TenantsErr, "agrimill check says what is wrong with the connection")
	}
	for i, t := range w.facts.Tenants {
		if strings.EqualFold(t.ID, w.Tenant) {
			w.tenant = &w.facts.Tenants[i]
			return ok("the tenant has authorized this application")
		}
	}
	return missing("the tenant has not authorized this application, or has revoked it",
		"its user has to authorize the application on the service's website; agrimill tenants lists those who did")
}

func (w *walk) endpoint() Link {
	for _, e := range w.tenant.Endpoints {
		if e.OwnedByYourApplication {
			w.own = append(w.own, e)
		}
	}
	if len(w.own) > 0 {
		return ok(list(w.own))
	}
	if w.tenant.Endpoints == nil || len(w.tenant.Unreadable) > 0 {
		return unknown("the list of endpoints of the tenant could not be read", "agrimill tenants says more")
	}
	return missing("this application has no endpoint in the tenant",
		"add one under endpoints in the configuration, or create one with agrimill endpoints put")
}

func (w *walk) capability() Link {
	for _, e := range w.own {
		if slices.Contains(e.Capabilities.CanReceive, w.Type) {
			w.able = append(w.able, e)
		}
	}
	if len(w.able) > 0 {
		return ok(list(w.able) + " can receive the type")
	}
	detail := "none of this application's endpoints in the tenant can receive the type"
	if similar := w.similar(); similar != "" {
		detail += "; one can receive " + similar
	}
	return missing(detail,
		"add the type to the capabilities of the endpoint with direction RECEIVE or SEND_RECEIVE; the application's software version needs it as well")
}

func (w *walk) similar() string {
	for _, e := range w.own {
		for _, t := range e.Capabilities.CanReceive {
			if strings.EqualFold(t, w.Type) {
				return t
			}
		}
	}
	return ""
}

// subscription looks into the configuration: the gateway does not tell what an endpoint is subscribed to.
func (w *walk) subscription() Link {
	declared := false
	for _, e := range w.receivers() {
		for _, d := range w.facts.Declared {
			if !d.is(e, w.tenant.ID) {
				continue
			}
			declared = true
			if slices.Contains(d.Subscriptions, w.Type) {
				return ok(name(e) + " is subscribed to the type, says the configuration")
			}
		}
	}
	if !declared {
		return unknown("the gateway does not tell subscriptions, and the endpoint is not in this configuration",
			"whoever created it has to subscribe it to the type; messages to it as a direct recipient arrive without")
	}
	return missing("in the configuration, the endpoint is not subscribed to the type: published messages do not arrive, only those to it as a direct recipient",
		"add the type to its subscriptions, and restart or reload agrimill")
}

// receivers are the endpoints of this application that can receive the type, or else all of them.
func (w *walk) receivers() []gateway.TenantEndpointInfo {
	if len(w.able) > 0 {
		return w.able
	}
	return w.own
}

// is reports whether e is this endpoint in the tenant.
func (d Declared) is(e gateway.TenantEndpointInfo, tenant string) bool {
	return (d.Tenant == "" || strings.EqualFold(d.Tenant, tenant)) && e.ExternalID != "" &&
		strings.EqualFold(strings.ReplaceAll(d.ExternalID, "{tenant}", tenant), e.ExternalID) // the ID may be in either case
}

func (w *walk) gatewayRoute() Link {
	senders := w.senders()
	if w.From != "" && len(senders) == 0 {
		return missing("this application cannot see such a sender in the tenant",
			"check the ID, external ID or name: agrimill tenants lists the endpoints; one without a route to this application may be invisible")
	}
	isSender := func(e gateway.TenantEndpointInfo) bool { return slices.Contains(e.Capabilities.CanSend, w.Type) }
	var told, routed []gateway.TenantEndpointInfo
	var from []string
	for _, e := range w.able {
		if e.RoutedEndpoints == nil {
			continue
		}
		told = append(told, e)
		found := false
		for id, types := range e.RoutedEndpoints.CanReceiveFrom {
			isID := func(s gateway.TenantEndpointInfo) bool { return strings.EqualFold(s.ID, id) }
			if slices.Contains(types, w.Type) && (w.From == "" || slices.ContainsFunc(senders, isID)) {
				found = true
				from = append(from, w.nameOf(id))
			}
		}
		if found {
			routed = append(routed, e)
		}
	}
	slices.Sort(from)
	from = slices.Compact(from)
	switch {
	case len(routed) > 0:
		w.able = routed
		return ok(list(routed) + " can receive the type from " + some(from))
	case len(told) == 0:
		return unknown("the gateway does not tell the routes of this application's endpoints", "the user can see them on the service's website")
	case !slices.ContainsFunc(senders, isSender) && w.From != "":
		return missing(list(senders)+" cannot send the type", "its manufacturer has to give it the capability, and its user may have to update it")
	case !slices.ContainsFunc(senders, isSender):
		return missing("no other endpoint that this application can see in the tenant can send the type",
			"is it the right type, and is the sender connected to this tenant? agrimill tenants --type lists who can send it")
	}
	able := slices.DeleteFunc(senders, func(e gateway.TenantEndpointInfo) bool { return !isSender(e) })
	return missing("no route leads from "+list(able)+" to "+list(w.able)+" for the type", "the user has to allow it on the service's website")
}

// senders are the endpoints that the question is about: those of others if it names none.
func (w *walk) senders() (list []gateway.TenantEndpointInfo) {
	for _, e := range w.tenant.Endpoints {
		if w.From == "" && !e.OwnedByYourApplication || w.From != "" && (strings.EqualFold(e.ID, w.From) || e.ExternalID == w.From || strings.EqualFold(e.Name, w.From)) {
			list = append(list, e)
		}
	}
	return list
}

func (w *walk) nameOf(id string) string {
	for _, e := range w.tenant.Endpoints {
		if strings.EqualFold(e.ID, id) {
			return name(e)
		}
	}
	return id
}

func (w *walk) route() Link {
	var topics, refused, taken, waits []string
	for _, r := range w.facts.Routes {
		if !r.Takes(w.Type) {
			topics = append(topics, r.Name+": "+r.Topic)
			continue
		}
		if key := w.refuses(r); key != "" {
			refused = append(refused, fmt.Sprintf("%s (filter.%s)", r.Name, key))
			continue
		}
		text := r.Name
		if len(r.Depends) > 0 {
			text += " if filter." + strings.Join(r.Depends, " and filter.") + " matches"
		}
		taken = append(taken, text)
		if r.Waits != "" {
			waits = append(waits, r.Name+": "+r.Waits)
		}
	}
	switch {
	case len(taken) > 0 && len(waits) == len(taken):
		return missing("messages wait: "+some(waits), "they are stored as soon as the route's sink takes them; agrimill check tries it")
	case len(taken) > 0:
		detail := "taken by " + some(taken)
		if len(waits) > 0 {
			detail += "; messages wait in " + some(waits)
		}
		return ok(detail)
	case len(refused) > 0:
		return missing("refused by "+some(refused), "change the filter; what every filter refuses is "+w.facts.Unmatched)
	case len(topics) > 0:
		return missing("no route is subscribed to the type ("+some(topics)+")", "add a route with from.gateway: "+w.Type+" or all")
	}
	return missing("no route receives from the gateway", "add a route with from.gateway: "+w.Type+" or all")
}

// refuses returns the key by which a route refuses the type to each of the receivers.
func (w *walk) refuses(r Route) (key string) {
	endpoints := w.receivers()
	if len(endpoints) == 0 { // which endpoint it would be is not known
		key = r.Refuses(w.Tenant, w.Type, "")
		if key == "endpoint" {
			return ""
		}
		return key
	}
	for _, e := range endpoints {
		if key = r.Refuses(w.Tenant, w.Type, e.ID); key == "" {
			return ""
		}
	}
	return key
}

// maxListed is how many names a text lists.
const maxListed = 3

func list(endpoints []gateway.TenantEndpointInfo) string {
	names := make([]string, len(endpoints))
	for i, e := range endpoints {
		names[i] = name(e)
	}
	return some(names)
}

func name(e gateway.TenantEndpointInfo) string {
	return fmt.Sprintf("%q (%s)", cmp.Or(e.Name, e.ExternalID), e.ID)
}

func some(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), more)
	}
	return strings.Join(names, ", ")
}
