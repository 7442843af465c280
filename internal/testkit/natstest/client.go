package natstest

import (
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
)

// Connect connects to a server that runs. It waits for [testkit.Patience], and not for the two seconds
// of the client: on a busy machine a server takes longer for a connection.
func Connect(url string, options ...natsgo.Option) (*natsgo.Conn, error) {
	return natsgo.Connect(url, append(options, natsgo.Timeout(testkit.Patience))...)
}

// JetStream waits for [testkit.Patience], and not for the five seconds of the client: on a busy disk a stream takes longer. A
// request that is lost with its server is not made again, so this is not for a connection that outlives one: see [AwaitReconnect].
func JetStream(conn *natsgo.Conn) (jetstream.JetStream, error) {
	return jetstream.New(conn, jetstream.WithDefaultTimeout(testkit.Patience))
}

// Client is [Connect] until the test ends, with [JetStream].
func Client(tb testing.TB, url string, options ...natsgo.Option) (*natsgo.Conn, jetstream.JetStream) {
	tb.Helper()
	conn := testkit.Must(Connect(url, options...))(tb)
	tb.Cleanup(conn.Close)
	return conn, testkit.Must(JetStream(conn))(tb)
}

// AwaitReconnect waits until a server that was started again answers over a connection. What is
// written before the client has noticed that the former one is gone is lost.
func AwaitReconnect(tb testing.TB, conn *natsgo.Conn) {
	tb.Helper()
	testkit.EventuallyNil(tb, conn.Flush)
}
