// Package prescription makes TaskData of a map of polygons with rates, such as farm software makes.
package prescription

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
)

// Bounds on a map: what is in memory at a time, and what terminals could take.
const (
	maxPoints = 200_000
	maxCells  = 1_000_000
	maxCode   = 254 // of a treatment zone
	// maxRounding is how far a rate may be from the one of the map.
	maxRounding = 0.05
)

// Raw is the unit of a column whose numbers are those that the DDI stands for.
const Raw = "raw"

// Config says what a map means.
type Config struct {
	Task    string
	Field   Name
	Columns []Column
	// Grid is the side of a cell in meters; 0 makes polygons.
	Grid float64
}

// Name is a name, or the column that has it.
type Name struct{ Name, Column string }

// Column is a column of rates.
type Column struct {
	Column  string
	DDI     farmdata.DDI
	Unit    string
	Product Name
}

// Make makes a set with one task of a map: GeoJSON or GeoParquet. What cannot be read or placed is an error that says
// where it is; it has nothing of the map.
func Make(ctx context.Context, payload []byte, cfg Config) (*farmdata.Set, error) {
	m := &maker{ctx: ctx, cfg: cfg, names: make(map[string]string)}
	for _, c := range cfg.Columns {
		factor, err := Factor(c.DDI, c.Unit)
		if err != nil {
			return nil, err
		}
		m.factors = append(m.factors, factor)
	}
	var err error
	if bytes.HasPrefix(payload, []byte("PAR1")) {
		err = readGeoParquet(ctx, payload, m)
	} else {
		err = readGeoJSON(bytes.TrimPrefix(payload, []byte("\ufeff")), m) // which software on Windows writes
	}
	if err != nil {
		return nil, err
	}
	if len(m.features) == 0 {
		return nil, errors.New("it has no polygons")
	}
	set := m.set()
	task := &set.Tasks[0]
	if cfg.Grid > 0 {
		return set, m.grid(task)
	}
	return set, m.zones(task)
}

// point is a place: north, east, and millimeters up.
type point struct {
	north, east float64
	up          int64
}

// polygon is rings, the exterior one first.
type polygon [][]point

// feature is polygons with the same rates.
type feature struct {
	number   int
	polygons []polygon
	raw      []int64  // a rate for each column
	products []string // IDs, one for each column; empty: none
}

// key is the same for features with the same rates.
func (f *feature) key() string { return fmt.Sprint(f.raw, f.products) }

// maker collects what is read.
type maker struct {
	ctx      context.Context
	cfg      Config
	factors  []float64
	points   int
	features []feature
	field    string
	products []farmdata.Product
	names    map[string]string // IDs of products by name
}

// add takes a feature. value returns what a column has, as a float64 or a string.
func (m *maker) add(number int, polygons []polygon, value func(column string) any) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	f := feature{number: number, polygons: polygons}
	if err := m.place(polygons); err != nil {
		return fmt.Errorf("feature %d: %w", number, err)
	}
	for i, c := range m.cfg.Columns {
		rate, ok := value(c.Column).(float64)
		if !ok || math.IsNaN(rate) { // which GeoParquet of some programs has for what is not there
			return fmt.Errorf("feature %d: %s is no number, or is not there", number, c.Column)
		}
		exact := rate * m.factors[i]
		raw := math.Round(exact)
		if !(rate >= 0 && raw <= math.MaxInt32) {
			return fmt.Errorf("feature %d: %s is below zero, or more than TaskData has room for", number, c.Column)
		}
		if math.Abs(raw-exact) > exact*maxRounding {
			return fmt.Errorf("feature %d: %s is too small for the resolution of %s, which would change it by more than 5 percent", number, c.Column, c.DDI)
		}
		f.raw = append(f.raw, int64(raw))
		name, err := c.Product.of(value)
		if err != nil {
			return fmt.Errorf("feature %d: %w", number, err)
		}
		f.products = append(f.products, m.product(name))
		for j := range i { // which one the terminal takes, nobody knows
			if m.cfg.Columns[j].DDI == c.DDI && f.products[j] == f.products[i] {
				return fmt.Errorf("feature %d: %s and %s are both %s of the same product: leave one out, or name another product", number, m.cfg.Columns[j].Column, c.Column, c.DDI)
			}
		}
	}
	name, err := m.cfg.Field.of(value)
	if err != nil {
		return fmt.Errorf("feature %d: %w", number, err)
	}
	if len(m.features) > 0 && name != m.field {
		return fmt.Errorf("feature %d: it is of another field than the ones before, and a task has one", number)
	}
	m.field = name
	m.features = append(m.features, f)
	return nil
}

// of returns the name of a feature; empty if there is none.
func (n Name) of(value func(column string) any) (string, error) {
	if n.Column == "" {
		return n.Name, nil
	}
	switch v := value(n.Column).(type) {
	case string:
		if name := strings.TrimSpace(v); name != "" && !strings.ContainsFunc(name, forbidden) {
			return name, nil
		}
	case float64:
		if math.Abs(v) < 1<<53 { // from there on, different numbers are the same
			return strconv.FormatFloat(v, 'f', -1, 64), nil
		}
	}
	return "", fmt.Errorf("%s is no name, not UTF-8, a number too large for one, has characters that XML does not allow, or is not there", n.Column)
}

// forbidden reports whether XML does not allow a character, or it stands for bytes that are not UTF-8.
func forbidden(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r >= utf8.RuneError && r <= '\uFFFF'
}

// product returns the ID of a product.
func (m *maker) product(name string) string {
	if name == "" {
		return ""
	}
	if m.names[name] == "" {
		m.names[name] = "PDT" + strconv.Itoa(len(m.products)+1)
		m.products = append(m.products, farmdata.Product{ID: m.names[name], Designator: name})
	}
	return m.names[name]
}

// place checks where polygons are.
func (m *maker) place(polygons []polygon) error {
	if len(polygons) == 0 {
		return errors.New("it has no polygon")
	}
	for _, p := range polygons {
		if len(p) == 0 {
			return errors.New("a polygon has no ring")
		}
		s, w, n, e := box(p[0])
		for _, ring := range p {
			if m.points += len(ring); m.points > maxPoints {
				return fmt.Errorf("the map has more than %d points", maxPoints)
			}
			if len(ring) < 4 || ring[0] != ring[len(ring)-1] {
				return errors.New("a ring is not closed, or has fewer than four points")
			}
			for i, at := range ring {
				if !(math.Abs(at.north) <= 90 && math.Abs(at.east) <= 180) {
					return errors.New("a point is not on Earth: coordinates have to be degrees of WGS 84, longitude first")
				}
				if rounded(at.north) == 0 && rounded(at.east) == 0 {
					return errors.New("a point is at 0, 0, which stands for no place")
				}
				if m.cfg.Grid > 0 && math.Abs(at.east-ring[max(i-1, 0)].east) > 180 {
					return errors.New("a ring goes across the 180th meridian, and no grid does: have the polygon cut there")
				}
			}
			if south, west, north, east := box(ring); south < s && west < w && north > n && east > e {
				return errors.New("an interior ring is around the exterior one, which has to come first")
			}
		}
	}
	return nil
}

// box returns what a ring is in.
func box(ring []point) (south, west, north, east float64) {
	south, west, north, east = 90, 180, -90, -180
	for _, at := range ring {
		south, west, north, east = min(south, at.north), min(west, at.east), max(north, at.north), max(east, at.east)
	}
	return south, west, north, east
}

// set is the set without a map.
func (m *maker) set() *farmdata.Set {
	task := farmdata.Task{ID: "TSK1", Designator: m.cfg.Task, Status: 1, DefaultZone: -1, LostZone: -1, OutsideZone: -1}
	set := &farmdata.Set{Header: farmdata.Header{Major: 4, Minor: 3, Software: "agrimill", Origin: 1}, Products: m.products}
	if m.field != "" {
		task.FieldID = "PFD1"
		set.Fields = []farmdata.Field{{ID: "PFD1", Designator: m.field}}
	}
	for i, c := range m.cfg.Columns {
		if c.Unit == Raw {
			continue
		}
		scale := significant(1 / m.factors[i])
		set.ValuePresentations = append(set.ValuePresentations, farmdata.ValuePresentation{
			ID: presentation(i), Scale: scale, Decimals: int(min(max(0, math.Ceil(-math.Log10(scale)-1e-9)), 7)), Unit: c.Unit,
		})
	}
	set.Tasks = []farmdata.Task{task}
	return set
}

// presentation is the ID of how the rates of a column are shown.
func presentation(column int) string { return "VPN" + strconv.Itoa(column+1) }

// zone is a treatment zone with the rates of a feature.
func (m *maker) zone(code int, f *feature) farmdata.TreatmentZone {
	zone := farmdata.TreatmentZone{Code: code}
	for i, c := range m.cfg.Columns {
		v := farmdata.ZoneValue{DDI: c.DDI, Raw: f.raw[i], ProductID: f.products[i]}
		if c.Unit != Raw {
			v.Presentation = presentation(i)
		}
		zone.Values = append(zone.Values, v)
	}
	return zone
}

// zones makes a treatment zone of the polygons with the same rates.
func (m *maker) zones(task *farmdata.Task) error {
	places := map[string]int{}
	for i := range m.features {
		f := &m.features[i]
		at, known := places[f.key()]
		if !known {
			if at = len(task.Zones); at == maxCode {
				return fmt.Errorf("feature %d: there are more than %d different rates, which only a grid has room for", f.number, maxCode)
			}
			places[f.key()] = at
			task.Zones = append(task.Zones, m.zone(at+1, f))
		}
		for _, p := range f.polygons {
			drawn := farmdata.Polygon{Type: 2}
			for j, ring := range p {
				drawn.Rings = append(drawn.Rings, line(j, ring))
			}
			if !geo.Encloses([]farmdata.Polygon{drawn}) {
				return fmt.Errorf("feature %d: a polygon encloses nothing", f.number)
			}
			task.Zones[at].Polygons = append(task.Zones[at].Polygons, drawn)
		}
	}
	return nil
}

// line is a ring of a polygon; the first one is the exterior.
func line(number int, ring []point) farmdata.LineString {
	l := farmdata.LineString{Type: 1 + min(number, 1), Points: make([]farmdata.Point, len(ring))}
	for i, at := range ring {
		l.Points[i] = farmdata.Point{Type: 2, North: rounded(at.north), East: rounded(at.east), Up: at.up}
	}
	return l
}

// rounded is degrees with the nine decimals that TaskData has.
func rounded(degrees float64) float64 { return math.Round(degrees*1e9) / 1e9 }

// grid makes a grid of type 2. A cell has the rates of the polygon that its center is in, and outside of all rates of zero.
func (m *maker) grid(task *farmdata.Task) error {
	first := &m.features[0]
	for i := range m.features {
		if !slices.Equal(m.features[i].products, first.products) {
			return fmt.Errorf("feature %d: it has other products than the first one, and a grid has the same everywhere", m.features[i].number)
		}
	}
	zero := *first
	zero.raw = make([]int64, len(first.raw))
	task.Zones = []farmdata.TreatmentZone{m.zone(0, &zero)}
	g, err := newRaster(m.features, m.cfg.Grid)
	if err != nil {
		return err
	}
	for i := range m.features {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		if err := g.draw(m.features, i); err != nil {
			return fmt.Errorf("feature %d: %w", m.features[i].number, err)
		}
	}
	grid := &farmdata.Grid{Type: 2, Name: "GRD00001", Zone: 0, North: g.south, East: g.west, CellNorth: g.cellNorth, CellEast: g.cellEast, Rows: int64(g.rows), Cols: int64(g.cols)}
	grid.Cells = func(yield func(*farmdata.Cell, error) bool) {
		cell := farmdata.Cell{Values: make([]farmdata.Value, len(first.raw))}
		for i, owner := range g.owners {
			cell.Row, cell.Col = int64(i/g.cols), int64(i%g.cols)
			for j := range cell.Values {
				cell.Values[j].Raw = 0
				if owner > 0 {
					cell.Values[j].Raw = m.features[owner-1].raw[j]
				}
			}
			if !yield(&cell, nil) {
				return
			}
		}
	}
	task.Grids = []*farmdata.Grid{grid}
	return nil
}
