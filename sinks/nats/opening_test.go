package nats_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

// A sink that is made before its server says that there is none, loses nothing that it accepted, and stores as soon as the server
// is there, also if that refuses it first, or has a stream that cannot be used.
func TestBeforeTheServer(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	s.Stop()
	log := testkit.NewLog()
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: s.URL(), User: "mill", Password: "secret-of-the-mill", RetryOnFailedConnect: true}}, log))(t)
	t.Cleanup(func() { _ = sink.Close() })
	publish := func() error { return sink.Publish("fields", message.NewMessage("1", []byte("task data"))) }
	away := func(why error) {
		t.Helper()
		for what, err := range map[string]error{"Publish": publish(), "Health": sink.Health(t.Context())} {
			if !errors.Is(err, sinks.ErrUnavailable) || !errors.Is(err, sinks.ErrNotConnected) || why != nil && !errors.Is(err, why) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	away(natsgo.ErrDisconnected)
	if err := sink.Health(t.Context()); !strings.Contains(err.Error(), "dial tcp "+strings.TrimPrefix(s.URL(), "nats://")) {
		t.Errorf("without a server: %v", err)
	}
	if d := sink.Describe(); d.Durability != sinks.DurabilityUnknown || d.MaxMessageSize != 0 {
		t.Errorf("without a server: %+v", d)
	}
	testkit.ErrorIs(t, sink.Publish("no..subject", message.NewMessage("1", nil)), sinks.ErrRejected)

	s.Restart(func(o *server.Options) { o.Username, o.Password = "mill", "another" })
	testkit.Eventually(t, "a refusal", func() bool { return errors.Is(sink.Health(t.Context()), natsgo.ErrAuthorization) })
	away(natsgo.ErrAuthorization)

	recovered := sink.Recovered()
	s.Restart(func(o *server.Options) { o.Password = "secret-of-the-mill" })
	<-recovered
	testkit.NoError(t, publish())
	if d := sink.Describe(); d.Durability != sinks.DurabilityDisk || d.MaxMessageSize == 0 {
		t.Errorf("with a server: %+v", d)
	}
	testkit.NoError(t, sink.Health(t.Context()))
	if strings.Contains(log.String(), "secret-of-the-mill") {
		t.Errorf("the log tells the password:\n%v", log)
	}
}

// A sink that never found its server closes at once.
func TestCloseBeforeTheServer(t *testing.T) {
	t.Parallel()
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: "nats://127.0.0.1:1", RetryOnFailedConnect: true}}, nil))(t)
	testkit.Ends(t, "Close", func() { _ = sink.Close() })
	testkit.ErrorIs(t, sink.Publish("fields", message.NewMessage("1", nil)), sinks.ErrClosed)
}

// What no server will ever cure is an error of New.
func TestUnusableBeforeTheServer(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	for name, config := range map[string]nats.Config{
		"URL":         {Connection: nats.Connection{URL: "nats://%"}},
		"credentials": {Connection: nats.Connection{CredentialsFile: missing}},
		"seed":        {Connection: nats.Connection{NKeySeedFile: missing}},
	} {
		config.RetryOnFailedConnect = true
		if _, err := nats.New(config, nil); !errors.Is(err, nats.ErrConfig) || name != "URL" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
