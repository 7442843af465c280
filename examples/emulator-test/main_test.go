// Package emulatortest shows how to test an application without a gateway. The application
// is the function archive. Its tests start the service itself on a loopback listener, send
// messages, break things, and check what was confirmed. Run them with
//
//	go test ./examples/emulator-test
package emulatortest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/subscriber"
)

// archive stores every message that the gateway delivers as a file in dir, until ctx ends.
func archive(ctx context.Context, config gateway.Config, dir string) error {
	root, err := os.OpenRoot(dir) // file names are untrusted: they must not lead elsewhere
	if err != nil {
		return err
	}
	defer root.Close()
	client, err := gateway.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	sub, err := subscriber.New(subscriber.Config{Client: client}, nil)
	if err != nil {
		return err
	}
	messages, err := sub.Subscribe(ctx, subscriber.AllData)
	if err != nil {
		return errors.Join(err, sub.Close())
	}
	for msg := range messages {
		if err := root.WriteFile(msg.Metadata.Get(gateway.KeyFilename), msg.Payload, 0o600); err != nil {
			msg.Nack() // not confirmed; redelivered soon. A Router would also give up eventually.
			continue
		}
		msg.Ack() // confirmed
	}
	return sub.Close() // sends the last confirmations
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const messageType = "shp:shape:zip"

// start runs the application against its own gateway until the test ends. send sends it a
// file.
func start(t *testing.T, dir string) (gate *gatewaytest.Server, send func(filename, content string)) {
	gate = gatewaytest.New(t, gatewaytest.Config{})
	sender := gate.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{messageType}})
	gate.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{messageType}, Subscribe: []string{messageType}})
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- archive(ctx, gate.ClientConfig(), dir) }()
	t.Cleanup(func() {
		stop()
		must(t, <-result)
	})
	return gate, func(filename, content string) {
		_, err := gate.Send(gatewaytest.SendRequest{
			From: sender.ID, MessageType: messageType, Filename: filename, Payload: []byte(content),
		})
		must(t, err)
	}
}

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within bounds how long a test waits: it only tells a hang, and the machine may be busy.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// storedIn says of a message that the gateway has sent whether it is a file in dir.
func storedIn(dir string) func(gatewaytest.LedgerEntry) bool {
	return func(e gatewaytest.LedgerEntry) bool {
		info, err := os.Stat(filepath.Join(dir, e.Filename))
		return err == nil && info.Mode().IsRegular()
	}
}

func TestFilesAreStored(t *testing.T) {
	dir := t.TempDir()
	gate, send := start(t, dir)
	send("field.zip", "a field")
	must(t, gate.WaitConfirmed(within(t), 1))
	content, err := os.ReadFile(filepath.Join(dir, "field.zip"))
	must(t, err)
	if string(content) != "a field" {
		t.Errorf("stored %q, want a field", content)
	}
}

func TestNothingIsConfirmedThatIsNotStored(t *testing.T) {
	dir := t.TempDir()
	inTheWay := filepath.Join(dir, "field.zip")
	must(t, os.Mkdir(inTheWay, 0o700))
	gate, send := start(t, dir)
	send("field.zip", "a field")
	send("other.zip", "another field")
	must(t, gate.WaitDelivered(within(t), 2))
	gate.NoLoss(t, storedIn(dir))
	must(t, os.Remove(inTheWay)) // the disk is repaired
	must(t, gate.WaitConfirmed(within(t), 2))
	gate.NoLoss(t, storedIn(dir))
}

func TestOutages(t *testing.T) {
	dir := t.TempDir()
	gate, send := start(t, dir)
	refusing := gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503, Times: 2})
	send("1.zip", "the confirmation is refused twice")
	must(t, gate.WaitConfirmed(within(t), 1))
	if got := refusing.Hits(); got != 2 {
		t.Errorf("refused %d times, want 2", got)
	}
	gate.Stop()
	must(t, gate.Restart())
	send("2.zip", "sent after the service was down")
	must(t, gate.WaitConfirmed(within(t), 2))
	gate.NoLoss(t, storedIn(dir))
}
