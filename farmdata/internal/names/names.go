// Package names finds what the IDs of a set stand for: for maps and summaries, which show names beside IDs.
package names

import (
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// Separator stands between the IDs, and between the names, of several objects.
const Separator = "; "

// Directory has the names of a set by kind of objects and ID. Of objects with the same ID the first one counts.
type Directory struct{ fields, products map[string]string }

// New returns the directory of a set; nil stands for an empty one.
func New(set *farmdata.Set) *Directory {
	d := &Directory{fields: map[string]string{}, products: map[string]string{}}
	if set == nil {
		return d
	}
	for _, f := range slices.Backward(set.Fields) {
		d.fields[f.ID] = f.Designator
	}
	for _, p := range slices.Backward(set.Products) {
		d.products[p.ID] = p.Designator
	}
	return d
}

// Reference is what a row of a map refers to: IDs and names, each empty if there is none.
type Reference struct{ ID, Name string }

// Tasks returns the reference to tasks.
func (d *Directory) Tasks(tasks []*farmdata.Task) Reference {
	var r list
	for _, task := range tasks {
		r.add(task.ID, task.Designator)
	}
	return r.reference()
}

// Fields returns the reference to the fields of tasks.
func (d *Directory) Fields(tasks []*farmdata.Task) Reference {
	var r list
	for _, task := range tasks {
		r.add(task.FieldID, d.fields[task.FieldID])
	}
	return r.reference()
}

// Products returns the reference to what the values of a zone or cell are of. If the values are of different products,
// or only some of them are of one, each value has its place, which is empty for none.
func (d *Directory) Products(ids []string) Reference {
	var r list
	if one := slices.Compact(slices.Clone(ids)); len(one) <= 1 {
		ids = one
	}
	for _, id := range ids {
		r.ids, r.names = append(r.ids, id), append(r.names, d.products[id])
	}
	return r.reference()
}

// list is several objects.
type list struct {
	ids, names []string
	known      map[string]bool
}

// add adds an object, once.
func (l *list) add(id, name string) {
	if id != "" && !l.known[id] {
		if l.known == nil {
			l.known = map[string]bool{}
		}
		l.known[id] = true
		l.ids, l.names = append(l.ids, id), append(l.names, name)
	}
}

// reference returns all objects as one; of those without a name the ID, if others have names.
func (l *list) reference() Reference {
	if !slices.ContainsFunc(l.names, func(name string) bool { return name != "" }) {
		return Reference{ID: strings.Join(l.ids, Separator)}
	}
	shown := slices.Clone(l.names)
	for i, name := range shown {
		if name == "" {
			shown[i] = l.ids[i]
		}
	}
	return Reference{strings.Join(l.ids, Separator), strings.Join(shown, Separator)}
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
