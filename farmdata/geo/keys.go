package geo

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// Keys names columns for a table: the DDI and the device element, e.g. "0043_DET-1",
// and PGN and bits of a CAN message between them, with "_" for what is neither a letter
// or digit of ASCII nor "-". Names differ in more than letter case: of several columns
// that would have the same one, the second gets it with "_2", and so on. The zero
// value is ready for use, by one goroutine.
type Keys struct {
	names   map[*farmdata.Column]string // since Begin
	seen    map[kind]int                // since Begin
	kinds   map[kind]string
	taken   map[string]bool
	columns []*farmdata.Column
	list    []string // the names of columns
}

// kind is what columns of several logs, grids or zones have in common if they are one column of a table.
type kind struct {
	ddi                       farmdata.DDI
	element, id, device, unit string
	pgn                       uint32
	start, stop               uint8
	again                     int // of those since Begin
}

// Begin says that the columns that follow are of another log, grid or treatment zone: those that mean the same as
// earlier ones get the same names.
func (k *Keys) Begin() {
	clear(k.names)
	clear(k.seen)
}

// Name returns the name of a column, the same until Begin is called. Columns that differ have names that differ until then.
func (k *Keys) Name(column *farmdata.Column) string {
	if name, ok := k.names[column]; ok {
		return name
	}
	if k.names == nil {
		k.names, k.kinds, k.seen, k.taken = map[*farmdata.Column]string{}, map[kind]string{}, map[kind]int{}, map[string]bool{}
	}
	of := kind{ddi: column.DDI, element: column.ElementID, id: column.DeviceID, device: column.Device, unit: column.Unit,
		pgn: column.PGN, start: column.StartBit, stop: column.StopBit}
	k.seen[of]++
	of.again = k.seen[of]
	name, ok := k.kinds[of]
	if !ok {
		name = k.free(base(column))
		k.kinds[of], k.taken[strings.ToLower(name)] = name, true
		k.columns, k.list = append(k.columns, column), append(k.list, name)
	}
	k.names[column] = name
	return name
}

func base(column *farmdata.Column) string {
	name := column.DDI.String()
	if column.CAN() {
		name += fmt.Sprintf("_%d_%d-%d", column.PGN, column.StartBit, column.StopBit)
	}
	if column.ElementID != "" {
		name += "_" + strings.Map(plain, column.ElementID)
	}
	return name
}

func (k *Keys) free(base string) string {
	name := base
	for n := 2; k.taken[strings.ToLower(name)]; n++ {
		name = base + "_" + strconv.Itoa(n)
	}
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
	for i, c := range k.columns {
		list[k.list[i]] = Description{c.DDI.String(), c.Name, c.Unit, c.Element, c.Device}
	}
	return list
}

// Columns are those that were named, in that order; of those with the same name the first one.
func (k *Keys) Columns() []*farmdata.Column { return k.columns }
