package farm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/isoxml"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm/internal/prescription"
)

// TypeTaskData is the message type of the service that [NewTaskData] makes.
const TypeTaskData = "iso:11783:-10:taskdata:zip"

// TaskDataConfig configures [NewTaskData].
type TaskDataConfig struct {
	// Columns are the rates: which properties of the polygons (columns in GeoParquet) they are, and what these mean. At least one is required.
	Columns []RateConfig `yaml:"columns" required:"true"`
	// Field is the field that is to be worked. Without it the task has none.
	Field NameConfig `yaml:"field"`
	// Task is the name of the task; empty means the file name without its ending.
	Task string `yaml:"task"`
	// Grid is the side of the cells of a grid in meters, which have the rates at their centers, zero outside of all
	// polygons. Without it polygons are treatment zones, of at most 254 different rates. 0 means none; negative is
	// an error.
	Grid float64 `yaml:"grid"`

	ReadConfig `yaml:",inline"`
}

// RateConfig says what the numbers in a column are.
type RateConfig struct {
	// Column is the name of the property.
	Column string `yaml:"column" required:"true"`
	// DDI is what the terminal takes, e.g. 0006 for a setpoint of mass per area.
	DDI string `yaml:"ddi" required:"true"`
	// Unit is what the numbers are in, e.g. kg/ha, l/ha, seeds/m², gal/ac, or raw for that of the DDI. They are
	// rounded to the resolution of the DDI, by at most 5 percent.
	Unit string `yaml:"unit" required:"true"`
	// Product is what is applied. Without it the rate is of no product.
	Product NameConfig `yaml:"product"`
}

// NameConfig is a name: the same for all, or that in a column. One of both may be set.
type NameConfig struct {
	// Name is the name.
	Name string `yaml:"name"`
	// Column is the name of the property that has it.
	Column string `yaml:"column"`
}

// Validate reports a name that is set twice; the error matches [ErrConfig].
func (c NameConfig) Validate() error {
	var e validate.Errors
	e.Check(c.Name == "" || c.Column == "", "Column", "cannot be combined with %s", validate.Field("Name"))
	return e.Err(ErrConfig)
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c RateConfig) Validate() error {
	var e validate.Errors
	e.Check(c.Column != "", "Column", "is required")
	ddi, err := farmdata.ParseDDI(c.DDI)
	e.Check(err == nil && ddi != farmdata.DDIUnknown, "DDI", "must be up to four hexadecimal digits, and not FFFF, which stands for none")
	if err == nil {
		_, err = prescription.Factor(ddi, c.Unit)
		e.Check(err == nil, "Unit", "does not fit: %v", err)
	}
	e.Join("Product", c.Product.Validate())
	return e.Err(ErrConfig)
}

// WithDefaults returns the configuration with its defaults.
func (c TaskDataConfig) WithDefaults() TaskDataConfig {
	c.ReadConfig = c.ReadConfig.WithDefaults()
	return c
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c TaskDataConfig) Validate() error {
	var e validate.Errors
	e.Check(len(c.Columns) > 0, "Columns", "must have at least one column")
	for i, column := range c.Columns {
		e.Join(fmt.Sprintf("Columns[%d]", i), column.Validate())
		ddi, err := farmdata.ParseDDI(column.DDI)
		for j, other := range c.Columns[:i] {
			before, _ := farmdata.ParseDDI(other.DDI)
			e.Check(err != nil || ddi != before || column.Product != other.Product, fmt.Sprintf("Columns[%d].DDI", i), "is that of %s, for the same product: leave one out, or name another product", validate.Field(fmt.Sprintf("Columns[%d]", j)))
		}
	}
	e.Join("Field", c.Field.Validate())
	e.Check(c.Grid >= 0, "Grid", "must not be negative")
	e.Join("", c.ReadConfig.Validate())
	return e.Err(ErrConfig)
}

// NewTaskData returns a transform for [router.Route.Transform] that makes TaskData of a map with rates, such as farm software
// makes, for a terminal: one message of the type [TypeTaskData] with one planned task, whose prescription is the map. The map is a
// FeatureCollection of GeoJSON, or GeoParquet with WKB, in degrees of WGS 84: polygons, each with a number of at least zero in each of the
// Columns. Other properties are not looked at.
//
// Nothing is left out: a map that cannot be read, or a polygon that cannot be placed, is a permanent error that says what and
// where, so the message goes where the route poisons to.
func NewTaskData(config TaskDataConfig) (message.HandlerFunc, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	r := newReader(config.ReadConfig)
	return func(msg *message.Message) ([]*message.Message, error) {
		to := &maker{received: msg}
		err := r.withPayload(msg, func(ctx context.Context, payload []byte) error {
			to.digest = sha256.Sum256(payload)
			archive, err := config.prescribe(ctx, payload, msg.Metadata[gateway.KeyFilename])
			switch {
			case err == nil:
				to.add(archive, TypeTaskData, ".zip", nil)
			case ctx.Err() == nil: // it is in memory, so nothing but the map can be wrong
				return &unreadable{err.Error()}
			}
			return err
		})
		var not *unreadable
		if errors.As(err, &not) {
			return nil, router.Permanent(fmt.Errorf("no TaskData can be made of it: %s", clean(not.reason)))
		}
		return to.made, err
	}, nil
}

// prescribe makes an archive of a map.
func (c TaskDataConfig) prescribe(ctx context.Context, payload []byte, file string) ([]byte, error) {
	of := prescription.Config{Task: cmp.Or(c.Task, strings.TrimSpace(strings.TrimSuffix(file, path.Ext(file)))), Field: prescription.Name(c.Field), Grid: c.Grid}
	for _, column := range c.Columns {
		ddi, err := farmdata.ParseDDI(column.DDI)
		if err != nil {
			return nil, err // Validate has parsed it
		}
		of.Columns = append(of.Columns, prescription.Column{Column: column.Column, DDI: ddi, Unit: column.Unit, Product: prescription.Name(column.Product)})
	}
	set, err := prescription.Make(ctx, payload, of)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	if err := isoxml.Write(ctx, &archive, set, isoxml.WriteConfig{}); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}
