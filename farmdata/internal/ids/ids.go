// Package ids finds what is wrong with the IDs of a set: those that are there twice, and references to what is not there.
package ids

import (
	"context"
	"fmt"
	"maps"
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
		c.inside("DVC", &set.Devices[i])
	}
	clear(c.places)
	c.walk(&walk{checker: c}, objects.Root, set)
	clear(c.places)
	for i := range set.Tasks {
		c.inside("TSK", &set.Tasks[i])
	}
	return c.findings()
}

// inside checks the object IDs of a device, or the codes of treatment zones of a task, which only what is inside of it refers to.
func (c *checker) inside(kind string, object any) {
	w, before := &walk{checker: c, define: true, local: map[int]kinds{}}, maps.Clone(c.places)
	c.walk(w, kind, object)
	c.places, w.define = before, false
	c.walk(w, kind, object)
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
	kind   string        // of the object
	local  map[int]kinds // of the objects inside of one, by number; nil: IDs of the whole set are checked
}

// locals are the numbers of objects that are local to a device or task, by kind and letter, and what it is called that has one twice. It is only read.
var locals = map[string]string{
	"DET B": "the object ID of an earlier one of its device", "DPD A": "the object ID of an earlier one of its device",
	"DPT A": "the object ID of an earlier one of its device", "DVP A": "the object ID of an earlier one of its device", "TZN A": "the code of an earlier one of its task",
}

// localReferences are the attributes that refer to such numbers: what that object is, and its kinds. It is only read.
var localReferences = map[string]struct {
	name string
	to   kinds
}{
	"DET F": {"parent", of("DET")}, "DOR A": {"object", of("DPD") | of("DPT")}, "DPD F": {"presentation", of("DVP")}, "DPT E": {"presentation", of("DVP")},
	"TSK H": {"default zone", of("TZN")}, "TSK I": {"zone without a position", of("TZN")}, "TSK J": {"zone outside of the field", of("TZN")},
}

// Whole notes a number that is local to the device or task, or checks that the object is there that it refers to. An object ID of 0 is
// none, and so is a code of -1.
func (w *walk) Whole(letter string, n int64, use objects.Use) int64 {
	attribute, number := w.kind+" "+letter, int(n)
	none := n == 0 && use&objects.Optional == 0 || n < 0 && use&objects.Optional != 0
	if w.local == nil || w.done() || none {
		return n
	}
	if twice, defines := locals[attribute]; defines && w.define {
		if w.local[number] != 0 {
			w.find(farmdata.KindDuplicate, w.kind, w.kind+" with "+twice)
		}
		w.local[number] |= of(w.kind)
	} else if to, refers := localReferences[attribute]; refers && !w.define {
		w.resolved(w.kind, to.name, w.local[number], to.to)
	}
	return n
}

func (c *checker) walk(w *walk, kind string, object any) {
	c.places[kind]++
	w.kind = kind
	objects.Visit(w, kind, object)
}

// ID notes the ID of the object. Nothing can refer to one without, but values are of a device by its ID, so two without one are the same.
func (w *walk) ID(_ string, id *string) {
	if w.local != nil || !w.define || w.done() || *id == "" && w.kind != "DVC" {
		return
	}
	owners, kind := w.ids[*id], of(w.kind)
	switch {
	case owners&kind != 0 && *id == "":
		w.find(farmdata.KindDuplicate, w.kind, w.kind+" without an ID, as an earlier one")
	case owners&kind != 0:
		w.find(farmdata.KindDuplicate, w.kind, w.kind+" with the ID of an earlier one")
	case owners != 0:
		w.find(farmdata.KindDuplicate, w.kind, w.kind+" with the ID of an object of another kind")
	}
	w.ids[*id] = owners | kind
}

// Reference checks that what the object refers to is there. An empty one refers to nothing.
func (w *walk) Reference(_, name, to string, id *string) {
	if w.local != nil || w.define || w.done() || *id == "" {
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
