package content

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// shades are the colors of rates, from low to high.
var shades = []string{"#f4f1c1", "#cfdc8f", "#9cc267", "#63a24c", "#2f7d3a", "#0f5230"}

const (
	legendHeight = 48
	// maxLegends is how many kinds of rates the picture explains; others have no colors.
	maxLegends = 6
)

// legend says what the colors of prescription maps and tracks mean. Maps of the same kind of values share one.
type legend struct {
	ddi, name, unit string
	min, max        float64
	few             []float64 // the rates that the picture has, sorted; nil if there are more than shades
	maps            []rates
}

// legends finds the maps that have colors. left is how many others there are.
func (s *Summary) legends() (list []legend, left int) {
	for _, set := range s.Sets {
		for _, r := range set.rates {
			if r.Count == 0 {
				continue
			}
			at := 0
			for at < len(list) && (list[at].ddi != r.DDI || list[at].name != r.Name || list[at].unit != r.Unit) {
				at++
			}
			switch {
			case r.plain, at == maxLegends:
				left++
				continue
			case at == len(list):
				list = append(list, legend{ddi: r.DDI, name: r.Name, unit: r.Unit, min: r.Min, max: r.Max})
			}
			l := &list[at]
			l.min, l.max, l.maps = min(l.min, r.Min), max(l.max, r.Max), append(l.maps, r)
		}
	}
	for i := range list {
		list[i].count()
	}
	return list, left
}

// count finds out which rates there are, if they are few.
func (l *legend) count() {
	for _, m := range l.maps {
		for _, a := range m.areas {
			if at, known := slices.BinarySearch(l.few, a.rate); !known && !math.IsNaN(a.rate) {
				l.few = slices.Insert(l.few, at, a.rate)
			}
			if len(l.few) > len(shades) {
				l.few = nil
				return
			}
		}
	}
}

// labels says which colors the legend has, and what rates they stand for.
func (l *legend) labels() (used []int, labels [6]string) {
	for i, rate := range l.few {
		shade := l.shade(rate)
		used, labels[shade] = append(used, shade), fmt.Sprintf("%.6g", l.few[i])
	}
	if used == nil {
		step := (l.max - l.min) / float64(len(shades))
		for i := range shades {
			used, labels[i] = append(used, i), fmt.Sprintf("%.4g – %.4g", l.min+float64(i)*step, l.min+float64(i+1)*step)
		}
	}
	return used, labels
}

// shade returns which color a rate has.
func (l *legend) shade(rate float64) int {
	if at, ok := slices.BinarySearch(l.few, rate); ok {
		return (at+1)*len(shades)/len(l.few) - 1
	}
	return min(max(int(float64(len(shades))*(rate-l.min)/(l.max-l.min)), 0), len(shades)-1)
}

// rates draws the areas of prescription maps, or the lines of tracks: a path for each color of each map.
func (d *drawing) rates(w io.Writer, list []legend, lines bool) {
	style, end := `fill="%s" fill-rule="evenodd"`, "Z"
	if lines {
		style, end = `fill="none" stroke="%s" stroke-width="9"`, ""
	}
	for i := range list {
		l := &list[i]
		_, labels := l.labels()
		for _, m := range l.maps {
			var paths [6]strings.Builder
			for _, a := range m.areas {
				if !math.IsNaN(a.rate) && m.lines == lines {
					d.area(&paths[l.shade(a.rate)], a, end)
				}
			}
			for shade := range paths {
				if path := paths[shade].String(); path != "" {
					fmt.Fprintf(w, `<path `+style+` d="%s"><title>%s</title></path>`+"\n", shades[shade], path, escape(labels[shade]+" "+l.unit+m.about))
				}
			}
		}
	}
}

func (d *drawing) area(path *strings.Builder, a area, end string) {
	for _, ring := range a.rings {
		if !d.shows(ring...) {
			continue
		}
		path.WriteByte('M')
		for _, at := range ring {
			d.point(path, at)
		}
		path.WriteString(end)
	}
}

// write explains the colors below the picture.
func (l *legend) write(w io.Writer, y int) {
	title := cmp.Or(l.name, l.ddi)
	if l.unit != "" {
		title += ", " + l.unit
	}
	of := l.maps[0].name
	if n := len(l.maps) - 1; n > 0 {
		of += fmt.Sprintf(" and %d more", n)
	}
	if more := l.maps[0].more; more > 0 {
		of += fmt.Sprintf("; values not shown: %d", more)
	}
	fmt.Fprintf(w, `<text x="%d" y="%d" fill="#333333">%s (%s)</text>`+"\n", margin, y, escape(title), escape(of))
	used, labels := l.labels()
	for i, shade := range used {
		x := margin + i*(pictureWidth-2*margin)/len(shades)
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="18" height="12" fill="%s"/><text x="%d" y="%d" font-size="12" fill="#333333">%s</text>`+"\n",
			x, y+8, shades[shade], x+24, y+18, labels[shade])
	}
}
