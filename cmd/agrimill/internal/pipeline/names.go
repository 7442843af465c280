package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
)

// names finds the endpoints that a configuration names by their external IDs. What the list of tenants does not tell
// yet is an outage: the message waits.
type names struct {
	directory *gateway.Directory // nil: there is no gateway to ask
	look      func(found bool)   // is told of each search, and may have the list of tenants refreshed
	known     sync.Map           // named by endpoint ID: an endpoint keeps its external ID, also when it is deleted
}

type named struct{ tenant, externalID string }

// errOffline is the error without a gateway.
var errOffline = router.Permanent(errors.New("only the gateway knows which endpoint has an external ID: let the message name its endpoint as the configuration does"))

// one returns whether the endpoint of a message in a tenant is one of a list of IDs and external IDs.
func (n *names) one(list []string, tenant, endpoint string) (bool, error) {
	switch {
	case len(list) == 0:
		return true, nil
	case endpoint == "":
		return false, nil
	case config.IsExternalID(endpoint):
		return n.sender(list, tenant, endpoint)
	case slices.ContainsFunc(list, func(id string) bool { return strings.EqualFold(id, endpoint) }):
		return true, nil
	}
	externalIDs := slices.DeleteFunc(slices.Clone(list), func(id string) bool { return !config.IsExternalID(id) })
	if len(externalIDs) == 0 || !config.IsUUID(endpoint) {
		return false, nil
	}
	return n.has(externalIDs, tenant, endpoint)
}

// sender is one for the sender that the route names by its external ID.
func (n *names) sender(list []string, tenant, externalID string) (bool, error) {
	same := func(id string) bool { return config.ExternalID(id, tenant) == config.ExternalID(externalID, tenant) }
	switch {
	case slices.ContainsFunc(list, same):
		return true, nil
	case !slices.ContainsFunc(list, config.IsUUID):
		return false, nil
	case !config.IsUUID(tenant):
		return true, nil // the publisher refuses it, and says why
	}
	id, err := n.endpoint(tenant, externalID)
	return err == nil && slices.ContainsFunc(list, func(one string) bool { return strings.EqualFold(one, id) }), err
}

// has returns whether an endpoint has one of these external IDs.
func (n *names) has(externalIDs []string, tenant, endpoint string) (bool, error) {
	if n.directory == nil {
		return false, errOffline
	}
	if e, ok := n.info(endpoint); ok {
		return slices.ContainsFunc(externalIDs, func(id string) bool { return config.ExternalID(id, e.tenant) == e.externalID }), nil
	}
	for _, externalID := range externalIDs {
		id, err := n.endpoint(tenant, externalID)
		if err != nil || strings.EqualFold(id, endpoint) {
			return err == nil, err
		}
	}
	return false, nil // all of them are other endpoints
}

// info returns what is known of an endpoint that has an external ID.
func (n *names) info(id string) (named, bool) {
	id = strings.ToLower(id)
	if known, ok := n.known.Load(id); ok {
		return known.(named), true
	}
	e, ok := n.directory.Endpoint(id)
	if !ok || e.ExternalID == "" {
		return named{}, false
	}
	known := named{e.TenantID, e.ExternalID}
	n.known.Store(id, known)
	return known, true
}

// endpoint returns the ID of the endpoint of a tenant that has an external ID.
func (n *names) endpoint(tenant, externalID string) (string, error) {
	if n.directory == nil {
		return "", errOffline
	}
	id, ok := n.directory.EndpointNamed(tenant, externalID)
	if n.look(ok); !ok { // a replay has looked by now
		id, ok = n.directory.EndpointNamed(tenant, externalID)
	}
	if !ok {
		return "", router.Outage(fmt.Errorf("no endpoint of tenant %s has the external ID %s yet", tenant, externalID))
	}
	return id, nil
}

// addressed takes the sender and the recipients from cfg if one of them is an external ID, and returns the middleware that
// sets their IDs on messages without; nil if there is none.
func (n *names) addressed(cfg *publisher.Config) message.HandlerMiddleware {
	sender, recipients, tenant := cfg.EndpointID, cfg.DirectRecipients, cfg.TenantID
	if !slices.ContainsFunc(append([]string{sender}, recipients...), config.IsExternalID) {
		return nil
	}
	cfg.EndpointID, cfg.DirectRecipients = "", nil
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			out, err := next(msg)
			for _, m := range out {
				if err != nil || m == nil {
					break
				}
				if in := cmp.Or(m.Metadata[gateway.KeyTenantID], tenant); config.IsUUID(in) { // else it is refused
					err = n.address(m, in, sender, recipients)
				}
			}
			return out, err
		}
	}
}

// address sets the sender and the recipients of a message of a tenant.
func (n *names) address(m *message.Message, tenant, sender string, recipients []string) (err error) {
	id := func(name string) string {
		if !config.IsExternalID(name) || err != nil {
			return name
		}
		name, err = n.endpoint(tenant, name)
		return name
	}
	set := message.Metadata{}
	if sender != "" && m.Metadata[gateway.KeyEndpointID] == "" {
		set[gateway.KeyEndpointID] = id(sender)
	}
	if _, has := m.Metadata[gateway.KeyDirectRecipients]; !has && len(recipients) > 0 {
		ids := make([]string, len(recipients))
		for i, name := range recipients {
			ids[i] = id(name)
		}
		set[gateway.KeyDirectRecipients] = strings.Join(ids, ",")
	}
	if err == nil {
		for key, value := range set {
			m.Metadata.Set(key, value)
		}
	}
	return err
}
