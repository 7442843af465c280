// Package names finds what the IDs of a set stand for: for maps and summaries, which show names beside IDs.
package names

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// Separator stands between the IDs, and between the names, of several objects.
const Separator = "; "

// What something on a map refers to.
const (
	Task     = "task"
	Field    = "field"
	Farm     = "farm"
	Customer = "customer"
	Product  = "product"
	Machine  = "machine"
	Operator = "operator"
)

// Directory has the objects of a set by ID. Of objects with the same ID the first one counts.
type Directory struct {
	tasks  map[string]*farmdata.Task
	fields map[string]*farmdata.Field
	farms  map[string]*farmdata.Farm
	names  map[string]map[string]string // of other objects, by kind and ID
}

// New returns the directory of a set; nil stands for an empty one.
func New(set *farmdata.Set) *Directory {
	if set == nil {
		set = &farmdata.Set{}
	}
	return &Directory{
		tasks:  index(set.Tasks, func(t *farmdata.Task) (string, *farmdata.Task) { return t.ID, t }),
		fields: index(set.Fields, func(f *farmdata.Field) (string, *farmdata.Field) { return f.ID, f }),
		farms:  index(set.Farms, func(f *farmdata.Farm) (string, *farmdata.Farm) { return f.ID, f }),
		names: map[string]map[string]string{
			Customer: index(set.Customers, func(c *farmdata.Customer) (string, string) { return c.ID, person(c.FirstName, c.LastName) }),
			Product:  index(set.Products, func(p *farmdata.Product) (string, string) { return p.ID, p.Designator }),
			Machine:  index(set.Devices, func(d *farmdata.Device) (string, string) { return d.ID, d.Designator }),
			Operator: index(set.Workers, func(w *farmdata.Worker) (string, string) { return w.ID, person(w.FirstName, w.LastName) }),
		},
	}
}

func person(first, last string) string { return strings.TrimSpace(first + " " + last) }

// index has what object makes of the objects of a list, by ID.
func index[T, V any](list []T, object func(*T) (id string, v V)) map[string]V {
	m := make(map[string]V, len(list))
	for i := len(list) - 1; i >= 0; i-- {
		id, v := object(&list[i])
		m[id] = v
	}
	delete(m, "") // an empty ID is none
	return m
}

// Reference is what a row of a map refers to: IDs and names, each empty if there is none.
type Reference struct{ ID, Name string }

// Subject is what a row of a map is about.
type Subject struct {
	Tasks []*farmdata.Task
	// Field is that of a boundary; otherwise nil.
	Field *farmdata.Field
	// Machines are IDs of devices. Without, those count that were allocated to the tasks.
	Machines []string
	// Products are IDs, one for each value of a zone or cell, empty for none; nil if there are none.
	Products []string
	// Prescribed says that no other products count: those that were allocated to the tasks.
	Prescribed bool
}

// Of returns what a row refers to.
func (d *Directory) Of(attribute string, s Subject) Reference {
	if attribute == Product && s.Prescribed {
		return d.products(s.Products)
	}
	var r list
	add := func(id string) { r.add(id, d.names[attribute][id]) }
	if s.Field != nil {
		d.ofField(&r, attribute, s.Field)
	}
	if attribute == Machine {
		for _, id := range s.Machines {
			add(id)
		}
	}
	for _, task := range s.Tasks {
		switch attribute {
		case Task:
			r.add(task.ID, task.Designator)
		case Operator:
			add(task.WorkerID)
		case Product:
			for _, p := range task.Products {
				add(p.ProductID)
			}
		case Machine:
			if len(s.Machines) == 0 {
				for _, device := range task.Devices {
					add(device.DeviceID)
				}
			}
		default:
			d.ofTask(&r, attribute, task)
		}
	}
	return r.reference()
}

// ofTask adds the field, farm or customer of a task, which may have the latter two of its field or farm.
func (d *Directory) ofTask(r *list, attribute string, task *farmdata.Task) {
	field := farmdata.Field{ID: task.FieldID}
	if known := d.fields[task.FieldID]; known != nil && task.FieldID != "" {
		field = *known
	}
	field.FarmID, field.CustomerID = cmp.Or(task.FarmID, field.FarmID), cmp.Or(task.CustomerID, field.CustomerID)
	d.ofField(r, attribute, &field)
}

func (d *Directory) ofField(r *list, attribute string, field *farmdata.Field) {
	farm := d.farms[field.FarmID]
	if farm == nil {
		farm = &farmdata.Farm{ID: field.FarmID}
	}
	switch attribute {
	case Field:
		r.add(field.ID, field.Designator)
	case Farm:
		r.add(farm.ID, farm.Designator)
	case Customer:
		id := cmp.Or(field.CustomerID, farm.CustomerID)
		r.add(id, d.names[Customer][id])
	}
}

// products returns what the values of a zone or cell are of. If they are of different products, or only some of them are of
// one, each value has its place, which is empty for none.
func (d *Directory) products(ids []string) Reference {
	var r list
	if one := slices.Compact(slices.Clone(ids)); len(one) <= 1 {
		ids = one
	}
	for _, id := range ids {
		r.ids.List, r.names = append(r.ids.List, id), append(r.names, d.names[Product][id])
	}
	return r.reference()
}

// Unique is texts, each once, none of them empty.
type Unique struct {
	List  []string
	known map[string]bool
}

// Add reports whether a text is a new one.
func (u *Unique) Add(text string) bool {
	if text == "" || u.known[text] {
		return false
	}
	if u.known == nil {
		u.known = map[string]bool{}
	}
	u.known[text], u.List = true, append(u.List, text)
	return true
}

// list is several objects.
type list struct {
	ids   Unique
	names []string
}

// add adds an object, once.
func (l *list) add(id, name string) {
	if l.ids.Add(id) {
		l.names = append(l.names, name)
	}
}

// reference returns all objects as one; of those without a name the ID, if others have names.
func (l *list) reference() Reference {
	if !slices.ContainsFunc(l.names, func(name string) bool { return name != "" }) {
		return Reference{ID: strings.Join(l.ids.List, Separator)}
	}
	shown := slices.Clone(l.names)
	for i, name := range shown {
		if name == "" {
			shown[i] = l.ids.List[i]
		}
	}
	return Reference{strings.Join(l.ids.List, Separator), strings.Join(shown, Separator)}
}

// Zone returns the designator of the treatment zone with a code; empty if it has none.
func Zone(p *farmdata.Prescription, code int) string {
	if len(p.Tasks) > 0 && code >= 0 {
		for i := range p.Tasks[0].Zones {
			if zone := &p.Tasks[0].Zones[i]; zone.Code == code {
				return zone.Designator
			}
		}
	}
	return ""
}

// machinesOf returns the IDs of the devices that the values of a log are of. A log that does not say its columns is read once.
func machinesOf(log *farmdata.Log) []string {
	var ids Unique
	for i := range log.Columns {
		ids.Add(log.Columns[i].DeviceID)
	}
	if len(log.Columns) > 0 {
		return ids.List
	}
	for record, err := range log.Records {
		if err == nil {
			for _, v := range record.Values {
				ids.Add(v.Column.DeviceID)
			}
		}
	}
	return ids.List
}

// Prescribed returns the attributes of a prescription map with those that were asked for: those that the map has as a whole, or
// those of its zones.
func Prescribed[A ~string](p *farmdata.Prescription, add []A, ofZone bool) (list []A) {
	if len(p.Tasks) > 0 {
		list = []A{Task, Field, Product}
	}
	for _, attribute := range add {
		if !slices.Contains(list, attribute) {
			list = append(list, attribute)
		}
	}
	return slices.DeleteFunc(list, func(a A) bool { return (a == Product) != ofZone })
}

// Log returns the subject of the rows of a log.
func (d *Directory) Log(log *farmdata.Log, machines bool) (s Subject) {
	if task := d.tasks[log.TaskID]; task != nil {
		s.Tasks = []*farmdata.Task{task}
	} else if log.TaskID != "" {
		s.Tasks = []*farmdata.Task{{ID: log.TaskID}}
	}
	if machines {
		s.Machines = machinesOf(log)
	}
	return s
}
