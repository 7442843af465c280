package isoxml

import (
	"fmt"
	"regexp"

	"github.com/agrimill/agrimill/farmdata"
)

// skipped counts the elements that are not read, or not where they are, by their names, so that there are few findings of any number of them.
type skipped struct {
	order  []*skip
	byName map[skip]*skip // by the fields up to tag
}

// skip is elements or attributes of one name; all others if that is empty.
type skip struct {
	kind farmdata.Kind
	in   string // the element around them, if it matters
	tag  string
	// attribute says that tag is one of the elements in.
	attribute bool
	at        spot // the first one
	times     int
}

// mostNames is how many names are told apart.
const mostNames = 50

// plainName is what names of TaskData, and of what makers add to it, look like. Others may be anything.
var plainName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,31}$`)

// unread counts an element that this library does not read.
func (l *skipped) unread(at spot) {
	l.add(skip{kind: farmdata.KindUnsupported, tag: at.tag}, at)
}

// misplaced counts an element that is read, but not there.
func (l *skipped) misplaced(at spot) {
	if at.tag == "ASP" || at.tag == "PTN" && at.in == "ASP" { // it may be there: of what is not read, and where it begins
		l.unread(at)
		return
	}
	l.add(skip{kind: farmdata.KindSyntax, in: at.in, tag: at.tag}, at)
}

func (l *skipped) add(key skip, at spot) {
	if !plainName.MatchString(key.tag) || key.in != "" && !plainName.MatchString(key.in) || len(l.order) >= mostNames && l.byName[key] == nil {
		key.in, key.tag, key.attribute = "", "", false
	}
	if l.byName[key] == nil {
		if l.byName == nil {
			l.byName = map[skip]*skip{}
		}
		first := key
		first.at = at
		l.byName[key] = &first
		l.order = append(l.order, &first)
	}
	l.byName[key].times++
}

// findings returns one for each name.
func (l *skipped) findings() (list []*farmdata.Finding) {
	for _, of := range l.order {
		name, what := of.tag, "elements"
		switch {
		case name == "":
			name = "of other names"
		case of.attribute:
			name, what = name+" of "+of.in, "attributes"
		case of.in != "":
			name += " in " + of.in
		}
		becomes := map[farmdata.Kind]string{
			farmdata.KindUnsupported: "which are not read",
			farmdata.KindOrphan:      "where they do not belong",
			farmdata.KindSyntax:      "where they do not belong, which are left out",
		}[of.kind]
		list = append(list, &farmdata.Finding{Kind: of.kind, File: of.at.file, Offset: of.at.offset, Record: -1,
			Detail: fmt.Sprintf("%s %s, %s: %d", what, name, becomes, of.times)})
	}
	return list
}
