package geo

import (
	"cmp"
	"math"
	"slices"
)

// meridian is where longitudes begin anew.
const meridian = 180

// crosses reports whether a closed ring goes across the meridian.
func crosses(ring []Coordinates) bool {
	for i := range ring[1:] {
		if math.Abs(ring[i+1][0]-ring[i][0]) > meridian { // no field is that wide
			return true
		}
	}
	return false
}

// eastward makes longitudes of 0 to 360 of those that a ring has, so that one that crossed the meridian does not any more.
func eastward(ring []Coordinates) {
	for i := range ring {
		if ring[i][0] < 0 {
			ring[i][0] += 2 * meridian
		}
	}
}

// divide cuts a polygon whose longitudes are of 0 to 360 at the meridian, as RFC 7946 asks for, and makes them such of -180 to 180.
func (s *sweep) divide(polygon [][]Coordinates) (parts [][][]Coordinates) {
	for _, east := range []bool{false, true} {
		side := s.half(polygon, east)
		parts = append(parts, side...)
		for _, part := range side {
			for _, ring := range part {
				for i := range ring {
					if east {
						ring[i][0] -= 2 * meridian
					}
				}
			}
		}
	}
	return parts
}

// chain is a part of a ring on one side of the meridian: from where it comes across to where it goes back.
type chain struct {
	places []Coordinates
	next   *chain
}

// half returns what of a polygon is on one side of the meridian.
func (s *sweep) half(polygon [][]Coordinates, east bool) (parts [][][]Coordinates) {
	var exteriors, holes [][]Coordinates
	var chains []*chain
	for i, ring := range polygon {
		cut, whole := chainsOf(ring, east)
		chains = append(chains, cut...)
		switch {
		case whole && i == 0:
			exteriors = append(exteriors, slices.Clone(ring))
		case whole:
			holes = append(holes, beside(ring))
		}
	}
	for _, exterior := range append(exteriors, joined(chains)...) {
		parts = append(parts, [][]Coordinates{exterior})
	}
	for i, in := range s.enclosing(parts, holes) {
		if in >= 0 {
			parts[in] = append(parts[in], holes[i])
		}
	}
	return parts
}

// beside returns a closed ring that begins where it is farthest from the meridian, as an exterior one may go along that.
func beside(ring []Coordinates) []Coordinates {
	far := func(i int) float64 { return math.Abs(ring[i][0] - meridian) }
	first := 0
	for i := range ring {
		if far(i) > far(first) {
			first = i
		}
	}
	return slices.Concat(ring[first:], ring[1:first+1])
}

// chainsOf returns the parts of a closed ring that are on one side of the meridian; whole is true if all of it is.
func chainsOf(ring []Coordinates, east bool) (chains []*chain, whole bool) {
	on := func(at Coordinates) bool { return at[0] > meridian == east }
	ring = ring[1:] // whose last place is the first one
	first := slices.IndexFunc(ring, func(at Coordinates) bool { return !on(at) })
	if first < 0 {
		return nil, true
	}
	var c *chain
	for i := range ring {
		a, b := ring[(first+i)%len(ring)], ring[(first+i+1)%len(ring)]
		if on(a) != on(b) {
			at := Coordinates{meridian, a[1] + (b[1]-a[1])*(meridian-a[0])/(b[0]-a[0])}
			if c == nil {
				c = &chain{}
				chains = append(chains, c)
			}
			if c.places = append(c.places, at); on(a) {
				c = nil
			}
		}
		if on(b) {
			c.places = append(c.places, b)
		}
	}
	return chains, false
}

// joined joins chains along the meridian to closed rings: where one ends, the next one begins to the north, on the east side to the south,
// with nothing between them.
func joined(chains []*chain) (rings [][]Coordinates) {
	firsts, lasts := slices.Clone(chains), slices.Clone(chains)
	slices.SortStableFunc(firsts, func(a, b *chain) int { return cmp.Compare(a.places[0][1], b.places[0][1]) })
	slices.SortStableFunc(lasts, func(a, b *chain) int {
		return cmp.Compare(a.places[len(a.places)-1][1], b.places[len(b.places)-1][1])
	})
	for i, c := range lasts {
		c.next = firsts[i]
	}
	for _, c := range chains {
		var ring []Coordinates
		for c.next != nil {
			ring = append(ring, c.places...)
			c, c.next = c.next, nil
		}
		if ring = slices.Compact(ring); !isFlat(ring) {
			orient(ring, true) // a part of one that crosses itself may go the other way
			rings = append(rings, append(ring, ring[0]))
		}
	}
	return rings
}
