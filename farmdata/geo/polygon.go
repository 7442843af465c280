package geo

import (
	"slices"

	"github.com/agrimill/agrimill/farmdata"
)

// Coordinates are a longitude and a latitude, in this order.
type Coordinates [2]float64

// MultiPolygon makes of polygons what GeoJSON and WKB ask for: rings are closed,
// exterior ones go counterclockwise, interior ones clockwise and come after the
// exterior one that they are in. What encloses nothing is left out: rings of fewer
// than three places, and interior rings outside of every exterior one. Points that
// cannot be on Earth are left out, too.
func MultiPolygon(polygons []farmdata.Polygon) (multi [][][]Coordinates) {
	const interior = 2 // farmdata.LineString.Type
	for _, polygon := range polygons {
		from := len(multi)
		var holes [][]Coordinates
		for _, line := range polygon.Rings {
			ring := closed(line)
			switch {
			case ring == nil:
			case line.Type == interior:
				orient(ring, false)
				holes = append(holes, ring)
			default:
				orient(ring, true)
				multi = append(multi, [][]Coordinates{ring})
			}
		}
		for _, hole := range holes {
			i := slices.IndexFunc(multi[from:], func(p [][]Coordinates) bool { return contains(p[0], hole[0]) })
			if i >= 0 {
				multi[from+i] = append(multi[from+i], hole)
			}
		}
	}
	return multi
}

// closed returns the places of a line with the first one again at the end; nil if
// they are too few.
func closed(line farmdata.LineString) (ring []Coordinates) {
	for _, point := range line.Points {
		if at := (Coordinates{point.East, point.North}); point.Valid() && (len(ring) == 0 || ring[len(ring)-1] != at) {
			ring = append(ring, at)
		}
	}
	if len(ring) > 1 && ring[0] == ring[len(ring)-1] {
		ring = ring[:len(ring)-1]
	}
	if len(ring) < 3 || area(ring) == 0 {
		return nil
	}
	return append(ring, ring[0])
}

// area is twice the area inside of a ring, positive if it goes counterclockwise.
func area(ring []Coordinates) (sum float64) {
	for i, a := range ring {
		b := ring[(i+1)%len(ring)]
		// Relative to the first place, so that nothing is lost in large numbers.
		sum += (a[0]-ring[0][0])*(b[1]-ring[0][1]) - (b[0]-ring[0][0])*(a[1]-ring[0][1])
	}
	return sum
}

func orient(ring []Coordinates, counterclockwise bool) {
	if area(ring) > 0 != counterclockwise {
		slices.Reverse(ring)
	}
}

// contains reports whether a place is inside of a closed ring.
func contains(ring []Coordinates, at Coordinates) (inside bool) {
	for i := 1; i < len(ring); i++ {
		a, b := ring[i-1], ring[i]
		if (a[1] > at[1]) != (b[1] > at[1]) && at[0] < (b[0]-a[0])*(at[1]-a[1])/(b[1]-a[1])+a[0] {
			inside = !inside
		}
	}
	return inside
}

// Rectangle returns a cell of a grid as a closed ring, counterclockwise. The grid has to be valid.
func Rectangle(grid *farmdata.Grid, cell *farmdata.Cell) []Coordinates {
	west, south := grid.East+float64(cell.Col)*grid.CellEast, grid.North+float64(cell.Row)*grid.CellNorth
	east, north := grid.East+float64(cell.Col+1)*grid.CellEast, grid.North+float64(cell.Row+1)*grid.CellNorth
	return []Coordinates{{west, south}, {east, south}, {east, north}, {west, north}, {west, south}}
}
