package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/internal/testkit"
)

// offlineGateway is the service without a network, as the transport of a client, so that its time is that of a bubble of
// testing/synctest.
type offlineGateway struct {
	down      atomic.Bool // nothing can be reached
	mute      atomic.Bool // confirmations are not answered
	confirmed atomic.Int64
	messages  int // that the first stream brings
}

func (g *offlineGateway) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}
	if g.down.Load() {
		return nil, errors.New("connection refused")
	}
	status, body := http.StatusOK, io.NopCloser(strings.NewReader(`{"access_token":"token","expires_in":3600,"tenants":[]}`))
	header := http.Header{"Content-Type": {"application/json"}}
	switch r.URL.Path {
	case "/events":
		header.Set("Content-Type", "text/event-stream")
		body = g.stream(r.Context())
	case "/confirmations":
		if g.mute.Load() {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		g.confirmed.Add(1)
		status, body = http.StatusAccepted, http.NoBody
	}
	return &http.Response{StatusCode: status, Header: header, Body: body, Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
}

// stream has the messages that were not sent yet, and stays open as long as ctx.
func (g *offlineGateway) stream(ctx context.Context) io.ReadCloser {
	const id = "11111111-1111-4111-8111-%012d"
	out, in := io.Pipe()
	go func() { // ends with ctx
		for i := range g.messages {
			_, _ = fmt.Fprintf(in, "event: MESSAGE_RECEIVED\ndata: "+`{"event_type":"MESSAGE_RECEIVED","id":"`+id+`","app_message_id":"`+id+`","message_type":%q,`+
				`"sent_at":"2026-01-01T00:00:00Z","payload":"eA==","receiving_endpoint_id":"`+id+`","tenant_id":"`+id+`"}`+"\n\n", i, i, taskData, 0, 0)
		}
		<-ctx.Done()
		_ = in.CloseWithError(ctx.Err())
	}()
	return out
}

// stuck is an output that takes nothing until it is released.
type stuck struct {
	written  atomic.Int64
	released chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	s.written.Add(1)
	<-s.released
	return len(p), nil
}

// Whatever hangs, a pipeline ends within shutdown.timeout, and a reload gives up within it: the clock is that of the test.
func TestEndsInTime(t *testing.T) {
	const timeout = time.Minute
	everything := func(g *offlineGateway) { g.down.Store(true) }
	for name, test := range map[string]struct {
		before   func(*offlineGateway) // the start
		hangs    bool                  // the sink
		during   func(*offlineGateway) // before the end
		reload   bool                  // instead of the end
		finished bool                  // nothing is left open
	}{
		"all is well":                               {finished: true},
		"the sink hangs":                            {hangs: true},
		"the gateway was never there":               {before: everything, finished: true},
		"the gateway goes":                          {during: everything, finished: true},
		"the sink hangs and the gateway goes":       {hangs: true, during: everything},
		"confirmations are not answered":            {before: func(g *offlineGateway) { g.mute.Store(true) }},
		"a reload while the sink hangs":             {hangs: true, reload: true},
		"a reload while confirmations are not sent": {before: func(g *offlineGateway) { g.mute.Store(true) }, reload: true, finished: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, output := &offlineGateway{messages: 5}, &stuck{released: make(chan struct{})}
				if !test.hangs {
					close(output.released)
				}
				if test.before != nil {
					test.before(g)
				}
				p, cfg := g.pipeline(t, output, timeout)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- p.Run(ctx) }()
				time.Sleep(time.Minute) // it is busy, or has tried for a while
				if test.during != nil {
					test.during(g)
				}
				began := time.Now()
				if test.reload {
					report, err := p.Reload(t.Context(), cfg("next"))
					if unfinished := report.Unfinished != ""; err != nil || unfinished == test.finished {
						t.Errorf("got %+v, %v, want finished %v", report, err, test.finished)
					}
				} else {
					cancel()
					if err := <-ended; (err == nil) != test.finished || err != nil && !errors.Is(err, pipeline.ErrUnfinished) {
						t.Errorf("got %v, want finished %v", err, test.finished)
					}
				}
				if took := time.Since(began); took > timeout {
					t.Errorf("took %v, want at most %v", took, timeout)
				}
				if name == "all is well" && g.confirmed.Load() == 0 {
					t.Error("nothing is confirmed")
				}
				if test.hangs {
					if g.confirmed.Load() > 0 || output.written.Load() == 0 {
						t.Errorf("%d requests to confirm, %d writes", g.confirmed.Load(), output.written.Load())
					}
					close(output.released)
				}
				cancel()
				if test.reload {
					if err := <-ended; err != nil { // what it left is no longer about its time
						t.Log(err)
					}
				}
			})
		})
	}
}

// pipeline is one that stores in output, and a function that returns its configuration with another sink.
func (g *offlineGateway) pipeline(t *testing.T, output io.Writer, timeout time.Duration) (*pipeline.Pipeline, func(sink string) *config.Config) {
	t.Helper()
	cfg := func(sink string) *config.Config {
		c := testkit.Must(config.Parse("agrimill.yaml", fmt.Appendf(nil, `
gateway: {base_url: "https://gateway.example", token_url: "https://gateway.example/token", client_id: id, client_secret: "${SECRET}"}
sinks: {%[1]s: {log: {}}}
routes: [{name: all, from: {gateway: all}, to: {sink: %[1]s, topic: "{event}"}}]
poison: {sink: %[1]s}
shutdown: {timeout: %[2]v}
admin: {address: off}
`, sink, timeout), config.Options{Env: func(string) string { return "secret" }}))(t)
		c.Gateway.Transport = g
		return c
	}
	p := testkit.Must(pipeline.New(t.Context(), cfg("out"), pipeline.Options{Stdout: output}))(t)
	return p, cfg
}
