package command

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/wildcard"
)

const typesWidth = 60 // characters

func newTenantsCommand(p *program) *cobra.Command {
	var from service
	var show tenantsView
	cmd := &cobra.Command{
		Use:     "tenants [FILE]",
		GroupID: groupGateway,
		Short:   "list tenants, their endpoints and routes",
		Long: `Lists the tenants that authorized the application, the endpoints that it can see in
them, and the routes to and from its own endpoints. With --json the output is the
array "tenants" of the gateway's response, reduced by the filters.

` + serviceHelp,
		Example: `  agrimill tenants
  agrimill tenants --mine --json
  agrimill tenants --type 'iso:11783:*'`,
		Args:              configArgument,
		ValidArgsFunction: configFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkTenant(show.tenant); err != nil {
				return err
			}
			return from.use(p, func(client *gateway.Client) error {
				all, err := client.ListAuthorizedTenants(cmd.Context())
				if err != nil {
					return err
				}
				list := show.filter(all)
				if len(list) == 0 && len(all) > 0 {
					return fmt.Errorf("tenant %s has not authorized the application; agrimill tenants lists those that have", show.tenant)
				}
				if known := countEndpoints(all); known > 0 && countEndpoints(list) == 0 {
					p.notef("no endpoint matches: there are %d; see --tenant, --mine and --type", known)
				}
				return p.write(list, func() error { return show.write(p, list) })
			})
		},
	}
	flags := cmd.Flags()
	from.define(cmd)
	flags.StringVar(&show.tenant, "tenant", "", "only the tenant with this `ID`")
	flags.BoolVar(&show.mine, "mine", false, "only endpoints of this application")
	flags.StringVar(&show.messageType, "type", "", "only endpoints and routes of this message `TYPE`; * matches any characters, ? exactly one")
	flags.BoolVar(&show.full, "full", false, "do not shorten lists of message types")
	flags.BoolVar(&p.asJSON, "json", false, "write JSON")
	return cmd
}

func countEndpoints(list []gateway.TenantInfo) (n int) {
	for _, tenant := range list {
		n += len(tenant.Endpoints)
	}
	return n
}

type tenantsView struct {
	tenant, messageType string
	mine, full          bool
}

func (v *tenantsView) filter(list []gateway.TenantInfo) []gateway.TenantInfo {
	matches := wildcard.New("", v.messageType).Match
	some := func(types []string) bool { return slices.ContainsFunc(types, matches) }
	kept := []gateway.TenantInfo{}
	for _, tenant := range list {
		if v.tenant != "" && !strings.EqualFold(v.tenant, tenant.ID) {
			continue
		}
		endpoints := []gateway.TenantEndpointInfo{}
		for _, e := range tenant.Endpoints {
			if v.mine && !e.OwnedByYourApplication {
				continue
			}
			if v.messageType != "" {
				if !some(e.Capabilities.CanSend) && !some(e.Capabilities.CanReceive) {
					continue
				}
				if routes := e.RoutedEndpoints; routes != nil {
					e.RoutedEndpoints = &gateway.RoutedEndpoints{
						CanSendTo: filterRoutes(routes.CanSendTo, matches), CanReceiveFrom: filterRoutes(routes.CanReceiveFrom, matches),
					}
				}
			}
			endpoints = append(endpoints, e)
		}
		tenant.Endpoints = endpoints
		kept = append(kept, tenant)
	}
	return kept
}

func filterRoutes(routes gateway.EndpointRouteMap, matches func(string) bool) gateway.EndpointRouteMap {
	kept := gateway.EndpointRouteMap{}
	for id, types := range routes {
		if types = slices.DeleteFunc(slices.Clone(types), func(t string) bool { return !matches(t) }); len(types) > 0 {
			kept[id] = types
		}
	}
	return kept
}

func (v *tenantsView) write(p *program, list []gateway.TenantInfo) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(p.stdout, "no tenant has authorized the application")
		return err
	}
	for i, tenant := range list {
		if i > 0 {
			if _, err := fmt.Fprintln(p.stdout); err != nil {
				return err
			}
		}
		if err := v.writeTenant(p, tenant); err != nil {
			return err
		}
	}
	return nil
}

func (v *tenantsView) writeTenant(p *program, tenant gateway.TenantInfo) error {
	if _, err := fmt.Fprintf(p.stdout, "Tenant %s: %s\n", cell(tenant.ID), plural(len(tenant.Endpoints), "endpoint")); err != nil {
		return err
	}
	if len(tenant.Endpoints) == 0 {
		return nil
	}
	table := p.table("  ENDPOINT", "NAME", "EXTERNAL ID", "KIND", "OURS", "SENDS", "RECEIVES")
	for _, e := range tenant.Endpoints {
		ours := "no"
		if e.OwnedByYourApplication {
			ours = "yes"
		}
		table.row("  "+e.ID, e.Name, e.ExternalID, e.EndpointType, ours, v.types(e.Capabilities.CanSend), v.types(e.Capabilities.CanReceive))
	}
	if routes := routesOf(tenant); len(routes) > 0 {
		if err := table.Flush(); err != nil { // each table has its own columns
			return err
		}
		_, _ = fmt.Fprintln(p.stdout) // an error shows up again at the end
		_, _ = fmt.Fprintln(table, "  FROM\t\tTO\t\tTYPES")
		for _, r := range routes {
			table.row("  "+r.from, r.fromName, r.to, r.toName, v.types(r.types))
		}
	}
	return table.Flush()
}

func (v *tenantsView) types(list []string) string {
	text := strings.Join(list, " ")
	if v.full {
		return text
	}
	return shorten(text, typesWidth)
}

type tenantRoute struct {
	from, fromName, to, toName string
	types                      []string
}

// routesOf returns the routes of a tenant, each once: a route between two endpoints of the
// application is listed with both.
func routesOf(tenant gateway.TenantInfo) []tenantRoute {
	names := map[string]string{}
	for _, e := range tenant.Endpoints {
		names[strings.ToLower(e.ID)] = e.Name
	}
	found := map[[2]string]map[string]bool{}
	add := func(from, to string, types []string) {
		key := [2]string{strings.ToLower(from), strings.ToLower(to)}
		if found[key] == nil {
			found[key] = map[string]bool{}
		}
		for _, t := range types {
			found[key][t] = true
		}
	}
	for _, e := range tenant.Endpoints {
		if e.RoutedEndpoints == nil {
			continue
		}
		for id, types := range e.RoutedEndpoints.CanSendTo {
			add(e.ID, id, types)
		}
		for id, types := range e.RoutedEndpoints.CanReceiveFrom {
			add(id, e.ID, types)
		}
	}
	var routes []tenantRoute
	for key, types := range found {
		if len(types) > 0 {
			routes = append(routes, tenantRoute{
				from: key[0], fromName: names[key[0]], to: key[1], toName: names[key[1]], types: slices.Sorted(maps.Keys(types)),
			})
		}
	}
	slices.SortFunc(routes, func(a, b tenantRoute) int {
		return cmp.Or(cmp.Compare(a.fromName, b.fromName), cmp.Compare(a.from, b.from), cmp.Compare(a.toName, b.toName), cmp.Compare(a.to, b.to))
	})
	return routes
}
