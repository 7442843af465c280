package content

import (
	"bufio"
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/tracks"
)

// latLon is a place in degrees.
type latLon struct{ north, east float64 }

// track is the way of a log, with at most maxPlaces places.
type track struct {
	name   string
	places []place
	stride int // every how many places one is kept
	seen   int
	steps  tracks.Steps
}

type place struct {
	latLon
	begins bool // after a gap
}

const (
	maxPlaces = 4000
	// jump is farther than a machine gets between two records, in degrees.
	jump = 0.05
)

func (t *track) add(at latLon, stamp farmdata.Stamp) {
	begins := t.steps.Next(stamp, at.north, at.east, jump)
	t.seen++
	t.stride = cmp.Or(t.stride, 1)
	if !begins && t.seen%t.stride != 0 {
		return
	}
	t.places = append(t.places, place{at, begins})
	if len(t.places) < maxPlaces {
		return
	}
	kept := t.places[:0]
	begins = false
	for i, p := range t.places { // every other one
		begins = begins || p.begins
		if i%2 == 0 {
			kept = append(kept, place{p.latLon, begins})
			begins = false
		}
	}
	t.places, t.stride = kept, 2*t.stride
}

// colors of tracks that differ for everybody, on white.
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

const (
	pictureWidth = 1000
	margin       = 30
)

// WriteSVG writes a picture of the tracks of the logs, of fields, and of prescription maps, to scale and
// north up, with a bar for the scale. Grids and treatment zones have colors for the first of their values; large grids are
// drawn in blocks of cells that have their mean. It needs nothing from elsewhere: no tiles, no network.
// Long tracks are drawn with fewer places. Damaged logs have places all over the world, so the picture
// shows where most of them are, and says how many are elsewhere. Data
// without any place has a picture that says so.
func (s *Summary) WriteSVG(to io.Writer) error {
	w := bufio.NewWriter(to)
	d := s.drawing()
	legends, left := s.legends()
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="14">`+"\n", pictureWidth, d.height+legendHeight*len(legends))
	fmt.Fprintf(w, "<title>%s</title>\n", escape(s.Line()))
	fmt.Fprintln(w, `<rect width="100%" height="100%" fill="#ffffff"/>`)
	const stroke = `stroke="#5b7f2b" stroke-width="1.5"`
	d.outlines(w, s, `fill="#e8f0d8" `+stroke)
	if d.rates(w, legends, false); len(legends) > 0 {
		d.outlines(w, s, `fill="none" `+stroke) // which the colors have covered
	}
	n := 0
	for _, set := range s.Sets {
		for _, t := range set.tracks {
			n += d.track(w, t, colors[n%len(colors)])
		}
	}
	d.rates(w, legends, true)
	switch {
	case d.empty:
		fmt.Fprintf(w, "<text x=\"%d\" y=\"%d\">No positions</text>\n", margin, d.height/2)
	default:
		d.bar(w)
		if d.elsewhere > 0 {
			fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="end" fill="#333333">not shown: %d places farther away</text>`+"\n", pictureWidth-margin, d.height-margin/2, d.elsewhere)
		}
		if left > 0 {
			fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="end" fill="#333333">without colors: %d prescription maps</text>`+"\n", pictureWidth-margin, d.height-margin*3/2, left)
		}
	}
	for i := range legends {
		legends[i].write(w, d.height+legendHeight*i+margin/2)
	}
	fmt.Fprintln(w, "</svg>")
	return w.Flush()
}

// outlines draws the outlines of fields, grids and treatment zones.
func (d *drawing) outlines(w io.Writer, s *Summary, style string) {
	for _, set := range s.Sets {
		for _, outline := range set.outlines {
			var path strings.Builder
			if d.area(&path, outline, "Z"); path.Len() > 0 {
				fmt.Fprintf(w, `<path %s fill-rule="evenodd" d="%s"/>`+"\n", style, path.String())
			}
		}
	}
}

// track draws a track, and returns how many colors it took.
func (d *drawing) track(w io.Writer, t *track, color string) int {
	open, begun := false, false
	for _, p := range t.places {
		if !d.shows(p.latLon) {
			if open {
				fmt.Fprint(w, `"/>`)
			}
			open = false
			continue
		}
		if !begun {
			fmt.Fprintf(w, `<g fill="none" stroke="%s" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"><title>%s</title>`, color, escape(t.name))
			begun = true
		}
		if p.begins && open {
			fmt.Fprint(w, `"/>`)
			open = false
		}
		if !open {
			fmt.Fprint(w, `<polyline points="`)
			d.point(w, p.latLon) // twice, so that a single place shows as a dot
			open = true
		}
		d.point(w, p.latLon)
	}
	if open {
		fmt.Fprint(w, `"/>`)
	}
	if !begun {
		return 0
	}
	fmt.Fprintln(w, "</g>")
	return 1
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder takes everything
	return b.String()
}

// drawing is where places are in the picture.
type drawing struct {
	empty         bool
	center        latLon
	elsewhere     int     // places that are not shown
	box           Box     // relative to the center
	squeeze       float64 // of a degree east, compared with one north
	scale         float64 // of a degree north, in the units of the picture
	height        int
	metersPerUnit float64
}

const (
	// tile is the size of what is searched for most places, in degrees.
	tile = 0.25
	// around is what the picture shows around the middle of that, at most.
	around = 0.5
)

func (s *Summary) drawing() drawing {
	d := drawing{height: 200, empty: true}
	counts := map[latLon]int{}
	most := 0
	s.places(func(at latLon) {
		corner := latLon{math.Floor(at.north / tile), math.Floor(at.east / tile)}
		counts[corner]++
		if counts[corner] > most {
			most = counts[corner]
			d.center = latLon{(corner.north + 0.5) * tile, (corner.east + 0.5) * tile}
		}
	})
	if most == 0 {
		return d
	}
	d.empty = false
	var box *Box
	s.places(func(at latLon) {
		if !d.shows(at) {
			d.elsewhere++
			return
		}
		box = box.add(d.relative(at))
	})
	d.box = *box
	d.squeeze = max(math.Cos(d.center.north*math.Pi/180), 0.01)
	const smallest = 0.0002 // 20 m, so that a single place has a scale
	width, height := max((box.East-box.West)*d.squeeze, smallest), max(box.North-box.South, smallest)
	const inner = pictureWidth - 2*margin
	d.scale = inner / max(width, height)
	d.height = int(max(height*d.scale, 100)) + 3*margin
	const metersPerDegree = 111_320
	d.metersPerUnit = metersPerDegree / d.scale
	return d
}

// places calls f for everything that may be shown.
func (s *Summary) places(f func(latLon)) {
	for _, set := range s.Sets {
		for _, outline := range set.outlines {
			for _, ring := range outline.rings {
				for _, at := range ring {
					f(at)
				}
			}
		}
		for _, t := range set.tracks {
			for _, p := range t.places {
				f(p.latLon)
			}
		}
	}
}

// relative returns a place relative to the center, across the 180th meridian if that is
// nearer.
func (d *drawing) relative(at latLon) latLon {
	east := at.east - d.center.east
	switch {
	case east > 180:
		east -= 360
	case east < -180:
		east += 360
	}
	return latLon{at.north - d.center.north, east}
}

// shows reports whether there are places, all near the center.
func (d *drawing) shows(places ...latLon) bool {
	for _, at := range places {
		if r := d.relative(at); math.Abs(r.north) > around || math.Abs(r.east) > around/max(math.Cos(d.center.north*math.Pi/180), 0.01) {
			return false
		}
	}
	return !d.empty && len(places) > 0
}

func (d *drawing) point(w io.Writer, at latLon) {
	r := d.relative(at)
	fmt.Fprintf(w, "%.1f,%.1f ", margin+(r.east-d.box.West)*d.squeeze*d.scale, margin+(d.box.North-r.north)*d.scale)
}

// bar draws a scale: a round length of up to a quarter of the picture.
func (d *drawing) bar(w io.Writer) {
	longest := d.metersPerUnit * pictureWidth / 4
	length := math.Pow(10, math.Floor(math.Log10(longest)))
	for _, factor := range []float64{5, 2} {
		if length*factor <= longest {
			length *= factor
			break
		}
	}
	label := fmt.Sprintf("%g m", length)
	if length >= 1000 {
		label = fmt.Sprintf("%g km", length/1000)
	}
	y, end := float64(d.height)-margin/2, margin+length/d.metersPerUnit
	fmt.Fprintf(w, `<path d="M%d %.1fV%.1fH%.1fV%.1f" fill="none" stroke="#333333"/><text x="%.1f" y="%.1f" fill="#333333">%s</text>`+"\n",
		margin, y-6, y, end, y-6, end+6, y, label)
}
