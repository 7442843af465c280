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
	for i := range r.set.Tasks {
		task := &r.set.Tasks[i]
		zones := &zones{of: task, descriptions: r.descriptions}
		for _, grid := range task.Grids {
			if r.ctx.Err() != nil {
				return
			}
			r.openGrid(zones, grid)
		}
	}
}

func (r *setReader) openGrid(zones *zones, grid *farmdata.Grid) {
	grid.Cells = func(func(*farmdata.Cell, error) bool) {}
	name := path.Join(r.set.Path, grid.Name+".BIN")
	r.named[strings.ToLower(grid.Name)] = true
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
		if n := bytesOf(f, grid); n > 1 {
			r.find(farmdata.KindUnreadable, name, fmt.Sprintf("the grid has %d bytes in each cell, and one of type 1 has one", n))
			return
		}
		var prescribed map[int]farmdata.PrescribedZone
		grid.Columns, prescribed = zones.prescribed()
		grid.Cells = cells(f, grid, prescribed, r.cfg.MaxStream)
	case 2:
		columns, products := zones.columnsOf(grid.Zone)
		if len(columns) == 0 {
			r.find(farmdata.KindUnreadable, name, "no treatment zone says what the values of the grid are")
			return
		}
		if len(columns) > maxColumns {
			r.find(farmdata.KindLimit, name, "more values in a cell than allowed")
			return
		}
		grid.Columns = columns
		if n := bytesOf(f, grid); n == 1 || n > 0 && n%4 == 0 && n/4 != int64(len(columns)) {
			// Each value would be that of another cell, or of another kind.
			r.find(farmdata.KindUnreadable, name, fmt.Sprintf("the grid has %d bytes in each cell, and its treatment zone says what %d values of 4 bytes are", n, len(columns)))
			return
		}
		grid.Cells = cells(f, grid, map[int]farmdata.PrescribedZone{grid.Zone: {Products: products}}, r.cfg.MaxStream)
	default:
		r.find(farmdata.KindUnreadable, name, "cells of a grid whose type is neither 1 nor 2")
	}
}

// bytesOf returns how many bytes each cell of a grid has by the size of its file; 0 if that is no whole number.
func bytesOf(f file, grid *farmdata.Grid) int64 {
	if cells := grid.Rows * grid.Cols; f.size%cells == 0 {
		return f.size / cells
	}
	return 0
}

// zones are the treatment zones of a task, worked out once for all of its grids. Of zones with the same code the first
// one counts.
type zones struct {
	of           *farmdata.Task
	descriptions *farmdata.Descriptions
	places       map[int]int                     // in of.Zones, by code
	described    map[int][]farmdata.Column       // of zones of grids of type 2, by code
	columns      []farmdata.Column               // of grids of type 1
	byCode       map[int]farmdata.PrescribedZone // for grids of type 1; nil: not worked out
}

// columnsOf returns the columns of the zone with a code, and the products of their values; nil if it names none.
func (z *zones) columnsOf(code int) (columns []farmdata.Column, products []string) {
	if z.places == nil {
		z.places, z.described = map[int]int{}, map[int][]farmdata.Column{}
		for i, zone := range slices.Backward(z.of.Zones) {
			z.places[zone.Code] = i
		}
	}
	i, ok := z.places[code]
	if !ok || code < 0 {
		return nil, nil
	}
	zone := &z.of.Zones[i]
	columns, known := z.described[code]
	if !known {
		columns = z.descriptions.Zone(zone)
		z.described[code] = columns
	}
	if slices.ContainsFunc(zone.Values, func(v farmdata.ZoneValue) bool { return v.ProductID != "" }) {
		for _, v := range zone.Values {
			products = append(products, v.ProductID)
		}
	}
	return columns, products
}

// prescribed returns the zones by their codes, and their columns, which are those of each grid of type 1.
func (z *zones) prescribed() ([]farmdata.Column, map[int]farmdata.PrescribedZone) {
	if z.byCode == nil {
		var list []farmdata.PrescribedZone
		z.columns, list = z.descriptions.Zones(z.of.Zones)
		z.byCode = map[int]farmdata.PrescribedZone{}
		for _, zone := range slices.Backward(list) {
			z.byCode[zone.Code] = zone
		}
	}
	return z.columns, z.byCode
}

// cells decodes the binary file of a grid.
func cells(f file, grid *farmdata.Grid, zones map[int]farmdata.PrescribedZone, limit int64) iter.Seq2[*farmdata.Cell, error] {
	return func(yield func(*farmdata.Cell, error) bool) {
		s, finding := openStream(f, limit)
		if finding != nil {
			yield(nil, finding)
			return
		}
		defer s.close()
		size, told := 1, false
		cell := farmdata.Cell{Zone: grid.Zone, Col: -1, Products: zones[grid.Zone].Products}
		if grid.Type == 2 {
			size = 4 * len(grid.Columns)
			cell.Values = make([]farmdata.Value, len(grid.Columns))
		}
		total := grid.Rows * grid.Cols
		for number := range total {
			if s.fill(size); len(s.next) < size {
				finding := s.ended(number)
				if finding == nil || finding.Kind == farmdata.KindEmpty { // a proper end, too early
					finding = &farmdata.Finding{Kind: farmdata.KindCut, File: f.path, Offset: s.offset, Record: number, Detail: "the file ends before the grid"}
				}
				yield(nil, finding)
				return
			}
			data := s.next[:size]
			s.skip(size)
			if cell.Col++; cell.Col == grid.Cols {
				cell.Row, cell.Col = cell.Row+1, 0
			}
			if grid.Type == 2 {
				for i := range cell.Values {
					cell.Values[i] = farmdata.Value{Column: &grid.Columns[i], Raw: int64(int32(binary.LittleEndian.Uint32(data[4*i:])))}
				}
			} else if number == 0 || cell.Zone != int(data[0]) {
				cell.Zone = int(data[0])
				zone, there := zones[cell.Zone]
				cell.Values, cell.Products = zone.Amounts, zone.Products
				if !there && !told {
					told = true
					finding := &farmdata.Finding{Kind: farmdata.KindReference, File: f.path, Offset: s.offset - int64(size), Record: number,
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
		if s.fill(1); len(s.next) > 0 {
			yield(nil, &farmdata.Finding{Kind: farmdata.KindSurplus, File: f.path, Offset: s.offset, Record: -1, Detail: "bytes behind the last cell"})
		} else if finding := s.ended(total); finding != nil {
			yield(nil, finding)
		}
	}
}
