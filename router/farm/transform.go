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
	change  func(func(*ReadConfig)) // of how payloads are read, in a copy of the field
}

// parts returns those that are set.
func (c *TransformConfig) parts() (list []part) {
	addPart(&list, "Records", &c.Records, NewRecords, func(c *RecordsConfig) *ReadConfig { return &c.ReadConfig })
	addPart(&list, "Summary", &c.Summary, NewSummary, func(c *ReadConfig) *ReadConfig { return c })
	addPart(&list, "Map", &c.Map, NewMap, func(c *MapConfig) *ReadConfig { return &c.ReadConfig })
	addPart(&list, "EFDI", &c.EFDI, NewEFDI, func(c *EFDIConfig) *ReadConfig { return &c.ReadConfig })
	addPart(&list, "Prescription", &c.Prescription, NewTaskData, func(c *TaskDataConfig) *ReadConfig { return &c.ReadConfig })
	return list
}

func addPart[T interface{ Validate() error }](list *[]part, name string, field **T, make func(T) (message.HandlerFunc, error), read func(*T) *ReadConfig) {
	if *field == nil {
		return
	}
	config := **field
	*list = append(*list, part{name, config.Validate(), func() (message.HandlerFunc, error) { return make(config) }, func(change func(*ReadConfig)) {
		change(read(&config))
		*field = &config
	}})
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
	for _, p := range c.parts() {
		p.change(change)
	}
	return c
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
