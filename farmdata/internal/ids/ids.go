// Package ids finds what is wrong with the IDs of a set: those that are there twice, and references to what is not there.
package ids

import (
	"context"
	"fmt"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// kind is a kind of objects by the letters that it has in TaskData, one bit each.
type kind uint64

const (
	customer kind = 1 << iota
	farm
	field
	worker
	product
	productGroup
	cropType
	cropVariety
	valuePresentation
	task
	device
	element
	polygon
	lineString
	point
	guidanceGroup
	guidancePattern
	practice
	technique
	comment
	commentValue
	commentGroup
	linkGroup
	// What follows has no ID, or an object ID in its device, or a code in its task.
	processData
	property
	presentation
	objectReference
	zone
	zoneValue
	total
	deviceAllocation
	productAllocation
	guidanceAllocation
	productRelation
	techniqueReference
	operation
	workerAllocation
	connection
	commentAllocation
	link
)

// anything is every kind that has IDs.
const anything = linkGroup<<1 - 1

var letters = map[kind]string{
	customer: "CTR", farm: "FRM", field: "PFD", worker: "WKR", product: "PDT", productGroup: "PGP", cropType: "CTP", cropVariety: "CVT",
	valuePresentation: "VPN", task: "TSK", device: "DVC", element: "DET", polygon: "PLN", lineString: "LSG", point: "PNT", guidanceGroup: "GGP",
	guidancePattern: "GPN", linkGroup: "LGP", processData: "DPD", property: "DPT", presentation: "DVP", objectReference: "DOR", zone: "TZN",
	zoneValue: "PDV", total: "DLV", deviceAllocation: "DAN", productAllocation: "PAN", guidanceAllocation: "GAN", link: "LNK",
	practice: "CPC", technique: "OTQ", comment: "CCT", commentValue: "CCL", commentGroup: "CCG",
	productRelation: "PRN", techniqueReference: "OTR", operation: "OTP", workerAllocation: "WAN", connection: "CNN", commentAllocation: "CAN",
}

// String returns the letters of the kinds.
func (k kind) String() string {
	var names []string
	for one := kind(1); one <= link; one <<= 1 {
		if k&one != 0 {
			names = append(names, letters[one])
		}
	}
	return strings.Join(names, " or ")
}

// Check returns a finding for each kind of objects and of mistake, with how often it is there and where first, so there
// are only so many, however large the set is. known are devices outside of the set that it may refer to. What Check found
// until ctx ended is all that it returns.
func Check(ctx context.Context, set *farmdata.Set, known []farmdata.Device) []*farmdata.Finding {
	c := &checker{ctx: ctx, ids: map[string]kind{}, places: map[kind]int{}, found: map[string]*mistake{}}
	c.define(set)
	for _, d := range known {
		c.ids[d.ID] |= device
		for _, e := range d.Elements {
			c.ids[e.ID] |= element
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
	switch owners := c.ids[id]; {
	case c.done() || id == "":
		return
	case owners&of != 0:
		c.find(farmdata.KindDuplicate, of, of.String()+" with the ID of an earlier one")
	case owners != 0:
		c.find(farmdata.KindDuplicate, of, of.String()+" with the ID of an object of another kind")
	}
	c.ids[id] |= of
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
	case owners&to != 0:
	case to == anything:
		c.find(farmdata.KindReference, from, fmt.Sprintf("%s of %s is not there", name, from))
	case owners != 0:
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
	define(c, customer, set.Customers, func(o *farmdata.Customer) string { return o.ID })
	define(c, farm, set.Farms, func(o *farmdata.Farm) string { return o.ID })
	define(c, worker, set.Workers, func(o *farmdata.Worker) string { return o.ID })
	define(c, product, set.Products, func(o *farmdata.Product) string { return o.ID })
	define(c, productGroup, set.ProductGroups, func(o *farmdata.ProductGroup) string { return o.ID })
	for i := range set.CropTypes {
		c.object(cropType, set.CropTypes[i].ID)
		define(c, cropVariety, set.CropTypes[i].Varieties, func(o *farmdata.CropVariety) string { return o.ID })
	}
	define(c, valuePresentation, set.ValuePresentations, func(o *farmdata.ValuePresentation) string { return o.ID })
	define(c, practice, set.Practices, func(o *farmdata.CulturalPractice) string { return o.ID })
	define(c, technique, set.Techniques, func(o *farmdata.OperationTechnique) string { return o.ID })
	define(c, commentGroup, set.CommentGroups, func(o *farmdata.CommentGroup) string { return o.ID })
	for i := range set.Comments {
		c.object(comment, set.Comments[i].ID)
		define(c, commentValue, set.Comments[i].Values, func(o *farmdata.CommentValue) string { return o.ID })
	}
	define(c, linkGroup, set.Links, func(o *farmdata.LinkGroup) string { return o.ID })
	for i := range set.Fields {
		c.defineField(&set.Fields[i])
	}
	for _, o := range set.Devices {
		c.object(device, o.ID)
		define(c, element, o.Elements, func(o *farmdata.Element) string { return o.ID })
	}
	for _, o := range set.Tasks {
		c.object(task, o.ID)
		for _, z := range o.Zones {
			c.polygons(z.Polygons)
		}
	}
}

func (c *checker) defineField(f *farmdata.Field) {
	c.object(field, f.ID)
	c.polygons(f.Polygons)
	c.lines(f.Lines)
	c.points(f.Points)
	for _, group := range f.Guidance {
		c.object(guidanceGroup, group.ID)
		c.polygons(group.Boundaries)
		for _, pattern := range group.Patterns {
			c.object(guidancePattern, pattern.ID)
			c.lines(pattern.Lines)
			c.polygons(pattern.Boundaries)
		}
	}
}

func (c *checker) polygons(list []farmdata.Polygon) {
	for _, o := range list {
		c.object(polygon, o.ID)
		c.lines(o.Rings)
	}
}

func (c *checker) lines(list []farmdata.LineString) {
	for _, o := range list {
		c.object(lineString, o.ID)
		c.points(o.Points)
	}
}

func (c *checker) points(list []farmdata.Point) {
	define(c, point, list, func(o *farmdata.Point) string { return o.ID })
}

// inDevice checks the object IDs of a device. 0 is none.
func (c *checker) inDevice(d *farmdata.Device) {
	objects := map[int]kind{}
	define := func(of kind, id int) {
		switch c.places[of]++; {
		case c.done() || id == 0:
		case objects[id] != 0:
			c.find(farmdata.KindDuplicate, of, of.String()+" with the object ID of an earlier one of its device")
			objects[id] |= of
		default:
			objects[id] = of
		}
	}
	elements, values, properties := c.places[element], c.places[processData], c.places[property]
	for _, o := range d.Elements {
		define(element, o.ObjectID)
	}
	for _, o := range d.ProcessData {
		define(processData, o.ObjectID)
	}
	for _, o := range d.Properties {
		define(property, o.ObjectID)
	}
	for _, o := range d.Presentations {
		define(presentation, o.ObjectID)
	}
	c.places[element], c.places[processData], c.places[property] = elements, values, properties
	refer := func(from kind, name string, id int, to kind) {
		if !c.done() && id != 0 {
			c.resolved(from, name, objects[id], to)
		}
	}
	for _, o := range d.Elements {
		c.places[element]++
		refer(element, "parent", o.ParentObjectID, element)
		for _, object := range o.Objects {
			c.places[objectReference]++
			refer(objectReference, "object", object, processData|property)
		}
	}
	for _, o := range d.ProcessData {
		c.places[processData]++
		refer(processData, "presentation", o.PresentationID, presentation)
	}
	for _, o := range d.Properties {
		c.places[property]++
		refer(property, "presentation", o.PresentationID, presentation)
	}
}

// refer checks the references of all objects.
func (c *checker) refer(set *farmdata.Set) {
	for _, o := range set.Farms {
		c.places[farm]++
		c.reference(farm, "customer", o.CustomerID, customer)
	}
	for _, o := range set.Products {
		c.places[product]++
		c.reference(product, "group", o.GroupID, productGroup)
		c.reference(product, "presentation", o.Presentation, valuePresentation)
		for _, part := range o.Parts {
			c.places[productRelation]++
			c.reference(productRelation, "product", part.ProductID, product)
		}
	}
	for _, o := range set.Practices {
		for _, id := range o.TechniqueIDs {
			c.places[techniqueReference]++
			c.reference(techniqueReference, "technique", id, technique)
		}
	}
	for _, o := range set.Comments {
		c.places[comment]++
		c.reference(comment, "group", o.GroupID, commentGroup)
	}
	for _, o := range set.Fields {
		c.places[field]++
		c.reference(field, "customer", o.CustomerID, customer)
		c.reference(field, "farm", o.FarmID, farm)
		c.reference(field, "crop", o.CropTypeID, cropType)
		c.reference(field, "variety", o.VarietyID, cropVariety)
		c.reference(field, "parent", o.ParentID, field)
	}
	for i := range set.Tasks {
		c.places[task]++
		c.referOfTask(&set.Tasks[i])
		c.referOfWork(&set.Tasks[i])
		c.zones(&set.Tasks[i])
	}
	for _, group := range set.Links {
		for _, o := range group.Links {
			c.places[link]++
			if modeled(o.ID) {
				c.reference(link, "object", o.ID, anything)
			}
		}
	}
}

// modeled reports whether an ID begins with the letters of a kind that is read. Links may be of others, too.
func modeled(id string) bool {
	for one := customer; one <= linkGroup; one <<= 1 {
		if strings.HasPrefix(id, letters[one]) {
			return true
		}
	}
	return false
}

func (c *checker) referOfTask(t *farmdata.Task) {
	c.reference(task, "customer", t.CustomerID, customer)
	c.reference(task, "farm", t.FarmID, farm)
	c.reference(task, "field", t.FieldID, field)
	c.reference(task, "worker", t.WorkerID, worker)
	for _, at := range t.Times {
		for _, o := range at.Totals {
			c.places[total]++
			c.reference(total, "device element", o.ElementID, element)
		}
	}
	for _, z := range t.Zones {
		for _, o := range z.Values {
			c.places[zoneValue]++
			c.reference(zoneValue, "product", o.ProductID, product)
			c.reference(zoneValue, "device element", o.ElementID, element)
			c.reference(zoneValue, "presentation", o.Presentation, valuePresentation)
		}
	}
	for _, o := range t.Devices {
		c.places[deviceAllocation]++
		c.reference(deviceAllocation, "device", o.DeviceID, device)
	}
	for _, o := range t.Products {
		c.places[productAllocation]++
		c.reference(productAllocation, "product", o.ProductID, product)
		c.reference(productAllocation, "device element", o.ElementID, element)
		c.reference(productAllocation, "presentation", o.Presentation, valuePresentation)
	}
	for _, o := range t.Guidance {
		c.places[guidanceAllocation]++
		c.reference(guidanceAllocation, "guidance group", o.GroupID, guidanceGroup)
	}
}

func (c *checker) referOfWork(t *farmdata.Task) {
	for _, o := range t.Operations {
		c.places[operation]++
		c.reference(operation, "practice", o.PracticeID, practice)
		c.reference(operation, "technique", o.TechniqueID, technique)
	}
	for _, o := range t.Workers {
		c.places[workerAllocation]++
		c.reference(workerAllocation, "worker", o.WorkerID, worker)
	}
	for _, o := range t.Connections {
		c.places[connection]++
		for _, end := range o.Ends {
			c.reference(connection, "device", end.DeviceID, device)
			c.reference(connection, "device element", end.ElementID, element)
		}
	}
	for _, o := range t.Comments {
		c.places[commentAllocation]++
		c.reference(commentAllocation, "comment", o.CommentID, comment)
		c.reference(commentAllocation, "value", o.ValueID, commentValue)
	}
}

// zones checks the codes of the treatment zones of a task. -1 is none.
func (c *checker) zones(t *farmdata.Task) {
	codes := map[int]kind{}
	for _, z := range t.Zones {
		c.places[zone]++
		switch {
		case c.done() || z.Code < 0:
		case codes[z.Code] != 0:
			c.find(farmdata.KindDuplicate, zone, zone.String()+" with the code of an earlier one of its task")
		default:
			codes[z.Code] = zone
		}
	}
	for i, code := range []int{t.DefaultZone, t.LostZone, t.OutsideZone} {
		if !c.done() && code >= 0 {
			c.resolved(task, []string{"default zone", "zone without a position", "zone outside of the field"}[i], codes[code], zone)
		}
	}
}
