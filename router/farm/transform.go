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

// part is a field of a TransformConfig that is set.
type part struct {
	name    string
	invalid error
	make    func() (message.HandlerFunc, error)
}

// parts returns those that are set.
func (c TransformConfig) parts() (list []part) {
	addPart(&list, "Records", c.Records, NewRecords)
	addPart(&list, "Summary", c.Summary, NewSummary)
	addPart(&list, "Map", c.Map, NewMap)
	addPart(&list, "EFDI", c.EFDI, NewEFDI)
	addPart(&list, "Prescription", c.Prescription, NewTaskData)
	return list
}

func addPart[T interface{ Validate() error }](list *[]part, name string, config *T, make func(T) (message.HandlerFunc, error)) {
	if config != nil {
		*list = append(*list, part{name, (*config).Validate(), func() (message.HandlerFunc, error) { return make(*config) }})
	}
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c TransformConfig) Validate() error {
	var e validate.Errors
	parts := c.parts()
	for i, p := range parts {
		e.Check(i == 0, p.name, "cannot be combined with %s", validate.Field(parts[0].name))
		e.Join(p.name, p.invalid)
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
	c.Records = changed(c.Records, func(c *RecordsConfig) { change(&c.ReadConfig) })
	c.Summary = changed(c.Summary, change)
	c.Map = changed(c.Map, func(c *MapConfig) { change(&c.ReadConfig) })
	c.EFDI = changed(c.EFDI, func(c *EFDIConfig) { change(&c.ReadConfig) })
	c.Prescription = changed(c.Prescription, func(c *TaskDataConfig) { change(&c.ReadConfig) })
	return c
}

// changed returns a changed copy; nil of nil.
func changed[T any](config *T, change func(*T)) *T {
	if config == nil {
		return nil
	}
	clone := *config
	change(&clone)
	return &clone
}

// NewTransform returns what [NewRecords], [NewSummary], [NewMap], [NewEFDI] or [NewTaskData] returns; nil if there is nothing to do.
func NewTransform(config TransformConfig) (message.HandlerFunc, error) {
	parts := config.parts()
	switch err := config.Validate(); {
	case err != nil:
		return nil, err
	case len(parts) == 0:
		return nil, nil
	}
	return parts[0].make()
}
