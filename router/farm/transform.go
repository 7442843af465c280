package farm

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
)

// TransformConfig says what a route makes of farm data: at most one of its fields is set.
type TransformConfig struct {
	// Records makes messages of JSON lines of the logs, e.g. records: {}.
	Records *RecordsConfig `yaml:"records"`
	// Summary makes one message of JSON that sums up the data, e.g. summary: {}.
	Summary *ReadConfig `yaml:"summary"`
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c TransformConfig) Validate() error {
	var e validate.Errors
	e.Check(c.Records == nil || c.Summary == nil, "Summary", "cannot be combined with %s", validate.Field("Records"))
	if c.Records != nil {
		e.Join("Records", c.Records.Validate())
	}
	if c.Summary != nil {
		e.Join("Summary", c.Summary.Validate())
	}
	return e.Err(ErrConfig)
}

// WithPayloads returns the configuration with [ReadConfig.Payloads] set.
func (c TransformConfig) WithPayloads(payloads gateway.PayloadOpener) TransformConfig {
	if c.Records != nil {
		records := *c.Records
		records.Payloads = payloads
		c.Records = &records
	}
	if c.Summary != nil {
		summary := *c.Summary
		summary.Payloads = payloads
		c.Summary = &summary
	}
	return c
}

// NewTransform returns what [NewRecords] or [NewSummary] returns; nil if there is nothing to do.
func NewTransform(config TransformConfig) (message.HandlerFunc, error) {
	switch {
	case config.Validate() != nil:
		return nil, config.Validate()
	case config.Records != nil:
		return NewRecords(*config.Records)
	case config.Summary != nil:
		return NewSummary(*config.Summary)
	}
	return nil, nil
}
