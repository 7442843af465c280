// Package ids finds what is wrong with the IDs of a set: those that are there twice, and references to what is not there.
package ids

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// kind is a kind of objects by the letters that it has in TaskData, or several of them: "DPD or DPT". Some have no ID, or an
// object ID in their device, or a code in their task.
type kind string

// and is both kinds.
func (k kind) and(of kind) kind {
	switch {
	case k == "":
		return of
	case k.has(of):
		return k
	}
	return k + " or " + of
}

// has reports whether one of the kinds is one of others.
func (k kind) has(others kind) bool {
	for one := range strings.SplitSeq(string(others), " or ") {
		if strings.Contains(string(k), one) {
			return true
		}
	}
	return false
}

// withID are the kinds of objects that have IDs, by the letters that they have in TaskData. An ID begins with them.
var withID = []string{
	"CTR", "FRM", "PFD", "WKR", "PDT", "PGP", "CTP", "CVT", "VPN", "TSK", "DVC", "DET", "PLN", "LSG", "PNT", "GGP",
	"GPN", "CPC", "OTQ", "CCT", "CCL", "CCG", "LGP",
}

// anything is every kind that has IDs.
const anything kind = ""

// Check returns a finding for each kind of objects and of mistake, with how often it is there and where first, so there
// are only so many, however large the set is. known are devices outside of the set that it may refer to. What Check found
// until ctx ended is all that it returns.
func Check(ctx context.Context, set *farmdata.Set, known []farmdata.Device) []*farmdata.Finding {
	c := &checker{ctx: ctx, ids: map[string]kind{}, places: map[kind]int{}, found: map[string]*mistake{}}
	c.define(set)
	for _, d := range known {
		c.ids[d.ID] = c.ids[d.ID].and("DVC")
		for _, e := range d.Elements {
			c.ids[e.ID] = c.ids[e.ID].and("DET")
		}
	}
	clear(c.places)
	for i := range set.Devices {
		c.inDevice(&set.Devices[i])
	}
	clear(c.places)
	c.refer(set)
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
	ids    map[string]kind // the kinds of objects that have an ID
	places map[kind]int    // how many objects of a kind there were
	steps  int
	over   bool // ctx has ended
	order  []*mistake
	found  map[string]*mistake // by what
}

func (c *checker) find(kind farmdata.Kind, of kind, what string) {
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

// object notes the ID of an object. Nothing can refer to one without.
func (c *checker) object(of kind, id string) {
	c.places[of]++
	owners := c.ids[id]
	switch {
	case c.done() || id == "":
		return
	case owners.has(of):
		c.find(farmdata.KindDuplicate, of, string(of)+" with the ID of an earlier one")
	case owners != "":
		c.find(farmdata.KindDuplicate, of, string(of)+" with the ID of an object of another kind")
	}
	c.ids[id] = owners.and(of)
}

// reference checks that what an object refers to is there. An empty one refers to nothing.
func (c *checker) reference(from kind, name, id string, to kind) {
	if c.done() || id == "" {
		return
	}
	c.resolved(from, name, c.ids[id], to)
}

func (c *checker) resolved(from kind, name string, owners, to kind) {
	switch {
	case to == anything && owners != "", to != anything && owners.has(to):
	case to == anything:
		c.find(farmdata.KindReference, from, fmt.Sprintf("%s of %s is not there", name, from))
	case owners != "":
		c.find(farmdata.KindReference, from, fmt.Sprintf("%s of %s is no %s, but an object of another kind", name, from, to))
	default:
		c.find(farmdata.KindReference, from, fmt.Sprintf("%s of %s is a %s that is not there", name, from, to))
	}
}

// define notes the IDs of the objects of a kind.
func define[T any](c *checker, of kind, list []T, id func(*T) string) {
	for i := range list {
		c.object(of, id(&list[i]))
	}
}

// define notes the IDs of all objects.
func (c *checker) define(set *farmdata.Set) {
	define(c, "CTR", set.Customers, func(o *farmdata.Customer) string { return o.ID })
	define(c, "FRM", set.Farms, func(o *farmdata.Farm) string { return o.ID })
	define(c, "WKR", set.Workers, func(o *farmdata.Worker) string { return o.ID })
	define(c, "PDT", set.Products, func(o *farmdata.Product) string { return o.ID })
	define(c, "PGP", set.ProductGroups, func(o *farmdata.ProductGroup) string { return o.ID })
	for i := range set.CropTypes {
		c.object("CTP", set.CropTypes[i].ID)
		define(c, "CVT", set.CropTypes[i].Varieties, func(o *farmdata.CropVariety) string { return o.ID })
	}
	define(c, "VPN", set.ValuePresentations, func(o *farmdata.ValuePresentation) string { return o.ID })
	define(c, "CPC", set.Practices, func(o *farmdata.CulturalPractice) string { return o.ID })
	define(c, "OTQ", set.Techniques, func(o *farmdata.OperationTechnique) string { return o.ID })
	define(c, "CCG", set.CommentGroups, func(o *farmdata.CommentGroup) string { return o.ID })
	for i := range set.Comments {
		c.object("CCT", set.Comments[i].ID)
		define(c, "CCL", set.Comments[i].Values, func(o *farmdata.CommentValue) string { return o.ID })
	}
	define(c, "LGP", set.Links, func(o *farmdata.LinkGroup) string { return o.ID })
	for i := range set.Fields {
		c.defineField(&set.Fields[i])
	}
	for _, o := range set.Devices {
		c.object("DVC", o.ID)
		define(c, "DET", o.Elements, func(o *farmdata.Element) string { return o.ID })
	}
	for _, o := range set.Tasks {
		c.object("TSK", o.ID)
		for _, z := range o.Zones {
			c.polygons(z.Polygons)
		}
	}
}

func (c *checker) defineField(f *farmdata.Field) {
	c.object("PFD", f.ID)
	c.polygons(f.Polygons)
	c.lines(f.Lines)
	c.points(f.Points)
	for _, group := range f.Guidance {
		c.object("GGP", group.ID)
		c.polygons(group.Boundaries)
		for _, pattern := range group.Patterns {
			c.object("GPN", pattern.ID)
			c.lines(pattern.Lines)
			c.polygons(pattern.Boundaries)
		}
	}
}

func (c *checker) polygons(list []farmdata.Polygon) {
	for _, o := range list {
		c.object("PLN", o.ID)
		c.lines(o.Rings)
	}
}

func (c *checker) lines(list []farmdata.LineString) {
	for _, o := range list {
		c.object("LSG", o.ID)
		c.points(o.Points)
	}
}

func (c *checker) points(list []farmdata.Point) {
	define(c, "PNT", list, func(o *farmdata.Point) string { return o.ID })
}

// inDevice checks the object IDs of a device. 0 is none.
func (c *checker) inDevice(d *farmdata.Device) {
	objects := map[int]kind{}
	define := func(of kind, id int) {
		switch c.places[of]++; {
		case c.done() || id == 0:
		case objects[id] != "":
			c.find(farmdata.KindDuplicate, of, string(of)+" with the object ID of an earlier one of its device")
			objects[id] = objects[id].and(of)
		default:
			objects[id] = of
		}
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
	refer := func(from kind, name string, id int, to kind) {
		if !c.done() && id != 0 {
			c.resolved(from, name, objects[id], to)
		}
	}
	for _, o := range d.Elements {
		c.places["DET"]++
		refer("DET", "parent", o.ParentObjectID, "DET")
		for _, object := range o.Objects {
			c.places["DOR"]++
			refer("DOR", "object", object, "DPD or DPT")
		}
	}
	for _, o := range d.ProcessData {
		c.places["DPD"]++
		refer("DPD", "presentation", o.PresentationID, "DVP")
	}
	for _, o := range d.Properties {
		c.places["DPT"]++
		refer("DPT", "presentation", o.PresentationID, "DVP")
	}
}

// refer checks the references of all objects.
func (c *checker) refer(set *farmdata.Set) {
	for _, o := range set.Farms {
		c.places["FRM"]++
		c.reference("FRM", "customer", o.CustomerID, "CTR")
	}
	for _, o := range set.Products {
		c.places["PDT"]++
		c.reference("PDT", "group", o.GroupID, "PGP")
		c.reference("PDT", "presentation", o.Presentation, "VPN")
		for _, part := range o.Parts {
			c.places["PRN"]++
			c.reference("PRN", "product", part.ProductID, "PDT")
		}
	}
	for _, o := range set.Practices {
		for _, id := range o.TechniqueIDs {
			c.places["OTR"]++
			c.reference("OTR", "technique", id, "OTQ")
		}
	}
	for _, o := range set.Comments {
		c.places["CCT"]++
		c.reference("CCT", "group", o.GroupID, "CCG")
	}
	for _, o := range set.Fields {
		c.places["PFD"]++
		c.reference("PFD", "customer", o.CustomerID, "CTR")
		c.reference("PFD", "farm", o.FarmID, "FRM")
		c.reference("PFD", "crop", o.CropTypeID, "CTP")
		c.reference("PFD", "variety", o.VarietyID, "CVT")
		c.reference("PFD", "parent", o.ParentID, "PFD")
	}
	for i := range set.Tasks {
		c.places["TSK"]++
		c.referOfTask(&set.Tasks[i])
		c.referOfWork(&set.Tasks[i])
		c.zones(&set.Tasks[i])
	}
	for _, group := range set.Links {
		for _, o := range group.Links {
			c.places["LNK"]++
			if modeled(o.ID) {
				c.reference("LNK", "object", o.ID, anything)
			}
		}
	}
}

// modeled reports whether an ID begins with the letters of a kind that is read. Links may be of others, too.
func modeled(id string) bool {
	return slices.ContainsFunc(withID, func(letters string) bool { return strings.HasPrefix(id, letters) })
}

func (c *checker) referOfTask(t *farmdata.Task) {
	c.reference("TSK", "customer", t.CustomerID, "CTR")
	c.reference("TSK", "farm", t.FarmID, "FRM")
	c.reference("TSK", "field", t.FieldID, "PFD")
	c.reference("TSK", "worker", t.WorkerID, "WKR")
	for _, at := range t.Times {
		for _, o := range at.Totals {
			c.places["DLV"]++
			c.reference("DLV", "device element", o.ElementID, "DET")
		}
	}
	for _, z := range t.Zones {
		for _, o := range z.Values {
			c.places["PDV"]++
			c.reference("PDV", "product", o.ProductID, "PDT")
			c.reference("PDV", "device element", o.ElementID, "DET")
			c.reference("PDV", "presentation", o.Presentation, "VPN")
		}
	}
	for _, o := range t.Devices {
		c.places["DAN"]++
		c.reference("DAN", "device", o.DeviceID, "DVC")
	}
	for _, o := range t.Products {
		c.places["PAN"]++
		c.reference("PAN", "product", o.ProductID, "PDT")
		c.reference("PAN", "device element", o.ElementID, "DET")
		c.reference("PAN", "presentation", o.Presentation, "VPN")
	}
	for _, o := range t.Guidance {
		c.places["GAN"]++
		c.reference("GAN", "guidance group", o.GroupID, "GGP")
	}
}

func (c *checker) referOfWork(t *farmdata.Task) {
	for _, o := range t.Operations {
		c.places["OTP"]++
		c.reference("OTP", "practice", o.PracticeID, "CPC")
		c.reference("OTP", "technique", o.TechniqueID, "OTQ")
	}
	for _, o := range t.Workers {
		c.places["WAN"]++
		c.reference("WAN", "worker", o.WorkerID, "WKR")
	}
	for _, o := range t.Connections {
		c.places["CNN"]++
		for _, end := range o.Ends {
			c.reference("CNN", "device", end.DeviceID, "DVC")
			c.reference("CNN", "device element", end.ElementID, "DET")
		}
	}
	for _, o := range t.Comments {
		c.places["CAN"]++
		c.reference("CAN", "comment", o.CommentID, "CCT")
		c.reference("CAN", "value", o.ValueID, "CCL")
	}
}

// zones checks the codes of the treatment zones of a task. -1 is none.
func (c *checker) zones(t *farmdata.Task) {
	codes := map[int]kind{}
	for _, z := range t.Zones {
		c.places["TZN"]++
		switch {
		case c.done() || z.Code < 0:
		case codes[z.Code] != "":
			c.find(farmdata.KindDuplicate, "TZN", "TZN with the code of an earlier one of its task")
		default:
			codes[z.Code] = "TZN"
		}
	}
	for i, code := range []int{t.DefaultZone, t.LostZone, t.OutsideZone} {
		if !c.done() && code >= 0 {
			c.resolved("TSK", []string{"default zone", "zone without a position", "zone outside of the field"}[i], codes[code], "TZN")
		}
	}
}
