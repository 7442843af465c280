package farmdata

import (
	"iter"
	"slices"
)

// byID returns the first object with an ID; nil if there is none, or the ID is empty.
func byID[T any](list []T, id string, of func(*T) string) *T {
	for i := range list {
		if id != "" && of(&list[i]) == id {
			return &list[i]
		}
	}
	return nil
}

// Task returns the task with an ID; nil if there is none. It looks at one after the other, as the methods below do; an
// empty ID is none, and of several with the same ID the first one counts.
func (s *Set) Task(id string) *Task {
	return byID(s.Tasks, id, func(o *Task) string { return o.ID })
}

// Device returns the device with an ID; nil if there is none.
func (s *Set) Device(id string) *Device {
	return byID(s.Devices, id, func(o *Device) string { return o.ID })
}

// Element returns the device element with an ID and its device; nil if there is none.
func (s *Set) Element(id string) (*Element, *Device) {
	for i := range s.Devices {
		if e := byID(s.Devices[i].Elements, id, func(o *Element) string { return o.ID }); e != nil {
			return e, &s.Devices[i]
		}
	}
	return nil, nil
}

// Field returns the field with an ID; nil if there is none.
func (s *Set) Field(id string) *Field {
	return byID(s.Fields, id, func(o *Field) string { return o.ID })
}

// Farm returns the farm with an ID; nil if there is none.
func (s *Set) Farm(id string) *Farm {
	return byID(s.Farms, id, func(o *Farm) string { return o.ID })
}

// Customer returns the customer with an ID; nil if there is none.
func (s *Set) Customer(id string) *Customer {
	return byID(s.Customers, id, func(o *Customer) string { return o.ID })
}

// Worker returns the worker with an ID; nil if there is none.
func (s *Set) Worker(id string) *Worker {
	return byID(s.Workers, id, func(o *Worker) string { return o.ID })
}

// Product returns the product with an ID; nil if there is none.
func (s *Set) Product(id string) *Product {
	return byID(s.Products, id, func(o *Product) string { return o.ID })
}

// Practice returns the cultural practice with an ID; nil if there is none.
func (s *Set) Practice(id string) *CulturalPractice {
	return byID(s.Practices, id, func(o *CulturalPractice) string { return o.ID })
}

// Technique returns the operation technique with an ID; nil if there is none.
func (s *Set) Technique(id string) *OperationTechnique {
	return byID(s.Techniques, id, func(o *OperationTechnique) string { return o.ID })
}

// Comment returns the coded comment with an ID; nil if there is none.
func (s *Set) Comment(id string) *CodedComment {
	return byID(s.Comments, id, func(o *CodedComment) string { return o.ID })
}

// Place is a kind of places where a set mentions a DDI.
type Place string

// Places that mention a DDI, with the letters that they have in TaskData.
const (
	PlaceProcessData Place = "process data" // DPD: a device describes values of it
	PlaceProperty    Place = "property"     // DPT: a device describes its own value
	PlaceProduct     Place = "product"      // PDT: amounts of a product are in it
	PlaceTotal       Place = "total"        // DLV of TIM: a task has a value of it
	PlaceZone        Place = "zone"         // PDV: a treatment zone has a value of it, or the cells of a grid have
	PlaceAllocation  Place = "allocation"   // PAN: an amount of a product is in it
	PlaceLog         Place = "log"          // DLV of a log: its header has it, with or without values
)

// Mention is a place where a set mentions a DDI. The IDs are those that the place has, Log is the name of a log.
type Mention struct {
	DDI                                    DDI
	Place                                  Place
	TaskID, DeviceID, ElementID, ProductID string
	Log                                    string
}

// Mentions goes through the places that mention one of the DDIs; without any, through all that mention one. A log of EFDI says
// only in its records what it has (Log.Columns), so it is not among them.
func (s *Set) Mentions(ddis ...DDI) iter.Seq[Mention] {
	return func(yield func(Mention) bool) {
		ended := false
		tell := func(m Mention) {
			if !ended && (len(ddis) == 0 || slices.Contains(ddis, m.DDI)) {
				ended = !yield(m)
			}
		}
		s.describing(tell)
		s.working(tell)
		for _, log := range s.Logs {
			for i := range log.Columns {
				c := &log.Columns[i]
				tell(Mention{DDI: c.DDI, Place: PlaceLog, TaskID: log.TaskID, DeviceID: c.DeviceID, ElementID: c.ElementID, Log: log.Name})
			}
		}
	}
}

func (s *Set) describing(tell func(Mention)) {
	for i := range s.Devices {
		d := &s.Devices[i]
		for _, p := range d.ProcessData {
			tell(Mention{DDI: p.DDI, Place: PlaceProcessData, DeviceID: d.ID})
		}
		for _, p := range d.Properties {
			tell(Mention{DDI: p.DDI, Place: PlaceProperty, DeviceID: d.ID})
		}
	}
	for _, p := range s.Products {
		if p.DDI != 0 {
			tell(Mention{DDI: p.DDI, Place: PlaceProduct, ProductID: p.ID})
		}
	}
}

func (s *Set) working(tell func(Mention)) {
	for i := range s.Tasks {
		t := &s.Tasks[i]
		for _, at := range t.Times {
			for _, total := range at.Totals {
				tell(Mention{DDI: total.DDI, Place: PlaceTotal, TaskID: t.ID, ElementID: total.ElementID})
			}
		}
		for _, zone := range t.Zones {
			for _, v := range zone.Values {
				tell(Mention{DDI: v.DDI, Place: PlaceZone, TaskID: t.ID, ElementID: v.ElementID, ProductID: v.ProductID})
			}
		}
		for _, p := range t.Products {
			if p.DDI != 0 {
				tell(Mention{DDI: p.DDI, Place: PlaceAllocation, TaskID: t.ID, ElementID: p.ElementID, ProductID: p.ProductID})
			}
		}
	}
}

// Machine is a machine of a set, and what it did.
type Machine struct {
	// Names are its ISO 11783 NAMEs, 16 hexadecimal digits: that of its description first, then others by which tasks name it.
	Names []string
	// Designator is what it is called; empty if nothing says so.
	Designator string
	// Device is its description; nil if the set has none, but a task names the machine.
	Device *Device
	// Tasks are those that it is allocated to, in the order of the data.
	Tasks []*Task
	// Logs are those that have values of it, and of EFDI, where logs do not say, those of its Tasks.
	Logs []*Log
}

// Machines returns the machines of a set: its devices, then those that tasks name without a description.
func (s *Set) Machines() []*Machine {
	w := machines{byDevice: map[string]*Machine{}, byName: map[string]*Machine{}, byTask: map[string][]*Machine{}, named: map[machineName]bool{}}
	for i := range s.Devices {
		d := &s.Devices[i]
		m := &Machine{Designator: d.Designator, Device: d}
		w.list = append(w.list, m)
		if w.byDevice[d.ID] == nil && d.ID != "" {
			w.byDevice[d.ID] = m
		}
		w.name(m, d.Name)
	}
	for i := range s.Tasks {
		w.task(&s.Tasks[i])
	}
	for _, log := range s.Logs {
		w.log(log)
	}
	return w.list
}

type machines struct {
	list             []*Machine
	byDevice, byName map[string]*Machine
	byTask           map[string][]*Machine
	named            map[machineName]bool
}

type machineName struct {
	machine *Machine
	name    string
}

func (w *machines) name(m *Machine, name string) {
	key := machineName{m, name}
	if name == "" || w.named[key] {
		return
	}
	w.named[key] = true
	m.Names = append(m.Names, name)
	if w.byName[name] == nil {
		w.byName[name] = m
	}
}

func (w *machines) task(t *Task) {
	for _, a := range t.Devices {
		m := w.byDevice[a.DeviceID]
		if m == nil {
			m = w.byName[a.Name]
		}
		if m == nil {
			if a.Name == "" {
				continue
			}
			m = &Machine{}
			w.list = append(w.list, m)
		}
		w.name(m, a.Name)
		if len(m.Tasks) == 0 || m.Tasks[len(m.Tasks)-1] != t {
			m.Tasks = append(m.Tasks, t)
			if t.ID != "" {
				w.byTask[t.ID] = append(w.byTask[t.ID], m)
			}
		}
	}
}

func (w *machines) log(log *Log) {
	of := w.byTask[log.TaskID]
	if len(log.Columns) > 0 {
		of = nil
		for i := range log.Columns {
			if m := w.byDevice[log.Columns[i].DeviceID]; m != nil && !slices.Contains(of, m) {
				of = append(of, m)
			}
		}
	}
	for _, m := range of {
		m.Logs = append(m.Logs, log)
	}
}
