package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/gateway"
)

// serviceHelp is the part of the help about the gateway.
const serviceHelp = `Where the gateway is: --config FILE, the configuration of the bridge. Without one:
--base-url, --token-url and --client-id, or the environment variables
AGRIMILL_BASE_URL, AGRIMILL_TOKEN_URL and AGRIMILL_CLIENT_ID. The client secret is
AGRIMILL_CLIENT_SECRET or in the file of --client-secret-file, never an argument,
which other users of the machine could see. SSL_CERT_FILE names the certificates of
an own authority.`

// service is the gateway and how to talk to it.
type service struct {
	configPath           string
	baseURL, tokenURL    string
	clientID, secretFile string
	name, authStyle      string
	verbose              bool
}

func (s *service) define(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.baseURL, "base-url", "", "`URL` of the gateway (default AGRIMILL_BASE_URL)")
	flags.StringVar(&s.tokenURL, "token-url", "", "`URL` of the token endpoint (default AGRIMILL_TOKEN_URL)")
	flags.StringVar(&s.clientID, "client-id", "", "`ID` of the application at the token endpoint (default AGRIMILL_CLIENT_ID)")
	flags.StringVar(&s.secretFile, "client-secret-file", "", "`FILE` with the client secret (default: the secret is AGRIMILL_CLIENT_SECRET)")
	choice(cmd, &s.authStyle, "auth-style", "`STYLE` of the token request: basic (default) or params", "basic", "params")
	flags.StringVar(&s.name, "service", "", "the service's own `NAME`, as it stands in header names (default AGRIMILL_SERVICE, or \""+gateway.DefaultServiceName+"\")")
	configFlag(cmd, &s.configPath, "base-url", "token-url", "client-id", "client-secret-file", "auth-style", "service")
	flags.BoolVar(&s.verbose, "verbose", false, "tell about failed requests and retries")
}

// application is what only the configuration or the environment knows of the
// application.
type application struct{ id, softwareVersionID string }

// use runs f with a client, which is closed afterwards.
func (s *service) use(p *program, f func(client *gateway.Client) error) error {
	settings, _, err := s.settings(p)
	if err != nil {
		return err
	}
	return s.useWith(p, settings, f)
}

func (s *service) useWith(p *program, settings gateway.Config, f func(client *gateway.Client) error) (err error) {
	level := slog.LevelWarn
	if s.verbose {
		level = slog.LevelDebug
	}
	settings.Logger = slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: level}))
	client, err := gateway.New(settings)
	if err != nil {
		return usagef("%s", err)
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return f(client)
}

// settings are those of the configuration, or of flags and environment.
func (s *service) settings(p *program) (gateway.Config, application, error) {
	if s.configPath != "" {
		loaded, err := p.loadConfig(s.configPath)
		if err != nil {
			return gateway.Config{}, application{}, err
		}
		settings, err := loaded.Gateway.ClientConfig()
		if err != nil {
			return gateway.Config{}, application{}, invalid(err)
		}
		return settings, application{loaded.Gateway.ApplicationID, loaded.Gateway.SoftwareVersionID}, nil
	}
	settings, err := s.given(p)
	return settings, application{p.env("AGRIMILL_APPLICATION_ID"), p.env("AGRIMILL_SOFTWARE_VERSION_ID")}, err
}

// given are the settings of flags and environment.
func (s *service) given(p *program) (gateway.Config, error) {
	or := func(value, variable string) string {
		if value == "" {
			return p.env(variable)
		}
		return value
	}
	config := gateway.Config{
		BaseURL: or(s.baseURL, "AGRIMILL_BASE_URL"), TokenURL: or(s.tokenURL, "AGRIMILL_TOKEN_URL"),
		ClientID: or(s.clientID, "AGRIMILL_CLIENT_ID"), ServiceName: or(s.name, "AGRIMILL_SERVICE"),
		ClientSecret: p.env("AGRIMILL_CLIENT_SECRET"),
	}
	if s.authStyle == "params" {
		config.AuthStyle = gateway.AuthStyleParams
	}
	if s.secretFile != "" {
		secret, err := readSecret(s.secretFile)
		if err != nil {
			return config, err
		}
		config.ClientSecret = secret
	}
	var missing []string
	for _, given := range []struct{ value, flag, variable string }{
		{config.BaseURL, "--base-url", "AGRIMILL_BASE_URL"},
		{config.TokenURL, "--token-url", "AGRIMILL_TOKEN_URL"},
		{config.ClientID, "--client-id", "AGRIMILL_CLIENT_ID"},
		{config.ClientSecret, "--client-secret-file", "AGRIMILL_CLIENT_SECRET"},
	} {
		if given.value == "" {
			missing = append(missing, given.flag+" or "+given.variable)
		}
	}
	if len(missing) > 0 {
		return config, usagef("the gateway is not known: %s is missing", strings.Join(missing, ", "))
	}
	return config, nil
}

// maxSecret is more than any secret has, in bytes.
const maxSecret = 64 << 10

// readSecret reads a file that holds nothing but a secret.
func readSecret(name string) (secret string, err error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	text, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err != nil {
		return "", err
	}
	text = bytes.TrimSpace(text)
	if len(text) == 0 || len(text) > maxSecret {
		return "", fmt.Errorf("%s holds no secret: %d bytes", name, len(text))
	}
	return string(text), nil
}

// advice says what can be done about a failure of the gateway; empty when there
// is nothing to say beyond the error.
func advice(err error) string {
	switch {
	case errors.Is(err, gateway.ErrPartialDelivery):
		return "the reachable recipients have it: do not send it to all of them again. bridge tenants shows what can be routed"
	case errors.Is(err, gateway.ErrNoRecipients):
		return "nobody has it: there is no route for this type from the sender to a recipient, or no recipient receives the type; see bridge tenants"
	case errors.Is(err, gateway.ErrUnauthorized):
		return "check client ID, client secret and the address of the token endpoint"
	case errors.Is(err, gateway.ErrForbidden):
		return "the tenant has not authorized the application, or the endpoint is not one of its own there; see bridge tenants"
	case errors.Is(err, gateway.ErrCertificate):
		return "the certificate of the other side is not valid for it; SSL_CERT_FILE names the certificates of an own authority"
	case errors.Is(err, gateway.ErrUnavailable):
		return "the gateway is down or cannot be reached: try again later, or with --verbose"
	case errors.Is(err, gateway.ErrRateLimited):
		return "too many requests of this application: try again later"
	case errors.Is(err, gateway.ErrBadResponse):
		return "what answered is not the gateway, or not the version that this program knows: check the addresses"
	}
	return ""
}
