package prescription

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// metersPerDegree is what a degree of latitude has.
const metersPerDegree = 111_320

// raster is which feature the center of each cell is in.
type raster struct {
	south, west, cellNorth, cellEast float64
	rows, cols                       int
	owners                           []int32 // 0: none, otherwise the place of the feature plus 1
	steps                            int     // crossings and cells that may still be looked at
}

// maxSteps is how often all features may cross rows and lie in cells: several times what a grid without overlaps needs.
const maxSteps = 4 * maxCells

var errSteps = fmt.Errorf("its polygons cross rows of the grid, or lie in its cells, more than %d times", maxSteps)

// newRaster lays a raster of cells with a side in meters over features.
func newRaster(features []feature, side float64) (*raster, error) {
	south, west, north, east := 90.0, 180.0, -90.0, -180.0
	for _, f := range features {
		for _, p := range f.polygons {
			s, w, n, e := box(p[0])
			south, west, north, east = min(south, s), min(west, w), max(north, n), max(east, e)
		}
	}
	g := &raster{south: rounded(south), west: rounded(west), cellNorth: side / metersPerDegree}
	g.cellEast = g.cellNorth / math.Cos((south+north)/2*math.Pi/180)
	rows, cols := math.Ceil((north-g.south)/g.cellNorth), math.Ceil((east-g.west)/g.cellEast)
	if !(rows*cols <= maxCells) {
		return nil, fmt.Errorf("the grid would have more than %d cells", maxCells)
	}
	g.rows, g.cols = max(1, int(rows)), max(1, int(cols))
	g.owners, g.steps = make([]int32, g.rows*g.cols), maxSteps
	return g, nil
}

// draw gives the cells whose centers are in a feature to it. Each of its polygons has some.
func (g *raster) draw(features []feature, i int) error {
	for _, p := range features[i].polygons {
		found := false
		rows, err := g.crossings(p)
		if err != nil {
			return err
		}
		var exterior map[int][]float64 // of a polygon with interior rings, which may reach out of it
		if len(p) > 1 {
			if exterior, err = g.crossings(p[:1]); err != nil {
				return err
			}
		}
		for row, crossings := range rows {
			slices.Sort(crossings)
			slices.Sort(exterior[row])
			for j := 0; j+1 < len(crossings); j += 2 {
				if len(p) > 1 && outside(exterior[row], crossings[j]) {
					continue
				}
				from, to := g.column(crossings[j]), g.column(crossings[j+1])
				if g.steps -= to - from; g.steps < 0 {
					return errSteps
				}
				for col := from; col < to; col++ {
					owner := &g.owners[row*g.cols+col]
					if *owner > 0 && !slices.Equal(features[*owner-1].raw, features[i].raw) {
						return fmt.Errorf("it overlaps feature %d, which has other rates", features[*owner-1].number)
					}
					*owner, found = int32(i+1), true
				}
			}
		}
		if !found {
			return errors.New("a polygon of it is too small for the grid: the center of no cell is in it")
		}
	}
	return nil
}

// outside reports whether what is east of a longitude is not between crossings, which are sorted.
func outside(crossings []float64, east float64) bool {
	n, _ := slices.BinarySearch(crossings, math.Nextafter(east, math.Inf(1)))
	return n%2 == 0
}

// column is the first column whose center is not west of a longitude.
func (g *raster) column(east float64) int {
	return min(max(0, int(math.Ceil((east-g.west)/g.cellEast-0.5))), g.cols)
}

// crossings are the longitudes at which the rings of a polygon cross the middle of rows, by row.
func (g *raster) crossings(p polygon) (map[int][]float64, error) {
	rows := map[int][]float64{}
	for _, ring := range p {
		for i := 1; i < len(ring); i++ {
			a, b := ring[i-1], ring[i]
			if a.north > b.north {
				a, b = b, a
			}
			row := max(0, int(math.Ceil((a.north-g.south)/g.cellNorth-0.5)))
			for ; row < g.rows; row++ {
				middle := g.south + (float64(row)+0.5)*g.cellNorth
				if middle < a.north { // by rounding
					continue
				}
				if middle >= b.north {
					break
				}
				if g.steps--; g.steps < 0 {
					return nil, errSteps
				}
				rows[row] = append(rows[row], a.east+(middle-a.north)/(b.north-a.north)*(b.east-a.east))
			}
		}
	}
	return rows, nil
}
