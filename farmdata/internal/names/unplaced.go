package names

import (
	"slices"

	"github.com/agrimill/agrimill/farmdata"
)

// Elsewhere returns what a treatment zone of a task is for beside the places that a map has for it: nothing, or some of "default" (places
// without a zone), "position lost" and "outside" (of the field).
func Elsewhere(task *farmdata.Task, zone *farmdata.TreatmentZone) (list []string) {
	for _, of := range []struct {
		code int
		name string
	}{{task.DefaultZone, "default"}, {task.LostZone, "position lost"}, {task.OutsideZone, "outside"}} {
		if of.code >= 0 && of.code == zone.Code {
			list = append(list, of.name)
		}
	}
	return list
}

// Unplaced returns the treatment zones of a task that no map shows, because they have no polygons: those that are for places elsewhere, and, as
// the cells of a grid may be in any, all of a task without one.
func Unplaced(task *farmdata.Task) (zones []farmdata.TreatmentZone) {
	for i := range task.Zones {
		zone := &task.Zones[i]
		drawn := slices.ContainsFunc(zone.Polygons, func(p farmdata.Polygon) bool { return len(p.Rings) > 0 })
		if !drawn && (len(task.Grids) == 0 || len(Elsewhere(task, zone)) > 0) {
			zones = append(zones, *zone)
		}
	}
	return zones
}
