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
	// Select says which columns there are, and how they are written. Empty means all as they are. It must not change once a
	// column was named.
	Select []Column
	// Finding is called for each selected column whose values cannot be converted. Nil means nobody.
	Finding func(*farmdata.Finding)

	keys    map[*farmdata.Column]*Key // since Begin; nil for what is not written
	seen    map[kind]int              // since Begin; of a name of its own with a number whether it is there, without one the number up to which all are
	numbers map[kind]int              // that a meaning had first with a name of its own
	kinds   map[kind]string
	taken   map[string]bool // names in lower case; false: of Select, and still to be used
	tried   map[string]int  // by name in lower case, the number that was free last
	list    []named
}

type named struct {
	*Key
	column *farmdata.Column
}

// kind is what columns of several logs, grids or zones have in common if they are one column of a table.
type kind struct {
	ddi                       farmdata.DDI
	element, id, device, unit string
	as                        string // of those with a name of their own; nothing else but the unit
	pgn                       uint32
	start, stop               uint8
	again                     int // of those since Begin
}

// Begin says that the columns that follow are of another log, grid or treatment zone: those that mean the same as
// earlier ones get the same names.
func (k *Keys) Begin() {
	clear(k.keys)
	clear(k.seen)
}

// BeginLog is Begin for a log: of its columns that get the same name the first one of its header counts as the first, whichever has a
// value first.
func (k *Keys) BeginLog(log *farmdata.Log) {
	k.Begin()
	for i := range log.Columns {
		k.Key(&log.Columns[i])
	}
}

// Name returns the name of a column, the same until Begin is called; empty if it is not written. Columns that differ have
// names that differ until then.
func (k *Keys) Name(column *farmdata.Column) string {
	if key := k.Key(column); key != nil {
		return key.Name
	}
	return ""
}

// Key returns how the values of a column are written; nil if they are not.
func (k *Keys) Key(column *farmdata.Column) *Key {
	key, known := k.keys[column]
	if known {
		return key
	}
	if k.keys == nil {
		k.keys, k.kinds, k.seen, k.taken = map[*farmdata.Column]*Key{}, map[kind]string{}, map[kind]int{}, map[string]bool{}
		k.numbers, k.tried = map[kind]int{}, map[string]int{}
		for _, c := range k.Select {
			k.taken[strings.ToLower(c.As)] = false
		}
	}
	if selected := k.selected(column); selected != nil {
		key = k.make(column, selected)
	}
	k.keys[column] = key
	return key
}

// selected returns what is to become of a column; nil for nothing.
func (k *Keys) selected(column *farmdata.Column) *Column {
	if len(k.Select) == 0 {
		return &Column{}
	}
	for i := range k.Select {
		if k.Select[i].fits(column) {
			return &k.Select[i]
		}
	}
	return nil
}

func (k *Keys) make(column *farmdata.Column, selected *Column) *Key {
	key, ok := keyIn(column, selected.Unit)
	of := kind{ddi: column.DDI, element: column.ElementID, id: column.DeviceID, device: column.Device, unit: key.Unit,
		pgn: column.PGN, start: column.StartBit, stop: column.StopBit}
	if !ok {
		k.lost(column, of, selected.Unit)
		return nil
	}
	first, meaning := base(column), of
	if selected.As != "" {
		first, of = selected.As, kind{as: selected.As, unit: key.Unit}
	}
	of.again = k.number(of, meaning)
	name, known := k.kinds[of]
	if !known {
		if name = first; selected.As == "" || k.taken[strings.ToLower(first)] {
			name = k.free(first)
		}
		k.kinds[of], k.taken[strings.ToLower(name)] = name, true
	}
	key.Name = name
	if !known {
		k.list = append(k.list, named{&key, column})
	}
	return &key
}

// number returns which of the columns of a kind one is since Begin. Of those with a name of their own it is the one that its meaning
// had before, whatever order they come in, or else the first that is free.
func (k *Keys) number(of, meaning kind) int {
	if of.as == "" {
		k.seen[of]++
		return k.seen[of]
	}
	meaning.as = of.as
	at := of
	if at.again = k.numbers[meaning]; at.again == 0 || k.seen[at] > 0 {
		for at.again = k.seen[of] + 1; k.seen[at] > 0; at.again++ {
		}
		k.seen[of] = at.again
	}
	k.seen[at] = 1
	if k.numbers[meaning] == 0 {
		k.numbers[meaning] = at.again
	}
	return at.again
}

// lost tells once that the values of a column cannot be converted.
func (k *Keys) lost(column *farmdata.Column, of kind, to string) {
	if _, told := k.kinds[of]; told || k.Finding == nil {
		return
	}
	k.kinds[of] = ""
	k.Finding(&farmdata.Finding{Kind: farmdata.KindUnsupported, Offset: -1, Record: -1,
		Detail: fmt.Sprintf("values of %s that are in %q cannot be converted to %q and are left out", base(column), column.Unit, to)})
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
	name, lower := base, strings.ToLower(base)
	for n := max(2, k.tried[lower]); ; n++ { // what is taken stays so
		if _, taken := k.taken[strings.ToLower(name)]; !taken {
			return name
		}
		name, k.tried[lower] = base+"_"+strconv.Itoa(n), n
	}
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
	list := make(map[string]Description, len(k.list))
	for _, n := range k.list {
		list[n.Name] = Description{n.column.DDI.String(), n.column.Name, n.Unit, n.column.Element, n.column.Device}
	}
	return list
}
