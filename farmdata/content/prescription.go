package content

import (
	"cmp"
	"context"
	"math"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/internal/columns"
	"github.com/agrimill/agrimill/farmdata/internal/names"
)

// Grid is the summary of a prescription map of cells. Tasks that name the same grid and mean the same by it have one.
type Grid struct {
	Name string `json:"name"`
	// Tasks and Fields are IDs.
	Tasks  []string `json:"tasks"`
	Fields []string `json:"fields"`
	// Type 1 has codes of treatment zones, type 2 has values.
	Type int   `json:"type"`
	Rows int64 `json:"rows"`
	Cols int64 `json:"columns"`
	// Cells is how many could be read.
	Cells int64 `json:"cells"`
	// Values are what to apply.
	Values []Prescribed `json:"values"`
	// Box is nil if the grid has no place on Earth.
	Box      *Box      `json:"box,omitempty"`
	Findings []Finding `json:"findings"`
}

// Zone is the summary of a treatment zone that has polygons, or that no grid shows, such as the one for a lost position.
type Zone struct {
	// Code is that of the zone, -1 if unknown; Task and Field are IDs.
	Code int    `json:"zone"`
	Name string `json:"name"`
	// Elsewhere is what the zone is for beside its place: default (places without a zone), position lost, outside (of the field).
	Elsewhere []string `json:"elsewhere"`
	Task      string   `json:"task"`
	Field     string   `json:"field,omitempty"`
	// Values are what to apply, each once.
	Values []Prescribed `json:"values"`
	// Box is nil if the zone has no place on Earth.
	Box *Box `json:"box,omitempty"`
}

// Prescribed is the summary of the values of one DDI of one device element in a prescription map, whatever the zone.
type Prescribed struct {
	Column
	// Products are the IDs of what the values are of.
	Products []string `json:"products"`
}

// rates is a map for a picture: areas of a prescription with the first of its values, or lines of a track.
type rates struct {
	lines bool
	name  string
	about string // behind a value
	areas []area
	// more is how many other values the map has; plain says that a grid has an outline only.
	more  int
	plain bool
	Column
}

// area is a part of a map with one value; NaN if it has none.
type area struct {
	rings [][]latLon
	rate  float64
}

const (
	// maxBlocks is how many areas the pictures of all grids of a summary have, blocksAcross how many one has in each direction.
	maxBlocks    = 50_000
	blocksAcross = 100
)

// prescriptions summarizes the prescription maps, and takes what their picture needs from blocks. The error is that of ctx.
func (s *Set) prescriptions(ctx context.Context, set *farmdata.Set, blocks *int, noted *notes) error {
	known := names.New(set)
	for _, p := range set.Prescriptions() {
		if p.Grid == nil {
			s.zones(&p, known)
		} else if err := s.grid(ctx, &p, known, blocks, noted); err != nil {
			return err
		}
	}
	var d *farmdata.Descriptions
	for i := range set.Tasks {
		task := &set.Tasks[i]
		unplaced := names.Unplaced(task)
		if len(unplaced) == 0 {
			continue
		}
		if d == nil {
			d = set.Descriptions()
		}
		_, zones := d.Zones(unplaced)
		for _, zone := range zones {
			s.Zones = append(s.Zones, summarizeZone(task, &zone))
		}
	}
	return ctx.Err()
}

// summarizeZone summarizes a treatment zone without its place.
func summarizeZone(task *farmdata.Task, zone *farmdata.PrescribedZone) Zone {
	z := Zone{
		Code: zone.Code, Name: zone.Designator, Elsewhere: append([]string{}, names.Elsewhere(task, zone.TreatmentZone)...), Task: task.ID, Field: task.FieldID,
		Values: make([]Prescribed, 0, len(zone.Amounts)),
	}
	for i, v := range zone.Amounts {
		one := newStatistic(v.Column)
		one.add(v)
		amount := Prescribed{Column: one.summary(), Products: []string{}}
		if zone.Products != nil && zone.Products[i] != "" {
			amount.Products = zone.Products[i : i+1 : i+1]
		}
		z.Values = append(z.Values, amount)
	}
	return z
}

// about says which tasks, fields and products a map is of, behind a value.
func about(known *names.Directory, of names.Subject) (text string) {
	for _, attribute := range []string{names.Task, names.Field, names.Product} {
		if r := known.Of(attribute, of); r.ID != "" {
			text += ", " + cmp.Or(r.Name, r.ID)
		}
	}
	return text
}

func (s *Set) grid(ctx context.Context, p *farmdata.Prescription, known *names.Directory, blocks *int, noted *notes) error {
	grid := p.Grid
	g := Grid{Name: grid.Name, Tasks: []string{}, Type: grid.Type, Rows: grid.Rows, Cols: grid.Cols, Findings: []Finding{}}
	var fields names.Unique
	for _, task := range p.Tasks {
		g.Tasks = append(g.Tasks, task.ID)
		fields.Add(task.FieldID)
	}
	g.Fields = append([]string{}, fields.List...)
	if grid.Valid() {
		south, north := corner(grid, 0, 0), corner(grid, grid.Rows, grid.Cols)
		g.Box = g.Box.add(south).add(north)
		if north.east < south.east { // across the 180th meridian
			g.Box = g.Box.around()
		}
		s.outlines = append(s.outlines, area{rings: [][]latLon{{south, {south.north, north.east}, north, {north.north, south.east}}}})
	}
	values := prescribed{index: map[string]int{}}
	values.layouts.Make = values.layout
	picture := newRaster(grid, blocks)
	defer func() {
		g.Values = values.summary()
		s.Grids = append(s.Grids, g)
		if len(g.Values) > 0 && g.Box != nil {
			s.rates = append(s.rates, picture.rates(g.Values, about(known, names.Subject{Tasks: p.Tasks, Products: g.Values[0].Products, Prescribed: true})))
		}
	}()
	for cell, err := range grid.Cells {
		if err != nil {
			if err := noted.add(&g.Findings, err); err != nil {
				return err
			}
			continue
		}
		if g.Cells++; g.Cells%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		picture.add(cell, values.add(cell, grid.Type == 1))
	}
	return nil
}

func (s *Set) zones(p *farmdata.Prescription, known *names.Directory) {
	task := p.Tasks[0]
	var shown *statistic // of what the picture has
	var products names.Unique
	others := map[*farmdata.Column]bool{}
	picture := rates{name: task.ID}
	for _, zone := range p.Zones {
		z := summarizeZone(task, &zone)
		a := area{rate: math.NaN()}
		for i, v := range zone.Amounts {
			if shown == nil {
				shown = &statistic{column: v.Column, min: math.Inf(1), max: math.Inf(-1)}
			}
			if c := shown.column; math.IsNaN(a.rate) && v.Column.DDI == c.DDI && v.Column.ElementID == c.ElementID && v.Column.Unit == c.Unit {
				a.rate = v.Scaled()
				shown.add(v)
				products.Add(cmp.Or(z.Values[i].Products...))
			} else {
				others[v.Column] = true
			}
		}
		for _, polygon := range zone.Polygons {
			a.rings = append(a.rings, outlines(polygon, &z.Box)...)
		}
		picture.areas = append(picture.areas, a)
		s.outlines = append(s.outlines, a)
		s.Zones = append(s.Zones, z)
	}
	if shown != nil {
		picture.Column, picture.more = shown.summary(), len(others)
	}
	picture.about = about(known, names.Subject{Tasks: p.Tasks, Products: products.List, Prescribed: true})
	s.rates = append(s.rates, picture)
}

// outlines returns the places of a polygon's rings, and extends the box that they are in.
func outlines(polygon farmdata.Polygon, box **Box) (rings [][]latLon) {
	for _, ring := range polygon.Rings {
		var outline []latLon
		for _, point := range ring.Points {
			if at := (latLon{point.North, point.East}); point.Valid() {
				*box = (*box).add(at)
				if last := len(outline) - 1; last >= 0 && math.Abs(outline[last].east-at.east) > 180 {
					*box = (*box).around()
				}
				outline = append(outline, at)
			}
		}
		rings = append(rings, outline)
	}
	return rings
}

// prescribed are the values of a prescription map: one for each name that geo.Keys gives their columns.
type prescribed struct {
	keys    geo.Keys
	list    []amounts
	index   map[string]int
	layouts columns.Layouts[*layout]
	last    *layout // of the last cell
}

type amounts struct {
	statistic
	products names.Unique
}

// layout is what cells of the same zone have in common.
type layout struct {
	zone   int
	places []int   // in list
	first  float64 // the value of the first column that the map has, in the last cell; NaN if there is none
}

// add counts the values of a cell, and returns that of the first column that the map has; NaN if there is none. Same means
// that all cells of a zone have the same values.
func (p *prescribed) add(cell *farmdata.Cell, same bool) float64 {
	l := p.last
	if same && l != nil && l.zone == cell.Zone {
		for _, place := range l.places {
			p.list[place].count++
		}
		return l.first
	}
	l = p.layouts.Of(cell)
	p.last, l.first = l, math.NaN()
	for i, v := range cell.Values {
		scaled := p.list[l.places[i]].add(v)
		if l.places[i] == 0 && math.IsNaN(l.first) {
			l.first = scaled
		}
	}
	return l.first
}

func (p *prescribed) layout(cell *farmdata.Cell) *layout {
	l := &layout{zone: cell.Zone}
	p.keys.Begin()
	for i, v := range cell.Values {
		name := p.keys.Name(v.Column)
		at, ok := p.index[name]
		if !ok {
			at = len(p.list)
			p.index[name] = at
			p.list = append(p.list, amounts{statistic: newStatistic(v.Column)})
		}
		l.places = append(l.places, at)
		if i < len(cell.Products) {
			p.list[at].products.Add(cell.Products[i])
		}
	}
	return l
}

func (p *prescribed) summary() []Prescribed {
	out := make([]Prescribed, 0, len(p.list))
	for i := range p.list {
		out = append(out, Prescribed{p.list[i].summary(), append([]string{}, p.list[i].products.List...)})
	}
	return out
}

// raster makes the picture of a grid: blocks of cells with their mean. Cells come row by row.
type raster struct {
	grid  *farmdata.Grid
	side  int64 // cells of a block in each direction
	row   int64 // of blocks, as col
	col   int64
	line  []block
	areas []area
	left  *int // how many blocks there still may be
	plain bool // there were too many
}

type block struct {
	sum   float64
	count int64
}

func newRaster(grid *farmdata.Grid, left *int) *raster {
	return &raster{grid: grid, side: max(1, (max(grid.Rows, grid.Cols)+blocksAcross-1)/blocksAcross), left: left}
}

func (r *raster) add(cell *farmdata.Cell, rate float64) {
	if r.plain || math.IsNaN(rate) || math.IsInf(rate, 0) {
		return
	}
	// Divisions would take most of the time.
	if cell.Row < r.row*r.side || cell.Row >= (r.row+1)*r.side {
		r.flush()
		r.row = cell.Row / r.side
	}
	if cell.Col < r.col*r.side || cell.Col >= (r.col+1)*r.side || r.col >= int64(len(r.line)) {
		r.col = cell.Col / r.side
		for int64(len(r.line)) <= r.col {
			r.line = append(r.line, block{})
		}
	}
	b := &r.line[r.col]
	b.sum, b.count = b.sum+rate, b.count+1
}

// flush ends a row of blocks.
func (r *raster) flush() {
	for i, b := range r.line {
		if b.count == 0 {
			continue
		}
		if *r.left--; *r.left < 0 {
			*r.left += len(r.areas) + 1
			r.plain, r.areas = true, nil
			break
		}
		south, north := r.corner(r.row, int64(i)), r.corner(r.row+1, int64(i)+1)
		r.areas = append(r.areas, area{[][]latLon{{south, {south.north, north.east}, north, {north.north, south.east}}}, b.sum / float64(b.count)})
	}
	r.line = r.line[:0]
}

// corner returns the south west corner of a block, within the grid.
func (r *raster) corner(row, col int64) latLon {
	return corner(r.grid, min(row*r.side, r.grid.Rows), min(col*r.side, r.grid.Cols))
}

func corner(grid *farmdata.Grid, row, col int64) latLon {
	north, east := grid.Corner(row, col)
	return latLon{north, east}
}

// rates returns the picture of a grid with values.
func (r *raster) rates(values []Prescribed, about string) rates {
	r.flush()
	return rates{name: r.grid.Name, about: about, areas: r.areas, Column: values[0].Column, more: len(values) - 1, plain: r.plain}
}
