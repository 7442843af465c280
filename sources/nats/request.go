package nats

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/sinks/nats"
)

const (
	// requestExpires is after what time the server ends a request that it could not fulfill.
	requestExpires = 30 * time.Second
	// idleHeartbeat is how often the server says at the least that it knows of a request.
	idleHeartbeat = 5 * time.Second
	// answerWait is after what silence nothing is there. A server that is busy and answers later would
	// have what is behind delivered before what comes again.
	answerWait = idleHeartbeat
)

// request is one that waits for messages. Those of the jetstream package lose what is on its
// way when they are canceled: it would come again after AckWait, behind later ones.
type request struct {
	conn     *natsgo.Conn
	sub      *natsgo.Subscription
	subject  string // of requests
	messages chan *natsgo.Msg
	left     int  // how many messages may come
	ended    bool // the server has said so
}

// newRequest asks for up to n messages: for those that are there, or with wait for some to
// come.
func newRequest(conn *natsgo.Conn, domain string, consumer *jetstream.ConsumerInfo, n int, wait bool, heartbeat time.Duration) (*request, error) {
	ask := struct {
		Batch     int           `json:"batch"`
		Expires   time.Duration `json:"expires"`
		Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
		NoWait    bool          `json:"no_wait,omitempty"`
	}{Batch: n, Expires: requestExpires, Heartbeat: heartbeat}
	if !wait {
		ask.Expires, ask.Heartbeat, ask.NoWait = 0, 0, true
	}
	if most := consumer.Config.MaxRequestExpires; wait && most > 0 && most < ask.Expires {
		ask.Expires, ask.Heartbeat = most, min(heartbeat, most/3)
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	r := &request{
		conn: conn, subject: nats.APIPrefix(domain) + "CONSUMER.MSG.NEXT." + consumer.Stream + "." + consumer.Name,
		messages: make(chan *natsgo.Msg, 2*n), left: n,
	}
	inbox := conn.NewInbox()
	if r.sub, err = conn.ChanSubscribe(inbox, r.messages); err != nil {
		return nil, err
	}
	if err := conn.PublishRequest(r.subject, inbox, body); err != nil {
		_ = r.sub.Unsubscribe()
		return nil, err
	}
	return r, nil
}

// read returns the message, or nil if it is a word of the server about the request.
func (r *request) read(msg *natsgo.Msg) (*received, error) {
	status := ""
	if msg.Reply == "" { // a message is acked there; its headers are whatever somebody has published
		status = msg.Header.Get("Status")
	}
	switch status {
	case "":
		r.left--
		return &received{msg, r.conn}, nil
	case "100": // heartbeat
		return nil, nil
	}
	r.ended = true
	reason := msg.Header.Get("Description")
	switch lower := strings.ToLower(reason); {
	case status == "404", status == "408", strings.Contains(lower, "batch completed"):
		return nil, nil
	case status == "503":
		return nil, natsgo.ErrNoResponders
	case strings.Contains(lower, "consumer deleted"):
		return nil, jetstream.ErrConsumerDeleted
	}
	return nil, fmt.Errorf("nats: %s", reason)
}

// done reports whether nothing more comes.
func (r *request) done() bool { return r.ended || r.left == 0 }

// end ends the request, and receives what is on its way. From then on the server has no
// request of ours, and does not deliver what is sent back. With settle it has also taken back what it
// could not deliver any more, and redelivers that before what is sent back from then on. What has not come
// within patience comes again after AckWait, behind later messages.
func (r *request) end(receive func(*received) (first bool), settle bool, patience time.Duration) (n int, anew bool) {
	switch {
	case r.done() || !r.conn.IsConnected() || r.sub.Drain() != nil || r.conn.FlushTimeout(patience) != nil:
		_ = r.sub.Unsubscribe()
	case settle:
		// A request that it has to refuse is answered after what it has delivered before.
		_, _ = r.conn.Request(r.subject, []byte(`{"batch":1,"idle_heartbeat":1}`), patience)
	}
	for {
		select {
		case msg := <-r.messages:
			if raw, _ := r.read(msg); raw != nil {
				n++
				anew = receive(raw) || anew
			}
		default:
			return n, anew
		}
	}
}

// received is a message as the server has delivered it. It can be acknowledged as long as the connection is there.
type received struct {
	*natsgo.Msg
	conn answerer
}

// answerer is what the server is answered by, a [natsgo.Conn].
type answerer interface {
	Publish(subject string, data []byte) error
	Request(subject string, data []byte, timeout time.Duration) (*natsgo.Msg, error)
}

// gone is for messages of a consumer that is gone: nobody is to be told.
type gone struct{}

func (gone) Publish(string, []byte) error                               { return nil }
func (gone) Request(string, []byte, time.Duration) (*natsgo.Msg, error) { return nil, nil }

func (r *received) ack() error        { return r.answer("+ACK") }
func (r *received) inProgress() error { return r.answer("+WPI") }

// nak has the message redelivered, after the delay.
func (r *received) nak(delay time.Duration) error {
	if delay <= 0 {
		return r.answer("-NAK")
	}
	return r.answer(fmt.Sprintf(`-NAK {"delay": %d}`, delay.Nanoseconds()))
}

func (r *received) answer(text string) error { return r.conn.Publish(r.Reply, []byte(text)) }

// settle waits until the server has taken in what was said about this message, and before that about others. It is
// inProgress with an answer: of a message that was sent back, or acked, it changes nothing.
func (r *received) settle(patience time.Duration) error {
	_, err := r.conn.Request(r.Reply, []byte("+WPI"), patience)
	return err
}

// headerError tells of a header that nats.go could not read: it passes such a message on without any.
func (r *received) headerError() error {
	if r.Header == nil && r.Size() > len(r.Subject)+len(r.Reply)+len(r.Data) {
		return natsgo.ErrBadHeaderMsg
	}
	return nil
}
