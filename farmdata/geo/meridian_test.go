package geo_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
)

// around makes a line of longitudes from the 180th meridian on, and latitudes.
func around(kind int, at ...float64) farmdata.LineString {
	line := farmdata.LineString{Type: kind}
	for i := 0; i < len(at); i += 2 {
		east := at[i] + 180
		if east > 180 {
			east -= 360
		}
		line.Points = append(line.Points, farmdata.Point{East: east, North: at[i+1]})
	}
	return line
}

// TestMultiPolygonOfAnyStar: cut at the 180th meridian, as RFC 7946 says, or not, a polygon has the same area, each part is on one side with its
// interior rings, and goes counterclockwise.
func TestMultiPolygonOfAnyStar(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 1))
		star := func(kind int, east, least, most float64) farmdata.LineString {
			var at []float64
			n := 3 + random.IntN(20)
			for i := range n {
				sin, cos := math.Sincos(2 * math.Pi * float64(i) / float64(n))
				far := least + (most-least)*random.Float64()
				at = append(at, math.Round(8*(east+far*cos))/8, 20+math.Round(8*far*sin)/8) // often on the meridian itself
			}
			return around(kind, at...)
		}
		east := float64(random.IntN(21) - 10)
		lines := []farmdata.LineString{star(1, east, 6, 12), star(2, east, 1, 2)}
		multi, _ := geo.MultiPolygon([]farmdata.Polygon{{Rings: lines}})
		got, want := 0.0, 0.0
		for _, line := range lines {
			ring := make([]geo.Coordinates, len(line.Points))
			for i, p := range line.Points {
				if ring[i] = (geo.Coordinates{p.East, p.North}); p.East < 0 {
					ring[i][0] += 360
				}
			}
			want += math.Abs(areaOf(ring)) * float64(3-2*line.Type)
		}
		for _, polygon := range multi {
			if areaOf(polygon[0]) <= 0 {
				t.Fatalf("seed %d: %v goes clockwise", seed, polygon[0])
			}
			for _, ring := range polygon {
				got += areaOf(ring)
				for _, at := range ring {
					if (at[0] < 0) != (polygon[0][1][0] < 0) || at[0] < -180 || at[0] > 180 || ring[0] != ring[len(ring)-1] {
						t.Fatalf("seed %d: %v is on both sides, or open", seed, polygon)
					}
				}
			}
		}
		if math.Abs(got-want) > 1e-6 {
			t.Fatalf("seed %d: an area of %v, want %v: %v of %v", seed, got, want, multi, lines)
		}
	}
}

// TestPartsAcrossTheMeridian: of what is cut there, an interior ring is in the part that is around it, and an exterior one that lies on
// one side stays one.
func TestPartsAcrossTheMeridian(t *testing.T) {
	t.Parallel()
	box := func(kind int, west, south, east, north float64) farmdata.LineString {
		return around(kind, west, south, east, south, east, north, west, north)
	}
	bounds := func(ring []geo.Coordinates) (least, most geo.Coordinates) {
		least, most = ring[0], ring[0]
		for _, at := range ring {
			least = geo.Coordinates{min(least[0], at[0]), min(least[1], at[1])}
			most = geo.Coordinates{max(most[0], at[0]), max(most[1], at[1])}
		}
		return least, most
	}
	multi, _ := geo.MultiPolygon([]farmdata.Polygon{{Rings: []farmdata.LineString{
		around(1, -9, 0, 9, 0, 9, 4, -5, 4, -5, 6, 9, 6, 9, 10, -9, 10), // two arms reach across
		box(2, 2, 1, 3, 2), box(2, 5, 7, 6, 8), box(2, 2, 7, 3, 8), box(2, -8, 7, -7, 8),
		box(1, -9, 20, -1, 24), box(2, -8, 21, -7, 22), // on this side
		box(1, 1, 30, 9, 34), box(2, 2, 31, 3, 32), // on the other one
	}}})
	interior := 0
	for _, polygon := range multi {
		least, most := bounds(polygon[0])
		for _, ring := range polygon[1:] {
			interior++
			if low, high := bounds(ring); low[0] < least[0] || low[1] < least[1] || high[0] > most[0] || high[1] > most[1] {
				t.Errorf("%v is not in %v", ring, polygon[0])
			}
		}
	}
	if len(multi) != 5 || interior != 6 {
		t.Errorf("%d parts with %d interior rings, want 5 with 6: %v", len(multi), interior, multi)
	}
}

// TestSurplusAcrossTheMeridian: interior rings that it takes too much to place are counted, also if those that are cut are in their way.
func TestSurplusAcrossTheMeridian(t *testing.T) {
	t.Parallel()
	line := func(kind int, places ...geo.Coordinates) farmdata.LineString {
		l := farmdata.LineString{Type: kind}
		for _, at := range places {
			if at[0] > 180 {
				at[0] -= 360
			}
			l.Points = append(l.Points, farmdata.Point{East: at[0], North: at[1]})
		}
		return l
	}
	const n = 4000
	rings := []farmdata.LineString{line(1, geo.Coordinates{170, 0}, geo.Coordinates{190, 0}, geo.Coordinates{190, 80}, geo.Coordinates{170, 80})}
	for i := range n {
		y := float64(i) / n
		rings = append(rings, line(2, geo.Coordinates{179, 30 * y}, geo.Coordinates{181, 30*y + 40}, geo.Coordinates{181, 30*y + 40.001}),
			line(2, geo.Coordinates{185, 35 + y/3}, geo.Coordinates{185.1, 35 + y/3}, geo.Coordinates{185, 35.00001 + y/3}))
	}
	multi, surplus := geo.MultiPolygon([]farmdata.Polygon{{Rings: rings}})
	there := 0
	for _, polygon := range multi {
		there += len(polygon) - 1
	}
	if surplus == 0 || there+surplus != n {
		t.Errorf("%d interior rings of %d are there, and %d are surplus", there, n, surplus)
	}
}

// areaOf is twice the area inside of a ring, positive if it goes counterclockwise.
func areaOf(ring []geo.Coordinates) (sum float64) {
	for i, a := range ring {
		b := ring[(i+1)%len(ring)]
		sum += a[0]*b[1] - b[0]*a[1]
	}
	return sum
}
