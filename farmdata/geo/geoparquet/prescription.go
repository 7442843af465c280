package geoparquet

import (
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/internal/names"
)

// WritePrescription writes a map of what to apply: a row for each cell of a grid, or for each treatment zone. The columns
// are task, task_name, field, field_name, zone, zone_name, product and product_name, of a grid also grid, row and
// column, and one for each kind of value, scaled, named by geo.Keys. Several tasks or products are one text with "; " between
// them; what is not known is null. The geometries are Polygons or MultiPolygons. A grid or zone without a place has a finding and no
// rows. A grid of type 1 is read twice.
func WritePrescription(w io.Writer, p *farmdata.Prescription, cfg Config) error {
	fields := parquet.Group{"zone": parquet.Optional(parquet.Int(64))}
	if len(p.Tasks) > 0 {
		for _, name := range []string{"task", "task_name", "field", "field_name", "zone_name", "product", "product_name"} {
			fields[name] = parquet.Optional(text())
		}
	}
	s := sheet{prescription: p, names: names.New(p.Set), layouts: map[int]*layout{}}
	if p.Grid != nil {
		fields["grid"], fields["row"], fields["column"] = text(), parquet.Int(64), parquet.Int(64)
		s.surveyGrid(p.Grid)
	} else {
		for i := range p.Zones {
			s.survey(p.Zones[i].Amounts)
		}
	}
	for name := range s.keys.Descriptions() {
		fields[name] = optionalDouble()
	}
	s.table = newTable(w, fields)
	s.task, s.field = s.names.Tasks(p.Tasks), s.names.Fields(p.Tasks)
	err := error(nil)
	if p.Grid != nil {
		err = s.cells(cfg)
	} else {
		err = s.zones(cfg)
	}
	if err != nil {
		return err
	}
	return s.close(&s.keys)
}

// WriteGrid writes the cells of a grid as WritePrescription does, but without its tasks, and so without the names of anything.
func WriteGrid(w io.Writer, grid *farmdata.Grid, cfg Config) error {
	return WritePrescription(w, &farmdata.Prescription{Grid: grid}, cfg)
}

// sheet is the table of a prescription.
type sheet struct {
	*table
	prescription *farmdata.Prescription
	names        *names.Directory
	keys         geo.Keys
	layouts      map[int]*layout
	task, field  names.Reference
}

// layout is what cells of the same zone have in common.
type layout struct {
	columns  []*farmdata.Column
	products []string
	common   []parquet.Value // what does not differ from cell to cell
	leaves   []parquet.LeafColumn
}

// surveyGrid finds out what columns the cells of a grid have.
func (s *sheet) surveyGrid(grid *farmdata.Grid) {
	if grid.Type == 2 && len(grid.Columns) > 0 || !grid.Valid() {
		for i := range grid.Columns {
			s.keys.Name(&grid.Columns[i])
		}
		return
	}
	seen := map[int][]farmdata.Value{}
	for cell, err := range grid.Cells {
		if err != nil {
			continue // told when it is written
		}
		if known, ok := seen[cell.Zone]; !ok || !slices.EqualFunc(known, cell.Values, sameColumn) {
			seen[cell.Zone] = slices.Clone(cell.Values)
			s.survey(cell.Values)
		}
	}
}

func (s *sheet) survey(values []farmdata.Value) {
	s.keys.Begin()
	for _, v := range values {
		s.keys.Name(v.Column)
	}
}

func sameColumn(a, b farmdata.Value) bool { return a.Column == b.Column }

// layout makes the layout of a zone.
func (s *sheet) layout(code int, values []farmdata.Value, products []string) *layout {
	l := &layout{products: products}
	s.begin()
	if code >= 0 {
		s.set("zone", parquet.Int64Value(int64(code)))
	}
	s.setText("zone_name", names.Zone(s.prescription, code))
	for name, r := range map[string]names.Reference{"task": s.task, "field": s.field, "product": s.names.Products(products)} {
		s.setText(name, r.ID)
		s.setText(name+"_name", r.Name)
	}
	if grid := s.prescription.Grid; grid != nil {
		s.set("grid", parquet.ByteArrayValue([]byte(grid.Name)))
	}
	for _, v := range s.row {
		if !v.IsNull() {
			l.common = append(l.common, v)
		}
	}
	s.rows = s.rows[:len(s.rows)-1] // it was no row, only its beginning
	s.keys.Begin()
	for _, v := range values {
		l.columns = append(l.columns, v.Column)
		l.leaves = append(l.leaves, s.columns[s.keys.Name(v.Column)])
	}
	return l
}

// fits reports whether a row is one of those that the layout is of.
func (l *layout) fits(values []farmdata.Value, products []string) bool {
	return len(values) == len(l.columns) && slices.Equal(products, l.products) &&
		slices.EqualFunc(values, l.columns, func(v farmdata.Value, c *farmdata.Column) bool { return v.Column == c })
}

// start starts a row with its zone and its values.
func (s *sheet) start(code int, values []farmdata.Value, products []string) {
	l := s.layouts[code]
	if l == nil || !l.fits(values, products) {
		l = s.layout(code, values, products)
		s.layouts[code] = l
	}
	s.begin()
	for _, v := range l.common {
		s.row[v.Column()] = v
	}
	for i, v := range values {
		s.put(&l.leaves[i], parquet.DoubleValue(v.Scaled()))
	}
}

func (s *sheet) cells(cfg Config) error {
	grid := s.prescription.Grid
	if !grid.Valid() {
		return found(cfg, geo.Nowhere(grid))
	}
	rows, columns := s.columns["row"], s.columns["column"]
	for cell, err := range grid.Cells {
		if err != nil {
			if err := found(cfg, err); err != nil {
				return err
			}
			continue
		}
		s.start(cell.Zone, cell.Values, cell.Products)
		s.put(&rows, parquet.Int64Value(cell.Row))
		s.put(&columns, parquet.Int64Value(cell.Col))
		ring := geo.Rectangle(grid, cell)
		if err := s.end("Polygon", polygon(nil, [][]geo.Coordinates{ring}), ring); err != nil {
			return err
		}
	}
	return nil
}

func (s *sheet) zones(cfg Config) error {
	for i := range s.prescription.Zones {
		zone := &s.prescription.Zones[i]
		multi, finding := geo.ZonePolygon(zone.TreatmentZone)
		if finding != nil {
			if err := found(cfg, finding); err != nil {
				return err
			}
		}
		if len(multi) == 0 {
			continue
		}
		s.start(zone.Code, zone.Amounts, zone.Products)
		if err := s.multiPolygon(multi); err != nil {
			return err
		}
	}
	return nil
}
