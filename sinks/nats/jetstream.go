package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	// ErrNoJetStream is matched by the errors of requests that no JetStream is there to answer: the
	// server has none, and no domain was named ([Connection].Domain).
	ErrNoJetStream = errors.New("the server has no JetStream of its own; set domain to reach one of another domain, as through a leaf node")
	// ErrNoDomain is matched by the errors of requests that no JetStream of the domain is there to answer.
	ErrNoDomain = errors.New("no JetStream of the domain can be reached through the server")
	// ErrNoJetStreamInAccount is matched by the errors of requests of an account that may not use JetStream.
	ErrNoJetStreamInAccount = errors.New("enable JetStream for the account")
	// ErrInbox is matched by the errors of requests whose answers the account may not
	// subscribe to ([Connection].InboxPrefix).
	ErrInbox = errors.New("answers cannot come: set inbox_prefix to one to which the account may subscribe")
)

// JetStream returns the API of the JetStream in a domain. An empty one is that of the server.
func JetStream(conn *natsgo.Conn, domain string) (jetstream.JetStream, error) {
	if domain == "" {
		return jetstream.New(conn)
	}
	return jetstream.NewWithDomain(conn, domain)
}

// APIPrefix is what the subjects of requests to the JetStream in a domain begin with, up to a dot.
func APIPrefix(domain string) string {
	if domain == "" {
		return jetstream.DefaultAPIPrefix
	}
	return "$JS." + domain + ".API."
}

// Explain adds to the error of a request to JetStream what the connection knows of its cause: it
// then also matches [ErrNoJetStream], [ErrNoDomain], [ErrNoJetStreamInAccount], [ErrInbox], or
// [natsgo.ErrPermissionViolation], which a server tells on the side while the request waits for its
// answer, or [natsgo.ErrDisconnected] and why the latest attempt to connect has failed, which a request does not
// wait for either. Any other error, that of a canceled request, and nil stay as they are.
func Explain(conn *natsgo.Conn, domain string, err error) error {
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return err
	case !conn.IsConnected():
		return withRefusal(conn, err)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount), errors.Is(err, natsgo.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w; %w", err, ErrNoJetStreamInAccount)
	case errors.Is(err, natsgo.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, natsgo.ErrJetStreamNotEnabled):
		if domain != "" {
			return fmt.Errorf("%w; %w: %s", err, ErrNoDomain, domain)
		}
		return fmt.Errorf("%w; %w", err, ErrNoJetStream)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, natsgo.ErrTimeout), errors.Is(err, jetstream.ErrNoHeartbeat):
		return withViolation(conn, err)
	}
	return err
}

// withRefusal adds that there is no connection, and why the latest attempt has failed.
func withRefusal(conn *natsgo.Conn, err error) error {
	switch {
	case errors.Is(err, natsgo.ErrReconnectBufExceeded): // a buffer that takes nothing says nothing more
		err = natsgo.ErrDisconnected
	case !errors.Is(err, natsgo.ErrDisconnected):
		err = fmt.Errorf("%w: %w", natsgo.ErrDisconnected, err)
	}
	if reason := conn.LastError(); reason != nil && !errors.Is(err, reason) {
		return fmt.Errorf("%w; %w", err, reason)
	}
	if d, ok := conn.Opts.CustomDialer.(*dialer); ok {
		if reason := d.failed.Load(); reason != nil && *reason != nil {
			return fmt.Errorf("%w; %v", err, *reason) //nolint:errorlint // it may match the end of a context
		}
	}
	return err
}

// withViolation adds the latest violation of the account's permissions, if it is one of a request to JetStream.
func withViolation(conn *natsgo.Conn, err error) error {
	if violation := inboxViolation(conn); violation != nil {
		return fmt.Errorf("%w; %w", err, violation)
	}
	violation := conn.LastError()
	if !errors.Is(violation, natsgo.ErrPermissionViolation) {
		return err
	}
	if text := violation.Error(); strings.Contains(text, `"$JS.`) || strings.Contains(text, `"$KV.`) {
		return fmt.Errorf("%w; %w", err, violation)
	}
	return err
}

// inboxViolation returns what the server has said last if it refused a subscription to answers.
func inboxViolation(conn *natsgo.Conn) error {
	inbox := cmp.Or(conn.Opts.InboxPrefix, strings.TrimSuffix(natsgo.InboxPrefix, "."))
	said := conn.LastError()
	if errors.Is(said, natsgo.ErrPermissionViolation) && strings.Contains(said.Error(), `Subscription to "`+inbox+".") {
		return fmt.Errorf("%w; %w", said, ErrInbox)
	}
	return nil
}
