//go:build faults

package faulttest

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// beforeFiles ends the event stream just before each file event that comes for the first time during a fault, and
// lets the next stream wait for a while.
type beforeFiles struct {
	http.RoundTripper
	w   *partialWorld
	cut atomic.Bool // the next stream waits

	mu   sync.Mutex
	seen map[string]bool // by event
}

// away is for how long there is no stream: meanwhile what is stored could be confirmed many times.
const away = 100 * time.Millisecond

func (b *beforeFiles) RoundTrip(r *http.Request) (*http.Response, error) {
	stream := strings.Contains(r.Header.Get("Accept"), "text/event-stream")
	if stream && b.cut.Swap(false) {
		select {
		case <-time.After(away):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil && stream && resp.StatusCode == http.StatusOK {
		resp.Body = &streamBeforeFiles{ReadCloser: resp.Body, b: b}
	}
	return resp, err
}

// ends reports whether the stream ends before an event.
func (b *beforeFiles) ends(event []byte) bool {
	if !bytes.Contains(event, []byte("FILE_RECEIVED")) || b.w.faultNow() == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	id := string(event[bytes.Index(event, []byte("data")):])
	if b.seen[id] {
		return false
	}
	b.seen[id] = true
	b.cut.Store(true)
	return b.w.hit(true)
}

type streamBeforeFiles struct {
	io.ReadCloser
	b     *beforeFiles
	in    []byte // less than an event
	ready []byte
	ended bool
}

func (s *streamBeforeFiles) Read(p []byte) (int, error) {
	for len(s.ready) == 0 {
		if s.ended {
			return 0, io.EOF
		}
		if end := bytes.Index(s.in, []byte("\n\n")); end >= 0 {
			event := s.in[:end+2]
			if s.ended = s.b.ends(event); !s.ended {
				s.ready = event
			}
			s.in = s.in[end+2:]
			continue
		}
		buf := make([]byte, 4096)
		n, err := s.ReadCloser.Read(buf)
		s.in = append(s.in, buf[:n]...)
		if err != nil {
			return 0, err
		}
	}
	n := copy(p, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}

// fileComesLater: with the default Files, chunks come by themselves, and the stream ends before their file.
func fileComesLater() partialRow {
	const chunk = 1000
	return partialRow{
		name: "P40 the stream ends between the chunks of one tenant's files and the files", recovery: 10 * time.Second,
		gateway: gatewaytest.Config{ChunkSize: chunk},
		change: func(w *partialWorld, p *parts) {
			p.Subscriber.Files, p.Subscriber.ChunkSize = nil, chunk
			p.Gateway.Transport = &beforeFiles{RoundTripper: &http.Transport{TLSClientConfig: p.Gateway.TLS}, w: w, seen: map[string]bool{}}
		},
		strike: func(w *partialWorld) func() {
			for range 3 {
				w.sendRequest(gatewaytest.SendRequest{From: w.senders[0], MessageType: fileType, Payload: w.bytes(5 * chunk / 2)})
			}
			return func() {}
		},
		want: expectation{chunksAndFile: true},
	}
}
