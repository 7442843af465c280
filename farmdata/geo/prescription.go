package geo

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/columns"
	"github.com/agrimill/agrimill/farmdata/internal/names"
)

// Prescription writes a map of what to apply: a Polygon for each cell of a grid, or a MultiPolygon for each treatment
// zone. Each has its tasks, field, zone, products and scaled values. Several tasks or products are one text with "; "
// between them; what is not known is null. A grid or zone without a place is a finding, and so are, once for a task, those that Unplaced
// finds.
func (w *Writer) Prescription(p *farmdata.Prescription) error {
	for _, task := range p.Tasks {
		w.unplaced(task)
	}
	if p.Set != nil && p.Set != w.set {
		w.set, w.names = p.Set, names.New(p.Set)
	}
	if p.Grid != nil {
		return w.cells(p)
	}
	head := w.head(p, nil)
	for i := range p.Zones {
		zone := &p.Zones[i]
		multi, finding := ZonePolygon(zone.TreatmentZone)
		if finding != nil {
			w.cfg.Finding(finding)
		}
		if len(multi) == 0 {
			continue
		}
		w.begin()
		w.multiPolygon(multi)
		w.raw(`,"properties":{"kind":"zone"`)
		_, _ = w.w.Write(head)
		w.layout(p, zone.Code, zone.Designator, zone.Amounts, zone.Products).write(w, zone.Amounts)
		w.raw("}}")
	}
	return w.failed()
}

// Unplaced is the finding that a task has treatment zones without polygons, such as that for a lost position; nil if it has none. The cells
// of a grid may be in the others.
func Unplaced(task *farmdata.Task) *farmdata.Finding {
	zones := names.Unplaced(task)
	if len(zones) == 0 {
		return nil
	}
	detail := fmt.Sprintf("treatment zones without polygons, which no map shows: %d", len(zones))
	for i := range zones {
		if of := names.Elsewhere(task, &zones[i]); len(of) > 0 {
			detail += fmt.Sprintf("; zone %d, %s", zones[i].Code, strings.Join(of, ", "))
		}
	}
	return &farmdata.Finding{Kind: farmdata.KindUnsupported, File: task.ID, Offset: -1, Record: -1, Detail: detail}
}

// unplaced tells once what Unplaced finds in a task.
func (w *Writer) unplaced(task *farmdata.Task) {
	if w.told[task] {
		return
	}
	w.told[task] = true
	if finding := Unplaced(task); finding != nil {
		w.cfg.Finding(finding)
	}
}

func (w *Writer) cells(p *farmdata.Prescription) error {
	grid := p.Grid
	if !grid.Valid() {
		w.cfg.Finding(Nowhere(grid))
		return w.failed()
	}
	head := w.head(p, grid)
	layouts := columns.Layouts[*layout]{Make: func(c *farmdata.Cell) *layout {
		return w.layout(p, c.Zone, names.Zone(p, c.Zone), c.Values, c.Products)
	}}
	for cell, err := range grid.Cells {
		if err != nil {
			if err := w.found(err); err != nil {
				return err
			}
			continue
		}
		w.begin()
		if ring, beyond := Rectangle(grid, cell); beyond != nil {
			w.multiPolygon([][][]Coordinates{{ring}, {beyond}})
		} else {
			w.raw(`"geometry":{"type":"Polygon","coordinates":[`)
			w.ring(ring)
			w.raw("]}")
		}
		w.raw(`,"properties":{"kind":"cell"`)
		_, _ = w.w.Write(head)
		w.raw(`,"row":`)
		w.integer(cell.Row)
		w.raw(`,"column":`)
		w.integer(cell.Col)
		layouts.Of(cell).write(w, cell.Values)
		w.raw("}}")
		if cell.Col == 0 && w.failed() != nil {
			return w.failed()
		}
	}
	return w.failed()
}

// head returns the properties that all cells or zones of a map have in common.
func (w *Writer) head(p *farmdata.Prescription, grid *farmdata.Grid) (b []byte) {
	if grid != nil {
		b = appendString(append(b, `,"grid":`...), grid.Name)
	}
	return w.attributes(b, names.Subject{Tasks: p.Tasks}, names.Prescribed(p, w.cfg.Add, false))
}

// layout is what cells of the same zone have in common.
type layout struct {
	properties []*property
	text       []byte // the properties of the zone, and of columns that it has no value for
}

func (w *Writer) layout(p *farmdata.Prescription, code int, name string, values []farmdata.Value, products []string) *layout {
	l := &layout{text: []byte(`,"zone":`)}
	if code < 0 {
		l.text = append(l.text, "null"...)
	} else {
		l.text = strconv.AppendInt(l.text, int64(code), 10)
	}
	if len(p.Tasks) > 0 {
		l.text = appendText(append(l.text, `,"zone_name":`...), name)
	}
	l.text = w.attributes(l.text, names.Subject{Products: products, Prescribed: true}, names.Prescribed(p, w.cfg.Add, true))
	placeholders, seen := w.placeholders(), map[*farmdata.Column]bool{}
	w.keys.Begin()
	for _, v := range values {
		p := w.property(v.Column)
		if seen[v.Column] {
			p.Key = nil // the first one counts
		}
		seen[v.Column] = true
		l.properties = append(l.properties, p)
		if p.placeholder >= 0 {
			placeholders[p.placeholder].null = nil
		}
	}
	for _, placeholder := range placeholders {
		l.text = append(l.text, placeholder.null...)
	}
	return l
}

func (l *layout) write(w *Writer, values []farmdata.Value) {
	_, _ = w.w.Write(l.text)
	for i, v := range values {
		if p := l.properties[i]; p.Key != nil {
			_, _ = w.w.Write(p.text)
			w.number(p.Value(v))
		}
	}
}
