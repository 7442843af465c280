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
	// Map makes maps, e.g. map: {format: geojson}.
	Map *MapConfig `yaml:"map"`
	// EFDI makes EFDI of TaskData: device descriptions and time logs, e.g. efdi: {}.
	EFDI *EFDIConfig `yaml:"efdi"`
	// Prescription makes TaskData of a map with rates: a task to do.
	Prescription *TaskDataConfig `yaml:"taskdata"`
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
	if c.Map != nil {
		e.Check(c.Records == nil && c.Summary == nil, "Map", "cannot be combined with %s and %s", validate.Field("Records"), validate.Field("Summary"))
		e.Join("Map", c.Map.Validate())
	}
	if c.EFDI != nil {
		e.Check(c.Records == nil && c.Summary == nil && c.Map == nil, "EFDI", "cannot be combined with %s, %s and %s",
			validate.Field("Records"), validate.Field("Summary"), validate.Field("Map"))
		e.Join("EFDI", c.EFDI.Validate())
	}
	if c.Prescription != nil {
		e.Check(c.Records == nil && c.Summary == nil && c.Map == nil && c.EFDI == nil, "Prescription", "cannot be combined with %s, %s, %s and %s",
			validate.Field("Records"), validate.Field("Summary"), validate.Field("Map"), validate.Field("EFDI"))
		e.Join("Prescription", c.Prescription.Validate())
	}
	return e.Err(ErrConfig)
}

// WithPayloads returns the configuration with [ReadConfig.Payloads] set.
func (c TransformConfig) WithPayloads(payloads gateway.PayloadOpener) TransformConfig {
	return c.with(func(read *ReadConfig) { read.Payloads = payloads })
}

// WithDevices returns the configuration with [ReadConfig.Devices] set.
func (c TransformConfig) WithDevices(devices *Devices) TransformConfig {
	return c.with(func(read *ReadConfig) { read.Devices = devices })
}

// with returns the configuration after a change of how payloads are read.
func (c TransformConfig) with(change func(*ReadConfig)) TransformConfig {
	if c.Records != nil {
		records := *c.Records
		change(&records.ReadConfig)
		c.Records = &records
	}
	if c.Summary != nil {
		summary := *c.Summary
		change(&summary)
		c.Summary = &summary
	}
	if c.Map != nil {
		m := *c.Map
		change(&m.ReadConfig)
		c.Map = &m
	}
	if c.EFDI != nil {
		encoding := *c.EFDI
		change(&encoding.ReadConfig)
		c.EFDI = &encoding
	}
	if c.Prescription != nil {
		prescription := *c.Prescription
		change(&prescription.ReadConfig)
		c.Prescription = &prescription
	}
	return c
}

// NewTransform returns what [NewRecords], [NewSummary], [NewMap], [NewEFDI] or [NewTaskData] returns; nil if there is nothing to do.
func NewTransform(config TransformConfig) (message.HandlerFunc, error) {
	switch {
	case config.Validate() != nil:
		return nil, config.Validate()
	case config.Records != nil:
		return NewRecords(*config.Records)
	case config.Summary != nil:
		return NewSummary(*config.Summary)
	case config.Map != nil:
		return NewMap(*config.Map)
	case config.EFDI != nil:
		return NewEFDI(*config.EFDI)
	case config.Prescription != nil:
		return NewTaskData(*config.Prescription)
	}
	return nil, nil
}
