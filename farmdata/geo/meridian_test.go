package geo_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
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

// TestMultiPolygonAcrossTheMeridian: a polygon is cut at the 180th meridian, as RFC 7946 says.
func TestMultiPolygonAcrossTheMeridian(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rings []farmdata.LineString
		want  [][][]geo.Coordinates
	}{
		"square": {[]farmdata.LineString{around(1, -2, 1, 3, 1, 3, 5, -2, 5)},
			[][][]geo.Coordinates{{{{180, 5}, {178, 5}, {178, 1}, {180, 1}, {180, 5}}}, {{{-180, 1}, {-177, 1}, {-177, 5}, {-180, 5}, {-180, 1}}}}},
		"holes on each side and across": {[]farmdata.LineString{around(1, -9, 0, 9, 0, 9, 9, -9, 9), around(2, -2, 4, 2, 4, 2, 5, -2, 5), around(2, 4, 1, 5, 1, 5, 2), around(2, -5, 1, -4, 1, -4, 2)},
			[][][]geo.Coordinates{
				{{{180, 9}, {171, 9}, {171, 0}, {180, 0}, {180, 4}, {178, 4}, {178, 5}, {180, 5}, {180, 9}}, {{175, 1}, {176, 2}, {176, 1}, {175, 1}}},
				{{{-180, 0}, {-171, 0}, {-171, 9}, {-180, 9}, {-180, 5}, {-178, 5}, {-178, 4}, {-180, 4}, {-180, 0}}, {{-176, 1}, {-175, 2}, {-175, 1}, {-176, 1}}},
			}},
		"touches from the west": {[]farmdata.LineString{around(1, -2, 1, 0, 1, 0, 5)}, [][][]geo.Coordinates{{{{178, 1}, {180, 1}, {180, 5}, {178, 1}}}}},
	} {
		multi, _ := geo.MultiPolygon([]farmdata.Polygon{{Rings: tt.rings}})
		if !reflect.DeepEqual(canonical(multi), canonical(tt.want)) {
			t.Errorf("%s:\ngot  %v\nwant %v", name, multi, tt.want)
		}
	}
}

// canonical begins each ring with its smallest place.
func canonical(multi [][][]geo.Coordinates) (list []string) {
	for _, polygon := range multi {
		text := ""
		for _, ring := range polygon {
			ring, first := ring[1:], 0
			for i, at := range ring {
				if at[0] < ring[first][0] || at[0] == ring[first][0] && at[1] < ring[first][1] {
					first = i
				}
			}
			text += fmt.Sprint(append(append([]geo.Coordinates{}, ring[first:]...), ring[:first]...))
		}
		list = append(list, text)
	}
	return list
}

// TestMultiPolygonOfAnyStar: cut at the meridian or not, a polygon has the same area, each part is on one side, and goes counterclockwise.
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
					if (at[0] < 0) != (ring[1][0] < 0) || at[0] < -180 || at[0] > 180 || ring[0] != ring[len(ring)-1] {
						t.Fatalf("seed %d: %v is on both sides, or open", seed, ring)
					}
				}
			}
		}
		if math.Abs(got-want) > 1e-6 {
			t.Fatalf("seed %d: an area of %v, want %v: %v of %v", seed, got, want, multi, lines)
		}
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
