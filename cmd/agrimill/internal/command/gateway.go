package command

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
)

const serviceHelp = `The gateway is taken from --config FILE, agrimill's configuration, or else from
--base-url, --token-url and --client-id or the environment variables
AGRIMILL_BASE_URL, AGRIMILL_TOKEN_URL and AGRIMILL_CLIENT_ID. The client secret is
AGRIMILL_CLIENT_SECRET or the file of --client-secret-file, never an argument,
which other users of the machine could see. Set SSL_CERT_FILE to trust a private
certificate authority.`

type service struct {
	configPath           string
	baseURL, tokenURL    string
	clientID, secretFile string
	name, authStyle      string
	verbose              bool
	app                  application // as use found it
}

func (s *service) define(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.baseURL, "base-url", "", "`URL` of the gateway (default AGRIMILL_BASE_URL)")
	flags.StringVar(&s.tokenURL, "token-url", "", "`URL` of the token endpoint (default AGRIMILL_TOKEN_URL)")
	flags.StringVar(&s.clientID, "client-id", "", "`ID` of the application at the token endpoint (default AGRIMILL_CLIENT_ID)")
	flags.StringVar(&s.secretFile, "client-secret-file", "", "`FILE` with the client secret (default: the secret is AGRIMILL_CLIENT_SECRET)")
	choice(cmd, &s.authStyle, "auth-style", "`STYLE` of the token request: basic (default) or params", "basic", "params")
	flags.StringVar(&s.name, "service", "", "`NAME` of the service, as it appears in header names (default AGRIMILL_SERVICE, or \""+gateway.DefaultServiceName+"\")")
	configFlag(cmd, &s.configPath, "base-url", "token-url", "client-id", "client-secret-file", "auth-style", "service")
	flags.BoolVar(&s.verbose, "verbose", false, "log failed requests and retries")
}

// application has the IDs that only the configuration or the environment can provide.
type application struct{ id, softwareVersionID string }

func (s *service) use(p *program, f func(client *gateway.Client) error) (err error) {
	settings, err := s.settings(p)
	if err != nil {
		return err
	}
	level := slog.LevelWarn
	if s.verbose {
		level = slog.LevelDebug
	}
	settings.Logger = slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: level}))
	client, err := gateway.New(settings)
	if err != nil {
		return mistaken(err, map[string]string{
			"BaseURL": "--base-url (or AGRIMILL_BASE_URL)", "TokenURL": "--token-url (or AGRIMILL_TOKEN_URL)",
			"ClientID": "--client-id (or AGRIMILL_CLIENT_ID)", "ServiceName": "--service (or AGRIMILL_SERVICE)",
		})
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return f(client)
}

// settings returns the settings from the configuration file, or else from flags and the
// environment.
func (s *service) settings(p *program) (gateway.Config, error) {
	if s.configPath == "" {
		s.app = application{p.env("AGRIMILL_APPLICATION_ID"), p.env("AGRIMILL_SOFTWARE_VERSION_ID")}
		return s.given(p)
	}
	loaded, err := p.loadConfig(s.configPath)
	if err != nil {
		return gateway.Config{}, err
	}
	s.app = application{loaded.Gateway.ApplicationID, loaded.Gateway.SoftwareVersionID}
	settings, err := loaded.Gateway.ClientConfig()
	if err != nil {
		return settings, invalid(err)
	}
	return settings, nil
}

func (s *service) given(p *program) (gateway.Config, error) {
	settings := gateway.Config{
		BaseURL: cmp.Or(s.baseURL, p.env("AGRIMILL_BASE_URL")), TokenURL: cmp.Or(s.tokenURL, p.env("AGRIMILL_TOKEN_URL")),
		ClientID: cmp.Or(s.clientID, p.env("AGRIMILL_CLIENT_ID")), ServiceName: cmp.Or(s.name, p.env("AGRIMILL_SERVICE")),
		ClientSecret: gateway.Secret(strings.TrimRight(p.env("AGRIMILL_CLIENT_SECRET"), "\r\n")), // as in a configuration
	}
	if s.authStyle == "params" {
		settings.AuthStyle = gateway.AuthStyleParams
	}
	if s.secretFile != "" {
		secret, err := config.ReadSecret(s.secretFile)
		if err != nil {
			return settings, usagef("--client-secret-file: %v", err)
		}
		settings.ClientSecret = gateway.Secret(secret)
	}
	var missing []string
	for _, given := range []struct{ value, flag, variable string }{
		{settings.BaseURL, "--base-url", "AGRIMILL_BASE_URL"},
		{settings.TokenURL, "--token-url", "AGRIMILL_TOKEN_URL"},
		{settings.ClientID, "--client-id", "AGRIMILL_CLIENT_ID"},
		{string(settings.ClientSecret), "--client-secret-file", "AGRIMILL_CLIENT_SECRET"},
	} {
		if given.value == "" {
			missing = append(missing, given.flag+" (or "+given.variable+")")
		}
	}
	if len(missing) > 0 {
		return settings, usagef("the gateway is not specified: missing %s", strings.Join(missing, ", "))
	}
	return settings, nil
}

// lookup resolves tenants and endpoints as users name them. It calls the gateway at most
// once, and not at all if everything is given by ID.
type lookup struct {
	lister  gateway.TenantLister
	tenants []gateway.TenantInfo // nil: not asked yet
}

func (l *lookup) list(ctx context.Context) (_ []gateway.TenantInfo, err error) {
	if l.tenants == nil {
		l.tenants, err = l.lister.ListAuthorizedTenants(ctx)
	}
	return l.tenants, err
}

func (l *lookup) tenant(ctx context.Context, given string) (string, error) {
	if given != "" {
		return given, checkTenant(given)
	}
	tenants, err := l.list(ctx)
	switch {
	case err != nil:
		return "", err
	case len(tenants) == 0:
		return "", errors.New("no tenant has authorized the application")
	case len(tenants) > 1:
		return "", usagef("choose a tenant with --tenant: there are %s", plural(len(tenants), "tenant"))
	}
	return tenants[0].ID, nil
}

// endpoint resolves an endpoint given by ID or external ID; only the application's own
// endpoints are sure to show the latter. The endpoint has to be in the tenant, unless that
// is empty.
func (l *lookup) endpoint(ctx context.Context, flag, tenant, given string) (id, tenantID string, err error) {
	if config.IsUUID(given) && tenant != "" {
		return given, tenant, nil
	}
	tenants, err := l.list(ctx)
	if err != nil {
		return "", "", err
	}
	var found []gateway.TenantEndpointInfo
	for _, t := range tenants {
		if tenant == "" || strings.EqualFold(t.ID, tenant) {
			for _, e := range t.Endpoints {
				if strings.EqualFold(e.ID, given) || e.ExternalID == given {
					e.TenantID = t.ID
					found = append(found, e)
				}
			}
		}
	}
	switch len(found) {
	case 0:
		return "", "", usagef("%s: no endpoint has the ID or external ID %q; see agrimill tenants", flag, given)
	case 1:
		return found[0].ID, found[0].TenantID, nil
	}
	return "", "", usagef("%s: %d endpoints have the external ID %q; use the ID, or add --tenant", flag, len(found), given)
}
