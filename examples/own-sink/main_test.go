package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every sink has to pass this suite.
func TestConformance(t *testing.T) {
	sinktest.Run(t, sinktest.Suite{
		New: func(t *testing.T, settings sinktest.Settings) sinktest.Backend {
			s := &service{topics: make(map[string][]*message.Message), timeout: time.Minute}
			if settings.Faults {
				s.timeout = 5 * time.Second
			}
			server := httptest.NewServer(s)
			t.Cleanup(server.Close)
			s.url = server.URL
			return s
		},
		Features: sinktest.Features{
			UUID: true, Metadata: true, Outage: true, Hang: true,
			UnescapeTopicSegment: sinks.DefaultSegments.Unescape,
		},
	})
}

// service takes webhooks, and keeps what it was sent.
type service struct {
	url     string
	timeout time.Duration // of the sinks

	mu      sync.Mutex
	topics  map[string][]*message.Message
	broken  bool
	hanging chan struct{} // closed by Resume; nil: not hanging
}

func (s *service) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	broken, hanging := s.broken, s.hanging
	s.mu.Unlock()
	if hanging != nil {
		<-hanging
	}
	err := req.ParseForm()
	if broken || err != nil {
		panic(http.ErrAbortHandler) // cuts the connection
	}
	if req.Method == http.MethodGet {
		return
	}
	msg := message.NewMessage(req.Form.Get("uuid"), []byte(req.Form.Get("payload")))
	for name := range req.Form {
		if key, ok := strings.CutPrefix(name, "metadata."); ok {
			msg.Metadata.Set(key, req.Form.Get(name))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	topic := req.Form.Get("topic")
	s.topics[topic] = append(s.topics[topic], msg)
}

func (s *service) NewSink(t *testing.T) sinks.Sink {
	sink := newSink(s.url, s.timeout)
	t.Cleanup(func() { _ = sink.Close() }) // for the second time, mostly
	return sink
}

func (s *service) Read(_ *testing.T, topic string) []*message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.topics[topic]
}

func (s *service) Break(*testing.T)  { s.set(true, nil) }
func (s *service) Repair(*testing.T) { s.set(false, nil) }
func (s *service) Hang(*testing.T)   { s.set(false, make(chan struct{})) }
func (s *service) Resume(*testing.T) { s.set(false, nil) }

func (s *service) set(broken bool, hanging chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hanging != nil {
		close(s.hanging)
	}
	s.broken, s.hanging = broken, hanging
}
