package isoxml

import (
	"encoding/binary"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// addGrids opens the grids of the tasks. A grid that cannot be read is given
// without cells.
func (r *setReader) addGrids() {
	drawn := 0
	for i := range r.set.Tasks {
		task := &r.set.Tasks[i]
		for _, zone := range task.Zones {
			if slices.ContainsFunc(zone.Polygons, func(p farmdata.Polygon) bool { return len(p.Rings) > 0 }) {
				drawn++
			}
		}
		zones := &zones{reader: r, of: task}
		for _, grid := range task.Grids {
			if r.ctx.Err() != nil {
				return
			}
			r.openGrid(zones, grid)
		}
	}
	if drawn > 0 {
		r.find(farmdata.KindUnsupported, path.Join(r.set.Path, "TASKDATA.XML"), fmt.Sprintf("treatment zones as polygons, which no map shows: %d", drawn))
	}
}

func (r *setReader) openGrid(zones *zones, grid *farmdata.Grid) {
	grid.Cells = func(func(*farmdata.Cell, error) bool) {}
	name := path.Join(r.set.Path, grid.Name+".BIN")
	f, ok := r.files[strings.ToLower(grid.Name)+".bin"]
	switch {
	case !ok:
		r.find(farmdata.KindMissing, name, "cells of the grid")
		return
	case grid.Rows <= 0 || grid.Cols <= 0 || grid.Rows > (1<<62)/grid.Cols:
		r.find(farmdata.KindValue, name, "size of the grid")
		return
	}
	if !grid.Valid() {
		r.find(farmdata.KindPosition, name, "grid has no place on Earth, because of its corner or the size of its cells")
	}
	switch grid.Type {
	case 1:
		var values map[int][]farmdata.Value
		grid.Columns, values = zones.values()
		grid.Cells = cells(f, grid, values, r.cfg.MaxStream)
	case 2:
		columns := zones.columnsOf(grid.Zone)
		if len(columns) == 0 {
			r.find(farmdata.KindUnreadable, name, "no treatment zone says what the values of the grid are")
			return
		}
		if len(columns) > maxColumns {
			r.find(farmdata.KindLimit, name, "more values in a cell than allowed")
			return
		}
		grid.Columns = columns
		grid.Cells = cells(f, grid, nil, r.cfg.MaxStream)
	default:
		r.find(farmdata.KindUnreadable, name, "cells of a grid whose type is neither 1 nor 2")
	}
}

// zones are the treatment zones of a task, worked out once for all of its grids.
type zones struct {
	reader  *setReader
	of      *farmdata.Task
	columns map[int][]farmdata.Column // of zones of grids of type 2, by code
	places  map[int]int               // of the first zone with a code
	all     []farmdata.Column         // of grids of type 1
	byCode  map[int][]farmdata.Value  // of all zones; nil: not worked out
}

// columnsOf returns the columns of the zone with a code.
func (z *zones) columnsOf(code int) []farmdata.Column {
	if z.columns == nil {
		z.columns, z.places = map[int][]farmdata.Column{}, map[int]int{}
		for i, zone := range slices.Backward(z.of.Zones) {
			z.places[zone.Code] = i
		}
	}
	columns, known := z.columns[code]
	if i, there := z.places[code]; there && !known && code >= 0 {
		columns = z.reader.zoneColumns(z.of.Zones[i])
		z.columns[code] = columns
	}
	return columns
}

// values returns the values of the zones by their codes. Zones share the columns, which are those of each grid.
func (z *zones) values() ([]farmdata.Column, map[int][]farmdata.Value) {
	if z.byCode != nil {
		return z.all, z.byCode
	}
	type kind struct {
		ddi                   farmdata.DDI
		element, presentation string
		again                 int // of those in one zone
	}
	columns := map[kind]int{}
	type amount struct {
		zone, column int
		raw          int64
	}
	var amounts []amount
	for _, zone := range z.of.Zones {
		seen := map[kind]int{}
		for i, column := range z.reader.zoneColumns(zone) {
			value := zone.Values[i]
			k := kind{ddi: value.DDI, element: value.ElementID, presentation: value.Presentation}
			seen[k]++
			k.again = seen[k]
			if _, ok := columns[k]; !ok {
				columns[k] = len(z.all)
				z.all = append(z.all, column)
			}
			if !value.Missing {
				amounts = append(amounts, amount{zone.Code, columns[k], value.Raw})
			}
		}
	}
	z.byCode = map[int][]farmdata.Value{}
	for _, zone := range z.of.Zones {
		z.byCode[zone.Code] = nil // it is there, also without values
	}
	for _, a := range amounts {
		z.byCode[a.zone] = append(z.byCode[a.zone], farmdata.Value{Column: &z.all[a.column], Raw: a.raw})
	}
	return z.all, z.byCode
}

// zoneColumns describes the values of a treatment zone.
func (r *setReader) zoneColumns(zone farmdata.TreatmentZone) []farmdata.Column {
	columns := make([]farmdata.Column, len(zone.Values))
	for i, value := range zone.Values {
		c := &columns[i]
		c.DDI, c.ElementID = value.DDI, value.ElementID
		r.descriptions.Describe(c) // that no device has the element was found already
		if p, ok := r.presentations[value.Presentation]; ok {
			c.Unit, c.Scale, c.Offset, c.Decimals = p.Unit, p.Scale, p.Offset, p.Decimals
		}
	}
	return columns
}

// cells decodes the binary file of a grid.
func cells(f file, grid *farmdata.Grid, zones map[int][]farmdata.Value, limit int64) iter.Seq2[*farmdata.Cell, error] {
	return func(yield func(*farmdata.Cell, error) bool) {
		s, finding := openStream(f, limit)
		if finding != nil {
			yield(nil, finding)
			return
		}
		defer s.close()
		size, told := 1, false
		cell := farmdata.Cell{Zone: grid.Zone, Col: -1}
		if grid.Type == 2 {
			size = 4 * len(grid.Columns)
			cell.Values = make([]farmdata.Value, len(grid.Columns))
		}
		total := grid.Rows * grid.Cols
		for number := range total {
			s.fill(size)
			if s.end-s.start < size {
				finding := s.ended(number)
				if finding == nil { // a proper end, too early
					finding = &farmdata.Finding{Kind: farmdata.KindCut, File: f.path, Offset: s.offset(), Record: number, Detail: "the file ends before the grid"}
				}
				yield(nil, finding)
				return
			}
			data := s.buf[s.start : s.start+size]
			s.start += size
			if cell.Col++; cell.Col == grid.Cols {
				cell.Row, cell.Col = cell.Row+1, 0
			}
			if grid.Type == 2 {
				for i := range cell.Values {
					cell.Values[i] = farmdata.Value{Column: &grid.Columns[i], Raw: int64(int32(binary.LittleEndian.Uint32(data[4*i:])))}
				}
			} else {
				var there bool
				cell.Zone = int(data[0])
				cell.Values, there = zones[cell.Zone]
				if !there && !told {
					told = true
					finding := &farmdata.Finding{Kind: farmdata.KindReference, File: f.path, Offset: s.offset() - int64(size), Record: number,
						Detail: "zone of a cell that its task does not have, here and maybe in later cells"}
					if !yield(nil, finding) {
						return
					}
				}
			}
			if !yield(&cell, nil) {
				return
			}
		}
		if s.fill(1); s.end > s.start {
			yield(nil, &farmdata.Finding{Kind: farmdata.KindSurplus, File: f.path, Offset: s.offset(), Record: -1, Detail: "bytes behind the last cell"})
		} else if finding := s.ended(total); finding != nil {
			yield(nil, finding)
		}
	}
}
