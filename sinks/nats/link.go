package nats

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/stoppoint"
)

// link is the connection to the server, and what it tells outside of any call.
type link struct {
	conn       *natsgo.Conn
	buffers    bool         // it keeps what is published while it is down
	maxPayload atomic.Int64 // of the server when last connected
	replies    *natsgo.Subscription
	status     chan natsgo.Status
	looked     atomic.Uint64         // the connection on which the stream has answered; 0 if it was gone since
	unanswered atomic.Pointer[error] // why the stream has not answered; nil if it was not asked yet

	violation atomic.Pointer[asyncError] // last permissions violation
	logged    atomic.Pointer[string]     // last error since the connection came
}

// asyncError is an error that the server reported outside of any call.
type asyncError struct {
	at  time.Time
	err error
}

// connection numbers the connections, from 1.
func connection(conn *natsgo.Conn) uint64 { return conn.Stats().Reconnects + 1 }

// errNotLooked: what the stream acknowledged now would hide what it lost.
var errNotLooked = errors.New("the stream has not answered on this connection")

// connected takes in what a new connection says.
func (l *link) connected() {
	l.maxPayload.Store(l.conn.MaxPayload())
	l.logged.Store(nil)
	l.unanswered.Store(nil)
}

// tells takes in an error from outside of any call. It reports whether the error is to be logged: while
// the server is away or refuses us the same one comes with every attempt to reconnect.
func (l *link) tells(err error) bool {
	if errors.Is(err, natsgo.ErrPermissionViolation) {
		l.violation.Store(&asyncError{at: time.Now(), err: err})
	}
	text := err.Error()
	last := l.logged.Swap(&text)
	return last == nil || *last != text
}

// write writes a message to the connection.
func (l *link) write(f *flight, d *draft) error {
	// What is published without a connection must fail.
	if l.buffers && !l.conn.IsConnected() {
		return natsgo.ErrDisconnected
	}
	if l.looked.Load() != connection(l.conn) {
		if cause := l.unanswered.Load(); cause != nil {
			return fmt.Errorf("%w: %v", errNotLooked, *cause) //nolint:errorlint // says nothing of the message
		}
		return errNotLooked
	}
	stoppoint.At(stoppoint.Write)
	d.msg.Reply = f.reply
	err := l.conn.PublishMsg(d.msg)
	if errors.Is(err, natsgo.ErrReconnectBufExceeded) {
		return natsgo.ErrDisconnected
	}
	return err
}

// release gives back what the sink has of the connection, or closes it.
func (l *link) release(own bool) {
	if l.status != nil {
		l.conn.RemoveStatusListener(l.status)
	}
	if own {
		l.conn.Close()
		return
	}
	if l.replies != nil {
		_ = l.replies.Unsubscribe() // it is closed
	}
}
