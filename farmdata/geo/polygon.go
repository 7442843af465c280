package geo

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/agrimill/agrimill/farmdata"
)

// Coordinates are a longitude and a latitude, in this order.
type Coordinates [2]float64

// MaxCrossings is how many edges of exterior rings one MultiPolygon is compared with to find out which of them its interior
// rings are in: those only that reach the latitude of an interior one.
const MaxCrossings = 10_000_000

const (
	boundary = 1 // farmdata.Polygon.Type
	interior = 2 // farmdata.LineString.Type
)

// Encloses reports whether MultiPolygon makes anything of polygons, at less cost.
func Encloses(polygons []farmdata.Polygon) bool {
	return slices.ContainsFunc(polygons, func(polygon farmdata.Polygon) bool {
		exteriors, _, _ := rings(polygon)
		return len(exteriors) > 0
	})
}

// MultiPolygon makes of polygons what GeoJSON and WKB ask for: rings are closed,
// exterior ones go counterclockwise, interior ones clockwise and come after the
// exterior one that they are in. What encloses nothing is left out: rings of fewer
// than three places, and interior rings outside of every exterior one. Points that
// cannot be on Earth are left out, too. So are the interior rings that it would take more than MaxCrossings to place:
// surplus is how many. A polygon across the 180th meridian is cut there.
func MultiPolygon(polygons []farmdata.Polygon) (multi [][][]Coordinates, surplus int) {
	multi, surplus, _ = multiPolygon(polygons)
	return multi, surplus
}

// multiPolygon also counts the rings that enclose nothing, or are in nothing.
func multiPolygon(polygons []farmdata.Polygon) (multi [][][]Coordinates, surplus, void int) {
	s := sweep{left: MaxCrossings}
	for _, polygon := range polygons {
		exteriors, holes, across := rings(polygon)
		void += len(polygon.Rings) - len(exteriors) - len(holes) + s.surplus
		for i, in := range s.enclosing(exteriors, holes) {
			if in >= 0 {
				exteriors[in] = append(exteriors[in], holes[i])
			} else {
				void++
			}
		}
		void -= s.surplus
		for _, part := range exteriors {
			if across {
				multi = append(multi, s.divide(part)...)
			} else {
				multi = append(multi, part)
			}
		}
	}
	return multi, s.surplus, void
}

// rings returns those of a polygon that enclose something, closed, exterior ones counterclockwise and interior ones clockwise. If
// they go across the 180th meridian, their longitudes are of 0 to 360.
func rings(polygon farmdata.Polygon) (exteriors [][][]Coordinates, holes [][]Coordinates, across bool) {
	all, kinds := [][]Coordinates{}, []int{}
	for _, line := range polygon.Rings {
		if ring := closed(line); ring != nil {
			all, kinds = append(all, ring), append(kinds, line.Type)
			across = across || crosses(ring)
		}
	}
	for i, ring := range all {
		if across {
			eastward(ring)
		}
		if isFlat(ring) {
			continue
		}
		if orient(ring, kinds[i] != interior); kinds[i] == interior {
			holes = append(holes, ring)
		} else {
			exteriors = append(exteriors, [][]Coordinates{ring})
		}
	}
	return exteriors, holes, across
}

// FieldPolygon returns the MultiPolygon of a field: of its boundaries, or of all its polygons if none is called one. The finding says
// what it lacks; nil if that is nothing.
func FieldPolygon(field *farmdata.Field) (multi [][][]Coordinates, finding *farmdata.Finding) {
	boundaries := slices.DeleteFunc(slices.Clone(field.Polygons), func(p farmdata.Polygon) bool { return p.Type != boundary })
	if len(boundaries) == 0 {
		boundaries = field.Polygons
	}
	multi, finding = whole("field", boundaries)
	if beside := len(field.Polygons) - len(boundaries); beside > 0 {
		if finding == nil {
			finding = &farmdata.Finding{Kind: farmdata.KindUnsupported, Offset: -1, Record: -1, Detail: "field"}
		}
		finding.Detail += fmt.Sprintf(", without its polygons that are no boundary, such as obstacles: %d", beside)
	}
	if finding != nil {
		finding.File = field.ID
	}
	return multi, finding
}

// ZonePolygon returns the MultiPolygon of a treatment zone. The finding says what it lacks; nil if that is nothing.
func ZonePolygon(zone *farmdata.TreatmentZone) (multi [][][]Coordinates, finding *farmdata.Finding) {
	return whole(fmt.Sprintf("treatment zone %d", zone.Code), zone.Polygons)
}

// whole returns the MultiPolygon of something, and what it lacks of the rings that are there.
func whole(name string, polygons []farmdata.Polygon) (multi [][][]Coordinates, finding *farmdata.Finding) {
	multi, surplus, void := multiPolygon(polygons)
	finding = &farmdata.Finding{Kind: farmdata.KindPosition, Offset: -1, Record: -1}
	switch {
	case surplus > 0:
		finding.Kind, finding.Detail = farmdata.KindLimit, fmt.Sprintf("rings that %s lacks, because placing interior ones takes more steps than are allowed: %d", name, surplus)
	case void == 0:
		return multi, nil
	case len(multi) == 0:
		finding.Detail = name + " has no place on Earth: no map shows it"
	default:
		finding.Detail = fmt.Sprintf("rings that %s lacks, because they enclose nothing, or are interior ones that are in no other one: %d", name, void)
	}
	return multi, finding
}

// sweep finds the rings that places are in, from south to north: what it compares a place with are the edges that reach its latitude.
type sweep struct {
	left    int // edges that may still be compared
	surplus int // holes that were left out
}

type edge struct {
	a, b Coordinates
	ring int
}

func (e edge) south() float64 { return min(e.a[1], e.b[1]) }

// enclosing returns the first exterior ring that the first place of each hole is in; -1 if there is none.
func (s *sweep) enclosing(exteriors [][][]Coordinates, holes [][]Coordinates) []int {
	if len(holes) == 0 {
		return nil
	}
	in, order := make([]int, len(holes)), make([]int, len(holes))
	for i := range holes {
		in[i], order[i] = -1, i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(holes[i][0][1], holes[j][0][1]) })
	edges, inside := edgesOf(exteriors), make([]bool, len(exteriors))
	var near []edge // those that reach the latitude
	for done, i := range order {
		at := holes[i][0]
		for len(edges) > 0 && edges[0].south() <= at[1] {
			near, edges = append(near, edges[0]), edges[1:]
		}
		if s.left -= len(near); s.left < 0 {
			s.surplus += len(order) - done
			return in
		}
		near = slices.DeleteFunc(near, func(e edge) bool { return max(e.a[1], e.b[1]) <= at[1] })
		in[i] = first(near, at, inside)
	}
	return in
}

// edgesOf returns the edges of rings, the southernmost ones first; those along a latitude enclose nothing.
func edgesOf(exteriors [][][]Coordinates) (edges []edge) {
	for ring, polygon := range exteriors {
		for i, b := range polygon[0][1:] {
			if a := polygon[0][i]; a[1] != b[1] {
				edges = append(edges, edge{a, b, ring})
			}
		}
	}
	slices.SortFunc(edges, func(x, y edge) int { return cmp.Compare(x.south(), y.south()) })
	return edges
}

// first returns the first ring that a place is in, of those that have edges at its latitude; -1 if there is none. inside, by
// ring, is false, and is again.
func first(near []edge, at Coordinates, inside []bool) int {
	for i := range near {
		e := &near[i]
		if at[0] < (e.b[0]-e.a[0])*(at[1]-e.a[1])/(e.b[1]-e.a[1])+e.a[0] {
			inside[e.ring] = !inside[e.ring]
		}
	}
	ring := -1
	for i := range near {
		e := &near[i]
		if inside[e.ring] && (ring < 0 || e.ring < ring) {
			ring = e.ring
		}
		inside[e.ring] = false
	}
	return ring
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
	if len(ring) < 3 {
		return nil
	}
	return append(ring, ring[0])
}

// isFlat reports whether a ring has nothing inside, but for what rounding makes of nothing.
func isFlat(ring []Coordinates) bool {
	if len(ring) == 0 {
		return true
	}
	low, high := ring[0], ring[0]
	for _, at := range ring {
		low, high = Coordinates{min(low[0], at[0]), min(low[1], at[1])}, Coordinates{max(high[0], at[0]), max(high[1], at[1])}
	}
	return math.Abs(area(ring)) <= 1e-12*(high[0]-low[0])*(high[1]-low[1])
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

// Rectangle returns a cell of a grid as a closed ring, counterclockwise. One across the 180th meridian is cut there, and beyond is
// the part in the east of it, otherwise nil. The grid has to be valid.
func Rectangle(grid *farmdata.Grid, cell *farmdata.Cell) (ring, beyond []Coordinates) {
	south, west := grid.Corner(cell.Row, cell.Col)
	north, east := grid.Corner(cell.Row+1, cell.Col+1)
	between := func(west, east float64) []Coordinates {
		return []Coordinates{{west, south}, {east, south}, {east, north}, {west, north}, {west, south}}
	}
	switch {
	case west < east:
		return between(west, east), nil
	case west == meridian:
		return between(-meridian, east), nil
	}
	return between(west, meridian), between(-meridian, east)
}
