package admin

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http/httpguts"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
)

// ErrConfig is matched by the errors of Config.Validate.
var ErrConfig = errors.New("admin: invalid configuration")

// DefaultAddress is the default of Config.Address.
const DefaultAddress = "127.0.0.1:9090"

// MinTokenLength is the minimum length of Config.Token in bytes.
const MinTokenLength = 12

// Config configures a Server. The zero value serves everything except metrics, profiles and
// replays on DefaultAddress.
type Config struct {
	// Address is host and port to listen on; port 0 picks a free one. Empty means
	// [DefaultAddress]. Without ReadToken and UserHeader, anyone who can reach it sees
	// everything except payloads and secrets, so an address other than loopback is then
	// logged as a warning.
	Address string `yaml:"address"`
	// Hosts are additional host names and addresses, without port, that requests may have. On
	// loopback, only localhost and loopback addresses are accepted besides; elsewhere, any
	// address, localhost, and names without a dot.
	Hosts []string `yaml:"hosts"`
	// TLS makes the server speak HTTPS. Without it, it speaks HTTP.
	TLS TLS `yaml:"tls"`
	// Token is required for contents, replays, drops and profiles, at least 12 bytes. Empty disables them.
	Token gateway.Secret `yaml:"token"`
	// The ReadToken, or Token, is required to see anything but the probes. At least MinTokenLength bytes, and not
	// equal to Token. Empty requires no token to read.
	ReadToken gateway.Secret `yaml:"read_token"`
	// UserHeader is the request header in which a reverse proxy names its user, e.g. X-Forwarded-User. If set, only
	// such requests from Proxies, and those with a token, see anything but the probes. Empty believes no header.
	UserHeader string `yaml:"user_header"`
	// Proxies are the addresses and networks (10.0.0.7, 10.0.0.0/8) whose UserHeader is
	// believed. Empty means loopback. It needs UserHeader.
	Proxies []string `yaml:"proxies"`
	// PProf serves the profiles of the process under /debug/pprof/. It needs Token.
	PProf bool `yaml:"pprof"`
	// Gatherer provides the metrics. Nil means no metrics.
	Gatherer prometheus.Gatherer `yaml:"-"`
	// Logger gets the address, replays and rejected tokens. Nil is silent.
	Logger *slog.Logger `yaml:"-"`
	// Now is the clock. Nil means [time.Now].
	Now func() time.Time `yaml:"-"`
}

// TLS names the certificate of the server. Both files or none must be set. They are read again
// when they have changed, for new connections; while they cannot be read or do not match, the
// certificate from before stays in use, and the log says why.
type TLS struct {
	// CertFile has the server's certificate and those of intermediate authorities (PEM).
	CertFile string `yaml:"cert_file" file:"true"`
	// KeyFile has the private key of CertFile (PEM).
	KeyFile string `yaml:"key_file" file:"true"`
}

// Enabled reports whether a certificate is set.
func (t TLS) Enabled() bool { return t.CertFile != "" || t.KeyFile != "" }

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	return c
}

func (c *Config) setDefaults() {
	c.Address = cmp.Or(c.Address, DefaultAddress)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Validate reports every field whose value is not allowed; the error matches [ErrConfig]
// and does not contain the token.
func (c Config) Validate() error {
	c.setDefaults()
	var e validate.Errors
	if _, port, err := net.SplitHostPort(c.Address); err != nil {
		e.Add("Address", "must be host:port, not %q", c.Address)
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		e.Add("Address", "must have a port from 0 to 65535, not %q", port)
	}
	for i, host := range c.Hosts {
		e.Check(host != "" && !strings.ContainsAny(host, "/ "), fmt.Sprintf("Hosts[%d]", i), "must be a host name or an address, not %q", host)
	}
	for path, token := range map[string]gateway.Secret{"Token": c.Token, "ReadToken": c.ReadToken} {
		e.Check(token == "" || len(token) >= MinTokenLength, path, "must be at least %d bytes long", MinTokenLength)
		e.Check(!strings.ContainsFunc(string(token), func(r rune) bool { return r <= ' ' || r >= 0x7f }),
			path, "must consist of visible ASCII characters, because it is sent in a header")
	}
	e.Check(c.ReadToken == "" || c.ReadToken != c.Token, "ReadToken", "must differ from %s, which may do more", validate.Field("Token"))
	e.Check(c.Token != "" || !c.PProf, "PProf", "needs %s, because profiles show what is in memory", validate.Field("Token"))
	e.Check(httpguts.ValidHeaderFieldName(c.UserHeader) || c.UserHeader == "", "UserHeader", "must be the name of a header, e.g. X-Forwarded-User, not %q", c.UserHeader)
	e.Check(!strings.EqualFold(c.UserHeader, "Authorization"), "UserHeader", "must not be Authorization, which has the token")
	e.Check(c.UserHeader != "" || len(c.Proxies) == 0, "Proxies", "needs %s", validate.Field("UserHeader"))
	for i, proxy := range c.Proxies {
		_, err := parseNetwork(proxy)
		e.Check(err == nil, fmt.Sprintf("Proxies[%d]", i), "must be an address such as 10.0.0.7 or a network such as 10.0.0.0/8, not %q", proxy)
	}
	c.TLS.Load(&e)
	return e.Err(ErrConfig)
}
