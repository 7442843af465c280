package content_test

import (
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// drawn is what a picture of one prescription map has.
type drawn struct {
	Paths []path `xml:"path"`
	Rects []struct {
		Fill string `xml:"fill,attr"`
	} `xml:"rect"`
	Texts []string `xml:"text"`
}

type path struct {
	Fill   string `xml:"fill,attr"`
	Stroke string `xml:"stroke,attr"` // of outlines and the scale
	D      string `xml:"d,attr"`
	Title  string `xml:"title"`
}

// corners are the least and greatest x and y of points.
func corners(t *testing.T, points string) (left, top, right, bottom float64) {
	t.Helper()
	left, top, right, bottom = math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	for point := range strings.FieldsSeq(points) {
		var x, y float64
		testkit.Must(fmt.Sscanf(point, "%g,%g", &x, &y))(t)
		left, top, right, bottom = min(left, x), min(top, y), max(right, x), max(bottom, y)
	}
	return left, top, right, bottom
}

// TestPicturesOfGridsAreThoseOfTheBytes compares each cell of pictures of grids of both types, where it is and what its color
// means, with the bytes of their files.
func TestPicturesOfGridsAreThoseOfTheBytes(t *testing.T) {
	t.Parallel()
	codes, values := farmdatatest.PrescriptionCells()
	for task, rate := range map[string]func(cell int) float64{
		farmdatatest.TaskGridOfZones:  func(i int) float64 { return map[byte]float64{1: 120, 2: 160, 3: 220}[codes[i]] },
		farmdatatest.TaskGridOfValues: func(i int) float64 { return float64(int32(binary.LittleEndian.Uint32(values[8*i:]))) / 100 },
	} {
		var d drawn
		svg := picture(t, summarize(t, open(t, farmdatatest.Prescriptions(t, task), content.Config{})))
		testkit.NoError(t, xml.Unmarshal([]byte(svg), &d))
		outlines := slices.DeleteFunc(slices.Clone(d.Paths), func(p path) bool { return p.Stroke == "" })
		left, top, right, bottom := corners(t, strings.Trim(outlines[1].D, "MZ")) // behind the field
		d.mustBeToScale(t, right-left, bottom-top)
		unit := map[string]string{farmdatatest.TaskGridOfZones: "kg/ha", farmdatatest.TaskGridOfValues: "mm³/m²"}[task]
		about := map[string]string{farmdatatest.TaskGridOfZones: ", Base dressing, Long acre, PDT3; Urea", farmdatatest.TaskGridOfValues: ", Sowing, Long acre, Winter wheat"}[task]
		meanings := map[string]string{}
		for i, label := range d.Texts[2:] { // behind the scale and the title of the legend
			meanings[d.Rects[i+1].Fill] = label + " " + unit + about // the first one is the background
		}
		width, height, seen := (right-left)/12, (bottom-top)/11, map[int]bool{}
		for _, path := range slices.DeleteFunc(slices.Clone(d.Paths), func(p path) bool { return p.Stroke != "" }) {
			if path.Title == "" || path.Title != meanings[path.Fill] {
				t.Errorf("%s is %q, and %q by the legend", path.Fill, path.Title, meanings[path.Fill])
			}
			var low, high float64
			if n, _ := fmt.Sscanf(path.Title, "%g – %g", &low, &high); n < 2 {
				high = low
			}
			for ring := range strings.SplitSeq(strings.TrimSuffix(path.D, "Z"), "Z") {
				west, north, east, south := corners(t, strings.TrimPrefix(ring, "M"))
				row, col := int(math.Round((bottom-south)/height)), int(math.Round((west-left)/width))
				cell := 12*row + col
				if off := max(math.Abs(left+float64(col)*width-west), math.Abs(left+float64(col+1)*width-east),
					math.Abs(bottom-float64(row)*height-south), math.Abs(bottom-float64(row+1)*height-north)); off > 0.11 || cell >= len(codes) || seen[cell] {
					t.Fatalf("no cell is at %s, or it is there twice", ring)
				}
				seen[cell] = true
				if want := rate(cell); want < low-0.05 || want > high+0.05 { // labels are rounded
					t.Errorf("cell %d is %s, want %g", cell, path.Title, want)
				}
			}
		}
		if len(seen) != len(codes) {
			t.Errorf("got %d cells, want %d", len(seen), len(codes))
		}
	}
}

// mustBeToScale holds that the grids of farmdatatest.Prescriptions have the size that the bar for the scale says: 12 cells of
// 0.0002° at 52.5°, and 11 of 0.0001°.
func (d *drawn) mustBeToScale(t *testing.T, width, height float64) {
	t.Helper()
	var meters, from, to, up, y float64
	testkit.Must(fmt.Sscanf(d.Texts[0], "%g m", &meters))(t)
	testkit.Must(fmt.Sscanf(d.Paths[len(d.Paths)-1].D, "M%g %gV%gH%gV", &from, &up, &y, &to))(t)
	perUnit := meters / (to - from)
	if w, h := width*perUnit, height*perUnit; math.Abs(w/162.7-1) > 0.01 || math.Abs(h/122.4-1) > 0.01 {
		t.Errorf("the grid has %.1f m × %.1f m, want 162.7 m × 122.4 m", w, h)
	}
}

// A pond in a field is not a part of it: what is inside of an interior ring has no color.
func TestPicturesOfHoles(t *testing.T) {
	t.Parallel()
	ring := func(kind int, size float64) farmdata.LineString {
		return farmdata.LineString{Type: kind, Points: []farmdata.Point{{North: 52 + size, East: 8}, {North: 52, East: 8 + size}, {North: 52 - size, East: 8 - size}}}
	}
	field := farmdata.Field{Polygons: []farmdata.Polygon{{Type: 1, Rings: []farmdata.LineString{ring(1, 0.01), ring(2, 0.001)}}}}
	var d drawn
	svg := picture(t, summarize(t, &content.Data{Sets: []*farmdata.Set{{Fields: []farmdata.Field{field}}}}))
	testkit.NoError(t, xml.Unmarshal([]byte(svg), &d))
	if len(d.Paths) != 2 || strings.Count(d.Paths[0].D, "Z") != 2 || !strings.Contains(svg, `fill-rule="evenodd"`) {
		t.Errorf("got %s, want a path with two rings, and the scale", svg)
	}
}
