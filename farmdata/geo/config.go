package geo

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/names"
)

// Config says what a map shows, and how.
type Config struct {
	// Layers are what Write writes of a set. Empty means fields, zones, grids and tracks.
	Layers []Layer
	// Set has the names of what logs refer to. Write takes the set that it writes, and a Prescription has its own.
	Set *farmdata.Set
	// Add are properties of each feature: of each attribute the ID and the name, such as field and field_name, null where
	// there is none. Cells and zones have task, field and product without being asked for.
	Add []Attribute
	// Columns selects the values of points, cells and zones; the first one that fits a column counts. Empty means all of them.
	Columns []Column
	// Finding is called for each finding of a log or grid while it is read, by the
	// goroutine that writes it. What is read twice is reported once. Nil means that findings are passed over.
	Finding func(*farmdata.Finding)
}

// Layer is a part of a map.
type Layer string

// Layers of a map.
const (
	Fields Layer = "fields" // boundaries
	Zones  Layer = "zones"  // treatment zones that have polygons
	Grids  Layer = "grids"  // cells of prescription maps
	Tracks Layer = "tracks" // where machines went
	Points Layer = "points" // each record with its values
)

var layers = []Layer{Fields, Zones, Grids, Tracks, Points}

// Attribute is what something on a map refers to.
type Attribute string

// Attributes. Of a point or track they are those of the task of its log: Product is what was allocated to it, Machine is
// what the values of the log are from, otherwise what was allocated. Several are one text with "; " between them.
const (
	Task     Attribute = names.Task
	Field    Attribute = names.Field
	Farm     Attribute = names.Farm
	Customer Attribute = names.Customer
	Product  Attribute = names.Product
	Machine  Attribute = names.Machine
	Operator Attribute = names.Operator
)

var attributes = []Attribute{Task, Field, Farm, Customer, Product, Machine, Operator}

// Column selects columns of values, and says how they are written. Its zero value selects all as they are.
type Column struct {
	// DDI has up to four hexadecimal digits; empty fits any.
	DDI string `yaml:"ddi"`
	// Element is the ID or the designator of the device element; empty fits any.
	Element string `yaml:"element"`
	// PGN is that of a CAN message; 0 fits any.
	PGN int `yaml:"pgn"`
	// Name is what the device, otherwise the data dictionary, calls the values; empty fits any.
	Name string `yaml:"name"`
	// As is the name of the column in each feature: null where there is no value. Other columns that fit, in other
	// logs, are the same column if they have the same unit; a second one in the same record gets "_2". Empty means a
	// name by Keys, in features with a value only.
	As string `yaml:"as"`
	// Unit is what the values are converted to, e.g. "t/ha"; empty means the unit that they have. Values that cannot be converted are
	// a finding and left out.
	Unit string `yaml:"unit"`
}

// reserved are names of columns that maps have anyway, beside those of attributes.
var reserved = []string{"kind", "log", "record", "time", "utc", "up", "status", "pdop", "hdop", "satellites", "field_status", "part", "records", "start", "end", "id", "name", "area", "grid", "row", "column",
	"zone", "zone_name", "geometry", "bbox"}

// Validate reports what is wrong: a layer, attribute, DDI or unit that there is none of, a name that maps
// have anyway, or two names that differ in letter case only.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("geo: "+format, args...))
		}
	}
	for _, layer := range c.Layers {
		check(slices.Contains(layers, layer), "Layers: there is no %q", layer)
	}
	for _, attribute := range c.Add {
		check(slices.Contains(attributes, attribute), "Add: there is no %q", attribute)
	}
	for i, column := range c.Columns {
		if err := column.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("geo: Columns: %w", err))
		}
		for _, other := range c.Columns[:i] {
			check(column.As == other.As || !strings.EqualFold(column.As, other.As), "Columns: the names %q and %q differ in letter case only", other.As, column.As)
		}
	}
	return errors.Join(errs...)
}

// Validate reports a DDI or unit that there is none of, a PGN that is negative, or a name that maps have anyway.
func (s Column) Validate() error {
	if s.DDI != "" {
		if _, err := farmdata.ParseDDI(s.DDI); err != nil {
			return fmt.Errorf("DDI %q: %w", s.DDI, err)
		}
	}
	if s.Unit != "" {
		if _, ok := farmdata.ParseUnit(s.Unit); !ok {
			return fmt.Errorf("the unit %q is not known", s.Unit)
		}
	}
	name := strings.ToLower(s.As)
	switch {
	case s.PGN < 0:
		return errors.New("the PGN is negative")
	case slices.Contains(reserved, name), slices.Contains(attributes, Attribute(strings.TrimSuffix(name, "_name"))):
		return fmt.Errorf("maps have another column %q", s.As)
	}
	return nil
}

func (c *Config) setDefaults() {
	c.Add = slices.DeleteFunc(slices.Clone(attributes), func(a Attribute) bool { return !slices.Contains(c.Add, a) }) // each once
	if c.Finding == nil {
		c.Finding = func(*farmdata.Finding) {}
	}
	if len(c.Layers) == 0 {
		c.Layers = []Layer{Fields, Zones, Grids, Tracks}
	}
}

// fits reports whether the selection has a column.
func (s *Column) fits(c *farmdata.Column) bool {
	if s.DDI != "" {
		if ddi, err := farmdata.ParseDDI(s.DDI); err != nil || ddi != c.DDI {
			return false
		}
	}
	return (s.Element == "" || s.Element == c.ElementID || s.Element == c.Element) && (s.PGN == 0 || s.PGN == int(c.PGN)) && (s.Name == "" || s.Name == c.Name)
}
