package isoxml

import (
	"strconv"
	"strings"
	"time"

	"github.com/agrimill/agrimill/farmdata"
)

// attribute is an attribute that is written; an absent one is not.
type attribute struct {
	name, value string
	there       bool
}

// textOf is an attribute that is absent if it is empty.
func textOf(name, value string) attribute { return attribute{name, value, value != ""} }

// always is an attribute that 4.3 requires and that may be empty.
func always(name, value string) attribute { return attribute{name, value, true} }

// integer is a number of any size.
type integer interface{ ~int | ~int64 }

// number is a number of which 0 means that it is not given.
func number[T integer](name string, n T) attribute {
	return attribute{name, strconv.FormatInt(int64(n), 10), n != 0}
}

// count is a number that has a meaning when it is 0.
func count[T integer](name string, n T) attribute {
	return attribute{name, strconv.FormatInt(int64(n), 10), true}
}

// given is a number of which -1 means that it is not given.
func given(name string, n int) attribute { return attribute{name, strconv.Itoa(n), n != -1} }

// decimal is a number with decimals.
func decimal(name string, f float64, there bool) attribute {
	return attribute{name, strconv.FormatFloat(f, 'f', -1, 64), there}
}

// measured is a DDI. absent is what stands for none.
func measured(name string, ddi, absent farmdata.DDI) attribute {
	return attribute{name, ddi.String(), ddi != absent}
}

// amountOf is an amount that may be missing.
func amountOf(name string, raw int64, missing bool) attribute {
	return attribute{name, strconv.FormatInt(raw, 10), !missing}
}

func stampOf(name string, s farmdata.Stamp) attribute {
	return textOf(name, farmdata.Stamp{Wall: s.Wall, Local: s.Local}.String())
}

// xmlWriter makes XML.
type xmlWriter struct {
	b    []byte
	open bool // the last tag can still have children
}

const xmlDeclaration = `<?xml version="1.0" encoding="UTF-8"?>`

func (w *xmlWriter) begin(tag string, attributes ...attribute) {
	if w.open {
		w.b = append(w.b, '>')
	}
	w.b, w.open = append(append(w.b, "\n<"...), tag...), true
	for _, a := range attributes {
		if a.there {
			w.b = append(append(w.b, ' '), a.name...)
			w.b = appendValue(append(w.b, '='), a.value)
		}
	}
}

func (w *xmlWriter) end(tag string) {
	if w.open {
		w.b, w.open = append(w.b, "/>"...), false
		return
	}
	w.b = append(append(append(w.b, "\n</"...), tag...), '>')
}

// leaf writes an element without children.
func (w *xmlWriter) leaf(tag string, attributes ...attribute) {
	w.begin(tag, attributes...)
	w.end(tag)
}

// appendValue appends a value in quotes: those that it does not have, so that it becomes no longer than it has to.
func appendValue(b []byte, value string) []byte {
	quote := byte('"')
	if strings.Contains(value, `"`) && !strings.Contains(value, "'") {
		quote = '\''
	}
	b = append(b, quote)
	for i := range len(value) {
		switch c := value[i]; c {
		case '&':
			b = append(b, "&amp;"...)
		case '<':
			b = append(b, "&lt;"...)
		case '\t', '\n', '\r': // as they are, readers make spaces of them
			b = append(append(b, "&#"...), strconv.Itoa(int(c))...)
			b = append(b, ';')
		case quote:
			b = append(b, "&#34;"...)
		default:
			b = append(b, c)
		}
	}
	return append(b, quote)
}

// rootAttributes are those of TASKDATA.XML and LINKLIST.XML.
func rootAttributes(set *farmdata.Set) []attribute {
	return []attribute{
		count("VersionMajor", set.Major), count("VersionMinor", set.Minor),
		always("ManagementSoftwareManufacturer", set.Software), always("ManagementSoftwareVersion", set.SoftwareVersion),
		textOf("TaskControllerManufacturer", set.Controller), textOf("TaskControllerVersion", set.ControllerVersion),
		number("DataTransferOrigin", set.Origin),
	}
}

// taskData makes TASKDATA.XML, in the order in which the standard has its elements.
func taskData(set *farmdata.Set) []byte {
	const root = "ISO11783_TaskData"
	w := &xmlWriter{b: []byte(xmlDeclaration)}
	w.begin(root, rootAttributes(set)...)
	if len(set.Links) > 0 {
		w.leaf("AFE", always("A", "LINKLIST.XML"), always("B", "1"), always("C", ""), always("D", "1"))
	}
	w.work(set)
	for _, o := range set.CropTypes {
		w.begin("CTP", textOf("A", o.ID), always("B", o.Designator))
		for _, v := range o.Varieties {
			w.leaf("CVT", textOf("A", v.ID), always("B", v.Designator))
		}
		w.end("CTP")
	}
	for _, o := range set.Customers {
		w.leaf("CTR", textOf("A", o.ID), always("B", o.LastName), textOf("C", o.FirstName))
	}
	for i := range set.Devices {
		w.device(&set.Devices[i])
	}
	for _, o := range set.Farms {
		w.leaf("FRM", textOf("A", o.ID), always("B", o.Designator), textOf("I", o.CustomerID))
	}
	for i := range set.Fields {
		w.field(&set.Fields[i])
	}
	for _, o := range set.ProductGroups {
		w.leaf("PGP", textOf("A", o.ID), always("B", o.Designator))
	}
	for _, o := range set.Products {
		w.begin("PDT", textOf("A", o.ID), always("B", o.Designator), textOf("C", o.GroupID), textOf("D", o.Presentation), measured("E", o.DDI, 0),
			number("F", o.Type), number("G", o.Quantity))
		for _, part := range o.Parts {
			w.leaf("PRN", textOf("A", part.ProductID), amountOf("B", part.Raw, part.Missing))
		}
		w.end("PDT")
	}
	for i := range set.Tasks {
		w.task(&set.Tasks[i])
	}
	for _, o := range set.ValuePresentations {
		offset, scale, decimals := presented(o.Offset, o.Scale, o.Decimals)
		w.leaf("VPN", textOf("A", o.ID), offset, scale, decimals, textOf("E", o.Unit))
	}
	for _, o := range set.Workers {
		w.leaf("WKR", textOf("A", o.ID), always("B", o.LastName), textOf("C", o.FirstName))
	}
	w.end(root)
	return append(w.b, '\n')
}

// work writes kinds of work, and comments on it.
func (w *xmlWriter) work(set *farmdata.Set) {
	for _, o := range set.Comments {
		w.begin("CCT", textOf("A", o.ID), always("B", o.Designator), number("C", o.Scope), textOf("D", o.GroupID))
		for _, v := range o.Values {
			w.leaf("CCL", textOf("A", v.ID), always("B", v.Designator))
		}
		w.end("CCT")
	}
	for _, o := range set.CommentGroups {
		w.leaf("CCG", textOf("A", o.ID), always("B", o.Designator))
	}
	for _, o := range set.Practices {
		w.begin("CPC", textOf("A", o.ID), always("B", o.Designator))
		for _, id := range o.TechniqueIDs {
			w.leaf("OTR", textOf("A", id))
		}
		w.end("CPC")
	}
	for _, o := range set.Techniques {
		w.leaf("OTQ", textOf("A", o.ID), always("B", o.Designator))
	}
}

// linkList makes LINKLIST.XML; nil without links.
func linkList(set *farmdata.Set) []byte {
	if len(set.Links) == 0 {
		return nil
	}
	const root = "ISO11783LinkList"
	w := &xmlWriter{b: []byte(xmlDeclaration)}
	w.begin(root, rootAttributes(set)...)
	for _, group := range set.Links {
		w.begin("LGP", textOf("A", group.ID), number("B", group.Type), textOf("C", group.Manufacturer), textOf("D", group.Namespace), textOf("E", group.Designator))
		for _, link := range group.Links {
			w.leaf("LNK", textOf("A", link.ID), always("B", link.Value), textOf("C", link.Designator))
		}
		w.end("LGP")
	}
	w.end(root)
	return append(w.b, '\n')
}

// presented is offset, scale and decimals. Those without a scale say nothing.
func presented(offset int64, scale float64, decimals int) (b, c, d attribute) {
	b = count("B", offset)
	b.there = scale != 0 || offset != 0
	return b, decimal("C", scale, scale != 0), given("D", decimals)
}

func (w *xmlWriter) device(d *farmdata.Device) {
	w.begin("DVC", textOf("A", d.ID), textOf("B", d.Designator), textOf("C", d.SoftwareVersion), always("D", d.Name), textOf("E", d.SerialNumber),
		always("F", d.StructureLabel), always("G", d.LocalizationLabel))
	for _, e := range d.Elements {
		w.begin("DET", textOf("A", e.ID), number("B", e.ObjectID), number("C", e.Type), textOf("D", e.Designator), count("E", e.Number), count("F", e.ParentObjectID))
		for _, object := range e.Objects {
			w.leaf("DOR", count("A", object))
		}
		w.end("DET")
	}
	for _, p := range d.ProcessData {
		w.leaf("DPD", number("A", p.ObjectID), measured("B", p.DDI, farmdata.DDIUnknown), count("C", p.Property), count("D", p.Triggers),
			textOf("E", p.Designator), number("F", p.PresentationID))
	}
	for _, p := range d.Properties {
		w.leaf("DPT", number("A", p.ObjectID), measured("B", p.DDI, farmdata.DDIUnknown), count("C", p.Value), textOf("D", p.Designator), number("E", p.PresentationID))
	}
	for _, p := range d.Presentations {
		offset, scale, decimals := presented(p.Offset, p.Scale, p.Decimals)
		w.leaf("DVP", number("A", p.ObjectID), offset, scale, decimals, textOf("E", p.Unit))
	}
	w.end("DVC")
}

func (w *xmlWriter) field(f *farmdata.Field) {
	w.begin("PFD", textOf("A", f.ID), textOf("B", f.Code), always("C", f.Designator), count("D", f.Area), textOf("E", f.CustomerID), textOf("F", f.FarmID),
		textOf("G", f.CropTypeID), textOf("H", f.VarietyID), textOf("I", f.ParentID))
	w.polygons(f.Polygons)
	w.lines(f.Lines)
	w.points(f.Points)
	for _, group := range f.Guidance {
		w.begin("GGP", textOf("A", group.ID), textOf("B", group.Designator))
		for _, p := range group.Patterns {
			w.begin("GPN", textOf("A", p.ID), textOf("B", p.Designator), number("C", p.Type), decimal("G", p.Heading, p.Heading != 0), number("H", p.Radius))
			w.lines(p.Lines)
			w.polygons(p.Boundaries)
			w.end("GPN")
		}
		w.polygons(group.Boundaries)
		w.end("GGP")
	}
	w.end("PFD")
}

func (w *xmlWriter) polygons(list []farmdata.Polygon) {
	for _, p := range list {
		w.begin("PLN", number("A", p.Type), textOf("B", p.Designator), number("C", p.Area), textOf("E", p.ID))
		w.lines(p.Rings)
		w.end("PLN")
	}
}

func (w *xmlWriter) lines(list []farmdata.LineString) {
	for _, l := range list {
		w.begin("LSG", number("A", l.Type), textOf("B", l.Designator), textOf("F", l.ID))
		w.points(l.Points)
		w.end("LSG")
	}
}

func (w *xmlWriter) points(list []farmdata.Point) {
	for _, p := range list {
		north, east := placed("C", "D", p.North, p.East)
		w.leaf("PNT", number("A", p.Type), textOf("B", p.Designator), north, east, number("E", p.Up), textOf("G", p.ID))
	}
}

// placed is a place; 0, 0 is none.
func placed(latitude, longitude string, north, east float64) (a, b attribute) {
	there := north != 0 || east != 0
	return decimal(latitude, north, there), decimal(longitude, east, there)
}

func (w *xmlWriter) task(t *farmdata.Task) {
	w.begin("TSK", textOf("A", t.ID), textOf("B", t.Designator), textOf("C", t.CustomerID), textOf("D", t.FarmID), textOf("E", t.FieldID), textOf("F", t.WorkerID),
		number("G", t.Status), given("H", t.DefaultZone), given("I", t.LostZone), given("J", t.OutsideZone))
	for _, zone := range t.Zones {
		w.begin("TZN", given("A", zone.Code), textOf("B", zone.Designator))
		w.polygons(zone.Polygons)
		for _, v := range zone.Values {
			w.leaf("PDV", measured("A", v.DDI, farmdata.DDIUnknown), amountOf("B", v.Raw, v.Missing), textOf("C", v.ProductID), textOf("D", v.ElementID), textOf("E", v.Presentation))
		}
		w.end("TZN")
	}
	for i := range t.Times {
		w.time(&t.Times[i])
	}
	for _, o := range t.Operations {
		w.leaf("OTP", textOf("A", o.PracticeID), textOf("B", o.TechniqueID))
	}
	for _, a := range t.Workers {
		w.begin("WAN", textOf("A", a.WorkerID))
		w.allocated(a.Start, a.Stop, a.TimeType)
		w.end("WAN")
	}
	for _, d := range t.Devices {
		w.begin("DAN", textOf("A", d.Name), textOf("B", d.Mask), textOf("C", d.DeviceID))
		w.allocated(d.Start, d.Stop, d.TimeType)
		w.end("DAN")
	}
	for _, c := range t.Connections {
		w.leaf("CNN", textOf("A", c.Ends[0].DeviceID), textOf("B", c.Ends[0].ElementID), textOf("C", c.Ends[1].DeviceID), textOf("D", c.Ends[1].ElementID))
	}
	for _, p := range t.Products {
		w.begin("PAN", textOf("A", p.ProductID), measured("B", p.DDI, 0), amountOf("C", p.Raw, p.DDI == 0 && p.Raw == 0), number("D", p.Mode), textOf("E", p.ElementID), textOf("F", p.Presentation))
		w.allocated(p.Start, p.Stop, p.TimeType)
		w.end("PAN")
	}
	for _, c := range t.Comments {
		w.begin("CAN", textOf("A", c.CommentID), textOf("B", c.ValueID), textOf("C", c.Text))
		w.allocated(c.Start, c.Stop, c.TimeType)
		w.end("CAN")
	}
	for _, name := range t.LogNames {
		w.leaf("TLG", always("A", written(name)), always("C", "1"))
	}
	for _, g := range t.Grids {
		north, east := placed("A", "B", g.North, g.East)
		w.leaf("GRD", north, east, decimal("C", g.CellNorth, g.CellNorth != 0), decimal("D", g.CellEast, g.CellEast != 0), number("E", g.Cols), number("F", g.Rows),
			always("G", written(g.Name)), number("I", g.Type), given("J", g.Zone))
	}
	for _, g := range t.Guidance {
		w.begin("GAN", textOf("A", g.GroupID))
		w.allocated(g.Start, g.Stop, g.TimeType)
		w.end("GAN")
	}
	w.end("TSK")
}

// written is a file name as it is read, without an ending.
func written(name string) string {
	if trimEnding(name) != name {
		return name + ".BIN"
	}
	return name
}

func (w *xmlWriter) allocated(start, stop farmdata.Stamp, kind int) {
	if !start.IsZero() || !stop.IsZero() || kind != 0 {
		w.leaf("ASP", stampOf("A", start), stampOf("B", stop), number("D", kind))
	}
}

func (w *xmlWriter) time(t *farmdata.TaskTime) {
	w.begin("TIM", stampOf("A", t.Start), stampOf("B", t.Stop), number("C", int64(t.Duration/time.Second)), number("D", t.Type))
	for i := range t.Positions {
		w.position(&t.Positions[i])
	}
	for _, total := range t.Totals {
		w.leaf("DLV", measured("A", total.DDI, farmdata.DDIUnknown), count("B", total.Raw), textOf("C", total.ElementID))
	}
	w.end("TIM")
}

// position writes where a time began or ended.
func (w *xmlWriter) position(p *farmdata.Position) {
	var attributes []attribute
	for _, part := range positionParts {
		attributes = append(attributes, part.constant(p))
	}
	w.leaf("PTN", attributes...)
}
