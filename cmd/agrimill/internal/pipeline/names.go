package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// names finds the endpoints that a configuration names by their external IDs. What the list of tenants does not tell
// yet is an outage: the message waits.
type names struct {
	directory *gateway.Directory        // nil: there is no gateway to ask
	look      func(found bool)          // is told of each search, and may have the list of tenants refreshed
	known     *lru.Cache[string, named] // by endpoint ID: an endpoint keeps its external ID, also when it is deleted
}

const (
	// maxKnown is how many endpoints are known.
	maxKnown = 100_000
	// listedAgainAfter is how long the IDs that a list has shown to be current are refused without another one.
	listedAgainAfter = 10 * time.Second
	// maxRefused is how many IDs are known to be current.
	maxRefused = 1000
	// listTimeout bounds one listing of the tenants: the event stream lists them too, and has to wait for its turn.
	listTimeout = 30 * time.Second
)

func newNames(directory *gateway.Directory, look func(found bool)) names {
	known, _ := lru.New[string, named](maxKnown) // only a size below 1 is an error
	return names{directory, look, known}
}

func (n *names) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return n.directory.Sync(ctx)
}

type named struct{ tenant, externalID string }

// ErrOffline is the error of a [Trial], which has no gateway to ask.
var ErrOffline = router.Permanent(errors.New("only the gateway knows which endpoint has an external ID: let the message name its endpoint as the configuration does"))

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
		return false, ErrOffline
	}
	if e, ok := n.info(endpoint); ok {
		return slices.ContainsFunc(externalIDs, func(id string) bool { return config.ExternalID(id, e.tenant) == e.externalID }), nil
	}
	for _, externalID := range externalIDs {
		id, err := n.endpoint(tenant, externalID)
		if err != nil {
			return false, fmt.Errorf("endpoint %s may be the one: %w; or add its ID to filter.endpoint, or leave out its tenant with filter.tenant", endpoint, err)
		}
		if strings.EqualFold(id, endpoint) {
			return true, nil
		}
	}
	return false, nil // all of them are other endpoints
}

func (n *names) info(id string) (named, bool) {
	id = strings.ToLower(id)
	if known, ok := n.known.Get(id); ok {
		return known, true
	}
	e, ok := n.directory.Endpoint(id)
	if !ok || e.ExternalID == "" {
		return named{}, false
	}
	known := named{e.TenantID, e.ExternalID}
	n.known.Add(id, known)
	return known, true
}

func (n *names) endpoint(tenant, externalID string) (string, error) {
	if n.directory == nil {
		return "", ErrOffline
	}
	id, ok := n.directory.EndpointNamed(tenant, externalID)
	if n.look(ok); !ok { // a replay has looked by now
		id, ok = n.directory.EndpointNamed(tenant, externalID)
	}
	if !ok {
		return "", router.Outage(fmt.Errorf("no endpoint of tenant %s has the external ID %s: create it, or correct the configuration; agrimill tenants lists them", tenant, config.ExternalID(externalID, tenant)))
	}
	return id, nil
}

// addressed is the sink of a route to the gateway that names the sender or recipients by their external IDs, itself or by what it
// sets in messages. Each time that it publishes a message, it looks up their IDs, which an outage in between may change.
type addressed struct {
	sinks.Sink
	names          *names
	sender, tenant string
	recipients     []string
	current        *lru.Cache[string, time.Time] // by the IDs of refused messages: when a list that has them was asked for
}

// addressed takes the sender and the recipients from cfg, and the tenant of messages without one, if one of them is an
// external ID or set in messages; nil if none is.
func (n *names) addressed(cfg *publisher.Config, set map[string]string) *addressed {
	a := &addressed{names: n, sender: cfg.EndpointID, tenant: cfg.TenantID, recipients: cfg.DirectRecipients}
	if set[gateway.KeyEndpointID]+set[gateway.KeyDirectRecipients] == "" && !slices.ContainsFunc(append([]string{a.sender}, a.recipients...), config.IsExternalID) {
		return nil
	}
	cfg.EndpointID, cfg.DirectRecipients = "", nil
	a.current, _ = lru.New[string, time.Time](maxRefused) // as in newNames
	return a
}

// wait is the middleware that lets messages wait until their endpoints are known, before they stand in the way of others with
// the same topic.
func (a *addressed) wait(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := next(msg)
		if err == nil {
			_, err = a.address(out)
		}
		return out, err
	}
}

// Publish implements [sinks.Sink]. A message that is refused while its endpoint has been made anew is tried again.
func (a *addressed) Publish(topic string, messages ...*message.Message) error {
	own, err := a.address(messages)
	if err != nil {
		return err
	}
	err = a.Sink.Publish(topic, own...)
	ids, asked := given(own, messages), time.Now()
	refused := func(reason error) bool { return errors.Is(err, reason) && gateway.Refused(err) }
	if ids == "" || !slices.ContainsFunc([]error{gateway.ErrForbidden, gateway.ErrNotFound, gateway.ErrNoRecipients}, refused) {
		return err
	}
	if listed, ok := a.current.Get(ids); ok && asked.Sub(listed) < listedAgainAfter {
		return err
	}
	if listing := a.names.list(messages[0].Context()); listing != nil {
		return router.Outage(fmt.Errorf("%w; and whether an endpoint has taken the place of another one is not known: %w", err, listing))
	}
	again, changed := a.address(messages)
	if changed != nil || given(again, messages) != ids {
		return router.Outage(fmt.Errorf("another endpoint has taken the place of one that was addressed: %w", cmp.Or(changed, err)))
	}
	a.current.Add(ids, asked)
	return err
}

func given(own, messages []*message.Message) string {
	var ids strings.Builder
	for i, m := range own {
		for _, key := range []string{gateway.KeyEndpointID, gateway.KeyDirectRecipients} {
			if m != messages[i] && m.Metadata[key] != messages[i].Metadata[key] {
				ids.WriteString(m.Metadata[key] + " ")
			}
		}
	}
	return ids.String()
}

// PublishAsync implements [sinks.Sink].
func (a *addressed) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	own, err := a.address([]*message.Message{msg})
	if err != nil {
		return nil, err
	}
	return a.Sink.PublishAsync(topic, own[0])
}

// Unwrap returns the sink itself.
func (a *addressed) Unwrap() sinks.Sink { return a.Sink }

// address returns the messages, copies of those that it gives IDs.
func (a *addressed) address(messages []*message.Message) ([]*message.Message, error) {
	own := slices.Clone(messages)
	for i, m := range messages {
		if m == nil { // it is refused
			continue
		}
		ids, err := a.ids(m.Metadata)
		if err != nil {
			return nil, err
		}
		if len(ids) > 0 {
			own[i] = m.CopyWithContext()
			maps.Copy(own[i].Metadata, ids)
		}
	}
	return own, nil
}

func (a *addressed) ids(of message.Metadata) (ids message.Metadata, err error) {
	tenant := cmp.Or(of[gateway.KeyTenantID], a.tenant)
	if !config.IsUUID(tenant) {
		return nil, nil // the publisher refuses it
	}
	id := func(name string) string {
		if !config.IsExternalID(name) || err != nil {
			return name
		}
		name, err = a.names.endpoint(tenant, name)
		return name
	}
	ids = message.Metadata{}
	if sender := cmp.Or(of[gateway.KeyEndpointID], a.sender); sender != "" {
		ids[gateway.KeyEndpointID] = id(sender)
	}
	recipients := a.recipients
	if list, has := of[gateway.KeyDirectRecipients]; has {
		recipients = strings.Split(list, ",")
	}
	if len(recipients) > 0 {
		list := make([]string, len(recipients))
		for i, name := range recipients {
			list[i] = id(strings.TrimSpace(name))
		}
		ids[gateway.KeyDirectRecipients] = strings.Join(list, ",")
	}
	maps.DeleteFunc(ids, func(key, id string) bool { return id == of[key] })
	return ids, err
}
