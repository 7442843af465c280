package geo

import (
	"strconv"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// Keys names columns for a table: the DDI and the device element, e.g. "0043_DET-1",
// with "_" for what is neither a letter or digit of ASCII nor "-". Names differ in
// more than letter case: of several columns that would have the same one, the second
// gets it with "_2", and so on. The zero value is ready for use, by one goroutine.
type Keys struct {
	names   map[*farmdata.Column]string
	taken   map[string]bool
	columns []*farmdata.Column
}

// Name returns the name of a column, always the same.
func (k *Keys) Name(column *farmdata.Column) string {
	if name, ok := k.names[column]; ok {
		return name
	}
	if k.names == nil {
		k.names, k.taken = map[*farmdata.Column]string{}, map[string]bool{}
	}
	base := column.DDI.String()
	if column.ElementID != "" {
		base += "_" + strings.Map(plain, column.ElementID)
	}
	name := base
	for n := 2; k.taken[strings.ToLower(name)]; n++ {
		name = base + "_" + strconv.Itoa(n)
	}
	k.names[column], k.taken[strings.ToLower(name)] = name, true
	k.columns = append(k.columns, column)
	return name
}

func plain(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
		return r
	}
	return '_'
}

// Description says what a column is.
type Description struct {
	// DDI has four hexadecimal digits, Name is for people.
	DDI  string `json:"ddi"`
	Name string `json:"name"`
	// Unit is what the scaled values are in; empty if unknown.
	Unit string `json:"unit"`
	// Element and Device are designators.
	Element string `json:"element"`
	Device  string `json:"device"`
}

// Descriptions says what the columns that were named are, by name.
func (k *Keys) Descriptions() map[string]Description {
	list := make(map[string]Description, len(k.columns))
	for _, c := range k.columns {
		list[k.names[c]] = Description{c.DDI.String(), c.Name, c.Unit, c.Element, c.Device}
	}
	return list
}

// Columns are those that were named, in that order.
func (k *Keys) Columns() []*farmdata.Column { return k.columns }
