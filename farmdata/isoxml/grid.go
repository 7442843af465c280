package isoxml

import (
	"encoding/binary"
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
		for _, grid := range task.Grids {
			if r.ctx.Err() != nil {
				return
			}
			r.openGrid(task, grid)
		}
	}
}

func (r *setReader) openGrid(task *farmdata.Task, grid *farmdata.Grid) {
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
	switch grid.Type {
	case 1:
		zones := map[int][]farmdata.Value{}
		for _, zone := range task.Zones {
			columns := r.zoneColumns(zone)
			for i, value := range zone.Values {
				zones[zone.Code] = append(zones[zone.Code], farmdata.Value{Column: &columns[i], Raw: value.Raw})
			}
		}
		grid.Cells = cells(f, grid, zones, r.cfg.MaxStream)
	case 2:
		i := slices.IndexFunc(task.Zones, func(z farmdata.TreatmentZone) bool { return z.Code == grid.Zone })
		if i < 0 || len(task.Zones[i].Values) == 0 {
			r.find(farmdata.KindReference, name, "no treatment zone says what the values of the grid are")
			return
		}
		if len(task.Zones[i].Values) > maxColumns {
			r.find(farmdata.KindLimit, name, "more values in a cell than allowed")
			return
		}
		grid.Columns = r.zoneColumns(task.Zones[i])
		grid.Cells = cells(f, grid, nil, r.cfg.MaxStream)
	default:
		r.find(farmdata.KindUnsupported, name, "type of the grid")
	}
}

// zoneColumns describes the values of a treatment zone.
func (r *setReader) zoneColumns(zone farmdata.TreatmentZone) []farmdata.Column {
	columns := make([]farmdata.Column, len(zone.Values))
	for i, value := range zone.Values {
		c := &columns[i]
		c.DDI, c.ElementID = value.DDI, value.ElementID
		r.describe("", c)
		if j := slices.IndexFunc(r.set.ValuePresentations, func(p farmdata.ValuePresentation) bool { return p.ID == value.Presentation }); j >= 0 {
			p := r.set.ValuePresentations[j]
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
		size := 1
		cell := farmdata.Cell{Zone: grid.Zone}
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
			cell.Row, cell.Col = number/grid.Cols, number%grid.Cols
			if grid.Type == 2 {
				for i := range cell.Values {
					cell.Values[i] = farmdata.Value{Column: &grid.Columns[i], Raw: int64(int32(binary.LittleEndian.Uint32(data[4*i:])))}
				}
			} else {
				cell.Zone = int(data[0])
				cell.Values = zones[cell.Zone]
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
