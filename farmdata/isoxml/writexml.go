package isoxml

import (
	"encoding/xml"
	"strconv"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/objects"
)

// xmlWriter makes XML: the attributes of the object that is begun, then its parts.
type xmlWriter struct {
	b    []byte
	open bool // the last tag can still have attributes and parts
	list bool // of links, which are in a file of their own
}

const xmlDeclaration = `<?xml version="1.0" encoding="UTF-8"?>`

func (w *xmlWriter) begin(tag string) {
	if w.open {
		w.b = append(w.b, '>')
	}
	w.b, w.open = append(append(w.b, "\n<"...), tag...), true
}

func (w *xmlWriter) end(tag string) {
	if w.open {
		w.b, w.open = append(w.b, "/>"...), false
		return
	}
	w.b = append(append(append(w.b, "\n</"...), tag...), '>')
}

func (w *xmlWriter) attribute(name, value string) {
	w.b = append(append(w.b, ' '), name...)
	w.b = appendValue(append(w.b, '='), value)
}

func (w *xmlWriter) object(tag string, object any) {
	w.begin(tag)
	objects.Visit(w, tag, object)
	w.end(tag)
}

// Needs does nothing: what is not there is not written. The methods below write an attribute.
func (w *xmlWriter) Needs(...string) {}

func (w *xmlWriter) ID(letter string, id *string) { w.Text(letter, id, 0) }

func (w *xmlWriter) Reference(letter, _, _ string, id *string) { w.Text(letter, id, 0) }

func (w *xmlWriter) Text(letter string, text *string, use objects.Use) {
	if *text != "" || use&objects.Required != 0 {
		w.attribute(letter, *text)
	}
}

func (w *xmlWriter) File(letter string, name *string) { w.attribute(letter, written(*name)) }

func (w *xmlWriter) Whole(letter string, n int64, use objects.Use) int64 {
	absent := int64(0)
	if use&objects.Optional != 0 {
		absent = -1
	}
	if n != absent || use&objects.Required != 0 {
		w.attribute(letter, strconv.FormatInt(n, 10))
	}
	return n
}

func (w *xmlWriter) Float(letter string, f *float64, _ objects.Use) {
	w.decimal(letter, *f, *f != 0)
}

func (w *xmlWriter) decimal(letter string, f float64, there bool) {
	if there {
		w.attribute(letter, strconv.FormatFloat(f, 'f', -1, 64))
	}
}

func (w *xmlWriter) DDI(letter string, ddi *farmdata.DDI, use objects.Use) {
	absent := farmdata.DDI(0)
	if use&objects.Required != 0 {
		absent = farmdata.DDIUnknown
	}
	if *ddi != absent {
		w.attribute(letter, ddi.String())
	}
}

func (w *xmlWriter) Value(letter string, raw *int64, missing *bool, _ objects.Use) {
	if missing == nil || !*missing {
		w.attribute(letter, strconv.FormatInt(*raw, 10))
	}
}

func (w *xmlWriter) Place(latitude, longitude string, north, east *float64) {
	there := *north != 0 || *east != 0
	w.decimal(latitude, *north, there)
	w.decimal(longitude, *east, there)
}

func (w *xmlWriter) Stamp(letter string, s *farmdata.Stamp) {
	text := farmdata.Stamp{Wall: s.Wall, Local: s.Local}.String()
	w.Text(letter, &text, 0)
}

// Parts writes objects in the order in which the standard has them.
func (w *xmlWriter) Parts(_ int, kind string, list objects.List) {
	if (kind == "LGP") != w.list && kind != "LNK" {
		return
	}
	for i := range list.Len() {
		w.object(kind, list.At(i))
	}
}

func (w *xmlWriter) Allocated(_ int, start, stop *farmdata.Stamp, kind *int) {
	if start.IsZero() && stop.IsZero() && *kind == 0 {
		return
	}
	w.begin("ASP")
	w.Stamp("A", start)
	w.Stamp("B", stop)
	w.Whole("D", int64(*kind), 0)
	w.end("ASP")
}

// Positions writes where a time began and ended.
func (w *xmlWriter) Positions(list *[]farmdata.Position) {
	for i := range *list {
		p := &(*list)[i]
		var attributes []xml.Attr
		for j := range positionParts {
			if part := &positionParts[j]; p.Has&part.has != 0 {
				attributes = append(attributes, part.attribute(p))
			}
		}
		w.position(attributes)
	}
}

func (w *xmlWriter) position(attributes []xml.Attr) {
	w.begin("PTN")
	for _, a := range attributes {
		w.attribute(a.Name.Local, a.Value)
	}
	w.end("PTN")
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

// root begins TASKDATA.XML or LINKLIST.XML.
func (w *xmlWriter) root(tag string, set *farmdata.Set) {
	w.begin(tag)
	w.Whole("VersionMajor", int64(set.Major), objects.Required)
	w.Whole("VersionMinor", int64(set.Minor), objects.Required)
	w.Text("ManagementSoftwareManufacturer", &set.Software, objects.Required)
	w.Text("ManagementSoftwareVersion", &set.SoftwareVersion, objects.Required)
	w.Text("TaskControllerManufacturer", &set.Controller, 0)
	w.Text("TaskControllerVersion", &set.ControllerVersion, 0)
	w.Whole("DataTransferOrigin", int64(set.Origin), 0)
}

// taskData makes TASKDATA.XML, in the order in which the standard has its elements.
func taskData(set *farmdata.Set) []byte {
	w := &xmlWriter{b: []byte(xmlDeclaration)}
	w.root(objects.Root, set)
	if len(set.Links) > 0 {
		w.begin("AFE")
		for i, value := range []string{"LINKLIST.XML", "1", "", "1"} {
			w.attribute(string(rune('A'+i)), value)
		}
		w.end("AFE")
	}
	objects.Visit(w, objects.Root, set)
	w.end(objects.Root)
	return append(w.b, '\n')
}

// linkList makes LINKLIST.XML; nil without links.
func linkList(set *farmdata.Set) []byte {
	if len(set.Links) == 0 {
		return nil
	}
	const root = "ISO11783LinkList"
	w := &xmlWriter{b: []byte(xmlDeclaration), list: true}
	w.root(root, set)
	objects.Visit(w, objects.Root, set)
	w.end(root)
	return append(w.b, '\n')
}

// written is a file name as it is read, without an ending.
func written(name string) string {
	if trimEnding(name) != name {
		return name + ".BIN"
	}
	return name
}
