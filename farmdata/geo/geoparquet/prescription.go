package geoparquet

import (
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/internal/columns"
	"github.com/agrimill/agrimill/farmdata/internal/names"
)

// WritePrescription writes a map of what to apply: a row for each cell of a grid, or for each treatment zone. The columns
// are task, task_name, field, field_name, zone, zone_name, product and product_name, of a grid also grid, row and
// column, and one for each kind of value, scaled, named by geo.Keys. Several tasks or products are one text with "; " between
// them; what is not known is null. The geometries are Polygons or MultiPolygons. A grid or zone without a place has a finding and no
// rows, also one that geo.Unplaced finds in the tasks. A grid of type 1 is read twice.
func WritePrescription(w io.Writer, p *farmdata.Prescription, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if p.Set != nil {
		cfg.Set = p.Set
	}
	for _, task := range p.Tasks {
		unplaced(task, cfg)
	}
	return writePrescriptions(w, []farmdata.Prescription{*p}, cfg)
}

// unplaced tells what geo.Unplaced finds in a task.
func unplaced(task *farmdata.Task, cfg Config) {
	if finding := geo.Unplaced(task); finding != nil && cfg.Finding != nil {
		cfg.Finding(finding)
	}
}

// writePrescriptions writes maps that are all grids, or all zones.
func writePrescriptions(w io.Writer, list []farmdata.Prescription, cfg Config) error {
	fields := parquet.Group{"zone": parquet.Optional(parquet.Int(64))}
	keys := &geo.Keys{Select: cfg.Columns, Finding: cfg.Finding}
	for i := range list {
		p := &list[i]
		addAttributes(fields, slices.Concat(names.Prescribed(p, cfg.Add, false), names.Prescribed(p, cfg.Add, true)))
		if len(p.Tasks) > 0 {
			fields["zone_name"] = text()
		}
		if p.Grid != nil {
			fields["grid"], fields["row"], fields["column"] = text(), parquet.Int(64), parquet.Int(64)
		}
		surveyPrescription(p, keys)
	}
	addValues(fields, keys)
	t, err := newTable(w, fields, cfg)
	if err != nil {
		return err
	}
	for i := range list {
		s := sheet{table: t, prescription: &list[i], keys: keys}
		write := s.zones
		if list[i].Grid != nil {
			write = s.grid
		}
		if err := write(); err != nil {
			return err
		}
	}
	return t.close(keys)
}

// sheet is the part of a table that has a prescription.
type sheet struct {
	*table
	prescription *farmdata.Prescription
	keys         *geo.Keys
}

// layout is what cells of the same zone have in common.
type layout struct {
	cells  []*cell
	common []constant
}

// surveyPrescription finds out what columns a map has.
func surveyPrescription(p *farmdata.Prescription, keys *geo.Keys) {
	survey := func(values []farmdata.Value) {
		keys.Begin()
		for _, v := range values {
			keys.Key(v.Column)
		}
	}
	for i := range p.Zones {
		survey(p.Zones[i].Amounts)
	}
	grid := p.Grid
	if grid == nil || !grid.Valid() {
		return
	}
	if grid.Type == 2 && len(grid.Columns) > 0 {
		keys.Begin()
		for i := range grid.Columns {
			keys.Key(&grid.Columns[i])
		}
		return
	}
	layouts := columns.Layouts[struct{}]{Make: func(c *farmdata.Cell) (none struct{}) { survey(c.Values); return none }}
	last := -1
	for cell, err := range grid.Cells {
		if err == nil && (grid.Type != 1 || cell.Zone != last) { // an error is told when it is written
			last = cell.Zone
			layouts.Of(cell)
		}
	}
}

// layout makes the layout of a zone.
func (s *sheet) layout(code int, name string, values []farmdata.Value, products []string) *layout {
	p, l := s.prescription, &layout{}
	s.begin()
	if code >= 0 {
		s.set("zone", parquet.Int64Value(int64(code)))
	}
	s.setText("zone_name", name)
	s.setAttributes(names.Subject{Tasks: p.Tasks}, names.Prescribed(p, s.cfg.Add, false))
	s.setAttributes(names.Subject{Products: products, Prescribed: true}, names.Prescribed(p, s.cfg.Add, true))
	if p.Grid != nil {
		s.setText("grid", p.Grid.Name)
	}
	l.common = s.common()
	s.keys.Begin()
	for _, v := range values {
		l.cells = append(l.cells, s.cell(s.keys, v.Column))
	}
	return l
}

// start starts a row with its zone and its values.
func (s *sheet) start(l *layout, values []farmdata.Value) {
	s.beginWith(l.common)
	for i, v := range values {
		s.putValue(l.cells[i], v)
	}
}

func (s *sheet) grid() error {
	grid := s.prescription.Grid
	if !grid.Valid() {
		return s.found(geo.Nowhere(grid))
	}
	rows, cols := s.columns["row"], s.columns["column"]
	layouts := columns.Layouts[*layout]{Make: func(c *farmdata.Cell) *layout {
		return s.layout(c.Zone, names.Zone(s.prescription, c.Zone), c.Values, c.Products)
	}}
	for cell, err := range grid.Cells {
		if err != nil {
			if err := s.found(err); err != nil {
				return err
			}
			continue
		}
		s.start(layouts.Of(cell), cell.Values)
		s.put(rows, parquet.Int64Value(cell.Row))
		s.put(cols, parquet.Int64Value(cell.Col))
		var err error
		if ring, beyond := geo.Rectangle(grid, cell); beyond != nil {
			err = s.multiPolygon([][][]geo.Coordinates{{ring}, {beyond}})
		} else {
			err = s.end("Polygon", polygon(nil, [][]geo.Coordinates{ring}), ring)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *sheet) zones() error {
	for i := range s.prescription.Zones {
		zone := &s.prescription.Zones[i]
		multi, finding := geo.ZonePolygon(zone.TreatmentZone)
		if finding != nil {
			if err := s.found(finding); err != nil {
				return err
			}
		}
		if len(multi) == 0 {
			continue
		}
		s.start(s.layout(zone.Code, zone.Designator, zone.Amounts, zone.Products), zone.Amounts)
		if err := s.multiPolygon(multi); err != nil {
			return err
		}
	}
	return nil
}
