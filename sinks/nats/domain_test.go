package nats_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

// joined is a sink through a leaf node.
func joined(leaf *natstest.Server) nats.Config {
	return nats.Config{
		Connection: nats.Connection{URL: leaf.URL(), User: natstest.LeafUser, Password: natstest.LeafPassword, Domain: natstest.LeafDomain, InboxPrefix: natstest.LeafInboxPrefix, ConnectTimeout: testkit.Patience},
	}
}

func TestSinkThroughLeafNode(t *testing.T) {
	hub, leaf := natstest.StartLeaf(t)
	sink := newSink(t, joined(leaf), nil)
	_, js := natstest.Client(t, hub.URL())
	testkit.NoError(t, sink.Publish("x", newMessage("one")))
	publication, err := sink.PublishAsync("x", newMessage("two"))
	if err == nil {
		_, err = publication.Result()
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.NoError(t, sink.Health(t.Context()))
	if got := storedCount(t, js, nats.DefaultStream); got != 2 {
		t.Errorf("%d messages in the domain, want 2", got)
	}
}

// What is missing or wrong is said, with the name of the key.
func TestSinkIsToldWhereJetStreamIs(t *testing.T) {
	_, leaf := natstest.StartLeaf(t)
	account := natstest.Start(t, func(o *server.Options) {
		o.Accounts = []*server.Account{server.NewAccount("NONE")}
		o.Users = []*server.User{{Username: natstest.LeafUser, Password: natstest.LeafPassword, Account: o.Accounts[0]}}
	})
	api := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: natstest.LeafUser, Password: natstest.LeafPassword, Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.INFO.>"}},
		}}}
	})
	for name, test := range map[string]struct {
		change func(*nats.Config)
		is     error
		says   string
	}{
		"no domain":             {func(c *nats.Config) { c.Domain = "" }, nats.ErrNoJetStream, "set domain"},
		"another domain":        {func(c *nats.Config) { c.Domain = "elsewhere" }, nats.ErrNoDomain, "elsewhere"},
		"no inbox prefix":       {func(c *nats.Config) { c.InboxPrefix = "" }, nats.ErrInbox, "set inbox_prefix"},
		"another inbox prefix":  {func(c *nats.Config) { c.InboxPrefix = "_INBOX_other" }, nats.ErrInbox, "_INBOX_other"},
		"longer inbox prefix":   {func(c *nats.Config) { c.InboxPrefix = natstest.LeafInboxPrefix + "2" }, nats.ErrInbox, natstest.LeafInboxPrefix + "2"},
		"account without":       {func(c *nats.Config) { c.URL, c.Domain = account.URL(), "" }, nats.ErrNoJetStreamInAccount, "enable JetStream"},
		"request not permitted": {func(c *nats.Config) { c.URL, c.Domain, c.ConnectTimeout = api.URL(), "", time.Second }, natsgo.ErrPermissionViolation, "STREAM.INFO"},
		"a subject below":       {func(c *nats.Config) { c.InboxPrefix = natstest.LeafInboxPrefix + ".farm" }, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := joined(leaf)
			config.ConnectTimeout = 5 * time.Second // it looks again after that
			test.change(&config)
			var err error
			testkit.Eventually(t, "it fails with "+test.says, func() bool { // what the server says may come after the connection's time is over
				var sink *nats.Sink
				if sink, err = nats.New(config, nil); err == nil {
					_ = sink.Close()
				}
				return errors.Is(err, test.is)
			})
			if test.is != nil && (!errors.Is(err, sinks.ErrUnavailable) || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("got %v, want an outage that says %q", err, test.says)
			}
		})
	}
}

// An account without the inbox is noticed over a connection of others, too.
func TestExplainForeignConnection(t *testing.T) {
	_, leaf := natstest.StartLeaf(t)
	conn, _ := natstest.Client(t, leaf.URL(), natsgo.UserInfo(natstest.LeafUser, natstest.LeafPassword))
	testkit.Eventually(t, "it is noticed", func() bool {
		_, err := nats.New(nats.Config{Conn: conn, Connection: nats.Connection{Domain: natstest.LeafDomain, ConnectTimeout: time.Second}}, nil)
		return errors.Is(err, nats.ErrInbox)
	})
}

// A stream of the leaf node that stores the same subjects acknowledges them: that is no acknowledgment of
// the domain.
func TestAckOfAnotherDomain(t *testing.T) {
	hub, leaf := natstest.StartLeaf(t, func(o *server.Options) { o.JetStream, o.JetStreamDomain = true, "own" })
	config := joined(leaf)
	config.Domain = ""
	newSink(t, config, nil) // makes the stream of the leaf node
	config.Domain = natstest.LeafDomain
	sink := newSink(t, config, nil)
	hub.Stop()
	err := sink.Publish("x", newMessage("one"))
	if !errors.Is(err, sinks.ErrUnavailable) || !strings.Contains(err.Error(), `of the domain "own" instead of hub`) {
		t.Errorf("got %v, want an outage that names the other domain", err)
	}
}

func TestDomainAndInboxPrefixAreChecked(t *testing.T) {
	for name, connection := range map[string]nats.Connection{
		"domain of two tokens":      {Domain: "a.b"},
		"domain with a wildcard":    {Domain: "a*"},
		"domain with white space":   {Domain: "a b"},
		"prefix with a wildcard":    {InboxPrefix: "_INBOX.>"},
		"prefix that ends in a dot": {InboxPrefix: "_INBOX."},
		"prefix with white space":   {InboxPrefix: "_INBOX mill"},
	} {
		if err := connection.Validate(); !errors.Is(err, nats.ErrConfig) {
			t.Errorf("%s: got %v, want an error", name, err)
		}
	}
	conn, _ := natstest.Client(t, natstest.Start(t).URL())
	if err := (nats.Config{Conn: conn, Connection: nats.Connection{InboxPrefix: "_INBOX_x"}}).Validate(); !errors.Is(err, nats.ErrConfig) {
		t.Errorf("prefix beside a connection: got %v", err)
	}
	if err := (nats.Config{Conn: conn, Connection: nats.Connection{Domain: "hub"}}).Validate(); err != nil {
		t.Errorf("domain beside a connection: got %v", err)
	}
}
