package isoxml

import (
	"context"
	"encoding/xml"
	"math"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/objects"
)

// attributes reads those of an element into an object.
type attributes struct {
	objects.None // parts are read by themselves
	*element
	nothing bool // the object says nothing
}

// Needs reports attributes that are missing.
func (a *attributes) Needs(letters ...string) { a.needs(letters...) }

// ID and the methods below read an attribute.
func (a *attributes) ID(letter string, id *string) { *id = a.str(letter) }

func (a *attributes) Reference(letter, _, _ string, id *string) { *id = a.str(letter) }

func (a *attributes) Text(letter string, text *string, use objects.Use) {
	*text = a.str(letter)
	if use&objects.Digits != 0 {
		if *text = strings.ToUpper(*text); strings.Trim(*text, "0123456789ABCDEF") != "" {
			a.wrong(letter, "not of hexadecimal digits")
		}
	}
}

func (a *attributes) File(letter string, name *string) { *name = trimEnding(a.str(letter)) }

func (a *attributes) Whole(letter string, _ int64, use objects.Use) int64 {
	low, high := use.Range()
	n, ok := a.whole(letter, low, high)
	if !ok && use&objects.Optional != 0 {
		return -1
	}
	return n
}

func (a *attributes) Float(letter string, f *float64, use objects.Use) {
	if use&objects.Required != 0 {
		a.needs(letter)
	}
	value, ok := a.float(letter)
	if ok && value == 0 && use&objects.Scale != 0 {
		a.wrong(letter, "a scale of zero")
	}
	if *f = value; ok && value == 0 && use&objects.Heading != 0 {
		*f = 360
	}
}

func (a *attributes) DDI(letter string, ddi *farmdata.DDI, use objects.Use) {
	absent := farmdata.DDI(0)
	if use&objects.Required != 0 {
		a.needs(letter)
		absent = farmdata.DDIUnknown
	}
	*ddi = a.ddi(letter, absent)
}

func (a *attributes) Value(letter string, raw *int64, missing *bool, use objects.Use) {
	if use&objects.Required != 0 {
		a.needs(letter)
	}
	n, ok := a.whole(letter, math.MinInt64, math.MaxInt64)
	*raw = n
	if missing == nil {
		a.nothing = !ok
		return
	}
	*missing = !ok
}

// Place takes half of a place for none: both are 0 then.
func (a *attributes) Place(latitude, longitude string, north, east *float64) {
	a.needs(latitude, longitude)
	y, hasNorth := a.float(latitude)
	x, hasEast := a.float(longitude)
	switch {
	case !hasNorth || !hasEast:
		y, x = 0, 0
	case y == 0 && x == 0:
		a.find(farmdata.KindPosition, a.tag+" is at 0, 0, which stands for no place")
	}
	if *north, *east = y, x; (farmdata.Position{North: y, East: x, Has: farmdata.HasNorth | farmdata.HasEast}).OffEarth() {
		a.find(farmdata.KindPosition, a.tag+" is not on Earth")
	}
}

func (a *attributes) Stamp(letter string, stamp *farmdata.Stamp) { *stamp = a.stamp(letter) }

// object makes the object that an element stands for; nil if it says nothing. known is false for elements that
// are not read.
func (r *setReader) object(e *element) (object any, known bool) {
	switch e.tag {
	case "XFR":
		r.external(e)
		return nil, true
	case "AFE": // the list of links is read, whether it is named or not
		return nil, strings.EqualFold(e.str("A"), "LINKLIST.XML")
	case "PTN":
		// Empty means recorded only in the header of a log.
		e.attrs = slices.DeleteFunc(e.attrs, func(a xml.Attr) bool { return strings.TrimSpace(a.Value) == "" })
		h := positionHeader(e)
		e.asked &^= 1<<('H'-'A') | 1<<('I'-'A') // the time of the receiver, which is not read
		r.unasked(e, false)
		return &h.fixed, true
	case "ASP":
		stamp := &allocationStamp{e.stamp("A"), e.stamp("B"), e.int("D")}
		r.unasked(e, false)
		return stamp, true
	case objects.Root:
		return nil, false
	case "PNT":
		if e.str("J") != "" {
			e.find(farmdata.KindUnreadable, "points in a binary file, which is not read; have them sent as XML")
			return nil, true
		}
	}
	if object = objects.New(e.tag); object == nil {
		return nil, false
	}
	a := &attributes{element: e}
	objects.Visit(a, e.tag, object)
	switch of := object.(type) {
	case *int:
		a.nothing = *of == 0
	case *string:
		if a.nothing = e.tag == "TLG" && *of == ""; e.tag == "TLG" {
			r.lengths[strings.ToLower(*of)], _ = e.whole("B", 0, math.MaxInt64)
		}
	}
	if a.nothing {
		return nil, true
	}
	r.unasked(e, false)
	return object, true
}

// unasked counts the attributes of an element that nobody asked for. An empty one says nothing, except in the header of a log.
func (r *setReader) unasked(e *element, header bool) {
	for _, attr := range e.attrs {
		name := attr.Name.Local
		asked := len(name) == 1 && e.asked&(1<<(name[0]-'A')) != 0 || slices.Contains(e.names, name) || unneeded[e.tag+" "+name]
		if !asked && (attr.Value != "" || header) && attr.Name.Space == "" && name != "xmlns" {
			r.skipped.add(skip{kind: farmdata.KindUnsupported, in: e.tag, tag: name, attribute: true}, e.spot)
		}
	}
}

// unneeded are the attributes that say nothing more: the length of a file, of which rows and columns say enough. It is only read.
var unneeded = map[string]bool{"GRD H": true}

type allocationStamp struct {
	start, stop farmdata.Stamp
	kind        int
}

// place puts an object into the one around it, and notes whether it belongs there.
type place struct {
	objects.None
	ctx    context.Context
	tag    string
	object any
	found  bool
}

func (p *place) Parts(_ int, kind string, list objects.List) {
	if kind == p.tag && p.object != nil {
		if list.Grow(p.ctx) { // else reading ends
			list.Add(p.object)
		}
		p.found = true
	}
}

// Allocated takes the first stamp of an allocation, which has one.
func (p *place) Allocated(_ int, start, stop *farmdata.Stamp, kind *int) {
	if stamp, ok := p.object.(*allocationStamp); ok && start.IsZero() && stop.IsZero() {
		*start, *stop, *kind = stamp.start, stamp.stop, stamp.kind
		p.found = true
	}
}

func (p *place) Positions(list *[]farmdata.Position) {
	if position, ok := p.object.(*farmdata.Position); ok {
		*list = append(*list, *position)
		p.found = true
	}
}

// put puts an object into one of the kind in, and reports whether it belongs there.
func (r *setReader) put(in string, parent any, tag string, object any) bool {
	p := &place{ctx: r.ctx, tag: tag, object: object}
	objects.Visit(p, in, parent)
	return p.found
}

// end puts an object where it belongs, wherever it is. One that belongs to what is not around it is left out.
func (r *setReader) end(parent, object any, at spot) {
	in := at.in
	if parent == any(r.set) { // which has another root in other files
		in = objects.Root
	}
	switch {
	case object == nil || object == any(r.set) || parent != nil && r.put(in, parent, at.tag, object):
	case r.put(objects.Root, r.set, at.tag, object):
		r.skipped.add(skip{kind: farmdata.KindOrphan, in: at.in, tag: at.tag}, at)
	default:
		r.skipped.misplaced(at)
	}
}
