// Package ids finds what is wrong with the IDs of a set: those that are there twice, and references to what is not there.
package ids

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/objects"
)

// letters are the kinds of objects that others refer to, by the letters that they have in TaskData. An ID begins with those of its
// kind. The last ones have none, but an object ID in their device, or a code in their task.
var letters = []string{
	"CTR", "FRM", "PFD", "WKR", "PDT", "PGP", "CTP", "CVT", "VPN", "TSK", "DVC", "DET", "PLN", "LSG", "PNT", "GGP",
	"GPN", "CPC", "OTQ", "CCT", "CCL", "CCG", "LGP", "BSN",
	"DPD", "DPT", "DVP", "TZN",
}

var withID = letters[:24]

// kinds is some of them, one bit each.
type kinds uint32

// of is a kind by its letters; objects.Any is none of those.
func of(kind string) kinds {
	if kind == objects.Any {
		return 0
	}
	return 1 << slices.Index(letters, kind)
}

// String returns the letters of the kinds.
func (k kinds) String() string {
	var names []string
	for _, kind := range letters {
		if k&of(kind) != 0 {
			names = append(names, kind)
		}
	}
	return strings.Join(names, " or ")
}

// Check returns a finding for each kind of objects and of mistake, with how often it is there and where first, so there
// are only so many, however large the set is. known are devices outside of the set that it may refer to. What Check found
// until ctx ended is all that it returns.
func Check(ctx context.Context, set *farmdata.Set, known []farmdata.Device) []*farmdata.Finding {
	c := &checker{ctx: ctx, ids: map[string]kinds{}, places: map[string]int{}, found: map[string]*mistake{}}
	c.walk(&walk{checker: c, define: true}, objects.Root, set)
	for _, d := range known {
		c.ids[d.ID] |= of("DVC")
		for _, e := range d.Elements {
			c.ids[e.ID] |= of("DET")
		}
	}
	clear(c.places)
	for i := range set.Devices {
		c.inDevice(&set.Devices[i])
	}
	clear(c.places)
	c.walk(&walk{checker: c}, objects.Root, set)
	clear(c.places)
	for i := range set.Tasks {
		c.places["TSK"]++
		c.zones(&set.Tasks[i])
	}
	return c.findings()
}

// mistake is one kind of mistakes.
type mistake struct {
	kind  farmdata.Kind
	what  string
	at    string // the first one
	times int
}

type checker struct {
	ctx    context.Context
	ids    map[string]kinds // of the objects that have an ID
	places map[string]int   // how many objects of a kind there were
	steps  int
	over   bool // ctx has ended
	order  []*mistake
	found  map[string]*mistake // by what
}

func (c *checker) find(kind farmdata.Kind, of, what string) {
	m := c.found[what]
	if m == nil {
		m = &mistake{kind: kind, what: what, at: fmt.Sprint(of, " ", c.places[of])}
		c.found[what] = m
		c.order = append(c.order, m)
	}
	m.times++
}

func (c *checker) findings() (list []*farmdata.Finding) {
	for _, m := range c.order {
		detail := fmt.Sprintf("%s: %d, the first at %s", m.what, m.times, m.at)
		list = append(list, &farmdata.Finding{Kind: m.kind, Offset: -1, Record: -1, Detail: detail})
	}
	return list
}

// done counts a step, and reports whether ctx has ended.
func (c *checker) done() bool {
	if c.steps++; c.steps%1024 == 0 && c.ctx.Err() != nil {
		c.over = true
	}
	return c.over
}

// resolved checks a reference to an object that is one of kinds; of any kind if that is none.
func (c *checker) resolved(from, name string, owners, to kinds) {
	switch {
	case to == 0 && owners != 0, owners&to != 0:
	case to == 0:
		c.find(farmdata.KindReference, from, fmt.Sprintf("%s of %s is not there", name, from))
	case owners != 0:
		c.find(farmdata.KindReference, from, fmt.Sprintf("%s of %s is no %s, but an object of another kind", name, from, to))
	default:
		c.find(farmdata.KindReference, from, fmt.Sprintf("%s of %s is a %s that is not there", name, from, to))
	}
}

// walk goes through objects and their parts. First it notes their IDs, so that the second time it can check references.
type walk struct {
	objects.None
	*checker
	define bool
	kind   string // of the object
}

func (c *checker) walk(w *walk, kind string, object any) {
	c.places[kind]++
	w.kind = kind
	objects.Visit(w, kind, object)
}

// ID notes the ID of the object. Nothing can refer to one without.
func (w *walk) ID(_ string, id *string) {
	if !w.define || w.done() || *id == "" {
		return
	}
	owners, kind := w.ids[*id], of(w.kind)
	switch {
	case owners&kind != 0:
		w.find(farmdata.KindDuplicate, w.kind, w.kind+" with the ID of an earlier one")
	case owners != 0:
		w.find(farmdata.KindDuplicate, w.kind, w.kind+" with the ID of an object of another kind")
	}
	w.ids[*id] = owners | kind
}

// Reference checks that what the object refers to is there. An empty one refers to nothing.
func (w *walk) Reference(_, name, to string, id *string) {
	if w.define || w.done() || *id == "" {
		return
	}
	if to == objects.Any && !slices.ContainsFunc(withID, func(letters string) bool { return strings.HasPrefix(*id, letters) }) {
		return
	}
	w.resolved(w.kind, name, w.ids[*id], of(to))
}

// Parts goes through them: they come last, so the kind of the object is not needed any more.
func (w *walk) Parts(_ int, kind string, list objects.List) {
	for i := range list.Len() {
		w.walk(w, kind, list.At(i))
	}
}

// inDevice checks the object IDs of a device. 0 is none.
func (c *checker) inDevice(d *farmdata.Device) {
	objects := map[int]kinds{}
	define := func(kind string, id int) {
		if c.places[kind]++; c.done() || id == 0 {
			return
		}
		if objects[id] != 0 {
			c.find(farmdata.KindDuplicate, kind, kind+" with the object ID of an earlier one of its device")
		}
		objects[id] |= of(kind)
	}
	elements, values, properties := c.places["DET"], c.places["DPD"], c.places["DPT"]
	for _, o := range d.Elements {
		define("DET", o.ObjectID)
	}
	for _, o := range d.ProcessData {
		define("DPD", o.ObjectID)
	}
	for _, o := range d.Properties {
		define("DPT", o.ObjectID)
	}
	for _, o := range d.Presentations {
		define("DVP", o.ObjectID)
	}
	c.places["DET"], c.places["DPD"], c.places["DPT"] = elements, values, properties
	refer := func(from, name string, id int, to kinds) {
		if !c.done() && id != 0 {
			c.resolved(from, name, objects[id], to)
		}
	}
	for _, o := range d.Elements {
		c.places["DET"]++
		refer("DET", "parent", o.ParentObjectID, of("DET"))
		for _, object := range o.Objects {
			c.places["DOR"]++
			refer("DOR", "object", object, of("DPD")|of("DPT"))
		}
	}
	for _, o := range d.ProcessData {
		c.places["DPD"]++
		refer("DPD", "presentation", o.PresentationID, of("DVP"))
	}
	for _, o := range d.Properties {
		c.places["DPT"]++
		refer("DPT", "presentation", o.PresentationID, of("DVP"))
	}
}

// zones checks the codes of the treatment zones of a task. -1 is none.
func (c *checker) zones(t *farmdata.Task) {
	codes := map[int]kinds{}
	for _, z := range t.Zones {
		c.places["TZN"]++
		switch {
		case c.done() || z.Code < 0:
		case codes[z.Code] != 0:
			c.find(farmdata.KindDuplicate, "TZN", "TZN with the code of an earlier one of its task")
		default:
			codes[z.Code] = of("TZN")
		}
	}
	for i, code := range []int{t.DefaultZone, t.LostZone, t.OutsideZone} {
		if !c.done() && code >= 0 {
			c.resolved("TSK", []string{"default zone", "zone without a position", "zone outside of the field"}[i], codes[code], of("TZN"))
		}
	}
}
