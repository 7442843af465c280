package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"sync/atomic"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/tracing"
)

// newTracing exports spans to a collector, if there is an address. If the collector is down, that is logged and spans are dropped.
func (p *Pipeline) newTracing(ctx context.Context, cfg config.Tracing) error {
	var options []otlptracehttp.Option
	switch {
	case cfg.OTLPEndpoint != "":
		address, err := url.Parse(string(cfg.OTLPEndpoint))
		if err != nil {
			return fmt.Errorf("otlp_endpoint is not a URL")
		}
		if address.Path == "" || address.Path == "/" {
			address.Path = "/v1/traces" // the default path of collectors
		}
		options = append(options, otlptracehttp.WithEndpointURL(address.String()))
	case cfg.Environment != "": // which the exporter reads itself
	default:
		return nil
	}
	p.logger.Info("exporting spans", "part", "tracing", "endpoint", cmp.Or(cfg.OTLPEndpoint, cfg.Environment).String())
	headers := map[string]string{}
	for name, value := range cfg.Headers {
		headers[name] = string(value)
	}
	if len(headers) > 0 {
		options = append(options, otlptracehttp.WithHeaders(headers))
	}
	secured, err := cfg.TLS.Config()
	if err != nil {
		return err
	}
	if secured != nil {
		options = append(options, otlptracehttp.WithTLSClientConfig(secured))
	}
	exporter, err := otlptracehttp.New(ctx, options...) // it does not connect
	if err != nil {
		return err
	}
	about := resource.NewSchemaless(semconv.ServiceName(cfg.ServiceName), semconv.ServiceVersion(p.options.Version),
		semconv.ServiceInstanceID(p.options.Name))
	p.spans = sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&spanExporter{SpanExporter: exporter, logger: p.logger.With("part", "tracing")}),
		sdktrace.WithResource(about),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.SampleRatio))),
	)
	p.tracing, err = tracing.New(tracing.Config{TracerProvider: p.spans})
	return err
}

// spanExporter logs failed exports, once per outage. The SDK would call the error handler
// of the whole process, each time.
type spanExporter struct {
	sdktrace.SpanExporter
	logger  *slog.Logger
	failing atomic.Bool
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *spanExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !e.failing.Swap(true):
		e.logger.Warn("exporting spans failed; spans are dropped until it recovers", "error", router.RedactError(err, nil))
	case err == nil && e.failing.Swap(false):
		e.logger.Info("exporting spans recovered")
	}
	return nil
}
