package nats

import (
	"sync"

	natsgo "github.com/nats-io/nats.go"
)

// draft is a NATS message whose memory may be used again.
type draft struct {
	msg        *natsgo.Msg
	values     []string // of the header
	headerSize int      // encoded
}

// begin begins a message with up to so many headers.
func (d *draft) begin(subject string, data []byte, headers int) {
	d.msg.Subject, d.msg.Data = subject, data
	if cap(d.values) < headers {
		d.values, d.msg.Header = make([]string, 0, headers), make(natsgo.Header, headers)
	}
	d.headerSize = len("NATS/1.0\r\n\r\n")
}

// set adds a header.
func (d *draft) set(name, value string) {
	at := len(d.values)
	d.values = append(d.values, value)
	d.msg.Header[name] = d.values[at : at+1 : at+1]
	d.headerSize += len(name) + len(": ") + len(value) + len("\r\n")
}

// maxKeptHeaders is up to how many headers the memory for them is used again.
const maxKeptHeaders = 64

// reset forgets the message, and reports whether the memory may be used again.
func (d *draft) reset() bool {
	if cap(d.values) > maxKeptHeaders {
		return false
	}
	clear(d.msg.Header)
	clear(d.values)
	d.msg.Subject, d.msg.Reply, d.msg.Data, d.values = "", "", nil, d.values[:0]
	return true
}

// maxKeptPayload is up to which size the memory for a payload is used again.
const maxKeptPayload = 1 << 20

// drafts keeps the memory of messages that were sent, for those that follow.
type drafts struct {
	own     *Marshaler // the Config's, if it is that of this package
	pool    sync.Pool  // of *draft
	payload []byte     // of the message that the sender has in hand
}

func (p *drafts) new() *draft {
	if d, ok := p.pool.Get().(*draft); ok {
		return d
	}
	return &draft{msg: &natsgo.Msg{}}
}

// take takes the draft of f, with a copy of its payload unless that was withdrawn.
func (p *drafts) take(f *flight) (d *draft, ok bool) {
	payload, ok := f.payload(p.payload[:0])
	d, f.draft = f.draft, nil
	if ok {
		d.msg.Data, p.payload = payload, payload
	}
	if cap(p.payload) > maxKeptPayload {
		p.payload = nil
	}
	return d, ok
}

// recycle takes back a draft that nobody uses any more.
func (p *drafts) recycle(d *draft) {
	if p.own != nil && d.reset() {
		p.pool.Put(d)
	}
}
