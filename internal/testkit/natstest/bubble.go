package natstest

import (
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"

	"github.com/agrimill/agrimill/internal/testkit"
)

// Ever is a MaxAge for streams of servers in a bubble, and a TTL for buckets: the server counts the age of messages by the clock of the
// machine, that of a bubble begins in the year 2000, and none at all would be the default of a store.
const Ever = 100 * 365 * 24 * time.Hour

// Bubble runs a test in a bubble of testing/synctest with a server that is in it, too, and has no address: clients connect with
// natsgo.InProcessServer, through [NewLine] or to the [Server] itself. The functions may first modify the server's options.
//
// A test that calls it must not be parallel: servers share what is of one clock.
func Bubble(t *testing.T, test func(t *testing.T, s *Server), change ...func(*server.Options)) {
	t.Helper()
	ats.Register() // else the first server does, and its goroutine would stay outside of the bubble
	defer ats.Unregister()
	dropPools()
	defer dropPools()
	testkit.Bubble(t, func(t *testing.T) {
		test(t, Start(t, append(change, func(o *server.Options) { o.DontListen = true })...))
	})
}

// dropPools empties every sync.Pool. The client has one with timers, and one that a bubble has made is of no
// use outside of it.
func dropPools() {
	runtime.GC()
	runtime.GC() // the first one keeps what was used since the one before
}

// errStopped is the error of a connection to a server that is stopped.
var errStopped = errors.New("natstest: the server is stopped")

// InProcessConn implements natsgo.InProcessConnProvider.
func (s *Server) InProcessConn() (net.Conn, error) {
	running := s.Server()
	if running == nil {
		return nil, errStopped
	}
	return running.InProcessConn()
}
