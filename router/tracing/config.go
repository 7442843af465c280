package tracing

import (
	"cmp"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/internal/validate"
)

// ErrConfig is matched by the errors of [Config.Validate].
var ErrConfig = errors.New("tracing: invalid configuration")

// SystemGateway is the messaging.system of messages from and to the gateway.
// Messages of a subscriber of this system are remembered until they are
// confirmed, see [Tracing.Hooks].
const SystemGateway = "agrimill_gateway"

// DefaultMaxUnconfirmed is the default of [Config.MaxUnconfirmed].
const DefaultMaxUnconfirmed = 65_536

// Config configures [Tracing]. The zero value is ready for use.
type Config struct {
	// TracerProvider creates the spans. The caller shuts it down after the router has
	// closed. Nil means the global one, otel.GetTracerProvider().
	TracerProvider trace.TracerProvider
	// Propagator writes the trace context into metadata and reads it. Nil means
	// propagation.TraceContext, the W3C headers traceparent and tracestate.
	Propagator propagation.TextMapPropagator
	// Filename puts the filename of a message into its spans.
	Filename bool
	// MaxUnconfirmed is how many recorded messages are remembered for the span of their
	// confirmation; beyond it, the oldest ones get no such span. 0 means
	// [DefaultMaxUnconfirmed]; negative is an error.
	MaxUnconfirmed int
}

func (c *Config) setDefaults() {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.Propagator == nil {
		c.Propagator = propagation.TraceContext{}
	}
	c.MaxUnconfirmed = cmp.Or(c.MaxUnconfirmed, DefaultMaxUnconfirmed)
}

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	validate.NotNegative(&e, "MaxUnconfirmed", c.MaxUnconfirmed)
	return e.Err(ErrConfig)
}

// Tracing creates the wrappers and hooks of one program. Its methods are safe for
// concurrent use, and so is what they return, as far as the wrapped value is.
type Tracing struct {
	config      Config
	tracer      trace.Tracer
	unconfirmed *unconfirmed
}

// scope names this package as the source of its spans.
const scope = "github.com/agrimill/agrimill/router/tracing"

// New returns a Tracing, or an error that matches [ErrConfig].
func New(config Config) (*Tracing, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	open, err := newUnconfirmed(config.MaxUnconfirmed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &Tracing{
		config:      config,
		tracer:      config.TracerProvider.Tracer(scope, trace.WithSchemaURL(schemaURL)),
		unconfirmed: open,
	}, nil
}
