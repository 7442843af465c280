package admin

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

// MinTokenLength is the least length of Config.Token in bytes.
const MinTokenLength = 12

// Config configures a Server. The zero value serves everything but metrics,
// profiles and the replay on DefaultAddress.
type Config struct {
	// Address is host and port to listen on; port 0 picks a free one. Empty means
	// [DefaultAddress]. Whoever can reach it sees everything but payloads and
	// secrets, so a host other than loopback is told in a log line.
	Address string
	// Hosts are further host names and addresses, without port, that the Host
	// header of a request may have. On loopback these are localhost and the
	// loopback addresses only; elsewhere, every one is taken when Hosts is empty.
	Hosts []string
	// Token is what a replay has to bring along, at least MinTokenLength bytes.
	// Empty: there is no replay.
	Token string
	// PProf serves the profiles of the process below /debug/pprof/.
	PProf bool
	// Gatherer has the metrics. Nil: there are none.
	Gatherer prometheus.Gatherer
	// CheckTimeout bounds the checks of /readyz. 0 means [DefaultCheckTimeout];
	// negative is an error.
	CheckTimeout time.Duration
	// ReplayTimeout bounds one replay; what is not replayed by then stays in the
	// queue. 0 means [DefaultReplayTimeout]; negative is an error.
	ReplayTimeout time.Duration
	// ShutdownTimeout bounds how long requests that are under way are waited for
	// at the end. 0 means [DefaultShutdownTimeout]; negative is an error.
	ShutdownTimeout time.Duration
	// Logger is told about the address, replays and refused tokens. Nil is silent.
	Logger *slog.Logger
	// Now is the clock. Nil means [time.Now].
	Now func() time.Time
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

// Validate reports everything that is not allowed; the error matches ErrConfig
// and does not hold the token.
func (c Config) Validate() error {
	c.setDefaults()
	var problems []error
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	if _, port, err := net.SplitHostPort(c.Address); err != nil {
		problem("Address %q is not host:port", c.Address)
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		problem("the port of Address %q is not a number from 0 to 65535", c.Address)
	}
	for _, host := range c.Hosts {
		if host == "" || strings.ContainsAny(host, "/ ") {
			problem("Hosts: %q is not a host name or an address", host)
		}
	}
	if c.Token != "" && len(c.Token) < MinTokenLength {
		problem("Token is shorter than %d bytes", MinTokenLength)
	}
	if strings.ContainsFunc(c.Token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		problem("Token may only have visible ASCII characters, since it goes into a header")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"CheckTimeout", c.CheckTimeout}, {"ReplayTimeout", c.ReplayTimeout}, {"ShutdownTimeout", c.ShutdownTimeout}} {
		if d.value < 0 {
			problem("%s is negative", d.name)
		}
	}
	return errors.Join(problems...)
}
