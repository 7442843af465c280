package nats

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
)

// Connection says how to connect to NATS. The zero value is a server on this machine.
type Connection struct {
	// URL is the address of the server, or several separated by commas. User and
	// password in it are percent-encoded. Default nats://127.0.0.1:4222.
	URL string `yaml:"url" address:"true"`
	// User authenticates, with Password. At most one of User, Token, CredentialsFile and
	// NKeySeedFile may be set.
	User string `yaml:"user"`
	// Password is that of User.
	Password gateway.Secret `yaml:"password"`
	// Token authenticates.
	Token gateway.Secret `yaml:"token"`
	// CredentialsFile holds a JWT with its NKey seed, read at every connect.
	CredentialsFile string `yaml:"credentials_file" file:"true"`
	// NKeySeedFile holds an NKey seed, read at every connect.
	NKeySeedFile string `yaml:"nkey_seed_file" file:"true"`
	// TLS is the configuration for TLS; nil = as the URL and the server ask for.
	TLS *tls.Config `yaml:"-"`
	// Options are further options, applied last.
	Options []natsgo.Option `yaml:"-"`
	// ConnectTimeout bounds connecting, and the look-up or creation of a stream or topic. Default
	// [DefaultConnectTimeout].
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// RetryOnFailedConnect is for a program that may start before its server: what cannot connect goes on trying in the
	// background. Default: that is an error.
	RetryOnFailedConnect bool `yaml:"-"`
	// Domain is the JetStream domain of streams, consumers and buckets, e.g. behind a leaf node. Default: that of
	// the server.
	Domain string `yaml:"domain"`
	// InboxPrefix begins the subjects on which answers come: _INBOX_mill for an account with the permission
	// _INBOX_mill.>. Default _INBOX.
	InboxPrefix string `yaml:"inbox_prefix"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Connection) WithDefaults() Connection {
	c.URL = cmp.Or(c.URL, natsgo.DefaultURL)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, DefaultConnectTimeout)
	return c
}

// String formats the connection without what is secret.
func (c Connection) String() string { return redact.Struct(c) }

// Format writes String for every verb.
func (c Connection) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// MarshalText returns String: a connection is never written with what is secret.
func (c Connection) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig] and does not hold the address.
func (c Connection) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors
	e.Check(c.credentials() <= 1, "", "%s and %s, %s, %s and %s exclude each other", validate.Field("User"), validate.Field("Password"),
		validate.Field("Token"), validate.Field("CredentialsFile"), validate.Field("NKeySeedFile"))
	for address := range strings.SplitSeq(c.URL, ",") {
		rule := checkAddress(strings.TrimSpace(address))
		e.Check(rule == "", "URL", "%s", rule)
	}
	validate.NotNegative(&e, "ConnectTimeout", c.ConnectTimeout)
	e.Check(ValidName(c.Domain), "Domain", NameRule)
	e.Check(c.InboxPrefix == "" || checkSubject(c.InboxPrefix) == nil, "InboxPrefix", "must be a NATS subject without wildcards, as _INBOX_mill for the permission _INBOX_mill.>")
	return e.Err(ErrConfig)
}

// credentials counts the ways to authenticate that are set.
func (c Connection) credentials() int {
	n := 0
	for _, set := range []bool{c.User != "" || c.Password != "", c.Token != "", c.CredentialsFile != "", c.NKeySeedFile != ""} {
		if set {
			n++
		}
	}
	return n
}

// checkAddress returns what is wrong with the address of a server, without
// repeating any of it: the error of url.Parse would tell the password. It is read
// as nats.go does, with nats:// unless there is a scheme.
func checkAddress(address string) string {
	if !strings.Contains(address, "://") {
		address = "nats://" + address
	}
	const escape = "percent-encode what user and password have of % / ? # @ and white space"
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return "is not a URL; " + escape
	case strings.Contains(u.Path+u.RawQuery+u.Fragment, "@"):
		return "has an @ behind the host; " + escape
	case !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme):
		return "must begin with nats://, tls://, ws:// or wss://: nats.go takes any other scheme for nats://"
	}
	return ""
}

// Connect connects under a name, by which the server lists the connection; Options and
// then options are applied last. The connection reconnects without end, also when the
// server refuses its credentials meanwhile, and publishes nothing while it is down. With
// RetryOnFailedConnect it does so from the beginning: Connect tries each server once, and returns
// a connection that is reconnecting if none can be reached or accepts it. An
// error of the configuration, such as a file that cannot be read, matches [ErrConfig], that of an account that may not
// subscribe to the inbox [ErrInbox].
func (c Connection) Connect(name string, options ...natsgo.Option) (*natsgo.Conn, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.WithDefaults()
	all := []natsgo.Option{
		natsgo.Name(name),
		natsgo.Timeout(c.ConnectTimeout),
		// An outage of the server ends when the server is back, be it in a week
		// and even if it refuses the credentials meanwhile.
		natsgo.MaxReconnects(-1),
		natsgo.IgnoreAuthErrorAbort(),
		natsgo.RetryOnFailedConnect(c.RetryOnFailedConnect),
		// What is published without a connection must fail, not be kept in
		// memory where nobody waits for it.
		natsgo.ReconnectBufSize(-1),
	}
	switch {
	case c.User != "" || c.Password != "":
		all = append(all, natsgo.UserInfo(c.User, string(c.Password)))
	case c.Token != "":
		all = append(all, natsgo.Token(string(c.Token)))
	case c.CredentialsFile != "":
		if _, err := os.ReadFile(c.CredentialsFile); err != nil { // otherwise it would look like an outage
			return nil, fmt.Errorf("%w: credentials file: %w", ErrConfig, err)
		}
		all = append(all, natsgo.UserCredentials(c.CredentialsFile))
	case c.NKeySeedFile != "":
		option, err := natsgo.NkeyOptionFromSeed(c.NKeySeedFile)
		if err != nil {
			return nil, fmt.Errorf("%w: the NKey seed file: %w", ErrConfig, err)
		}
		all = append(all, option)
	}
	if c.TLS != nil {
		all = append(all, natsgo.Secure(c.TLS))
	}
	if c.InboxPrefix != "" {
		all = append(all, natsgo.CustomInboxPrefix(c.InboxPrefix))
	}
	conn, err := natsgo.Connect(c.URL, slices.Concat(all, options, c.Options, []natsgo.Option{dials})...)
	if err != nil {
		return nil, err
	}
	if err := c.checkInbox(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// dialer dials as nats.go does without one, and remembers the latest error, which a connection that goes on trying forgets.
type dialer struct {
	net.Dialer
	failed atomic.Pointer[error]
}

// Dial implements [natsgo.CustomDialer].
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.DialContext(context.Background(), network, address) // its Timeout bounds it
	d.failed.Store(&err)
	return conn, err
}

// dials gives a connection that goes on trying a dialer, unless it has one.
func dials(o *natsgo.Options) error {
	if o.RetryOnFailedConnect && o.CustomDialer == nil && o.Dialer == nil && o.AllowMultipathTCP == nil {
		o.CustomDialer = &dialer{Dialer: net.Dialer{Timeout: o.Timeout}}
	}
	return nil
}

// checkInbox returns an error if no answer could ever come, which a server says on the side only.
func (c Connection) checkInbox(conn *natsgo.Conn) error {
	if !conn.IsConnected() {
		return nil // requests tell it, see Explain
	}
	inbox, err := conn.SubscribeSync(conn.NewInbox())
	if err != nil || conn.FlushTimeout(c.ConnectTimeout) != nil {
		return nil // it is being connected
	}
	_ = inbox.Unsubscribe()
	return inboxViolation(conn)
}
