package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
)

const (
	// askTimeout bounds one request to a running agrimill.
	askTimeout = 30 * time.Second
	// maxAnswer is the largest response that is read, in bytes.
	maxAnswer = 256 << 20
)

// adminServer is the status page of a running agrimill.
type adminServer struct {
	url   url.URL
	token gateway.Secret
	tls   *tls.Config
}

func adminTokenFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "admin-token-file", "", "`FILE` with the token for a status page that is protected (default: that of --config)")
}

// adminServerAt returns the one at host:port or https://host:port.
func adminServerAt(address, tokenFile string) (*adminServer, error) {
	r := &adminServer{url: url.URL{Scheme: "http", Host: address}}
	if host, secure := strings.CutPrefix(address, "https://"); secure {
		r.url.Scheme, r.url.Host = "https", strings.TrimSuffix(host, "/")
	}
	if _, _, err := net.SplitHostPort(r.url.Host); err != nil {
		return nil, usagef("--admin must be host:port or https://host:port, not %q", address)
	}
	return r, r.readToken(tokenFile)
}

// adminServerOf returns the one of a configuration.
func adminServerOf(admin config.Admin, tokenFile string) (*adminServer, error) {
	r := &adminServer{url: url.URL{Scheme: "http", Host: admin.Address}, token: cmp.Or(admin.ReadToken, admin.Token)}
	if admin.TLS.Enabled() {
		r.url.Scheme = "https"
		var err error
		if r.tls, err = trusting(admin.TLS.CertFile); err != nil {
			return nil, err
		}
	}
	return r, r.readToken(tokenFile)
}

// trusting returns what trusts the certificate in a file and no other, under the name that it has: the
// address that agrimill listens on need not be in it.
func trusting(file string) (*tls.Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("admin.tls.cert_file: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("admin.tls.cert_file contains no PEM certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("admin.tls.cert_file: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(leaf)
	switch {
	case len(leaf.DNSNames) > 0:
		config.ServerName = strings.Replace(leaf.DNSNames[0], "*", "agrimill", 1)
	case len(leaf.IPAddresses) > 0:
		config.ServerName = leaf.IPAddresses[0].String()
	}
	return config, nil
}

func (r *adminServer) readToken(file string) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return usagef("--admin-token-file: %v", err)
	}
	r.token = gateway.Secret(strings.TrimSpace(string(text)))
	return nil
}

// ask asks for what is at path, and fills value.
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
		return fmt.Errorf("no agrimill answers at %s: %w", r.url.Host, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return err
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
		return fmt.Errorf("agrimill at %s responded %s: %s%s", r.url.Host, response.Status, cell(problem.Error), advice)
	}
	if err := json.Unmarshal(body, value); err != nil {
		return fmt.Errorf("what answers at %s is no agrimill: %w", r.url.Host, err)
	}
	return nil
}
