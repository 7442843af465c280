package command

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
)

const (
	// askTimeout bounds one request to a running agrimill.
	askTimeout = 30 * time.Second
	// maxAnswer is the largest response that is read, in bytes.
	maxAnswer = 256 << 20
)

type adminServer struct {
	url   url.URL
	token gateway.Secret
	tls   *tls.Config
}

// adminAt says which running agrimill is asked.
type adminAt struct{ configPath, address, tokenFile string }

func (a *adminAt) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.address, "admin", admin.DefaultAddress, "`HOST:PORT` of the status page of a running agrimill; https://HOST:PORT if it has TLS")
	a.tokenFlag(cmd)
	configFlag(cmd, &a.configPath, "admin")
}

func (a *adminAt) tokenFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.tokenFile, "admin-token-file", "", "`FILE` with the token of a protected status page (default: the one in the configuration)")
}

func (a *adminAt) server(p *program) (*adminServer, error) {
	if a.configPath == "" {
		return a.of(nil)
	}
	cfg, err := p.loadConfig(a.configPath)
	if err != nil {
		return nil, err
	}
	return a.of(cfg)
}

// of returns the one of a configuration, which is nil if address names it.
func (a *adminAt) of(cfg *config.Config) (r *adminServer, err error) {
	switch {
	case cfg == nil:
		r = &adminServer{url: url.URL{Scheme: "http", Host: a.address}}
		if host, secure := strings.CutPrefix(a.address, "https://"); secure {
			r.url.Scheme, r.url.Host = "https", strings.TrimSuffix(host, "/")
		}
		if !isAddress(r.url.Host) {
			return nil, usagef("--admin must be host:port or https://host:port, not %q", a.address)
		}
	case cfg.Admin.Address == config.AdminOff:
		return nil, invalid(errors.New("admin.address is off, so there is nobody to ask"))
	case strings.HasSuffix(cfg.Admin.Address, ":0"):
		return nil, invalid(errors.New("admin.address has the port 0, so the system chooses one: name it with --admin instead of the file; the log of agrimill run has it"))
	default:
		r = &adminServer{url: url.URL{Scheme: "http", Host: cfg.Admin.Address}, token: cmp.Or(cfg.Admin.ReadToken, cfg.Admin.Token)}
		if cfg.Admin.TLS.Enabled() {
			r.url.Scheme = "https"
			if r.tls, err = trusting(cfg.Admin.TLS.CertFile); err != nil {
				return nil, err
			}
		}
	}
	if host, port, err := net.SplitHostPort(r.url.Host); err == nil && host == "" { // it listens on all addresses, also on those of this machine
		r.url.Host = net.JoinHostPort("localhost", port)
	}
	if a.tokenFile != "" {
		token, err := config.ReadSecret(a.tokenFile)
		if err != nil {
			return nil, usagef("--admin-token-file: %v", err)
		}
		r.token = gateway.Secret(token)
	}
	return r, nil
}

// trusting returns what trusts the certificate in a file and no other, under the name that it has: the
// address that agrimill listens on need not be in it.
func trusting(file string) (*tls.Config, error) {
	leaf, err := config.Leaf(file)
	if err != nil {
		return nil, fmt.Errorf("admin.tls.cert_file: %w", err)
	}
	trusts := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	trusts.RootCAs.AddCert(leaf)
	switch {
	case len(leaf.DNSNames) > 0:
		trusts.ServerName = strings.Replace(leaf.DNSNames[0], "*", "agrimill", 1)
	case len(leaf.IPAddresses) > 0:
		trusts.ServerName = leaf.IPAddresses[0].String()
	}
	return trusts, nil
}

func (r *adminServer) trace(ctx context.Context, query string, limit int) (trace journal.Trace, err error) {
	if len(query) > admin.MaxTraceQuery {
		return trace, usagef("%s… has %d bytes; look for at most %d", cell(query[:20]), len(query), admin.MaxTraceQuery)
	}
	return trace, r.ask(ctx, "/api/trace", url.Values{"q": {query}, "limit": {strconv.Itoa(limit)}}, &trace)
}

func (r *adminServer) ask(ctx context.Context, path string, query url.Values, value any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	target := r.url
	target.Path, target.RawQuery = path, query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	if r.token != "" {
		request.Header.Set("Authorization", "Bearer "+string(r.token))
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: r.tls},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		if failed := (*url.Error)(nil); errors.As(err, &failed) {
			err = failed.Err // without the path
		}
		if untrusted := (*tls.CertificateVerificationError)(nil); errors.As(err, &untrusted) {
			return fmt.Errorf("%s has a certificate that is not trusted: %w; name the configuration of that agrimill (--config), whose certificate is, or set SSL_CERT_FILE", r.url.Host, err)
		}
		if errors.Is(err, http.ErrSchemeMismatch) {
			return fmt.Errorf("%s has no TLS: --admin %s; or restart agrimill, if its configuration has admin.tls now", r.url.Host, r.url.Host)
		}
		return fmt.Errorf("no agrimill answers at %s: %w; start it (agrimill run), or name its address (--admin)", r.url.Host, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("the response of %s was cut off: %w; try again", r.url.Host, err)
	}
	if response.StatusCode != http.StatusOK {
		var problem struct {
			Error string `json:"error"`
		}
		_ = json.Unmarshal(body, &problem) // what is not from agrimill has no such field
		advice := ""
		if response.StatusCode == http.StatusUnauthorized {
			advice = "; the page is protected: its configuration (--config) or --admin-token-file has to have the token"
		}
		switch {
		case bytes.Contains(body, []byte("HTTP request to an HTTPS server")): // of net/http
			return fmt.Errorf("%s has TLS: --admin https://%s, or the configuration of that agrimill (--config)", r.url.Host, r.url.Host)
		case problem.Error == "":
			return fmt.Errorf("the program at %s is no agrimill: it responded %s", r.url.Host, response.Status)
		case response.StatusCode == http.StatusBadRequest:
			return usagef("%s", problem.Error)
		}
		return fmt.Errorf("%s responded %s: %s%s", r.url.Host, response.Status, cell(problem.Error), advice)
	}
	if json.Unmarshal(body, value) != nil || reflect.ValueOf(value).Elem().IsZero() { // others have JSON, too
		return fmt.Errorf("the program at %s is no agrimill: its response has nothing of agrimill's; name the address of the status page (--admin)", r.url.Host)
	}
	return nil
}
