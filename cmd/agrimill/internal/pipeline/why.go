package pipeline

import (
	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// whyFacts returns what is known but for the tenants: the endpoints that the configuration declares and its routes from the
// gateway, and of the pipeline the event stream and the routes that wait.
func (p *Pipeline) whyFacts(cfg *config.Config, running admin.Snapshot) why.Facts {
	facts := why.Facts{Stream: whyStream(running.Gateway), Unmatched: "confirmed and dropped"}
	if cfg.Subscriber.Unmatched == subscriber.UnmatchedQuarantine {
		facts.Unmatched = "stored in the quarantine, and confirmed then"
	}
	for _, e := range cfg.Endpoints {
		facts.Declared = append(facts.Declared, why.Declared{Tenant: e.Tenant, ExternalID: e.ExternalID, Subscriptions: e.Subscriptions})
	}
	waits := map[string]string{}
	for _, r := range running.Routes {
		if r.State == router.StateOutage {
			waits[r.Name] = r.LastError
		}
	}
	for _, r := range cfg.Routes {
		if r.From.Gateway == "" {
			continue
		}
		route := why.Route{
			Name: r.Name, Topic: r.From.Gateway, Waits: waits[r.Name],
			Takes: func(messageType string) bool {
				return subscriber.Takes(r.From.GatewayTopic(), gateway.EventMessageReceived, messageType)
			},
		}
		refusal := p.names.newRefusal(r.Filter)
		route.Refuses = func(tenant, messageType, endpoint string) string {
			if key, err := refusal(tenant, messageType, endpoint); err == nil {
				return key
			}
			return "" // it waits
		}
		if len(r.Filter.Filename) > 0 {
			route.Depends = append(route.Depends, "filename")
		}
		if r.Filter.Expr != "" {
			route.Depends = append(route.Depends, "expr")
		}
		if r.Filter.Farm != nil {
			route.Depends = append(route.Depends, "farm")
		}
		facts.Routes = append(facts.Routes, route)
	}
	return facts
}

func whyStream(g admin.Gateway) why.Link {
	switch g.State {
	case admin.GatewayConnected, admin.GatewayAwaitingHead:
		return why.Link{State: why.StateOK, Detail: "the event stream is open"}
	case admin.GatewayStandby:
		return why.Link{State: why.StateUnknown, Detail: "this instance stands by, and the one that holds the lease has the event stream", Remedy: "ask that one"}
	case admin.GatewayUnused:
		return why.Link{State: why.StateMissing, Detail: "agrimill does not open the event stream: no route receives from the gateway", Remedy: "add such a route"}
	}
	detail := "the event stream is " + string(g.State)
	if g.LastError != "" {
		detail += ": " + g.LastError
	}
	return why.Link{State: why.StateMissing, Detail: detail, Remedy: "agrimill tries again by itself; agrimill check tells more about the connection"}
}

// Why implements [admin.Source]. The tenants are those of [Pipeline.Tenants].
func (p *Pipeline) Why(q why.Question) why.Answer {
	facts := p.whyFacts(p.now().config, p.Snapshot())
	if wakeup.Raised(p.authorized) {
		facts.Tenants = p.directory.Tenants()
	} else {
		facts.TenantsErr = "it has not responded yet"
	}
	return why.Walk(q, facts)
}
