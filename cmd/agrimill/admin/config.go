package admin

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/agrimill/agrimill/gateway"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/internal/validate"
)

// ErrConfig is matched by the errors of Config.Validate.
var ErrConfig = errors.New("admin: invalid configuration")

// Defaults of Config.
const (
	DefaultAddress         = "127.0.0.1:9090"
	DefaultCheckTimeout    = 3 * time.Second
	DefaultReplayTimeout   = 30 * time.Second
	DefaultShutdownTimeout = 5 * time.Second
)

// MinTokenLength is the minimum length of Config.Token in bytes.
const MinTokenLength = 12

// Config configures a Server. The zero value serves everything except metrics, profiles and
// replays on DefaultAddress.
type Config struct {
	// Address is host and port to listen on; port 0 picks a free one. Empty means
	// [DefaultAddress]. Anyone who can reach it sees everything except payloads and
	// secrets, so an address other than loopback is logged as a warning.
	Address string `yaml:"address"`
	// Hosts are additional host names and addresses, without port, that requests may have. On
	// loopback, only localhost and loopback addresses are accepted besides; elsewhere, any
	// host is accepted if Hosts is empty.
	Hosts []string `yaml:"hosts"`
	// Token is required for replays, at least MinTokenLength bytes. Empty disables replays.
	Token gateway.Secret `yaml:"token"`
	// PProf serves the profiles of the process under /debug/pprof/.
	PProf bool `yaml:"pprof"`
	// Gatherer provides the metrics. Nil means no metrics.
	Gatherer prometheus.Gatherer `yaml:"-"`
	// CheckTimeout bounds the checks of /readyz. 0 means [DefaultCheckTimeout];
	// negative is an error.
	CheckTimeout time.Duration `yaml:"-"`
	// ReplayTimeout bounds one replay; what is not replayed by then stays in the queue. 0
	// means [DefaultReplayTimeout]; negative is an error.
	ReplayTimeout time.Duration `yaml:"-"`
	// ShutdownTimeout bounds how long shutdown waits for requests in progress. 0 means
	// [DefaultShutdownTimeout]; negative is an error.
	ShutdownTimeout time.Duration `yaml:"-"`
	// Logger gets the address, replays and rejected tokens. Nil is silent.
	Logger *slog.Logger `yaml:"-"`
	// Now is the clock. Nil means [time.Now].
	Now func() time.Time `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	return c
}

func (c *Config) setDefaults() {
	if c.Address == "" {
		c.Address = DefaultAddress
	}
	if c.CheckTimeout == 0 {
		c.CheckTimeout = DefaultCheckTimeout
	}
	if c.ReplayTimeout == 0 {
		c.ReplayTimeout = DefaultReplayTimeout
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = DefaultShutdownTimeout
	}
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
	e.Check(c.Token == "" || len(c.Token) >= MinTokenLength, "Token", "must be at least %d bytes long", MinTokenLength)
	e.Check(!strings.ContainsFunc(string(c.Token), func(r rune) bool { return r <= ' ' || r >= 0x7f }),
		"Token", "must consist of visible ASCII characters, because it is sent in a header")
	validate.NotNegative(&e, "CheckTimeout", c.CheckTimeout)
	validate.NotNegative(&e, "ReplayTimeout", c.ReplayTimeout)
	validate.NotNegative(&e, "ShutdownTimeout", c.ShutdownTimeout)
	return e.Err(ErrConfig)
}
