package farmdata

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
)

// Prescription is one map of what to apply: a grid, or the treatment zones of a task that have polygons.
type Prescription struct {
	// Set is what the map is of.
	Set *Set
	// Tasks are those whose map it is, in the order of the data. There are several if they name the same grid, at
	// the same place, and its cells mean the same in all of them.
	Tasks []*Task
	// Grid is nil if the map is of Zones.
	Grid *Grid
	// Zones are the treatment zones that have polygons; nil if the map is a Grid.
	Zones []PrescribedZone
}

// PrescribedZone is a treatment zone and what its values mean.
type PrescribedZone struct {
	*TreatmentZone
	// Amounts are the values of the zone, without those that are missing. Zones of a task whose values have the same
	// description share its column.
	Amounts []Value
	// Products are the IDs of what the Amounts are of, one for each, empty where none is named; nil if the zone names none.
	Products []string
}

// Prescriptions returns the prescription maps of all tasks in their order; of a task the grids first.
func (s *Set) Prescriptions() (list []Prescription) {
	d := s.Descriptions()
	named := map[string]int{}
	for i := range s.Tasks {
		for _, grid := range s.Tasks[i].Grids {
			named[strings.ToLower(grid.Name)]++
		}
	}
	known := map[string]int{} // places in list, by what the cells mean
	for i := range s.Tasks {
		task := &s.Tasks[i]
		var zones map[int]string
		for _, grid := range task.Grids {
			if grid.Name != "" && named[strings.ToLower(grid.Name)] > 1 {
				if zones == nil {
					zones = meanings(task)
				}
				key := meaning(grid, zones)
				if at, ok := known[key]; ok {
					if tasks := list[at].Tasks; tasks[len(tasks)-1] != task {
						list[at].Tasks = append(tasks, task)
					}
					continue
				}
				known[key] = len(list)
			}
			list = append(list, Prescription{Set: s, Tasks: []*Task{task}, Grid: grid})
		}
		if zones := d.drawnZones(task); len(zones) > 0 {
			list = append(list, Prescription{Set: s, Tasks: []*Task{task}, Zones: zones})
		}
	}
	return list
}

// allZones stands for the treatment zones of a task together.
const allZones = -2

// meanings returns texts that are the same for treatment zones of tasks that mean the same, by code, the first one, and of all zones.
func meanings(task *Task) map[int]string {
	list, all := map[int]string{}, sha256.New() // which takes everything, as the others do
	for _, zone := range slices.Backward(task.Zones) {
		h := sha256.New()
		fmt.Fprintf(h, "%d %q %d\n", zone.Code, zone.Designator, len(zone.Values))
		for _, v := range zone.Values {
			fmt.Fprintf(h, "%d %d %t %q %q %q\n", v.DDI, v.Raw, v.Missing, v.ProductID, v.ElementID, v.Presentation)
		}
		list[zone.Code] = string(h.Sum(nil))
		fmt.Fprint(all, list[zone.Code])
	}
	list[allZones] = string(all.Sum(nil))
	return list
}

// meaning is the same for grids that have the same name and place, and whose cells mean the same.
func meaning(grid *Grid, zones map[int]string) string {
	code := allZones
	if grid.Type == 2 {
		code = grid.Zone
	}
	place := []float64{grid.North, grid.East, grid.CellNorth, grid.CellEast}
	return fmt.Sprint(strings.ToLower(grid.Name), place, grid.Rows, grid.Cols, grid.Type, grid.Zone, zones[code])
}

// Descriptions returns what the devices and value presentations of the set say about values.
func (s *Set) Descriptions() *Descriptions {
	d := NewDescriptions(s.Devices)
	d.presentations = map[string]*ValuePresentation{}
	for i := range s.ValuePresentations {
		if p := &s.ValuePresentations[i]; d.presentations[p.ID] == nil && p.ID != "" && p.Scale != 0 {
			d.presentations[p.ID] = p
		}
	}
	return d
}

// Zone describes the values of a treatment zone, in their order.
func (d *Descriptions) Zone(zone *TreatmentZone) []Column {
	columns := make([]Column, len(zone.Values))
	for i, value := range zone.Values {
		c := &columns[i]
		c.DDI, c.ElementID = value.DDI, value.ElementID
		d.Describe(c) // that no device has the element was found already
		if p := d.presentations[value.Presentation]; p != nil {
			c.Unit, c.Scale, c.Offset, c.Decimals = p.Unit, p.Scale, p.Offset, p.Decimals
		}
	}
	return columns
}

// Zones describes the values of treatment zones together: columns has each description once, or as often as one zone has
// it.
func (d *Descriptions) Zones(zones []TreatmentZone) (columns []Column, prescribed []PrescribedZone) {
	type description struct {
		Column
		again int // of those in one zone
	}
	known, places := map[description]int{}, make([][]int, len(zones))
	for i := range zones {
		seen := map[Column]int{}
		for _, column := range d.Zone(&zones[i]) {
			seen[column]++
			key := description{column, seen[column]}
			at, ok := known[key]
			if !ok {
				at = len(columns)
				known[key] = at
				columns = append(columns, column)
			}
			places[i] = append(places[i], at)
		}
	}
	prescribed = make([]PrescribedZone, len(zones))
	for i := range zones {
		zone := PrescribedZone{TreatmentZone: &zones[i]}
		named := slices.ContainsFunc(zone.Values, func(v ZoneValue) bool { return v.ProductID != "" && !v.Missing })
		for j, v := range zone.Values {
			if v.Missing {
				continue
			}
			zone.Amounts = append(zone.Amounts, Value{Column: &columns[places[i][j]], Raw: v.Raw})
			if named {
				zone.Products = append(zone.Products, v.ProductID)
			}
		}
		prescribed[i] = zone
	}
	return columns, prescribed
}

// drawn reports whether a treatment zone has polygons.
func drawn(zone *TreatmentZone) bool {
	return slices.ContainsFunc(zone.Polygons, func(p Polygon) bool { return len(p.Rings) > 0 })
}

// drawnZones returns the treatment zones of a task that have polygons.
func (d *Descriptions) drawnZones(task *Task) []PrescribedZone {
	_, zones := d.Zones(task.Zones)
	return slices.DeleteFunc(zones, func(z PrescribedZone) bool { return !drawn(z.TreatmentZone) })
}
