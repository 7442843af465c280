package command

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
)

// offerTimeout bounds what the shell waits for a running agrimill after the tab key.
const offerTimeout = time.Second

// offer adds values of a running agrimill, with what they are, for one that was begun.
type offer func(ctx context.Context, server *adminServer, begun string, add func(value, what string)) error

// completeFromRunning has the shell offer, for flags and for arguments, what a running agrimill knows.
func (p *program) completeFromRunning(root *cobra.Command) {
	for at, list := range map[string]offer{
		"trace": messagesOf, "poison show": poisonedOf, "poison replay": poisonedOf, "poison drop": poisonedOf,
		"endpoints delete": endpointsOf(ownEndpoint), "endpoints put": endpointsOf(ownEndpoint),
		"send --from": endpointsOf(ownEndpoint), "send --to": endpointsOf(anyEndpoint),
		"tail --endpoint": endpointsOf(ownEndpoint), "why --from": endpointsOf(anyEndpoint),
		"poison list --route": routesOfProcess, "poison replay --route": routesOfProcess, "poison drop --route": routesOfProcess,
		"send --tenant": tenantsOf, "tail --tenant": tenantsOf, "tenants --tenant": tenantsOf, "why --tenant": tenantsOf,
		"endpoints put --tenant": tenantsOf, "endpoints delete --tenant": tenantsOf,
	} {
		path, flag, _ := strings.Cut(at, " --")
		cmd, _, _ := root.Find(strings.Fields(path)) // each is there
		if flag != "" {
			completeFlag(cmd, flag, p.offers(list))
		} else {
			cmd.ValidArgsFunction = p.offers(list)
		}
	}
}

// offers completes with what the running agrimill knows that the flags so far name. Without an answer the shell offers nothing. What is
// found is data of others.
func (p *program) offers(list offer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, begun string) (found []string, _ cobra.ShellCompDirective) {
		at := adminAt{address: admin.DefaultAddress}
		for name, value := range map[string]*string{"admin": &at.address, "admin-token-file": &at.tokenFile, "config": &at.configPath} {
			if flag := cmd.Flags().Lookup(name); flag != nil && flag.Changed {
				*value = flag.Value.String()
			}
		}
		server, err := at.server(p)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		seen := map[string]bool{"": true}
		for _, value := range given {
			seen[value] = true
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), offerTimeout)
		defer cancel()
		_ = list(ctx, server, begun, func(value, what string) {
			if !seen[value] && strings.HasPrefix(value, begun) && journal.Printable(value) == value {
				seen[value] = true
				found = append(found, cobra.CompletionWithDesc(value, journal.Printable(what)))
			}
		})
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// messagesOf offers the names of the newest messages, and the IDs of those that begin as the one to complete.
func messagesOf(ctx context.Context, server *adminServer, begun string, add func(value, what string)) error {
	trace, err := server.trace(ctx, begun, 50)
	for _, m := range trace.Messages {
		add(cmp.Or(m.Filename, m.UUID), m.State)
		if begun != "" {
			for _, id := range append(m.MessageIDs, m.ContextID, m.UUID) {
				add(id, m.Filename)
			}
		}
	}
	return err
}

func tenantsOf(ctx context.Context, server *adminServer, _ string, add func(value, what string)) error {
	list, err := server.tenants(ctx)
	for _, t := range list {
		var names []string
		for _, e := range t.Endpoints {
			names = append(names, e.Name)
		}
		add(t.ID, strings.Join(names, ", "))
	}
	return err
}

// endpointsOf offers the external IDs of endpoints, or their IDs where the gateway does not tell those.
func endpointsOf(wanted func(admin.Endpoint) bool) offer {
	return func(ctx context.Context, server *adminServer, _ string, add func(value, what string)) error {
		list, err := server.tenants(ctx)
		for _, t := range list {
			for _, e := range t.Endpoints {
				if wanted(e) {
					add(cmp.Or(e.ExternalID, e.ID), e.Name)
				}
			}
		}
		return err
	}
}

func (r *adminServer) tenants(ctx context.Context) ([]admin.Tenant, error) {
	var list admin.TenantList
	err := r.ask(ctx, "/api/tenants", nil, &list)
	return list.Tenants, err
}

func anyEndpoint(admin.Endpoint) bool   { return true }
func ownEndpoint(e admin.Endpoint) bool { return e.Mine }

func routesOfProcess(ctx context.Context, server *adminServer, _ string, add func(value, what string)) error {
	var snapshot admin.Snapshot
	err := server.ask(ctx, "/api/status", nil, &snapshot)
	for _, r := range snapshot.Routes {
		add(r.Name, "to "+cmp.Or(r.To.Sink, r.To.Kind))
	}
	return err
}

func poisonedOf(ctx context.Context, server *adminServer, _ string, add func(value, what string)) error {
	var page admin.PoisonPage
	err := server.ask(ctx, "/api/poison", nil, &page)
	for _, r := range page.Messages {
		add(r.ID, r.Route+": "+r.Reason)
	}
	return err
}
