package main

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
)

// lookup finds tenants and endpoints by what a person knows of them. It asks the
// gateway at most once, and not at all when everything is given by ID.
type lookup struct {
	lister  gateway.TenantLister
	tenants []gateway.TenantInfo
	asked   bool
}

func (l *lookup) list(ctx context.Context) ([]gateway.TenantInfo, error) {
	if l.asked {
		return l.tenants, nil
	}
	tenants, err := l.lister.ListAuthorizedTenants(ctx)
	if err != nil {
		return nil, err
	}
	l.tenants, l.asked = tenants, true
	return tenants, nil
}

// tenant returns the tenant that is given, or the only one there is.
func (l *lookup) tenant(ctx context.Context, given string) (string, error) {
	if given != "" {
		return given, checkUUID("--tenant", given)
	}
	tenants, err := l.list(ctx)
	switch {
	case err != nil:
		return "", err
	case len(tenants) == 0:
		return "", errors.New("no tenant has authorized the application")
	case len(tenants) > 1:
		return "", usagef("say which tenant with --tenant: there are %s", plural(len(tenants), "tenant"))
	}
	return tenants[0].TenantID, nil
}

// endpoint returns the ID of an endpoint that is given by its ID, or by its
// external ID, which only the application's own endpoints are sure to show. The
// endpoint has to be in the tenant, unless that is empty.
func (l *lookup) endpoint(ctx context.Context, flag, tenant, given string) (id, tenantID string, err error) {
	if isUUID(given) && tenant != "" {
		return given, tenant, nil
	}
	tenants, err := l.list(ctx)
	if err != nil {
		return "", "", err
	}
	var found []gateway.TenantEndpointInfo
	for _, t := range tenants {
		if tenant == "" || strings.EqualFold(t.TenantID, tenant) {
			for _, e := range t.Endpoints {
				if strings.EqualFold(e.ID, given) || e.ExternalID == given {
					e.TenantID = t.TenantID
					found = append(found, e)
				}
			}
		}
	}
	switch len(found) {
	case 0:
		return "", "", usagef("%s: no endpoint has the ID or external ID %q; see bridge tenants", flag, given)
	case 1:
		return found[0].ID, found[0].TenantID, nil
	}
	return "", "", usagef("%s: %d endpoints have the external ID %q: give the ID, or --tenant", flag, len(found), given)
}

// checkUUID checks an ID before anything is asked or sent.
func checkUUID(flag, value string) error {
	if !isUUID(value) {
		return usagef("%s must be a UUID", flag)
	}
	return nil
}

// isUUID takes the usual form only: urn:uuid:… is an external ID.
func isUUID(text string) bool { return len(text) == 36 && uuid.Validate(text) == nil }
