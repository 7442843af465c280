package pipeline_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector takes spans by OTLP over HTTP.
type collector struct {
	mu      sync.Mutex
	names   map[string]int // of spans
	service string
	header  string
	traces  map[string]bool
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body) // an error shows as one of reading
	}
	data, err := io.ReadAll(body)
	request := &collectorpb.ExportTraceServiceRequest{}
	if err != nil || proto.Unmarshal(data, request) != nil || r.URL.Path != "/v1/traces" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.header = r.Header.Get("X-Api-Key")
	for _, of := range request.GetResourceSpans() {
		for _, attribute := range of.GetResource().GetAttributes() {
			if attribute.GetKey() == "service.name" {
				c.service = attribute.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.names[span.GetName()]++
				c.traces[string(span.GetTraceId())] = true
			}
		}
	}
}

// Every message is followed from its event to its confirmation.
func TestTracing(t *testing.T) {
	w := newWorld(t)
	c := &collector{names: map[string]int{}, traces: map[string]bool{}}
	server := httptest.NewServer(c)
	defer server.Close()
	b := w.start(w.head() + w.natsSink() + allRoute + fmt.Sprintf("tracing: {otlp_endpoint: %q, service_name: farm, headers: {X-Api-Key: \"${PASSWORD}\"}}\n", server.URL))
	b.waitReady()
	w.send(taskData, 5)
	w.waitConfirmed()
	b.reload(w.head() + w.natsSink() + strings.Replace(allRoute, "{sink: farm}", "{sink: farm, topic: other}", 1) +
		fmt.Sprintf("tracing: {otlp_endpoint: %q, service_name: farm, headers: {X-Api-Key: \"${PASSWORD}\"}}\n", server.URL))
	w.send(taskData, 5)
	b.finish()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.service != "farm" || c.header != password || len(c.traces) != 10 {
		t.Errorf("service %q, header %q, %d traces", c.service, c.header, len(c.traces))
	}
	for _, name := range []string{"process ALL_DATA", "attempt farm-data", "publish farm", "confirm"} {
		if c.names[name] < 10 {
			t.Errorf("%d spans %q, want 10: %v", c.names[name], name, c.names)
		}
	}
}

// The collector may be named by the environment alone, as OpenTelemetry's exporters
// read it.
func TestTracingFromEnvironment(t *testing.T) {
	w := newWorld(t)
	c := &collector{names: map[string]int{}, traces: map[string]bool{}}
	server := httptest.NewServer(c)
	defer server.Close()
	environment := map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=" + password, "OTEL_SERVICE_NAME": "farm of the environment",
	}
	for name, value := range environment {
		t.Setenv(name, value)
		w.env[name] = value
	}
	b := w.start(w.head() + w.natsSink() + allRoute)
	w.send(taskData, 5)
	w.waitConfirmed()
	b.mustStop()
	b.logs.contains("exporting spans", server.URL)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.service != "farm of the environment" || c.header != password || len(c.traces) != 5 {
		t.Errorf("service %q, header %q, %d traces", c.service, c.header, len(c.traces))
	}
}

// A collector that is down harms nobody.
func TestTracingDown(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + allRoute + "tracing: {otlp_endpoint: \"http://127.0.0.1:1\"}\n")
	w.send(taskData, 5)
	b.finish()
	b.logs.contains("exporting spans failed")
}
